"""Who sends what, and the plans between unlike layouts, beside the oracle of the shapes; and what is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import msgspec
import numpy as np
import pytest
from plan_support import heads, rank, swa

from kvrooms.protocol.errors import WireError
from kvrooms.protocol.layout import (
    BufferSpec,
    Instance,
    Layout,
    Owed,
    Region,
    Regions,
    Shard,
    check_layout,
    differences,
)
from kvrooms.protocol.manifest import Declaration, Manifest, check_manifest, derive
from kvrooms.protocol.manifest import differences as manifests_differ
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.plan import DescriptorTable, Transfer, pieces
from kvrooms.protocol.registration import Registration, decode_announcement, encode_announcement
from kvrooms.protocol.shaped import PairTable, Side
from kvrooms.protocol.shares import CannotPair, Covers, Entry, Share, check_share, covers_of, pair_up
from kvrooms.shapes import deal, judge, oracle, pools, table

NONE = np.empty(0, dtype=np.int32)


def regions_of(layout: Layout, pool: Any, sizes: Any) -> Regions:
    """Where a pool's buffers are."""
    arrays = iter(pool)

    def region(items: int) -> Region:
        return Region(next(arrays).ctypes.data, items)

    kv = tuple(region(sizes.pages) for _ in layout.kv)
    aux = tuple(region(sizes.slots) for _ in layout.aux)
    return Regions(kv, aux, tuple(tuple(region(sizes.state[c.name]) for _ in c.buffers) for c in layout.state))


def written(pair: PairTable, transfers: list[tuple[Transfer, str]], limit: int) -> tuple[int, list[Any]]:
    """Carry the pieces out with the CPU; how many bytes, and what they report."""
    count, parts = 0, []
    for piece in pair.pieces(transfers, limit):
        assert piece.source_descriptors is not None
        assert piece.destination_descriptors is not None
        rows = zip(piece.source_descriptors.tolist(), piece.destination_descriptors.tolist(), strict=True)
        for (source, length, _), (target, other, _) in rows:
            assert length == other
            ctypes.memmove(target, source, length)
            count += length
        parts += piece.parts
    return count, parts


