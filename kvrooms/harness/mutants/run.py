"""Running mutants: each in a process of its own, the source left as it is; what survives is a hole in the proof."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ..evidence import Counterexample
from .catalogue import BY_NAME, MUTANTS, QUICK
from .checkers import CHECKERS
from .mutant import Mutant
from .zygote import Job, Outcome

Scope: TypeAlias = Literal["quick", "default", "full"]
FAST_S, FULL_S = 120.0, 600.0
"""How long one mutant may take; one that takes longer has survived."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class MutantResult(NamedTuple):
    """What became of one mutant.

    killed_by: "checker property" for each that broke. counterexample: of an expected property, None if it survived.
    blind: checkers that must notice it and did not. missed: expected properties that no checker has broken; more:
    others that broke although only `expected` may (judged in a full run). error: what kept a checker from looking.
    """

    name: str
    where: str
    what: str
    mistake: str
    expected: tuple[str, ...]
    killed_by: tuple[str, ...]
    counterexample: Counterexample | None
    blind: tuple[str, ...]
    missed: tuple[str, ...]
    more: tuple[str, ...]
    error: str
    seconds: float


class MutantReport(NamedTuple):
    """All of them. baseline: what broke without any mutant; then nothing was shown, and all count as survivors."""

    total: int
    killed: int
    survivors: list[str]
    results: list[MutantResult]
    baseline: tuple[Counterexample, ...]


def run_mutants(
    *,
    names: Sequence[str] | None = None,
    scope: Scope = "default",
    workers: int = 2,
    progress: Callable[[str], None] | None = None,
) -> MutantReport:
    """Run the mutants of a scope, or those that are named; raises KeyError for a name that is none.

    quick: one for each property, and the probes of that property look. default: all; and the checkers look, too, that
    the mutant names. full: all, and every checker looks at each: shows which properties each one breaks, and that where
    it says so nothing else does. workers: processes at a time. A mutant survives if one of those that must notice it
    does not.
    """
    chosen = [BY_NAME[name] for name in names] if names is not None else [BY_NAME[name] for name in QUICK]
    if names is None and scope != "quick":
        chosen = list(MUTANTS)
    jobs = _jobs(chosen, scope)
    outcomes = _run_all(jobs, max(workers, 1), progress or (lambda _: None))
    base = outcomes[0]
    baseline = base.counterexamples
    if base.error and not baseline:
        baseline = (Counterexample("SMOKE", f"without a mutant a checker could not look: {base.error}"),)
    results = [_result(one, outcome) for one, outcome in zip(chosen, outcomes[1:], strict=True)]
    survivors = [one.name for one in results if one.counterexample is None or baseline]
    return MutantReport(len(results), len(results) - len(survivors), survivors, results, baseline)


def _jobs(chosen: list[Mutant], scope: Scope) -> list[Job]:
    """The job without a mutant, where all look that look at one; then those of the mutants."""
    if scope == "full":
        looks = [tuple(CHECKERS)] * len(chosen)
    else:
        looks = [one.also if scope == "default" else () for one in chosen]
    seconds = FULL_S if scope == "full" else FAST_S
    everybody = tuple(name for name in CHECKERS if any(name in names for names in looks))
    jobs = [Job(one.name, names, seconds) for one, names in zip(chosen, looks, strict=True)]
    return [Job("", everybody, max(seconds, FULL_S)), *jobs]


def _result(mutant: Mutant, outcome: Outcome) -> MutantResult:
    broken = {property_id for found in outcome.broken.values() for property_id in found}
    noticed = {checker for checker, found in outcome.broken.items() if set(found) & set(mutant.expected)}
    blind = tuple(one for one in ("probes", *mutant.also) if one in outcome.broken and one not in noticed)
    kill = next((one for one in outcome.counterexamples if one.property in mutant.expected), None)
    return MutantResult(
        name=mutant.name,
        where=mutant.fault.where,
        what=mutant.fault.what,
        mistake=mutant.mistake,
        expected=mutant.expected,
        killed_by=tuple(f"{checker} {one}" for checker, found in outcome.broken.items() for one in found),
        counterexample=None if blind else kill,
        blind=blind,
        missed=tuple(one for one in mutant.expected if one not in broken),
        more=tuple(sorted(broken - set(mutant.expected))) if mutant.only else (),
        error=outcome.error,
        seconds=outcome.seconds,
    )


# -- processes ---------------------------------------------------------------------------------------------------------


class _Zygote:
    """One process that forks children; it is used by one thread."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", f"{__package__}.zygote"]
        environment = {**os.environ, **_ONE_THREAD}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def run(self, job: Job) -> Outcome:
        """Let it run a job, and wait for the outcome."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()
            line = stdout.readline()
        except OSError as error:
            line, why = b"", str(error)
        else:
            why = "it has ended"
        if not line:
            return Outcome(job.mutant, error=f"the process that runs mutants: {why}")
        return msgspec.json.decode(line, type=Outcome)

    def kill(self) -> None:
        """End it at once, and what it runs. Any thread; who waits for an outcome gets one that says so."""
        self._process.kill()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _run_all(jobs: list[Job], workers: int, progress: Callable[[str], None]) -> list[Outcome]:
    """The outcomes, in the order of the jobs."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        waiting.put(number)
    outcomes: dict[int, Outcome] = {}
    told = [time.monotonic()]

    zygotes: list[_Zygote] = []

    def work() -> None:
        zygote = _Zygote()
        zygotes.append(zygote)
        try:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                outcomes[number] = zygote.run(jobs[number])
                if time.monotonic() - told[0] > 5:
                    told[0] = time.monotonic()
                    progress(f"mutants: {len(outcomes)} of {len(jobs)}")
        finally:
            zygote.close()

    threads = [threading.Thread(target=work, name=f"mutants-{i}") for i in range(min(workers, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # told to give up: nothing new begins, and what runs ends now
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for zygote in zygotes:
            zygote.kill()
        raise
    missing = "its worker has failed"
    return [outcomes.get(number, Outcome(job.mutant, error=missing)) for number, job in enumerate(jobs)]
