"""Short runs through staging buffers: every byte where it must be, and every slot back whatever happens."""

from __future__ import annotations

import dataclasses

import pytest

from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_shapes import HEADS, shape
from kvrooms.harness.ranks import Ranks
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
