"""What the glue of both sides shares: how a turn is recorded, and what is judged at every single step.

The glue carries out the commands of the running tables as the engine's cores do, on frozen values instead of objects.
A *turn* takes one side and one event and gives the side after it, what was handed to the wire and to the transport,
and, where the step itself broke a property, which one and how.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ...protocol import wire
from ...protocol.events import Timer
from ...protocol.failure import Reason
from ...protocol.status import TERMINAL, Phase
from ...statemachine.table import Table

UP, STALLED, DEAD = "up", "stalled", "dead"
EOF, CUT = "end of file", "the connection was cut"
"""What stands last in the frames of a connection: the peer's kernel closed it, or the network gave it up."""


class Sent(NamedTuple):
    """A frame on its way: its body and the floor that its header carries; or how the connection ends."""

    body: wire.Body | None
    floor: int = 0
    end: str = ""

    @property
    def text(self) -> str:
        """For people."""
        if self.body is None:
            return self.end
        grant = getattr(self.body, "grant", None)
        words = type(self.body).__name__.upper() + (f", grant {grant}" if grant is not None else "")
        reason = getattr(self.body, "reason", None)
        words += f", {reason.value}" if reason is not None else ""
        return words + (f", floor {self.floor}" if self.floor > 1 else "")


class Broken(NamedTuple):
    """A property that a step broke."""

    property: str
    summary: str


class Effects(NamedTuple):
    """What a turn hands over. frames: per lane. posts: (use, piece) of each posted write."""

    frames: tuple[tuple[int, Sent], ...] = ()
    posts: tuple[tuple[int, int], ...] = ()
    broken: Broken | None = None


class Ended(NamedTuple):
    """A room as it stands for its caller: phase, cause in the room, first cause seen by the glue, number of reports."""

    phase: Phase
    cause: Reason | None
    first: Reason | None
    reports: int


def judge_step(who: str, before: Ended, after: Ended, timers: tuple[Timer, ...]) -> Broken | None:
    """S2 and C2 for one step of one room. timers: what is armed after the step."""
    if before.phase in TERMINAL:
        if (after.phase, after.cause) != (before.phase, before.cause):
            return Broken("S2", f"{who} was {before.phase.value} and is now {_words(after)}")
        if after.reports != before.reports:
            return Broken("S2", f"{who} was {before.phase.value} and is reported to its caller again")
        return None
    if after.phase not in TERMINAL:
        if after.reports:
            return Broken("C2", f"{who} is in {after.phase.value} and was reported to its caller")
        return None
    if after.reports != 1:
        return Broken("C2", f"{who} is {_words(after)} and was reported {after.reports} times")
    if after.cause is not after.first:
        return Broken("C2", f"{who} failed because of {_reason(after.first)}, but its cause is {_reason(after.cause)}")
    if timers:
        return Broken(
            "C1", f"{who} is {_words(after)} and its deadlines are armed: {', '.join(t.value for t in timers)}"
        )
    return None


def _reason(reason: Reason | None) -> str:
    return reason.value if reason else "nothing"


def _words(ended: Ended) -> str:
    return ended.phase.value + (f" ({ended.cause.value})" if ended.cause else "")


class Cells:
    """How often each cell of the running tables was taken, and which timers closed which obligations."""

    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()

    def visit(self, table: Table[Any, Any, Any], state: Any, event: Any) -> None:
        """A step of a machine took this cell."""
        self.visits[f"{table.name}: {state.name} x {event.name}"] += 1
