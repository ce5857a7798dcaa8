"""A process with one rank of kvrooms on real NIXL. It answers calls on a pipe until it is told to end, or killed.

Forked from a server that has imported everything, see `own_preload`.
"""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from ...engine.decode import DecodeEngine
from ...engine.group import RoomGroup
from ...engine.prefill import PrefillEngine
from .own_pool import Pool, instance_of
from .own_side import DECODE, PREFILL, OwnSide, settings
from .subject import Refused, Shape, Side


class Job(NamedTuple):
    """What a worker is to be. file: path of the memory that the suite sees too. registry: its URL.

    leader: where rank 0 of its group listens; "" for rank 0 itself, and where both sides have one rank only.
    """

    side: Side
    shape: Shape
    file: str
    deadline_s: float | None
    registry: str
    rank: int = 0
    leader: str = ""


def work(pipe: Connection, job: Job) -> None:
    """Serve one rank. The first answers are the address of its group ("" if it has none), and then that of its control
    channel ("" if it has none). Ctrl-C is for the suite, which ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mapped = np.memmap(job.file, np.uint8, "r+")
    memory = Pool(job.shape, job.side, lambda size: mapped[:size], job.rank).memory()
    given, ranks = settings(job.deadline_s), job.shape.ranks_of(job.side)
    group: RoomGroup | None = None
    if job.shape.ranks != (1, 1):
        group = RoomGroup(job.rank, ranks, job.leader or "127.0.0.1:0", settings=given)
    pipe.send(("ok", "" if group is None else group.address))
    if group is not None:
        group.join()
    engine: PrefillEngine | DecodeEngine
    if job.side == "prefill":
        engine = PrefillEngine(
            memory, name=PREFILL, registry=job.registry, rank=job.rank, ranks=ranks, settings=given, group=group
        )
    else:
        instance = instance_of(job.shape, "decode", 0 if group is None else group.id)
        engine = DecodeEngine(memory, name=DECODE, settings=given, ranks=instance, rank=job.rank, group=group)
    pipe.send(("ok", engine.address if isinstance(engine, PrefillEngine) else ""))
    own = OwnSide(job.side, engine, job.registry, group)
    try:
        _serve(pipe, own)
    finally:
        own.end()


def _serve(pipe: Connection, own: OwnSide) -> None:
    """One call, one answer: ("ok", value), ("refused", text), ("error", text)."""
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        if method == "stop":
            return
        try:
            answer = ("ok", getattr(own, method)(*arguments))
        except Refused as refusal:
            answer = ("refused", str(refusal))
        except Exception as error:  # noqa: BLE001 - the suite hears of it
            answer = ("error", f"{type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except OSError:  # the suite has ended
            return
