"""Many short runs of bytes as one long one: gathered into a range, or scattered from it.

Runs form groups: those of one buffer, or those that lie together. A packed range holds group after group, of each
group block after block, of each block run after run. Both sides of a write make it out from what they know of each
other, so nothing is said about it. To copy with one call whatever the buffers, all runs are counted in grains: the
largest length that divides them, their distances and their strides.
"""

from __future__ import annotations

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
    """Consecutive groups with the same number of grains: which, where each grain is in item 0, strides in grains."""

    first: int
    stop: int
    grains: _I64
    row: _I64
    item: _I64


class Packing:
    """The runs of one block on one side, and how they are counted in grains. ends: per run base, item, stride of a row.

    groups: the first run of each, and the number of runs. A group's items are all of one length. by_row: whether a
    block may begin in the middle of an item. worth_while: whether the grains are long enough, and not too many.
    """

    def __init__(self, ends: tuple[_U64, _U64, _U64], size: _U64, groups: _I64, *, by_row: bool) -> None:
        base, item, row = (values.astype(np.int64) for values in ends)
        lengths = size.astype(np.int64)
        self.origin = int(base.min())
        apart = base - self.origin
        self.grain = grain = int(np.gcd.reduce(np.concatenate([lengths, apart, item, row if by_row else item])))
        counts = lengths // grain
        self.worth_while = grain >= GRAIN_MIN and int(counts.sum()) <= GRAINS_MAX
        self._alike: list[_Alike] = []
        if self.worth_while:
            first = np.repeat(np.cumsum(counts) - counts, counts)
            index = np.repeat(apart // grain, counts) + np.arange(len(first)) - first
            rows = np.repeat(row // grain if by_row else np.zeros_like(row), counts)
            self._sort(index, rows, item // grain, counts, groups)

    def _sort(self, index: _I64, rows: _I64, item: _I64, counts: _I64, groups: _I64) -> None:
        edges = np.append(0, np.cumsum(counts))[groups]
        widths = np.diff(edges)
        starts = np.append(np.flatnonzero(np.diff(widths, prepend=-1)), len(widths)).tolist()
        for first, stop in pairwise(starts):
            some, shape = slice(int(edges[first]), int(edges[stop])), (stop - first, int(widths[first]))
            items = item[groups[first:stop]]
            self._alike.append(_Alike(first, stop, index[some].reshape(shape), rows[some].reshape(shape), items))

    def of(self, items: _I64, rows: _I64, first: int, stop: int) -> Packed:
        """Groups [first, stop) of blocks that lie in these items, from these rows on."""
        found = []
        for group in self._alike:
            low, high = max(first, group.first) - group.first, min(stop, group.stop) - group.first
            if low < high:
                index = group.grains[low:high, None, :] + group.item[low:high, None, None] * items[:, None]
                if rows.any():
                    index = index + group.row[low:high, None, :] * rows[:, None]
                found.append(index.reshape(-1))
        return Packed(self.origin, self.grain, found[0] if len(found) == 1 else np.concatenate(found))
