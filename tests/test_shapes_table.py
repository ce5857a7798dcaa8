"""The named shapes: all there, well-formed, small, what their names say, and as docs/topologies.md shows them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kvrooms.shapes.build import Model, Side, decode_instance
from kvrooms.shapes.deal import decode_sizes, instances_of, prefill_sizes, rooms
from kvrooms.shapes.diagram import diagram
from kvrooms.shapes.judge import Write, compare, complaints, ill_formed
from kvrooms.shapes.oracle import Pair, due_bytes, due_spots, expected, owed, paint, source_spots
from kvrooms.shapes.pools import blank, bytes_in
from kvrooms.shapes.refusals import refusals
from kvrooms.shapes.rooms import ABSENT
from kvrooms.shapes.table import CASES
from kvrooms.shapes.walk import shards_of

ROOT = Path(__file__).resolve().parent.parent
LISTED = """
    mha-tp1-1 mha-tp1-2 mha-tp2-1 mha-tp2-2 mha-tp2-4 mha-tp4-2 mha-tp1-4 mha-tp4-1 mha-tp4-4
    gqa-rep-tp1-4 gqa-rep-tp4-1 gqa-rep-tp4-2 gqa-rep-tp2-4 mla-tp1-1 mla-tp2-1 mla-tp1-2 mla-tp4-2
    pp2-1 pp2-uneven pp2-pp2-tp2 pp2-tp2-tp2 cp2-1 cp2-pp2-1 dp2-1 dp2-tp2-1
    state-mamba state-mamba-tp2-1 state-mamba-tp1-2 state-swa state-dsa state-two state-three
    prefix-part prefix-all prefix-inside-page layerwise staging-tp2-1 staging-tp1-2 page1 page64 page16-64
    mla-page16-64 dsa-prefix dsa-cp2-1 dsa-page16-64