def move(case: Any, room: Any, memories: Any, limit: int, *, by_layer: bool) -> int:
    """All writes of a room; how many bytes."""
    prefill, decode, sources, targets = memories
    count = 0
    for (p, d), share in pair_up(prefill, decode).shares.items():
        sender, receiver = prefill.ranks[p], decode.ranks[d]
        check_share(share, sender.layout, receiver.layout)
        pair, covers = PairTable(sources[p], targets[d], share), covers_of(share, sender)
        places, wanted = room.prefill[p], room.decode[d]
        ours, theirs = sender.layout.page_size, receiver.layout.page_size
        transfers: list[tuple[Transfer, str]] = []
        for low, high in covers.positions(room.source_pages, room.prefix * theirs // ours):
            pages = np.array(places.pages[low:high], dtype=np.int32)
            to = np.array(wanted.pages, dtype=np.int32)
            to = to[low - room.prefix : high - room.prefix] if ours == theirs else to
            whole = Transfer(PartKind.KV, 0, 0, low, pages, to, room.prefix)
            mine = sorted(pair.buffers())
            for n, buffer in enumerate(mine if by_layer else ()):
                transfers.append((whole._replace(buffers=(buffer,), report=n == len(mine) - 1), ""))
            transfers += [] if by_layer else [(whole, "")]
        for number, name in enumerate(covers.state):
            items, to = (np.array(side.indices(name), dtype=np.int32) for side in (places, wanted))
            if len(items):
                transfers.append((Transfer(PartKind.STATE, number, 0, 0, items, to), name))
        if covers.aux:
            slots = [np.array([side.aux_slot], dtype=np.int32) for side in (places, wanted)]
            transfers.append((Transfer(PartKind.AUX, 0, 0, 0, *slots), ""))
        moved, parts = written(pair, transfers, limit)
        count += moved
        assert sum(part.size for part in parts) == sum(len(t.source) for t, _ in transfers if t.report)
    return count


@pytest.mark.parametrize("name", table.CASES)
def test_every_byte_is_where_the_oracle_says(name: str) -> None:
    case = table.CASES[name]
    for limit, by_layer in ((2**24, False), (3000, False), (700, True)):
        rooms, decode = deal.rooms(case), case.decode
        sizes, to_sizes = deal.prefill_sizes(case), deal.decode_sizes(case)
        found = [pools.blank(rank.layout, to_sizes, f"d{i}") for i, rank in enumerate(decode.ranks)]
        wanted = [pools.copy_of(pool) for pool in found]
        targets = [
            Side(r.layout, regions_of(r.layout, pool, to_sizes)) for r, pool in zip(decode.ranks, found, strict=True)
        ]
        for room in rooms:
            prefill = case.prefill[room.instance]
            given = [pools.blank(rank.layout, sizes, f"p{i}") for i, rank in enumerate(prefill.ranks)]
            for i in range(len(given)):
                oracle.paint(prefill, i, given[i], room)
            sources = [
                Side(r.layout, regions_of(r.layout, pool, sizes)) for r, pool in zip(prefill.ranks, given, strict=True)
            ]
            count = move(case, room, (prefill, decode, sources, targets), limit, by_layer=by_layer)
            due = [oracle.due_bytes(oracle.Pair(prefill, decode), d, room) for d in range(len(decode.ranks))]
            assert count == sum(due), "bytes that are owed are written once"
            wanted = [oracle.expected(oracle.Pair(prefill, decode), d, wanted[d], room) for d in range(len(wanted))]
        for r, want, have in zip(decode.ranks, wanted, found, strict=True):
            assert judge.compare(r.layout, want, have) == []


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        ((rank(heads(0, 2)),), (rank(heads(0, 4)),), "no prefill rank has units 2 to 3"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, layer=3)),), "no prefill rank has it"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4), aux=("x",)),), "aux 'x'"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4), state=[swa()]),), "state component 's'"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, dtype="int8")),), "element type"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, shards=())),), "total is 4"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, shards=heads(0, 4).shards * 2)),), "1 shards"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, size=16)),), "unit_bytes is 8"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4, rows=2)),), "rows are 4"),
        ((rank(heads(0, 4, rows=1)),), (rank(heads(0, 4, rows=1), page=8),), "rows are 1"),
        ((rank(heads(0, 4)), rank(heads(0, 4), page=8)), (rank(heads(0, 4)),), "page_size: the prefill ranks differ"),
        ((rank(heads(0, 4)),), (rank(heads(0, 4), cp=(0, 2)),), "only prefill may split"),
        ((rank(state=[swa()]),), (rank(state=[swa("dsa")]),), "kind is 'swa'"),
        ((rank(state=[swa()]),), (rank(state=[swa(owed=Owed.ALWAYS)]),), "owes it when_indexed"),
    ],
)
def test_instances_that_cannot_work_together(prefill: Any, decode: Any, words: str) -> None:
    with pytest.raises(CannotPair) as caught:
        pair_up(Instance(prefill), Instance(decode))
    assert words in str(caught.value)
    assert len(caught.value.words) == len(set(caught.value.words))


def test_ranks_without_anything_take_part() -> None:
    nothing = rank(cp=(0, 1))
    shares = pair_up(Instance((rank(heads(0, 4)), nothing)), Instance((nothing, rank(heads(0, 4))), 9))
    assert {pair: len(share.entries) for pair, share in shares.shares.items()} == {(0, 0): 0, (0, 1): 1, (1, 1): 0}
    assert shares.senders(1) == [0, 1]
    assert {share.instance for share in shares.shares.values()} == {9}


