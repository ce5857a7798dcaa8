"""The runs of one block between two ranks, beside a reckoning byte by byte; and the words for shares that lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from plan_support import FAR, cases, heads, kv, rank, share, side, swa

from kvrooms.protocol.errors import WireError
from kvrooms.protocol.grids import Grid, Side, grids
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Shard
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.shares import Entry

KV, AUX, STATE = PartKind.KV, PartKind.AUX, PartKind.STATE


def grid_of(source: Side, target: Side, *entries: Entry) -> Grid:
    (grid,) = grids(source, target, share(*entries)).values()
    return grid


# -- beside a reckoning ----------------------------------------------------------------------------------------------


def reckoned(where: Side, index: int, entry: Entry, rows: int, block: tuple[int, int]) -> Iterator[int]:
    """The address of every byte that an entry speaks of, of the block that begins in this item at this row."""
    spec, region = where.layout.kv[index], where.regions.kv[index]
    shard = spec.parts[entry.shard]
    item, first_row = block
    for row in range(rows):
        for unit in range(entry.first, entry.stop):
            for byte in range(shard.unit_bytes):
                at = shard.offset + (first_row + row) * shard.row_stride + (unit - shard.first) * shard.unit_stride
                yield region.address + item * spec.item_length + at + byte


@given(case=cases(), items=st.tuples(st.integers(0, 3), st.integers(0, 3)), data=st.data())
def test_a_block_has_every_byte_once_on_both_sides(
    case: tuple[Side, Side, list[Entry]], items: tuple[int, int], data: st.DataObject
) -> None:
    source, target, entries = case
    grid = grid_of(source, target, *entries)
    pages = source.layout.page_size, target.layout.page_size
    assert (grid.source_tokens, grid.target_tokens) == pages
    assert all(page % grid.block == 0 for page in pages)
    assert grid.blocks_per_position == pages[0] // grid.block
    first = [data.draw(st.integers(0, page // grid.block - 1)) * grid.block for page in pages]
    blocks = list(zip(items, first, strict=True))
    wanted = [
        both
        for e in entries
        for both in zip(
            reckoned(source, e.source, e, grid.block, blocks[0]),
            reckoned(target, e.target, e, grid.block, blocks[1]),
            strict=True,
        )
    ]
    runs = [list(zip(*(addresses(grid, i, *blocks)), strict=True)) for i in range(len(grid.size))]
    assert sorted(both for run in runs for both in run) == sorted(wanted)
    assert grid.bytes == len(wanted)
    starts = [(target_of(grid, i), run[0][1]) for i, run in enumerate(runs)]
    assert starts == sorted(starts)
    event("joined" if grid.joined.any() else "apart")
    for i in range(1, len(runs)):
        same = target_of(grid, i) == target_of(grid, i - 1)
        assert grid.begins[i] == (not same)
        assert grid.joined[i] == (same and runs[i - 1][-1][1] + 1 == runs[i][0][1])


def target_of(grid: Grid, run: int) -> int:
    """In these cases a buffer has the same number on both sides."""
    return int(grid.buffer[run])


def addresses(grid: Grid, run: int, *blocks: tuple[int, int]) -> list[list[int]]:
    """The addresses of a run's bytes on both sides, of a block."""
    return [
        [int(ends.base[run]) + item * int(ends.item[run]) + row * int(ends.row[run]) + k for k in range(grid.size[run])]
        for ends, (item, row) in zip((grid.source, grid.target), blocks, strict=True)
    ]


# -- what a grid says of its runs --------------------------------------------------------------------------------------


def test_the_numbers_are_such_as_addresses_are_made_of() -> None:
    strided = heads(0, 4, shards=(Shard(0, 4, 64, 4, 16, 8, 0, 4),), item_length=256)
    for spec in (heads(0, 4), strided):
        grid = grid_of(side(rank(spec).layout), side(rank(spec).layout), kv(0, 0, 3))
        for ends in (grid.source, grid.target):
            assert {values.dtype for values in (ends.base, ends.item, ends.row)} == {np.dtype(np.uint64)}
        assert (grid.size.dtype, grid.buffer.dtype, grid.segments.edges.dtype) == (np.uint64, np.int64, np.int64)


