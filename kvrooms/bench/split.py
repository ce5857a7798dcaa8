"""Rooms between one rank and several: how their memory is cut, by heads or by layers.

A rank's pool is one allocation, which two engines share. They differ in what the lone rank's pool holds: all heads of
each layer, so that each token's row is cut ("heads"), or as many layers as all other ranks have together, each with as
many heads as they have ("layers"). So the other ranks hold the same in both, and the same bytes move between the same
processes; but by layers every page is whole on both sides, as between equal TP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..protocol.layout import AuxSpec, BufferSpec, Instance, Layout, Rank, Shard
from ..protocol.memory import Buffer, Memory
from .shapes import AUX_BYTES, AUX_SLOTS, Bytes, Pages

PAGE_TOKENS = 16
CUTS = ("heads", "layers")
_SEED = 7
_STEP = 0x9E37_79B9_7F4A_7C15
_RANK_APART = 2**40
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Split:
    """Rooms between `prefill` and `decode` ranks; one of the two is 1.

    slice: bytes of one token's heads of one buffer on a rank of the larger side; the lone rank has all heads. pages: of
    a room, sent in so many equal `chunks`; the pools have pages for `groups` rooms.
    """

    prefill: int
    decode: int
    slice: int
    pages: int
    chunks: int = 4
    groups: int = 16
    buffers: int = 64

    @property
    def many(self) -> int:
        """How many ranks the larger side has."""
        return max(self.prefill, self.decode)

    @property
    def size(self) -> int:
        """Bytes of pages in a room, over all ranks."""
        return self.pages * self.buffers * PAGE_TOKENS * self.slice * self.many

    @property
    def pool_pages(self) -> int:
        """Pages of a pool."""
        return self.groups * self.pages

    def ranks(self, side: str) -> int:
        """How many ranks a side has."""
        return self.prefill if side == "prefill" else self.decode

    def shape(self, side: str, cut: str) -> tuple[int, int]:
        """How many buffers a rank has, and units of `slice` bytes in a row."""
        more = self.many // self.ranks(side)
        return (self.buffers * more, 1) if cut == "layers" else (self.buffers, more)

    def layout(self, side: str, cut: str, rank: int) -> Layout:
        """What a rank has."""
        buffers, units = self.shape(side, cut)
        first_buffer, first, total = (rank * buffers, 0, 1) if cut == "layers" else (0, rank * units, self.many)
        row = units * self.slice
        heads = Shard(0, PAGE_TOKENS, row, units, self.slice, self.slice, first, total)
        kv = tuple(
            BufferSpec(number // 2, "kv"[number % 2], PAGE_TOKENS * row, "uint8", (heads,))
            for number in range(first_buffer, first_buffer + buffers)
        )
        return Layout(PAGE_TOKENS, kv, (AuxSpec("answer", AUX_BYTES, "uint8"),), ())

    def instance(self, side: str, cut: str) -> Instance:
        """All ranks of a side."""
        return Instance(tuple(Rank(self.layout(side, cut, rank)) for rank in range(self.ranks(side))), 1)


def split_of(prefill: int, decode: int, slice_bytes: int, room_mib: int = 64) -> Split:
    """Rooms of `room_mib` MiB in 64 buffers."""
    page = 64 * PAGE_TOKENS * slice_bytes * max(prefill, decode)
    return Split(prefill, decode, slice_bytes, room_mib * 2**20 // page)


class RankPool:
    """The memory of one rank; that of a prefill rank is written with values that decode ranks recognise."""

    def __init__(self, split: Split, side: str, rank: int) -> None:
        self.shape = self.split = split
        self.side = side
        self.rank = rank
        buffers, units = split.shape(side, "heads")
        words = buffers * split.pool_pages * PAGE_TOKENS * units * split.slice // 8
        self._words: Words = np.zeros(words, dtype=np.uint64)
        self.aux: Bytes = np.zeros((AUX_SLOTS, AUX_BYTES), dtype=np.uint8)
        order = np.random.default_rng(_SEED).permutation(split.pool_pages).astype(np.int32)
        self._groups: Pages = order.reshape(split.groups, split.pages)
        if side == "prefill":
            self._words[:] = _pattern(rank, np.arange(words, dtype=np.uint64))
            self.aux[:] = np.arange(1, AUX_BYTES + 1, dtype=np.uint8)
        else:
            self._words[:] = 1  # touches every page of it, so that no run pays for that

    def memory(self, cut: str) -> Memory:
        """The pool as an engine sees it."""
        layout = self.split.layout(self.side, cut, self.rank)
        arrays = self._buffers(cut).view(np.uint8).reshape(len(layout.kv), self.split.pool_pages, -1)
        kv = [Buffer(spec.layer, spec.role, array) for spec, array in zip(layout.kv, arrays, strict=True)]
        memory = Memory(PAGE_TOKENS, kv, {"answer": self.aux})
        memory.layout = layout
        return memory

    def group(self, room: int) -> Pages:
        """The pages of the room with this number, the same on all ranks."""
        pages: Pages = self._groups[room % len(self._groups)]
        return pages

    def wipe(self, cut: str, room: int) -> None:
        """Forget what landed in the pages of this room."""
        for buffer in self._buffers(cut):
            buffer[self.group(room)] = 0
        self.aux[room % AUX_SLOTS] = 0

    def landed(self, cut: str, room: int) -> bool:
        """Is everything of this room what the prefill ranks have for it?"""
        pages = self.group(room)
        kv = all(np.array_equal(ours, theirs) for ours, theirs in self._pairs(cut, pages))
        return kv and np.array_equal(self.aux[room % AUX_SLOTS], np.arange(1, AUX_BYTES + 1, dtype=np.uint8))

    def _buffers(self, cut: str) -> Words:
        buffers, units = self.split.shape(self.side, cut)
        return self._words.reshape(buffers, self.split.pool_pages, PAGE_TOKENS, units, self.split.slice // 8)

    def _pairs(self, cut: str, pages: Pages) -> Iterator[tuple[Words, Words]]:
        """These pages of our buffers in parts, each with what a prefill rank has for it."""
        alone, each = self.split.decode == 1, self.split.buffers
        for number, whole in enumerate(self._buffers(cut)):
            buffer = whole[pages]
            if cut == "heads" and alone:
                for rank in range(self.split.many):
                    yield buffer[:, :, rank], self._sent(cut, rank, number, pages)[:, :, 0]
            elif cut == "heads":
                yield buffer[:, :, 0], self._sent(cut, 0, number, pages)[:, :, self.rank]
            elif alone:
                yield buffer, self._sent(cut, number // each, number % each, pages)
            else:
                yield buffer, self._sent(cut, 0, self.rank * each + number, pages)

    def _sent(self, cut: str, rank: int, buffer: int, pages: Pages) -> Words:
        """What a prefill rank has in these pages of one of its buffers."""
        _, units = self.split.shape("prefill", cut)
        shape = (PAGE_TOKENS, units, self.split.slice // 8)
        page = int(np.prod(shape))
        first = buffer * self.split.pool_pages + pages.astype(np.uint64)
        inner = np.arange(page, dtype=np.uint64).reshape(shape)
        return _pattern(rank, first[:, None, None, None] * np.uint64(page) + inner)


def _pattern(rank: int, numbers: Words) -> Words:
    """The words with these numbers of a prefill rank's pool: all different, on all ranks."""
    words: Words = (numbers + np.uint64(1 + rank * _RANK_APART)) * np.uint64(_STEP)
    return words
