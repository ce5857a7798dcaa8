"""kvrooms on real NIXL as a subject: two processes, public methods, no fault but those that a system can do.

Each side is a process of its own, so that it can be killed. Their memory is a file in memory that the suite maps too.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from ... import __version__
from ...protocol.registration import parse_address
from ...transport.registry import RegistryServer
from .own_guest import TcpGuest
from .own_side import TRAITS, Pool, Sayings
from .own_worker import Job, work
from .subject import SIDES, GuestSays, Item, Refused, Request, Shape, Side, Status, Subject, View

_CALL_S = 20.0
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
        self.address = ""

    def started(self) -> None:
        """Wait until its side is up."""
        self.address = self._answer()

    def call(self, method: str, *arguments: Any) -> Any:
        """Raises Refused, SubjectDied, RuntimeError with what the method raised."""
        try:
            self.pipe.send((method, arguments))
        except OSError as error:
            raise SubjectDied(f"{method}: the process has ended") from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self.pipe.poll(_CALL_S):
                raise SubjectDied(f"no answer for {_CALL_S:g} s")
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
        self._processes: dict[Side, _Process] = {}
        self._memories: dict[Side, int] = {}
        self._pools: dict[Side, Pool] = {}
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
            self._memories[side] = handle = os.memfd_create(f"kvrooms-{side}")
            os.ftruncate(handle, Pool.size(shape, side))
            mapped = np.memmap(self._path(side), np.uint8, "r+")
            self._pools[side] = Pool(shape, side, lambda size, mapped=mapped: mapped[:size])  # type: ignore[misc]
        for side in SIDES:
            self._begin(side)
        for process in self._processes.values():
            process.started()

    def stop(self) -> None:
        """See `Subject.stop`."""
        while self._strangers:
            self._strangers.pop().close()
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        for process in self._processes.values():
            process.ask_to_end()
        for process in self._processes.values():
            process.end()
        self._processes.clear()
        self._pools.clear()
        while self._memories:
            os.close(self._memories.popitem()[1])
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _path(self, side: Side) -> str:
        """Where a worker finds the side's memory. It has no name in any folder, so nothing of it outlives a SIGKILL."""
        return f"/proc/{os.getpid()}/fd/{self._memories[side]}"

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """See `Subject.fill`."""
        self._pools[side].fill(item, data)

    def read(self, side: Side, item: Item) -> bytes:
        """See `Subject.read`."""
        return self._pools[side].read(item)

    # -- rooms ---------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> tuple[Side, int]:
        """See `Subject.open`."""
        return side, self._processes[side].call("open", request)

    def send(self, room: Any, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """See `Subject.send`."""
        self._call(room, "send", pages, state_indices, last)

    def poll(self, room: Any) -> Status:
        """See `Subject.poll`."""
        status: Status = self._call(room, "poll")
        return status

    def explain(self, room: Any) -> View:
        """See `Subject.explain`."""
        view: View = self._call(room, "explain")
        return view

    def abort(self, room: Any) -> None:
        """See `Subject.abort`."""
        self._call(room, "abort")

    def failure(self, room: Any) -> str | None:
        """See `Subject.failure`."""
        text: str | None = self._call(room, "failure")
        return text

    def close(self, room: Any) -> None:
        """See `Subject.close`."""
        self._call(room, "close")

    def memory_free(self, room: Any) -> bool:
        """See `Subject.memory_free`."""
        return bool(self._call(room, "memory_free"))

    def held(self, side: Side) -> Mapping[str, int]:
        """See `Subject.held`."""
        held: Mapping[str, int] = self._processes[side].call("held")
        return held

    def _call(self, room: Any, method: str, *arguments: Any) -> Any:
        side, key = room
        return self._processes[side].call(method, key, *arguments)

    def ailments(self, side: Side) -> Sequence[str]:
        """See `Subject.ailments`."""
        process = self._processes[side].process
        return () if process.is_alive() else (f"the process has ended with status {process.exitcode}",)

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, side: Side) -> None:
        """See `Subject.kill`."""
        self._processes[side].kill()

    def restart(self, side: Side) -> None:
        """See `Subject.restart`."""
        self._begin(side)
        self._processes[side].started()

    def _begin(self, side: Side) -> None:
        assert self._registry is not None
        job = Job(side, self._shape, self._path(side), self._deadline_s, self._registry.url)
        self._processes[side] = _Process(job)

    def inject(self, side: Side, channel: Literal["control", "notification"], parts: Sequence[bytes]) -> None:
        """See `Subject.inject`. The connection stays open until the subject stops."""
        address = self._processes[side].address
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
            self._guest = TcpGuest(self._shape, self._processes["prefill"].address)
        self._guest.says(saying, request)

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """See `Subject.sayings`."""
        memory = Pool(Shape(1024, 1, 1, 64, 1, 1), "decode", lambda size: np.zeros(size, np.uint8)).memory()
        return [[frame] for frame in Sayings(memory.layout, memory.regions).frames()]
