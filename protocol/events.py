"""What can happen to a room, a lease or a drain (events), and what their tables ask the engine to do (commands).

Events are frozen values. Their class is the column of the table; their fields only change the ledger. The classes are
final, and told apart by identity: that an instance is of none of them takes isinstance a microsecond to find out.
"""

from __future__ import annotations

import enum
from typing import ClassVar, NamedTuple, TypeAlias, final

import msgspec

from .failure import Reason
from .manifest import Declaration, Manifest
from .notify import PartKind
from .shares import Covers


class Symbol(enum.Enum):
    """An enum whose members hash by identity, in C: tables are looked up with them on every step."""

    __hash__ = object.__hash__


class Timer(Symbol):
    """The closed set of deadlines.

    A room has at most one phase deadline and its cap; a lease has its own retry, a group's room its decision.
    """

    BOOTSTRAP = "bootstrap"
    WAITING = "waiting"
    MOVING = "moving"
    CAP = "cap"
    ABORT_RETRY = "abort_retry"
    DECISION = "decision"


DEADLINE_REASON = {
    Timer.BOOTSTRAP: Reason.DEADLINE_BOOTSTRAP,
    Timer.WAITING: Reason.DEADLINE_WAITING,
    Timer.MOVING: Reason.DEADLINE_MOVING,
    Timer.CAP: Reason.DEADLINE_CAP,
    Timer.DECISION: Reason.DEADLINE_DECISION,
}


class RoomEvent(Symbol):
    """The columns of the two room tables: the first nine are progress, the rest end a room."""

    LOCATED = "the sending ranks are known"
    ACCEPTED = "a sending rank has accepted the grant"
    LANDED = "positions of a part have landed"
    HELD = "decode, which has no memory for the room yet, asks to keep it"
    BOUND = "METADATA of a receiving rank has arrived"
    DECLARED = "the caller has declared totals"
    QUEUED = "the caller has handed over something to send"
    SETTLED = "the write of positions of a part has settled"
    IDLE = "all that the caller has handed over has settled"
    POST_ERROR = "a write could not be posted or ended with an error"
    PEER_LOST = "the connection to a peer ended, or the peer was refused"
    PEER_FAILED = "the other side failed, aborted or refused"
    VIOLATION = "the peer said something that the protocol does not allow"
    ABORT = "the caller aborted, or the engine shuts down"
    DEADLINE = "a deadline passed"
    CLOSE = "the caller is finished with the room"


ENDINGS = (
    RoomEvent.POST_ERROR, RoomEvent.PEER_LOST, RoomEvent.PEER_FAILED, RoomEvent.VIOLATION, RoomEvent.ABORT,
    RoomEvent.DEADLINE,
)  # fmt: skip


class Event(msgspec.Struct, frozen=True):
    """Base of the room events that make progress; `KIND` is the column."""

    KIND: ClassVar[RoomEvent]


@final
class Located(Event, frozen=True):
    """decode: the prefill instance's ranks are known; a manifest per sending rank."""

    KIND = RoomEvent.LOCATED
    manifests: tuple[Manifest, ...]


@final
class Accepted(Event, frozen=True):
    """decode: the sending rank `sender` has bound the grant to its room."""

    KIND = RoomEvent.ACCEPTED
    sender: int = 0


@final
class Landed(Event, frozen=True):
    """decode: positions [start, stop) of a part from rank `sender` have landed. component: within the manifest."""

    KIND = RoomEvent.LANDED
    sender: int
    part: PartKind
    component: int
    start: int
    stop: int


@final
class Held(Event, frozen=True):
    """prefill: decode, which has no memory for the room yet, asks to keep it."""

    KIND = RoomEvent.HELD


@final
class Bound(Event, frozen=True):
    """prefill: METADATA of receiving rank `receiver` has arrived with this manifest.

    receivers: how many ranks there are to wait for; 0: as many as the room was opened for.
    covers: what this pair of ranks is for; None: everything.
    """

    KIND = RoomEvent.BOUND
    receiver: int
    manifest: Manifest
    receivers: int = 0
    covers: Covers | None = None


