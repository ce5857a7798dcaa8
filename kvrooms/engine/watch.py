"""What the core tells about a room: the one interface from the engine's thread to whoever opened the room."""

from __future__ import annotations

from typing import Protocol

from ..protocol.failure import Failure
from ..protocol.status import Phase
from .account import Met


class Watcher(Protocol):
    """Called on the engine's thread: moved*, ended, then freed and forgotten in either order, once each."""

    def moved(self, phase: Phase, progressed: bool) -> None:
        """The room is in `phase` now; `progressed`: something after METADATA has been met."""

    def ended(self, phase: Phase, failure: Failure | None, context: list[Failure], met: Met | None = None) -> None:
        """The room is DONE, or FAILED with its first cause; later causes are appended to `context` as they come.

        met: what of a failed room was met.
        """

    def freed(self, why: str) -> None:
        """Nobody reads or writes the room's ranges any more: they are the caller's again; `why` says how one knows."""

    def forgotten(self) -> None:
        """No table of the engine holds the room any more (its ranges may still be quarantined)."""
