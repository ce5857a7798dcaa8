"""Callers that block in a simulated world: while one waits, the world goes on, without timers."""

from __future__ import annotations

import threading

from ...engine.handle import _Moment
from ..world import World


class WorldMoment(_Moment):
    """Something that happens once in a world. To wait for it lets the world run; it times out where nothing happens."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """See `_Moment.wait`."""
        while not self.happened and self._world.step():
            pass
        return self.happened
