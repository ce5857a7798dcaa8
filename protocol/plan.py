"""Transfer plans: from page and slot indices to the descriptors of bounded pieces.

Every side numbers its items in *descriptor lists*, one per kind of memory (host, device): buffer after buffer, item
after item. The lists are prepared once per peer; a piece then only picks indices. Where consecutive positions lie in
consecutive items on both sides, they are merged and the piece carries addresses instead.

A piece is at most `piece_bytes` long (but at least one item), because the sender checks its lease before each piece.
Of many pieces only some report, each for itself and those since the last report: a notification costs as much as a
write. Such a piece is posted after the others have settled, because nothing orders two writes. The same goes for a
position whose buffers do not fit one piece: it is split by buffers, and its last piece reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import WireError
from .layout import Layout, Region, Regions
from .manifest import Indices
from .notify import PARTS_MAX, Part, PartKind
from .packing import Packed

Descriptors = npt.NDArray[np.uint64]
MERGE_MIN = 4
"""Pieces carry addresses when merging leaves at most one descriptor per so many items."""
REPORT_EVERY = 16
"""Of the pieces of a large part, one in so many reports."""
MERGE_FROM = 64
"""Smaller parts are not looked at: finding runs costs more than merging saves, and NIXL merges neighbours itself."""
_FEW = 16
"""So many items are looked at faster one by one."""
_KV, _AUX = PartKind.KV, PartKind.AUX  # every plan asks for them; see `statemachine.ledger`
_NO_INDICES: Indices = np.empty(0, dtype=np.int32)


class PartTable(NamedTuple):
    """The buffers of one part: KV, aux, or one state component. items: how many each of them has."""

    items: int
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
            items=min([region.items for region in regions], default=0),
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
        if kind is _KV:
            return self.kv
        return self.aux if kind is _AUX else self.state[component]


class Transfer(NamedTuple):
    """Positions [first, first + n) of a part: the items they have on the source and on the destination.

    component counts within the manifest, layout_component within the layout. source and destination have n items;
    between pages of different sizes, destination are the pages from position `target_first` of decode's on. buffers: of
    KV pages, which of the source's buffers are sent; None: all. report: whether the positions are whole with this.
    """

    kind: PartKind
    component: int
    layout_component: int
    first: int
    source: Indices
    destination: Indices
    target_first: int = 0
    buffers: tuple[int, ...] | None = None
    report: bool = True


class Staged(NamedTuple):
    """How a piece goes through a slot of ours. pack: what to gather there. direct: the same piece without it."""

    pack: Callable[[], Packed]
    direct: Callable[[], Piece]


class Landing(NamedTuple):
    """How a piece goes through a slot of the receiver: of each position of a part, buffers [first, stop) lie there."""

    part: Part
    first: int
    stop: int


class Piece(NamedTuple):
    """One bounded write. `parts` is what its notification reports, with `ordered` also of pieces before it; none: none.

    source_memory, destination_memory: which lists it picks from. Either indices into the prepared lists (int32, equally
    long), or, where merging pays, descriptors of shape [n, 3] on both sides. `ordered`: post it after every earlier
    piece of the grant has settled. `staged`: its source descriptors count from the first byte of a slot of ours;
    `landing`: its destination descriptors from that of a slot of the receiver.
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
    staged: Staged | None = None
    landing: Landing | None = None


class _Slice(NamedTuple):
    """Some positions of a part: what a small piece, or a share of one, is made of."""

    source_part: PartTable
    destination_part: PartTable
    source: Indices
    destination: Indices
    report: Part