@final
class Declared(Event, frozen=True):
    """prefill: the caller has declared totals; items that are None leave the earlier declaration as it is."""

    KIND = RoomEvent.DECLARED
    declaration: Declaration


@final
class Queued(Event, frozen=True):
    """prefill: the caller has handed over something to send."""

    KIND = RoomEvent.QUEUED


@final
class Idle(Event, frozen=True):
    """prefill: all that the caller has handed over has settled; what follows is its turn, not the transport's."""

    KIND = RoomEvent.IDLE


@final
class Settled(Event, frozen=True):
    """prefill: the write of positions [start, stop) of a part to rank `receiver` has settled."""

    KIND = RoomEvent.SETTLED
    receiver: int
    part: PartKind
    component: int
    start: int
    stop: int


@final
class Fail(msgspec.Struct, frozen=True):
    """Either side: something that ends the room. `KIND` is one of `ENDINGS`."""

    KIND: RoomEvent
    reason: Reason


@final
class Close(Event, frozen=True):
    """Either side: the caller is finished with the room; one that is still open is aborted."""

    KIND = RoomEvent.CLOSE


DecodeEvent: TypeAlias = Located | Accepted | Landed | Fail | Close
PrefillEvent: TypeAlias = Held | Bound | Declared | Queued | Settled | Idle | Fail | Close


class LeaseEvent(Symbol):
    """The columns of the lease table."""

    ADVERTISED = "METADATA has been handed to the connection"
    LANDED = "every obligation of the grant has landed"
    FAILED = "the room has failed"
    ACKED = "the writer promises that nothing is posted and nothing will be"
    WRITER_GONE = "proof that the writer's process is gone"
    FENCED = "the orchestrator's word that the writer was fenced"
    RETRY = "the abort retry is due"
    LINK_UP = "the connection to the writer is up again"
    CLOSED = "the room was closed"


class DrainEvent(Symbol):
    """The columns of the drain table."""

    POSTED = "a write was posted"
    SETTLED = "a write has settled"
    FINISHED = "the room is DONE"
    VOIDED = "the grant is void: the room failed, or decode aborted"


class Do(Symbol):
    """The closed set of commands."""

    ARM = "arm the phase deadline"
    DISARM = "disarm every deadline"
    SEND_METADATA = "send METADATA to every sending rank"
    SEND_ACCEPT = "send ACCEPT to every bound rank that has none yet; one that is owed nothing waits for the totals"
    SEND_FAILED = "send FAILED to every bound rank"
    SEND_ABORT = "send ABORT for the grant"
    SEND_ACK = "send ACK for the grant"
    LEASE_LANDED = "tell every lease of the room LANDED"
    LEASE_FAILED = "tell every lease of the room FAILED"
    LEASE_CLOSED = "tell every lease of the room CLOSED"
    DRAIN_FINISHED = "tell every drain of the room FINISHED"
    DRAIN_VOIDED = "tell every drain of the room VOIDED"
    FREE = "the ranges of the grant are the caller's again"
    REPORT = "show the caller how the room ended"
    SEND_REPORT = "tell the leader of the group how the room ended here"
    TELL_OUTCOME = "tell every rank of the group the outcome"
    TELL_RANK = "tell the outcome to the rank that may not have heard of it"
    KEEP_OUTCOME = "keep the outcome for the lost rank, which may come back"
    KEEP_REPORT = "keep the report for the room's next life"
    ABORT_ROOM = "abort the room here"
    SHOW_OUTCOME = "show the caller the outcome"
    FORGET = "drop the room from every table"


class Command(NamedTuple):
    """One command; `timer` says which deadline where the command is ARM."""

    do: Do
    timer: Timer | None = None

    def __str__(self) -> str:
        return f"{self.do.name}({self.timer.name})" if self.timer else self.do.name
