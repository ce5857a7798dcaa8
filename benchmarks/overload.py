"""What overload does to the rate of rooms: `python benchmarks/overload.py [RUNS]`.

A prefill process and two decode processes, rooms of 64 KiB, 16 in flight. First the rate before and after a thousand
rooms are aborted at once from both sides. Then the rate with one decode process while the other stands still (SIGSTOP)
and a thousand of its rooms wait, of which sixteen may be in flight.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, Status
from kvrooms.bench.engines import EngineDecode, EnginePrefill
from kvrooms.bench.shapes import Pool, Shape

SHAPE = Shape("64KiB", buffers=1, item=64 << 10, pages=1, chunks=1, rooms=1000, pool_mib=160)
STORM = 1000
IN_FLIGHT = 16
LIMIT_S = 120.0
SETTINGS: dict[str, float] = {
    "piece_bytes": 1 << 20,
    "inflight_per_peer_bytes": 1 << 20,
    "heartbeat_timeout_s": LIMIT_S,
}


def memory(pool: Pool) -> Memory:
    """The pool as kvrooms sees it."""
    return Memory(16, kv=[Buffer(0, "kv", pool.kv[0])], aux={"answer": pool.aux})


class Decode:
    """What a decode process does when it is asked."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.pool = Pool(SHAPE, fill=False)
        engine = DecodeEngine(memory(self.pool), name=name, heartbeat_timeout_s=LIMIT_S)
        self.rooms = EngineDecode(self.pool, bootstrap, engine)
        self.waiting: list[Any] = []

    def run(self, first: int) -> float:
        """Carry rooms; how many in a second."""
        return self.rooms.run(first, SHAPE.rooms, IN_FLIGHT, LIMIT_S).rooms_per_s

    def open(self, first: int) -> None:
        """Open many rooms, with no aux: there are not so many slots."""
        numbers = range(first, first + STORM)
        self.waiting = [
            self.rooms.engine.open(number, bootstrap=self.rooms.bootstrap, pages=self.pool.group(number))
            for number in numbers
        ]

    def abort(self) -> None:
        """Abort every second room; return when nothing of any of them is left."""
        for room in self.waiting[::2]:
            room.abort("a storm")
        self.over(Status.FAILED)

    def over(self, status: Status) -> None:
        """Wait until the rooms have ended so and their memory is free."""
        for room in self.waiting:
            if room.wait(LIMIT_S) is not status or not room.wait_memory_free(LIMIT_S):
                raise RuntimeError(f"{room}: {room.failure}")
            room.close()
        self.waiting = []


def decode(pipe: Connection[Any, Any], name: str, bootstrap: str) -> None:
    """A decode process."""
    side = Decode(name, bootstrap)
    while (call := pipe.recv())[0] != "close":
        pipe.send(getattr(side, call[0])(*call[1:]))
    side.rooms.engine.close()


class Overload:
    """The prefill side, in this process, and what it asks the others."""

    def __init__(self) -> None:
        self.pool = Pool(SHAPE, fill=True)
        engine = PrefillEngine(memory(self.pool), name="overload-p", **SETTINGS)
        self.rooms = EnginePrefill(self.pool, engine)
        self.following = 0
        self.pipes: dict[str, Connection[Any, Any]] = {}
        self.processes: dict[str, Any] = {}
        for name in ("fast", "slow"):
            ours, theirs = mp.get_context("spawn").Pipe()
            process = mp.get_context("spawn").Process(target=decode, args=(theirs, name, engine.bootstrap), daemon=True)
            process.start()
            theirs.close()
            self.pipes[name], self.processes[name] = ours, process

    def numbers(self, count: int) -> int:
        """The first of so many numbers that no room has had."""
        first, self.following = self.following, self.following + count
        return first

    def rate(self) -> float:
        """Rooms in a second, in a run of the fast one."""
        first = self.numbers(SHAPE.rooms)
        self.rooms.offer(first, SHAPE.rooms)
        self.pipes["fast"].send(("run", first))
        self.rooms.carry(LIMIT_S)
        return float(self.pipes["fast"].recv())

    def opened(self, name: str) -> list[Any]:
        """Many rooms, open on both sides."""
        first = self.numbers(STORM)
        senders = [self.rooms.engine.open(number, pages=1) for number in range(first, first + STORM)]
        self.pipes[name].send(("open", first))
        self.pipes[name].recv()
        while any(sender.phase == "METADATA" for sender in senders):
            time.sleep(0.001)
        return senders

    def storm(self) -> float:
        """Abort a thousand rooms, half of them moving. Seconds until nothing of them is left on either side."""
        senders = self.opened("fast")
        first = self.following - STORM
        for number, sender in list(enumerate(senders, first))[::4]:
            sender.send(self.pool.group(number), last=False)
        began = time.perf_counter()
        self.pipes["fast"].send(("abort",))
        for sender in senders[1::2]:
            sender.abort("a storm")
        for sender in senders:
            sender.wait(LIMIT_S)
            sender.wait_memory_free(LIMIT_S)
            sender.close()
        self.pipes["fast"].recv()
        return time.perf_counter() - began

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Meanwhile the slow one stands still, and a thousand rooms for it wait. They arrive afterwards."""
        senders = self.opened("slow")
        first = self.following - STORM
        os.kill(self.processes["slow"].pid, signal.SIGSTOP)
        for number, sender in enumerate(senders, first):
            sender.send(self.pool.group(number), last=True)
        yield
        if sum(sender.poll() is Status.DONE for sender in senders) > STORM // 2:
            raise RuntimeError("its rooms did not wait")
        os.kill(self.processes["slow"].pid, signal.SIGCONT)
        self.pipes["slow"].send(("over", Status.DONE))
        self.pipes["slow"].recv()
        for sender in senders:
            sender.wait(LIMIT_S)
            sender.close()

    def close(self) -> None:
        """End all."""
        for pipe in self.pipes.values():
            pipe.send(("close",))
        for process in self.processes.values():
            process.join(LIMIT_S)
        self.rooms.engine.close()


def main(runs: int) -> None:
    """Measure, and print both tables."""
    overload = Overload()
    overload.rate()  # touches everything once
    before = median(overload.rate() for _ in range(runs))
    seconds = overload.storm()
    began = time.perf_counter()
    after = [(overload.rate(), time.perf_counter() - began) for _ in range(runs)]
    print(f"\n{STORM:,} rooms aborted; nothing of them was left after {seconds:.2f} s\n")
    print("| | rooms/s | of before |\n|---|---|---|")
    print(f"| before | {before:,.0f} | 1.00 |")
    for rate, until in after:
        print(f"| up to {until:.1f} s after | {rate:,.0f} | {rate / before:.2f} |")
    before = median(overload.rate() for _ in range(runs))
    with overload.slow():
        beside = median(overload.rate() for _ in range(runs))
    again = median(overload.rate() for _ in range(runs))
    print("\n| the other decode engine | rooms/s | of before |\n|---|---|---|")
    for words, rate in (("idle", before), ("stands still", beside), ("has gone on", again)):
        print(f"| {words} | {rate:,.0f} | {rate / before:.2f} |")
    overload.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
