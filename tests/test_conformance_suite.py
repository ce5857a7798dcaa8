"""The conformance suite itself: a right implementation passes it, and each way to be wrong breaks its own property."""

from __future__ import annotations

import signal
from collections import Counter
from typing import ClassVar

import pytest
from conformance_toy import Toy

from kvrooms.engine.ending import CutOff
from kvrooms.harness.conformance.plan import Cut, Plan, RoomPlan
from kvrooms.harness.conformance.reduce import smaller
from kvrooms.harness.conformance.spelling import Form
from kvrooms.harness.conformance.subject import SIDES, Subject, Traits
from kvrooms.harness.conformance.suite import CHECKS, default_effort, run, status
from kvrooms.harness.evidence import PROPERTY_IDS

ONE_ROOM = "decode open, prefill open, prefill send 0"


def judged(subject, *properties, **changes):
    effort = default_effort(subject, **{"examples": 40, "seconds": 30.0, "shrink_s": 60.0, **changes})
    return run(subject, effort, properties)


def test_there_is_a_check_for_every_property():
    assert set(CHECKS) == set(PROPERTY_IDS)


def test_a_right_implementation_passes_every_property_with_examples():
    outcomes = judged(Toy())
    assert [outcome.id for outcome in outcomes] == list(PROPERTY_IDS)
    assert {outcome.id: (outcome.ok, outcome.reason) for outcome in outcomes} == dict.fromkeys(PROPERTY_IDS, (True, ""))
    assert all(outcome.examples > 0 for outcome in outcomes)
    assert status(outcomes) == 0


@pytest.mark.parametrize("property_id", PROPERTY_IDS)
def test_what_is_wrong_in_one_way_breaks_the_property_of_that_name(property_id):
    [outcome] = judged(Toy(property_id), property_id)
    assert outcome.ok is False
    assert status([outcome]) == 1
    found = outcome.counterexample
    assert found is not None
    assert found.property == property_id
    assert found.timeline[-1].text == found.summary == outcome.reason
    assert {"prefill_state_indices", "decode_state_indices", "chunks", "calls"} <= set(found.input)


def test_the_counterexample_of_two_predicates_is_the_smallest_and_says_who_waits_for_what():
    [outcome] = judged(Toy("L2"), "L2")
    found = outcome.counterexample
    assert found.input == {
        "prefill_state_indices": "[]",
        "decode_state_indices": "[]",
        "prefill_pages": "[0]",
        "decode_pages": "[0]",
        "chunks": "[1]",
        "calls": ONE_ROOM,
        "state_components": "none",
    }
    opened = [step for step in found.timeline if step.kind == "open"]
    assert [(step.who, step.text) for step in opened] == [("decode", "waits for 1 items")]
    assert "prefill is done" in found.summary


@pytest.mark.parametrize(
    ("property_id", "calls"),
    [("L3", f"{ONE_ROOM}, prefill abort"), ("L1", "prefill open"), ("A1", ONE_ROOM), ("S1", ONE_ROOM)],
)
def test_other_counterexamples_are_one_room_too(property_id, calls):
    [outcome] = judged(Toy(property_id), property_id)
    assert outcome.counterexample.input["calls"] == calls
    assert not [name for name in outcome.counterexample.input if name.startswith("other_room")]


def test_a_stranger_says_as_little_as_breaks_it():
    [outcome] = judged(Toy("S5"), "S5")
    assert outcome.counterexample.input["stranger_1"] == "to prefill, control: [b'']"


def test_the_same_seed_finds_the_same():
    first, second = (judged(Toy("S4"), "S4", seed=5)[0].counterexample for _ in range(2))
    assert first == second


def test_what_the_traits_exclude_is_unknown_and_no_pass():
    class Poor(Toy):
        traits = Traits(frozenset({"list"}), frozenset({"list"}), room_numbers=False, simulated=True)

    outcomes = {outcome.id: outcome for outcome in judged(Poor(), examples=5)}
    unknown = {"L1", "L3", "L4", "L5", "S2", "S3", "S4", "S5", "C1", "C2"}
    assert {one for one, outcome in outcomes.items() if outcome.ok is None} == unknown
    assert all(outcomes[one].reason and outcomes[one].examples == 0 for one in unknown)
    assert all(outcomes[one].ok for one in ("SMOKE", "L2", "S1", "A1"))
    assert status(list(outcomes.values())) == 2


def test_a_subject_that_cannot_be_driven_is_unknown_and_the_others_are_judged_all_the_same():
    class Nothing(Subject):
        def stop(self):
            pass

    class Breaking(Toy):
        def hold_writes(self, *, held):
            raise KeyError("prefill")

    [outcome] = judged(Nothing(), "SMOKE")
    assert (outcome.ok, outcome.reason) == (None, "unnamed does not define start, which is required")
    held, smoke = judged(Breaking(), "S3", "SMOKE")
    assert (held.ok, smoke.ok) == (None, True)
    assert "KeyError: 'prefill'" in held.reason


