"""The conductor of shapes: gives each rank a process and memory, lets the rooms run, and compares every byte after."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import NamedTuple

from ...shapes.deal import rooms
from ...shapes.table import Case
from ..procs import Process, Processes
from .messages import Close, Idle, Over, Role, Told
from .rank import LIMIT_S
from .seat import Seat

_GRACE_S = 30.0
_CROWDED = {"spin_s": 0.0, "linger_s": 0.001}
"""Where more engines than cores share the host, an engine that spins keeps another one from its work."""


class Outcome(NamedTuple):
    """One shape. bytes: that its rooms were to carry. wrong: what was not as it must be: shape, rank, buffer.

    gathered, scattered: pieces that went through staging slots.
    """

    name: str
    ranks: int
    bytes: int
    identical: bool
    seconds: float
    wrong: tuple[str, ...]
    gathered: int
    scattered: int


class Conductor:
    """Runs shapes one after another with one pool of processes.

    registry: the URL of one. corrupt: have one rank of each shape change a byte, as a control of the comparison. told:
    called with the name of a signal that has told one of the processes to end.
    """

    def __init__(
        self, processes: Processes, registry: str, *, seed: int, corrupt: bool, told: Callable[[str], None]
    ) -> None:
        self._processes = processes
        self._registry = registry
        self._seed = seed
        self._corrupt = corrupt
        self._told = told
        self._free: list[Process] = []
        self._staged = [0, 0]
        self._draw = random.Random(seed)

    def play(self, case: Case) -> Outcome:
        """One shape. Raises ProcessError when no process can be started."""
        began = time.monotonic()
        dealt = rooms(case, self._seed)
        seats = [Seat(case, "prefill", i, rank) for i, one in enumerate(case.prefill) for rank in range(len(one.ranks))]
        seats += [Seat(case, "decode", 0, rank) for rank in range(len(case.decode.ranks))]
        try:
            for seat in seats:
                seat.prepare(dealt)
            self._hand_out(case, seats)
        finally:
            for seat in seats:
                seat.close()
        carried = sum(seat.expect(dealt) for seat in seats)
        self._staged = [0, 0]
        wrong = self._hear(seats, Over)
        for seat in seats:
            seat.say(Close())
        wrong += self._hear(seats, Idle)
        self._free += [seat.process for seat in seats if seat.process is not None]
        differ = [words for seat in seats for words in seat.differs()]
        if case.staging and not wrong and not any(self._staged):
            wrong.append("nothing went through a staging slot")
        said = tuple(f"{case.name}: {words}" for words in [*differ, *wrong])
        return Outcome(case.name, len(seats), carried, not said, time.monotonic() - began, said, *self._staged)

    def _hand_out(self, case: Case, seats: Sequence[Seat]) -> None:
        """A process for each rank, its role, and its memory."""
        group = self._draw.getrandbits(62) + 1
        guilty = self._draw.choice(seats) if self._corrupt else None
        settings = _CROWDED if len(seats) > (os.cpu_count() or 1) else {}
        for seat in seats:
            role = Role(
                case=case.name,
                seed=self._seed,
                side=seat.side,
                instance=seat.instance,
                rank=seat.rank,
                registry=self._registry,
                group=group,
                size=seat.size,
                settings=settings,
                corrupt=self._draw.randrange(seat.size) if seat is guilty else None,
            )
            seat.become(self._free.pop() if self._free else self._processes.fork("kvrooms-rank"), role)

    def _hear(self, seats: Sequence[Seat], kind: type[Over | Idle]) -> list[str]:
        """Wait until every process has said that; one that does not is killed. Returns what is wrong, in words."""
        wrong: list[str] = []
        missing = [seat for seat in seats if seat.process is not None]
        end = time.monotonic() + LIMIT_S + _GRACE_S
        while missing:
            pipes = [seat.process.pipe for seat in missing if seat.process is not None]
            ready = wait(pipes, max(0.0, end - time.monotonic()))
            if not ready:
                wrong += [f"{seat.name} says nothing for {LIMIT_S + _GRACE_S:g} s" for seat in missing]
                for seat in missing:
                    _lose(seat)
                break
            for seat in [seat for seat in missing if seat.process is not None and seat.process.pipe in ready]:
                said = seat.heard()
                if isinstance(said, Told):
                    self._told(f"{seat.name} was told to end by {said.sign}")
                    continue
                missing.remove(seat)
                if said is None:
                    wrong.append(f"the process of {seat.name} has ended")
                    _lose(seat)
                elif isinstance(said, kind):
                    wrong += [f"{seat.name}: {words}" for words in said.wrong]
                    if isinstance(said, Idle):
                        self._staged = [a + b for a, b in zip(self._staged, said.staged, strict=True)]
        return wrong


def _lose(seat: Seat) -> None:
    """A process that does not do what it should is not used again."""
    if seat.process is not None:
        seat.process.signal(signal.SIGKILL)
        seat.process = None
