"""Transfer plans between ranks whose layouts differ: which runs of bytes go where.

For each pair of ranks and part (KV, aux, a state component) there is one `Grid`, made once: the runs of bytes of one
block, as offsets on either side. A block is an item, or of KV pages of different sizes the tokens that both sizes
divide. A write is then a few arrays: block numbers times item lengths, plus offsets. Nothing is done page by page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import WireError
from .layout import BufferSpec, Layout, Region, Regions, Shard
from .manifest import Indices
from .notify import PARTS_MAX, Part, PartKind
from .plan import Descriptors, Piece, Transfer, reported_last
from .shares import Entry, Share

_U64 = npt.NDArray[np.uint64]
RUNS_MAX = 2**20
"""Runs of bytes in one block of one part. More are a mistake, or an attempt to make us run out of memory."""
_NO_INDICES: Indices = np.empty(0, dtype=np.int32)


class Side(NamedTuple):
    """One rank's memory."""

    layout: Layout
    regions: Regions


class Ends(NamedTuple):
    """One side of a grid: per run its address in item 0, the item's length, the stride of a row.

    items: how many items there are. memory, device: where they live.
    """

    base: _U64
    item: _U64
    row: _U64
    items: int
    memory: str
    device: int


class Grid(NamedTuple):
    """The runs of one block of one part. size: bytes of each run. tokens: of a block, per item (source, target).

    buffer: per run which of the source's buffers it is of.
    """

    source: Ends
    target: Ends
    size: _U64
    block: int
    source_tokens: int
    target_tokens: int
    buffer: npt.NDArray[np.int64]

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return int(self.size.sum())

    @property
    def whole(self) -> bool:
        """Whether every run is a whole item on both sides: consecutive items make one run then."""
        return bool((self.size == self.source.item).all() and (self.size == self.target.item).all())


class _Run(NamedTuple):
    """A run on one side: offset in the item, item length, stride of a row, and the region."""

    offset: _U64
    row: int
    spec: BufferSpec
    region: Region
    buffer: int = 0


class PairTable:
    """The grids of one pair of ranks. Raises WireError, naming the entry, for a share that leaves its items."""

    def __init__(self, source: Side, target: Side, share: Share) -> None:
        self._found: dict[tuple[PartKind, str], list[tuple[_Run, _Run, _U64]]] = {}
        sizes = source.layout.page_size, target.layout.page_size
        for i, entry in enumerate(share.entries):
            a, b = _place(source, entry, entry.source), _place(target, entry, entry.target)
            shards = a[0].parts[entry.shard], b[0].parts[entry.shard]
            rows = _rows(i, entry, shards, sizes)
            runs = _runs(entry, shards, rows)
            for (spec, _), shard, offsets in zip((a, b), shards, runs[:2], strict=True):
                _check_end(i, entry, spec, shard, int(offsets.max()) + int(runs[2].max()))
            name = "" if entry.kind is PartKind.AUX else entry.name  # one write takes all aux buffers along
            self._found.setdefault((entry.kind, name), []).append(
                (
                    _Run(runs[0], shards[0].row_stride, *a, entry.source),
                    _Run(runs[1], shards[1].row_stride, *b),
                    runs[2],
                )
            )
        block = sizes[0] if sizes[0] == sizes[1] else gcd(*sizes)
        self._grids = {key: _grid(key[0], found, block, sizes) for key, found in self._found.items()}
        self._found.clear()

    def grid(self, kind: PartKind, name: str) -> Grid:
        """The grid of a part; name: the component's, "" for KV and aux."""
        return self._grids[kind, name]

    def pieces(self, transfers: list[tuple[Transfer, str]], piece_bytes: int) -> Iterator[Piece]:
        """The pieces of some transfers (each with its component's name), in order. Small parts share a piece."""
        pending: list[_Cut] = []
        room = piece_bytes
        for transfer, name in transfers:
            grid = self._grids[transfer.kind, name]
            if transfer.buffers is not None:
                if pending:
                    yield _piece(pending)
                    pending, room = [], piece_bytes
                yield from self._layered(grid, transfer, piece_bytes)
                continue
            for cut in _cuts(grid, _Blocks.of(grid, transfer), transfer, piece_bytes):
                full = cut.bytes > room or len(pending) == PARTS_MAX or cut.ordered
                if pending and (full or not _same_memory(pending[0].grid, cut.grid)):
                    yield _piece(pending)
                    pending, room = [], piece_bytes
                pending.append(cut)
                room -= cut.bytes
                if not cut.parts or cut.ordered:
                    yield _piece(pending)
                    pending, room = [], piece_bytes
        if pending:
            yield _piece(pending)

    def buffers(self) -> frozenset[int]:
        """Which of the source's KV buffers this pair of ranks is about."""
        grid = self._grids.get((PartKind.KV, ""))
        return frozenset() if grid is None else frozenset(grid.buffer.tolist())

    def _layered(self, grid: Grid, transfer: Transfer, piece_bytes: int) -> Iterator[Piece]:
        """Positions of which only some buffers are sent."""
        assert transfer.buffers is not None
        some = _of(grid, transfer.buffers)
        cuts = _cuts(some, _Blocks.of(some, transfer), transfer, piece_bytes)
        report = Part(transfer.kind, 0, transfer.first, len(transfer.source))
        yield from reported_last((_piece([cut]) for cut in cuts), (report,) if transfer.report else ())


