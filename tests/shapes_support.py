"""Layouts that look like the product's to the oracle of the shapes, which reads attributes only."""

from __future__ import annotations

from typing import NamedTuple

from kvrooms.shapes.rooms import Places


class Shard(NamedTuple):
    offset: int
    rows: int
    row_stride: int
    units: int
    unit_stride: int
    unit_bytes: int
    first: int
    total: int


class Buffer(NamedTuple):
    layer: int
    role: str
    item_length: int
    dtype: str = "uint8"
    shards: tuple[Shard, ...] = ()


class Aux(NamedTuple):
    name: str
    item_length: int
    dtype: str = "int32"


class Component(NamedTuple):
    name: str
    buffers: tuple[Buffer, ...]


class Layout(NamedTuple):
    page_size: int
    kv: tuple[Buffer, ...] = ()
    aux: tuple[Aux, ...] = ()
    state: tuple[Component, ...] = ()


class Rank(NamedTuple):
    layout: Layout
    cp_rank: int = 0
    cp_size: int = 1


class Instance(NamedTuple):
    ranks: tuple[Rank, ...]


def instance(*layouts: Layout) -> Instance:
    return Instance(tuple(Rank(layout) for layout in layouts))


def heads(first: int, units: int, total: int, page: int = 2, width: int = 2, padding: int = 0) -> Buffer:
    """Pages of `page` tokens, each with `units` of `total` heads of `width` bytes."""
    shard = Shard(0, page, units * width, units, width, width, first, total)
    return Buffer(0, "k", page * units * width + padding, "uint8", (shard,))


def pages_of(*tables: tuple[int, ...]) -> tuple[Places, ...]:
    return tuple(Places(table) for table in tables)


def conv(first_x: int, x: int, first_b: int, b: int, gap: int = 0) -> Buffer:
    """Two rows of `x` channels of two and `b` of one: total 4 and 2, two bytes and one."""
    row = 2 * x + b + gap
    return Buffer(
        3, "conv", 2 * row, "uint8", (Shard(0, 2, row, x, 2, 2, first_x, 4), Shard(2 * x, 2, row, b, 1, 1, first_b, 2))
    )
