"""Every cell that a rank has of a room, one by one: its global name, and where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .rooms import Places
from .truth import Cell
from .views import BufferView, LayoutView, ShardView


@dataclass(frozen=True)
class Whole:
    """The one shard of a buffer that lists none: a single cell, which is the whole item."""

    unit_bytes: int
    offset: int = 0
    rows: int = 1
    row_stride: int = 0
    units: int = 1
    unit_stride: int = 0
    first: int = 0
    total: int = 1


class Spot(NamedTuple):
    """A cell of a room in a rank's memory: `offset` from the first byte of buffer number `buffer`.

    Buffers are numbered as a layout lists them: KV, aux, then each component's.
    """

    buffer: int
    offset: int
    length: int
    cell: Cell


class Where(NamedTuple):
    """A buffer of a layout: what it is part of, what it is called, the bytes of an item."""

    part: str
    words: str
    item_length: int


def buffers_of(layout: LayoutView) -> list[Where]:
    """The buffers of a rank in the order of its layout."""
    found = [Where("kv", f"kv layer {b.layer} {b.role}", b.item_length) for b in layout.kv]
    found += [Where(f"aux/{a.name}", f"aux {a.name}", a.item_length) for a in layout.aux]
    for component in layout.state:
        part = f"state/{component.name}"
        found += [
            Where(part, f"state {component.name} layer {b.layer} {b.role}", b.item_length) for b in component.buffers
        ]
    return found


def shards_of(buffer: BufferView) -> Sequence[ShardView]:
    """The shards of a buffer, spelled out."""
    return buffer.shards or (Whole(buffer.item_length),)


def place_in_item(shard: ShardView, row: int, unit: int) -> int:
    """From the first byte of an item to a cell of it."""
    return shard.offset + row * shard.row_stride + unit * shard.unit_stride


def spots(layout: LayoutView, table: Mapping[int, int], places: Places) -> Iterator[Spot]:
    """Every cell of a room on a rank; `table` gives the page of each position that the rank has."""
    number = 0
    for buffer in layout.kv:
        yield from _kv(number, buffer, layout.page_size, table)
        number += 1
    for aux in layout.aux:
        if places.aux_slot is not None:
            yield Spot(
                number, places.aux_slot * aux.item_length, aux.item_length, Cell(f"aux/{aux.name}", 0, "", 0, 0, 0, 0)
            )
        number += 1
    for component in layout.state:
        for buffer in component.buffers:
            yield from _state(number, buffer, component.name, places.indices(component.name))
            number += 1


def _kv(number: int, buffer: BufferView, page_size: int, table: Mapping[int, int]) -> Iterator[Spot]:
    for which, shard in enumerate(shards_of(buffer)):
        if shard.rows not in (1, page_size):
            raise ValueError(f"layer {buffer.layer} {buffer.role}: {shard.rows} rows in pages of {page_size} tokens")
        for position, page in table.items():
            for row in range(shard.rows):
                token = position * page_size + row
                for unit in range(shard.units):
                    offset = page * buffer.item_length + place_in_item(shard, row, unit)
                    cell = Cell("kv", buffer.layer, buffer.role, which, shard.first + unit, token, 0)
                    yield Spot(number, offset, shard.unit_bytes, cell)


def _state(number: int, buffer: BufferView, component: str, indices: Sequence[int]) -> Iterator[Spot]:
    for which, shard in enumerate(shards_of(buffer)):
        for place, index in enumerate(indices):
            for row in range(shard.rows):
                for unit in range(shard.units):
                    offset = index * buffer.item_length + place_in_item(shard, row, unit)
                    cell = Cell(f"state/{component}", buffer.layer, buffer.role, which, shard.first + unit, place, row)
                    yield Spot(number, offset, shard.unit_bytes, cell)
