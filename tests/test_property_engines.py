"""Engines in the simulated world, through the public methods: callers and faults of every kind, judged by name.

A run is a day of opening, sending, aborting, stalling, cutting, killing; in the evening everything must end, come back
and be clean (`harness.stateful.engines`). Here the days are few; `kvrooms verify` has more, `--deep` very many.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from mutants import Mutant, named

from kvrooms.engine import decode, decode_core, handle, host, prefill_core, sends
from kvrooms.harness.simulate.memory import Shape
from kvrooms.harness.stateful import Engines, hunt
from kvrooms.harness.stateful.callers import Wish
from kvrooms.harness.strategies import Schedule
from kvrooms.protocol.events import Do, DrainEvent, LeaseEvent
from kvrooms.statemachine import ledger, memory
from kvrooms.statemachine.memory import Drain, InFlight, Lease
from kvrooms.statemachine.table import go

TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=100, stateful_step_count=40)


def check(expected: set[str]) -> None:
    """A short hunt finds a counterexample of one of these properties."""
    # It ends with the first one. What is drawn depends on the modules that are loaded, so the limit is generous.
    (found,) = hunt(examples=1500, seed=None, which=["engines"], shrink=False).tally.counterexamples()
    assert found.property in expected, found.text()
    assert found.source == "hypothesis, engines, seed None"
    assert "call" in {step.kind for step in found.timeline}


def test_a_short_hunt_finds_nothing_without_a_mutant() -> None:
    found = hunt(examples=40, seed=1, which=["engines"])
    assert not found.tally.broken, found.tally.counterexamples()[0].text()
    for property_id in Engines.PROPERTIES:
        assert found.tally.verdict(property_id).examples > 0, property_id


@named(
    [
        Mutant(ledger, "_earlier", "any(missing.state)", "True"),
        Mutant(sends, "transfers", "and wanted.manifest.aux", "and wanted.state"),
    ]
)
def test_a_room_that_waits_for_what_nobody_sends_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check({"L2", "L4"})


def test_pages_in_other_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "wanted.pages[offset + low - start : offset + high - start]"
    Mutant(sends, "transfers", right, "wanted.pages[offset : offset + high - low]").plant(monkeypatch)
    check({"S1"})


def test_memory_that_comes_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    key = (Lease.GRANTED, LeaseEvent.FAILED, memory.Always.ALWAYS)
    monkeypatch.setitem(memory._LEASE, key, go(Lease.RELEASED, Do.FREE))
    check({"S3"})


def test_a_promise_that_comes_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    early = memory._DRAIN[Drain.OPEN, DrainEvent.VOIDED, InFlight.IDLE]
    monkeypatch.setitem(memory._DRAIN, (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT), early)
    check({"S3"})


@named(
    [
        Mutant(decode_core.DecodeCore, "_arm", "self._timers.arm(record, _PHASE, self.now + seconds)", "pass"),
        Mutant(prefill_core.PrefillCore, "_arm", "self._timers.arm(record, _PHASE, self.now + seconds)", "pass"),
    ]
)
def test_a_deadline_that_was_left_off_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check({"L1"})


@named(
    [
        Mutant(handle.Room, "failure_exception", "if surfaced:", "if False:"),
        Mutant(
            handle.Room,
            "failure_exception",
            "not self._gone.wait(self._desk.lock, _FORGET_TIMEOUT_S)",
            "not self",
        ),
    ]
)
def test_a_failure_that_is_raised_early_or_twice_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check({"C2"})


@named(
    [
        Mutant(decode.DecodeEngine, "_free_claims", "if claimed is not None:", "if False:"),
        Mutant(host.Engine, "room_forgotten", "self._open_rooms.pop(room, None)", "pass"),
    ]
)
def test_what_stays_behind_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check({"C1"})


def test_a_room_that_is_opened_while_posts_fail_is_not_expected_to_succeed() -> None:
    """A refusal of posts lasts, and also meets a room that did not exist when it began: no other room did that."""
    machine = Engines()
    day = {"first": [(Wish(), "later")], "held": False, "day": "announced", "vanish": False}
    machine.begin(shape=Shape(), decodes=1, schedule=Schedule([], 0), **day)
    assert machine.deals[0].clean
    machine.posts_fail(then=0, error="no more descriptors")
    machine._open(Wish(), 1, 0, "both")
    assert not machine.deals[1].clean
    machine.posts_fail(then=0, error="")
    machine._open(Wish(), 2, 0, "both")
    assert machine.deals[2].clean
    machine.teardown()
