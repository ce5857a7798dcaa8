"""The pools of one process: KV pages, aux slots, a state that each room has and one that only some have."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from ..protocol.memory import Buffer, Component, Memory
from ..protocol.notify import Part, PartKind
from .arena import Arena, Claim
from .oracle import Bytes, Oracle
from .plan import Plan

_PAGE, _AUX, _CONV, _WINDOW = 4096, 64, 1024, 512


class Holding(NamedTuple):
    """What a room holds of the pools, in the order of `Pools.arenas`: claims, and the items that the room uses."""

    claims: tuple[Claim, ...]
    pages: list[int]
    aux: list[int]
    conv: list[int]
    window: list[int]

    @property
    def used(self) -> tuple[list[int], ...]:
        """The items of each arena that the room uses."""
        return self.pages, self.aux, self.conv, self.window


class Pools:
    """One side's memory."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.pages = Arena(("0/k", "0/v", "1/k"), _PAGE, blocks=320, per_block=4)
        self.aux = Arena(("token", "logprob"), _AUX, blocks=128, per_block=1)
        self.conv = Arena(("conv",), _CONV, blocks=128, per_block=1)
        self.window = Arena(("window",), _WINDOW, blocks=128, per_block=4)
        self.arenas = (self.pages, self.aux, self.conv, self.window)
        kv = [Buffer(int(name[0]), name[2], array) for name, array in self.pages.arrays.items()]
        state = [
            Component("conv", "mamba", "always", [Buffer(2, "conv", self.conv.arrays["conv"])]),
            Component("window", "sliding_window", "when_indexed", [Buffer(3, "kv", self.window.arrays["window"])]),
        ]
        self.memory = Memory(page_size=16, kv=kv, aux=dict(self.aux.arrays), state=state)

    def take(self, plan: Plan, pages: int) -> Holding | None:
        """Items for a room with so many pages; None when too few are free."""
        counts = (pages, int(plan.aux), int(plan.conv), plan.window if plan.conv else 0)
        claims: list[Claim] = []
        for arena, count in zip(self.arenas, counts, strict=True):
            claim = arena.take(count)
            if claim is None:
                for taken, back in zip(claims, self.arenas, strict=False):
                    back.give_back(taken, ())
                return None
            claims.append(claim)
        lists = [list(claim.items) for claim in claims]
        if plan.shuffled:
            random.Random(plan.number).shuffle(lists[0])
        return Holding(tuple(claims), *lists)

    def give_back(self, holding: Holding) -> None:
        """The room's ranges are nobody's: they become canaries."""
        for arena, claim, used in zip(self.arenas, holding.claims, holding.used, strict=True):
            arena.give_back(claim, used)

    def fill(self, plan: Plan, holding: Holding) -> None:
        """Write what the room is to carry."""
        for arena, items in zip(self.arenas, holding.used, strict=True):
            for name, position, row in arena.rows(items):
                row[:] = self._oracle.item(plan.number, name, position, arena.length)

    def wrong(self, plan: Plan, holding: Holding) -> int:
        """How many items of the room are not what they must be, once it is DONE on decode."""
        wrong = 0
        for arena, items in zip(self.arenas, holding.used, strict=True):
            shift = plan.prefix if arena is self.pages else 0
            for name, position, row in arena.rows(items):
                expected = self._oracle.item(plan.number, name, position + shift, arena.length)
                wrong += not np.array_equal(row, expected)
        return wrong

    def landed_item(self, plan: Plan, holding: Holding, part: Part) -> Bytes:
        """The bytes of the first item that a notification speaks of, on decode."""
        if part.kind is PartKind.KV:
            arena, item = self.pages, holding.pages[part.first - plan.prefix]
        elif part.kind is PartKind.AUX:
            arena, item = self.aux, holding.aux[0]
        else:
            arena, items = ((self.conv, holding.conv), (self.window, holding.window))[part.component]
            item = items[part.first]
        row: Bytes = next(iter(arena.arrays.values()))[item]
        return row

    @property
    def hits(self) -> int:
        """Canaries that were written to, so far."""
        return sum(arena.hits for arena in self.arenas)

    def scan(self) -> None:
        """Look at every canary."""
        for arena in self.arenas:
            arena.scan()


def spelled(plan: Plan, holding: Holding) -> object:
    """The state indices of a room, in one of many spellings."""
    if not plan.conv:
        nothing: list[object] = [None, [], [[]], {}, [[], []], [None, None]]
        return nothing[plan.spelling]
    conv, window = holding.conv, holding.window
    spellings: list[object] = [
        {"conv": conv, "window": window},
        [conv, window],
        (np.array(conv), np.array(window, dtype=np.int64)),
        [conv, window or None],
        {"conv": iter(conv), "window": tuple(window)},
        {"conv": conv, **({"window": window} if window else {})},
    ]
    return spellings[plan.spelling]
