"""Transfer plans between ranks whose layouts differ: which runs of bytes go where.

A write is a few arrays: block numbers times item lengths, plus the offsets of a `Grid`. Nothing is done page by page.
Where runs are short, they may be gathered first: see `staging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import WireError
from .grids import Ends, Grid, Groups, Side, grids
from .intervals import size
from .manifest import Indices, Manifest
from .notify import PARTS_MAX, Part, PartKind
from .packing import Packed
from .plan import Descriptors, Landing, Piece, Staged, Transfer, check_items, reported_last
from .shares import Share
from .staging import RUNS_MIN, Slots, Staging, Way, bundles, check_room, gathers, scatters

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]
_LAYERED_MAX = 4096
_NO_INDICES: Indices = np.empty(0, dtype=np.int32)


class PairTable:
    """The plans of one pair of ranks. Raises WireError, naming the entry, for a share that leaves its items.

    staging: which short runs may go through our slots; None: none. slots: the receiver's, checked; None: it has none.
    """

    def __init__(
        self, source: Side, target: Side, share: Share, staging: Staging | None = None, slots: Slots | None = None
    ) -> None:
        self._grids = grids(source, target, share)
        self._layered: dict[tuple[int, ...], Grid] = {}
        self._staging = staging
        self._slots = slots if staging is not None else None
        if slots is not None:
            for (kind, name), grid in self._grids.items():
                check_room(slots, kind, name, grid)
        self._ways = {
            key: Way.GATHERED if staging is not None and gathers(grid, staging) else Way.DIRECT
            for key, grid in self._grids.items()
        }

    def grid(self, kind: PartKind, name: str) -> Grid:
        """The grid of a part; name: the component's, "" for KV and aux."""
        return self._grids[kind, name]

    @property
    def stages(self) -> bool:
        """Whether the sender needs slots of its own."""
        return self._slots is not None or Way.GATHERED in self._ways.values()

    @cached_property
    def scattered(self) -> tuple[tuple[PartKind, str], ...]:
        """The parts that a receiver lends slots for."""
        staging = self._staging
        if staging is None:
            return ()
        return tuple(key for key, grid in self._grids.items() if scatters(key[0], grid, staging))

    def scattered_size(self, manifest: Manifest) -> tuple[int, int]:
        """How many runs, and bytes, these parts of a room have."""
        counts = {(PartKind.KV, ""): size(manifest.kv), **{(PartKind.STATE, name): n for name, n in manifest.state}}
        found = [(self._grids[key], counts.get(key, 0)) for key in self.scattered]
        blocks = [(grid, count * grid.blocks_per_position) for grid, count in found]
        return sum(len(grid.size) * n for grid, n in blocks), sum(grid.bytes * n for grid, n in blocks)

    def buffers(self) -> frozenset[int]:
        """Which of the source's KV buffers this pair of ranks is about."""
        grid = self._grids.get((PartKind.KV, ""))
        return frozenset() if grid is None else frozenset(grid.buffer.tolist())

    def pieces(self, transfers: list[tuple[Transfer, str]], piece_bytes: int, *, lent: bool = False) -> Iterator[Piece]:
        """The pieces of some transfers (each with its component's name), in order. Small parts share a piece.

        lent: whether the grant has slots of the receiver.
        """
        pending: list[_Cut] = []
        room = piece_bytes
        for transfer, name in transfers:
            key = transfer.kind, name
            slots = self._slots if lent and self._slots is not None and key in self._slots.parts else None
            way = self._ways[key] if slots is None else Way.SCATTERED
            limit = piece_bytes if slots is None else min(piece_bytes, slots.length)
            if transfer.buffers is not None:
                if pending:
                    yield _piece(pending)
                    pending, room = [], piece_bytes
                yield from self._some_layers(transfer, limit, way)
                continue
            for cut in self._cuts(self._grids[key], transfer, limit, way):
                alone = cut.ordered or cut.way is not Way.DIRECT
                full = cut.bytes > room or len(pending) == PARTS_MAX or alone
                if pending and (full or not _same_memory(pending[0].grid, cut.grid)):
                    yield _piece(pending)
                    pending, room = [], piece_bytes
                pending.append(cut)
                room -= cut.bytes
                if not cut.parts or alone:
                    yield _piece(pending)
                    pending, room = [], piece_bytes
        if pending:
            yield _piece(pending)

    def _some_layers(self, transfer: Transfer, limit: int, way: Way) -> Iterator[Piece]:
        """Positions of which only some buffers are sent."""
        assert transfer.buffers is not None
        some = self._layered.get(transfer.buffers)
        if some is None:
            if len(self._layered) == _LAYERED_MAX:
                self._layered.clear()
            some = self._layered[transfer.buffers] = self._grids[transfer.kind, ""].of(transfer.buffers)
        report = Part(transfer.kind, 0, transfer.first, len(transfer.source))
        cuts = self._cuts(some, transfer, limit, way)
        yield from reported_last((_piece([cut]) for cut in cuts), (report,) if transfer.report else ())

    def _cuts(self, grid: Grid, transfer: Transfer, limit: int, way: Way) -> Iterator[_Cut]:
        blocks = _Blocks.of(grid, transfer)
        if way is Way.GATHERED and self._staging is not None:
            if len(grid.size) * len(blocks.source) >= RUNS_MIN:
                return _cuts(grid, blocks, transfer, min(limit, self._staging.slot_bytes), way)
            way = Way.DIRECT
        cuts = _cuts(grid, blocks, transfer, limit, way)
        if way is Way.SCATTERED and self._staging is not None and not bundles(grid, self._staging):
            return (cut._replace(gathered=False) for cut in cuts)
        return cuts

    def unpacking(self, transfer: Transfer, name: str, first: int, stop: int, most: int) -> Packed:
        """Where buffers [first, stop) of each position of a transfer belong on the receiver; at most `most` bytes.

        Its source items do not matter. Raises WireError for what is not sent in this way.
        """
        key = transfer.kind, name
        if key not in self.scattered or stop > len(self._grids[key].numbers):
            raise WireError("buffers", f"{first} to {stop} of {transfer.kind.name} {name!r} are not to be scattered")
        grid, blocks = self._grids[key], _Blocks.of(self._grids[key], transfer)
        length = int(grid.buffers.bytes[first:stop].sum()) * len(blocks.target)
        if length > most:
            raise WireError("buffers", f"{length} bytes do not fit a slot of {most}")
        return grid.scattering.of(blocks.target, blocks.target_row, first, stop)

    def count(self, kind: PartKind, name: str) -> int:
        """How many buffers of a part are exchanged."""
        return len(self._grids[kind, name].numbers)


