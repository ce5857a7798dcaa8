"""The explorer as `verify` calls it: scopes, processes, sums, and the guard against vacuity."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool

import pytest
from explore_support import searched, without

from kvrooms.harness.explore import run, vacuity
from kvrooms.harness.explore.configs import NAMES, Job, jobs
from kvrooms.harness.explore.faults import FAULTS
from kvrooms.harness.explore.run import explore
from kvrooms.harness.explore.scenario import Request
from kvrooms.protocol.events import Do, RoomEvent
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.invariants import INVARIANTS
from kvrooms.protocol.status import Phase
from kvrooms.statemachine import rooms


def test_the_smallest_scope_shows_every_property_in_this_process() -> None:
    lines: list[str] = []
    found = explore(scope="mutant", workers=0, progress=lines.append)
    assert not found.tally.broken
    assert found.complete
    assert [config.name for config in found.configs] == list(NAMES)
    for invariant in INVARIANTS:
        assert found.tally.verdict(invariant.id).ok, invariant.id
    assert found.unreached == ()
    assert found.states == sum(config.states for config in found.configs)
    assert found.transitions > found.states
    assert set(found.timers) == TIMERS


TIMERS = {
    "bootstrap: decode METADATA",
    "bootstrap: prefill METADATA",
    "cap: decode KV",
    "cap: decode METADATA",
    "cap: prefill KV",
    "cap: prefill METADATA",
    "decision: outcome of a group",
    "heartbeat: heartbeat",
    "parked: a grant without a room",
    "parked: outcome of a group",
    "waiting: decode KV",
    "waiting: prefill KV",
}
"""What timers close in the smallest scope, and nothing else: a timer in place of a message would be a new line."""


def test_where_nothing_goes_wrong_no_timer_closes_anything() -> None:
    assert explore(["dense-1", "state-1", "disagree"], scope="mutant", workers=0).timers == {}


def test_a_timer_in_place_of_a_message_is_a_new_line(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, rooms._PREFILL, Phase.METADATA, RoomEvent.BOUND, Do.SEND_ACCEPT)
    found = explore(["dense-1"], scope="mutant", workers=0)
    assert "bootstrap: decode METADATA" in found.timers, "prefill never says that it accepts"


def test_the_guard_names_what_a_run_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: two faults never happen any more."""
    monkeypatch.delitem(FAULTS, "decode_aborts")
    monkeypatch.delitem(FAULTS, "deadline")
    found = explore(scope="mutant", workers=0)
    assert not found.complete
    assert {"decode room: KV x CLOSE", "FAILED: deadline_moving"} <= set(found.unreached)
    assert found.cells["decode room: KV x CLOSE"] > 0, "`alone` takes it all the same, and does not count"


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
    outcomes = {(side, "DONE", f"{how} state") for side in ("decode", "prefill") for how in ("with", "without")}
    outcomes |= {("decode", "FAILED", reason.value) for reason in Reason if reason not in vacuity.REASONS_APART}
    assert vacuity.unreached(reached, outcomes) == ()
    cell = "decode room: KV x LANDED"
    assert vacuity.unreached({**reached, cell: 0}, outcomes) == (cell,)
    assert vacuity.unreached({**reached, "lease: RELEASED x RETRY": 1}, outcomes) == (
        "lease: RELEASED x RETRY is reached, and is said to be out of reach",
    )
    for state in ("with state", "without state"):
        assert vacuity.unreached(reached, outcomes - {("decode", "DONE", state)}) == (f"decode is DONE {state}",)
    assert vacuity.unreached(reached, outcomes - {("decode", "FAILED", "refused")}) == ("FAILED: refused",)


def _matches(pattern: str, cell: str) -> bool:
    import re

    return re.fullmatch(pattern, cell) is not None


def test_nothing_said_to_be_out_of_reach_is_no_cell() -> None:
    every = list(vacuity.cells())
    for pattern in vacuity.OUT_OF_REACH:
        assert any(_matches(pattern, cell) for cell in every), pattern


def test_a_property_is_counted_only_where_it_had_something_to_say() -> None:
    """104 states in which nobody fails, nobody speaks out of turn and no number comes again."""
    calm = searched(Job("dense-1", Request(1, (1,)))).checked
    assert {name for name, times in calm.items() if not times} == {"L3", "L4", "S2", "S4", "S5", "C2"}
    assert (calm["L2"], calm["C1"], calm["S1"]) == (1, 1, 20)
    aborted = searched(Job("abort", Request(1, (1,)), budget=1, faults=frozenset({"decode_aborts"}))).checked
    assert min(aborted["C2"], aborted["S2"], aborted["L3"]) > 0 == aborted["S5"]
    for name, premise in (("strange_notification", "S5"), ("strange_metadata", "S5"), ("sends_too_much", "C2")):
        job = Job("fault-1", Request(1, (1,)), budget=1, faults=frozenset({name}))
        assert searched(job).checked[premise] > 0, name
    again = Job("reuse", Request(0, (0,)), keys=((7, 0), (7, 0)))
    assert searched(again).checked["S4"] > 0


def test_a_property_without_an_example_is_not_shown() -> None:
    tally = explore(["dense-1"], scope="mutant", workers=0).tally
    assert tally.verdict("S1").ok
    assert tally.verdict("C2").ok is None
