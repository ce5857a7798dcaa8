"""A decode rank of a group in a process of its own, told by a pipe what to do, to be killed by a test."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Any

from rank_support import LIMIT_S, Part

from kvrooms import DecodeEngine, Instance, Rank, RoomGroup
from kvrooms.soak.procs import Process, Processes

HALVES = ((0, 2), (2, 2))
"""First head and number of heads of each of two ranks."""


def part(rank: int) -> Part:
    """The memory of a rank."""
    return Part(*HALVES[rank])


def instance() -> Instance:
    """What every rank says of both."""
    return Instance(tuple(Rank(part(rank).memory.layout) for rank in range(2)), id=7)


def main(descriptor: int) -> int:
    """What runs there; see `Apart` for what it is told. Returns the exit status."""
    pipe: Connection[Any, Any] = Connection(descriptor)
    rank, leader, registry = pipe.recv()
    mine = part(rank)
    group = RoomGroup(rank, 2, leader or "127.0.0.1:0")
    pipe.send(group.address)
    group.join(LIMIT_S)
    engine = DecodeEngine(mine.memory, name=f"decode-{rank}", ranks=instance(), rank=rank, group=group)
    pipe.send("ready")
    rooms: dict[int, Any] = {}
    while True:
        try:
            what, number = pipe.recv()
        except EOFError:
            return 0
        match what:
            case "open":
                rooms[number] = engine.open(number, bootstrap=registry, pages=[5, 6], aux_index=1)
            case "phase":
                pipe.send(rooms[number].phase)
            case "outcome":
                pipe.send(rooms[number].wait_outcome(LIMIT_S))


class Apart:
    """Decode rank `rank` of two, elsewhere. leader: where rank 0 listens; "" if this is rank 0."""

    def __init__(self, processes: Processes, rank: int, leader: str, registry: str) -> None:
        self.process: Process = processes.fork(f"decode-{rank}")
        self.process.pipe.send((rank, leader, registry))
        self.address: str = self.answer()

    def answer(self) -> Any:
        """What it says next."""
        assert self.process.pipe.poll(LIMIT_S), f"{self.process.name} says nothing"
        return self.process.pipe.recv()

    def tell(self, what: str, number: int) -> None:
        """Let it do something with a room."""
        self.process.pipe.send((what, number))

    def ask(self, what: str, number: int) -> Any:
        """The phase, or the outcome, of a room."""
        self.tell(what, number)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.signal(signal.SIGKILL)
        assert self.process.ended(LIMIT_S)
