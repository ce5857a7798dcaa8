"""When runs go through staging slots: each rule at its boundary, and the words for slots that cannot be."""

from __future__ import annotations

from typing import Literal

import pytest
from plan_support import heads, kv, rank, share, side

from kvrooms.protocol import packing
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.grids import Grid, Side, grids
from kvrooms.protocol.layout import BufferSpec, Region, Regions, Shard
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.shares import Entry
from kvrooms.protocol.staging import (
    Slots,
    Staging,
    Way,
    bundles,
    check_room,
    check_slots,
    gathers,
    longest,
    scatters,
    slot_bytes,
)

KV, AUX, STATE = PartKind.KV, PartKind.AUX, PartKind.STATE


def spec(stride: int, unit: int = 8, rows: int = 4) -> BufferSpec:
    """Four heads a token, so far apart."""
    shard = Shard(0, rows, 4 * stride, 4, stride, unit, 0, 4)
    return heads(0, 4, shards=(shard,), item_length=4 * stride * rows)


def where(stride: int, memory: Literal["DRAM", "VRAM"] = "DRAM", page: int = 4, unit: int = 8) -> Side:
    return Side(rank(spec(stride, unit, page), page=page).layout, Regions((Region(2**40, 4, memory),), (), ()))


def grid_of(source: Side, target: Side, *entries: Entry) -> Grid:
    (grid,) = grids(source, target, share(*(entries or (kv(0, 0, 4),)))).values()
    return grid


CLOSE, APART = where(8), where(16)
SOME = Staging(8, 128)


def split() -> Grid:
    """Sixteen runs of 8 bytes, apart on the source alone."""
    return grid_of(APART, CLOSE)


def spread() -> Grid:
    """The same, apart on both sides."""
    return grid_of(APART, APART)


def test_short_runs_that_lie_together_on_the_target_are_gathered() -> None:
    assert gathers(split(), SOME)
    assert not gathers(split(), SOME._replace(max_slice=7))
    assert gathers(split(), SOME._replace(slot_bytes=2))
    assert not gathers(spread(), SOME)
    assert gathers(grid_of(APART, where(8, "VRAM")), SOME)
    assert not gathers(grid_of(where(16, "VRAM"), CLOSE), SOME)
    assert not gathers(grid_of(where(16, unit=4), where(4, unit=4)), SOME)


def test_short_runs_that_lie_apart_on_the_target_are_scattered_there() -> None:
    assert scatters(KV, spread(), SOME)
    assert scatters(STATE, spread(), SOME)
    assert not scatters(AUX, spread(), SOME)
    assert not scatters(KV, spread(), SOME._replace(max_slice=7))
    assert not scatters(KV, spread(), SOME._replace(slot_bytes=127))
    assert not scatters(KV, split(), SOME)
    assert scatters(KV, grid_of(where(16, "VRAM"), APART), SOME)
    assert not scatters(KV, grid_of(APART, where(16, "VRAM")), SOME)
    assert not scatters(KV, grid_of(where(16, unit=4), where(16, unit=4)), SOME)


@pytest.mark.parametrize(("units", "joins"), [(1, False), (2, True), (3, True)])
def test_half_as_many_writes_are_enough_for_a_copy(units: int, joins: bool) -> None:
    """Of these units those of a row lie together on the target."""
    grid = grid_of(APART, CLOSE, kv(0, 0, units))
    assert (len(grid.size), len(grid.segments.bytes)) == (4 * units, 4)
    assert gathers(grid, SOME) is joins
    assert scatters(KV, grid, SOME) is not joins


def test_nearly_half_as_many_writes_are_not() -> None:
    def five(stride: int) -> Side:
        shard = spec(stride, rows=1).shards
        layers = (heads(0, 4, rows=1, layer=i, shards=shard, item_length=64) for i in range(5))
        return side(rank(*layers, page=1).layout)

    entries = [kv(i, 0, 2) for i in range(5)]
    ten, nine = (grid_of(five(16), five(8), *some) for some in (entries, [*entries[:4], kv(4, 0, 1)]))
    assert [len(grid.segments.bytes) for grid in (ten, nine)] == [5, 5]
    assert [gathers(grid, SOME) for grid in (ten, nine)] == [True, False]


def test_a_slot_holds_a_buffer_of_a_position() -> None:
    assert longest(spread()) == 128
    assert longest(grid_of(APART, where(16, page=2))) == 128
    ends = [side(rank(spec(16), heads(0, 4, layer=1), page=4).layout) for _ in range(2)]
    assert longest(grid_of(*ends, kv(0, 0, 1), kv(1, 0, 3))) == 96


def test_what_lies_in_long_ranges_is_not_gathered_for_a_slot_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundles(spread(), SOME)
    assert not bundles(spread(), SOME._replace(max_slice=7))
    close = grid_of(CLOSE, APART)
    assert [bundles(close, Staging(most, 128)) for most in (127, 128)] == [False, True]
    assert not bundles(grid_of(where(16, "VRAM"), APART), SOME)
    assert bundles(grid_of(APART, where(16, "VRAM")), SOME)
    monkeypatch.setattr(packing, "GRAINS_MAX", 15)
    assert not bundles(grid_of(APART, APART), SOME)


def test_how_long_slots_are() -> None:
    assert [slot_bytes(size) for size in (2, 3, 2**23 - 2, 2**23, 2**30)] == [1, 1, 2**22 - 1, 2**22, 2**22]


def test_the_ways_are_three() -> None:
    assert len(Way) == 3


def test_a_slot_that_is_too_short_for_a_part_is_named() -> None:
    parts = ((KV, ""),)
    check_room(Slots(0, 1, 128, parts), KV, "", spread())
    check_room(Slots(0, 1, 127, ((STATE, "s"), (KV, "s"))), KV, "", spread())
    check_room(Slots(0, 1, 127, ()), KV, "", spread())
    with pytest.raises(WireError) as caught:
        check_room(Slots(0, 1, 127, parts), KV, "", spread())
    assert caught.value.field == "hello.staging"
    assert "slots of 127 bytes for KV '', of which 128 lie in one buffer" in str(caught.value)
    with pytest.raises(WireError, match="for STATE 's', of which 128"):
        check_room(Slots(0, 1, 1, ((STATE, "s"),)), STATE, "s", spread())


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (Slots(2**64 - 16, 2, 8, ()), "address 18446744073709551600 and 2 slots leave the address space"),
        (Slots(2**64 - 8, 1, 9, ()), "address 18446744073709551608 and 1 slots leave the address space"),
        (Slots(0, 1, 8, ((KV, ""), (AUX, ""))), "aux is never staged"),
    ],
)
def test_the_words_for_slots_that_cannot_be(slots: Slots, words: str) -> None:
    with pytest.raises(WireError) as caught:
        check_slots(slots)
    assert str(caught.value) == f"hello.staging: {words}"


def test_slots_up_to_the_last_address() -> None:
    check_slots(Slots(2**64 - 17, 2, 8, ((KV, ""), (STATE, "s"))))
