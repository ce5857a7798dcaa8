"""Many simulated runs, each drawn from its seed, judged, and replayed exactly from the same seed.

    found = simulate(seed=0, rooms=100_000)
    print(found.tally.broken, found.timers)
    print(replay(17).text())

A run has a day on which things go wrong and an evening on which nothing does any more (see `day` and `evening`). Every
eighth seed makes a run of several ranks and their groups (see `rank_day` and `rank_evening`). Seeds are numbers: run n
of `simulate(seed=s)` is the run of seed s + n, on any machine.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import NamedTuple

import msgspec

from ...engine.ending import belong_to_parent, undisturbed
from ..evidence import Counterexample, Step, Tally, timeline_lines
from .day import Day
from .evening import Evening
from .rank_day import RankDay
from .rank_evening import RankEvening
from .rank_swarm import is_ranked
from .record import Record

Progress = Callable[[str], None]
SEEDS_PER_TASK = 25


class Outcome(NamedTuple):
    """What one run has shown."""

    seed: int
    rooms: int
    faults: int
    seconds: float
    found: tuple[Counterexample, ...]
    examples: dict[str, int]
    injected: dict[str, int]
    timers: dict[str, int]
    outcomes: dict[str, int]


class Simulation(NamedTuple):
    """What many runs have shown. faults: injected ones; hours: of simulated time; seconds: of ours.

    injected, timers and outcomes count by kind: which faults, which deadlines were needed and the obligation that each
    closed, and how rooms ended on either side.
    """

    tally: Tally
    rooms: int
    faults: int
    hours: float
    seconds: float
    seeds: int
    injected: dict[str, int]
    timers: dict[str, int]
    outcomes: dict[str, int]


class Run(NamedTuple):
    """One run, replayed. timeline: everything that happened."""

    seed: int
    tally: Tally
    timeline: tuple[Step, ...]

    def text(self) -> str:
        """The timeline, one line per step."""
        return "\n".join([f"simulation seed {self.seed}", *timeline_lines(self.timeline)])


def run_seed(seed: int, record: Record | None = None) -> Outcome:
    """One run."""
    day = RankDay(seed, record) if is_ranked(seed) else Day(seed, record)
    judge = day.judge
    try:
        day.live()
        (RankEvening(day) if isinstance(day, RankDay) else Evening(day)).live()
    except Exception as error:  # noqa: BLE001 - whatever ends an engine's loop is a finding, with its place
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        strangers = isinstance(day, Day) and bool(day.strangers)
        spoken_to = strangers or any("frame " in name for name in judge.injected)
        judge.accuse(
            "S5" if spoken_to else "L4", f"the loop of an engine ended: {type(error).__name__}: {error} ({where})"
        )
    found = judge.found
    if record is not None:
        found = [_with_timeline(one, record) for one in found]
    return Outcome(
        seed,
        day.serials,
        judge.injected.total() + judge.outcomes.get("decode aborted", 0) + judge.outcomes.get("prefill aborted", 0),
        day.world.now,
        tuple(found),
        dict(judge.examples),
        dict(judge.injected),
        dict(judge.timers),
        dict(judge.outcomes),
    )


def _with_timeline(found: Counterexample, record: Record) -> Counterexample:
    room = found.input.get("room", "")
    serial = int(room.split()[1]) if room else None
    return msgspec.structs.replace(found, timeline=record.about(serial))


def replay(seed: int) -> Run:
    """The run of a seed, with its whole timeline."""
    record = Record()
    outcome = run_seed(seed, record)
    tally = Tally()
    _count(tally, outcome)
    return Run(seed, tally, record.steps)


def simulate(
    *,
    seed: int = 0,
    rooms: int = 100_000,
    workers: int = 2,
    progress: Progress | None = None,
    stop_at_first: bool = False,
    seconds: float | None = None,
) -> Simulation:
    """Run seeds from `seed` on until so many rooms have been opened, or `seconds` are over.

    workers: processes; 0 runs everything in this one. progress: told a line now and then. stop_at_first: stop at the
    first counterexample.
    """
    started = time.monotonic()
    total = _Total()
    told = started
    for outcome in _outcomes(seed, workers):
        total.add(outcome)
        now = time.monotonic()
        if progress is not None and now - told > 5:
            told = now
            progress(f"{total.rooms:,} of {rooms:,} rooms, {len(total.tally.broken)} properties broken")
        if total.rooms >= rooms or (stop_at_first and total.tally.broken) or (seconds and now - started > seconds):
            break
    return total.result(time.monotonic() - started)


def _outcomes(seed: int, workers: int) -> Iterator[Outcome]:
    """The outcomes of the seeds from `seed` on, in order."""
    if not workers:
        while True:
            yield _judged(seed)
            seed += 1
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=belong_to_parent) as pool:
        running: list[Future[list[Outcome]]] = []
        try:
            while True:
                while len(running) < workers * 2:
                    with undisturbed():
                        running.append(pool.submit(_several, seed))
                    seed += SEEDS_PER_TASK
                wait(running[:1], return_when=FIRST_COMPLETED)
                yield from running.pop(0).result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _several(seed: int) -> list[Outcome]:
    return [_judged(one) for one in range(seed, seed + SEEDS_PER_TASK)]


def _judged(seed: int) -> Outcome:
    """A run; one that has found something is run again to tell how it came to that."""
    outcome = run_seed(seed)
    return run_seed(seed, Record()) if outcome.found else outcome


def _count(tally: Tally, outcome: Outcome) -> None:
    for property_id, examples in outcome.examples.items():
        if examples:
            tally.held(property_id, examples)
    for found in outcome.found:
        tally.broke(found)


class _Total:
    """Outcomes, added up."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.rooms = self.faults = self.seeds = 0
        self.virtual_s = 0.0
        self.counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())

    def add(self, outcome: Outcome) -> None:
        """One more."""
        _count(self.tally, outcome)
        self.rooms += outcome.rooms
        self.faults += outcome.faults
        self.seeds += 1
        self.virtual_s += outcome.seconds
        for total, one in zip(self.counts, (outcome.injected, outcome.timers, outcome.outcomes), strict=True):
            total.update(one)

    def result(self, seconds: float) -> Simulation:
        """The sum."""
        injected, timers, outcomes = (dict(sorted(count.items())) for count in self.counts)
        return Simulation(
            self.tally, self.rooms, self.faults, self.virtual_s / 3600, seconds, self.seeds, injected, timers, outcomes
        )
