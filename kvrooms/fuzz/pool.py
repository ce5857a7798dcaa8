"""Memory of the honest engines: pages with bytes that tell them apart, and pages around them that nobody may touch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import Buffer, Component, Memory

Bytes = npt.NDArray[np.uint8]
PAGE_BYTES, AUX_BYTES, STATE_BYTES = 4096, 64, 64
HONEST_PAGES = 1024
LURE_PAGES = 64
"""Pages of rooms that decode opens with the attacker; they come after the honest ones."""
_CANARIES = 16
PAGES = HONEST_PAGES + LURE_PAGES + _CANARIES
SLOTS = 64
STATES = 64
INSTANCE = "honest"
_CANARY = 0xA5


class Pool:
    """One side's memory. fill: with the bytes that are sent; else empty."""

    def __init__(self, seed: int, *, fill: bool) -> None:
        random_bytes = np.random.default_rng(seed)
        self.pages: Bytes = random_bytes.integers(1, 256, (HONEST_PAGES, PAGE_BYTES), dtype=np.uint8)
        self.slots: Bytes = random_bytes.integers(1, 256, (SLOTS, AUX_BYTES), dtype=np.uint8)
        self.kv: Bytes = np.zeros((PAGES, PAGE_BYTES), np.uint8)
        self.aux: Bytes = np.zeros((SLOTS, AUX_BYTES), np.uint8)
        self.window: Bytes = np.full((STATES, STATE_BYTES), _CANARY, np.uint8)
        if fill:
            self.kv[:HONEST_PAGES], self.aux[:] = self.pages, self.slots
        self.kv[HONEST_PAGES + LURE_PAGES :] = _CANARY

    def memory(self) -> Memory:
        """As kvrooms sees it: one KV buffer, one aux buffer, one component that no honest room uses."""
        return memory(self.kv, self.aux, self.window)

    def canaries(self) -> int:
        """How many bytes were written that nobody may write."""
        outside = self.kv[HONEST_PAGES + LURE_PAGES :]
        return int(np.count_nonzero(outside != _CANARY) + np.count_nonzero(self.window != _CANARY))


def memory(kv: Any, aux: Any, window: Any) -> Memory:
    """The layout that honest engines and the attacker share."""
    component = Component("window", "sliding_window", "when_indexed", [Buffer(1, "kv", window)])
    return Memory(page_size=16, kv=[Buffer(0, "kv", kv)], aux={"answer": aux}, state=[component])


class Numbers:
    """Rooms as a router numbers them: at random, so that nobody can claim one that was not given to him.

    Both honest sides know the n-th room; so do they know its pages and slots.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed} rooms")

    def following(self) -> int:
        """The next room."""
        return self._random.getrandbits(63)


def source_page(n: int) -> int:
    """The page that the n-th room sends."""
    return n * 7 % HONEST_PAGES


def target_page(n: int) -> int:
    """The page that the n-th room receives into."""
    return n * 11 % HONEST_PAGES


def slot(n: int) -> int:
    """The aux slot of the n-th room, on both sides."""
    return n % SLOTS
