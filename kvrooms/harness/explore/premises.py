"""Where a property had something to say: what a finished search counts as an example of each.

"Once failed, always failed" is shown by no state in which nothing failed. So a property is counted where its premise
occurred: by states, by the states in which nothing moves any more, or by steps that the running code took (each once,
however many states it was taken in). Whether it holds is judged everywhere, see `search`; here is only counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...protocol.failure import Reason
from ...protocol.status import TERMINAL, Phase
from .ends import ANNOUNCED, HARMLESS, SILENT
from .system import System

Mask: TypeAlias = npt.NDArray[np.bool_]

LATE = r"(decode|prefill) room: (DONE|FAILED) x (?!CLOSE)\w+|group (decision|member): (DONE|FAILED) x \w+"
"""Something comes to a machine that has ended."""
FAILS = r"(decode|prefill) room: (?!DONE|FAILED)\w+ x (POST_ERROR|PEER_LOST|PEER_FAILED|VIOLATION|ABORT|DEADLINE)"
"""Something ends a room that is open."""
AGREES = r"decode room: \w+ x ACCEPTED|prefill room: (?!DONE|FAILED)\w+ x (BOUND|DECLARED)|group member: \w+ x TOLD_\w+"
"""Manifests meet, or a rank is told the outcome of its group."""
MEMORY = r"(lease|drain): \w+ x \w+"
"""A step of what decides when memory goes back."""
WAITS = r"group decision: OPEN x \w+|group member: (OPEN|FAILING|REPORTED|WITHDRAWN) x \w+"
"""Something comes to a group's room that is not decided."""


def steps_of(cells: Mapping[str, int], which: str) -> int:
    """How many of the steps were of these cells."""
    return sum(times for cell, times in cells.items() if re.fullmatch(which, cell))


class Premises:
    """The counts of one search. states: all of them, a row each, as in `system.State`."""

    def __init__(self, system: System, states: npt.NDArray[Any]) -> None:
        self._system = system
        self._states = states

    def count(self, quiet: Sequence[int], last: Sequence[int]) -> dict[str, int]:
        """Per property. quiet, last: the states in which nothing moves without a timer, and with one (see `ends`)."""
        system = self._system
        return {
            **self._by_state(),
            **self._by_end(np.asarray(quiet, dtype=np.int64), np.asarray(last, dtype=np.int64)),
            "S2": steps_of(system.cells.visits, LATE),
            "S5": system.strange_steps,
        }

    def _by_state(self) -> dict[str, int]:
        held = {
            "L1": self._rooms(lambda last: last.phase not in TERMINAL),
            "S1": self._decodes(lambda side: any(r is not None and r.last.phase is Phase.DONE for r in side.records)),
            "S3": self._may_be_written(),
            "S4": self._later(),
            "C2": self._rooms(lambda last: last.phase is Phase.FAILED),
            "A1": self._met(),
        }
        return {name: int(np.count_nonzero(mask)) for name, mask in held.items()}

    def _by_end(self, quiet: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> dict[str, int]:
        system = self._system
        severity = np.array([budget.severity for budget in system.budgets.values])[self._states[:, 1]]
        announced, silent = severity == ANNOUNCED, severity == SILENT
        calm, either = severity <= HARMLESS, np.union1d(quiet[~silent[quiet]], last[silent[last]])
        another = self._decodes(lambda side: len(side.records) > 1 and side.records[-1] is not None)
        failed = self._rooms(lambda one: one.phase is Phase.FAILED)
        held = {
            "L2": calm[quiet],
            "L3": (announced | silent)[either],
            "L4": (another & failed & ~calm)[either],
            "L5": self._decodes(_ended_with_grant)[either],
            "C1": self._decodes(_over)[quiet],
        }
        return {name: int(np.count_nonzero(mask)) for name, mask in held.items()}

    # -- premises as masks over the states: asked once per value of a part -----------------------------------------

    def _mask(self, at: int, values: Sequence[Any], holds: Callable[[Any], bool]) -> Mask:
        found: Mask = np.array([holds(value) for value in values], dtype=np.bool_)[self._states[:, at]]
        return found

    def _decodes(self, holds: Callable[[Any], bool]) -> Mask:
        return self._mask(0, self._system.decodes.values, holds)

    def _prefills(self, holds: Callable[[Any], bool]) -> Mask:
        found = np.zeros(len(self._states), dtype=np.bool_)
        for lane in range(self._system.lanes):
            found |= self._mask(2 + 3 * lane, self._system.prefills.values, holds)
        return found

    def _rooms(self, holds: Callable[[Any], bool]) -> Mask:
        """A room of either side."""

        def some(side: Any) -> bool:
            return any(record is not None and holds(record.last) for record in side.records)

        return self._decodes(some) | self._prefills(some)

    def _may_be_written(self) -> Mask:
        """A write is under way, or may be posted."""
        system, found = self._system, np.zeros(len(self._states), dtype=np.bool_)
        posting = [system.prefill(number) for number in range(len(system.prefills.values))]
        flying = [system.flight(number) for number in range(len(system.flights.values))]
        for lane in range(system.lanes):
            found |= self._mask(2 + 3 * lane, posting, lambda facts: bool(facts.may_post))
            found |= self._mask(4 + 3 * lane, flying, lambda facts: bool(facts.flying or facts.reading))
        return found

    def _later(self) -> Mask:
        """A room's number is used again, or a process is not the first of its name."""
        keys = [plan.key.room for plan in self._system.plans]
        again = len(set(keys)) < len(keys)
        used = self._decodes(lambda side: again and sum(record is not None for record in side.records) > 1)
        return used | self._prefills(lambda side: side.life > 0)

    def _met(self) -> Mask:
        """Prefill knows what decode wants, or the two were found to differ."""

        def some(side: Any) -> bool:
            return any(
                record is not None
                and (record.last.cause is Reason.MISMATCH or record.last.phase not in (Phase.METADATA, Phase.FAILED))
                for record in side.records
            )

        return self._prefills(some)


def _ended_with_grant(side: Any) -> bool:
    """A room is over that prefill was told about."""
    return any(
        record is not None and record.last.phase in TERMINAL and any(grant.number for grant in record.grants)
        for record in side.records
    )


def _over(side: Any) -> bool:
    """Every room is closed, and every lease is over."""
    return all(record is not None and record.closed and all(g.freed for g in record.grants) for record in side.records)
