"""Small layouts for the tests of who sends what, and of the plans between two ranks."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from kvrooms.protocol.grids import Side
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Rank, Region, Regions, Shard
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.shares import Entry, Share


def heads(first: int, units: int, total: int = 4, size: int = 8, rows: int = 4, **change: Any) -> BufferSpec:
    """A buffer of layer 0 with some of the model's heads, token after token."""
    shard = Shard(0, rows, units * size, units, size, size, first, total)
    return msgspec.structs.replace(BufferSpec(0, "k", rows * units * size, "uint8", (shard,)), **change)


def rank(
    *kv: BufferSpec, page: int = 4, aux: tuple[str, ...] = (), state: Any = (), cp: tuple[int, int] = (0, 1)
) -> Rank:
    """A rank with these buffers."""
    return Rank(Layout(page, kv, tuple(AuxSpec(name, 8, "int64") for name in aux), tuple(state)), *cp)


def swa(kind: str = "swa", owed: Owed = Owed.WHEN_INDEXED, layer: int = 1, rows: int = 1) -> ComponentSpec:
    """A state component of one buffer."""
    return ComponentSpec("s", kind, owed, (heads(0, 4, rows=rows, layer=layer),))


FAR = 2**63 + 1
"""Addresses that neither a float nor a signed number can hold."""


def side(layout: Layout, base: int = FAR, items: int = 4) -> Side:
    """Every buffer 64 KiB behind the one before it."""
    ends = iter(range(base, base + 2**24, 2**16))
    kv = tuple(Region(next(ends), items) for _ in layout.kv)
    aux = tuple(Region(next(ends), items) for _ in layout.aux)
    return Side(
        layout, Regions(kv, aux, tuple(tuple(Region(next(ends), items) for _ in c.buffers) for c in layout.state))
    )


def share(*entries: Entry) -> Share:
    """What the one sending rank owes the one receiving rank."""
    return Share(1, 1, 0, entries)


def kv(buffer: int, first: int, stop: int, target: int | None = None) -> Entry:
    """Some units of a buffer of pages, which has the same number on both sides unless told."""
    return Entry(PartKind.KV, "", buffer, buffer if target is None else target, 0, first, stop)


@st.composite
def specs(draw: st.DrawFn, unit_bytes: int, rows: int, scale: int, apart: bool) -> BufferSpec:
    """A buffer with units 1 and 2 of six at least, close together or apart."""
    first = draw(st.integers(0, 1))
    units = draw(st.integers(3, 6)) - first
    stride = unit_bytes + apart * 3 * scale
    row = stride * units + draw(st.sampled_from((0, 0, 5))) * scale
    shard = Shard(draw(st.integers(0, 4)) * scale, rows, row, units, stride, unit_bytes, first, 6)
    return BufferSpec(0, "k", shard.end + draw(st.integers(0, 4)) * scale, "uint8", (shard,))


@st.composite
def cases(draw: st.DrawFn, scale: int = 1) -> tuple[Side, Side, list[Entry]]:
    """Two ranks with the same few buffers, and what is sent: some units of each that both have.

    scale: what divides all lengths.
    """
    pages = draw(st.sampled_from(((2, 2), (4, 2), (2, 4), (4, 6), (1, 3))))
    apart = draw(st.booleans()), draw(st.booleans())
    sides: tuple[list[BufferSpec], list[BufferSpec]] = [], []
    entries = []
    for layer in range(draw(st.integers(1, 3))):
        unit_bytes = draw(st.integers(1, 4)) * scale
        both = [draw(specs(unit_bytes, rows, scale, some)) for rows, some in zip(pages, apart, strict=True)]
        for specs_of_side, spec in zip(sides, both, strict=True):
            specs_of_side.append(msgspec.structs.replace(spec, layer=layer))
        low = max(spec.parts[0].first for spec in both)
        high = min(spec.parts[0].first + spec.parts[0].units for spec in both)
        cut = draw(st.integers(low, high - 1))
        entries += [kv(layer, cut, high)] if cut == low else [kv(layer, cut, high), kv(layer, low, cut)]
    ours, theirs = (Layout(page, tuple(some), (), ()) for page, some in zip(pages, sides, strict=True))
    return side(ours), side(theirs, 2**33 + 5), draw(st.permutations(entries))