def pieces(
    source: DescriptorTable, destination: DescriptorTable, transfers: list[Transfer], piece_bytes: int
) -> Iterator[Piece]:
    """The pieces of some transfers, in order, made one at a time. Small parts share a piece.

    Raises WireError, naming the item and its position, before a piece of a transfer that leaves the memory.
    """
    pending: list[_Slice] = []
    room = piece_bytes
    for transfer in transfers:
        kind, component, layout_component, first, items, targets, _, buffers, _ = transfer
        if not len(items):
            continue
        from_part, to_part = source.part(kind, layout_component), destination.part(kind, layout_component)
        check_items("source", transfer, items, from_part.items)
        check_items("destination", transfer, targets, to_part.items)
        if buffers is not None:
            if pending:
                yield _small(pending)
                pending, room = [], piece_bytes
            yield from _layered(_of(from_part, buffers), _of(to_part, buffers), transfer, piece_bytes)
            continue
        part = _Slice(from_part, to_part, items, targets, Part(kind, component, first, len(items)))
        size = from_part.item_bytes * len(items)
        full = size > room or len(pending) == PARTS_MAX  # a peer may ask for very many short intervals
        if pending and (full or not _same_lists(pending[0], part)):
            yield _small(pending)
            pending, room = [], piece_bytes
        if size > piece_bytes:
            yield from _large(part, piece_bytes)
        else:
            pending.append(part)
            room -= size
    if pending:
        yield _small(pending)


def check_items(side: str, transfer: Transfer, indices: npt.NDArray[np.signedinteger[Any]], items: int) -> None:
    """Whoever names an item has been checked before; nothing that a plan says may reach NIXL unchecked all the same.

    Raises WireError, naming the first item of these that the side does not have, and the part.
    """
    if not len(indices):
        return
    if len(indices) > _FEW:
        inside = int(indices.view(f"u{indices.itemsize}").max()) < items  # what is below 0 is beyond everything
    else:
        listed = indices.tolist()
        inside = min(listed) >= 0 and max(listed) < items
    if not inside:
        wrong = next(index for index in indices.tolist() if not 0 <= index < items)
        raise WireError(f"plan.{side}", f"{transfer.kind.name} item {wrong} of {items}")


def _of(part: PartTable, buffers: tuple[int, ...]) -> PartTable:
    """Some buffers of a part."""
    some = list(buffers)
    lengths = part.lengths[some]
    return part._replace(
        lengths=lengths, addresses=part.addresses[some], bases=part.bases[some], item_bytes=int(lengths.sum())
    )


def _layered(source: PartTable, destination: PartTable, transfer: Transfer, piece_bytes: int) -> Iterator[Piece]:
    """Positions of which only some buffers are sent. The last piece reports them if they are whole with it."""
    report = Part(transfer.kind, 0, transfer.first, len(transfer.source))
    some = _Slice(source, destination, transfer.source, transfer.destination, report)
    size = source.item_bytes * len(transfer.source)
    yield from reported_last(
        iter([_small([some])]) if size <= piece_bytes else _large(some, piece_bytes),
        (report,) if transfer.report else (),
    )


def reported_last(made: Iterator[Piece], parts: tuple[Part, ...]) -> Iterator[Piece]:
    """The pieces of positions that others have begun: none reports, but the last does, once all others have settled."""
    piece = next(made, None)
    while piece is not None:
        following = next(made, None)
        last = following is None
        yield piece._replace(parts=parts if last else (), ordered=last and bool(parts))
        piece = following


def _same_lists(a: _Slice, b: _Slice) -> bool:
    return (
        a.source_part.memory == b.source_part.memory and a.destination_part.memory == b.destination_part.memory
    )  # fmt: skip


def _large(part: _Slice, piece_bytes: int) -> Iterator[Piece]:
    """A part that needs several pieces. One piece in `REPORT_EVERY` reports, for itself and those since the last."""
    positions, item_bytes = len(part.source), part.source_part.item_bytes
    step = piece_bytes // item_bytes
    if not step:
        for at in range(positions):
            yield from _split(_cut(part, at, at + 1), piece_bytes)
        return
    if _merges([part]):
        for at in range(0, positions, step):
            yield _small([_cut(part, at, min(at + step, positions))])
        return
    # Item after item, so that a piece is a view of the whole and costs no arithmetic of its own.
    ours = (part.source[:, None] + part.source_part.bases).reshape(-1)
    theirs = (part.destination[:, None] + part.destination_part.bases).reshape(-1)
    buffers, since = len(part.source_part.bases), 0
    for number, at in enumerate(range(0, positions, step), start=1):
        stop = min(at + step, positions)
        reports = stop == positions or number % REPORT_EVERY == 0
        indices = slice(at * buffers, stop * buffers)
        parts = (part.report._replace(first=part.report.first + since, size=stop - since),) if reports else ()
        size = item_bytes * (stop - at)
        yield _indexed(part, parts, ours[indices], theirs[indices], size, ordered=reports and at > since)
        since = stop if reports else since


