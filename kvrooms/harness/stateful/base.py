"""What the state machines share: properties checked by name, a timeline of what was done, cells counted."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from ...protocol.events import ENDINGS, RoomEvent
from ...protocol.status import Phase
from ...statemachine.memory import DRAIN, LEASE
from ...statemachine.rooms import DECODE_ROOM, PREFILL_ROOM
from ...statemachine.table import Table
from ..evidence import STATEMENTS, Counterexample, Step, Tally

TABLES: dict[str, Table[Any, Any, Any]] = {table.name: table for table in (DECODE_ROOM, PREFILL_ROOM, LEASE, DRAIN)}


class Broken(AssertionError):
    """A named property does not hold, and how that came about."""

    def __init__(self, property_id: str, summary: str, timeline: tuple[Step, ...] = ()) -> None:
        self.property_id = property_id
        self.summary = summary
        self.timeline = timeline
        super().__init__(Counterexample(property_id, summary, timeline=timeline).text())

    def counterexample(self, source: str, values: dict[str, str] | None = None) -> Counterexample:
        """As evidence."""
        return Counterexample(self.property_id, self.summary, source, values or {}, self.timeline)


class Account:
    """What runs have shown so far: examples per property, visits per cell ("decode room: KV x LANDED")."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.cells: Counter[str] = Counter()

    def visit(self, table: str, state: enum.Enum, event: enum.Enum) -> None:
        """A cell was visited."""
        self.cells[f"{table}: {state.name} x {event.name}"] += 1

    def coverage(self) -> dict[str, tuple[int, int]]:
        """Per table how many of its cells were visited, and how many there are."""
        return coverage(self.cells)


def coverage(cells: Counter[str]) -> dict[str, tuple[int, int]]:
    """Per table how many of its cells were visited, and how many there are."""
    found = {}
    for name, table in TABLES.items():
        every = {f"{name}: {state.name} x {event.name}" for state, event in table.cells}
        found[name] = (len(every & set(cells)), len(every))
    return found


ACCOUNT = Account()
"""Where runs are entered that nobody else keeps account of."""
_accounts = [ACCOUNT]


@contextmanager
def accounting(account: Account) -> Iterator[Account]:
    """Enter what runs meanwhile in `account`."""
    _accounts.append(account)
    try:
        yield account
    finally:
        _accounts.remove(account)


def current() -> Account:
    """The account of now."""
    return _accounts[-1]


class Machine(RuleBasedStateMachine):
    """Base of the machines. A rule says what it does with `note`, and what must hold with `check`."""

    NAME: ClassVar[str]
    PROPERTIES: ClassVar[tuple[str, ...]]
    """What is checked in a run. One that ends well is an example of those of which the premise occurred."""
    ALWAYS: ClassVar[tuple[str, ...]] = ("L1", "L2", "C1")
    """Those that every run has something to say of."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline: list[Step] = []
        self.broken = False
        self.began = False
        self.shown: set[str] = set()

    @property
    def at(self) -> float:
        """When: the number of the step, where a run has no clock."""
        return float(len(self.timeline))

    def note(self, who: str, kind: str, text: str, to: str = "") -> None:
        """A line of the timeline."""
        self.timeline.append(Step(self.at, who, kind, text, to))

    def check(self, property_id: str, holds: bool, summary: str) -> None:
        """Raise Broken, naming the property, unless it holds."""
        if not holds:
            self.fail(property_id, summary)

    def fail(self, property_id: str, summary: str) -> None:
        """The property does not hold."""
        assert property_id in STATEMENTS
        self.broken = True
        raise Broken(property_id, summary, tuple(self.timeline))

    def visit(self, table: str, state: enum.Enum, event: enum.Enum) -> None:
        """A cell of a table was visited."""
        current().visit(table, state, event)
        self.shown.update(_premises(table, state, event))

    def tries(self, table: str, state: enum.Enum, event: enum.Enum) -> None:
        """A cell was tried, beside what happens in the run: of that the run is no example."""
        current().visit(table, state, event)

    def premise(self, property_id: str) -> None:
        """What this property speaks of has happened, and no cell says so."""
        self.shown.add(property_id)

    def teardown(self) -> None:
        """A run is over; if it went well, it is an example of the properties that had something to say of it."""
        if self.began and not self.broken:
            for property_id in self.PROPERTIES:
                if property_id in self.ALWAYS or property_id in self.shown:
                    current().tally.held(property_id)


_BY_EVENT: dict[enum.Enum, tuple[str, ...]] = {
    **dict.fromkeys(ENDINGS, ("L3", "C2")),
    RoomEvent.LANDED: ("S1",),
    RoomEvent.SETTLED: ("S1",),
    RoomEvent.ACCEPTED: ("A1",),
    RoomEvent.BOUND: ("A1",),
}
_ENDED = (Phase.DONE, Phase.FAILED)


def _premises(table: str, state: enum.Enum, event: enum.Enum) -> tuple[str, ...]:
    """The properties that speak of what happens in a cell: of an end, of what comes after it, of memory, of bytes."""
    if table in (LEASE.name, DRAIN.name):
        return ("L5", "S3")
    if state in _ENDED:
        return () if event is RoomEvent.CLOSE else ("S2",)
    return _BY_EVENT.get(event, ())
