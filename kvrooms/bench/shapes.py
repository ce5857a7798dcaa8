"""The rooms that are measured, and the pool of pages they are cut from.

A pool is one allocation: buffer after buffer, page after page, then the aux slots. Floor and engines use the same pool
in the same processes. Pages are handed out in groups of a seeded permutation, in order: neighbouring pages of a pool
small enough to stay in the processor's caches would be worth a factor of four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..protocol.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]
Pages = npt.NDArray[np.int32]

AUX_BYTES = 64
AUX_SLOTS = 128
"""More than the rooms that either side has open at a time."""
IN_FLIGHT = (1, 16)
_SEED = 7
_STEP = 0x9E37_79B9_7F4A_7C15
"""An odd number: multiples of it, modulo 2**64, differ for all pages of all buffers."""


@dataclass(frozen=True)
class Shape:
    """One size of room: `buffers` items of `item` bytes per page, `pages` pages, sent in `chunks` equal parts.

    `rooms` are measured per run, `pool_mib` is the size of the pool.
    """

    name: str
    buffers: int
    item: int
    pages: int
    chunks: int
    rooms: int
    pool_mib: int

    @property
    def size(self) -> int:
        """Bytes of pages in a room; aux is not counted."""
        return self.buffers * self.item * self.pages

    @property
    def groups(self) -> int:
        """How many rooms the pool has pages for."""
        return self.pool_mib * 2**20 // self.size

    @property
    def pool_pages(self) -> int:
        """Pages of the pool."""
        return self.groups * self.pages


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("4KiB", buffers=1, item=4096, pages=1, chunks=1, rooms=4000, pool_mib=256),
        Shape("512KiB", buffers=8, item=4096, pages=16, chunks=2, rooms=1000, pool_mib=256),
        Shape("64MiB", buffers=64, item=16384, pages=64, chunks=4, rooms=40, pool_mib=2048),
    )
}
SMALL = Shape("small", buffers=1, item=4096, pages=1, chunks=1, rooms=4000, pool_mib=1)
"""What memory and idle engines are measured with: next to a large pool, a leak would not show."""


def shapes(names: Iterable[str]) -> tuple[Shape, ...]:
    """The shapes of these names, all where none is given. Raises InvalidArgument for a name that is none."""
    chosen = tuple(names) or tuple(SHAPES)
    for name in chosen:
        if name not in SHAPES:
            raise InvalidArgument("room", name, f"the sizes are {', '.join(SHAPES)}")
    return tuple(SHAPES[name] for name in dict.fromkeys(chosen))


class Pool:
    """The memory of one side. `fill`: written with a value per page that `landed` recognises; else zero."""

    def __init__(self, shape: Shape, *, fill: bool) -> None:
        self.shape = shape
        self.aux_at = shape.buffers * shape.pool_pages * shape.item
        self.memory: Bytes = np.empty(self.aux_at + AUX_SLOTS * AUX_BYTES, dtype=np.uint8)
        self.kv: list[Bytes] = [
            self.memory[at : at + self.aux_at // shape.buffers].reshape(shape.pool_pages, shape.item)
            for at in range(0, self.aux_at, self.aux_at // shape.buffers)
        ]
        self.aux: Bytes = self.memory[self.aux_at :].reshape(AUX_SLOTS, AUX_BYTES)
        order = np.random.default_rng(_SEED).permutation(shape.pool_pages).astype(np.int32)
        self.groups: Pages = order.reshape(shape.groups, shape.pages)
        # Every page is touched here, so that no run pays for the system's first look at it.
        if fill:
            for buffer in range(shape.buffers):
                self._words(buffer)[:] = self._pattern(buffer, np.arange(shape.pool_pages))
            self.aux[:] = np.arange(1, AUX_BYTES + 1, dtype=np.uint8)
        else:
            self.memory[:] = 0

    def group(self, room: int) -> Pages:
        """The pages of the room with this number, on both sides: first in, first out."""
        pages: Pages = self.groups[room % len(self.groups)]
        return pages

    def wipe(self, room: int, aux_index: int) -> None:
        """Forget what landed in the pages of this room."""
        for buffer in self.kv:
            buffer[self.group(room)] = 0
        self.aux[aux_index] = 0

    def landed(self, room: int, aux_index: int) -> bool:
        """Does the pool hold what a filled pool sends for this room?"""
        pages = self.group(room)
        kv = all(
            np.array_equal(self._words(buffer)[pages], self._pattern(buffer, pages.astype(np.int64)))
            for buffer in range(self.shape.buffers)
        )
        return kv and np.array_equal(self.aux[aux_index], np.arange(1, AUX_BYTES + 1, dtype=np.uint8))

    def _words(self, buffer: int) -> npt.NDArray[np.uint64]:
        return self.kv[buffer].view(np.uint64)

    def _pattern(self, buffer: int, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        numbers: npt.NDArray[np.uint64] = (pages + (buffer * self.shape.pool_pages + 1)).astype(np.uint64)
        first = numbers * np.uint64(_STEP)
        words: npt.NDArray[np.uint64] = np.add(first[:, None], np.arange(self.shape.item // 8, dtype=np.uint64))
        return words