def _of(grid: Grid, buffers: tuple[int, ...]) -> Grid:
    """The runs of some of the source's buffers."""
    some = np.isin(grid.buffer, buffers)
    source, target = (
        end._replace(base=end.base[some], item=end.item[some], row=end.row[some]) for end in (grid.source, grid.target)
    )
    return grid._replace(source=source, target=target, size=grid.size[some], buffer=grid.buffer[some])


def _place(side: Side, entry: Entry, index: int) -> tuple[BufferSpec, Region]:
    """The buffer that an entry names on one side."""
    layout, regions = side
    match entry.kind:
        case PartKind.KV:
            return layout.kv[index], regions.kv[index]
        case PartKind.AUX:
            at = layout.aux_names.index(entry.name)
            aux = layout.aux[at]
            return BufferSpec(0, "aux", aux.item_length, aux.dtype), regions.aux[at]
        case PartKind.STATE:  # pragma: no branch
            at = layout.component_names.index(entry.name)
            return layout.state[at].buffers[index], regions.state[at][index]


def _rows(i: int, entry: Entry, shards: tuple[Shard, Shard], sizes: tuple[int, int]) -> int:
    """How many rows of each shard a block has."""
    a, b = shards
    if entry.kind is PartKind.KV and (a.rows, b.rows) == sizes:
        return gcd(*sizes)
    if a.rows != b.rows or (entry.kind is PartKind.KV and sizes[0] != sizes[1]):
        raise WireError(f"share.entries[{i}]", f"{entry}: {a.rows} rows here and {b.rows} there cannot be paired")
    return a.rows


def _runs(entry: Entry, shards: tuple[Shard, Shard], rows: int) -> tuple[_U64, _U64, _U64]:
    """Offsets on both sides and lengths of the runs of a block; neighbours on both sides are one run."""
    units = entry.stop - entry.first
    size = shards[0].unit_bytes
    across = 1 if all(s.unit_stride == size for s in shards) or units == 1 else units
    along = units * size if across == 1 else size
    down = 1 if all(s.row_stride == along for s in shards) or rows == 1 else rows
    length = along * (rows if down == 1 else 1)
    if across * down > RUNS_MAX:
        raise WireError("share.entries", f"{entry}: a block of {across * down} runs; at most {RUNS_MAX} are planned")
    offsets = []
    for shard in shards:
        start = shard.offset + (entry.first - shard.first) * shard.unit_stride
        unit = np.arange(across, dtype=np.uint64) * np.uint64(shard.unit_stride)
        row = np.arange(down, dtype=np.uint64) * np.uint64(shard.row_stride)
        offsets.append((np.uint64(start) + row[:, None] + unit).reshape(-1))
    return offsets[0], offsets[1], np.full(len(offsets[0]), length, dtype=np.uint64)


def _check_end(i: int, entry: Entry, spec: BufferSpec, shard: Shard, end: int) -> None:
    if end > spec.item_length or shard.end > spec.item_length:
        raise WireError(f"share.entries[{i}]", f"{entry} ends at {max(end, shard.end)} of {spec.item_length} of {spec}")


