"""A process with one side of kvrooms on real NIXL. It answers calls on a pipe until it is told to end, or killed.

Forked from a server that has imported everything, see `own_preload`.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from ...engine.decode import DecodeEngine
from ...engine.prefill import PrefillEngine
from .own_side import DECODE, PREFILL, OwnSide, Pool, settings
from .subject import Refused, Shape, Side


class Job(NamedTuple):
    """What a worker is to be. file: path of the memory that the suite sees too. registry: its URL."""

    side: Side
    shape: Shape
    file: str
    deadline_s: float | None
    registry: str


def work(pipe: Connection, job: Job) -> None:
    """Serve one side. The first answer is the address of its control channel ("" if it has none)."""
    mapped = np.memmap(job.file, np.uint8, "r+")
    memory = Pool(job.shape, job.side, lambda size: mapped[:size]).memory()
    given = settings(job.deadline_s)
    engine: PrefillEngine | DecodeEngine
    if job.side == "prefill":
        engine = PrefillEngine(memory, name=PREFILL, registry=job.registry, settings=given)
    else:
        engine = DecodeEngine(memory, name=DECODE, settings=given)
    pipe.send(("ok", engine.address if isinstance(engine, PrefillEngine) else ""))
    own = OwnSide(job.side, engine, job.registry)
    try:
        _serve(pipe, own)
    finally:
        own.end()


def _serve(pipe: Connection, own: OwnSide) -> None:
    """One call, one answer: ("ok", value), ("refused", text), ("error", text)."""
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        if method == "stop":
            return
        try:
            answer = ("ok", getattr(own, method)(*arguments))
        except Refused as refusal:
            answer = ("refused", str(refusal))
        except Exception as error:  # noqa: BLE001 - the suite hears of it
            answer = ("error", f"{type(error).__name__}: {error}")
        pipe.send(answer)
