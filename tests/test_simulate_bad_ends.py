"""What real NIXL did when peers died, forgot and ended with writes in flight, the simulated transport can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_peers import Story

from kvrooms.harness.simulate.rehearsal import rehearse
from kvrooms.harness.simulate.traces import Kind, Seen

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]
LATE = ["m1", "m2", "m3"]


@pytest.fixture(params=["tcp", "all"])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """A writer and a target in processes of their own. With "all", UCX takes shared memory where it may."""
    made = Story(tmp_path, request.param)
    yield made
    made.close()


def fly(story: Story, messages: list[str]) -> None:
    """Writes that are not over, however often the writer looks: their target stands still."""
    assert all(story.post(message).number > 0 for message in messages)
    assert not [step for step in story.writer("turn") if step.kind == "settled"]


def where(steps: list[Seen], kind: Kind, data: str = "") -> int:
    """The last step of a kind (with these bytes)."""
    return max(i for i, step in enumerate(steps) if step.kind == kind and step.data == data.encode())


def changed(steps: list[Seen], at: int, **what: Any) -> list[Seen]:
    """A trace in which one step says something else."""
    return [*steps[:at], steps[at]._replace(**what), *steps[at + 1 :]]


def test_writes_land_in_memory_of_a_target_that_forgot_and_fail_when_it_is_killed(story: Story) -> None:
    assert str(story.post("bad", unregistered=True).error).startswith("TransportError: ")
    # The target is slow, and removes the writer and deregisters its memory with writes in flight.
    fly(story, LATE)
    before = story.look()
    story.target("remove", "writer")
    story.target("deregister")
    story.exchange("arrived", len(LATE))
    after = story.look()
    assert [after[message] for message in ("bad", *LATE)] == [0, 2, 2, 2]
    assert story.tls == "all" or [before[message] for message in LATE] == [0, 0, 0]
    story.post("after")
    story.exchange("arrived", 1)
    # SIGKILL with writes in flight.
    fly(story, ["k1", "k2"])
    story.look()
    story.target.kill()
    assert all(step.error for step in story.drain())
    assert str(story.post("dead").error).startswith("PeerGone: ")
    story.writer("remove", "target")
    assert str(story.post("gone").error).startswith("PeerGone: ")
    assert story.look()["after"] == 2
    steps = story.trace.steps
    assert rehearse(steps) == ""
    made_up(steps)


def made_up(steps: list[Seen]) -> None:
    """What NIXL did not do, the world cannot do."""
    unseen = where(steps, "arrived", "m2") + 1
    look = steps[where(steps, "looked", "m2")]
    assert "must be 2" in rehearse([*steps[:unseen], look._replace(rows=1), *steps[unseen:]])
    failed = where(steps, "settled")
    assert "nothing has happened" in rehearse([step for step in steps if step.kind != "died"])
    done = max(i for i, step in enumerate(steps) if step.kind == "settled" and not step.error)
    assert "nothing has happened" in rehearse(changed(steps, done, error="cable out"))
    assert "no write with this handle" in rehearse([*steps, steps[failed]._replace(error=None)])
    assert "never posted" in rehearse(changed(steps, where(steps, "looked", "bad"), rows=1))
    if not steps[where(steps, "looked", "k2")].rows:
        assert "no more than 0" in rehearse(changed(steps, where(steps, "looked", "k2"), rows=2))
        assert "in the world it fails" in rehearse(changed(steps, failed, error=None))


def test_a_target_that_ends_in_a_living_process_fails_what_is_in_flight(story: Story) -> None:
    fly(story, LATE)
    story.look()
    story.target("close")
    assert all(step.error for step in story.drain())
    assert str(story.post("late").error).startswith("PeerGone: ")
    story.look()
    assert rehearse(story.trace.steps) == ""
    assert "nothing has happened" in rehearse([step for step in story.trace.steps if step.kind != "ended"])


def test_bytes_of_a_killed_writer_that_land_later_are_what_the_world_cannot_do(story: Story) -> None:
    """Over TCP they lie in the system's buffers, and the target itself puts them in place (docs/verification.md)."""
    fly(story, LATE)
    before = story.look()
    story.writer.kill()
    assert story.look() == before
    for _ in range(5):
        assert not [step for step in story.target("turn") if step.kind == "arrived" and step.data != b"first"]
    late = sum(story.look().values()) - sum(before.values())
    assert (late > 0) == (story.tls == "tcp")
    assert ("in the world no more than" in rehearse(story.trace.steps)) == (late > 0)
