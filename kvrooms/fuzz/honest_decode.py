"""The honest side that receives: rooms one after another, every byte of each compared; and rooms with the attacker."""

from __future__ import annotations

import random
import threading
import time

import numpy as np

from .. import DecodeEngine, Status, wait_any
from ..engine.decode import DecodeRoom
from ..engine.settings import load_settings
from ..protocol.errors import EngineClosed, KvroomsError
from .child import FAULTS
from .honest_prefill import LIMIT_S, TIMEOUTS, HonestSide
from .pool import HONEST_PAGES, INSTANCE, LURE_PAGES, Numbers, Pool, slot, target_page

IN_FLIGHT = 8
_LURE_S = 1.0


class HonestDecode(HonestSide):
    """See the module."""

    engine: DecodeEngine

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.done = self.failed = 0
        self._stop = threading.Event()
        self._lures: list[DecodeRoom] = []
        self.lured = 0

    def start(self, seed: int) -> None:
        """Make pool and engine."""
        self._pool = Pool(seed, fill=False)
        self._numbers = Numbers(seed)
        self._draw = random.Random(f"{seed} lures")
        self.engine = DecodeEngine(self._pool.memory(), name="honest-decode", settings=load_settings(**TIMEOUTS))

    def begin(self, bootstrap: str) -> None:
        """Begin with the honest rooms."""
        self._bootstrap = bootstrap
        self._thread = threading.Thread(target=self._receive, name="honest", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        rooms: dict[DecodeRoom, int] = {}
        opened = 0
        while rooms or not self._stop.is_set():
            try:
                while len(rooms) < IN_FLIGHT and not self._stop.is_set():
                    rooms[self._open(opened)] = opened
                    opened += 1
            except EngineClosed:  # this process was told to end
                self._stop.set()
                continue
            try:
                ended = wait_any(rooms, 2 * LIMIT_S)
            except TimeoutError:
                self._fail(f"decode: {len(rooms)} rooms hang: {list(rooms)!r}", len(rooms))
                return
            for room in ended:
                self._close(room, rooms.pop(room))

    def _open(self, n: int) -> DecodeRoom:
        self._pool.kv[target_page(n)] = 0
        self._pool.aux[slot(n)] = 0
        return self.engine.open(
            self._numbers.following(),
            bootstrap=self._bootstrap,
            instance=INSTANCE,
            pages=[target_page(n)],
            aux_index=slot(n),
        )

    def _close(self, room: DecodeRoom, n: int) -> None:
        pool = self._pool
        if room.poll() is not Status.DONE:
            self._fail(f"decode: {room!r}: {room.failure}")
        elif not np.array_equal(pool.kv[target_page(n)], pool.pages[n * 7 % HONEST_PAGES]):
            self._fail(f"decode: {room!r} is DONE, and its page is not what prefill sent")
        elif not np.array_equal(pool.aux[slot(n)], pool.slots[slot(n)]):
            self._fail(f"decode: {room!r} is DONE, and its aux is not what prefill sent")
        else:
            self.done += 1
        room.close()
        if not room.wait_memory_free(LIMIT_S):
            self._fail(f"decode: the memory of {room!r} does not come back")

    def _fail(self, words: str, rooms: int = 1) -> None:
        self.failed += rooms
        self.failures = [*self.failures, words][:5]

    def lure(self, bootstrap: str, instances: list[str]) -> None:
        """Open a room with each of these instances of the attacker's registry. Nothing good will come of them."""
        for room in [room for room in self._lures if room.poll().terminal]:
            room.close()
            if room.memory_free:
                self._lures.remove(room)
        free = set(range(HONEST_PAGES, HONEST_PAGES + LURE_PAGES))
        free -= {int(page) for room in self._lures for page in (room.claimed[0] if room.claimed else ())}
        for instance, page in zip(instances, sorted(free), strict=False):
            number = self._draw.getrandbits(63)
            room = self.engine.open(
                number, bootstrap=bootstrap, instance=instance, pages=[page], state_indices=[[]], cap_timeout_s=_LURE_S
            )
            self._lures.append(room)
            self.lured += 1

    def mark(self) -> tuple[float, int]:
        """The time and how many honest rooms are done."""
        return time.perf_counter(), self.done

    def finish(self) -> tuple[int, int, list[str]]:
        """Stop. Returns how many honest rooms are done and how many have failed, and the first failures."""
        self._stop.set()
        self._thread.join(3 * LIMIT_S)
        if self._thread.is_alive():
            self._fail("decode: the caller's thread hangs")
        for room in self._lures:
            room.close()
        return self.done, self.failed, self.failures

    def fence(self, engine: str) -> None:
        """The orchestrator's word: the process of that engine is gone, whatever it has promised or not."""
        self.engine.peer_fenced(engine)

    def close(self) -> None:
        """Close the engine."""
        try:
            self.engine.close()
        except KvroomsError as error:
            FAULTS.first.append(str(error))
            FAULTS.count += 1
