"""Memory whose every range lies between canaries, and whose free ranges are canaries themselves.

An arena's items stand in blocks of a few, with one item between two blocks that belongs to nobody. A room gets whole
blocks; what it does not need of them stays as it is. A write that lands where it should not (beside a range, or in one
that was handed back) changes a canary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .oracle import Bytes

_BORDER, _FREE = 0xA5, 0x5C


class Claim(NamedTuple):
    """Items handed to a room: the item of each position, and all blocks they lie in."""

    items: list[int]
    blocks: list[int]


class Arena:
    """Some buffers with the same items. `hits` counts items that were written to and should not have been."""

    def __init__(self, names: Sequence[str], length: int, *, blocks: int, per_block: int) -> None:
        self.per_block = per_block
        self.length = length
        self.hits = 0
        items = 1 + blocks * (per_block + 1)
        self.arrays: dict[str, Bytes] = {name: np.full((items, length), _FREE, np.uint8) for name in names}
        for array in self.arrays.values():
            array[:: per_block + 1] = _BORDER
        self._spare: list[int] = list(range(blocks))
        self._free: Bytes = np.full((per_block, length), _FREE, np.uint8)
        self._border: Bytes = np.full(length, _BORDER, np.uint8)

    def take(self, count: int) -> Claim | None:
        """Items for `count` positions, the longest free first; None when too few are free.

        They were canaries until now: each must be as it was left.
        """
        needed = -(-count // self.per_block)
        if needed > len(self._spare):
            return None
        blocks, self._spare = self._spare[:needed], self._spare[needed:]
        items = [item for block in blocks for item in self._items(block)]
        self._look(items)
        return Claim(items[:count], blocks)

    def give_back(self, claim: Claim, used: Sequence[int]) -> None:
        """Look at the canaries around the claim and at what was not `used` of it, and make all of it a canary again."""
        items = [item for block in claim.blocks for item in self._items(block)]
        self._look([item for item in items if item not in set(used)])
        for block in claim.blocks:
            first = block * (self.per_block + 1)
            for border in (first, first + self.per_block + 1):
                self._look_at_border(border)
        for array in self.arrays.values():
            array[items] = _FREE
        self._spare += claim.blocks

    def scan(self) -> None:
        """Look at every canary there is: the borders, and all free items."""
        borders = len(next(iter(self.arrays.values())))
        for border in range(0, borders, self.per_block + 1):
            self._look_at_border(border)
        self._look([item for block in self._spare for item in self._items(block)])

    def _items(self, block: int) -> range:
        first = block * (self.per_block + 1) + 1
        return range(first, first + self.per_block)

    def _look(self, items: Sequence[int]) -> None:
        for array in self.arrays.values():
            for item in items:
                if not np.array_equal(array[item], self._free[0]):
                    self.hits += 1
                    array[item] = _FREE

    def _look_at_border(self, item: int) -> None:
        for array in self.arrays.values():
            if not np.array_equal(array[item], self._border):
                self.hits += 1
                array[item] = _BORDER

    def rows(self, items: Sequence[int]) -> Iterator[tuple[str, int, Bytes]]:
        """Each buffer's name, each position, and its bytes."""
        for name, array in self.arrays.items():
            for position, item in enumerate(items):
                yield name, position, array[item]
