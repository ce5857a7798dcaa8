"""One room between several ranks: a caller on each, what they intend, and what has gone wrong for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...protocol.failure import Failure
from ...protocol.status import Status
from ..ranks import Member
from .lives import End, Trouble


class Told(NamedTuple):
    """The outcome of all ranks as one was told it, and when."""

    status: Status
    failure: Failure | None
    at: float


class Seat:
    """One rank's caller. intends: acts to come; sends: the arguments of its sends. gone: its process is dead."""

    def __init__(self, member: Member, sends: Sequence[dict[str, Any]]) -> None:
        self.member = member
        self.side, _, self.rank = member.key
        self.name = member.name
        self.sends = deque(sends)
        self.intends = deque(["open", *["send"] * len(sends), "close"])
        self.room: Any = None
        self.end: End | None = None
        self.told: Told | None = None
        self.gone = self.closed = self.freed = False
        self.hasty = False

    @property
    def open(self) -> bool:
        """Whether it has a room that has not ended."""
        return self.room is not None and not self.gone and self.end is None

    @property
    def complete(self) -> bool:
        """Whether its caller has done all that a transfer needs."""
        return self.room is not None and not self.sends

    @property
    def untold(self) -> bool:
        """Whether it waits for the outcome of all ranks."""
        return self.room is not None and not self.gone and self.told is None and self.member.engine.group is not None

    @property
    def done_with(self) -> bool:
        """Whether nobody will ask for it any more, and it holds nothing."""
        return self.gone or (
            not self.intends and (self.room is None or (self.closed and self.freed and not self.untold))
        )


class Shared:
    """One room. number: of the drawn room whose pages it has; serial: its own, as numbers come again."""

    def __init__(self, serial: int, number: int, attempt: int, seats: Sequence[Seat]) -> None:
        self.serial = serial
        self.number = number
        self.attempt = attempt
        self.seats = seats
        self.trouble = Trouble.NONE
        self.why: list[str] = []
        self.broken = False

    def __str__(self) -> str:
        return f"life {self.serial} (room {self.number} attempt {self.attempt})"

    def of(self, side: str) -> list[Seat]:
        """The seats of a side, by rank."""
        return [seat for seat in self.seats if seat.side == side]

    @property
    def complete(self) -> bool:
        """Whether every caller has done all that a transfer needs."""
        return all(seat.complete for seat in self.seats)

    @property
    def over(self) -> bool:
        """Whether nothing can happen to it any more that its callers see."""
        return all(seat.done_with for seat in self.seats)

    def touch(self, trouble: Trouble, why: str) -> None:
        """Something goes wrong for it."""
        self.trouble = max(self.trouble, trouble)
        if len(self.why) < 8 and why not in self.why:
            self.why.append(why)

    def words(self) -> dict[str, str]:
        """What was put in, for a counterexample."""
        return {
            "room": str(self),
            "ranks": ", ".join(seat.name for seat in self.seats),
            "touched": "; ".join(self.why) or "by nothing",
        }
