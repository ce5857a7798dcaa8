"""kvrooms on real NIXL as a subject: processes, public methods, no fault but those that a system can do.

Each rank of a side is a process of its own, so that it can be killed. Its memory is a file that the suite maps too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from ... import __version__
from ...engine.ending import undisturbed
from ...protocol.registration import parse_address
from ...transport.registry import RegistryServer
from .own_guest import TcpGuest
from .own_pool import Pool, blank, size_of, whole
from .own_ranks import OwnRanks
from .own_side import TRAITS, Sayings
from .own_worker import Job, work
from .subject import SIDES, GuestSays, Item, Refused, Request, Shape, Side, Status, Subject, Unsupported, View

_CALL_S, _START_S = 20.0, 60.0
_END_S = 15.0
_SAY_S = 1.0
_PRELOAD = ["kvrooms.harness.conformance.own_preload"]


class SubjectDied(RuntimeError):
    """A side's process has ended, or does not answer."""


class _Process:
    """A worker as the suite holds it."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()
        self.leader = self.address = ""

    def met(self) -> None:
        """Wait until its group can be found."""
        self.leader = self._answer(_START_S)

    def started(self) -> None:
        """Wait until its rank is up."""
        self.address = self._answer(_START_S)

    def call(self, method: str, *arguments: Any) -> Any:
        """Raises Refused, SubjectDied, RuntimeError with what the method raised."""
        try:
            self.pipe.send((method, arguments))
        except OSError as error:
            raise SubjectDied(f"{method}: the process has ended") from error
        return self._answer()

    def _answer(self, seconds: float = _CALL_S) -> Any:
        try:
            if not self.pipe.poll(seconds):
                raise SubjectDied(f"no answer for {seconds:g} s")
            kind, value = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise SubjectDied("the process has ended") from error
        if kind == "refused":
            raise Refused(value)
        if kind == "error":
            raise RuntimeError(value)
        return value

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def ask_to_end(self) -> None:
        """The engine closes and the process ends, in its own time."""
        with suppress(OSError):
            self.pipe.send(("stop", ()))

    def end(self) -> None:
        """Wait for that; then by force."""
        self.process.join(_END_S)
        self.kill()


class KvroomsNixl(Subject):
    """`kvrooms conformance kvrooms`."""

    name = "kvrooms"
    version = __version__
    traits = TRAITS._replace(guests=frozenset({"claim", "grant"}))

    def __init__(self) -> None:
        self._processes: dict[Side, list[_Process]] = {}
        self._sides: dict[Side, OwnRanks] = {}
        self._memories: dict[tuple[Side, int], int] = {}
        self._pools: dict[Side, list[Pool]] = {}
        self._registry: RegistryServer | None = None
        self._shape = Shape(0, 0, 0, 0, 0, 0)
        self._deadline_s: float | None = None
        self._strangers: list[socket.socket] = []
        self._guest: TcpGuest | None = None

    def start(self, shape: Shape, *, deadline_s: float | None = None, seed: int = 0) -> None:
        """See `Subject.start`."""
        self._shape, self._deadline_s = shape, deadline_s
        self._registry = RegistryServer(host="127.0.0.1", port=0)
        self._registry.start()
        for side in SIDES:
            self._pools[side] = [self._pool(side, rank) for rank in range(shape.ranks_of(side))]
        for side in SIDES:
            self._begin(side)
        for process in self._everybody():
            process.started()

    def _pool(self, side: Side, rank: int) -> Pool:
        self._memories[side, rank] = handle = os.memfd_create(f"kvrooms-{side}-{rank}")
        os.ftruncate(handle, size_of(self._shape, side, rank))
        mapped = np.memmap(self._path(side, rank), np.uint8, "r+")
        return Pool(self._shape, side, lambda size: mapped[:size], rank)

    def _begin(self, side: Side) -> None:
        """Processes for all ranks of a side; their group can be found by its rank 0."""
        assert self._registry is not None
        self._processes[side], leader = [], ""
        resource_tracker.ensure_running()
        for rank in range(self._shape.ranks_of(side)):
            job = Job(side, self._shape, self._path(side, rank), self._deadline_s, self._registry.url, rank, leader)
            with undisturbed(signal.SIGINT):  # Ctrl-C is for the suite, which knows each worker from its first moment
                process = _Process(job)
                self._processes[side].append(process)
            process.met()
            leader = leader or process.leader
        self._sides[side] = OwnRanks([process.call for process in self._processes[side]])

    def _everybody(self) -> list[_Process]:
        return [process for some in self._processes.values() for process in some]

    def stop(self) -> None:
        """See `Subject.stop`."""
        while self._strangers:
            self._strangers.pop().close()
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        for process in self._everybody():
            process.ask_to_end()
        for process in self._everybody():
            process.end()
        self._processes.clear()
        self._pools.clear()
        while self._memories:
            os.close(self._memories.popitem()[1])
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _path(self, side: Side, rank: int = 0) -> str:
        """Where a worker finds its memory. It has no name in any folder, so nothing of it outlives a SIGKILL."""
        return f"/proc/{os.getpid()}/fd/{self._memories[side, rank]}"

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """See `Subject.fill`."""
        for pool in self._pools[side]:
            pool.fill(item, data)

    def read(self, side: Side, item: Item) -> bytes:
        """See `Subject.read`."""
        return whole(self._pools[side], item)

    # -- rooms ---------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> tuple[Side, tuple[int, ...]]:
        """See `Subject.open`."""
        return side, self._sides[side].open(request)

    def send(self, room: Any, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """See `Subject.send`."""
        self._sides[room[0]].send(room[1], pages, state_indices, last)

    def send_layers(
        self, room: Any, layers: Sequence[int], pages: Sequence[int], state_indices: Any, *, last: bool
    ) -> None:
        """See `Subject.send_layers`."""
        self._sides[room[0]].send(room[1], pages, state_indices, last, layers)

    def poll(self, room: Any) -> Status:
        """See `Subject.poll`."""
        return self._sides[room[0]].poll(room[1])

    def explain(self, room: Any) -> View:
        """See `Subject.explain`."""
        return self._sides[room[0]].explain(room[1])

    def abort(self, room: Any) -> None:
        """See `Subject.abort`."""
        self._sides[room[0]].each(room[1], "abort")

    def failure(self, room: Any) -> str | None:
        """See `Subject.failure`."""
        return self._sides[room[0]].failure(room[1])

    def close(self, room: Any) -> None:
        """See `Subject.close`."""
        self._sides[room[0]].each(room[1], "close")

    def memory_free(self, room: Any) -> bool:
        """See `Subject.memory_free`."""
        return all(self._sides[room[0]].each(room[1], "memory_free"))

    def held(self, side: Side) -> Mapping[str, int]:
        """See `Subject.held`."""
        return self._sides[side].held()

    def ailments(self, side: Side) -> Sequence[str]:
        """See `Subject.ailments`."""
        dead = [one.process for one in self._processes[side] if not one.process.is_alive()]
        return tuple(f"the process has ended with status {process.exitcode}" for process in dead)

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, side: Side) -> None:
        """See `Subject.kill`."""
        for process in self._processes[side]:
            process.kill()

    def restart(self, side: Side) -> None:
        """See `Subject.restart`."""
        if self._shape.ranks != (1, 1):
            raise Unsupported("a side of several ranks is not started again")
        self._begin(side)
        for process in self._processes[side]:
            process.started()

    def inject(self, side: Side, channel: Literal["control", "notification"], parts: Sequence[bytes]) -> None:
        """See `Subject.inject`. The connection stays open until the subject stops."""
        address = self._processes[side][0].address
        if not address:
            return
        stranger = socket.create_connection(parse_address(address), _SAY_S)
        self._strangers.append(stranger)
        with suppress(OSError):  # it may hang up in the middle
            for part in parts:
                stranger.sendall(part)

    def guest(self, saying: GuestSays, request: Request) -> None:
        """See `Subject.guest`."""
        if self._guest is None:
            self._guest = TcpGuest(self._shape, self._processes["prefill"][0].address)
        self._guest.says(saying, request)

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """See `Subject.sayings`."""
        memory = blank(Shape(1024, 1, 1, 64, 1, 1), "decode").memory()
        return [[frame] for frame in Sayings(memory.layout, memory.regions).frames()]
