"""What the ranks of a group do with some rooms, and what goes wrong meanwhile.

    plan = GroupPlan(3, (GroupRoom((Part(), Part(late=2), Part("failed"))),), (Trouble("stall", rank=0, seconds=70.0),))

Moments are counted from 0. At each, ranks open rooms, rooms end, things go wrong, in this order; then comes its pause.
`group_play` plays a plan, `strategies.groups` draws one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from .faults import Faults

End: TypeAlias = Literal["done", "failed", "aborted", "stuck", "never opened"]
Kind: TypeAlias = Literal["timed out", "reset", "closed", "jam", "stall", "jump", "kill"]

DAMAGED = Faults(corrupt=0.05, truncate=0.05, late=0.1, late_s=4)
"""Frames that arrive damaged, or late: what a group's connections may do. TCP loses none silently."""


class Part(NamedTuple):
    """One rank's part of a room.

    end: "done" (all has landed), "failed" (a transfer did), "aborted" (by its caller), "stuck" (only the room's
    deadline ends it), "never opened". late: how many moments after the room's first this rank opens it. takes: after
    how many more it ends, unless the deadline has come before.
    """

    end: End = "done"
    late: int = 0
    takes: int = 0

    def __repr__(self) -> str:
        return _brief(self)


class GroupRoom(NamedTuple):
    """A room: its part on each rank, the moment from which it may be open, and its deadline.

    The deadline is counted on each rank by its own clock, from the moment at which it was opened there; so where ranks
    open it at different times, or their clocks jump, what lands between two of these is in time for one rank alone.
    """

    parts: tuple[Part, ...]
    at: int = 0
    deadline_s: float = 20.0

    def __repr__(self) -> str:
        return _brief(self)


class Trouble(NamedTuple):
    """What goes wrong on one rank at a moment.

    kind: "timed out", "reset", "closed" (its connections end, and that is what both ends see), "jam" (one of them can
    be written to no more), "stall" (the process stands still for so many `seconds`, and is back), "jump" (its clock
    goes forward by so many), "kill" (the process is gone for good).
    """

    kind: Kind
    rank: int = 0
    at: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        return _brief(self)


class Pause(NamedTuple):
    """Between two moments: so many things happen, of those that can without time; then so much time passes."""

    steps: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        return _brief(self)


class GroupPlan(NamedTuple):
    """A group of so many ranks, its rooms, what goes wrong, and the pauses after the moments, from the first on.

    faults: of the frames on the group's connections.
    """

    ranks: int
    rooms: tuple[GroupRoom, ...]
    troubles: tuple[Trouble, ...] = ()
    pauses: tuple[Pause, ...] = ()
    faults: Faults = Faults()

    @property
    def moments(self) -> int:
        """How many moments there are until every part has ended and every trouble has come."""
        parts = [room.at + part.late + part.takes for room in self.rooms for part in room.parts]
        return 1 + max([0, len(self.pauses) - 1, *parts, *(trouble.at for trouble in self.troubles)])

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong, except that rooms fail."""
        return not self.troubles and self.faults == Faults()

    def __repr__(self) -> str:
        return _brief(self)


def _brief(value: Any) -> str:
    """The call that makes a named tuple, without what need not be said."""
    defaults = type(value)._field_defaults
    said = [
        f"{name}={one!r}"
        for name, one in zip(type(value)._fields, value, strict=True)
        if name not in defaults or one != defaults[name]
    ]
    return f"{type(value).__name__}({', '.join(said)})"
