"""What a bootstrap registry knows, without any I/O: registrations with a time to live, bounded in number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..protocol.registration import Registration

DEFAULT_CAPACITY = 4096
_NAMES_SHOWN = 16


class Entry(NamedTuple):
    """A live registration and how many seconds it has left."""

    registration: Registration
    expires_in_s: float


class Refused(Exception):
    """The registry does not do what it was asked to do. `status` is an HTTP status, the text says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class RegistryTable:
    """Registrations by (instance, rank). Not thread-safe: one thread or one event loop owns it."""

    def __init__(self, capacity: int, clock: Callable[[], float]) -> None:
        """`capacity` bounds the number of registrations; `clock` returns monotonic seconds."""
        self._capacity = capacity
        self._clock = clock
        self._entries: dict[tuple[str, int], tuple[Registration, float]] = {}

    def __len__(self) -> int:
        self._prune()
        return len(self._entries)

    def put(self, registration: Registration) -> None:
        """Add or replace a registration and start its time to live anew. Refused (507) when the table is full."""
        key = (registration.instance, registration.rank)
        if key not in self._entries and len(self._entries) >= self._capacity:
            self._prune()
            if len(self._entries) >= self._capacity:
                raise Refused(507, f"the registry is full: {self._capacity} engines are registered")
        self._entries[key] = (registration, self._clock() + registration.ttl_s)

    def get(self, instance: str, rank: int) -> Entry:
        """The live registration of (instance, rank). Refused (404) when there is none."""
        entry = self._live(instance, rank)
        if entry is None:
            raise Refused(404, f"{instance} rank {rank} is not registered")
        return entry

    def get_only(self, rank: int) -> Entry:
        """The registration of `rank` of the only instance there is. Refused: 404 when none is, 409 when several are."""
        self._prune()
        names = sorted({instance for instance, _ in self._entries})
        if not names:
            raise Refused(404, "no engine is registered")
        if len(names) > 1:
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
            raise Refused(409, f"{len(names)} instances are registered; name one of: {shown}")
        return self.get(names[0], rank)

    def delete(self, instance: str, rank: int, incarnation: int) -> None:
        """Remove a registration. Refused: 404 when there is none, 409 when another incarnation made it."""
        entry = self.get(instance, rank)
        if entry.registration.incarnation != incarnation:
            raise Refused(409, f"{instance} rank {rank} is registered by another incarnation")
        del self._entries[instance, rank]

    def entries(self) -> list[Entry]:
        """All live registrations, sorted by instance and rank."""
        self._prune()
        now = self._clock()
        return [Entry(registration, end - now) for _, (registration, end) in sorted(self._entries.items())]

    def _live(self, instance: str, rank: int) -> Entry | None:
        found = self._entries.get((instance, rank))
        if found is None:
            return None
        left = found[1] - self._clock()
        if left <= 0:
            del self._entries[instance, rank]
            return None
        return Entry(found[0], left)

    def _prune(self) -> None:
        now = self._clock()
        for key in [key for key, (_, end) in self._entries.items() if end <= now]:
            del self._entries[key]
