"""Who sends what to whom, unit by unit; and the words for instances, and shares, that cannot be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from plan_support import heads, rank, swa

from kvrooms.harness.strategies import pairs
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Instance, Layout, Owed, Rank, Shard
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.shares import (
    CannotPair,
    Covers,
    Entry,
    Pairing,
    Share,
    check_share,
    covers_of,
    pair_up,
    part_of,
)

KV, AUX, STATE = PartKind.KV, PartKind.AUX, PartKind.STATE


def paired(*sides: tuple[Rank, ...]) -> Pairing:
    prefill, decode = sides
    return pair_up(Instance(prefill), Instance(decode, 7))


def sent(*sides: tuple[Rank, ...]) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Per pair of ranks the buffer on either side, the shard and the units of each entry."""
    return {
        pair: [(e.source, e.target, e.shard, e.first, e.stop) for e in share.entries]
        for pair, share in paired(*sides).shares.items()
    }


# -- who is chosen ---------------------------------------------------------------------------------------------------

ALL = rank(heads(0, 4))


def test_ranks_that_have_the_same_units_share_the_receivers_evenly() -> None:
    whole = [(0, 0, 0, 0, 4)]
    assert sent((ALL,) * 2, (ALL,) * 4) == {(0, 0): whole, (0, 1): whole, (1, 2): whole, (1, 3): whole}
    assert sent((ALL,) * 2, (ALL,) * 3) == {(0, 0): whole, (0, 1): whole, (1, 2): whole}
    assert sent((ALL,) * 3, (ALL,) * 2) == {(0, 0): whole, (1, 1): whole, (2, 1): []}


def test_units_are_cut_where_a_rank_of_either_side_has_an_end() -> None:
    halves, quarter = (rank(heads(0, 2)), rank(heads(2, 2))), rank(heads(1, 1))
    assert sent(halves, (ALL, quarter)) == {
        (0, 0): [(0, 0, 0, 0, 2)],
        (0, 1): [(0, 0, 0, 1, 2)],
        (1, 0): [(0, 0, 0, 2, 4)],
    }
    assert sent((rank(heads(0, 3)), rank(heads(1, 3))), (ALL,)) == {
        (0, 0): [(0, 0, 0, 0, 3)],
        (1, 0): [(0, 0, 0, 3, 4)],
    }


def test_buffers_are_paired_by_layer_and_role_wherever_they_stand() -> None:
    first, second, third = heads(0, 4), heads(0, 4, layer=1), heads(0, 4, layer=1, role="v")
    found = sent((rank(first, second, third),), (rank(third, first), rank(second)))
    assert found == {(0, 0): [(2, 0, 0, 0, 4), (0, 1, 0, 0, 4)], (0, 1): [(1, 0, 0, 0, 4)]}


def test_each_shard_of_a_buffer_is_dealt_by_itself() -> None:
    def two(first: int, units: int) -> BufferSpec:
        shards = (Shard(0, 1, 0, units, 4, 4, first, 4), Shard(16, 1, 0, 2, 8, 8, 0, 2))
        return BufferSpec(0, "k", 32, "uint8", shards)

    component = [(ComponentSpec("m", "mamba", Owed.ALWAYS, (two(*some),)),) for some in ((0, 2), (2, 2), (0, 4))]
    low, high, whole = (rank(state=one) for one in component)
    assert sent((low, high), (whole,)) == {
        (0, 0): [(0, 0, 0, 0, 2), (0, 0, 1, 0, 2)],
        (1, 0): [(0, 0, 0, 2, 4)],
    }
    shares = paired((low, high), (whole,)).shares
    assert {(e.kind, e.name) for share in shares.values() for e in share.entries} == {(STATE, "m")}


def test_every_part_of_a_prompt_has_a_sender_of_its_own() -> None:
    parts = tuple(rank(heads(0, 4), aux=("a",), cp=(i, 3)) for i in range(3))
    shares = paired(parts, (rank(heads(0, 4), aux=("a",)),)).shares
    assert {pair: [(e.kind, e.name) for e in share.entries] for pair, share in shares.items()} == {
        (0, 0): [(KV, ""), (AUX, "a")],
        (1, 0): [(KV, "")],
        (2, 0): [(KV, "")],
    }


