"""The oracle of the shapes against examples counted by hand, and against every way to be wrong by one thing."""

from __future__ import annotations

import numpy as np
import pytest
from shapes_support import Aux, Buffer, Component, Instance, Layout, Rank, Shard, conv, heads, instance, pages_of

from kvrooms.shapes.judge import Write, compare, complaints
from kvrooms.shapes.oracle import Pair, due_bytes, due_spots, expected, owed, paint
from kvrooms.shapes.pools import Sizes, blank, bytes_in, copy_of
from kvrooms.shapes.rooms import ABSENT, Places, RoomShape, part_of_prompt
from kvrooms.shapes.truth import Cell, byte_of, canary, cell_bytes

# Two prefill ranks with a head each, one decode rank with both: pages of two tokens, heads of two bytes. Two pages, and
# nothing is there already. Addresses: P0 at 1000, P1 at 2000, D0 at 5000.
TP21 = Pair(
    instance(Layout(2, (heads(0, 1, 2),)), Layout(2, (heads(1, 1, 2),))), instance(Layout(2, (heads(0, 2, 2),)))
)
TP21_ROOM = RoomShape(7, 2, 2, 0, pages_of((3, 1), (0, 2)), pages_of((1, 0)))
TP21_AT = [[1000], [2000]], [[5000]]
# By token: the page of each rank starts at 1000 + 4 * page and 5000 + 8 * page.
TP21_RUNS = [
    (0, 1012, 5008), (0, 1014, 5012), (1, 2000, 5010), (1, 2002, 5014),
    (0, 1004, 5000), (0, 1006, 5004), (1, 2008, 5002), (1, 2010, 5006),
]  # fmt: skip
TP21_WRITES = [Write(prefill, source, 0, target, 2) for prefill, source, target in TP21_RUNS]


def moved(pair: Pair, room: RoomShape, writes: list[Write], at, sizes: tuple[Sizes, Sizes]):
    """Paint the sources, carry out the writes, and return what decode rank 0 must hold and what it holds."""
    sources = [blank(rank.layout, sizes[0], f"P{n}") for n, rank in enumerate(pair.prefill.ranks)]
    for number, pool in enumerate(sources):
        paint(pair.prefill, number, pool, room)
    before = blank(pair.decode.ranks[0].layout, sizes[1], "D0")
    after = copy_of(before)
    for write in writes:
        source, target = write.source - at[0][write.prefill][0], write.target - at[1][0][0]
        after[0][target : target + write.length] = sources[write.prefill][0][source : source + write.length]
    return expected(pair, 0, before, room), after


SIZES = Sizes(4, 1, {})


def verdict(writes: list[Write]) -> tuple[list[str], list[str]]:
    """Complaints about the writes by themselves, and about what they leave behind."""
    wanted, found = moved(TP21, TP21_ROOM, writes, TP21_AT, (SIZES, SIZES))
    return complaints(owed(TP21, TP21_ROOM, *TP21_AT), writes), compare(TP21.decode.ranks[0].layout, wanted, found)


# -- truth -------------------------------------------------------------------------------------------------------------


def test_every_field_of_a_cell_and_the_seed_change_its_bytes():
    cell = Cell("kv", 1, "k", 0, 2, 3, 0)
    others = [
        cell._replace(part="state/kv"),
        cell._replace(layer=2),
        cell._replace(role="v"),
        cell._replace(shard=1),
        cell._replace(unit=3),
        cell._replace(place=4),
        cell._replace(row=1),
    ]
    found = {cell_bytes(7, one, 16) for one in (cell, *others)} | {cell_bytes(8, cell, 16)}
    assert len(found) == len(Cell._fields) + 2
    assert [byte_of(7, cell, index) for index in range(16)] == list(cell_bytes(7, cell, 16))
    assert cell_bytes(7, cell, 4) == cell_bytes(7, cell, 16)[:4]
    assert canary("P0", 0, 16) not in {canary("P1", 0, 16), canary("P0", 1, 16)} | found


def test_context_parallel_ranks_have_neighbouring_parts_of_a_prompt():
    assert [part_of_prompt(5, rank, 2) for rank in range(2)] == [range(2), range(2, 5)]
    assert [part_of_prompt(1, rank, 2) for rank in range(2)] == [range(0), range(1)]
    for pages in range(9):
        for size in range(1, 5):
            assert [p for rank in range(size) for p in part_of_prompt(pages, rank, size)] == list(range(pages))


# -- two heads, counted by hand ----------------------------------------------------------------------------------------


def test_heads_of_two_ranks_become_one_page():
    by_hand = {
        (0, target + index): {(prefill, source + index)} for prefill, source, target in TP21_RUNS for index in range(2)
    }
    assert owed(TP21, TP21_ROOM, *TP21_AT) == by_hand
    assert due_bytes(TP21, 0, TP21_ROOM) == 16
    assert verdict(TP21_WRITES) == ([], [])


