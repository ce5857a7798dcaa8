"""The ledgers by value: what the rooms' tests only see as a phase."""

from __future__ import annotations

from samples import manifest

from kvrooms.protocol.notify import PartKind
from kvrooms.statemachine.ledger import DecodeLedger, Missing, Sender, decode_ledger, owed, prefill_ledger


def test_what_is_missing_after_each_part() -> None:
    before = owed(manifest(pages=3, state=(2, 1)))
    assert before == Missing(((0, 3),), ((0, 1),), (((0, 2),), ((0, 1),)))
    assert before.without(PartKind.KV, 0, 1, 2) == Missing(((0, 1), (2, 3)), before.aux, before.state)
    assert before.without(PartKind.AUX, 0, 0, 1) == Missing(before.kv, (), before.state)
    assert before.without(PartKind.STATE, 0, 0, 2) == Missing(before.kv, before.aux, ((), ((0, 1),)))
    assert before.without(PartKind.STATE, 1, 0, 1) == Missing(before.kv, before.aux, (((0, 2),), ()))


def test_new_ledgers() -> None:
    one, two = manifest(), manifest(pages=1, aux=False)
    assert decode_ledger((one, two)) == DecodeLedger((Sender(False, owed(one)), Sender(False, owed(two))))
    assert prefill_ledger().receivers == (None,)
    assert prefill_ledger(3).receivers == (None, None, None)
