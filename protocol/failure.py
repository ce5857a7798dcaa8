"""Why a room failed: a reason out of a closed set, words for people, and whether the request may be tried again.

All three travel in every message that says that a room has failed, was aborted or was refused: whoever fails a room
knows best whether it is worth another attempt, and the other side takes its word.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

DETAIL_MAX = 1024


class Reason(enum.Enum):
    """The closed set of failure reasons. The value is what travels on the wire and stands in logs."""

    SEND_ERROR = "send_error"
    TRANSPORT_ERROR = "transport_error"
    PEER_LOST = "peer_lost"
    PEER_FAILED = "peer_failed"
    ABORTED = "aborted"
    PEER_ABORTED = "peer_aborted"
    MISMATCH = "mismatch"
    HANDSHAKE_REFUSED = "handshake_refused"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    PROTOCOL = "protocol"
    CORRUPTED = "corrupted"
    SHUTDOWN = "shutdown"
    DEADLINE_BOOTSTRAP = "deadline_bootstrap"
    DEADLINE_WAITING = "deadline_waiting"
    DEADLINE_MOVING = "deadline_moving"
    DEADLINE_CAP = "deadline_cap"
    DEADLINE_DECISION = "deadline_decision"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed as the next attempt, where whoever failed it says nothing else."""
        return self not in _FINAL

    @property
    def mirrored(self) -> Reason:
        """The reason as the other side must see it: my abort is the peer's abort to you."""
        return Reason.PEER_ABORTED if self is Reason.ABORTED else self

    @property
    def meaning(self) -> str:
        """One sentence for people; the specification prints it."""
        return _MEANING[self]


_FINAL = frozenset({Reason.MISMATCH, Reason.HANDSHAKE_REFUSED, Reason.PROTOCOL, Reason.ABORTED, Reason.PEER_ABORTED})
_MEANING = {
    Reason.SEND_ERROR: "A write of this room could not be posted.",
    Reason.TRANSPORT_ERROR: "A posted write ended with an error.",
    Reason.PEER_LOST: "The connection to a peer of this room ended, or the peer fell silent.",
    Reason.PEER_FAILED: "The other side reported a failure of its own.",
    Reason.ABORTED: "The caller on this side aborted or closed the room.",
    Reason.PEER_ABORTED: "The caller on the other side aborted or closed the room.",
    Reason.MISMATCH: "The two sides do not agree on what the room must carry.",
    Reason.HANDSHAKE_REFUSED: "The two engines cannot work together (version or layout).",
    Reason.REFUSED: "The other side refused the grant (not open in time, void, or no capacity).",
    Reason.SUPERSEDED: "A newer METADATA for the same room and attempt replaced this one.",
    Reason.PROTOCOL: "The peer said something that the protocol does not allow.",
    Reason.CORRUPTED: "What has landed is not what was sent: its digest differs.",
    Reason.SHUTDOWN: "The engine was closed while the room was open.",
    Reason.DEADLINE_BOOTSTRAP: "The other side was not heard of in time.",
    Reason.DEADLINE_WAITING: "Nothing was sent in time.",
    Reason.DEADLINE_MOVING: "The transfer made no progress in time.",
    Reason.DEADLINE_CAP: "The room was open longer than any room may be.",
    Reason.DEADLINE_DECISION: "A rank of the engine's group did not report in time how its room has ended.",
}


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One cause: the reason, words for people, and on which side it arose.

    again: whether the request may be tried again, by the word of whoever failed the room; None: as the reason says.
    """

    reason: Reason
    detail: str = ""
    origin: Literal["local", "peer"] = "local"
    again: bool | None = None

    @classmethod
    def heard(cls, reason: Reason, detail: str, retryable: bool, origin: Literal["local", "peer"] = "peer") -> Failure:
        """What a frame says of a failure."""
        return cls(reason, detail, origin, None if retryable is reason.retryable else retryable)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when it is tried again as the next attempt."""
        return self.reason.retryable if self.again is None else self.again

    @property
    def told(self) -> tuple[Reason, str, bool]:
        """What frames to the other side say of it: the reason as that side must see it, the words, the flag."""
        return self.reason.mirrored, self.detail[:DETAIL_MAX], self.retryable

    def __str__(self) -> str:
        return f"{self.reason.value} ({self.origin}): {self.detail or self.reason.meaning}"


_ORDER = {Reason.SEND_ERROR: 0, Reason.TRANSPORT_ERROR: 1}


def first_cause(causes: list[Failure]) -> Failure:
    """The cause that wins among those delivered in one step: send error, transport error, recorded reason, default.

    Recorded is what the caller, a timer or the peer has said, errors of its own included; the default is that the peer
    will write no more and has not said why. Among equals the first wins. An engine's rounds take inputs in that order.
    """
    return min(causes, key=_rank)


def _rank(cause: Failure) -> int:
    if cause.reason is Reason.PEER_FAILED:
        return 3
    return 2 if cause.origin == "peer" else _ORDER.get(cause.reason, 2)
