"""Memory of a `Shape` for one rank of kvrooms: arrays, as an engine takes them, and where they stand in whole items.

With several ranks a page is split as heads are: in each row (a token) of each of its parts (K or V of a layer) each
rank has a run of cells. State is split likewise, an aux slot is whole on every rank. A page of prefill that is several
of decode's (`Shape.split`) has so many times their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...protocol.layout import Instance, Rank, Shard
from ...protocol.memory import Buffer, Component, Memory
from .subject import Item, Shape, Side, Unsupported

Bytes = npt.NDArray[np.uint8]
LAYERS = 2
_ROWS = 16
_UNITS = 4


class _Cut:
    """How whole items are cut. rows: in each of them this rank has `count` units from `first` on. Of one rank: all."""

    def __init__(self, length: int, rows: int, rank: int, ranks: int) -> None:
        if length % (rows * _UNITS) or _UNITS % ranks:
            raise Unsupported(f"{length} bytes are not {rows} rows of {_UNITS} cells for {ranks} ranks")
        self.rows, self.cell = rows, length // (rows * _UNITS)
        self.count = _UNITS // ranks
        self.first = rank * self.count
        self.run = self.count * self.cell

    @property
    def shard(self) -> Shard:
        """As a layout says it."""
        return Shard(0, self.rows, self.run, self.count, self.cell, self.cell, self.first, _UNITS)

    def parts(self, array: Bytes, base: int, rows: range) -> Iterator[tuple[int, Bytes]]:
        """Each run of these rows of this rank's item, and where it stands in the whole one, if they begin at `base`."""
        for number, row in enumerate(rows):
            mine = row * self.run
            yield base + (number * _UNITS + self.first) * self.cell, array[mine : mine + self.run]


class Pool:
    """A rank's memory. make: an array of so many bytes for everything; where it lies is the caller's business."""

    def __init__(self, shape: Shape, side: Side, make: Callable[[int], Bytes], rank: int = 0) -> None:
        self.shape = shape
        prefill, ranks = side == "prefill", shape.ranks_of(side)
        self._pieces = shape.split if prefill else 1
        self._rows, self._layers = _ROWS * self._pieces, shape.layers or LAYERS
        pages = shape.prefill_pages if prefill else shape.decode_pages
        slots = shape.prefill_aux_slots if prefill else shape.decode_aux_slots
        items = [one.prefill_items if prefill else one.decode_items for one in shape.state]
        count = 2 * self._layers
        length = shape.page_bytes_of(side) // count
        self._page = None if shape.alike or not length else _Cut(length, self._rows, rank, ranks)
        self._state_cuts = [None if shape.alike else _Cut(one.item_bytes, 1, rank, ranks) for one in shape.state]
        kv = length if self._page is None else self._page.run * self._rows
        sizes = [(pages, kv)] * (count if length else 0) + [(slots, shape.aux_bytes)]
        for some, one, cut in zip(items, shape.state, self._state_cuts, strict=True):
            sizes.append((some, one.item_bytes if cut is None else cut.run))
        self._part = length // self._pieces
        arrays = _arrays(make, sizes)
        self._kv = arrays[: count if length else 0]
        self._aux, *self._state = arrays[len(self._kv) :]

    def memory(self) -> Memory:
        """As an engine takes it."""
        kv = [Buffer(n // 2, "kv"[n % 2], array, _shards(self._page)) for n, array in enumerate(self._kv)]
        state = []
        for number, (one, array) in enumerate(zip(self.shape.state, self._state, strict=True)):
            buffer = Buffer(self._layers + number, "s", array, _shards(self._state_cuts[number]))
            state.append(Component(one.name, "conformance", one.owed, [buffer]))
        return Memory(page_size=self._rows, kv=kv, aux={"aux": self._aux}, state=state)

    def fill(self, item: Item, data: bytes) -> None:
        """Write what this rank has of a whole item."""
        whole = np.frombuffer(data, np.uint8)
        for at, part in self.parts(item):
            part[:] = whole[at : at + len(part)]

    def read(self, item: Item) -> bytes:
        """What this rank has of an item."""
        return b"".join(part.tobytes() for _, part in self.parts(item))

    def parts(self, item: Item) -> Iterator[tuple[int, Bytes]]:
        """What this rank has of an item, and where in the whole item it stands."""
        if item.kind == "aux":
            yield 0, self._aux[item.index]
        elif item.kind == "state":
            yield from _parts(self._state[item.component][item.index], self._state_cuts[item.component], 0, range(1))
        else:
            each = self._rows // self._pieces
            for piece in range(self._pieces):
                for number, array in enumerate(self._kv):
                    base = (piece * len(self._kv) + number) * self._part
                    yield from _parts(array[item.index], self._page, base, range(piece * each, (piece + 1) * each))


def _shards(cut: _Cut | None) -> tuple[Shard, ...]:
    return () if cut is None else (cut.shard,)


def _parts(array: Bytes, cut: _Cut | None, base: int, rows: range) -> Iterator[tuple[int, Bytes]]:
    if cut is None:
        yield base, array
    else:
        yield from cut.parts(array, base, rows)


def _arrays(make: Callable[[int], Bytes], sizes: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Arrays of so many items of so many bytes, one behind the other."""
    arena, at, arrays = make(sum(count * length for count, length in sizes)), 0, []
    for count, length in sizes:
        arrays.append(arena[at : at + count * length].reshape(count, length))
        at += count * length
    return arrays


def whole(pools: Sequence[Pool], item: Item) -> bytes:
    """An item as all ranks of a side have it together. What several of them have must be the same on each: otherwise
    there are more bytes than an item has, and they are nobody's."""
    if len(pools) == 1:
        return pools[0].read(item)
    found: dict[int, bytes] = {}
    strange = b""
    for pool in pools:
        for at, part in pool.parts(item):
            data = part.tobytes()
            strange += data if found.setdefault(at, data) != data else b""
    return b"".join(found[at] for at in sorted(found)) + strange


def blank(shape: Shape, side: Side, rank: int = 0) -> Pool:
    """Memory of this process."""
    return Pool(shape, side, lambda size: np.zeros(size, np.uint8), rank)


def size_of(shape: Shape, side: Side, rank: int = 0) -> int:
    """How many bytes `make` is asked for."""
    sizes: list[int] = []

    def make(size: int) -> Bytes:
        sizes.append(size)
        return np.zeros(size, np.uint8)

    Pool(shape, side, make, rank)
    return sizes[0]


def instance_of(shape: Shape, side: Side, number: int) -> Instance | None:
    """All ranks of a side, as each of them is told; None where both sides have one only, with the same memory."""
    if shape.alike:
        return None
    layouts = [blank(shape, side, rank).memory().layout for rank in range(shape.ranks_of(side))]
    return Instance(tuple(Rank(layout) for layout in layouts), number)