"""
NAMES = LISTED.split()

every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def test_every_shape_that_must_be_there_is():
    assert len(NAMES) == len(set(NAMES)) == 45
    assert set(NAMES) <= set(CASES)
    assert all(name == case.name for name, case in CASES.items())


def test_the_table_in_the_docs_is_the_table_in_the_code():
    text = (ROOT / "docs" / "topologies.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([a-z0-9-]+)` \| `(.+)` \| (.+) \|$", text, flags=re.MULTILINE)
    assert found == [(case.name, diagram(case), case.shows) for case in CASES.values()]


def test_nothing_of_the_product_is_used_but_what_layouts_are():
    """Whoever computes plans may be right or wrong in the same way only by accident."""
    used = set()
    for path in (ROOT / "kvrooms" / "shapes").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.level > 1 or (node.module or "").startswith("kvrooms")):
                used.add((node.level, node.module))
            elif isinstance(node, ast.Import):
                assert not any(name.name.startswith("kvrooms") for name in node.names)
    assert used == {(2, "protocol.layout")}


@every_case
def test_layouts_are_well_formed_and_fit_each_other(case):
    for instance in instances_of(case):
        for rank in instance.ranks:
            assert ill_formed(rank.layout) == []
    for prefill in case.prefill:
        assert refusals(Pair(prefill, case.decode)) == []


@every_case
def test_pools_are_small_enough_to_run_often(case):
    for instances, sizes in ((case.prefill, prefill_sizes(case)), ((case.decode,), decode_sizes(case))):
        for rank in (rank for instance in instances for rank in instance.ranks):
            assert 2**18 <= bytes_in(rank.layout, sizes) <= 2**22
    assert case.processes <= 8


@every_case
def test_a_name_says_how_many_ranks_there_are(case):
    if tp := re.search(r"tp(\d)-(?:tp)?(\d)$", case.name):
        assert (case.prefill_side.tp, case.decode_side.tp) == (int(tp[1]), int(tp[2]))
    for size, value in (("pp", len(case.prefill_side.stages)), ("cp", case.prefill_side.cp), ("dp", len(case.prefill))):
        if named := re.match(rf"{size}(\d)", case.name):
            assert value == int(named[1])
    assert case.staging == case.name.startswith("staging")
    assert case.layerwise == (case.name in ("layerwise", "dsa-prefix"))
    assert (case.prefix_tokens > 0) == ("prefix" in case.name)


@every_case
def test_prompts_stand_around_page_boundaries(case):
    for side in (case.prefill_side, case.decode_side):
        rests = {tokens % side.page_size for tokens in case.prompts}
        assert {0, 1 % side.page_size, side.page_size - 1} <= rests


@every_case
def test_rooms_repeat_and_share_nothing(case):
    assert rooms(case, 3) == rooms(case, 3)
    assert rooms(case, 3) != rooms(case, 4)
    dealt = rooms(case, 3)
    assert len({room.seed for room in (*dealt, *rooms(case, 4))}) == 2 * len(dealt)
    assert {room.instance for room in dealt} == set(range(case.dp))
    for instance, prefill in enumerate(case.prefill):
        mine = [room for room in dealt if room.instance == instance]
        for rank in range(len(prefill.ranks)):
            check_places(prefill.ranks[rank].layout, [room.prefill[rank] for room in mine], prefill_sizes(case))
    for rank in range(len(case.decode.ranks)):
        check_places(case.decode.ranks[rank].layout, [room.decode[rank] for room in dealt], decode_sizes(case))


def check_places(layout, places, sizes):
    """Nothing is given twice or lies outside, and something is left over."""
    pages = [page for place in places for page in place.pages if page != ABSENT]
    assert len(pages) == len(set(pages)) < sizes.pages
    assert set(pages) < set(range(sizes.pages))
    slots = [place.aux_slot for place in places]
    assert len(slots) == len(set(slots)) < sizes.slots if layout.aux else set(slots) == {None}
    for component in layout.state:
        indices = [index for place in places for index in place.indices(component.name)]
        assert len(indices) == len(set(indices))
        assert set(indices) < set(range(sizes.state[component.name]))


@every_case
def test_every_cell_that_is_owed_is_held_and_moving_cells_gives_what_is_expected(case):
    """A copy cell by cell, from the last of the ranks that hold it, on pools of canaries."""
    sources = [
        [blank(rank.layout, prefill_sizes(case), f"P{group}/{n}") for n, rank in enumerate(instance.ranks)]
        for group, instance in enumerate(case.prefill)
    ]
    names = [f"D{n}" for n in range(len(case.decode.ranks))]
    pools = [blank(rank.layout, decode_sizes(case), name) for name, rank in zip(names, case.decode.ranks, strict=True)]
    wanted = [blank(rank.layout, decode_sizes(case), name) for name, rank in zip(names, case.decode.ranks, strict=True)]
    for room in rooms(case):
        pair = Pair(case.prefill[room.instance], case.decode)
        held = {}
        for rank, pool in enumerate(sources[room.instance]):
            paint(pair.prefill, rank, pool, room)
            held |= {spot.cell: (pool, spot) for spot in source_spots(pair.prefill, rank, room)}
        for rank, pool in enumerate(pools):
            for spot in due_spots(pair, rank, room):
                source, at = held[spot.cell]
                assert at.length == spot.length
                pool[spot.buffer][spot.offset : spot.offset + spot.length] = source[at.buffer][at.offset :][: at.length]
            wanted[rank] = expected(pair, rank, wanted[rank], room)
    for rank, pool in enumerate(pools):
        layout = case.decode.ranks[rank].layout
        assert compare(layout, wanted[rank], pool) == []
        pool[-1][-1] ^= 1
        assert len(compare(layout, wanted[rank], pool)) == 1


# -- what some names are there for ------------------------------------------------------------------------------------


def first_owed(name, prompt=0):
    """What the room of one prompt owes, with each buffer of each rank in a region of its own."""
    case = CASES[name]
    room = rooms(case)[prompt]
    pair = Pair(case.prefill[room.instance], case.decode)
    at = [
        [[number * 2**32 for number in range(64)] for _ in instance.ranks] for instance in (pair.prefill, pair.decode)
    ]
    return pair, room, owed(pair, room, *at)


def test_every_byte_of_a_latent_may_come_from_each_of_four_ranks_and_only_from_one():
    pair, room, debts = first_owed("mla-tp4-2")
    assert {len(sources) for sources in debts.values()} == {4}
    assert len(debts) == sum(due_bytes(pair, rank, room) for rank in range(2))
    once = [Write(*min(sources), *target, 1) for target, sources in debts.items()]
    assert complaints(debts, once) == []
    assert complaints(debts, [*once, Write(*max(debts[0, 0]), 0, 0, 1)])


def test_replicated_heads_have_two_holders_and_two_takers():
    _, _, debts = first_owed("gqa-rep-tp4-1")
    kv = {target: sources for target, sources in debts.items() if target[1] < 8 * 2**32}
    assert {frozenset(rank for rank, _ in sources) for sources in kv.values()} == {frozenset({0, 1}), frozenset({2, 3})}
    _, _, debts = first_owed("gqa-rep-tp1-4")
    sources = [sources for (_rank, address), sources in debts.items() if address < 8 * 2**32]
    assert set(Counter(sources).values()) == {2}


def test_aux_comes_from_the_last_stage_alone():
    case = CASES["pp2-tp2-tp2"]
    assert [bool(rank.layout.aux) for rank in case.prefill[0].ranks] == [False, False, True, True]
    _, _, debts = first_owed("pp2-tp2-tp2")
    aux = {
        r
        for (_, address), sources in debts.items()
        if address >= len(case.decode.ranks[0].layout.kv) * 2**32
        for r, _ in sources
    }
    assert aux == {2, 3}


def test_context_parallel_ranks_have_pages_of_their_own_part_alone():
    for room in rooms(CASES["cp2-tp2-1"]):
        have = [[position for position, page in enumerate(p.pages) if page != ABSENT] for p in room.prefill]
        half = room.source_pages // 2
        assert have == [list(range(half))] * 2 + [list(range(half, room.source_pages))] * 2
        assert all(len(place.indices("mamba")) == 1 for place in room.prefill)


def test_prefixes_leave_what_is_there_already():
    whole = CASES["prefix-all"]
    for room in rooms(whole):
        assert room.prefix == room.target_pages
        parts = {spot.cell.part for spot in due_spots(Pair(whole.prefill[0], whole.decode), 0, room)}
        assert parts == {"aux/first_token", "aux/logprob", "state/mamba"}
    inside = CASES["prefix-inside-page"]
    for room in rooms(inside):
        due = due_spots(Pair(inside.prefill[0], inside.decode), 0, room)
        tokens = {spot.cell.place for spot in due if spot.cell.part == "kv"}
        assert tokens == set(range(room.prefix * 16, room.target_pages * 16))
    assert [room.prefix for room in rooms(inside)] == [1, 2, 2, 2, 3]


def test_the_last_page_of_decode_is_filled_in_part_where_pages_are_larger():
    case = CASES["page16-64"]
    room = rooms(case)[-1]
    tokens = {s.cell.place for s in due_spots(Pair(case.prefill[0], case.decode), 0, room) if s.cell.part == "kv"}
    assert (room.source_pages, room.target_pages) == (7, 2)
    assert tokens == set(range(112))


def test_index_keys_that_are_kv_follow_the_prompts_pages():
    """Under a prefix, context parallelism and unlike pages: of the same tokens the key is due as the latent is."""
    for case in (CASES[name] for name in ("dsa-prefix", "dsa-cp2-1", "dsa-page16-64")):
        for room in rooms(case):
            tokens = {(layer, role): set() for layer in case.model.layers for role in ("latent", "index")}
            for spot in due_spots(Pair(case.prefill[0], case.decode), 0, room):
                if spot.cell.part == "kv":
                    tokens[spot.cell.layer, spot.cell.role].add(spot.cell.place)
            some = tokens[0, "latent"]
            assert all(others == some for others in tokens.values())
            assert bool(some) == (room.prefix < room.target_pages)


def test_shapes_with_padding_and_with_several_grids_exist():
    layouts = [rank.layout for case in CASES.values() for instance in instances_of(case) for rank in instance.ranks]
    buffers = [buffer for layout in layouts for buffer in layout.kv]
    full = [sum(s.rows * s.units * s.unit_bytes for s in shards_of(buffer)) for buffer in buffers]
    assert any(used < buffer.item_length for used, buffer in zip(full, buffers, strict=True))
    assert {len(buffer.shards) for buffer in buffers} == {0, 1, 2}
    assert {len(b.shards) for layout in layouts for c in layout.state for b in c.buffers} == {0, 1, 3}


def test_runs_of_pages_are_broken_and_not_all_of_them():
    pages = np.array(rooms(CASES["page1"])[-1].decode[0].pages)
    steps = np.diff(pages)
    assert 0 < (steps == 1).sum() < len(steps)
    assert (steps < 0).any()


def test_heads_that_cannot_be_split_evenly_are_refused():
    with pytest.raises(ValueError, match="8 units over 3 ranks"):
        decode_instance(Model(), Side(tp=3))