def _grid(kind: PartKind, found: list[tuple[_Run, _Run, _U64]], block: int, sizes: tuple[int, int]) -> Grid:
    size = np.concatenate([lengths for _, _, lengths in found])
    if len(size) > RUNS_MAX:
        raise WireError("share.entries", f"a block of {len(size)} runs; at most {RUNS_MAX} are planned")
    source, target = _ends([ours for ours, _, _ in found]), _ends([theirs for _, theirs, _ in found])
    buffer = np.concatenate([np.full(len(run.offset), run.buffer, dtype=np.int64) for run, _, _ in found])
    if kind is not PartKind.KV:
        return Grid(source, target, size, 1, 1, 1, buffer)
    return Grid(source, target, size, block, *sizes, buffer)


def _ends(runs: list[_Run]) -> Ends:
    first = runs[0].region
    return Ends(
        base=np.concatenate([run.offset + np.uint64(run.region.address) for run in runs]),
        item=np.concatenate([np.full(len(run.offset), run.spec.item_length, dtype=np.uint64) for run in runs]),
        row=np.concatenate([np.full(len(run.offset), run.row, dtype=np.uint64) for run in runs]),
        items=first.items,
        memory=first.memory,
        device=first.device,
    )


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
        for end, items, what in ((grid.source, source, "source"), (grid.target, target, "target")):
            if len(items) and (int(items.min()) < 0 or int(items.max()) >= end.items):
                raise WireError(f"plan.{what}", f"{transfer.kind.name} item {int(items.max())} of {end.items}")
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
    ordered: bool


def _cuts(grid: Grid, blocks: _Blocks, transfer: Transfer, limit: int) -> Iterator[_Cut]:
    """A transfer in bounded cuts, each of whole positions; a position that is too large is cut by runs."""
    kind, component, first, count = transfer.kind, transfer.component, transfer.first, len(transfer.source)
    per_position = grid.bytes * max(1, grid.source_tokens // grid.block)
    step = max(1, limit // per_position)
    runs = len(grid.size)
    for low in range(first, first + count, step):
        high = min(low + step, first + count)
        start, stop = np.searchsorted(blocks.position, (low, high)).tolist()
        some, part = blocks.cut(start, stop), Part(kind, component, low, high - low)
        if grid.bytes * (stop - start) <= limit:
            yield _Cut(grid, some, 0, runs, (part,), grid.bytes * (stop - start), ordered=False)
            continue
        edges = _edges(grid.size * np.uint64(stop - start), limit)
        for a, b in pairwise(edges):
            last = b == runs
            size = int(grid.size[a:b].sum()) * (stop - start)
            yield _Cut(grid, some, a, b, (part,) if last else (), size, ordered=last and len(edges) > 2)


def _edges(sizes: _U64, limit: int) -> list[int]:
    """Where to cut a list of runs so that no piece is longer than `limit`, or it is a single run."""
    ends = np.cumsum(sizes)
    edges = [0]
    while edges[-1] < len(sizes):
        done = int(ends[edges[-1] - 1]) if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(ends, done + limit, side="right"))))
    return edges


def _same_memory(a: Grid, b: Grid) -> bool:
    return (a.source.memory, a.target.memory) == (b.source.memory, b.target.memory)


def _piece(cuts: list[_Cut]) -> Piece:
    rows = [_descriptors(cut) for cut in cuts]
    first = cuts[0].grid
    return Piece(
        parts=tuple(part for cut in cuts for part in cut.parts),
        source_memory=first.source.memory,
        destination_memory=first.target.memory,
        source_indices=_NO_INDICES,
        destination_indices=_NO_INDICES,
        source_descriptors=np.concatenate([source for source, _ in rows]),
        destination_descriptors=np.concatenate([target for _, target in rows]),
        bytes=sum(cut.bytes for cut in cuts),
        ordered=any(cut.ordered for cut in cuts),
    )


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
    sides = []
    for ends, item, row in (
        (grid.source, blocks.source, blocks.source_row),
        (grid.target, blocks.target, blocks.target_row),
    ):
        some = slice(cut.first, cut.stop)
        out = np.empty((cut.stop - cut.first, len(item), 3), dtype=np.uint64)
        out[:, :, 0] = ends.base[some, None] + ends.item[some, None] * item.astype(np.uint64)
        if row.any():
            out[:, :, 0] += ends.row[some, None] * row.astype(np.uint64)
        out[:, :, 1] = size * count
        out[:, :, 2] = ends.device
        sides.append(out.reshape(-1, 3))
    return sides[0], sides[1]
