"""Many short runs of bytes as one long one: gathered into a range, or scattered from it.

Runs form groups: those of one buffer, or those that lie together. A packed range holds group after group, of each
group block after block, of each block run after run. Both sides of a write make it out from what they know of each
other, so nothing is said about it. To copy with one call whatever the buffers, all runs are counted in grains: the
largest length that divides them, their distances and their strides. Runs that follow each other on the side that is
looked at count as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]
GRAIN_MIN = 8
"""Shorter grains are not copied: an index costs as much memory as they have."""
GRAINS_MAX = 2**20
"""Grains in one block; beyond that, runs go one by one."""


class Packed(NamedTuple):
    """What a packed range holds: the grains at `origin + grains * grain`, in order."""

    origin: int
    grain: int
    grains: _I64

    @property
    def bytes(self) -> int:
        """The length of the range."""
        return len(self.grains) * self.grain


class _Alike(NamedTuple):
    """Consecutive groups with equally many places: which, where each place is in item 0, strides of rows and items."""

    first: int
    stop: int
    places: _I64
    row: _I64
    item: _I64


class Packing:
    """The runs of one block on one side, and how they are counted in grains. ends: per run base, item, stride of a row.

    groups: the first run of each, and the number of runs. A group's items are all of one length. by_row: whether a
    block may begin in the middle of an item. worth_while: whether the grains are long enough, and not too many.
    """

    def __init__(self, ends: tuple[_U64, _U64, _U64], size: _U64, groups: _I64, *, by_row: bool) -> None:
        base, item, row = (values.astype(np.int64) for values in ends)
        self._by_row = by_row
        begins = np.ones(len(size), dtype=np.bool_)
        begins[1:] = base[1:] != base[:-1] + size[:-1].astype(np.int64)
        begins[1:] |= row[1:] != row[:-1]
        begins[groups[:-1]] = True
        starts = np.flatnonzero(begins)
        self._groups = np.searchsorted(starts, groups)
        self._size: _I64 = np.add.reduceat(size, starts).astype(np.int64)
        self._base, self._item, self._row = base[starts], item[starts], row[starts]
        self.origin = int(base.min())
        apart = self._base - self.origin
        strides = (self._item, self._row) if by_row else (self._item,)
        self.grain = int(np.gcd.reduce(np.concatenate([self._size, apart, *strides])))
        self.worth_while = self.grain >= GRAIN_MIN and int(self._size.sum()) // self.grain <= GRAINS_MAX

    @cached_property
    def average(self) -> int:
        """The average length of what lies together."""
        return int(self._size.mean())

    @cached_property
    def _grains(self) -> list[_Alike]:
        counts = self._size // self.grain
        first = np.repeat(np.cumsum(counts) - counts, counts)
        index = np.repeat((self._base - self.origin) // self.grain, counts) + np.arange(len(first)) - first
        rows = np.repeat(self._row // self.grain, counts)
        edges = np.append(0, np.cumsum(counts))[self._groups]
        return list(_sorted(index, rows, self._item[self._groups[:-1]] // self.grain, edges))

    @cached_property
    def _ranges(self) -> list[_Alike]:
        return list(_sorted(self._base, self._row, self._item[self._groups[:-1]], self._groups))

    def of(self, items: _I64, rows: _I64, first: int, stop: int) -> Packed:
        """Groups [first, stop) of blocks that lie in these items, from these rows on."""
        found = [places for _, places in self._places(self._grains, items, rows, first, stop)]
        return Packed(self.origin, self.grain, found[0] if len(found) == 1 else np.concatenate(found))

    def ranges(self, items: _I64, rows: _I64, first: int, stop: int) -> tuple[_U64, _U64]:
        """The same as addresses and lengths; what lies together, of neighbouring blocks too, is one range."""
        addresses, lengths = [], []
        for alike, places in self._places(self._ranges, items, rows, first, stop):
            low, high = max(first, alike.first), min(stop, alike.stop)
            sizes = self._size[self._groups[low] : self._groups[high]].reshape(high - low, 1, -1)
            addresses.append(places)
            lengths.append(np.broadcast_to(sizes, (high - low, len(items), sizes.shape[2])).reshape(-1))
        at, length = np.concatenate(addresses), np.concatenate(lengths)
        starts = np.flatnonzero(np.append(True, at[1:] != at[:-1] + length[:-1]))
        return at[starts].astype(np.uint64), np.add.reduceat(length, starts).astype(np.uint64)

    def _places(
        self, some: list[_Alike], items: _I64, rows: _I64, first: int, stop: int
    ) -> Iterator[tuple[_Alike, _I64]]:
        """Per kind of groups, as far as they are in [first, stop), all places of all blocks in order."""
        by_row = self._by_row and rows.any()
        for alike in some:
            low, high = max(first, alike.first) - alike.first, min(stop, alike.stop) - alike.first
            if low >= high:
                continue
            places = alike.places[low:high, None, :] + alike.item[low:high, None, None] * items[:, None]
            if by_row:
                places += alike.row[low:high, None, :] * rows[:, None]
            yield alike, places.reshape(-1)


def _sorted(places: _I64, rows: _I64, items: _I64, edges: _I64) -> Iterator[_Alike]:
    """Groups, each of the places between two edges, with their like."""
    widths = np.diff(edges)
    starts = np.append(np.flatnonzero(np.diff(widths, prepend=-1)), len(widths)).tolist()
    for first, stop in pairwise(starts):
        some, shape = slice(int(edges[first]), int(edges[stop])), (stop - first, int(widths[first]))
        yield _Alike(first, stop, places[some].reshape(shape), rows[some].reshape(shape), items[first:stop])