@pytest.mark.parametrize(
    ("units", "stride", "runs", "length"),
    [
        ((0, 4), 8, 1, 4 * 32),
        ((0, 1), 8, 4, 8),
        ((1, 4), 8, 4, 24),
        ((0, 2), 12, 8, 8),
        ((1, 2), 12, 4, 8),
        ((0, 4), 12, 16, 8),
    ],
)
def test_what_lies_together_on_both_sides_is_one_run(units: Any, stride: int, runs: int, length: int) -> None:
    shard = Shard(0, 4, 4 * stride, 4, stride, 8, 0, 4)
    some = side(rank(heads(0, 4, shards=(shard,), item_length=16 * stride)).layout)
    close = side(rank(heads(0, 4)).layout)
    for ends in ((some, close), (close, some), (some, some)):
        grid = grid_of(*ends, kv(0, *units))
        assert grid.size.tolist() == [length] * runs


def test_one_row_is_one_run_whatever_the_stride_of_rows() -> None:
    shard = Shard(0, 1, 1000, 4, 8, 8, 0, 4)
    one = side(rank(heads(0, 4, rows=1, shards=(shard,)), page=1).layout)
    assert grid_of(one, one, kv(0, 0, 4)).size.tolist() == [32]


def test_a_run_is_a_whole_item_only_where_it_is_one_on_both_sides() -> None:
    plain, padded = (side(rank(heads(0, 4, item_length=length)).layout) for length in (128, 136))
    found = {
        (a is plain, b is plain): grid_of(a, b, kv(0, 0, 4)).whole for a in (plain, padded) for b in (plain, padded)
    }
    assert found == {(True, True): True, (True, False): False, (False, True): False, (False, False): False}


def test_aux_buffers_are_apart_though_all_have_number_0() -> None:
    both = side(rank(aux=("a", "b")).layout)
    grid = grid_of(both, both, *(Entry(AUX, name, 0, 0, 0, 0, 1) for name in "ba"))
    assert grid.source.base.tolist() == [FAR + 2**16, FAR]
    assert grid.begins.tolist() == [True, True]
    assert grid.joined.tolist() == [False, False]
    assert (grid.block, grid.source_tokens, grid.target_tokens, grid.blocks_per_position) == (1, 1, 1, 1)


def test_a_state_component_has_one_block_an_item() -> None:
    both = side(rank(heads(0, 4), state=[swa(rows=3)]).layout)
    grid = grid_of(both, both, Entry(STATE, "s", 0, 0, 0, 0, 4))
    assert (grid.block, grid.source_tokens, grid.target_tokens) == (1, 1, 1)
    assert grid.source.base.tolist() == [FAR + 2**16]
    assert grid.size.tolist() == [96]


def test_pages_without_rows_are_one_row_where_they_are_of_one_size() -> None:
    both = side(rank(heads(0, 4, rows=1), page=4).layout)
    grid = grid_of(both, both, kv(0, 0, 4))
    assert (grid.block, grid.size.tolist()) == (4, [32])


def test_parts_are_apart_and_a_component_has_its_name() -> None:
    both = side(rank(heads(0, 4), aux=("a",), state=[swa()]).layout)
    entries = kv(0, 0, 4), Entry(AUX, "a", 0, 0, 0, 0, 1), Entry(STATE, "s", 0, 0, 0, 0, 4)
    assert set(grids(both, both, share(*entries))) == {(KV, ""), (AUX, ""), (STATE, "s")}


def three(page: int = 4, rows: int = 4) -> Side:
    """Three buffers of eight heads a token."""
    return side(rank(*(heads(0, 8, 8, rows=rows, layer=i) for i in range(3)), page=page).layout)


def test_what_follows_on_in_another_buffer_is_not_joined() -> None:
    ours = three(rows=1, page=1)
    grid = grid_of(ours, ours, kv(0, 0, 2), kv(1, 2, 4), kv(1, 4, 5), kv(2, 5, 8))
    assert grid.begins.tolist() == [True, True, False, True]
    assert grid.joined.tolist() == [False, False, True, False]
    assert (grid.segments.edges.tolist(), grid.segments.bytes.tolist()) == ([0, 1, 3, 4], [16, 24, 24])
    assert (grid.buffers.edges.tolist(), grid.buffers.bytes.tolist()) == ([0, 1, 3, 4], [16, 24, 24])


def test_runs_of_different_strides_are_not_joined() -> None:
    shards = Shard(0, 2, 16, 2, 8, 8, 0, 2), Shard(32, 2, 24, 2, 8, 8, 0, 2)
    spec = BufferSpec(0, "k", 80, "uint8", shards)
    both = side(rank(spec, page=2).layout)
    grid = grid_of(both, both, *(Entry(KV, "", 0, 0, shard, 0, 2) for shard in (0, 1)))
    assert grid.size.tolist() == [32, 16, 16]
    assert grid.joined.tolist() == [False, False, False]