def test_every_rank_takes_part_and_knows_its_place() -> None:
    nothing = rank()
    pairing = paired((ALL, nothing, nothing, nothing), (nothing, ALL))
    assert list(pairing.shares) == [(0, 1), (1, 0), (2, 1), (3, 1)]
    pairing = paired((ALL, nothing), (nothing, ALL))
    places = {pair: (s.receivers, s.receiver, len(s.entries)) for pair, s in pairing.shares.items()}
    assert places == {(0, 0): (2, 0, 0), (0, 1): (2, 1, 1), (1, 1): (1, 0, 0)}
    assert {share.instance for share in pairing.shares.values()} == {7}
    assert (pairing.senders(0), pairing.senders(1)) == ([0], [0, 1])
    few = paired((nothing, nothing), (nothing,) * 5)
    assert list(few.shares) == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4)]


def units_of(ranks: Instance, number: int, entry: Entry, *, sender: bool) -> tuple[Any, ...]:
    """What an entry names on one side: the buffer's layer and role, and the units of the shard."""
    layout, index = ranks.ranks[number].layout, entry.source if sender else entry.target
    if entry.kind is AUX:
        return entry.name, range(1)
    component = dict(zip(layout.component_names, layout.state, strict=True)).get(entry.name)
    spec = layout.kv[index] if entry.kind is KV else component.buffers[index]
    shard = spec.parts[entry.shard]
    return (spec.layer, spec.role), range(shard.first, shard.first + shard.units)


@given(both=pairs())
def test_every_unit_that_a_rank_wants_is_sent_once_by_one_that_has_it(both: tuple[Instance, Instance]) -> None:
    prefill, decode = both
    try:
        shares = pair_up(prefill, decode).shares
    except CannotPair:
        event("refused")
        return
    sends: Counter[tuple[Any, ...]] = Counter()
    for (p, d), share in shares.items():
        check_share(share, prefill.ranks[p].layout, decode.ranks[d].layout)
        for entry in share.entries:
            (what, have), (wanted, want) = (
                units_of(side, number, entry, sender=side is prefill) for side, number in ((prefill, p), (decode, d))
            )
            part = prefill.ranks[p].cp_rank if entry.kind is KV else 0
            for unit in range(entry.first, entry.stop):
                assert what == wanted
                assert unit in have
                assert unit in want
                sends[part, d, entry.kind, entry.name, what, entry.shard, unit] += 1
    assert set(sends.values()) <= {1}
    assert sum(sends.values()) == sum(due(rank.layout, prefill.ranks[0].cp_size) for rank in decode.ranks)


def due(layout: Layout, cp_size: int) -> int:
    """How many units a decode rank is sent, once per part of the prompt if they are of pages."""
    pages = sum(shard.units for spec in layout.kv for shard in spec.parts)
    rest = sum(shard.units for part in layout.state for spec in part.buffers for shard in spec.parts)
    return pages * cp_size + rest + len(layout.aux)


def test_what_a_share_is_about() -> None:
    sender = rank(heads(0, 4), aux=("a", "b", "c"), state=[swa()], cp=(1, 2))
    entries = tuple(Entry(kind, name, 0, 0, 0, 0, 1) for kind, name in ((AUX, "c"), (AUX, "a"), (STATE, "s")))
    assert covers_of(Share(0, 1, 0, entries), sender) == Covers(False, ("a", "c"), ("s",), 1, 2)
    assert covers_of(Share(0, 1, 0, (Entry(KV, "", 0, 0, 0, 0, 1),)), sender) == Covers(True, (), (), 1, 2)
    crossed = tuple(Entry(kind, name, 0, 0, 0, 0, 1) for kind, name in ((AUX, "s"), (STATE, "a")))
    assert covers_of(Share(0, 1, 0, crossed), sender) == Covers(False, (), (), 1, 2)