def test_what_paint_and_expected_write_is_named_cell_by_cell():
    source = blank(TP21.prefill.ranks[1].layout, SIZES, "P1")
    before = copy_of(source)
    paint(TP21.prefill, 1, source, TP21_ROOM)
    # Rank 1 has head 1; position 0 is in page 0 and position 1 in page 2, so token 2 starts at byte 8.
    assert bytes(source[0][0:2]) == cell_bytes(7, Cell("kv", 0, "k", 0, 1, 0, 0), 2)
    assert bytes(source[0][2:4]) == cell_bytes(7, Cell("kv", 0, "k", 0, 1, 1, 0), 2)
    assert bytes(source[0][8:10]) == cell_bytes(7, Cell("kv", 0, "k", 0, 1, 2, 0), 2)
    assert np.array_equal(source[0][4:8], before[0][4:8])
    assert np.array_equal(source[0][12:], before[0][12:])
    empty = blank(TP21.decode.ranks[0].layout, SIZES, "D0")
    after = expected(TP21, 0, empty, TP21_ROOM)
    # Decode has position 0 in page 1: token 1 is its second row, head 1 the second cell of that.
    assert bytes(after[0][14:16]) == cell_bytes(7, Cell("kv", 0, "k", 0, 1, 1, 0), 2)
    assert np.array_equal(after[0][16:], empty[0][16:])
    assert np.array_equal(empty[0], blank(TP21.decode.ranks[0].layout, SIZES, "D0")[0])


@pytest.mark.parametrize(
    ("damage", "of_writes", "of_bytes"),
    [
        (lambda w: w[:-1], "5006 was not written", "item 0, byte 6"),
        (lambda w: [*w, w[0]], "5008 was written again", None),
        (lambda w: [*w, Write(0, 1000, 0, 5016, 1)], "5016 is not owed", "item 2, byte 0"),
        (lambda w: [*w, Write(0, 1000, 0, 5031, 1)], "5031 is not owed", "item 3, byte 7"),
        (lambda w: [w[0]._replace(source=1004), *w[1:]], "not one of its holders", "item 1, byte 0"),
        (lambda w: [w[0]._replace(source=1013), *w[1:]], "not one of its holders", "item 1, byte 0"),
        (lambda w: [w[0]._replace(length=1), *w[1:]], "5009 was not written", "item 1, byte 1"),
        (lambda w: [w[0]._replace(prefill=1, source=2000), *w[1:]], "not one of its holders", "item 1, byte 0"),
        (lambda w: [x._replace(target=5000 + ((x.target - 5000) ^ 8)) for x in w], "holders", "kv layer 0 k"),
        (lambda w: [x._replace(target=5000 + ((x.target - 5000) ^ 2)) for x in w], "holders", "kv layer 0 k"),
        (lambda w: [x._replace(target=5000 + ((x.target - 5000) ^ 4)) for x in w], "holders", "kv layer 0 k"),
        (lambda w: [], "5000 was not written", "and 15 bytes more"),
    ],
    ids=[
        "a write too few", "a write twice", "a write too many", "the last byte of the pool", "another page's bytes",
        "a byte too far", "a byte too short", "the other head", "pages swapped", "heads swapped", "tokens swapped",
        "no write",
    ],
)  # fmt: skip
def test_one_thing_wrong_is_noticed(damage, of_writes, of_bytes):
    about_writes, about_bytes = verdict(damage(TP21_WRITES))
    assert of_writes in about_writes[0]
    if of_bytes is None:
        assert about_bytes == []  # the same bytes twice leave no trace: only the writes themselves show it
    else:
        assert of_bytes in about_bytes[0]


def test_every_single_byte_of_a_pool_counts():
    wanted, found = moved(TP21, TP21_ROOM, TP21_WRITES, TP21_AT, (SIZES, SIZES))
    layout = TP21.decode.ranks[0].layout
    for index in range(len(found[0])):
        found[0][index] ^= 1
        item, byte = divmod(index, 8)
        words = compare(layout, wanted, found)
        assert words == [f"kv layer 0 k: item {item}, byte {byte}: {found[0][index]} instead of {wanted[0][index]}"]
        found[0][index] ^= 1
    assert "8 bytes instead of 32" in compare(layout, wanted, (found[0][:8],))[0]


def test_complaints_stop_after_the_first_few():
    assert len(complaints(owed(TP21, TP21_ROOM, *TP21_AT), [])) == 8
    assert len(complaints({}, TP21_WRITES)) == 8


# -- replicas, parts, prefixes, page sizes ----------------------------------------------------------------------------


