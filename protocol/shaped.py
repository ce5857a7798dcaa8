"""Transfer plans between ranks whose layouts differ: which runs of bytes go where.

A write is a few arrays: block numbers times item lengths, plus the offsets of a `Grid`. Nothing is done page by page.
Where runs are short, they may be gathered first: see `staging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import WireError
from .grids import Ends, Grid, Side, grids
from .manifest import Indices
from .notify import PARTS_MAX, Part, PartKind
from .packing import Packed
from .plan import Descriptors, Piece, Staged, Transfer, reported_last
from .shares import Share
from .staging import RUNS_MIN, Staging, Way, way_of

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]
_LAYERED_MAX = 4096
_NO_INDICES: Indices = np.empty(0, dtype=np.int32)


class PairTable:
    """The plans of one pair of ranks. Raises WireError, naming the entry, for a share that leaves its items.

    staging: how short runs may be gathered on the source; None: they are not.
    """

    def __init__(self, source: Side, target: Side, share: Share, staging: Staging | None = None) -> None:
        self._grids = grids(source, target, share)
        self._layered: dict[tuple[int, ...], Grid] = {}
        self._staging = staging

    def grid(self, kind: PartKind, name: str) -> Grid:
        """The grid of a part; name: the component's, "" for KV and aux."""
        return self._grids[kind, name]

    @property
    def gathers(self) -> bool:
        """Whether anything is gathered on the source."""
        return any(self._way(grid) is Way.GATHERED for grid in self._grids.values())

    def _way(self, grid: Grid) -> Way:
        return Way.DIRECT if self._staging is None else way_of(grid, self._staging)

    def buffers(self) -> frozenset[int]:
        """Which of the source's KV buffers this pair of ranks is about."""
        grid = self._grids.get((PartKind.KV, ""))
        return frozenset() if grid is None else frozenset(grid.buffer.tolist())

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
                yield from self._some_layers(grid, transfer, piece_bytes)
                continue
            for cut in self._cuts(grid, transfer, piece_bytes):
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

    def _some_layers(self, grid: Grid, transfer: Transfer, piece_bytes: int) -> Iterator[Piece]:
        """Positions of which only some buffers are sent."""
        assert transfer.buffers is not None
        some = self._layered.get(transfer.buffers)
        if some is None:
            if len(self._layered) == _LAYERED_MAX:
                self._layered.clear()
            some = self._layered[transfer.buffers] = grid.of(transfer.buffers)
        report = Part(transfer.kind, 0, transfer.first, len(transfer.source))
        cuts = self._cuts(some, transfer, piece_bytes)
        yield from reported_last((_piece([cut]) for cut in cuts), (report,) if transfer.report else ())

    def _cuts(self, grid: Grid, transfer: Transfer, limit: int) -> Iterator[_Cut]:
        blocks, way = _Blocks.of(grid, transfer), self._way(grid)
        if self._staging is None or way is Way.DIRECT or len(grid.size) * len(blocks.source) < RUNS_MIN:
            return _cuts(grid, blocks, transfer, limit, Way.DIRECT)
        return _cuts(grid, blocks, transfer, min(limit, self._staging.slot_bytes), way)


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
    way: Way
    ordered: bool = False


def _cuts(grid: Grid, blocks: _Blocks, transfer: Transfer, limit: int, way: Way) -> Iterator[_Cut]:
    """A transfer in bounded cuts, each of whole positions; a position that is too large is cut by runs.

    What is staged is cut between segments. One that is too large by itself is not staged.
    """
    kind, component, first, count = transfer.kind, transfer.component, transfer.first, len(transfer.source)
    per_position = grid.bytes * max(1, grid.source_tokens // grid.block)
    step = max(1, limit // per_position)
    runs = len(grid.size)
    for low in range(first, first + count, step):
        high = min(low + step, first + count)
        start, stop = np.searchsorted(blocks.position, (low, high)).tolist()
        some, part = blocks.cut(start, stop), Part(kind, component, low, high - low)
        if grid.bytes * (stop - start) <= limit:
            yield _Cut(grid, some, 0, runs, (part,), grid.bytes * (stop - start), way)
            continue
        sizes = grid.size if way is Way.DIRECT else grid.segment_bytes
        edges = _edges(sizes * np.uint64(stop - start), limit)
        for a, b in pairwise(edges if way is Way.DIRECT else grid.segments[edges].tolist()):
            last = b == runs
            size = int(grid.size[a:b].sum()) * (stop - start)
            fits = way if size <= limit else Way.DIRECT
            yield _Cut(grid, some, a, b, (part,) if last else (), size, fits, ordered=last and len(edges) > 2)


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
    if cuts[0].way is not Way.DIRECT:
        return _gathered(cuts[0])
    rows = [_descriptors(cut) for cut in cuts]
    return _made(cuts, np.concatenate([source for source, _ in rows]), np.concatenate([target for _, target in rows]))


def _made(cuts: list[_Cut], source: Descriptors, target: Descriptors, staged: Staged | None = None) -> Piece:
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
        staged=staged,
    )


def _gathered(cut: _Cut) -> Piece:
    """A piece whose runs are gathered: one descriptor per segment and block; on the source from address 0 on."""
    grid, blocks = cut.grid, cut.blocks
    first, stop = np.searchsorted(grid.segments, (cut.first, cut.stop)).tolist()
    target = np.empty((stop - first, len(blocks.target), 3), dtype=np.uint64)
    target[:, :, 0] = _addresses(grid.target, grid.segments[first:stop], blocks.target, blocks.target_row)
    target[:, :, 1] = grid.segment_bytes[first:stop, None]
    target[:, :, 2] = grid.target.device
    target = target.reshape(-1, 3)
    source = np.zeros_like(target)
    source[:, 1] = target[:, 1]
    np.cumsum(target[:-1, 1], out=source[1:, 0])

    def pack() -> Packed:
        return grid.gathering.of(blocks.source, blocks.source_row, first, stop)

    return _made([cut], source, target, Staged(pack, lambda: _piece([cut._replace(way=Way.DIRECT)])))


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