def test_the_pages_of_each_part_of_a_prompt() -> None:
    assert [part_of(10, i, 3) for i in range(3)] == [(0, 3), (3, 6), (6, 10)]
    assert [part_of(1, i, 2) for i in range(2)] == [(0, 0), (0, 1)]
    assert Covers(True, (), ()).positions(3, 1) == ((1, 3),)
    assert Covers(True, (), (), 1, 2).positions(10, 3) == ((5, 10),)
    assert Covers(True, (), (), 0, 2).positions(10, 3) == ((3, 5),)
    assert Covers(True, (), (), 0, 2).positions(10, 5) == ()
    assert Covers(False, ("a",), (), 0, 2).positions(10, 3) == ()


# -- words -----------------------------------------------------------------------------------------------------------


def tokens(rows: int, page: int) -> Rank:
    """Pages of so many rows."""
    return rank(heads(0, 4, rows=rows), page=page)


def token(dtype: str, length: int) -> Rank:
    """An aux buffer."""
    return Rank(Layout(4, (), (AuxSpec("a", length, dtype),), ()))


PAGES_OF_4 = "(pages of 4 tokens)"


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (rank(heads(0, 2)), ALL, ["no prefill rank has units 2 to 3"]),
        (rank(heads(1, 1)), ALL, ["no prefill rank has units 0 to 0", "no prefill rank has units 2 to 3"]),
        (ALL, rank(heads(0, 4, dtype="int8")), ["prefill's element type is uint8, decode's int8"]),
        (ALL, rank(heads(0, 4, shards=heads(0, 4).shards * 2)), ["prefill's items have 1 shards, decode's 2"]),
        (
            ALL,
            rank(heads(0, 4, 8, size=16)),
            ["total is 4 on prefill, 8 on decode", "unit_bytes is 8 on prefill, 16 on decode"],
        ),
        (ALL, tokens(2, 4), [f"rows are 4 on prefill {PAGES_OF_4} and 2 on decode (pages of 4)"]),
        (tokens(1, 4), tokens(1, 8), [f"rows are 1 on prefill {PAGES_OF_4} and 1 on decode (pages of 8)"]),
    ],
)
def test_the_words_for_pages_that_do_not_fit(prefill: Rank, decode: Rank, words: list[str]) -> None:
    refused((prefill,), (decode,), [f"kv layer 0 k: {some}" for some in words])


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (
            (ALL,),
            (ALL, rank(heads(0, 4, layer=3), aux=("x",), state=[swa()])),
            [
                "kv layer 3 k: no prefill rank has it, decode rank 1 does",
                "aux 'x': no prefill rank has it, decode rank 1 does",
                "state component 's' layer 1 k: no prefill rank has it, decode rank 1 does",
            ],
        ),
        (
            (rank(state=[swa(rows=2)]),),
            (rank(state=[swa()]),),
            [f"state component 's' layer 1 k: rows are 2 on prefill {PAGES_OF_4} and 1 on decode (pages of 4)"],
        ),
        ((token("int64", 8),), (token("int8", 8),), ["aux 'a': prefill's element type is int64, decode's int8"]),
        ((token("int8", 8),), (token("int8", 4),), ["aux 'a': unit_bytes is 8 on prefill, 4 on decode"]),
        ((ALL, rank(heads(0, 4), page=8)), (ALL,), ["page_size: the prefill ranks differ, they have [4, 8]"]),
        ((ALL,), (ALL, rank(page=2)), ["page_size: the decode ranks differ, they have [2, 4]"]),
        ((rank(heads(0, 4), cp=(0, 2)), ALL), (rank(),), ["cp_size: the prefill ranks differ, they have [1, 2]"]),
        ((ALL,), (rank(cp=(0, 2)),), ["cp_size: decode has 2; only prefill may split a prompt's pages"]),
        (
            (rank(state=[swa()]),),
            (rank(state=[swa("dsa", Owed.ALWAYS)]),),
            [
                "state component 's': prefill's kind is 'swa', decode's 'dsa'",
                "state component 's': prefill owes it when_indexed, decode always",
            ],
        ),
    ],
)
def test_the_words_for_instances_that_cannot_work(
    prefill: tuple[Rank, ...], decode: tuple[Rank, ...], words: list[str]
) -> None:
    refused(prefill, decode, words)


def refused(prefill: tuple[Rank, ...], decode: tuple[Rank, ...], words: list[str]) -> None:
    with pytest.raises(CannotPair) as caught:
        paired(prefill, decode)
    assert list(caught.value.words) == words
    assert str(caught.value) == "; ".join(words)


