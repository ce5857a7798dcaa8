"""Who looks on while a world runs. The ports and the world tell what passes them, in bytes and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..transport.ports import CloseCause
    from .channel import SimChannel
    from .ports import SimTransport, Write


class Witness:
    """Sees everything and changes nothing. These methods do nothing; a judge overrides what it wants to see."""

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """A frame (without length prefix) was handed to a connection."""

    def delivered(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """A frame has arrived at this end of a connection."""

    def spoiled(self, how: str, channel: SimChannel, connection: int, frame: bytes) -> None:
        """Something happens to a frame that was sent: "lost", "repeated", "corrupted", "truncated", "late"."""

    def broken(self, how: str, channel: SimChannel, connection: int) -> None:
        """A connection breaks at this end: "cut", "jammed". Its other end is still known."""

    def over(self, channel: SimChannel, connection: int, cause: CloseCause) -> None:
        """A connection is over, as this end sees it."""

    def left(self, channel: SimChannel, connection: int) -> None:
        """This end of a connection is being closed by its engine."""

    def engine(self, what: str, name: str) -> None:
        """Something happens to an engine: "killed", "stalled", "woken", "its clock jumps"."""

    def refused(self, transport: SimTransport, agent: str, source: int) -> None:
        """A write that would have read from `source` could not be posted."""

    def posted(self, write: Write) -> None:
        """A write was posted."""

    def disturbs(self, how: str, write: Write) -> None:
        """A posted write goes wrong: "slow", "stuck", "failed", "damaged"."""

    def landed(self, write: Write, source: int, destination: int, length: int) -> None:
        """Bytes of a write have been copied between these addresses."""

    def settled(self, write: Write, error: str | None) -> None:
        """A write is over for whoever posted it."""

    def notified(self, transport: SimTransport, agent: str, message: bytes) -> None:
        """A notification has arrived."""

    def time(self, now: float) -> None:
        """Time passes."""
