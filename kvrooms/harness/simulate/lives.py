"""One room of a simulated run: the two callers, what they still intend to do, and what has gone wrong for them."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...protocol.failure import Failure
from ...protocol.status import Status
from .memory import Held, Plan, Side

Key = tuple[int, int]
"""Room and attempt."""


_LONG = ("pages", "bootstrap")


class Trouble(enum.IntEnum):
    """What has touched a room, the worst of it. What may be asked of the room follows from that alone."""

    NONE = 0
    """Nothing: it must end as its callers' arguments say, without a timer."""
    ANNOUNCED = 1
    """Something both sides are told of: they must end without a timer."""
    RECONNECTING = 2
    """A connection has to be made again first, after a pause."""
    SILENT = 3
    """Something that nobody is told of: a deadline may be what ends it."""


class End(NamedTuple):
    """How a room had ended when it was first seen to have."""

    status: Status
    failure: Failure | None


class Caller:
    """One side's caller of a room. intends: acts to come. gone: its process died. closed: it has closed the room.

    ended_at: when it was seen to end. queues_until: when there will be memory for the room, so that it can be opened.
    """

    def __init__(self, side: Side, arguments: dict[str, Any]) -> None:
        self.side = side
        self.arguments = arguments
        self.intends: deque[str] = deque()
        self.room: Any = None
        self.end: End | None = None
        self.ended_at = 0.0
        self.gone = False
        self.closed = False
        self.held: Held | None = None
        self.queues_until = 0.0

    @property
    def free(self) -> bool:
        """Whether it holds no memory: never opened, freed, or its process is gone."""
        return self.held is None or self.held.freed or self.gone

    @property
    def open(self) -> bool:
        """Whether it has a room that has not ended."""
        return self.room is not None and not self.gone and self.end is None

    @property
    def absent(self) -> bool:
        """Whether nobody on this side will answer: never opened and will not be, closed, or dead."""
        return self.gone or self.closed or (self.room is None and "open" not in self.intends)


class Life:
    """One room. agree: whether its callers' arguments do. It has a serial number, as numbers of rooms come again.

    hold: decode's, before it opens; held_at: since when. asked: a METADATA of it was sent. damaged: bytes of it landed
    otherwise than they were sent. asks_nothing: decode is owed nothing at all, and is DONE as soon as it is accepted.
    in_doubt: a write of it has failed. cut_off: no connection was up when its last one broke. unheard: it was asked for
    on a connection that was over, or whose other end was dead. mixed: it shares its key with another life that has
    memory. again: its number was used before. targeted: a stranger may have spoken of it. broken: a property does not
    hold for it. sent_all: its last send was made. acted_at: when a caller last did something for it.
    """

    def __init__(self, serial: int, key: Key, plan: Plan, receiver: Caller, sender: Caller, *, agree: bool) -> None:
        self.serial = serial
        self.key = key
        self.plan = plan
        self.receiver = receiver
        self.sender = sender
        self.agree = agree
        self.trouble = Trouble.NONE
        self.lease_trouble = Trouble.NONE
        self.hold: Any = None
        self.held_at = 0.0
        self.asked = False
        self.damaged = False
        self.asks_nothing = False
        self.in_doubt = False
        self.cut_off = False
        self.unheard = False
        self.why: list[str] = []
        self.mixed = False
        self.again = False
        self.targeted = False
        self.broken = False
        self.sent_all = False
        self.acted_at = 0.0
        self.sends: deque[dict[str, Any]] = deque()

    def __str__(self) -> str:
        return f"life {self.serial} (room {self.key[0]} attempt {self.key[1]})"

    @property
    def tag(self) -> str:
        """What its callers say when they abort, so that nobody else's words can be taken for theirs."""
        return f"<{self.serial}>"

    @property
    def complete(self) -> bool:
        """Whether both callers have done all that a transfer needs."""
        return self.receiver.room is not None and self.sender.room is not None and self.sent_all

    @property
    def callers(self) -> tuple[Caller, Caller]:
        """Decode's and prefill's."""
        return self.receiver, self.sender

    @property
    def done_with(self) -> bool:
        """Whether nobody will ask for it any more and no memory of it is held."""
        return all(
            (one.closed or one.gone or one.room is None) and one.free and not one.intends for one in self.callers
        )

    @property
    def over(self) -> bool:
        """Whether nothing can happen to it any more that its callers see."""
        return not self.receiver.open and not self.sender.open

    def touched_by_callers(self, now: float) -> None:
        """A caller has done something for it; a deadline may have passed just before."""
        self.acted_at = now

    def touch(self, trouble: Trouble, why: str, lease: Trouble | None = None) -> None:
        """Something goes wrong for it."""
        self.trouble = max(self.trouble, trouble)
        self.lease_trouble = max(self.lease_trouble, trouble if lease is None else lease)
        if len(self.why) < 8:
            self.why.append(why)

    def other(self, caller: Caller) -> Caller:
        """The caller on the other side."""
        return self.sender if caller is self.receiver else self.receiver

    def words(self) -> dict[str, str]:
        """What was put in, for a counterexample."""
        plan = self.plan
        counts = {part: len(items) for part, items in plan.source.items()}
        return {
            "room": str(self),
            "prefill_items": str(counts),
            "decode_items": str({part: len(items) for part, items in plan.target.items()}),
            "decode_arguments": str({k: _shown(v) for k, v in self.receiver.arguments.items() if k not in _LONG}),
            "agree": str(self.agree),
            "touched": "; ".join(self.why) or "by nothing",
        }


def _shown(value: object) -> object:
    """An argument, for people: an iterator would show its address."""
    return f"an iterator ({type(value).__name__})" if isinstance(value, Iterator) else value
