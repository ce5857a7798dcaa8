"""`explore`: every configuration of a scope, on several processes, added up."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import resource_tracker
from typing import NamedTuple

from ...engine.ending import belong_to_parent, undisturbed
from ...protocol.invariants import INVARIANTS
from ..evidence import Counterexample, Step, Tally
from .alone import Alone
from .configs import NAMES, Job, Scope, jobs
from .group_search import GroupSearch
from .grouped import Grouped
from .ranks import Ranks
from .search import Found, Search
from .vacuity import unreached

Progress = Callable[[str], None]


class ConfigResult(NamedTuple):
    """One configuration: its states and transitions over all its manifests, and whether every one was covered."""

    name: str
    states: int
    transitions: int
    complete: bool
    seconds: float
    systems: int


class Exploration(NamedTuple):
    """What an exploration has found.

    cells: per cell of the tables, how many distinct steps took it. timers: how often a timer closed which
    obligation ("moving: decode KV"). unreached: what should have been reached and was not (see `vacuity`); with
    anything in it the exploration is not complete.
    """

    tally: Tally
    configs: list[ConfigResult]
    states: int
    transitions: int
    complete: bool
    seconds: float
    cells: dict[str, int]
    timers: dict[str, int]
    unreached: tuple[str, ...]


def explore(
    names: Sequence[str] | None = None,
    *,
    scope: Scope = "default",
    workers: int = 2,
    progress: Progress | None = None,
) -> Exploration:
    """Explore configurations completely.

    names: of `configs.NAMES`; None for all. workers: processes; 0 explores in this one. progress: called with a line
    now and then. Raises ValueError for an unknown name, BrokenProcessPool if a worker dies.
    """
    started = time.monotonic()
    say = progress or (lambda _: None)
    chosen = list(NAMES if names is None else names)
    todo = sorted((job for name in chosen for job in jobs(name, scope)), key=_weight, reverse=True)
    done = _in_this_process(todo, say) if workers == 0 else _in_processes(todo, workers, say)
    return _added(chosen, done, scope if names is None else None, time.monotonic() - started)


def search(job: Job) -> tuple[Job, Found, float]:
    """One job, from the beginning, with nothing remembered from another. The seconds it took."""
    started = time.monotonic()
    if job.group is not None and job.shape is not None:
        found = Grouped(job.shape, job.group).run()
    elif job.group is not None:
        found = GroupSearch(job.group).run().found()
    elif job.shape is not None:
        found = Ranks(job.shape).run()
    else:
        found = Alone().run() if job.config == "alone" else _searched(job)
    return job, found, time.monotonic() - started


def _searched(job: Job) -> Found:
    try:
        one = Search(job.system(), job.config)
    except Exception as error:  # noqa: BLE001 - a request that is refused never becomes a room
        words = f"what the callers ask for is refused: {type(error).__name__}: {error}"
        step = Step(1.0, "decode caller", "call", "open the room", "decode")
        refused = Counterexample("L2", words, f"explore {job.config}", job.request.text, (step,))
        return Found(0, 0, complete=False, checked={}, broken={"L2": refused})
    return one.run()


_HEAVY = ("abort", "fault-2", "beside", "ranks")


def _weight(job: Job) -> tuple[int, int, int, int]:
    """Large jobs first, so that no process is left alone with one at the end."""
    heavy = _HEAVY.index(job.config) + 1 if job.config in _HEAVY else 0
    parts = len(job.request.chunks) + job.request.aux + sum(job.request.state)
    return (heavy, job.budget, job.lanes, parts)


def _in_this_process(todo: list[Job], say: Progress) -> Iterator[tuple[Job, Found, float]]:
    for job in todo:
        result = search(job)
        _report(result, say)
        yield result


def _in_processes(todo: list[Job], workers: int, say: Progress) -> Iterator[tuple[Job, Found, float]]:
    # Not by fork: whoever calls may have threads. A worker that dies breaks the pool, which raises.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=belong_to_parent) as pool:
        resource_tracker.ensure_running()
        with undisturbed():
            waiting: set[Future[tuple[Job, Found, float]]] = {pool.submit(search, job) for job in todo}
        try:
            while waiting:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    result = future.result()
                    _report(result, say)
                    yield result
        finally:  # by the pool itself: what it fails because its workers were killed must not be cancelled by others
            pool.shutdown(cancel_futures=True)


def _report(result: tuple[Job, Found, float], say: Progress) -> None:
    job, found, seconds = result
    if found.states >= 20_000 or found.broken:
        broken = f"; broken: {', '.join(found.broken)}" if found.broken else ""
        say(f"explored {job.config}: {found.states:,} states in {seconds:.1f} s{broken}")


def _added(chosen: list[str], done: Iterator[tuple[Job, Found, float]], scope: Scope | None, _: float) -> Exploration:
    started = time.monotonic()
    tally, cells, together, timers = Tally(), Counter[str](), Counter[str](), Counter[str]()
    outcomes: set[tuple[str, str, str]] = set()
    per_config: dict[str, list[tuple[Found, float]]] = {name: [] for name in chosen}
    shortest: dict[str, list[Counterexample]] = {}
    for job, found, seconds in done:
        per_config[job.config].append((found, seconds))
        cells.update(found.cells)
        together.update(found.cells if job.config != "alone" else {})
        timers.update(found.timers)
        outcomes |= found.outcomes
        for name, times in found.checked.items():
            if times:
                tally.held(name, times)
        for name, counterexample in found.broken.items():
            shortest.setdefault(name, []).append(counterexample)
    for invariant in INVARIANTS:
        for counterexample in sorted(shortest.get(invariant.id, ()), key=lambda one: len(one.timeline)):
            tally.broke(counterexample)
    configs = [_config(name, results) for name, results in per_config.items()]
    missing = unreached(together, outcomes, scope) if scope is not None else ()
    return Exploration(
        tally=tally,
        configs=configs,
        states=sum(config.states for config in configs),
        transitions=sum(config.transitions for config in configs),
        complete=all(config.complete for config in configs) and not missing,
        seconds=time.monotonic() - started,
        cells=dict(sorted(cells.items())),
        timers=dict(sorted(timers.items())),
        unreached=missing,
    )


def _config(name: str, results: list[tuple[Found, float]]) -> ConfigResult:
    return ConfigResult(
        name=name,
        states=sum(found.states for found, _ in results),
        transitions=sum(found.transitions for found, _ in results),
        complete=bool(results) and all(found.complete for found, _ in results),
        seconds=sum(seconds for _, seconds in results),
        systems=len(results),
    )
