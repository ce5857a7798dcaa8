"""Each side by itself, against any sequence of events: rooms, leases and drains, with one to three ranks opposite.

A rule of a machine is one event; what must hold after it is checked by the names of the properties (`protocol.
invariants`). `hunt` runs the same machines for `kvrooms verify`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from mutants import Mutant, named

from kvrooms.harness.stateful import MACHINES, DecodeSide, DrainAlone, LeaseAlone, PrefillSide, coverage, hunt
from kvrooms.harness.stateful.base import Machine
from kvrooms.protocol.events import DrainEvent, LeaseEvent
from kvrooms.statemachine import ledger, memory, rooms
from kvrooms.statemachine.memory import Drain, InFlight, Lease
from kvrooms.statemachine.table import go, ignore


def case(machine: type[Machine], examples: int) -> type:
    """A machine as a test case."""
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=40)
    return machine.TestCase


TestDecodeSide = case(DecodeSide, 100)
TestPrefillSide = case(PrefillSide, 100)
TestLease = case(LeaseAlone, 100)
TestDrain = case(DrainAlone, 60)


def test_nearly_every_cell_is_visited_and_every_property_has_examples() -> None:
    """The exhaustive explorer visits all of them; a walk that visits few would show little."""
    found = hunt(examples=60, seed=1, which=["decode side", "prefill side", "lease", "drain"])
    assert not found.tally.broken
    for (name, (seen, total)), line in zip(coverage(found.cells).items(), found.summary(), strict=True):
        assert seen >= 0.6 * total, line
        assert line == f"{name}: {seen} of {total} cells"
    for property_id in ("L1", "L2", "L3", "L5", "S1", "S2", "S3", "C1", "C2", "A1"):
        assert found.tally.verdict(property_id).examples >= 15, property_id


def test_a_name_that_is_no_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="no such machine: decode; they are decode side"):
        hunt(examples=1, seed=None, which=["decode"])
    assert {"decode side", "prefill side", "lease", "drain"} <= set(MACHINES)


# -- the machines can fail, and say which property is broken -----------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "row", "broken", "machines"),
    [
        ((Lease.QUARANTINED, LeaseEvent.RETRY), go(Lease.RELEASED), "L5", ["lease", "decode side"]),
        ((Lease.GRANTED, LeaseEvent.FAILED), go(Lease.RELEASED), "L5", ["lease", "decode side"]),
        ((Lease.QUARANTINED, LeaseEvent.ACKED), ignore(), "L5", ["lease", "decode side"]),
    ],
)
def test_a_mutant_of_the_lease_is_found(cell, row, broken, machines, monkeypatch) -> None:
    monkeypatch.setitem(memory._LEASE, (*cell, memory.Always.ALWAYS), row)
    for machine in machines:
        assert hunt(examples=600, seed=None, which=[machine], shrink=False).tally.broken == {broken}


def test_a_promise_while_a_write_is_in_flight_is_found(monkeypatch) -> None:
    row = memory._DRAIN[Drain.OPEN, DrainEvent.VOIDED, InFlight.IDLE]
    monkeypatch.setitem(memory._DRAIN, (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT), row)
    for machine in ("drain", "prefill side"):
        (found,) = hunt(examples=600, seed=None, which=[machine], shrink=False).tally.counterexamples()
        assert found.property == "S3"
        assert any("VOID" in step.text or "ABORT" in step.text or "FAILED" in step.text for step in found.timeline)


MUTANTS = {
    Mutant(ledger.DecodeLedger, "apply", "accepted=True", "accepted=sender.accepted"): ("decode side", {"L2", "S1"}),
    Mutant(ledger, "_earlier", "any(missing.state)", "all(missing.state)"): ("decode side", {"S1", "L2"}),
    Mutant(ledger, "_earlier", "if missing.kv", "if missing.kv and missing.aux"): ("decode side", {"L2", "S1"}),
    Mutant(rooms, "step_decode", "isinstance(event, Fail)", "False"): ("decode side", {"C2"}),
    Mutant(rooms, "step_prefill", "and ledger.disagreement", "and False"): ("prefill side", {"A1", "L2"}),
    Mutant(rooms, "step_prefill", "type(event) is not Settled", "type(event) is Bound"): ("prefill side", {"A1", "L2"}),
}


@named(list(MUTANTS))
def test_a_mutant_of_the_rooms_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    machine, expected = MUTANTS[mutant]
    (found,) = hunt(examples=600, seed=None, which=[machine], shrink=False).tally.counterexamples()
    assert found.property in expected
    assert found.source == f"hypothesis, {machine}, seed None"


def test_a_counterexample_is_the_shortest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(iter(MUTANTS))
    mutant.plant(monkeypatch)
    (found,) = hunt(examples=600, seed=None, which=["decode side"]).tally.counterexamples()
    assert found.property == "L2"
    assert len(found.timeline) <= 7
    assert found.timeline[0].text.endswith("Manifest(pages=0, kv=(), aux=(), state=())")
