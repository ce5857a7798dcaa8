"""The one timer table of an engine: coarse ticks, cheap to arm and to move, nothing left behind when disarmed.

Deadlines are rounded up to a tick, so that thousands of rooms share few heap entries. Moving a deadline later (what
progress does) only changes a number; the entry is put right when its old tick comes.
"""

from __future__ import annotations

import heapq
import math

from ..protocol.events import Symbol

TICK_S = 0.016


class Alarm(Symbol):
    """What an alarm of some owner is for. An owner has at most one alarm of each kind."""

    PHASE = "a room's phase deadline"
    CAP = "a room's cap"
    RETRY = "a lease's next ABORT"
    PARKED = "a METADATA for a room that is not open"
    HANDSHAKE = "a connection that does not complete its handshake"
    HEARTBEAT = "a connection's next ping"
    REDIAL = "a connection's next try"
    HOLD = "a hold's next renewal"
    FENCE = "a peer that is said to be fenced has been silent for long enough"
    DECISION = "a room's decision in a group"


class Timers:
    """Alarms by owner and kind. Owners are compared by identity."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, Alarm], list[float]] = {}  # deadline, tick of its bucket
        self._buckets: dict[int, dict[tuple[object, Alarm], None]] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def arm(self, owner: object, alarm: Alarm, deadline: float) -> None:
        """Set the owner's alarm of this kind to `deadline`, earlier or later than before."""
        key = (owner, alarm)
        entry = self._entries.get(key)
        if entry is not None:
            if deadline >= entry[0]:
                entry[0] = deadline
                return
            self._drop(key, int(entry[1]))
        tick = math.ceil(deadline / TICK_S)
        self._entries[key] = [deadline, tick]
        self._put(key, tick)

    def disarm(self, owner: object, alarm: Alarm) -> None:
        """Remove the alarm, if there is one."""
        key = (owner, alarm)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._drop(key, int(entry[1]))

    def due(self, now: float) -> list[tuple[object, Alarm]]:
        """Remove and return the alarms whose deadline has passed, in the order of their ticks."""
        fired: list[tuple[object, Alarm]] = []
        while self._heap and self._heap[0] * TICK_S <= now:
            tick = heapq.heappop(self._heap)
            for key in self._buckets.pop(tick):
                entry = self._entries[key]
                moved = math.ceil(entry[0] / TICK_S)
                if moved > tick:  # it was moved later since; ticks are compared: times may differ in their last bit
                    entry[1] = moved
                    self._put(key, moved)
                else:
                    del self._entries[key]
                    fired.append(key)
        return fired

    def next_deadline(self) -> float | None:
        """When to call `due` next; it may be early, never late."""
        return self._heap[0] * TICK_S if self._heap else None

    def _put(self, key: tuple[object, Alarm], tick: int) -> None:
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._heap, tick)
        bucket[key] = None

    def _drop(self, key: tuple[object, Alarm], tick: int) -> None:
        # An emptied bucket stays until its tick: there are at most as many as ticks up to the latest deadline.
        self._buckets[tick].pop(key, None)