def test_units_that_follow_each_other_are_one_entry() -> None:
    shares = pair_up(Instance((rank(heads(0, 4)),)), Instance((rank(heads(0, 4)), rank(heads(0, 2)))))
    assert [(e.first, e.stop) for e in shares.shares[0, 0].entries] == [(0, 4)]
    assert [(e.first, e.stop) for e in shares.shares[0, 1].entries] == [(0, 2)]


KV = PartKind.KV
GOOD = Entry(KV, "", 0, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("entry", "sender", "words"),
    [
        (msgspec.structs.replace(GOOD, source=1), {}, "not there"),
        (msgspec.structs.replace(GOOD, target=7), {}, "not there"),
        (msgspec.structs.replace(GOOD, shard=1), {}, "no pair"),
        (GOOD, {"layer": 5}, "no pair"),
        (GOOD, {"dtype": "int8"}, "element type"),
        (msgspec.structs.replace(GOOD, stop=5), {}, "has units 0 to 3"),
        (msgspec.structs.replace(GOOD, first=2), {}, "has units 0 to 3"),
    ],
)
def test_a_share_that_speaks_of_what_is_not_there(entry: Entry, sender: dict[str, Any], words: str) -> None:
    theirs = rank(heads(0, 4)).layout
    with pytest.raises(WireError, match=words) as caught:
        check_share(Share(1, 1, 0, (entry,)), rank(heads(0, 4, **sender)).layout, theirs)
    assert caught.value.field == "share.entries[0]"
    with pytest.raises(WireError):
        check_share(Share(1, 1, 1, ()), theirs, theirs)


def side(spec: BufferSpec, page: int = 4, items: int = 3) -> Side:
    return Side(rank(spec, page=page).layout, Regions((Region(4096, items),), (), ()))


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (side(heads(0, 4)), side(heads(0, 4, rows=2)), "cannot be paired"),
        (side(heads(0, 4)), side(heads(0, 4, item_length=20)), "ends at"),
        (side(heads(0, 4, rows=1)), side(heads(0, 4, rows=1), page=8), "cannot be paired"),
    ],
)
def test_a_plan_that_would_leave_its_items(ours: Side, theirs: Side, words: str) -> None:
    with pytest.raises(WireError, match=words):
        PairTable(ours, theirs, Share(1, 1, 0, (msgspec.structs.replace(GOOD, stop=4),)))


def test_a_plan_of_too_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = heads(0, 4, shards=(Shard(0, 4, 64, 4, 16, 8, 0, 4),), item_length=256)
    for limit in (2, 20):
        monkeypatch.setattr("kvrooms.protocol.grids.RUNS_MAX", limit)
        with pytest.raises(WireError, match="at most"):
            PairTable(side(wide), side(wide), Share(1, 1, 0, (msgspec.structs.replace(GOOD, stop=4),) * 2))


@pytest.mark.parametrize("count", [1, 2, 16, 17, 100])
@pytest.mark.parametrize("wrong", [-1, -(2**31), 200, 2**31 - 1])
def test_items_out_of_range_are_named(count: int, wrong: int) -> None:
    """By both planners, wherever the item stands, and before anything is written."""
    layout = rank(heads(0, 4)).layout
    ends = [Side(layout, Regions((Region(base, 200),), (), ())) for base in (1 << 20, 1 << 30)]
    pair = PairTable(*ends, Share(1, 1, 0, (msgspec.structs.replace(GOOD, stop=4),)))
    tables = [DescriptorTable(one.layout, one.regions) for one in ends]
    for at in {0, count // 2, count - 1}:
        good, bad = np.arange(100, 100 + count, dtype=np.int32), np.arange(100, 100 + count, dtype=np.int32)
        bad[at] = wrong
        for source, destination, field in ((bad, good, "plan.source"), (good, bad, "plan.destination")):
            some = Transfer(KV, 0, 0, 0, source, destination)
            for made in (pair.pieces([(some, "")], 1 << 20), pieces(*tables, [some], 1 << 20)):
                with pytest.raises(WireError) as caught:
                    next(iter(made))
                assert str(caught.value) == f"{field}: KV item {wrong} of 200"
    last = Transfer(KV, 0, 0, 0, np.full(count, 199, dtype=np.int32), np.zeros(count, dtype=np.int32))
    assert list(pair.pieces([(last, "")], 1 << 20))
    assert list(pieces(*tables, [last], 1 << 20))


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        (rank(heads(0, 4), heads(0, 4)).layout, "layout.kv"),
        (rank(heads(0, 4, item_length=9)).layout, "layout.kv"),
        (rank(heads(3, 4)).layout, "layout.kv"),
        (rank(aux=("a", "a")).layout, "layout.aux"),
        (rank(state=[swa(), swa(layer=2)]).layout, "layout.state"),
    ],
)
def test_a_layout_that_contradicts_itself(layout: Layout, field: str) -> None:
    with pytest.raises(WireError) as caught:
        check_layout(layout)
    assert caught.value.field == field


