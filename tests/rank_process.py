"""A prefill rank in a process of its own, told by a pipe what to do; for tests that stop and kill one of several."""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from rank_support import LIMIT_S, Part

from kvrooms import PrefillEngine
from kvrooms.soak.procs import Process, Processes


def main(descriptor: int) -> int:
    """What runs there; see `Far` for what it is told. Returns the exit status."""
    pipe: Connection[Any, Any] = Connection(descriptor)
    registry, rank, ranks, first, heads = pipe.recv()
    part = Part(first, heads)
    part.fill()
    engine = PrefillEngine(part.memory, name="prefill", registry=registry, rank=rank, ranks=ranks)
    pipe.send("ready")
    rooms: dict[int, Any] = {}
    while True:
        try:
            what, number, *more = pipe.recv()
        except EOFError:
            return 0
        match what:
            case "open":
                rooms[number] = engine.open(number, aux_index=0)
            case "phase":
                pipe.send(rooms[number].phase)
            case "send":
                rooms[number].send(*more, last=True)
            case "end":
                status = rooms[number].wait(LIMIT_S)
                rooms[number].close()
                pipe.send((status, rooms[number].wait_memory_free(LIMIT_S)))


class Far:
    """Rank `rank` of an instance named "prefill", whose heads begin at `first`, elsewhere."""

    def __init__(self, processes: Processes, registry: str, rank: int, ranks: int, first: int, heads: int) -> None:
        self.process: Process = processes.fork(f"rank-{rank}")
        self.process.pipe.send((registry, rank, ranks, first, heads))
        assert self._answer() == "ready"

    def tell(self, what: str, number: int, *more: Any) -> None:
        """Let it open a room, or send these pages of it."""
        self.process.pipe.send((what, number, *more))

    def ask(self, what: str, number: int) -> Any:
        """The phase of a room, or its end: how, and whether its memory came back."""
        self.tell(what, number)
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.pipe.poll(LIMIT_S), f"{self.process.name} says nothing"
        return self.process.pipe.recv()

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.process.signal(signal.SIGSTOP)
        while not self.process.stopped():
            time.sleep(0.001)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.signal(signal.SIGKILL)
        assert self.process.ended(LIMIT_S)
