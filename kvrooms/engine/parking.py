"""Grants that wait on prefill for a room that is not open yet: bounded per peer and in all."""

from __future__ import annotations

from ..protocol.identity import RoomKey
from .prefill_state import PrefillPeer, Writer
from .settings import EngineSettings


class Parking:
    """Waiting grants by room. Who takes one in arms its timer and refuses it when that fires."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._by_room: dict[RoomKey, dict[Writer, None]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def full(self, peer: PrefillPeer) -> bool:
        """Whether nothing more of this peer can wait."""
        return peer.parked >= self._settings.parked_per_peer or self._total >= self._settings.parked_total

    def add(self, writer: Writer) -> None:
        """Let a grant wait."""
        writer.peer.parked += 1
        self._total += 1
        self._by_room.setdefault(writer.key, {})[writer] = None

    def remove(self, writer: Writer) -> bool:
        """Let a grant wait no more. False if it did not."""
        waiting = self._by_room.get(writer.key)
        if waiting is None or writer not in waiting:
            return False
        del waiting[writer]
        if not waiting:
            del self._by_room[writer.key]
        writer.peer.parked -= 1
        self._total -= 1
        return True

    def of(self, key: RoomKey) -> list[Writer]:
        """The grants that wait for a room."""
        return list(self._by_room.get(key, ()))

    def all(self) -> list[Writer]:
        """Every grant that waits."""
        return [writer for waiting in self._by_room.values() for writer in waiting]
