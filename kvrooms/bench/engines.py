"""The same rooms through `PrefillEngine` and `DecodeEngine`, as a user would open them.

Both sides number the rooms alike and know the pages of each. Prefill keeps a window of rooms open ahead of decode and
has handed over their pages by the time that decode asks, like a prefill that was faster; so a room's latency, from the
call of `open` on decode to the return of `wait`, is what the protocol and the bytes cost.
"""

from __future__ import annotations

import time
from collections import deque

import kvrooms
from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, Status

from ..engine.handle import Room
from ..engine.prefill import PrefillRoom
from .figures import Run
from .shapes import AUX_SLOTS, Pool
from .split import RankPool

WINDOW = 64
PAGE_TOKENS = 16
_SETTLE_S = 1.0


def _memory_of(pool: Pool | RankPool) -> Memory:
    """The pool as kvrooms sees it: one buffer, or K and V of each layer; 64 bytes of aux."""
    assert isinstance(pool, Pool)
    roles = ("kv",) if pool.shape.buffers == 1 else ("k", "v")
    return Memory(
        page_size=PAGE_TOKENS,
        kv=[
            Buffer(layer=number // len(roles), role=roles[number % len(roles)], array=array)
            for number, array in enumerate(pool.kv)
        ],
        aux={"answer": pool.aux},
    )


def _finish(room: Room) -> None:
    """Close a room that has ended. Raises RoomFailed unless it is DONE."""
    if room.poll() is not Status.DONE:
        room.failure_exception()
    room.close()


def _left(end: float) -> float:
    """Seconds until `end`. Raises TimeoutError when it has passed."""
    left = end - time.perf_counter()
    if left <= 0:
        raise TimeoutError("the run takes too long")
    return left


class EnginePrefill:
    """The side that sends."""

    def __init__(self, pool: Pool | RankPool, engine: PrefillEngine | None = None) -> None:
        self.pool = pool
        self.engine = engine or PrefillEngine(_memory_of(pool), name="bench-prefill")
        self._open: deque[PrefillRoom] = deque()
        self._following = self._last = 0
        self._cpu_s = 0.0

    def offer(self, first: int, rooms: int) -> None:
        """Begin a run of rooms numbered from `first`: open the window, so that decode may begin."""
        self._cpu_s = time.process_time()
        self._following, self._last = first, first + rooms
        self._fill()

    def carry(self, limit_s: float) -> float:
        """See the run through. Returns the processor seconds of this process since `offer`."""
        end = time.perf_counter() + limit_s
        while self._open:
            # Looking once per half a window rather than once per room: prefill's caller has other things to do.
            self._open[len(self._open) // 2].wait(_left(end))
            self._open[0].wait(_left(end))
            while self._open and self._open[0].poll().terminal:
                _finish(self._open.popleft())
            self._fill()
        return time.process_time() - self._cpu_s

    def _fill(self) -> None:
        while self._following < self._last and len(self._open) < min(WINDOW, self.pool.shape.groups):
            room = self._open_room(self._following)
            self._send(room, self._following)
            self._open.append(room)
            self._following += 1

    def _open_room(self, number: int) -> PrefillRoom:
        return self.engine.open(room=number, pages=self.pool.shape.pages, aux_index=number % AUX_SLOTS)

    def _send(self, room: PrefillRoom, number: int) -> None:
        shape, pages = self.pool.shape, self.pool.group(number)
        each = shape.pages // shape.chunks
        for at in range(0, shape.pages, each):
            room.send(pages[at : at + each], last=at + each == shape.pages)

    def hold(self, first: int, rooms: int) -> None:
        """Open rooms and send nothing."""
        for number in range(first, first + rooms):
            self._open.append(self._open_room(number))
        self._following = first

    def idle(self, seconds: float) -> float:
        """See `idle_percent`."""
        return idle_percent(list(self._open), seconds)

    def let_go(self, limit_s: float) -> None:
        """Send what `hold` kept back, and wait until it has arrived."""
        end = time.perf_counter() + limit_s
        for number, room in enumerate(self._open, self._following):
            self._send(room, number)
        while self._open:
            self._open[0].wait(_left(end))
            _finish(self._open.popleft())


class EngineDecode:
    """The side that receives and measures."""

    def __init__(self, pool: Pool | RankPool, bootstrap: str, engine: DecodeEngine | None = None) -> None:
        self.pool = pool
        self.bootstrap = bootstrap
        self.engine = engine or DecodeEngine(_memory_of(pool), name="bench-decode")
        self._held: list[Room] = []

    def run(self, first: int, rooms: int, in_flight: int, limit_s: float) -> Run:
        """Carry so many rooms, numbered from `first`, at most `in_flight` at a time."""
        end = time.perf_counter() + limit_s
        cpu = time.process_time()
        clock = time.perf_counter
        opened: dict[Room, float] = {}
        latencies: list[float] = []
        following = first
        began = clock()
        while len(latencies) < rooms:
            while following < first + rooms and len(opened) < in_flight:
                asked = clock()
                opened[self._open_room(following)] = asked
                following += 1
            for room in self._ended(opened, end):
                latencies.append(clock() - opened.pop(room))
                _finish(room)
        seconds = clock() - began
        return Run(rooms, seconds, latencies, time.process_time() - cpu)

    def _ended(self, opened: dict[Room, float], end: float) -> list[Room]:
        if len(opened) > 1:
            return kvrooms.wait_any(opened, _left(end))
        rooms = list(opened)
        rooms[0].wait(_left(end))
        return rooms

    def _open_room(self, number: int) -> Room:
        pages = self.pool.group(number)
        return self.engine.open(room=number, bootstrap=self.bootstrap, pages=pages, aux_index=number % AUX_SLOTS)

    def hold(self, first: int, rooms: int, limit_s: float) -> None:
        """Open rooms that prefill holds back, and return once all of them wait for it."""
        end = time.perf_counter() + limit_s
        self._held = [self._open_room(number) for number in range(first, first + rooms)]
        while any(room.poll() is not Status.WAITING for room in self._held):
            _left(end)
            time.sleep(0.01)
        time.sleep(_SETTLE_S)

    def idle(self, seconds: float) -> float:
        """See `idle_percent`."""
        return idle_percent(self._held, seconds)

    def let_go(self, limit_s: float) -> None:
        """Wait until what `hold` opened has arrived: they did wait, and were not forgotten."""
        end = time.perf_counter() + limit_s
        for room in self._held:
            room.wait(_left(end))
            _finish(room)
        self._held = []


def idle_percent(rooms: list[Room] | list[PrefillRoom], seconds: float) -> float:
    """Per cent of a core that this process uses while its caller waits so long for rooms that do not move."""
    began, cpu = time.perf_counter(), time.process_time()
    try:
        kvrooms.wait_any(rooms, seconds)
    except TimeoutError:
        return 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
    raise RuntimeError("a room that should have waited has ended")
