"""Phases and statuses of a room. A phase is the first obligation still open; a status is what a caller polls."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where a room stands, on either side: the first kind of obligation that is still open."""

    __hash__ = object.__hash__  # by identity, in C: tables are looked up with phases on every step

    METADATA = "METADATA"
    KV = "KV"
    AUX = "AUX"
    STATE = "STATE"
    DONE = "DONE"
    FAILED = "FAILED"

    @property
    def meaning(self) -> str:
        """One sentence for people; the specification prints it."""
        return _MEANING[self]


TERMINAL = frozenset({Phase.DONE, Phase.FAILED})
_MEANING = {
    Phase.METADATA: "The two sides do not both know of the room yet: a grant is not accepted, or has not arrived.",
    Phase.KV: "Pages are open.",
    Phase.AUX: "No page is open; the aux buffers are.",
    Phase.STATE: "Neither pages nor aux are open; a state component is.",
    Phase.DONE: "Every obligation is met: all bytes have landed (decode), all writes have settled (prefill).",
    Phase.FAILED: "The room has ended with its first cause. Its memory may still be held: see the lease and the drain.",
}


class Status(enum.Enum):
    """What `poll()` returns. It only moves forward, except that FAILED may follow anything but DONE."""

    BOOTSTRAPPING = "bootstrapping"
    WAITING = "waiting"
    TRANSFERRING = "transferring"
    DONE = "done"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """True for DONE and FAILED: the status will not change any more."""
        return self is _DONE or self is _FAILED


_DONE, _FAILED = Status.DONE, Status.FAILED


def status_of(phase: Phase, moved: bool) -> Status:
    """The status for a phase; `moved` says whether any obligation after METADATA has made progress."""
    return _MOVED[phase] if moved else _UNMOVED[phase]


_UNMOVED = {
    Phase.METADATA: Status.BOOTSTRAPPING,
    Phase.KV: Status.WAITING,
    Phase.AUX: Status.WAITING,
    Phase.STATE: Status.WAITING,
    Phase.DONE: Status.DONE,
    Phase.FAILED: Status.FAILED,
}
_MOVED = _UNMOVED | dict.fromkeys((Phase.KV, Phase.AUX, Phase.STATE), Status.TRANSFERRING)
