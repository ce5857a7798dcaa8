"""kvrooms as a subject: every property holds, in the simulated world and on real NIXL."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrooms.harness.conformance.own_nixl import KvroomsNixl
from kvrooms.harness.conformance.own_sim import KvroomsSim
from kvrooms.harness.conformance.plan import Plan, RoomPlan
from kvrooms.harness.conformance.play import play
from kvrooms.harness.conformance.stage import Stage
from kvrooms.harness.conformance.subject import ComponentShape, Item, Refused, Request, Shape
from kvrooms.harness.conformance.suite import default_effort, run, status
from kvrooms.harness.evidence import PROPERTY_IDS

SHAPE = Shape(64, 8, 8, 16, 4, 4, (ComponentShape("window", "when_indexed", 8, 4, 4),))


@pytest.mark.parametrize("property_id", PROPERTY_IDS)
def test_in_the_simulated_world_every_property_holds(property_id):
    subject = KvroomsSim()
    [outcome] = run(subject, default_effort(subject, examples=40, seconds=30.0), (property_id,))
    assert outcome.ok is True, outcome.counterexample.text() if outcome.counterexample else outcome.reason
    assert outcome.examples >= 10


def test_its_timeline_has_messages_writes_and_states():
    subject = KvroomsSim()
    stage = Stage(subject, SHAPE, patience_s=1.0, deadline_s=None, seed=0)
    [live] = play(stage, Plan((RoomPlan(state=(1,)),)))
    assert stage.settle(lambda: live.ended)
    assert live.state == {"prefill": "done", "decode": "done"}
    steps = stage.timeline(live, "the end")
    assert {"call", "message", "write", "notification", "state"} <= {step.kind for step in steps}
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert ("decode", "prefill", "sends METADATA") in [(step.who, step.to, step.text) for step in steps]


def test_faults_of_the_simulated_world_do_what_they_say():
    subject = KvroomsSim()
    stage = Stage(subject, SHAPE, patience_s=1.0, deadline_s=5.0, seed=0)
    subject.lose("prefill", lost=True)
    [live] = play(stage, Plan((RoomPlan(state=(1,)),)))
    assert not stage.settle(lambda: live.ended)
    assert stage.settle(lambda: live.ended, timers=True)
    assert set(live.state.values()) == {"failed"}
    stage = Stage(subject, SHAPE, patience_s=1.0, deadline_s=None, seed=0)
    subject.hold_writes(held=True)
    second = stage.room(RoomPlan(state=(1,)))
    for side in ("prefill", "decode"):
        stage.open(second, side)
    stage.send(second, 0)
    stage.rest()
    assert second.state["decode"] == "open"
    subject.hold_writes(held=False)
    assert stage.settle(lambda: second.ended)
    assert second.state["decode"] == "done"
    assert second.wrong_at_done is None


@pytest.mark.nixl
@pytest.mark.slow
def test_on_real_nixl_properties_hold_with_strangers_and_a_process_that_is_killed():
    subject = KvroomsNixl()
    outcomes = run(subject, default_effort(subject, examples=6, seconds=3.0, patience_s=10.0), ("SMOKE", "S5", "L3"))
    assert {outcome.id: (outcome.ok, outcome.reason) for outcome in outcomes} == dict.fromkeys(
        ("SMOKE", "S5", "L3"), (True, "")
    )
    assert status(outcomes) == 0


@pytest.mark.nixl
def test_on_real_nixl_a_side_can_be_killed_and_come_back_and_nothing_is_left():
    subject = KvroomsNixl()
    try:
        subject.start(SHAPE)
        memories = [Path(subject._path(side)) for side in ("prefill", "decode")]
        assert all(memory.exists() for memory in memories)
        processes = [process.process for process in subject._everybody()]
        subject.fill("prefill", Item("kv", 1), b"x" * 64)
        assert subject.read("prefill", Item("kv", 1)) == b"x" * 64
        room = subject.open("decode", Request(1, 0, (0,), 0))
        with pytest.raises(Refused, match="is open"):
            subject.open("decode", Request(1, 0, (1,), 1))
        subject.kill("prefill")
        assert subject.ailments("prefill")
        subject.restart("prefill")
        assert subject.ailments("prefill") == ()
        subject.abort(room)
        assert subject.settle(lambda: subject.poll(room) == "failed", lambda: 0, patience_s=10)
        assert "aborted" in subject.failure(room)
        assert subject.failure(room) is None
    finally:
        subject.stop()
    assert not any(memory.exists() for memory in memories)
    assert not any(process.is_alive() for process in processes)