def test_the_runs_of_some_buffers_keep_their_numbers() -> None:
    ours = three()
    grid = grid_of(ours, ours, kv(2, 0, 2), kv(0, 0, 8), kv(1, 3, 5))
    assert grid.numbers.tolist() == [0, 1, 2]
    assert grid.buffer.tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    some = grid.of((2, 1))
    assert some.numbers.tolist() == [1, 2]
    assert some.buffer.tolist() == [1] * 4 + [2] * 4
    assert some.begins.tolist() == [True, False, False, False] * 2
    assert some.bytes == 4 * 16 * 2
    last = some.of((2,))
    assert last.numbers.tolist() == [2]
    assert last.target.base.tolist() == [FAR + 2 * 2**16 + 64 * row for row in range(4)]
    assert (last.block, last.source_tokens, last.target_tokens) == (4, 4, 4)


def test_what_is_packed_begins_at_a_row_where_pages_are_larger_than_blocks() -> None:
    large, small = three(page=4), three(page=2, rows=2)
    for source, target in ((large, small), (small, large), (large, large)):
        grid = grid_of(source, target, kv(0, 0, 2), kv(1, 0, 8))
        item, row = np.array([1]), np.array([1])
        for packing, ends in ((grid.bundling, source), (grid.gathering, source), (grid.scattering, target)):
            inside = ends is large and source is not target
            at = FAR % 8 + (packing.of(item, row, 0, 1).grains[0] * packing.grain)
            assert at == FAR % 8 + 64 * ends.layout.page_size + (64 if inside else 0)


# -- words -----------------------------------------------------------------------------------------------------------

OK = kv(0, 0, 4)
PADDED = ComponentSpec("s", "swa", Owed.ALWAYS, (heads(0, 4, rows=1, item_length=31),))


def refused(source: Layout, target: Layout, *entries: Entry) -> tuple[str, str]:
    with pytest.raises(WireError) as caught:
        grids(side(source), side(target), share(*entries))
    return caught.value.field, str(caught.value)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (heads(0, 4), heads(0, 4, rows=2), "{e}: 4 rows here and 2 there cannot be paired"),
        (heads(0, 4), heads(0, 4, item_length=127), "{e} ends at 128 of 127 of layer 0 k"),
        (heads(0, 4, item_length=127), heads(0, 4), "{e} ends at 128 of 127 of layer 0 k"),
        (heads(0, 5, 5), heads(0, 5, 5, item_length=159), "{e} ends at 160 of 159 of layer 0 k"),
        (heads(0, 4), heads(0, 4, size=4), "{e} ends at 68 of 64 of layer 0 k"),
    ],
)
def test_the_words_for_pages_that_leave_their_items(source: BufferSpec, target: BufferSpec, words: str) -> None:
    good = heads(0, 4, layer=1)
    field, text = refused(rank(source, good).layout, rank(target, good).layout, kv(1, 0, 4), OK)
    assert field == "share.entries[1]"
    assert words.format(e=OK) in text


def test_the_words_for_pages_of_different_sizes_without_rows() -> None:
    one = heads(0, 4, rows=1)
    field, text = refused(rank(one).layout, rank(one, page=8).layout, OK)
    assert (field, "1 rows here and 1 there cannot be paired" in text) == ("share.entries[0]", True)


def test_the_words_for_what_is_no_page() -> None:
    long, short = (Layout(4, (), (AuxSpec("a", n, "int8"),), ()) for n in (8, 4))
    entry = Entry(AUX, "a", 0, 0, 0, 0, 1)
    field, text = refused(long, short, entry)
    assert field == "share.entries[0]"
    assert f"{entry} ends at 8 of 4 of layer 0 aux" in text
    entry = Entry(STATE, "s", 0, 0, 0, 0, 4)
    field, text = refused(rank(state=[PADDED]).layout, rank(state=[swa()]).layout, entry)
    assert f"{entry} ends at 32 of 31 of layer 0 k" in text


def test_the_words_for_too_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = rank(heads(0, 4, shards=(Shard(0, 4, 64, 4, 16, 8, 0, 4),), item_length=256)).layout
    halves = kv(0, 0, 2), kv(0, 2, 4)
    for limit, entries in ((16, (OK,)), (16, halves)):
        monkeypatch.setattr("kvrooms.protocol.grids.RUNS_MAX", limit)
        assert len(grid_of(side(wide), side(wide), *entries).size) == 16
    monkeypatch.setattr("kvrooms.protocol.grids.RUNS_MAX", 15)
    field, text = refused(wide, wide, OK)
    assert field == "share.entries"
    assert f"{OK}: a block of 16 runs; at most 15 are planned" in text
    field, text = refused(wide, wide, *halves)
    assert field == "share.entries"
    assert f"{halves[1]}: a block of 16 runs; at most 15 are planned" in text
