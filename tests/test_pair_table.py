"""The pieces of one pair of ranks, case by case: what shares one, where they are cut, what goes through slots."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from plan_support import heads, kv, rank, share, side, swa

from kvrooms.protocol import shaped
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.grids import Grid, Side
from kvrooms.protocol.layout import BufferSpec, ComponentSpec, Owed, Region, Regions, Shard
from kvrooms.protocol.manifest import Manifest
from kvrooms.protocol.notify import Part, PartKind
from kvrooms.protocol.plan import Landing, Piece, Transfer
from kvrooms.protocol.shaped import PairTable
from kvrooms.protocol.shares import Entry
from kvrooms.protocol.staging import Slots, Staging

KV, AUX, STATE = PartKind.KV, PartKind.AUX, PartKind.STATE
HERE, THERE, SLOT = 2**40, 2**41, 2**33


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


# -- pieces, one by one ------------------------------------------------------------------------------------------------


def buffers(count: int, stride: int = 8, rows: int = 4, **change: Any) -> list[BufferSpec]:
    """Layers of four heads of 8 bytes a token, so far apart."""
    shard = Shard(0, rows, 4 * stride, 4, stride, 8, 0, 4)
    length = 4 * stride * rows
    return [heads(0, 4, shards=(shard,), item_length=length, layer=i, **change) for i in range(count)]


CLOSE, APART = side(rank(*buffers(3)).layout, HERE), side(rank(*buffers(3, 16)).layout, THERE)
WHOLE = tuple(kv(i, 0, 4) for i in range(3))
SHORT = Staging(64, 4096)


def lender(parts: Any = ((KV, ""),), length: int = 4096) -> Slots:
    return Slots(SLOT, 4, length, parts)


def pages(count: int, layers: tuple[int, ...] | None = None, first: int = 0) -> Transfer:
    items = numbers(*range(count))
    return Transfer(KV, 0, 0, first, items, items, 0, layers)


def mixed(memory: Literal["DRAM", "VRAM"] = "DRAM") -> Side:
    """A page of 32 bytes, an aux buffer of 8, a state of 32."""
    layout = rank(heads(0, 4, rows=1), page=1, aux=("a",), state=[swa()]).layout
    return Side(layout, Regions((Region(64, 9),), (Region(4096, 9, memory),), ((Region(8192, 9),),)))


EVERY = kv(0, 0, 4), Entry(AUX, "a", 0, 0, 0, 0, 1), Entry(STATE, "s", 0, 0, 0, 0, 4)
ONE = numbers(0)
AUX_SLOT, STATE_ITEM = (Transfer(AUX, 0, 0, 0, ONE, ONE), ""), (Transfer(STATE, 0, 0, 0, ONE, ONE), "s")


def shape_of(made: list[Piece]) -> list[tuple[str, int, bool]]:
    """Per piece the kinds of its parts, its bytes, and whether it waits for those before it."""
    return [("".join(part.kind.name[0] for part in p.parts), p.bytes, p.ordered) for p in made]


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (136, [("KASK", 136, False)]),
        (104, [("KAS", 72, False), ("K", 64, False)]),
        (72, [("KAS", 72, False), ("K", 64, False)]),
        (71, [("KA", 40, False), ("S", 32, False), ("K", 64, False)]),
        (64, [("KA", 40, False), ("S", 32, False), ("K", 64, False)]),
        (39, [("K", 32, False), ("A", 8, False), ("S", 32, False), ("K", 32, False), ("K", 32, False)]),
    ],
)
def test_small_parts_share_a_piece(limit: int, wanted: list[tuple[str, int, bool]]) -> None:
    todo = [(pages(1), ""), AUX_SLOT, STATE_ITEM, (pages(2, first=1), "")]
    assert shape_of(list(PairTable(mixed(), mixed(), share(*EVERY)).pieces(todo, limit))) == wanted


def test_parts_of_several_memories_or_too_many_do_not_share_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [(pages(1), ""), AUX_SLOT, STATE_ITEM]
    for ends in ((mixed("VRAM"), mixed()), (mixed(), mixed("VRAM"))):
        made = list(PairTable(*ends, share(*EVERY)).pieces(todo, 1000))
        assert shape_of(made) == [("K", 32, False), ("A", 8, False), ("S", 32, False)]
        assert [(p.source_memory, p.destination_memory) for p in made][::2] == [("DRAM", "DRAM")] * 2
    monkeypatch.setattr(shaped, "PARTS_MAX", 2)
    made = list(PairTable(mixed(), mixed(), share(*EVERY)).pieces(todo, 1000))
    assert shape_of(made) == [("KA", 40, False), ("S", 32, False)]


def test_what_is_too_large_goes_run_by_run_and_alone() -> None:
    layout = rank(*buffers(2, 16, rows=1), page=1, aux=("a",)).layout
    ends = side(layout, HERE), side(layout, THERE)
    pair = PairTable(*ends, share(kv(0, 0, 2), kv(1, 0, 2), EVERY[1]))
    made = list(pair.pieces([AUX_SLOT, (pages(2), ""), AUX_SLOT], 20))
    assert shape_of(made) == [
        ("A", 8, False), ("", 16, False), ("K", 16, True), ("", 16, False), ("K", 16, True), ("A", 8, False),
    ]  # fmt: skip
    assert [part for p in made for part in p.parts if part.kind is KV] == [Part(KV, 0, 0, 1), Part(KV, 0, 1, 1)]
    assert shape_of(list(pair.pieces([(pages(2), "")], 1)))[:4] == [("", 8, False)] * 3 + [("K", 8, True)]


def test_positions_are_cut_between_each_other() -> None:
    made = list(PairTable(CLOSE, APART, share(*WHOLE)).pieces([(pages(4), "")], 3 * 384))
    assert [p.parts for p in made] == [(Part(KV, 0, at, n),) for at, n in ((0, 3), (3, 1))]
    made = list(PairTable(CLOSE, APART, share(*WHOLE)).pieces([(pages(2), "")], 384 + 200))
    assert [p.parts for p in made] == [(Part(KV, 0, 0, 1),), (Part(KV, 0, 1, 1),)]


def test_a_position_is_cut_between_runs_as_seldom_as_can_be() -> None:
    pair = PairTable(CLOSE, APART, share(*(kv(i, 0, 2) for i in range(3))))
    assert [p.bytes for p in pair.pieces([(pages(1), "")], 10 * 8)] == [80, 80, 32]
    two = side(rank(*buffers(3, rows=2), page=2).layout, THERE)
    pair = PairTable(CLOSE, two, share(*WHOLE))
    sent = Transfer(KV, 0, 0, 0, ONE, numbers(0, 1))
    assert shape_of(list(pair.pieces([(sent, "")], 200))) == [("", 128, False)] * 2 + [("K", 128, True)]
    assert shape_of(list(PairTable(CLOSE, two, share(WHOLE[0])).pieces([(sent, "")], 1))) == [("K", 128, False)]


def test_addresses_are_whole_numbers_to_the_last_byte() -> None:
    ours, theirs = (side(APART.layout, base) for base in (2**62 + 1, 2**61 + 3))
    (piece,) = PairTable(ours, theirs, share(kv(0, 0, 1))).pieces([(pages(2), "")], 10**6)
    rows = [64 * row + 256 * item for row in range(4) for item in range(2)]
    assert piece.source_descriptors.tolist() == [[2**62 + 1 + at, 8, 0] for at in rows]
    assert piece.destination_descriptors.tolist() == [[2**61 + 3 + at, 8, 0] for at in rows]


def test_the_descriptors_name_the_devices() -> None:
    ours, theirs = (
        Side(rank(heads(0, 4)).layout, Regions((Region(at, 4, "VRAM", device),), (), ()))
        for at, device in ((64, 3), (96, 5))
    )
    (piece,) = PairTable(ours, theirs, share(kv(0, 0, 4))).pieces([(pages(1), "")], 1000)
    assert piece.source_descriptors.tolist() == [[64, 128, 3]]
    assert piece.destination_descriptors.tolist() == [[96, 128, 5]]
    assert (piece.source_memory, piece.destination_memory) == ("VRAM", "VRAM")


def test_whole_items_that_follow_each_other_on_both_sides_are_one_write() -> None:
    pair = PairTable(CLOSE, side(CLOSE.layout, THERE, 9), share(kv(0, 0, 4)))
    for source, target, runs in (
        ((1, 2), (5, 6), 1),
        ((1, 2, 3), (5, 6, 7), 1),
        ((1, 2, 3), (5, 6, 8), 2),
        ((0, 2, 3), (5, 6, 7), 2),
    ):
        (piece,) = pair.pieces([(Transfer(KV, 0, 0, 0, numbers(*source), numbers(*target)), "")], 10**6)
        assert len(piece.source_descriptors) == runs
        for base, items, rows in (
            (HERE, source, piece.source_descriptors),
            (THERE, target, piece.destination_descriptors),
        ):
            assert span(rows) == [base + 128 * item + k for item in items for k in range(128)]


def span(rows: Any) -> list[int]:
    """The address of every byte of some descriptors."""
    return [address + k for address, length, _ in rows.tolist() for k in range(length)]


def test_pages_of_some_layers_go_between_what_comes_before_and_after() -> None:
    pair = PairTable(mixed(), mixed(), share(*EVERY))
    todo = [AUX_SLOT, STATE_ITEM, (pages(2, (0,), first=3), ""), STATE_ITEM]
    made = list(pair.pieces(todo, 1000))
    assert shape_of(made) == [("AS", 40, False), ("K", 64, True), ("S", 32, False)]
    assert made[1].parts == (Part(KV, 0, 3, 2),)
    (piece,) = pair.pieces([(pages(2, (0,), first=3)._replace(report=False), "")], 1000)
    assert (piece.parts, piece.ordered) == ((), False)


def test_layers_are_planned_once_and_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[int, ...]] = []
    of = Grid.of
    monkeypatch.setattr(Grid, "of", lambda self, some: planned.append(some) or of(self, some))
    pair = PairTable(CLOSE, APART, share(*WHOLE))
    for layers in ((0,), (0, 2), (0,), (0, 2)):
        assert [p.bytes for p in pair.pieces([(pages(1, layers), "")], 10**6)] == [128 * len(layers)]
    assert planned == [(0,), (0, 2)]
    monkeypatch.setattr(shaped, "_LAYERED_MAX", 2)
    for layers in ((2,), (2,), (0,)):
        list(pair.pieces([(pages(1, layers), "")], 10**6))
    assert planned == [(0,), (0, 2), (2,), (0,)]


# -- through slots -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runs", "gathered"), [(96, True), (97, False)])
def test_few_runs_are_not_gathered(runs: int, gathered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "RUNS_MIN", runs)
    pair = PairTable(APART, CLOSE, share(*WHOLE), SHORT)
    assert pair.stages
    (piece,) = pair.pieces([(pages(2), "")], 10**6)
    assert (piece.staged is not None) == gathered
    assert len(piece.source_descriptors) == (6 if gathered else 96)
    assert piece.landing is None


def test_few_runs_share_a_piece_as_others_do() -> None:
    ours, theirs = (side(rank(*buffers(1, stride), aux=("a",)).layout) for stride in (16, 8))
    pair = PairTable(ours, theirs, share(kv(0, 0, 4), EVERY[1]), SHORT)
    assert pair.stages
    assert shape_of(list(pair.pieces([AUX_SLOT, (pages(1), ""), AUX_SLOT], 10**6))) == [("AKA", 144, False)]
    assert shape_of(list(pair.pieces([(pages(1), "")], 64))) == [("", 64, False), ("K", 64, True)]


def test_what_is_gathered_lies_in_the_slot_segment_by_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "RUNS_MIN", 1)
    (piece,) = PairTable(APART, CLOSE, share(kv(0, 0, 2)), SHORT).pieces([(pages(2), "")], 10**6)
    slot = [THERE + 256 * page + 64 * row + 16 * unit for row in range(4) for page in (0, 1) for unit in (0, 1)]
    packed = piece.staged.pack()
    assert [packed.origin + grain * packed.grain for grain in packed.grains.tolist()] == slot
    assert piece.source_descriptors.tolist() == [[16 * n, 16, 0] for n in range(8)]
    assert span(piece.destination_descriptors)[::16] == [HERE + 128 * n + 32 * row for row in range(4) for n in (0, 1)]


def test_what_is_gathered_is_cut_between_segments_that_fit_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "RUNS_MIN", 1)
    for slot_bytes, sizes in ((384, [384]), (383, [256, 128]), (128, [128] * 3)):
        made = list(PairTable(APART, CLOSE, share(*WHOLE), Staging(64, slot_bytes)).pieces([(pages(1), "")], 10**6))
        assert [(p.bytes, p.staged is not None) for p in made] == [(size, True) for size in sizes]
    made = list(PairTable(APART, CLOSE, share(*WHOLE), Staging(64, 127)).pieces([(pages(1), "")], 10**6))
    assert [(p.bytes, p.staged is None, p.ordered) for p in made] == [(128, True, False)] * 2 + [(128, True, True)]
    made = list(PairTable(APART, CLOSE, share(*WHOLE), Staging(64, 10**6)).pieces([(pages(1), "")], 130))
    assert [(p.bytes, p.staged is not None) for p in made] == [(128, True)] * 3


def test_what_is_gathered_or_scattered_shares_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "RUNS_MIN", 1)
    for staging, slots in ((SHORT, None), (SHORT, lender())):
        kinds = [rank(*buffers(3, stride), aux=("a",)).layout for stride in ((16, 8) if slots is None else (8, 16))]
        pair = PairTable(side(kinds[0], HERE), side(kinds[1], THERE), share(*WHOLE, EVERY[1]), staging, slots)
        todo = [AUX_SLOT, (pages(1), ""), AUX_SLOT, AUX_SLOT]
        made = list(pair.pieces(todo, 10**6, lent=True))
        assert shape_of(made) == [("A", 8, False), ("K", 384, False), ("AA", 16, False)]


def test_what_is_scattered_is_cut_between_buffers_and_where_some_are_left_out() -> None:
    pair = PairTable(CLOSE, APART, share(*WHOLE), SHORT, lender())
    for limit, ranges in ((10**6, [(0, 3)]), (256, [(0, 2), (2, 3)]), (255, [(0, 1), (1, 2), (2, 3)])):
        made = list(pair.pieces([(pages(1), "")], limit, lent=True))
        assert [p.landing for p in made] == [Landing(Part(KV, 0, 0, 1), *some) for some in ranges]
        assert [p.ordered for p in made] == [False] * (len(ranges) - 1) + [len(ranges) > 1]
    for layers, ranges in (((0, 2), [(0, 1), (2, 3)]), ((1, 2), [(1, 3)]), ((2,), [(2, 3)])):
        made = list(pair.pieces([(pages(1, layers), "")], 10**6, lent=True))
        assert [p.landing for p in made] == [Landing(Part(KV, 0, 0, 1), *some) for some in ranges]
    made = list(
        PairTable(CLOSE, APART, share(*WHOLE), SHORT, lender(length=256)).pieces([(pages(1), "")], 10**6, lent=True)
    )
    assert [p.bytes for p in made] == [256, 128]


def test_slots_are_used_where_a_grant_has_some_and_for_parts_that_the_receiver_scatters() -> None:
    for staging, parts, lent, landed in (
        (SHORT, ((KV, ""),), True, True),
        (SHORT, ((KV, ""),), False, False),
        (SHORT, ((STATE, "s"),), True, False),
        (None, ((KV, ""),), True, False),
    ):
        pair = PairTable(CLOSE, APART, share(*WHOLE), staging, lender(parts))
        (piece,) = pair.pieces([(pages(1), "")], 10**6, lent=lent)
        assert (piece.landing is not None) == landed
        assert pair.stages == (staging is not None)
    (piece,) = PairTable(CLOSE, APART, share(*WHOLE), SHORT, lender()).pieces([(pages(1), "")], 10**6)
    assert piece.landing is None
    assert not PairTable(CLOSE, APART, share(*WHOLE), SHORT).stages


@pytest.mark.parametrize(("longest", "gathered"), [(127, False), (128, True)])
def test_long_ranges_go_to_a_slot_of_the_receiver_as_they_are(longest: int, gathered: bool) -> None:
    pair = PairTable(CLOSE, APART, share(*WHOLE), Staging(longest, 4096), lender())
    (piece,) = pair.pieces([(pages(2), "")], 10**6, lent=True)
    assert (piece.staged is not None) == gathered
    assert len(piece.source_descriptors) == (1 if gathered else 3)
    assert piece.destination_memory == "DRAM"
    if gathered:
        assert piece.source_descriptors.tolist() == [[0, 768, 0]]
    assert piece.destination_descriptors.tolist()[0][2] == 0
    direct = piece.staged.direct() if piece.staged else piece
    assert direct.source_descriptors.tolist() == [[HERE + 2**16 * i, 256, 0] for i in range(3)]
    assert direct.destination_descriptors.tolist() == [[256 * i, 256, 0] for i in range(3)]


def test_slots_are_in_the_memory_of_the_host_wherever_the_pages_are() -> None:
    theirs = Side(APART.layout, Regions(tuple(Region(at, 4, "VRAM", 3) for at in (0, 4096, 8192)), (), ()))
    (piece,) = PairTable(CLOSE, theirs, share(*WHOLE), SHORT, lender()).pieces([(pages(1), "")], 10**6, lent=True)
    assert (piece.source_memory, piece.destination_memory) == ("DRAM", "DRAM")
    assert [row[2] for row in piece.destination_descriptors.tolist()] == [0] * len(piece.destination_descriptors)


def test_what_a_receiver_scatters_and_how_much_that_is() -> None:
    layout = rank(
        *buffers(3, 16), aux=("a", "b"), state=[ComponentSpec("s", "swa", Owed.ALWAYS, tuple(buffers(2, 16)))]
    ).layout
    here, there = side(layout, HERE), side(layout, THERE)
    states = tuple(Entry(STATE, "s", i, i, 0, 0, 4) for i in range(2))
    entries = (*WHOLE, *(Entry(AUX, name, 0, 0, 0, 0, 1) for name in "ab"), *states)
    pair = PairTable(here, there, share(*entries), SHORT)
    assert pair.scattered == ((KV, ""), (STATE, "s"))
    assert (pair.count(KV, ""), pair.count(STATE, "s"), pair.count(AUX, "")) == (3, 2, 2)
    assert pair.scattered_size(Manifest(5, ((2, 5),), (), (("s", 2),))) == (3 * 48 + 2 * 32, 3 * 384 + 2 * 256)
    assert pair.scattered_size(Manifest(0, (), (), ())) == (0, 0)
    assert pair.buffers() == {0, 1, 2}
    assert PairTable(here, there, share(*states)).buffers() == frozenset()
    assert PairTable(here, there, share(*entries)).scattered == ()
    small = side(rank(*buffers(3, 16, rows=2), page=2).layout, THERE)
    assert PairTable(here, small, share(*WHOLE), SHORT).scattered_size(Manifest(3, ((0, 3),), (), ())) == (144, 1152)


def test_the_words_for_what_is_not_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PairTable(CLOSE, APART, share(*WHOLE), SHORT)
    assert pair.unpacking(pages(2), "", 1, 3, 512).bytes == 512
    for first, stop, most, words in (
        (1, 4, 10**6, "1 to 4 of KV '' are not to be scattered"),
        (1, 3, 511, "512 bytes do not fit a slot of 511"),
    ):
        with pytest.raises(WireError, match=words) as caught:
            pair.unpacking(pages(2), "", first, stop, most)
        assert caught.value.field == "buffers"
    with pytest.raises(WireError, match="0 to 1 of STATE 's' are not to be scattered"):
        pair.unpacking(Transfer(STATE, 0, 0, 0, ONE, ONE), "s", 0, 1, 10**6)


def test_the_words_for_slots_that_are_too_short() -> None:
    PairTable(CLOSE, APART, share(*WHOLE), SHORT, lender(length=128))
    words = "slots of 127 bytes for KV '', of which 128 lie in one buffer"
    with pytest.raises(WireError, match=words):
        PairTable(CLOSE, APART, share(*WHOLE), SHORT, lender(length=127))


def test_the_words_for_an_item_that_is_not_there() -> None:
    pair = PairTable(CLOSE, APART, share(*WHOLE))
    for source, target, words in (
        ([3, 4], [0, 0], "plan.source: KV item 4 of 4"),
        ([0, 1], [4, 3], "plan.destination: KV item 4 of 4"),
        ([0, 0], [-1, 3], "plan.destination: KV item -1 of 4"),
    ):
        with pytest.raises(WireError, match=words):
            list(pair.pieces([(Transfer(KV, 0, 0, 0, numbers(*source), numbers(*target)), "")], 10**6))
