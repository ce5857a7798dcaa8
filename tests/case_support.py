"""What the tests of faults by their numbers share: two engines of this process on the real ports, and their memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvrooms import Buffer, Component, DecodeEngine, Memory, PrefillEngine, Status

PAGES, SLOTS, LIMIT_S = 64, 32, 40.0
AT_REST = ("rooms", "grants", "parked", "posted", "ready", "tokens", "holds", "keys", "claims", "in_flight")


class Side:
    """Memory of one side; `fill`: with bytes that tell items and parts apart."""

    def __init__(self, *, fill: bool, page_size: int = 4, kind: str = "sliding_window", dtype: Any = np.uint8) -> None:
        draw = np.random.default_rng(3)

        def array(items: int, length: int = 64) -> np.ndarray[Any, Any]:
            made = draw.integers(1, 100, (items, length)).astype(dtype)
            return made if fill else np.zeros_like(made)

        self.kv, self.aux, self.window, self.index = array(PAGES), array(SLOTS), array(PAGES), array(PAGES)
        self.memory = Memory(
            page_size=page_size,
            kv=[Buffer(0, "kv", self.kv)],
            aux={"first": self.aux},
            state=[
                Component("window", kind, "when_indexed", [Buffer(1, "kv", self.window)]),
                Component("index", "index", "when_indexed", [Buffer(2, "k", self.index)]),
            ],
        )


class Pair:
    """Two engines of this process, their memory, and room numbers that nobody has used."""

    def __init__(self, source: Side, prefill: PrefillEngine, target: Side, decode: DecodeEngine) -> None:
        self.source, self.prefill, self.target, self.decode = source, prefill, target, decode
        self._number = 100

    def number(self) -> int:
        self._number += 1
        return self._number

    def receive(self, room: int, pages: list[int], **options: Any) -> Any:
        return self.decode.open(room, bootstrap=self.prefill.bootstrap, pages=pages, **options)

    def serve(self) -> None:
        """An ordinary room is served, and its bytes are right."""
        room = self.number()
        self.target.kv[[0, 1]] = 0
        receiver, sender = self.receive(room, [0, 1], aux_index=0), self.prefill.open(room, aux_index=1)
        sender.send([5, 6], last=True)
        self.ended(Status.DONE, receiver, sender)
        assert np.array_equal(self.source.kv[[5, 6]], self.target.kv[[0, 1]])
        assert np.array_equal(self.source.aux[1], self.target.aux[0])

    def ended(self, status: Status, *rooms: Any) -> None:
        """The rooms end so, their memory comes back, and they are closed."""
        for room in rooms:
            assert room.wait(LIMIT_S) is status, (room, room.failure)
            assert room.wait_memory_free(LIMIT_S), room.memory_status
            room.close()

    def at_rest(self) -> None:
        """Nothing of any room is left. What was closed last takes its turn of the engine's thread."""
        until(lambda: not self.left(), self.left)

    def left(self) -> dict[str, int]:
        tables = [self.prefill.tables(), self.decode.tables()]
        return {name: count for each in tables for name, count in each.items() if count and name in AT_REST}


def until(what: Any, words: Any = str) -> None:
    """Wait for something that the other thread does."""
    gate = threading.Event()
    for _ in range(2000):
        if what():
            return
        gate.wait(0.01)
    raise AssertionError(words())


def heard(sender: Any) -> None:
    """Wait until prefill knows of decode's room: one that decode gives up before that is not known to it at all."""
    until(lambda: sender.phase != "METADATA")


@contextmanager
def opened(source: Any, target: Any, name: str, **settings: float) -> Iterator[Pair]:
    """Engines with this memory."""
    with (
        PrefillEngine(source.memory, name=name, **settings) as prefill,
        DecodeEngine(target.memory, name=f"{name}-d", **settings) as decode,
    ):
        yield Pair(source, prefill, target, decode)
