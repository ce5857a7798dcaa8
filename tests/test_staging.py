"""Short runs through staging buffers: every byte where it must be, and every slot back whatever happens."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_shapes import HEADS, shape
from kvrooms.harness.ranks import Ranks
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.grids import Side as Memory
from kvrooms.protocol.layout import Layout, Regions
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.plan import Transfer
from kvrooms.protocol.shaped import PairTable
from kvrooms.protocol.shares import Share
from kvrooms.protocol.staging import Slots, check_slots
from kvrooms.shapes.build import Side
from kvrooms.shapes.table import CASES


def count(ranks: Ranks, what: str) -> int:
    return sum(member.engine.counters().get(what, 0) for member in ranks.members())


def check(ranks: Ranks) -> None:
    ranks.play()
    assert ranks.failures() == []
    assert ranks.differs() == []
    assert sum(member.engine.tables()["staged"] for member in ranks.prefills.values()) == 0


@pytest.mark.parametrize("seed", range(3))
def test_slices_cut_on_prefill_are_gathered(seed: int) -> None:
    ranks = Ranks(CASES["staging-tp1-2"], seed)
    check(ranks)
    assert count(ranks, "pieces gathered") > 0


def test_nothing_is_staged_where_it_is_switched_off() -> None:
    for off in ("staging_max_slice_bytes", "staging_bytes"):
        ranks = Ranks(CASES["staging-tp1-2"], settings=EngineSettings(**{off: 0}))
        check(ranks)
        assert count(ranks, "pieces gathered") == 0


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_where_the_oracle_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.protocol.shaped.RUNS_MIN", 1)
    for small in (1 << 20, 3000):
        check(Ranks(CASES[name], 1, settings=EngineSettings(staging_max_slice_bytes=1 << 20, staging_bytes=2 * small)))


def test_what_begins_inside_a_page_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.protocol.shaped.RUNS_MIN", 1)
    model = dataclasses.replace(HEADS, head_bytes=8)
    ranks = Ranks(shape(model, Side(page_size=4), Side(tp=2, page_size=2), (7, 3), prefix_tokens=2))
    check(ranks)
    assert count(ranks, "pieces gathered") > 0


def test_plans_of_some_layers_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.protocol.shaped._LAYERED_MAX", 1)
    check(Ranks(CASES["layerwise"], 1))
    check(Ranks(shape(HEADS, Side(page_size=2), Side(tp=2, page_size=2), layerwise=True)))


def landing(ranks: Ranks) -> PairTable:
    """What decode rank 0 scatters from its slots, of what prefill rank 0 sends."""
    ranks.play()
    core = ranks.decodes[0].engine._core
    return next(link.landing for link in core._links.values() if link.landing is not None)


def test_what_is_not_scattered_or_does_not_fit_a_slot_is_named() -> None:
    pairs, items = landing(Ranks(CASES["staging-tp2-1"])), np.zeros(1, dtype=np.int32)
    count = pairs.count(PartKind.KV, "")
    pages = Transfer(PartKind.KV, 0, 0, 0, items, items)
    assert pairs.unpacking(pages, "", 0, count, 2**20).bytes == pairs.grid(PartKind.KV, "").bytes * pages_of(pairs)
    wrong = ((pages, count + 1, 2**20), (pages, count, 1), (Transfer(PartKind.AUX, 0, 0, 0, items, items), 1, 2**20))
    for transfer, stop, most in wrong:
        with pytest.raises(WireError) as caught:
            pairs.unpacking(transfer, "", 0, stop, most)
        assert caught.value.field == "buffers"


def pages_of(pairs: PairTable) -> int:
    return pairs.grid(PartKind.KV, "").blocks_per_position


def test_without_staging_nothing_is_lent_or_gathered() -> None:
    here = Memory(Layout(1, (), (), ()), Regions((), (), ()))
    assert PairTable(here, here, Share(1, 1, 0, ())).scattered == ()


@pytest.mark.parametrize(("name", "short"), [("staging-tp1-2", 2048), ("staging-tp2-1", 2048), ("staging-tp1-2", 1)])
def test_few_runs_or_long_ones_go_one_by_one(name: str, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.protocol.shaped.RUNS_MIN", 2**30)
    monkeypatch.setattr("kvrooms.engine.decode_staging.RUNS_MIN", 2**30)
    ranks = Ranks(CASES[name], settings=EngineSettings(staging_max_slice_bytes=short))
    check(ranks)
    assert count(ranks, "pieces gathered") == count(ranks, "pieces scattered") == 0


@pytest.mark.parametrize(
    "slots",
    [
        Slots(2**64 - 8, 2, 8, ()),
        Slots(0, 2**20, 2**40, ((PartKind.KV, ""), (PartKind.AUX, ""))),
        Slots(8, 1, 8, ((PartKind.AUX, ""),)),
    ],
)
def test_slots_that_cannot_be_are_refused(slots: Slots) -> None:
    with pytest.raises(WireError) as caught:
        check_slots(slots)
    assert caught.value.field == "hello.staging"
