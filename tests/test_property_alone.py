"""One real engine and a peer made by hand, which says what it likes, in any order, twice, and in others' names."""

from __future__ import annotations

import pytest
from hypothesis import settings
from mutants import Mutant, named

from kvrooms.engine import decode_core, decode_links, grants, prefill_grants
from kvrooms.harness.stateful import DecodeAlone, PrefillAlone, hunt
from kvrooms.protocol.events import DrainEvent
from kvrooms.statemachine import memory
from kvrooms.statemachine.memory import Drain, InFlight

TestDecodeAlone = DecodeAlone.TestCase
TestDecodeAlone.settings = settings(max_examples=100, stateful_step_count=40)
TestPrefillAlone = PrefillAlone.TestCase
TestPrefillAlone.settings = settings(max_examples=100, stateful_step_count=40)


def check(machine: str, expected: str) -> None:
    """A short hunt finds a counterexample of this property."""
    # It ends with the first one. What is drawn depends on the modules that are loaded, so the limit is generous.
    (found,) = hunt(examples=1500, seed=None, which=[machine], shrink=False).tally.counterexamples()
    assert found.property == expected, found.text()


NOTIFIED = {
    Mutant(decode_core.DecodeCore, "_arrival", "or grant.peer.agent != agent", "or False"): "S5",
    Mutant(decode_core.DecodeCore, "_arrival", "or grant.number != grant_number", "or False"): "S4",
    Mutant(decode_core.DecodeCore, "_acked", "self._lease(grant, LeaseEvent.ACKED)", "pass"): "L5",
    Mutant(decode_links.DecodeLinks, "_left", "if grant.number not in undrained:", "if True:"): "S3",
    Mutant(decode_links.DecodeLinks, "_proof", "and not link.goodbye", "and True"): "S3",
}


@named(list(NOTIFIED))
def test_decode_that_believes_too_much_or_forgets_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check("decode alone", NOTIFIED[mutant])


@named(
    [
        Mutant(grants.GrantBook, "end", "self._over = add(self._over, grant, grant + 1)", "pass"),
        Mutant(prefill_grants.PrefillGrants, "_aborted", "self._over(peer, body.grant)", "pass"),
        Mutant(prefill_grants.PrefillGrants, "_metadata", "peer.book.verdict(number) is Verdict.OVER", "False"),
    ]
)
def test_a_broken_promise_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check("prefill alone", "S3")


def test_a_promise_that_comes_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    early = memory._DRAIN[Drain.OPEN, DrainEvent.VOIDED, InFlight.IDLE]
    monkeypatch.setitem(memory._DRAIN, (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT), early)
    check("prefill alone", "S3")
