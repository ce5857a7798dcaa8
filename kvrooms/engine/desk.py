"""The engine as its rooms see it."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from ..protocol.failure import Failure


class Desk(Protocol):
    """See the module."""

    name: str
    lock: threading.Lock
    pid: int
    group: Any

    def abort_room(self, room: Any, failure: Failure) -> None:
        """Abort on the engine's thread."""

    def close_room(self, room: Any) -> None:
        """Close on the engine's thread."""

    def room_freed(self, room: Any) -> None:
        """The room's ranges are free again (engine's thread)."""

    def room_forgotten(self, room: Any) -> None:
        """The engine holds the room no more (engine's thread)."""

    def room_ended(self, room: Any) -> None:
        """The room, which is in a group, is DONE or FAILED here (engine's thread)."""
