"""The ranks of one engine instance among themselves: what they say about their rooms, as values, events and frames.

A rank's DONE is a local fact. Rank 0 leads: it collects the ranks' reports on each room, decides one outcome, which is
DONE only if every rank's room is, and tells every rank; `statemachine.group` says how. The frames travel on control
connections of their own, between the leader and each of the others. They have the header of `wire` and numbers from 64
on, so that neither kind of peer takes the other's frames for its own.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple, TypeAlias, cast

import msgspec

from . import wire
from .events import Symbol
from .failure import DETAIL_MAX, Failure, Reason
from .identity import ATTEMPT_MAX, RANKS_MAX, ROOM_MAX
from .wire import U64, Body, Detail

MEMBER_MAX = 2**20
"""The most bytes with which a rank may describe itself."""
MEMBERS_MAX = 2**26
"""The most bytes of all descriptions together."""


# -- values and events of the two machines -----------------------------------------------------------------------------


class Cause(msgspec.Struct, frozen=True, array_like=True):
    """Why a room of a group has failed: the first rank that could not be DONE, and its failure."""

    rank: int
    failure: Failure

    def for_rank(self, rank: int) -> Failure:
        """The failure as a rank must see it: another's names whose it is, and its cause."""
        if rank == self.rank:
            return self.failure
        failure = self.failure
        words = f"rank {self.rank} of the group: {failure.reason.value}: {failure.detail or failure.reason.meaning}"
        return Failure(failure.reason, words[:DETAIL_MAX], "peer", failure.again)


class DecisionEvent(Symbol):
    """The columns of the leader's table."""

    DONE = "a rank reports that its room is DONE"
    FAILED = "a rank reports that its room has failed, or takes back that it was DONE"
    LOST = "a rank is lost, or has left the group, and is not back"
    DEADLINE = "not every rank has reported in time, or the leader leaves"
    ACKED = "a rank has acknowledged the outcome"
    BACK = "the connection to a rank is up again"


class Reported(msgspec.Struct, frozen=True):
    """Rank `rank` says how its room has ended. number: of its report, increasing per rank. failure: None for DONE."""

    rank: int
    number: int
    failure: Failure | None = None

    @property
    def KIND(self) -> DecisionEvent:  # noqa: N802 - the column, as with every event
        """The column."""
        return DecisionEvent.DONE if self.failure is None else DecisionEvent.FAILED


class Lost(msgspec.Struct, frozen=True):
    """A rank is lost. Undecided rooms fail with this cause."""

    KIND: ClassVar[DecisionEvent] = DecisionEvent.LOST
    cause: Cause

    @property
    def rank(self) -> int:
        """Which one."""
        return self.cause.rank


class Overdue(msgspec.Struct, frozen=True):
    """The room has to be decided now, whoever has not reported."""

    KIND: ClassVar[DecisionEvent] = DecisionEvent.DEADLINE
    cause: Cause


class Acknowledged(msgspec.Struct, frozen=True):
    """A rank has the outcome."""

    KIND: ClassVar[DecisionEvent] = DecisionEvent.ACKED
    rank: int


class Back(msgspec.Struct, frozen=True):
    """A rank can be told again what it may not have heard."""

    KIND: ClassVar[DecisionEvent] = DecisionEvent.BACK
    rank: int


class MemberEvent(Symbol):
    """The columns of a rank's table."""

    ENDED_DONE = "the room here is DONE"
    ENDED_FAILED = "the room here has failed"
    TOLD_DONE = "the leader says that the outcome is DONE"
    TOLD_FAILED = "the leader says that the outcome is FAILED"
    RANK_LOST = "the leader says that another rank is lost"
    WITHDRAW = "this rank leaves the group, or has missed outcomes that it cannot be told any more"
    LEADER_LOST = "the leader is gone, or has not been heard for longer than any leader may be silent"
    LINK_UP = "the connection to the leader is up again"


class Ended(msgspec.Struct, frozen=True):
    """The room here has ended. number: of the report that is made now. failure: None for DONE."""

    number: int
    failure: Failure | None = None

    @property
    def KIND(self) -> MemberEvent:  # noqa: N802
        """The column."""
        return MemberEvent.ENDED_DONE if self.failure is None else MemberEvent.ENDED_FAILED


class Told(msgspec.Struct, frozen=True):
    """The leader's decision. cause: None for DONE."""

    cause: Cause | None = None

    @property
    def KIND(self) -> MemberEvent:  # noqa: N802
        """The column."""
        return MemberEvent.TOLD_DONE if self.cause is None else MemberEvent.TOLD_FAILED


class RankGone(msgspec.Struct, frozen=True):
    """Another rank is lost: this room cannot become DONE."""

    KIND: ClassVar[MemberEvent] = MemberEvent.RANK_LOST
    number: int
    failure: Failure


class Withdraw(msgspec.Struct, frozen=True):
    """Report the room as failed, whatever was reported before; what the leader has decided already stands."""

    KIND: ClassVar[MemberEvent] = MemberEvent.WITHDRAW
    number: int
    failure: Failure


class LeaderGone(msgspec.Struct, frozen=True):
    """Nobody will decide any more."""

    KIND: ClassVar[MemberEvent] = MemberEvent.LEADER_LOST
    cause: Cause


class LinkUp(msgspec.Struct, frozen=True):
    """Reports may have been lost with the last connection."""

    KIND: ClassVar[MemberEvent] = MemberEvent.LINK_UP


LeaderInput: TypeAlias = Reported | Lost | Overdue | Acknowledged | Back
MemberInput: TypeAlias = Ended | Told | RankGone | Withdraw | LeaderGone | LinkUp


# -- frames ------------------------------------------------------------------------------------------------------------

