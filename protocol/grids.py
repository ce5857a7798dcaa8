"""What one pair of ranks exchanges of each part: runs of bytes, as offsets on either side.

For each part (KV, aux, a state component) there is one `Grid`, made once from a share: the runs of one block. A block
is an item, or of KV pages of different sizes the tokens that both sizes divide. Where it lies is plain arithmetic: its
item's number times the item's length.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import WireError
from .layout import BufferSpec, Layout, Region, Regions, Shard
from .notify import PartKind
from .packing import Packing
from .shares import Entry, Share

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
RUNS_MAX = 2**20
"""Runs of bytes in one block of one part. More are a mistake, or an attempt to make us run out of memory."""


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

    def of(self, some: _Bools) -> Ends:
        """Some of the runs."""
        return self._replace(base=self.base[some], item=self.item[some], row=self.row[some])


class Groups(NamedTuple):
    """Groups of consecutive runs. edges: the first run of each, and the number of runs. bytes: of each, in a block."""

    edges: _I64
    bytes: _U64


class Grid:
    """The runs of one block of one part, in the order in which they lie on the target.

    size: bytes of each run. block, source_tokens, target_tokens: how many tokens a block has, and an item of each side.
    buffer: per run which of the source's buffers it is of. begins: per run whether it is the first of its buffer.
    joined: per run whether it lies right behind the one before it on the target, in every block.
    """

    def __init__(
        self,
        source: Ends,
        target: Ends,
        size: _U64,
        tokens: tuple[int, int, int],
        buffer: _I64,
        begins: _Bools,
        joined: _Bools,
        numbers: _I64 | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.size = size
        self.block, self.source_tokens, self.target_tokens = tokens
        self.buffer = buffer
        self.begins = begins
        self.joined = joined
        self._numbers = numbers

    @cached_property
    def bytes(self) -> int:
        """Bytes of a block."""
        return int(self.size.sum())

    @cached_property
    def whole(self) -> bool:
        """Whether every run is a whole item on both sides: consecutive items make one run then."""
        return bool((self.size == self.source.item).all() and (self.size == self.target.item).all())

    @cached_property
    def segments(self) -> Groups:
        """The runs that lie together on the target."""
        return _groups(~self.joined, self.size)

    @cached_property
    def buffers(self) -> Groups:
        """The runs of one buffer."""
        return _groups(self.begins, self.size)

    @property
    def blocks_per_position(self) -> int:
        """How many blocks a page of the source has; one of a state component is one."""
        return max(1, self.source_tokens // self.block)

    @cached_property
    def numbers(self) -> _I64:
        """The number of each of `buffers`; of a grid of some buffers, those of the whole."""
        return np.arange(len(self.buffers.bytes)) if self._numbers is None else self._numbers

    @cached_property
    def gathering(self) -> Packing:
        """How segments are gathered on the source."""
        return Packing(self.source[:3], self.size, self.segments.edges, by_row=self.block != self.source_tokens)

    @cached_property
    def bundling(self) -> Packing:
        """How buffers are gathered on the source."""
        return Packing(self.source[:3], self.size, self.buffers.edges, by_row=self.block != self.source_tokens)

    @cached_property
    def scattering(self) -> Packing:
        """How buffers are scattered on the target."""
        return Packing(self.target[:3], self.size, self.buffers.edges, by_row=self.block != self.target_tokens)

    def of(self, buffers: tuple[int, ...]) -> Grid:
        """The runs of some of the source's buffers."""
        some = np.isin(self.buffer, buffers)
        tokens = self.block, self.source_tokens, self.target_tokens
        ends = self.source.of(some), self.target.of(some)
        numbers = self.numbers[some[self.buffers.edges[:-1]]]
        return Grid(*ends, self.size[some], tokens, self.buffer[some], self.begins[some], self.joined[some], numbers)


def _groups(begins: _Bools, size: _U64) -> Groups:
    edges = np.append(np.flatnonzero(begins), len(size)).astype(np.int64)
    return Groups(edges, np.add.reduceat(size, edges[:-1]))


class _Run(NamedTuple):
    """The runs of one entry on one side: offsets in the item, stride of a row, the buffer and where it is."""

    offset: _U64
    row: int
    spec: BufferSpec
    region: Region
    buffer: int


_Found = tuple[_Run, _Run, _U64]