def test_shards_are_part_of_what_must_be_equal() -> None:
    assert "shards" in " ".join(differences(rank(heads(0, 4)).layout, rank(heads(0, 4, 8)).layout) or ("shards",))
    other = heads(0, 4, shards=(Shard(0, 4, 32, 4, 8, 8, 4, 8),))
    assert "our shards are" in differences(rank(heads(0, 4)).layout, rank(other).layout)[0]


def test_manifests_of_a_part_of_a_prompt() -> None:
    layout, covers = rank(heads(0, 4), aux=("a",)).layout, Covers(kv=True, aux=(), state=(), cp_rank=1, cp_size=2)
    manifest = derive(layout, 5, 1, (), aux=True, covers=covers)
    assert manifest == Manifest(5, ((2, 5),), (), ())
    check_manifest(layout, manifest, covers)
    with pytest.raises(WireError, match="this rank's part"):
        check_manifest(layout, Manifest(5, ((1, 4),), (), ()), covers)
    assert Covers(kv=False, aux=(), state=()).positions(5, 0) == ()
    assert manifests_differ(Declaration(5, ("a",), ()), manifest, covers) == ()
    assert manifests_differ(Declaration(None, None, None), manifest, covers) == ()


def test_what_waits_for_company_goes_before_pages_of_some_layers() -> None:
    entries = (msgspec.structs.replace(GOOD, stop=4), Entry(PartKind.AUX, "a", 0, 0, 0, 0, 1))
    layout = rank(heads(0, 4), aux=("a",)).layout
    here = Side(layout, Regions((Region(4096, 3),), (Region(8192, 2),), ()))
    zero = np.zeros(1, dtype=np.int32)
    aux, pages = Transfer(PartKind.AUX, 0, 0, 0, zero, zero), Transfer(KV, 0, 0, 0, zero, zero, 0, (0,))
    shaped = list(PairTable(here, here, Share(1, 1, 0, entries)).pieces([(aux, ""), (pages, "")], 1000))
    both = DescriptorTable(*here), DescriptorTable(*here)
    plain = list(pieces(*both, [aux, pages], 1000))
    assert [piece.parts for piece in shaped] == [piece.parts for piece in plain]
    assert [len(piece.parts) for piece in plain] == [1, 1]


def test_the_words_of_a_registration_for_several_ranks() -> None:
    member = rank(heads(0, 4))
    for number, ranks, one in ((1, 2, None), (2, 2, member), (0, 1, msgspec.structs.replace(member, cp_rank=1))):
        told = Registration("a", number, "h:1", 1, 4, "d", 10.0, ranks, one)
        with pytest.raises(WireError, match="member"):
            decode_announcement("a", number, encode_announcement(told))
    told = Registration("a", 1, "h:1", 1, 4, "d", 10.0, 2, member)
    assert decode_announcement("a", 1, encode_announcement(told)) == told
    assert Layout(4, (), (), ()).kv == ()