def _cut(part: _Slice, start: int, stop: int) -> _Slice:
    report = part.report._replace(first=part.report.first + start, size=stop - start)
    return part._replace(source=part.source[start:stop], destination=part.destination[start:stop], report=report)


def _split(part: _Slice, piece_bytes: int) -> Iterator[Piece]:
    """One position whose buffers do not fit a piece together: the last of its pieces reports it."""
    lengths = part.source_part.lengths
    cuts = _cuts(lengths, piece_bytes)
    for start, stop in cuts:
        last = stop == len(lengths)
        ours = part.source_part.bases[start:stop] + part.source
        theirs = part.destination_part.bases[start:stop] + part.destination
        size = int(lengths[start:stop].sum())
        yield _indexed(part, (part.report,) if last else (), ours, theirs, size, ordered=last and len(cuts) > 1)


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


def _indexed(
    part: _Slice, parts: tuple[Part, ...], ours: Indices, theirs: Indices, size: int, *, ordered: bool = False
) -> Piece:
    return Piece(parts, part.source_part.memory, part.destination_part.memory, ours, theirs, None, None, size, ordered)


def _small(slices: list[_Slice]) -> Piece:
    """One piece of whole parts."""
    first = slices[0]
    parts = tuple([part.report for part in slices])
    size = sum([part.source_part.item_bytes * len(part.source) for part in slices])
    if _merges(slices):
        return _indexed(first, parts, _NO_INDICES, _NO_INDICES, size)._replace(
            source_descriptors=np.concatenate([_rows(s.source_part, s.source, _runs(s)) for s in slices]),
            destination_descriptors=np.concatenate(
                [_rows(s.destination_part, s.destination, _runs(s)) for s in slices]
            ),
        )
    # Buffer after buffer: neighbouring pages of one buffer stay neighbours, and the transport may still merge them.
    ours = [_listed(part.source_part.bases, part.source) for part in slices]
    theirs = [_listed(part.destination_part.bases, part.destination) for part in slices]
    if len(slices) == 1:
        return _indexed(first, parts, ours[0], theirs[0], size)
    return _indexed(first, parts, np.concatenate(ours), np.concatenate(theirs), size)


def _listed(bases: Indices, items: Indices) -> Indices:
    """Where items stand in a descriptor list, buffer after buffer."""
    if len(bases) == 1:  # without the two steps that only reshape
        return bases + items
    return (bases[:, None] + items).reshape(-1)


def _merges(slices: list[_Slice]) -> bool:
    """Whether merging consecutive positions leaves few enough descriptors to be worth while."""
    items = sum([len(part.source) for part in slices])
    return items >= MERGE_FROM and sum(len(_runs(part)) for part in slices) * MERGE_MIN <= items


def _runs(part: _Slice) -> npt.NDArray[np.intp]:
    """Where runs start that are consecutive on both sides."""
    breaks = (np.diff(part.source) != 1) | (np.diff(part.destination) != 1)
    return np.concatenate(([0], np.flatnonzero(breaks) + 1))


def _rows(part: PartTable, items: Indices, runs: npt.NDArray[np.intp]) -> Descriptors:
    """One row (address, length, device) per buffer and run."""
    counts = np.diff(runs, append=len(items)).astype(np.uint64)
    lengths = part.lengths[:, None].astype(np.uint64)
    rows = np.empty((lengths.shape[0], len(runs), 3), dtype=np.uint64)
    rows[:, :, 0] = part.addresses[:, None] + items[runs].astype(np.uint64) * lengths
    rows[:, :, 1] = counts * lengths
    rows[:, :, 2] = part.device
    return rows.reshape(-1, 3)
