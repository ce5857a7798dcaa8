"""What the explorer says of faults planted in the code that runs: which property, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest
from explore_support import becomes, broken, searched, without
from mutants import Mutant

from kvrooms.engine.grants import GrantBook
from kvrooms.harness.explore import decode_side, system
from kvrooms.harness.explore.canary import SPELLINGS, canary
from kvrooms.harness.explore.configs import ALL, Job
from kvrooms.harness.explore.glue import Ended, judge_step
from kvrooms.harness.explore.scenario import NOTHINGS, Request
from kvrooms.protocol import manifest
from kvrooms.protocol.events import Do, DrainEvent, LeaseEvent, RoomEvent, Timer
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.status import Phase
from kvrooms.statemachine import ledger, memory, rooms
from kvrooms.statemachine.memory import Drain, Lease
from kvrooms.statemachine.table import go, ignore

Patch = pytest.MonkeyPatch


def opening(patch: Patch, timer: Timer) -> None:
    """Decode's rooms begin without a deadline."""
    left = tuple(c for c in rooms.DECODE_ROOM.initial_commands if c.timer is not timer)
    patch.setattr(rooms.DECODE_ROOM, "initial_commands", left)


def forgetful(patch: Patch) -> None:
    """The grant book remembers nothing but the floor."""
    patch.setattr(GrantBook, "end", lambda *_: None)


def believing(patch: Patch) -> None:
    """Decode takes every notification for one of what is owed."""
    patch.setattr(ledger, "within", lambda *_: True)


def double(patch: Patch) -> None:
    """A room that fails is reported twice."""
    for key, row in list(rooms._DECODE.items()):
        if row.to is Phase.FAILED and key[0] is Phase.KV:
            patch.setitem(rooms._DECODE, key, row._replace(commands=(*row.commands, *row.commands[1:2])))


def row(patch: Patch, *change: Any) -> None:
    becomes(patch, *change)


PLANTED: list[tuple[str, str, tuple[str, ...], Any]] = [
    ("L1", "no cap", ("dense-1",), lambda patch: opening(patch, Timer.CAP)),
    ("L1", "an abort that ends nothing", ("alone",),
     lambda patch: row(patch, rooms._DECODE, Phase.AUX, RoomEvent.ABORT, ignore())),
    ("L2", "ACCEPT says nothing, and nothing is owed", ("dense-1",),
     lambda patch: row(patch, rooms._DECODE, Phase.METADATA, RoomEvent.ACCEPTED, ignore())),
    ("A1", "a mismatch is not told", ("disagree",),
     lambda patch: without(patch, rooms._PREFILL, Phase.KV, RoomEvent.DECLARED, Do.SEND_FAILED)),
    ("L3", "a failed write is not told", ("fault-1",),
     lambda patch: without(patch, rooms._PREFILL, Phase.KV, RoomEvent.POST_ERROR, Do.SEND_FAILED)),
    ("L5", "void grants are not acknowledged", ("abort",),
     lambda patch: without(patch, memory._DRAIN, Drain.OPEN, DrainEvent.VOIDED, Do.SEND_ACK)),
    ("L5", "ABORT is not repeated", ("fault-2",),
     lambda patch: without(patch, memory._LEASE, Lease.QUARANTINED, LeaseEvent.RETRY, Do.SEND_ABORT)),
    ("S1", "one component is all", ("state-2",),
     lambda patch: Mutant(ledger, "_earlier", "any(missing.state)", "all(missing.state)").plant(patch)),
    ("S2", "a failed room can fail again", ("alone",),
     lambda patch: row(patch, rooms._DECODE, Phase.FAILED, RoomEvent.ABORT, go(Phase.FAILED, Do.REPORT))),
    ("S3", "a timer frees", ("alone", "fault-1"),
     lambda patch: row(patch, memory._LEASE, Lease.QUARANTINED, LeaseEvent.RETRY, go(Lease.RELEASED, Do.FREE))),
    ("S3", "an acknowledgement before the writes have settled", ("abort",),
     lambda patch: row(patch, memory._DRAIN, Drain.OPEN, DrainEvent.VOIDED, go(Drain.DRAINED, Do.SEND_ACK, Do.FREE))),
    ("S4", "a void grant is forgotten", ("abort",), forgetful),
    ("S5", "nothing is too much to have landed", ("fault-1",), believing),
    ("C1", "a done room keeps its drain", ("dense-1",),
     lambda patch: without(patch, rooms._PREFILL, Phase.KV, RoomEvent.SETTLED, Do.DRAIN_FINISHED)),
    ("C1", "a done room keeps its deadlines", ("dense-1",),
     lambda patch: without(patch, rooms._DECODE, Phase.KV, RoomEvent.LANDED, Do.DISARM)),
    ("C2", "reported twice", ("fault-1",), double),
    ("A1", "nothing is compared", ("disagree",),
     lambda patch: patch.setattr(ledger, "differences", lambda *_: ())),
]  # fmt: skip


NAMED = [pytest.param(p, names, plant, id=f"{p}-{words}") for p, words, names, plant in PLANTED]