RankNumber = Annotated[int, msgspec.Meta(ge=0, le=RANKS_MAX - 1)]
RankNumbers = Annotated[tuple[RankNumber, ...], msgspec.Meta(max_length=RANKS_MAX)]
Member = Annotated[bytes, msgspec.Meta(max_length=MEMBER_MAX)]
RoomNumber = Annotated[int, msgspec.Meta(ge=0, le=ROOM_MAX)]
Attempt = Annotated[int, msgspec.Meta(ge=0, le=ATTEMPT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
MaybeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Join(Body, frozen=True):
    """rank -> leader, first frame of a connection: who I am, of how many, and what the others are to know of me."""

    KIND: ClassVar[int] = 64
    rank: RankNumber
    size: Annotated[int, msgspec.Meta(ge=1, le=RANKS_MAX)]
    member: Member


class Resume(Body, frozen=True):
    """rank -> leader, first frame of a connection: I belong to the group, and my last connection is over."""

    KIND: ClassVar[int] = 65
    rank: RankNumber


class Gathering(Body, frozen=True):
    """leader -> rank: these ranks have not joined yet."""

    KIND: ClassVar[int] = 66
    missing: RankNumbers


class Present(Body, frozen=True):
    """leader -> rank: what a rank has said of itself. One for each, in order, before Ready."""

    KIND: ClassVar[int] = 67
    rank: RankNumber
    member: Member


class Ready(Body, frozen=True):
    """leader -> rank: every rank has joined; this is the group's name."""

    KIND: ClassVar[int] = 68
    group: RoomNumber


class Welcome(Body, frozen=True):
    """leader -> rank: the connection is up, and outcomes that you may not have heard have been sent on it.

    dropped: how many failures were not kept for you while you were lost. If that is more than you knew, take back what
    you have reported, so that nothing waits for it. lost: the ranks that are lost now.
    """

    KIND: ClassVar[int] = 69
    dropped: U64
    lost: RankNumbers


class Refuse(Body, frozen=True):
    """leader -> rank: you are no member of this group, in words; the connection closes after it."""

    KIND: ClassVar[int] = 70
    words: Detail


class ReportDone(Body, frozen=True):
    """rank -> leader: my room is DONE. Repeated after each reconnect until the outcome is known."""

    KIND: ClassVar[int] = 71
    room: RoomNumber
    attempt: Attempt
    number: Number


class ReportFailed(Body, frozen=True):
    """rank -> leader: my room has failed, or I take back that it was DONE. Repeated as ReportDone is."""

    KIND: ClassVar[int] = 72
    room: RoomNumber
    attempt: Attempt
    number: Number
    reason: Reason
    detail: Detail
    retryable: bool


class OutcomeDone(Body, frozen=True):
    """leader -> rank: the room is DONE on every rank. number: of the report that this answers."""

    KIND: ClassVar[int] = 73
    room: RoomNumber
    attempt: Attempt
    serial: Number
    number: Number


class OutcomeFailed(Body, frozen=True):
    """leader -> rank: the room has failed. number: of your report, 0: you had made none. rank: whose failure it is.

    One for a room that is not open here is kept for a while, for whoever opens it late.
    """

    KIND: ClassVar[int] = 74
    room: RoomNumber
    attempt: Attempt
    serial: Number
    number: MaybeNumber
    rank: RankNumber
    reason: Reason
    detail: Detail
    retryable: bool


class Acknowledge(Body, frozen=True):
    """rank -> leader: I have the outcome with this serial number."""

    KIND: ClassVar[int] = 75
    room: RoomNumber
    attempt: Attempt
    serial: Number


class RankLost(Body, frozen=True):
    """leader -> rank: another rank is lost; no room can become DONE until it is back."""

    KIND: ClassVar[int] = 76
    rank: RankNumber
    reason: Reason
    detail: Detail
    retryable: bool


class RankBack(Body, frozen=True):
    """leader -> rank: a rank that was lost is back; rooms that are opened from now on have a chance."""

    KIND: ClassVar[int] = 77
    rank: RankNumber


class Ask(Body, frozen=True):
    """Either way: are you there."""

    KIND: ClassVar[int] = 78
    sequence: U64


class Answer(Body, frozen=True):
    """Either way: the answer to the Ask with this sequence number."""

    KIND: ClassVar[int] = 79
    sequence: U64


class Leave(Body, frozen=True):
    """Either way, before a connection is closed on purpose: its end is no sign of death.

    final: whoever says this leaves the group for good.
    """

    KIND: ClassVar[int] = 80
    final: bool
    detail: Detail


Frame: TypeAlias = (
    Join
    | Resume
    | Gathering
    | Present
    | Ready
    | Welcome
    | Refuse
    | ReportDone
    | ReportFailed
    | OutcomeDone
    | OutcomeFailed
    | Acknowledge
    | RankLost
    | RankBack
    | Ask
    | Answer
    | Leave
)
FRAMES: tuple[type[Body], ...] = (
    Join, Resume, Gathering, Present, Ready, Welcome, Refuse, ReportDone, ReportFailed, OutcomeDone, OutcomeFailed,
    Acknowledge, RankLost, RankBack, Ask, Answer, Leave,
)  # fmt: skip
_DIALECT = wire.Dialect(FRAMES)


class Received(NamedTuple):
    """A decoded frame: the sender's incarnation, the one it is meant for (0 if that is not known yet), the body."""

    source: int
    target: int
    body: Frame


def decode(frame: bytes) -> Received:
    """A frame without its length prefix. Raises WireError naming the field, and nothing else."""
    source, target, _, body = wire.decode(frame, _DIALECT)
    return Received(source, target, cast("Frame", body))
