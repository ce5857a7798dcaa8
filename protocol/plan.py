"""Transfer plans: from page and slot indices to the descriptors of bounded pieces.

Every side numbers its items in *descriptor lists*, one per kind of memory (host, device): buffer after buffer, item
after item. The lists are prepared once per peer; a piece then only picks indices. Where consecutive positions lie in
consecutive items on both sides, they are merged and the piece carries addresses instead.

A piece is at most `piece_bytes` long (but at least one item), because the sender checks its lease before each piece.
A position whose buffers do not fit into one piece together is split by buffers; only its last piece says that the
position has landed, and it is posted after the others have settled, because nothing orders two writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .layout import Layout, Region, Regions
from .manifest import Indices
from .notify import PARTS_MAX, Part, PartKind

Descriptors = npt.NDArray[np.uint64]
MERGE_MIN = 4
"""Pieces carry addresses when merging leaves at most one descriptor per so many items."""


class PartTable(NamedTuple):
    """The buffers of one part: KV, aux, or one state component."""

    memory: str
    device: int
    lengths: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.uint64]
    bases: Indices
    item_bytes: int


class DescriptorTable:
    """Where every item of one side's memory stands in its descriptor lists.

    lists: per kind of memory an array of shape [descriptors, 3] (address, length, device), in the order of the bases.
    """

    def __init__(self, layout: Layout, regions: Regions) -> None:
        self._layout = layout
        self._regions = regions
        self._next: dict[str, int] = {}
        self.kv = self._part(regions.kv, [spec.item_length for spec in layout.kv])
        self.aux = self._part(regions.aux, [spec.item_length for spec in layout.aux])
        self.state = tuple(
            self._part(group, [spec.item_length for spec in component.buffers])
            for component, group in zip(layout.state, regions.state, strict=True)
        )

    def _part(self, regions: tuple[Region, ...], lengths: list[int]) -> PartTable:
        bases: list[int] = []
        memory, device = (regions[0].memory, regions[0].device) if regions else ("DRAM", 0)
        for region in regions:
            bases.append(self._next.get(memory, 0))
            self._next[memory] = bases[-1] + region.items
        return PartTable(
            memory=memory,
            device=device,
            lengths=np.array(lengths, dtype=np.int64),
            addresses=np.array([region.address for region in regions], dtype=np.uint64),
            bases=np.array(bases, dtype=np.int32),
            item_bytes=sum(lengths),
        )

    def lists(self) -> dict[str, Descriptors]:
        """The descriptor lists by kind of memory. Made on demand: they are large and needed once."""
        rows: dict[str, list[Descriptors]] = {}
        parts = [(self.kv, self._regions.kv), (self.aux, self._regions.aux)]
        parts += list(zip(self.state, self._regions.state, strict=True))
        for part, regions in parts:
            for region, length in zip(regions, part.lengths, strict=True):
                block = np.empty((region.items, 3), dtype=np.uint64)
                block[:, 0] = np.uint64(region.address) + np.arange(region.items, dtype=np.uint64) * np.uint64(length)
                block[:, 1] = length
                block[:, 2] = region.device
                rows.setdefault(part.memory, []).append(block)
        return {memory: np.concatenate(blocks) for memory, blocks in rows.items()}

    def part(self, kind: PartKind, component: int) -> PartTable:
        """The table of a part; `component` counts within the layout."""
        match kind:
            case PartKind.KV:
                return self.kv
            case PartKind.AUX:
                return self.aux
            case PartKind.STATE:  # pragma: no branch
                return self.state[component]


class Transfer(NamedTuple):
    """Positions [first, first + n) of a part: the items they have on the source and on the destination.

    component counts within the manifest, layout_component within the layout. source and destination have n items.
    """

    kind: PartKind
    component: int
    layout_component: int
    first: int
    source: Indices
    destination: Indices


class Piece(NamedTuple):
    """One bounded write. `parts` is what its notification reports (nothing for a split position but the last).

    source_memory, destination_memory: which lists it picks from. Either indices into the prepared lists (int32, equally
    long), or, where merging pays, descriptors of shape [n, 3] on both sides. `ordered`: post it after every earlier
    piece of the grant has settled.
    """

    parts: tuple[Part, ...]
    source_memory: str
    destination_memory: str
    source_indices: Indices
    destination_indices: Indices
    source_descriptors: Descriptors | None
    destination_descriptors: Descriptors | None
    bytes: int
    ordered: bool = False


class _Slice(NamedTuple):
    """Some positions of a part, with the buffers of it that a piece covers."""

    source_part: PartTable
    destination_part: PartTable
    source: Indices
    destination: Indices
    report: Part | None
    bytes: int
    buffers: slice = slice(None)
    ordered: bool = False


def pieces(
    source: DescriptorTable, destination: DescriptorTable, transfers: list[Transfer], piece_bytes: int
) -> Iterator[Piece]:
    """The pieces of some transfers, in order, made one at a time. Small parts share a piece."""
    pending: list[_Slice] = []
    room = piece_bytes
    for transfer in transfers:
        for part in _slices(source, destination, transfer, piece_bytes):
            alone = part.report is None or part.ordered
            full = part.bytes > room or len(pending) == PARTS_MAX
            if pending and (alone or full or not _same_lists(pending[0], part)):
                yield _piece(pending)
                pending, room = [], piece_bytes
            pending.append(part)
            room -= part.bytes
            if alone:
                yield _piece(pending)
                pending, room = [], piece_bytes
    if pending:
        yield _piece(pending)


def _same_lists(a: _Slice, b: _Slice) -> bool:
    return (
        a.source_part.memory == b.source_part.memory and a.destination_part.memory == b.destination_part.memory
    )  # fmt: skip


def _slices(
    source: DescriptorTable, destination: DescriptorTable, transfer: Transfer, piece_bytes: int
) -> Iterator[_Slice]:
    """A transfer cut into runs of positions that fit a piece; a position that does not fit is cut by buffers."""
    kind, component, layout_component, first, items, targets = transfer
    from_part, to_part = source.part(kind, layout_component), destination.part(kind, layout_component)
    step = piece_bytes // max(from_part.item_bytes, 1)  # no buffers, no items: nothing below is reached
    for at in range(0, len(items), step or 1):
        some, where = items[at : at + (step or 1)], targets[at : at + (step or 1)]
        report = Part(kind, component, first + at, len(some))
        if step:
            yield _Slice(from_part, to_part, some, where, report, from_part.item_bytes * len(some))
            continue
        cuts = _cuts(from_part.lengths, piece_bytes)
        for start, stop in cuts:
            last = stop == len(from_part.lengths)
            size = int(from_part.lengths[start:stop].sum())
            buffers, split = slice(start, stop), len(cuts) > 1
            yield _Slice(
                from_part, to_part, some, where, report if last else None, size, buffers, ordered=last and split
            )


def _cuts(lengths: npt.NDArray[np.int64], piece_bytes: int) -> list[tuple[int, int]]:
    """Runs of buffers whose items fit a piece together; a single item may be longer than that."""
    cuts: list[tuple[int, int]] = []
    start, size = 0, 0
    for i, length in enumerate(lengths.tolist()):
        if i > start and size + length > piece_bytes:
            cuts.append((start, i))
            start, size = i, 0
        size += length
    return [*cuts, (start, len(lengths))]


def _piece(slices: list[_Slice]) -> Piece:
    first = slices[0]
    rows = _merged(slices)
    source_rows, destination_rows = rows or (None, None)
    if rows:
        ours = theirs = first.source[:0]
    elif len(slices) == 1:
        ours, theirs = _indices(first)
    else:
        pairs = [_indices(part) for part in slices]
        ours, theirs = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])
    return Piece(
        parts=tuple(part.report for part in slices if part.report is not None),
        source_memory=first.source_part.memory,
        destination_memory=first.destination_part.memory,
        source_indices=ours,
        destination_indices=theirs,
        source_descriptors=source_rows,
        destination_descriptors=destination_rows,
        bytes=sum(part.bytes for part in slices),
        ordered=first.ordered,
    )


def _indices(part: _Slice) -> tuple[Indices, Indices]:
    ours = part.source_part.bases[part.buffers, None] + part.source
    theirs = part.destination_part.bases[part.buffers, None] + part.destination
    return ours.ravel(), theirs.ravel()


def _merged(slices: list[_Slice]) -> tuple[Descriptors, Descriptors] | None:
    """Descriptors of merged runs, if merging leaves few enough of them; None otherwise."""
    items = sum(len(part.source) for part in slices)
    if items < MERGE_MIN:
        return None
    starts = [_run_starts(part.source, part.destination) for part in slices]
    if sum(map(len, starts)) * MERGE_MIN > items:
        return None
    ours, theirs = [], []
    for part, at in zip(slices, starts, strict=True):
        counts = np.diff(at, append=len(part.source)).astype(np.uint64)
        ours.append(_rows(part.source_part, part.buffers, part.source[at], counts))
        theirs.append(_rows(part.destination_part, part.buffers, part.destination[at], counts))
    return np.concatenate(ours), np.concatenate(theirs)


def _run_starts(source: Indices, destination: Indices) -> npt.NDArray[np.intp]:
    """Where runs start that are consecutive on both sides."""
    breaks = (np.diff(source) != 1) | (np.diff(destination) != 1)
    return np.concatenate(([0], np.flatnonzero(breaks) + 1))


def _rows(part: PartTable, buffers: slice, first: Indices, counts: npt.NDArray[np.uint64]) -> Descriptors:
    """One row (address, length, device) per buffer and run."""
    lengths = part.lengths[buffers, None].astype(np.uint64)
    rows = np.empty((lengths.shape[0], len(first), 3), dtype=np.uint64)
    rows[:, :, 0] = part.addresses[buffers, None] + first.astype(np.uint64) * lengths
    rows[:, :, 1] = counts * lengths
    rows[:, :, 2] = part.device
    return rows.reshape(-1, 3)