class _Blocks(NamedTuple):
    """The blocks of a transfer: item and first row on either side, and the position of each. All of one length."""

    source: npt.NDArray[np.int64]
    source_row: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    target_row: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]

    @staticmethod
    def of(grid: Grid, transfer: Transfer) -> _Blocks:
        """Positions to blocks. Tokens that the target has no page for do not travel."""
        from_tokens, to_tokens, block = grid.source_tokens, grid.target_tokens, grid.block
        first = transfer.first
        at = first if from_tokens == to_tokens else transfer.target_first
        low = max(first * from_tokens, at * to_tokens)
        high = min((first + len(transfer.source)) * from_tokens, (at + len(transfer.destination)) * to_tokens)
        token = np.arange(low // block, max(low, high) // block, dtype=np.int64) * block
        position = token // from_tokens
        source = transfer.source[position - first].astype(np.int64)
        target = transfer.destination[token // to_tokens - at].astype(np.int64)
        check_items("source", transfer, source, grid.source.items)
        check_items("destination", transfer, target, grid.target.items)
        return _Blocks(source, token % from_tokens, target, token % to_tokens, position)

    def cut(self, start: int, stop: int) -> _Blocks:
        return _Blocks(*(values[start:stop] for values in self))


class _Cut(NamedTuple):
    """What one piece takes of one transfer: blocks, and of their runs those in [first, stop)."""

    grid: Grid
    blocks: _Blocks
    first: int
    stop: int
    parts: tuple[Part, ...]
    bytes: int
    way: Way
    positions: Part
    ordered: bool = False
    gathered: bool = True

    @property
    def groups(self) -> tuple[int, int]:
        """The groups that the runs make up."""
        first, stop = np.searchsorted(_groups(self.grid, self.way).edges, (self.first, self.stop)).tolist()
        return first, stop

    def pack(self) -> Packed:
        """Where the runs are on the source."""
        packing = self.grid.bundling if self.way is Way.SCATTERED else self.grid.gathering
        return packing.of(self.blocks.source, self.blocks.source_row, *self.groups)


def _cuts(grid: Grid, blocks: _Blocks, transfer: Transfer, limit: int, way: Way) -> Iterator[_Cut]:
    """A transfer in bounded cuts, each of whole positions; a position that is too large is cut by runs.

    What is gathered is cut between segments, and one that is too large by itself is not gathered. What is scattered is
    cut between buffers, of which none is too large, and where buffers of the whole grid are left out.
    """
    kind, component, first, count = transfer.kind, transfer.component, transfer.first, len(transfer.source)
    step = max(1, limit // (grid.bytes * grid.blocks_per_position))
    runs = len(grid.size)
    breaks = (np.flatnonzero(np.diff(grid.numbers) != 1) + 1).tolist() if way is Way.SCATTERED else []
    for low in range(first, first + count, step):
        high = min(low + step, first + count)
        start, stop = np.searchsorted(blocks.position, (low, high)).tolist()
        some, part = blocks.cut(start, stop), Part(kind, component, low, high - low)
        if grid.bytes * (stop - start) <= limit and not breaks:
            yield _Cut(grid, some, 0, runs, (part,), grid.bytes * (stop - start), way, part)
            continue
        groups = _groups(grid, way)
        edges = _edges(groups.bytes * np.uint64(stop - start), limit, breaks)
        for a, b in pairwise(groups.edges[edges].tolist()):
            last = b == runs
            length = int(grid.size[a:b].sum()) * (stop - start)
            fits = way if length <= limit or way is Way.SCATTERED else Way.DIRECT
            report = (part,) if last else ()
            yield _Cut(grid, some, a, b, report, length, fits, part, ordered=last and len(edges) > 2)


def _groups(grid: Grid, way: Way) -> Groups:
    """Between which runs a grid may be cut."""
    match way:
        case Way.DIRECT:
            return Groups(np.arange(len(grid.size) + 1), grid.size)
        case Way.GATHERED:
            return grid.segments
        case Way.SCATTERED:  # pragma: no branch
            return grid.buffers


def _edges(sizes: _U64, limit: int, breaks: list[int]) -> list[int]:
    """Where to cut a list of runs so that no piece is longer than `limit`, or it is a single run; also at `breaks`."""
    ends = np.cumsum(sizes)
    edges = [0]
    while edges[-1] < len(sizes):
        done = int(ends[edges[-1] - 1]) if edges[-1] else 0
        edge = max(edges[-1] + 1, int(np.searchsorted(ends, done + limit, side="right")))
        edges.append(min([edge, *(at for at in breaks if at > edges[-1])]))
    return edges


def _same_memory(a: Grid, b: Grid) -> bool:
    return (a.source.memory, a.target.memory) == (b.source.memory, b.target.memory)


def _piece(cuts: list[_Cut]) -> Piece:
    match cuts[0].way:
        case Way.GATHERED:
            return _gathered(cuts[0])
        case Way.SCATTERED:
            return _scattered(cuts[0])
    rows = [_descriptors(cut) for cut in cuts]
    return _made(cuts, np.concatenate([source for source, _ in rows]), np.concatenate([target for _, target in rows]))


def _made(cuts: list[_Cut], source: Descriptors, target: Descriptors) -> Piece:
    first = cuts[0].grid
    return Piece(
        parts=tuple(part for cut in cuts for part in cut.parts),
        source_memory=first.source.memory,
        destination_memory=first.target.memory,
        source_indices=_NO_INDICES,
        destination_indices=_NO_INDICES,
        source_descriptors=source,
        destination_descriptors=target,
        bytes=sum(cut.bytes for cut in cuts),
        ordered=any(cut.ordered for cut in cuts),
    )


def _gathered(cut: _Cut) -> Piece:
    """A piece whose runs are gathered: one descriptor per segment and block."""
    grid, blocks = cut.grid, cut.blocks
    first, stop = cut.groups
    target = np.empty((stop - first, len(blocks.target), 3), dtype=np.uint64)
    target[:, :, 0] = _addresses(grid.target, grid.segments.edges[first:stop], blocks.target, blocks.target_row)
    target[:, :, 1] = grid.segments.bytes[first:stop, None]
    target[:, :, 2] = grid.target.device
    rows = target.reshape(-1, 3)
    staged = Staged(cut.pack, lambda: _piece([cut._replace(way=Way.DIRECT)]))
    return _made([cut], _in_a_row(rows[:, 1]), rows)._replace(staged=staged)


def _scattered(cut: _Cut) -> Piece:
    """A piece that is scattered: one descriptor if it is gathered in a slot of ours, else those of the source."""
    first, stop = cut.groups
    whole = np.array([[0, cut.bytes, 0]], dtype=np.uint64)
    landing = Landing(cut.positions, int(cut.grid.numbers[first]), int(cut.grid.numbers[stop - 1]) + 1)
    piece = _made([cut], whole, whole)._replace(destination_memory="DRAM", landing=landing)

    def direct() -> Piece:
        addresses, lengths = cut.grid.bundling.ranges(cut.blocks.source, cut.blocks.source_row, first, stop)
        source = np.empty((len(addresses), 3), dtype=np.uint64)
        source[:, 0], source[:, 1], source[:, 2] = addresses, lengths, cut.grid.source.device
        return piece._replace(source_descriptors=source, destination_descriptors=_in_a_row(lengths))

    return piece._replace(staged=Staged(cut.pack, direct)) if cut.gathered else direct()


def _in_a_row(lengths: _U64) -> Descriptors:
    """Descriptors of what lies together, counted from its first byte."""
    rows = np.zeros((len(lengths), 3), dtype=np.uint64)
    rows[:, 1] = lengths
    np.cumsum(lengths[:-1], out=rows[1:, 0])
    return rows


def _descriptors(cut: _Cut) -> tuple[Descriptors, Descriptors]:
    """Descriptors [runs * blocks, 3] of both sides, run after run: neighbouring blocks of a run stay neighbours."""
    grid, blocks = cut.grid, cut.blocks
    size = grid.size[cut.first : cut.stop, None]
    count = np.ones(len(blocks.source), dtype=np.uint64)
    if grid.whole and len(blocks.source) > 1:
        breaks = (np.diff(blocks.source) != 1) | (np.diff(blocks.target) != 1)
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        count = np.diff(starts, append=len(blocks.source)).astype(np.uint64)
        blocks = _Blocks(*(values[starts] for values in blocks))
    some = np.arange(cut.first, cut.stop)
    sides = []
    for ends, item, row in (
        (grid.source, blocks.source, blocks.source_row),
        (grid.target, blocks.target, blocks.target_row),
    ):
        out = np.empty((len(some), len(item), 3), dtype=np.uint64)
        out[:, :, 0] = _addresses(ends, some, item, row)
        out[:, :, 1] = size * count
        out[:, :, 2] = ends.device
        sides.append(out.reshape(-1, 3))
    return sides[0], sides[1]


def _addresses(ends: Ends, runs: _I64, item: _I64, row: _I64) -> _U64:
    """Where some runs of some blocks are, [runs, blocks]."""
    addresses: _U64 = ends.base[runs, None] + ends.item[runs, None] * item.astype(np.uint64)
    if row.any():
        addresses += ends.row[runs, None] * row.astype(np.uint64)
    return addresses
