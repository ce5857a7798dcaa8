"""The explorer as `verify` calls it: scopes, processes, sums, and the guard against vacuity."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from kvrooms.harness.explore import run, vacuity
from kvrooms.harness.explore.configs import NAMES, Job, jobs
from kvrooms.harness.explore.run import explore
from kvrooms.harness.explore.scenario import Request
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.invariants import INVARIANTS


def test_the_smallest_scope_shows_every_property_in_this_process() -> None:
    lines: list[str] = []
    found = explore(scope="mutant", workers=0, progress=lines.append)
    assert not found.tally.broken
    assert found.complete
    assert [config.name for config in found.configs] == list(NAMES)
    for invariant in INVARIANTS:
        assert found.tally.verdict(invariant.id).ok, invariant.id
    assert found.states == sum(config.states for config in found.configs)
    assert found.transitions > found.states
    assert not [cell for cell in vacuity.cells() if not found.cells.get(cell)]
    assert found.timers["heartbeat: heartbeat"] > 0


def test_several_processes_find_the_same() -> None:
    names = ["dense-1", "state-1", "two-senders", "hold"]
    alone, together = (explore(names, scope="mutant", workers=workers) for workers in (0, 2))
    assert [config[:4] for config in alone.configs] == [config[:4] for config in together.configs]
    assert (alone.cells, alone.timers) == (together.cells, together.timers)


def dies(_: Job) -> None:
    """A worker that is killed by somebody."""
    os._exit(9)


def test_a_worker_that_dies_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "search", dies)
    with pytest.raises(BrokenProcessPool):
        explore(["dense-1"], scope="mutant", workers=2)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="dense-9"):
        explore(["dense-9"])


def test_every_configuration_of_the_list_has_jobs_in_every_scope() -> None:
    for name in NAMES:
        sizes = {scope: len(jobs(name, scope)) for scope in ("mutant", "quick", "default", "deep")}
        assert all(sizes.values()), (name, sizes)
        assert sizes["deep"] >= sizes["default"] >= sizes["quick"] >= sizes["mutant"]


def test_a_search_that_is_stopped_is_not_complete() -> None:
    from kvrooms.harness.explore.search import Search

    job = Job("dense-1", Request(2, (1, 1)))
    found = Search(job.system(), "dense-1", limit=100).run()
    assert not found.complete


def test_vacuity_names_what_was_not_reached() -> None:
    every = dict.fromkeys(vacuity.cells(), 1)
    reached = {
        cell: times
        for cell, times in every.items()
        if not any(_matches(pattern, cell) for pattern in vacuity.OUT_OF_REACH)
    }
    outcomes = {("decode", "DONE", ""), ("prefill", "DONE", "")}
    outcomes |= {("decode", "FAILED", reason.value) for reason in Reason if reason not in vacuity.REASONS_APART}
    assert vacuity.unreached(reached, outcomes) == ()
    cell = "decode room: KV x LANDED"
    assert vacuity.unreached({**reached, cell: 0}, outcomes) == (cell,)
    assert vacuity.unreached({**reached, "lease: RELEASED x RETRY": 1}, outcomes) == (
        "lease: RELEASED x RETRY is reached, and is said to be out of reach",
    )
    assert vacuity.unreached(reached, outcomes - {("decode", "DONE", "")}) == ("decode is DONE",)
    assert vacuity.unreached(reached, outcomes - {("decode", "FAILED", "refused")}) == ("FAILED: refused",)


def _matches(pattern: str, cell: str) -> bool:
    import re

    return re.fullmatch(pattern, cell) is not None


def test_nothing_said_to_be_out_of_reach_is_no_cell() -> None:
    every = list(vacuity.cells())
    for pattern in vacuity.OUT_OF_REACH:
        assert any(_matches(pattern, cell) for cell in every), pattern
