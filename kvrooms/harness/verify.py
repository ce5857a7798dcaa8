"""`kvrooms verify`: every kind of evidence for every property, added up.

Explorer, simulation, hypothesis and mutants report in the words of `evidence`; here they are run one after another and
their tallies added. Nothing is judged here but the sum: a property without an example is no property shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from ..protocol.invariants import INVARIANTS
from .evidence import Counterexample, Tally
from .explore.canary import canary
from .explore.run import Exploration, explore
from .mutants.run import MutantReport, run_mutants
from .mutants.run import Scope as MutantScope
from .simulate.run import Simulation, simulate
from .stateful.hunt import Hunt, hunt

Scope: TypeAlias = Literal["quick", "default", "deep"]
Progress: TypeAlias = Callable[[str], None]

_DEEP_MINUTES = 60.0


class Effort(NamedTuple):
    """How much of each kind of evidence a scope asks for."""

    rooms: int
    examples: int
    mutants: MutantScope


EFFORTS: dict[Scope, Effort] = {
    "quick": Effort(rooms=3_000, examples=60, mutants="quick"),
    "default": Effort(rooms=110_000, examples=400, mutants="default"),
    "deep": Effort(rooms=1_000_000, examples=4_000, mutants="full"),
}


class Report(NamedTuple):
    """What a run of `verify` has found. tally: all evidence together."""

    tally: Tally
    explored: Exploration
    simulated: Simulation
    hunted: Hunt
    mutants: MutantReport
    canary: Counterexample | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every property was shown, every mutant and the canary were killed, and nothing was left out."""
        shown = all(self.tally.verdict(invariant.id).ok for invariant in INVARIANTS)
        return shown and self.explored.complete and not self.mutants.survivors and self.canary is not None

    @property
    def timers(self) -> dict[str, int]:
        """How often a timer closed which obligation, explored and simulated."""
        return _added(self.explored.timers, self.simulated.timers)

    def json(self) -> dict[str, Any]:
        """The figures, as `kvrooms verify --json` prints them."""
        explored, simulated, mutants = self.explored, self.simulated, self.mutants
        return {
            "ok": self.ok,
            "properties": [
                {"id": one.id, "statement": one.text, "ok": verdict.ok, "examples": verdict.examples}
                for one in INVARIANTS
                for verdict in [self.tally.verdict(one.id)]
            ],
            "explored": {
                "states": explored.states,
                "transitions": explored.transitions,
                "complete": explored.complete,
                "unreached": list(explored.unreached),
                "configs": [{"name": config.name, "states": config.states} for config in explored.configs],
                "seconds": round(explored.seconds, 1),
            },
            "simulated": {
                "rooms": simulated.rooms,
                "faults": simulated.faults,
                "hours": round(simulated.hours, 1),
                "seconds": round(simulated.seconds, 1),
            },
            "hypothesis": {
                "cells": {name: {"visited": n, "of": every} for name, (n, every) in self.hunted.coverage().items()}
            },
            "mutants": {"total": mutants.total, "killed": mutants.killed, "survivors": list(mutants.survivors)},
            "canary": "killed" if self.canary is not None else "alive",
            "timers": self.timers,
            "seconds": round(self.seconds, 1),
        }


def verify(
    scope: Scope = "default",
    *,
    seed: int = 0,
    minutes: float | None = None,
    workers: int = 2,
    progress: Progress = lambda _: None,
) -> Report:
    """Run all of it.

    seed: from which the simulated worlds are drawn. minutes: how long hypothesis may search (only where the scope is
    deep; an hour by default). workers: processes at a time. progress: called with one line now and then.
    """
    started, effort, tally = time.monotonic(), EFFORTS[scope], Tally()
    progress("the canary: two predicates for one question, on our tables")
    killed = canary()
    progress("exploration: every interleaving of small configurations")
    explored = explore(scope=scope, workers=workers, progress=progress)
    tally.add(explored.tally)
    progress("simulation: many rooms, many faults")
    simulated = simulate(seed=seed, rooms=effort.rooms, workers=workers, progress=progress)
    tally.add(simulated.tally)
    progress("hypothesis: sequences that nobody thought of")
    patience = (minutes or _DEEP_MINUTES) if scope == "deep" else None
    hunted = hunt(examples=effort.examples, seed=seed, minutes=patience, progress=progress)
    tally.add(hunted.tally)
    progress("mutants: does each property notice what it should?")
    mutants = run_mutants(scope=effort.mutants, workers=workers, progress=progress)
    return Report(tally, explored, simulated, hunted, mutants, killed, time.monotonic() - started)


def _added(*counts: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