def test_what_differs_and_may() -> None:
    assert sent((tokens(4, 4),), (tokens(8, 8),)) == {(0, 0): [(0, 0, 0, 0, 4)]}
    assert sent((rank(state=[swa()], page=4),), (rank(state=[swa()], page=8),)) == {(0, 0): [(0, 0, 0, 0, 4)]}
    assert sent((rank(state=[swa()]),), (rank(),)) == {(0, 0): []}


THEIRS = rank(heads(0, 4), heads(0, 4, layer=1), aux=("a",), state=[swa()]).layout
GOOD = Entry(KV, "", 0, 0, 0, 0, 4)
FIRST = Entry(AUX, "a", 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("change", "sender", "words"),
    [
        ({"source": 2}, heads(0, 4), "names a buffer that is not there"),
        ({"target": 2}, heads(0, 4), "names a buffer that is not there"),
        ({"name": "s"}, heads(0, 4), "names a buffer that is not there"),
        ({"kind": STATE}, heads(0, 4), "names a buffer that is not there"),
        ({"target": 1}, heads(0, 4), ": layer 0 k and layer 1 k are no pair"),
        ({}, heads(0, 4, role="v"), ": layer 0 v and layer 0 k are no pair"),
        ({"shard": 1}, heads(0, 4), ": layer 0 k and layer 0 k are no pair"),
        ({"shard": 1}, heads(0, 4, shards=heads(0, 4).shards * 2), ": layer 0 k and layer 0 k are no pair"),
        ({}, heads(0, 4, dtype="int8"), ": units of layer 0 k have another size or element type"),
        ({}, heads(0, 4, size=4), ": units of layer 0 k have another size or element type"),
        ({"stop": 5}, heads(0, 4), ": the rank has units 0 to 3"),
        ({}, heads(1, 3), ": the rank has units 1 to 3"),
        ({"first": 3, "stop": 3}, heads(0, 4), ": the rank has units 0 to 3"),
        ({"stop": 6}, heads(0, 6, 6), ": the rank has units 0 to 3"),
    ],
)
def test_the_words_for_an_entry_of_a_peer(change: dict[str, Any], sender: BufferSpec, words: str) -> None:
    ours, entry = (
        rank(sender, heads(0, 4, layer=1), aux=("a",), state=[swa()]).layout,
        msgspec.structs.replace(GOOD, **change),
    )
    with pytest.raises(WireError) as caught:
        check_share(Share(1, 1, 0, (FIRST, entry)), ours, THEIRS)
    assert caught.value.field == "share.entries[1]"
    assert f"{entry}{'' if words[0] == ':' else ' '}{words}" in str(caught.value)


def test_the_words_for_an_aux_buffer_of_a_peer() -> None:
    for other in (token("int8", 8), token("int64", 4)):
        with pytest.raises(WireError) as caught:
            check_share(Share(1, 1, 0, (FIRST,)), token("int64", 8).layout, other.layout)
        assert caught.value.field == "share.entries[0]"
        assert f"{FIRST}: units of layer 0 aux have another size or element type" in str(caught.value)


def test_the_words_for_units_that_two_entries_ask_for() -> None:
    low, high = (msgspec.structs.replace(GOOD, first=first, stop=stop) for first, stop in ((0, 2), (2, 4)))
    check_share(Share(1, 1, 0, (high, FIRST, low)), THEIRS, THEIRS)
    for first in (0, 1):
        more = msgspec.structs.replace(GOOD, first=first, stop=3)
        with pytest.raises(WireError) as caught:
            check_share(Share(1, 1, 0, (low, FIRST, more)), THEIRS, THEIRS)
        assert str(caught.value) == f"share.entries[2]: {more} asks for units that another entry asks for"
        assert caught.value.field == "share.entries[2]"


def test_a_receiver_beyond_the_last_is_named() -> None:
    check_share(Share(1, 2, 1, (FIRST, GOOD)), THEIRS, THEIRS)
    with pytest.raises(WireError, match="2 of 2 receivers") as caught:
        check_share(Share(1, 2, 2, (GOOD,)), THEIRS, THEIRS)
    assert caught.value.field == "share.receiver"
