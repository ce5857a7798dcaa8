"""Callers that block in a simulated world: while one waits, the world goes on, without timers."""

from __future__ import annotations

import threading

from ...engine.handle import Room, _Moment
from ..world import World


class WorldMoment(_Moment):
    """Something that happens once in a world. To wait for it lets the world run; it times out where nothing happens."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """See `_Moment.wait`. How long it may take is not looked at, but whether it may take time at all."""
        patient = timeout is None or timeout > 0
        while patient and not self.happened and self._world.step():
            pass
        return self.happened


def let_wait(room: Room, world: World) -> None:
    """Let those who wait for a room that was just opened run the world meanwhile."""
    room._end, room._free, room._gone = (WorldMoment(world) for _ in range(3))  # noqa: SLF001
