"""The ledgers by value: what the rooms' tests only see as a phase."""

from __future__ import annotations

from samples import manifest

from kvrooms.protocol.events import Accepted, Bound, Declared, Landed, Located, Settled
from kvrooms.protocol.manifest import Declaration
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.shares import Covers
from kvrooms.protocol.status import Phase
from kvrooms.statemachine.ledger import DecodeLedger, Missing, Receiver, Sender, decode_ledger, owed, prefill_ledger


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


def test_decode_waits_for_the_ranks_that_were_located_first() -> None:
    one, two = manifest(), manifest(pages=1, aux=False)
    unknown = decode_ledger(())
    assert unknown.open_phase is Phase.METADATA
    known = unknown.apply(Located((one,)))
    assert known == decode_ledger((one,))
    assert known.apply(Located((two, two))) is known
    for late in (Accepted(1), Landed(1, PartKind.KV, 0, 0, 1)):  # of a rank that is not waited for
        assert known.apply(late) is known
    assert known.apply(Accepted(0)).open_phase is Phase.KV


def test_prefill_learns_from_the_first_metadata_how_many_ranks_receive() -> None:
    one, two = manifest(), manifest(pages=1, aux=False)
    covers = Covers(True, ("token",), ())
    ledger = prefill_ledger().apply(Bound(1, one, 3, covers))
    assert ledger.receivers == (None, Receiver(one, owed(one), covers), None)
    assert ledger.apply(Bound(1, two, 3)) is ledger
    assert ledger.apply(Bound(0, two, 5)).receivers == (Receiver(two, owed(two)), ledger.receivers[1], None)
    for stranger in (0, 3, 4):  # one that has said nothing yet, and two that are not there
        assert ledger.apply(Settled(stranger, PartKind.KV, 0, 0, 1)) is ledger
    left = ledger.apply(Settled(1, PartKind.KV, 0, 0, 1)).receivers[1]
    assert left == Receiver(one, owed(one).without(PartKind.KV, 0, 0, 1), covers)


def test_prefill_says_of_every_rank_what_differs_from_what_is_declared() -> None:
    token = manifest(pages=2, aux=False)
    ledger = prefill_ledger(2).apply(Bound(0, manifest(pages=3))).apply(Bound(1, token, covers=Covers(True, (), ())))
    said = ledger.apply(Declared(Declaration(4, ("token", "logprob"), ())))
    assert said.disagreement == (
        "pages: prefill has 4, decode expects 3",
        "pages: prefill has 4, decode expects 2",  # and nothing of aux buffers, for which this pair is not
    )