def test_an_error_that_only_answers_a_signal_is_the_signal():
    # as hypothesis does when it is interrupted before it has begun
    class Interrupted(Toy):
        def hold_writes(self, *, held):
            try:
                raise CutOff(signal.SIGINT)
            except KeyboardInterrupt:
                raise AssertionError("no runner yet")  # noqa: B904

    with pytest.raises(CutOff):
        judged(Interrupted(), "S3")


def test_the_writes_of_a_side_that_is_dead_are_not_released():
    class Careful(Toy):
        def hold_writes(self, *, held):
            assert not self.dead
            super().hold_writes(held=held)

    [outcome] = judged(Careful(), "L5", examples=100)
    assert (outcome.ok, outcome.reason) == (True, "")


def test_what_an_implementation_raises_into_its_caller_breaks_the_property():
    class Raising(Toy):
        def poll(self, half):
            if half.status == "done":
                raise ValueError("invalid literal for int()")
            return super().poll(half)

    [outcome] = judged(Raising(), "SMOKE")
    assert outcome.ok is False
    assert "ValueError: invalid literal" in outcome.reason


def test_a_refusal_of_a_room_whose_callers_agree_is_no_agreement():
    class Refusing(Toy):
        def want(self, half):
            if half.request.state_indices == [None]:
                from kvrooms.harness.conformance.subject import Refused

                raise Refused("None is no list")
            super().want(half)

    [outcome] = judged(Refusing(), "L2")
    assert outcome.ok is False
    assert "None is no list" in outcome.reason
    assert outcome.counterexample.input["decode_state_indices"] == "[None]"


def test_a_hang_that_is_seen_once_only_is_unknown():
    class Moody(Toy):
        traits = Toy.traits._replace(simulated=False)
        rooms = 0

        def bind(self, prefill, decode):
            Moody.rooms += 1
            if Moody.rooms != 3:
                super().bind(prefill, decode)

    [outcome] = judged(Moody(), "SMOKE", patience_s=0.03)
    assert outcome.ok is None
    assert "seen once" in outcome.reason


def test_an_unknown_property_is_refused():
    with pytest.raises(ValueError, match="L9"):
        run(Toy(), properties=("L9",))


def test_a_step_smaller_is_smaller_sometimes_and_never_invents_anything():
    plan = Plan(
        (
            RoomPlan((3, 2), (2,), Form("tuple", ("None", "list")), Form("list"), 2, cut=Cut("abort", "decode", 3)),
            RoomPlan((1, 1), (1,), decode_pages=3, acts_max=2),
        ),
        weave=(0, 1),
        rests=(0, 4),
        noise=(("control", "prefill", (b"abcd", b"e")),),
        seed=3,
    )  # fmt: skip
    traits = Traits(frozenset({"list"}), frozenset({"list", "none_entry"}))
    steps = [less for less in smaller(plan, traits) if less != plan]
    assert min(step.size for step in steps) < plan.size
    for step in steps:
        assert Counter(step.noise) <= Counter(plan.noise) or len(step.noise) == 1
        for room in step.rooms:
            assert room.pages >= 1
            assert room.agrees is (room.decode_pages is None)


def test_without_decode_first_the_order_stays():
    plan = Plan((RoomPlan((1, 1), decode_at=3),))
    traits = Traits(frozenset({"list"}), frozenset({"list"}), decode_first=False)
    assert {room.decode_at for less in smaller(plan, traits) for room in less.rooms} == {3}


def test_a_subject_without_state_or_chunks_is_given_neither():
    class Dense(Toy):
        traits = Toy.traits._replace(components=0, chunks=False)
        shapes: ClassVar = set()

        def start(self, shape, **rest):
            self.shapes.add(shape.state)
            super().start(shape, **rest)

        def send(self, half, pages, state_indices, *, last):
            assert last
            super().send(half, pages, state_indices, last=last)

    outcomes = judged(Dense(), examples=10)
    assert status(outcomes) == 0
    assert Dense.shapes == {()}


def test_decode_comes_after_the_last_send_where_it_must():
    class Later(Toy):
        traits = Toy.traits._replace(decode_first=False, lost_messages=False)
        seen: ClassVar = set()

        def open(self, side, request):
            if side == "decode":
                prefill = self.open_rooms["prefill"].get((request.number, request.attempt))
                self.seen.add(prefill is not None and bool(prefill.sent) and prefill.sent[-1][-1])
            return super().open(side, request)

    assert status(judged(Later(), "SMOKE", "L2", "S1", "A1", examples=15)) == 0
    assert Later.seen == {True}


def test_both_sides_can_be_named():
    assert SIDES == ("prefill", "decode")


def test_a_subject_that_cannot_be_stopped_does_not_hide_what_was_found():
    class Stuck(Toy):
        def stop(self):
            raise OSError("a thread is left")

    subject = Stuck("SMOKE")
    with pytest.warns(RuntimeWarning, match="a thread is left"):
        [outcome] = run(subject, default_effort(subject, examples=5), ("SMOKE",))
    assert outcome.ok is False