def test_a_head_that_two_ranks_have_may_come_from_either_but_once():
    pair = Pair(instance(*[Layout(1, (heads(0, 1, 1, page=1),))] * 2), instance(Layout(1, (heads(0, 1, 1, page=1),))))
    room = RoomShape(1, 1, 1, 0, pages_of((2,), (5,)), pages_of((0,)))
    debts = owed(pair, room, [[100], [200]], [[300]])
    assert debts == {(0, 300): {(0, 104), (1, 210)}, (0, 301): {(0, 105), (1, 211)}}
    one, other = Write(0, 104, 0, 300, 2), Write(1, 210, 0, 300, 2)
    assert complaints(debts, [one]) == complaints(debts, [other]) == []
    assert complaints(debts, [Write(0, 104, 0, 300, 1), Write(1, 211, 0, 301, 1)]) == []
    assert "written again" in complaints(debts, [one, other])[0]


def test_each_part_of_a_prompt_comes_from_the_rank_that_has_it():
    layout = Layout(1, (heads(0, 1, 1, page=1),))
    pair = Pair(Instance((Rank(layout, 0, 2), Rank(layout, 1, 2))), instance(layout))
    room = RoomShape(1, 3, 3, 0, pages_of((4, ABSENT, ABSENT), (ABSENT, 7, 0)), pages_of((0, 1, 2)))
    debts = owed(pair, room, [[100], [200]], [[300]])
    firsts = {address[1]: min(sources) for address, sources in debts.items() if address[1] % 2 == 0}
    assert firsts == {300: (0, 108), 302: (1, 214), 304: (1, 200)}
    assert room.prefill[1].valid_pages == (7, 0)
    gap = RoomShape(1, 3, 3, 0, pages_of((4, ABSENT, ABSENT), (ABSENT, ABSENT, 0)), pages_of((0, 1, 2)))
    with pytest.raises(ValueError, match="no prefill rank has byte 0"):
        owed(pair, gap, [[100], [200]], [[300]])


def test_a_prefix_leaves_its_pages_alone_and_pairs_the_others_by_position():
    room = RoomShape(7, 2, 2, 1, pages_of((3, 1), (0, 2)), pages_of((1,)))
    assert {target for _, target in owed(TP21, room, *TP21_AT)} == set(range(5008, 5016))
    assert owed(TP21, room, *TP21_AT)[0, 5008] == {(0, 1004)}
    everything = RoomShape(7, 2, 2, 2, pages_of((3, 1), (0, 2)), pages_of(()))
    assert owed(TP21, everything, *TP21_AT) == {}


def test_pages_of_other_sizes_are_paired_by_token():
    # Three source pages of two tokens, two target pages of four: the second one is filled by half.
    pair = Pair(instance(Layout(2, (heads(0, 1, 1, page=2, width=1),))), instance(Layout(4, (heads(0, 1, 1, 4, 1),))))
    room = RoomShape(1, 3, 2, 0, pages_of((5, 0, 2)), pages_of((1, 0)))
    by_hand = {4: 10, 5: 11, 6: 0, 7: 1, 0: 4, 1: 5}
    debts = owed(pair, room, [[0]], [[0]])
    assert debts == {(0, target): {(0, source)} for target, source in by_hand.items()}
    # The other way round, with a page there already: it ends inside the first source page.
    back = Pair(pair.decode, pair.prefill)
    room = RoomShape(1, 2, 3, 1, pages_of((1, 0)), pages_of((0, 2)))
    by_hand = {0: 6, 1: 7, 4: 0, 5: 1}
    assert owed(back, room, [[0]], [[0]]) == {(0, target): {(0, source)} for target, source in by_hand.items()}


def test_pages_without_rows_go_whole():
    layout = Layout(16, (Buffer(0, "latent", 3),))
    pair = Pair(instance(layout, layout), instance(layout))
    room = RoomShape(1, 2, 3, 0, pages_of((1, 0), (0, 1)), pages_of((2, 0, 1)))
    debts = owed(pair, room, [[0], [100]], [[0]])
    assert sorted(debts) == [(0, byte) for byte in (0, 1, 2, 6, 7, 8)]  # the third target page has no source
    assert debts[0, 7] == {(0, 4), (1, 101)}


def test_padding_and_layers_of_nobody_stay_as_they_were():
    padded = Layout(2, (heads(0, 1, 1, padding=3),))
    other = Layout(2, (heads(0, 1, 1), Buffer(9, "k", 4)))
    pair = Pair(instance(other), instance(padded))
    room = RoomShape(1, 1, 1, 0, pages_of((0,)), pages_of((1,)))
    assert {target for _, target in owed(pair, room, [[0, 50]], [[0]])} == {7, 8, 9, 10}
    before = blank(padded, SIZES, "D0")
    after = expected(pair, 0, before, room)
    assert np.array_equal(before[0][11:], after[0][11:])
    assert np.array_equal(before[0][:7], after[0][:7])
    assert not np.array_equal(before[0][7:11], after[0][7:11])


