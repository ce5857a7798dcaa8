"""The pools of one rank: one flat array of bytes for each buffer of its layout, in the layout's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .truth import canary
from .views import LayoutView
from .walk import buffers_of

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Pool: TypeAlias = tuple[Bytes, ...]


class Sizes(NamedTuple):
    """How many items the buffers of a rank have."""

    pages: int
    slots: int
    state: Mapping[str, int]

    def items(self, part: str) -> int:
        """The items of a buffer that belongs to "kv", "aux/NAME" or "state/NAME"."""
        kind, _, name = part.partition("/")
        return self.pages if kind == "kv" else self.slots if kind == "aux" else self.state[name]


def blank(layout: LayoutView, sizes: Sizes, rank: str) -> Pool:
    """Pools full of canaries; `rank` is any name that is the rank's own."""
    pool = []
    for number, where in enumerate(buffers_of(layout)):
        pattern = canary(rank, number, where.item_length * sizes.items(where.part))
        pool.append(np.frombuffer(pattern, dtype=np.uint8).copy())
    return tuple(pool)


def copy_of(pool: Pool) -> Pool:
    """The same bytes in memory of their own."""
    return tuple(array.copy() for array in pool)


def bytes_in(layout: LayoutView, sizes: Sizes) -> int:
    """How many bytes the pools of a rank have in all."""
    return sum(where.item_length * sizes.items(where.part) for where in buffers_of(layout))
