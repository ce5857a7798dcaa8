"""Rooms against a model of facts: what was accepted, declared, bound, landed, settled, in any order and repeated.

Every small room is explored exhaustively. The model keeps a set of facts and tells from it alone what the room must be;
it shares nothing with the ledgers.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from mutants import Mutant, dies, named
from room_model import explore_decode, explore_prefill, wanted_of
from samples import manifest
from tables import (
    FAILS,
    Small,
    chunks,
    items_in,
    landed,
    right,
    settled,
    small_rooms,
)

from kvrooms.protocol.events import Accepted, Bound, Close, Declared, Do, Fail, Landed, RoomEvent
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Declaration, Manifest
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.status import TERMINAL, Phase
from kvrooms.statemachine import ledger, rooms
from kvrooms.statemachine.rooms import Guard
from kvrooms.statemachine.table import Kind, Row, go


def check_decode() -> None:
    for small in small_rooms():
        reached = explore_decode(small)
        assert {room.phase for room in reached} >= {Phase.METADATA, Phase.DONE, Phase.FAILED}


def test_every_small_decode_room() -> None:
    check_decode()


def test_how_many_decode_rooms() -> None:
    """Exact figures: a change of the machine shows here. Per room: (2**items + 1) ledgers, DONE cannot fail."""
    whole, half = manifest(2, True, (1,)), manifest(1, False, (1, 1))
    ledgers = {(whole,): 17, (half,): 9, (whole, half): 17 * 9}
    for manifests, number in ledgers.items():
        reached = explore_decode(Small(manifests))
        assert sum(room.phase not in TERMINAL for room in reached) == number - 1
        assert sum(room.phase is Phase.DONE for room in reached) == 1
        assert sum(room.phase is Phase.FAILED for room in reached) == (number - 1) * len(FAILS)


def partly(whole: Declaration) -> list[Declaration]:
    """A declaration item by item, and as a whole."""
    items = [Declaration(pages=whole.pages), Declaration(aux=whole.aux), Declaration(state=whole.state)]
    return [*items, whole, Declaration()]


def wrongly(whole: Declaration) -> list[Declaration]:
    """Declarations with one item wrong each."""
    assert whole.pages is not None
    aux = () if whole.aux else ("token", "logprob")
    state = (("conv", 9), *(whole.state or ())[1:])
    return [Declaration(pages=whole.pages + 1), Declaration(aux=aux), Declaration(state=state)]


def check_prefill() -> None:
    for small in small_rooms():
        whole = right(small)
        reached = explore_prefill(small, partly(whole))
        alike = all(wanted_of(wanted) == (whole.pages, whole.aux, whole.state) for wanted in small.manifests)
        assert any(room.phase is Phase.DONE for room in reached) == alike  # A1
        assert any(room.cause is Reason.MISMATCH for room in reached) == (not alike)


def check_mismatches() -> None:
    for small in (Small((manifest(1, True, (1,)),)), Small((manifest(0, False),)), Small((manifest(1, False),) * 2)):
        reached = explore_prefill(small, partly(right(small)) + wrongly(right(small)))
        assert any(room.cause is Reason.MISMATCH for room in reached)


def test_every_small_prefill_room() -> None:
    check_prefill()


def test_a_mismatch_at_any_moment() -> None:
    check_mismatches()


WANTED = manifest(2, True, (1,))
RIGHT = Declaration(WANTED.pages, WANTED.aux, WANTED.state)


@pytest.mark.parametrize("wrong", wrongly(RIGHT), ids=["pages", "aux", "state"])
def test_a_mismatch_is_found_in_the_step_that_makes_both_sides_known(wrong: Declaration) -> None:
    bound, declared = Bound(0, WANTED), Declared(wrong)
    for first, second in ((bound, declared), (declared, bound)):
        room, _ = rooms.step_prefill(rooms.prefill_room(), first)
        assert room.phase in (Phase.METADATA, Phase.KV)
        room, row = rooms.step_prefill(room, second)
        assert (room.phase, room.cause) == (Phase.FAILED, Reason.MISMATCH)
        assert len(room.ledger.disagreement) == 1
        assert {Do.SEND_FAILED, Do.DRAIN_VOIDED, Do.REPORT} <= {command.do for command in row.commands}
        assert rooms.step_prefill(room, bound)[1].commands  # a rank that comes later is told
    late, _ = rooms.step_prefill(rooms.prefill_room(), bound)
    for item in (RIGHT, wrong):  # right first, changed later
        late, _ = rooms.step_prefill(late, Declared(item))
    assert late.cause is Reason.MISMATCH


# -- causes, orders, and figures that people can follow --------------------------------------------------------------


@pytest.mark.parametrize("first", FAILS, ids=lambda event: event.KIND.name)
def test_the_first_cause_wins(first: Fail) -> None:
    rooms_and_steps: list[tuple[Any, Any]] = [
        (rooms.decode_room((WANTED,)), rooms.step_decode),
        (rooms.prefill_room(), rooms.step_prefill),
    ]
    for room, step in rooms_and_steps:
        failed, _ = step(room, first)
        for later in (*FAILS, Close()):
            again, _ = step(failed, later)
            assert again is failed
        assert failed.cause is first.reason
        closed, row = step(room, Close())
        assert closed.cause is Reason.ABORTED
        assert row.commands[-1].do is Do.FORGET


def test_one_order_of_arrivals_in_full() -> None:
    room = rooms.decode_room((WANTED,))
    seen = []
    kv, aux, state = PartKind.KV, PartKind.AUX, PartKind.STATE
    for part, start in ((state, 0), (kv, 1), (kv, 1), (aux, 0), (kv, 0)):
        room, row = rooms.step_decode(room, Landed(0, part, 0, start, start + 1))
        seen.append((room.phase, row.kind, [str(command) for command in row.commands]))
    moving = ["ARM(MOVING)"]
    assert seen == [
        (Phase.KV, Kind.GO, moving),  # any valid notification shows that the grant was accepted
        (Phase.KV, Kind.GO, moving),
        (Phase.KV, Kind.IGNORE, []),
        (Phase.KV, Kind.GO, moving),
        (Phase.DONE, Kind.GO, ["DISARM", "REPORT", "LEASE_LANDED"]),  # from KV to DONE in one row
    ]


def test_a_room_that_owes_nothing_is_done_when_it_is_accepted() -> None:
    nothing = manifest(3, aux=False, first=3)
    room, row = rooms.step_decode(rooms.decode_room((nothing,)), Accepted())
    assert (room.phase, row.kind) == (Phase.DONE, Kind.GO)
    sender, _ = rooms.step_prefill(rooms.prefill_room(), Declared(Declaration(3, (), ())))
    sender, row = rooms.step_prefill(sender, Bound(0, nothing))
    assert sender.phase is Phase.DONE
    assert [command.do for command in row.commands].index(Do.SEND_ACCEPT) == 0


def check_within() -> None:
    wanted = Manifest(9, ((1, 3), (5, 9)), ("token",), (("conv", 2), ("swa", 1)))
    empty = Manifest(9, (), (), ())
    for part, component, start, size in itertools.product(PartKind, range(3), range(10), range(1, 6)):
        stop = start + size
        owed = {p for a, b in wanted.kv for p in range(a, b)}
        if part is not PartKind.KV:
            owed = {0} if part is PartKind.AUX else set(range({0: 2, 1: 1}.get(component, 0)))
        expected = owed.issuperset(range(start, stop))
        assert ledger.within(wanted, part, component, start, stop) == expected, (part, component, start, stop)
        assert not ledger.within(empty, part, component, start, stop)


def test_what_lies_within_a_manifest() -> None:
    check_within()


def test_chunks_cover_what_they_say() -> None:
    small = Small((WANTED, manifest(0, False, (2,))))
    assert frozenset().union(*map(items_in, chunks(small))) == small.items
    assert landed(chunks(small)[0]).KIND is RoomEvent.LANDED
    assert settled(chunks(small)[0]).KIND is RoomEvent.SETTLED


# -- mutants ---------------------------------------------------------------------------------------------------------


@named(
    [
        Mutant(ledger, "_earlier", "if missing.aux:", "if False:"),
        Mutant(ledger, "_earlier", "_ORDER[phase] > _ORDER[_AUX] else phase", "_ORDER[phase] > 9 else phase"),
        Mutant(ledger, "_earlier", "any(missing.state)", "missing.state"),  # the tuple's truth, not its members'
        Mutant(ledger, "_earlier", "any(missing.state)", "all(missing.state)"),  # done after the first component
        Mutant(ledger, "_earlier", "if phase is _DONE else phase", ""),
        Mutant(ledger, "owed", "1 if manifest.aux else 0", "1"),
        Mutant(ledger, "owed", "span(0, n) for _, n", "span(0, min(n, 1)) for _, n"),  # a count taken as a truth
        Mutant(ledger.DecodeLedger, "apply", "accepted=True", "accepted=sender.accepted"),
        Mutant(ledger.DecodeLedger, "apply", "if sender.accepted and", "if"),
        Mutant(ledger.DecodeLedger, "open_phase", "if not sender.accepted:", "if False:"),
        Mutant(ledger.Missing, "without", "*self.state[component + 1 :]", ""),
        Mutant(rooms, "step_decode", "event.reason if isinstance(event, Fail) else", ""),
        Mutant(rooms, "step_decode", "_REPEATED if ledger is room.ledger else", ""),
    ]
)
def test_mutants_of_the_decode_room_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_decode)


@named(
    [
        Mutant(ledger.PrefillLedger, "open_phase", "or declared.pages is None", ""),
        Mutant(ledger.PrefillLedger, "open_phase", "or declared.aux is None", "or not declared.aux"),
        Mutant(ledger.PrefillLedger, "open_phase", "declared.state is None", "not declared.state"),
        Mutant(ledger.PrefillLedger, "apply", "old.aux if new.aux is None", "old.aux if not new.aux"),
        Mutant(ledger.PrefillLedger, "apply", "old.state if new.state is None", "old.state if not new.state"),
        Mutant(ledger.PrefillLedger, "apply", "if merged == old else", "if False else"),
        Mutant(ledger.PrefillLedger, "disagreement", "if receiver is not None", "if receiver is self.receivers[0]"),
        Mutant(rooms, "step_prefill", "type(event) is not Settled and", "type(event) is Bound and"),
        Mutant(rooms, "step_prefill", "type(event) is not Settled and", "type(event) is Declared and"),
        Mutant(rooms, "step_prefill", "if phase not in TERMINAL and", "if"),
        Mutant(rooms, "_reason", "Bound() | Declared()", "Bound()"),
    ]
)
def test_mutants_of_the_prefill_room_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def check() -> None:
        check_mismatches()
        check_prefill()

    dies(check)


RESURRECTED: Row[Phase, Guard] = go(Phase.KV)
DONE_AGAIN: Row[Phase, Guard] = go(Phase.DONE, Do.REPORT)


@pytest.mark.parametrize("row", [RESURRECTED, DONE_AGAIN], ids=["resurrected", "reported twice"])
@pytest.mark.parametrize("phase", sorted(TERMINAL, key=str), ids=lambda phase: phase.name)
def test_a_terminal_phase_that_does_not_absorb_dies(
    phase: Phase, row: Row[Phase, Guard], monkeypatch: pytest.MonkeyPatch
) -> None:
    for lookup, event, check in (
        (rooms._DECODE, RoomEvent.LANDED, check_decode),
        (rooms._DECODE, RoomEvent.DEADLINE, check_decode),
        (rooms._PREFILL, RoomEvent.SETTLED, check_mismatches),
        (rooms._PREFILL, RoomEvent.ABORT, check_mismatches),
    ):
        with monkeypatch.context() as patch:
            for guard in Guard:
                patch.setitem(lookup, (phase, event, guard), row)
            dies(check)


@named(
    [
        Mutant(ledger, "within", "a <= start and stop <= b", "a <= start and start < b"),
        Mutant(ledger, "within", "stop <= manifest.state", "start <= manifest.state"),
        Mutant(ledger, "within", "component < len(manifest.state) and", "component <= len(manifest.state) and"),
        Mutant(ledger, "within", "bool(manifest.aux) and", "True and"),
    ]
)
def test_mutants_of_within_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_within)