# -- aux and state -----------------------------------------------------------------------------------------------------


def test_aux_goes_from_any_rank_that_has_it_to_the_slot():
    pair = Pair(
        instance(Layout(1), Layout(1, aux=(Aux("token", 4),)), Layout(1, aux=(Aux("score", 2), Aux("token", 4)))),
        instance(Layout(1, aux=(Aux("token", 4), Aux("score", 2)))),
    )
    room = RoomShape(1, 0, 0, 0, (Places(()), Places((), 2), Places((), 0)), (Places((), 1),))
    debts = owed(pair, room, [[], [100], [200, 300]], [[0, 50]])
    assert debts[0, 4] == {(1, 108), (2, 300)}
    assert debts[0, 7] == {(1, 111), (2, 303)}
    assert debts[0, 52] == {(2, 200)}
    assert len(debts) == 6


def test_grouped_dimensions_are_sliced_group_by_group():
    def mamba(buffer):
        return Layout(1, state=(Component("mamba", (buffer,)),))

    pair = Pair(instance(mamba(conv(0, 2, 0, 1)), mamba(conv(2, 2, 1, 1))), instance(mamba(conv(0, 4, 0, 2))))
    sources, target = (("mamba", (1,)),), (("mamba", (0,)),)
    room = RoomShape(1, 0, 0, 0, (Places((), None, sources), Places((), None, sources)), (Places((), None, target),))
    debts = owed(pair, room, [[0], [100]], [[0]])
    # A source slot has rows x x x x b, the target's rows are x x x x x x x x b b; source slot 1 starts at byte 10.
    first, second = range(10, 15), range(110, 115)
    row = [*[(0, a) for a in first[:4]], *[(1, a) for a in second[:4]], (0, first[4]), (1, second[4])]
    by_hand = [{one} for one in row] + [{(rank, address + 5)} for rank, address in row]
    assert [debts[0, byte] for byte in range(20)] == by_hand
    assert len(debts) == 20


def test_indices_are_paired_in_their_order_and_components_by_name():
    one, two = Component("one", (Buffer(0, "s", 2),)), Component("two", (Buffer(0, "s", 2),))
    pair = Pair(instance(Layout(1, state=(two, one))), instance(Layout(1, state=(one, two))))
    source = Places((), None, (("one", (3, 0)), ("two", ())))
    target = Places((), None, (("one", (1, 2)), ("two", ())))
    room = RoomShape(1, 0, 0, 0, (source,), (target,))
    debts = owed(pair, room, [[0, 100]], [[0, 50]])
    assert debts == {(0, 2): {(0, 106)}, (0, 3): {(0, 107)}, (0, 4): {(0, 100)}, (0, 5): {(0, 101)}}
    assert target.indices("unheard of") == ()


def test_sizes_count_items_by_part():
    layout = Layout(1, (Buffer(0, "k", 4),), (Aux("token", 8),), (Component("one", (Buffer(0, "s", 16),)),))
    assert bytes_in(layout, Sizes(1, 2, {"one": 3})) == 4 + 16 + 48
    assert [len(array) for array in blank(layout, Sizes(1, 2, {"one": 3}), "D0")] == [4, 16, 48]


# -- what nobody can carry out -----------------------------------------------------------------------------------------


def test_two_cells_at_one_address_are_not_owed_but_refused():
    twice = heads(0, 1, 1)._replace(shards=heads(0, 1, 1).shards * 2)
    pair = Pair(instance(Layout(2, (twice,))), instance(Layout(2, (twice,))))
    with pytest.raises(ValueError, match="two cells at address 0"):
        owed(pair, RoomShape(1, 1, 1, 0, pages_of((0,)), pages_of((0,))), [[0]], [[0]])


def test_cells_outside_a_pool_are_refused():
    room = RoomShape(7, 2, 2, 0, pages_of((3, 4), (0, 2)), pages_of((1, 0)))
    with pytest.raises(ValueError, match="outside buffer 0"):
        paint(TP21.prefill, 0, blank(TP21.prefill.ranks[0].layout, SIZES, "P0"), room)
    three = Buffer(0, "k", 8, "uint8", (Shard(0, 3, 2, 1, 2, 2, 0, 1),))
    with pytest.raises(ValueError, match="3 rows in pages of 2 tokens"):
        list(due_spots(Pair(TP21.prefill, instance(Layout(2, (three,)))), 0, TP21_ROOM))