def grids(source: Side, target: Side, share: Share) -> dict[tuple[PartKind, str], Grid]:
    """The grids of one pair of ranks, by kind and component ("" for KV and aux).

    Raises WireError, naming the entry, for a share that leaves its items.
    """
    found: dict[tuple[PartKind, str], list[_Found]] = {}
    made: Counter[tuple[PartKind, str]] = Counter()
    sizes = source.layout.page_size, target.layout.page_size
    for i, entry in enumerate(share.entries):
        a, b = _place(source, entry, entry.source), _place(target, entry, entry.target)
        shards = a[0].parts[entry.shard], b[0].parts[entry.shard]
        rows = _rows(i, entry, shards, sizes)
        runs = _runs(entry, shards, rows)
        for (spec, _), shard, offsets in zip((a, b), shards, runs[:2], strict=True):
            _check_end(i, entry, spec, shard, int(offsets.max()) + int(runs[2].max()))
        key = entry.kind, "" if entry.kind is PartKind.AUX else entry.name  # one write takes all aux buffers along
        made[key] += len(runs[2])
        _check_runs(entry, made[key])
        found.setdefault(key, []).append(
            (
                _Run(runs[0], shards[0].row_stride, *a, entry.source),
                _Run(runs[1], shards[1].row_stride, *b, entry.target),
                runs[2],
            )
        )
    return {key: _grid(key[0], some, sizes) for key, some in found.items()}


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
    _check_runs(entry, across * down)
    offsets = []
    for shard in shards:
        start = shard.offset + (entry.first - shard.first) * shard.unit_stride
        unit = np.arange(across, dtype=np.uint64) * np.uint64(shard.unit_stride)
        row = np.arange(down, dtype=np.uint64) * np.uint64(shard.row_stride)
        offsets.append((np.uint64(start) + row[:, None] + unit).reshape(-1))
    return offsets[0], offsets[1], np.full(len(offsets[0]), length, dtype=np.uint64)


def _check_runs(entry: Entry, runs: int) -> None:
    """Before they take memory: whoever says what is shared may say anything."""
    if runs > RUNS_MAX:
        raise WireError("share.entries", f"{entry}: a block of {runs} runs; at most {RUNS_MAX} are planned")


def _check_end(i: int, entry: Entry, spec: BufferSpec, shard: Shard, end: int) -> None:
    if end > spec.item_length or shard.end > spec.item_length:
        raise WireError(f"share.entries[{i}]", f"{entry} ends at {max(end, shard.end)} of {spec.item_length} of {spec}")


def _grid(kind: PartKind, found: list[_Found], sizes: tuple[int, int]) -> Grid:
    size = np.concatenate([lengths for _, _, lengths in found])
    ours, theirs = [run for run, _, _ in found], [run for _, run, _ in found]
    at, to = (np.concatenate([np.full(len(run.offset), run.buffer) for run in runs]) for runs in (ours, theirs))
    offset = np.concatenate([run.offset for run in theirs])
    # Several aux buffers are all number 0 of their part, and an entry may say anything of its order.
    names = np.repeat(np.arange(len(found)), [len(run.offset) for run in ours]) if kind is PartKind.AUX else to
    order = np.lexsort((offset, names))
    size, offset, names = size[order], offset[order], names[order]
    source, target = (_ends(runs, order) for runs in (ours, theirs))
    at = at[order].astype(np.int64)
    begins = np.ones(len(size), dtype=np.bool_)
    begins[1:] = (names[1:] != names[:-1]) | (at[1:] != at[:-1])
    joined = ~begins
    joined[1:] &= offset[1:] == offset[:-1] + size[:-1]
    joined[1:] &= target.row[1:] == target.row[:-1]  # a block that begins at a later row lies there as well
    tokens = (1, 1, 1)
    if kind is PartKind.KV:
        tokens = (gcd(*sizes), *sizes)
    return Grid(source, target, size, tokens, at, begins, joined)


def _ends(runs: list[_Run], order: npt.NDArray[np.intp]) -> Ends:
    first = runs[0].region
    return Ends(
        base=np.concatenate([run.offset + np.uint64(run.region.address) for run in runs])[order],
        item=np.concatenate([np.full(len(run.offset), run.spec.item_length, dtype=np.uint64) for run in runs])[order],
        row=np.concatenate([np.full(len(run.offset), run.row, dtype=np.uint64) for run in runs])[order],
        items=first.items,
        memory=first.memory,
        device=first.device,
    )
