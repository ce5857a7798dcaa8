"""Every exception that kvrooms raises on purpose. All derive from `KvroomsError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .failure import Failure


class KvroomsError(Exception):
    """Base of all exceptions raised by kvrooms."""


class InvalidArgument(KvroomsError, ValueError):
    """A caller's argument is wrong. Nothing was changed. `field` and `value` say which one it was."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field = field
        self.value = value
        self.why = why
        shown = repr(value)
        super().__init__(f"{field}: {why} (got {shown if len(shown) <= 120 else shown[:117] + '...'})")


class WireError(KvroomsError):
    """Bytes from a peer are malformed. `field` names the first field that is wrong."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field}: {why}")


class HandshakeRefused(KvroomsError):
    """Two engines cannot work together; `words` says why, one sentence per difference."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        super().__init__("; ".join(words))


class GroupIncomplete(KvroomsError, TimeoutError):
    """Not every rank of a group has joined in time. `missing`: which, as far as this rank knows; `why`: in words."""

    def __init__(self, name: str, seconds: float, why: str, missing: tuple[int, ...]) -> None:
        self.missing = missing
        self.why = why
        ranks = "rank " if len(missing) == 1 else "ranks "
        who = ranks + ", ".join(map(str, missing)) if missing else "the leader"
        super().__init__(f"{name}: after {seconds:g} s {who} had not joined{f': {why}' if why else ''}")


class TransportError(KvroomsError):
    """A transfer could not be posted or did not complete."""


class UncertainWrite(TransportError):
    """A write failed when it was started: some of its bytes may be under way, and land later if the peer lives."""


class PeerGone(UncertainWrite):
    """The transport reports that the peer is not reachable any more."""


class RoomFailed(KvroomsError):
    """A room ended in FAILED. `failure` is its first cause; `context` holds what failed after it, and is in the notes.

    met: which obligations were met all the same (`Room.met`), None when that is not known.
    """

    def __init__(
        self, where: str, failure: Failure, context: tuple[Failure, ...] = (), met: object | None = None
    ) -> None:
        self.failure = failure
        self.context = context
        self.met = met
        super().__init__(f"{where}: {failure}")
        for later in context:
            self.add_note(f"then: {later}")


class RoomClosed(KvroomsError):
    """The room has been closed, or its failure was already handed to the caller."""


class Overloaded(KvroomsError):
    """The engine has as many rooms as it may have, or as many calls waiting for its thread. Nothing has changed.

    Close some rooms, wait for the memory of closed ones, or call again a little later.
    """


class EngineClosed(KvroomsError):
    """The engine has been closed, or this process is a fork of the one that made it."""
