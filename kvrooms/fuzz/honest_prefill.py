"""The honest side that sends: a window of rooms is kept open ahead of decode, whatever else comes in."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .. import PrefillEngine, Status
from ..engine.host import Engine
from ..engine.prefill import PrefillRoom
from ..engine.settings import load_settings
from ..protocol.errors import EngineClosed, RoomClosed
from .child import FAULTS
from .pool import INSTANCE, Numbers, Pool, slot, source_page

WINDOW = 24
LIMIT_S = 30.0
TIMEOUTS: dict[str, float] = {
    "parked_ttl_s": 1.5,
    "handshake_timeout_s": 1.5,
    "bootstrap_timeout_s": LIMIT_S,
    "waiting_timeout_s": LIMIT_S,
    "queued_timeout_s": LIMIT_S,
    "moving_timeout_s": LIMIT_S,
}
"""Shorter than the defaults, so that what an attack leaves behind is gone before the end of a run."""


class HonestSide:
    """What both honest sides say of themselves."""

    engine: Engine
    _pool: Pool

    def tables(self) -> dict[str, int]:
        """What the engine holds."""
        return self.engine.tables()

    def state(self) -> dict[str, Any]:
        """Errors that were logged, what the engine counted, how many bytes nobody may write were written."""
        return {
            "errors": FAULTS.count,
            "first": FAULTS.first,
            "counters": self.engine.counters(),
            "canaries": self._pool.canaries(),
        }


class HonestPrefill(HonestSide):
    """See the module."""

    engine: PrefillEngine

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.failed = 0
        self._stop = threading.Event()

    def start(self, seed: int) -> tuple[str, str, bytes]:
        """Make pool and engine and begin. Returns the registry's URL, the control address, and the incarnation."""
        self._pool = Pool(seed, fill=True)
        self._numbers = Numbers(seed)
        self.engine = PrefillEngine(self._pool.memory(), name=INSTANCE, settings=load_settings(**TIMEOUTS))
        self._thread = threading.Thread(target=self._serve, name="honest", daemon=True)
        self._thread.start()
        return self.engine.bootstrap, self.engine.address, b""

    def _serve(self) -> None:
        rooms: deque[PrefillRoom] = deque()
        opened = 0
        while not self._stop.is_set():
            try:
                while len(rooms) < WINDOW:
                    room = self.engine.open(self._numbers.following(), pages=1, aux_index=slot(opened))
                    room.send([source_page(opened)])
                    rooms.append(room)
                    opened += 1
            except (EngineClosed, RoomClosed):  # this process was told to end
                return
            try:
                rooms[0].wait(0.5)
            except TimeoutError:
                continue  # decode has paused, or its own deadline will tell
            while rooms and rooms[0].poll().terminal:
                self._close(rooms.popleft())
        for room in rooms:  # decode was stopped before us and never asked for these
            room.close()

    def _close(self, room: PrefillRoom) -> None:
        if room.poll() is not Status.DONE:
            self.failed += 1
            self.failures = [*self.failures, f"prefill: {room!r}: {room.failure}"][:5]
        room.close()

    def finish(self) -> tuple[int, list[str]]:
        """Stop. Returns how many rooms have failed, and the first failures."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        if self._thread.is_alive():
            return self.failed + 1, [*self.failures, "prefill: the caller's thread hangs"]
        return self.failed, self.failures

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