@pytest.mark.parametrize(("property_id", "names", "plant"), NAMED)
def test_a_fault_breaks_its_property(property_id: str, names: tuple[str, ...], plant: Any, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    found = broken(*(name for name in names if name != "alone"))
    if "alone" in names:
        from kvrooms.harness.explore.alone import Alone

        found |= Alone().run().broken
    assert property_id in found, sorted(found)
    text = found[property_id].text()
    assert text.startswith(f"{property_id} does not hold: ")
    assert found[property_id].timeline, text


def test_a_failure_of_one_room_that_reaches_another_is_l4(monkeypatch: Patch) -> None:
    """A grant of one room is rejected with that of the other: the glue is made to mix them up."""
    real = decode_side.DecodeTurn._peer_failed

    def all_of_them(turn: Any, lane: int, number: int, reason: Reason) -> None:
        for use in turn._of_peer(lane, 0):
            real(turn, lane, turn._grant(use, lane).number, reason)

    monkeypatch.setattr(decode_side.DecodeTurn, "_peer_failed", all_of_them)
    assert "L4" in broken("beside")


def test_the_shortest_counterexample_ends_with_what_both_sides_believe(monkeypatch: Patch) -> None:
    becomes(monkeypatch, rooms._DECODE, Phase.METADATA, RoomEvent.ACCEPTED, ignore())
    found = broken("dense-1")["L2"]
    assert found.summary == "the callers asked for the same and the room hangs: decode METADATA, prefill DONE"
    assert found.source == "explore dense-1"
    assert found.input["decode_state_indices"] == "absent"
    assert [step.text for step in found.timeline][-1] == "decode METADATA, prefill DONE"
    assert found.timeline[-1].kind == "open"
    assert len(found.timeline) <= 9


def test_a_spelling_that_one_side_takes_for_something_breaks_l2_or_a1(monkeypatch: Patch) -> None:
    """Decode takes [[]] for one index; every other spelling is nothing."""
    real = manifest.state_indices

    def odd(layout: Any, value: object, items: Any, **options: Any) -> Any:
        return real(layout, [[0]] if value == [[]] and "complete" not in options else value, items, **options)

    monkeypatch.setattr(manifest, "state_indices", odd)
    found = broken("state-1")
    assert "L2" in found
    assert found["L2"].input["decode_state_indices"] == "[[]]"


def test_a_spelling_that_is_refused_breaks_l2(monkeypatch: Patch) -> None:
    from kvrooms.harness.explore.run import search

    def refuses(*_: Any, **__: Any) -> Any:
        raise ValueError("no such spelling")

    monkeypatch.setattr(manifest, "state_indices", refuses)
    found = search(Job("dense-1", Request(1, (1,))))[1]
    assert "refused" in found.broken["L2"].summary


@pytest.mark.parametrize("spelled", NOTHINGS)
def test_every_spelling_of_nothing_is_in_the_configurations(spelled: str) -> None:
    found = searched(Job("dense-1", Request(1, (1,), spelled=(spelled, spelled))))
    assert not found.broken
    assert found.states == 104


# -- the canary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spelled", "phase"), list(zip(SPELLINGS, ("AUX", "AUX", "STATE"), strict=True)))
def test_the_canary_is_killed(spelled: str, phase: str) -> None:
    found = canary(spelled)
    assert found is not None
    assert found.property == "L2"
    assert found.summary == f"the callers asked for the same and the room hangs: decode {phase}, prefill DONE"
    assert found.input["decode_state_indices"] == found.input["prefill_state_indices"] == spelled


def test_where_nobody_disagrees_the_canary_lives(monkeypatch: Patch) -> None:
    """What finds the canary finds nothing where one function answers both sides."""
    from kvrooms.harness.explore import canary as module

    monkeypatch.setattr(module, "TwoPredicates", module.Plan)
    assert canary("[]") is None


# -- what a mistake of the explorer's own is -------------------------------------------------------------------------


def test_a_mistake_of_the_explorer_is_no_counterexample(monkeypatch: Patch) -> None:
    monkeypatch.setattr(decode_side.DecodeTurn, "on_open", lambda *_: undefined_name())  # noqa: F821
    with pytest.raises(NameError):
        system._turn(lambda: _raises(NameError, system.__file__), None, ("open", 0))


def test_what_the_running_code_raises_is_one(monkeypatch: Patch) -> None:
    def dies(*_: Any) -> Any:
        raise ZeroDivisionError("the running code")

    monkeypatch.setattr(rooms, "step_decode", dies)
    assert "dies of" in broken("dense-1")["L2"].summary


def _raises(kind: type[Exception], path: str) -> Any:
    """Raise from a line of another file."""
    exec(compile("raise kind('mine')", path, "exec"), {"kind": kind})


def test_only_the_first_of_two_endings_is_the_cause() -> None:
    open_room = Ended(Phase.KV, None, None, 0)
    failed = Ended(Phase.FAILED, Reason.ABORTED, Reason.ABORTED, 1)
    assert judge_step("a room", open_room, failed, ()) is None
    assert judge_step("a room", open_room, failed._replace(first=Reason.PEER_LOST), ()).property == "C2"
    assert judge_step("a room", open_room, failed._replace(reports=0), ()).property == "C2"
    assert judge_step("a room", open_room, open_room._replace(reports=1), ()).property == "C2"
    assert judge_step("a room", open_room, failed, (Timer.CAP,)).property == "C1"
    assert judge_step("a room", failed, failed._replace(cause=Reason.SHUTDOWN), ()).property == "S2"
    assert judge_step("a room", failed, failed._replace(reports=2), ()).property == "S2"


def test_every_fault_can_happen_and_changes_something() -> None:
    """A fault that never applies would show nothing."""
    for name in ALL:
        with_it = searched(Job("fault-1", Request(1, (1,)), budget=1, faults=frozenset({name}), lazy=True))
        assert with_it.states > 104, name
        assert not with_it.broken, name
