"""Several ranks on each side, explored: counts that are pinned, and faults in the running code that it must find."""

from __future__ import annotations

import pytest
from mutants import Mutant, named

from kvrooms.harness.explore.ranks import FAULTS, Ranks, Shape
from kvrooms.statemachine import ledger, rooms

BOTH, FIRST, EACH, APART = (True, True), (True, False), (True,) * 4, (True, False, False, True)
COUNTS = {
    Shape(1, 2, BOTH): (158, 461),
    Shape(1, 2, BOTH, "decode aborts"): (3055, 8874),
    Shape(1, 2, BOTH, "prefill aborts"): (3161, 9225),
    Shape(1, 2, BOTH, "prefill dies"): (574, 1357),
    Shape(2, 1, FIRST): (80, 200),
    Shape(2, 1, BOTH, "decode aborts"): (8160, 25164),
    Shape(2, 2, EACH, in_time=True): (22201, 131120),
    Shape(2, 2, APART, in_time=True): (841, 3248),
}


@pytest.mark.parametrize("shape", COUNTS, ids=str)
def test_counts_are_pinned(shape: Shape) -> None:
    found = Ranks(shape).run()
    assert not found.broken
    assert (found.states, found.transitions) == COUNTS[shape]


MUTANTS = {
    Mutant(ledger.DecodeLedger, "open_phase", "in self.senders:", "in self.senders[:1]:"): "S1",
    Mutant(ledger.PrefillLedger, "open_phase", "in self.receivers:", "in self.receivers[:1]:"): "L2",
    Mutant(ledger.DecodeLedger, "apply", "i = event.sender", "i = 0"): "L2",
    Mutant(rooms, "_prefill_table", "(go(phase, Do.SEND_FAILED, Do.DRAIN_VOIDED),)", "(ignore(),)"): "L3",
    Mutant(rooms, "_prefill_table", "(Do.SEND_FAILED, Do.DRAIN_VOIDED))", "(Do.SEND_FAILED,))"): "L5",
    Mutant(rooms, "_decode_table", "_endings(cells, (Do.LEASE_FAILED,))", "_endings(cells, ())"): "L5",
}


@named(list(MUTANTS))
def test_a_fault_breaks_its_property(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    for name, make in (("DECODE", rooms._decode_table), ("PREFILL", rooms._prefill_table)):
        table = make()
        monkeypatch.setattr(rooms, f"{name}_ROOM", table)
        monkeypatch.setattr(rooms, f"_{name}", table.compile())
    broken: dict[str, object] = {}
    for fault in ("", *FAULTS):
        for p, d in ((1, 2), (2, 1)):
            broken.update(Ranks(Shape(p, d, BOTH, fault)).run().broken)
    assert MUTANTS[mutant] in broken, sorted(broken)
