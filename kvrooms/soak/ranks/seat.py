"""One rank of a shape as the conductor sees it: its memory, what that must hold in the end, and its process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np

from ...protocol.layout import Layout
from ...shapes.deal import decode_sizes, prefill_sizes
from ...shapes.judge import compare
from ...shapes.oracle import Pair, due_bytes, expected, paint
from ...shapes.pools import Bytes, Pool, Sizes
from ...shapes.rooms import RoomShape
from ...shapes.table import Case
from ..procs import Process
from .memory import attach, bytes_of, fill, make, pool_in
from .messages import FromWorker, Role, Side, ToWorker, encode, from_worker


class Seat:
    """A rank. Its memory is painted here, before any process has it, and compared here, after none has it any more."""

    def __init__(self, case: Case, side: Side, instance: int, rank: int) -> None:
        self.case = case
        self.side: Side = side
        self.instance = instance
        self.rank = rank
        self.layout: Layout = (case.prefill[instance] if side == "prefill" else case.decode).ranks[rank].layout
        self.sizes: Sizes = prefill_sizes(case) if side == "prefill" else decode_sizes(case)
        self.name = f"{side} rank {rank}" + (f" of instance {instance}" if side == "prefill" and case.dp > 1 else "")
        self.size = bytes_of(self.layout, self.sizes)
        self._descriptor = make(self.size)
        self.memory = attach(os.dup(self._descriptor), self.size)
        fill(self.memory, self.layout, self.sizes, f"{case.name}, {self.name}")
        self.wanted: Bytes = self.memory
        self.process: Process | None = None

    def close(self) -> None:
        """Let go of the memory's descriptor; its bytes stay as long as `memory`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # -- bytes -----------------------------------------------------------------------------------------------------

    def prepare(self, rooms: Sequence[RoomShape]) -> None:
        """What prefill has of its rooms; what everybody must have when all is over is that, so far."""
        if self.side == "prefill":
            for room in self._own(rooms):
                paint(self.case.prefill[self.instance], self.rank, self._pool(self.memory), room)
        self.wanted = self.memory.copy()

    def expect(self, rooms: Sequence[RoomShape]) -> int:
        """What decode must have when all rooms are DONE. Returns the bytes that these carry to it."""
        if self.side == "prefill":
            return 0
        carried, pool = 0, self._pool(self.wanted)
        for room in rooms:
            pair = Pair(self.case.prefill[room.instance], self.case.decode)
            for array, after in zip(pool, expected(pair, self.rank, pool, room), strict=True):
                array[:] = after
            carried += due_bytes(pair, self.rank, room)
        return carried

    def differs(self) -> list[str]:
        """What of the memory is not as it must be, one sentence a buffer."""
        words = compare(self.layout, self._pool(self.wanted), self._pool(self.memory))
        wrong = np.flatnonzero(self.wanted != self.memory)
        if wrong.size and not words:
            words = [f"{wrong.size} bytes outside all buffers, the first at {wrong[0]}"]
        return [f"{self.name}: {word}" for word in words]

    def _own(self, rooms: Sequence[RoomShape]) -> list[RoomShape]:
        return [room for room in rooms if room.instance == self.instance]

    def _pool(self, memory: Bytes) -> Pool:
        return pool_in(memory, self.layout, self.sizes)

    # -- the process -----------------------------------------------------------------------------------------------

    def become(self, process: Process, role: Role) -> None:
        """A process gets the role, and the memory."""
        self.process = process
        self.say(role)
        try:
            with socket.fromfd(process.pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
                socket.send_fds(pipe, [b"m"], [self._descriptor])
        except OSError:  # it has ended, which is found out when it should answer
            pass

    def say(self, message: ToWorker) -> None:
        """Tell the process something; nothing happens if it has ended."""
        if self.process is not None:
            try:
                self.process.pipe.send_bytes(encode(message))
            except OSError:
                pass

    def heard(self) -> FromWorker | None:
        """What the process has said, once there is something to read; None when it has ended."""
        assert self.process is not None
        try:
            return from_worker(self.process.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
