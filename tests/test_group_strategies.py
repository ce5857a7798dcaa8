"""The strategies for groups: a property as users write it; what is drawn prints, is all that was said, and shrinks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from mutants import Mutant, dies, hunt, named

from kvrooms import Status
from kvrooms.engine import group_leader, group_member
from kvrooms.harness import group_plans
from kvrooms.harness import strategies as rooms
from kvrooms.harness.faults import Faults
from kvrooms.harness.group_plans import DAMAGED, GroupPlan, GroupRoom, Part, Pause, Trouble
from kvrooms.harness.group_play import PlayedGroup
from kvrooms.harness.strategies.groups import ENDS, KINDS, groups
from kvrooms.statemachine import group as tables

ONCE = settings(max_examples=400, database=None, derandomize=True)
SOME = settings(ONCE, phases=[Phase.generate])
PLAIN = GroupPlan(2, (GroupRoom((Part(), Part())),))
DONE, FAILED = Status.DONE, Status.FAILED


@given(plan=rooms.groups(), order=rooms.schedules())
def test_a_room_has_one_outcome_on_all_ranks(plan, order):
    group = PlayedGroup(plan, order)
    group.play()
    for room in group.rooms:
        assert group.untold(room) == []
        told = {room.outcomes[rank] for rank in group.together if rank in room.opened}
        assert len(told) <= 1
        least = Status.DONE if set(room.reports) == {Status.DONE} else Status.FAILED
        # whoever is lost may have reported, but was not heard: what is DONE on all ranks may then be FAILED for all
        assert told <= ({least} if plan.calm else {least, Status.FAILED})


def test_the_documentation_shows_that_property() -> None:
    text = (Path(__file__).parents[1] / "docs" / "verification.md").read_text(encoding="utf-8")
    property_ = test_a_room_has_one_outcome_on_all_ranks.hypothesis.inner_test
    source = inspect.getsource(property_)
    assert source.startswith("@given")
    assert source in text


@named(
    [
        Mutant(tables, "_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),  # the minimum
        Mutant(group_member.Member, "link_down", "self.linked = False", "self.leader_lost(Failure(Reason.ABORTED))"),
        Mutant(group_leader.Leader, "overdue", "if room.value.state is not Decision.OPEN:", "if True:"),  # gets one
    ]
)
def test_it_can_fail(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    check = test_a_room_has_one_outcome_on_all_ranks.hypothesis.inner_test
    dies(lambda: hunt(check, plan=rooms.groups(), order=rooms.schedules()))


def test_deadlines_fall_between_the_clocks_of_two_ranks() -> None:
    """Nobody's transfer fails: one rank is in time, the other is not, and the room has failed for both."""

    def between(plan: GroupPlan) -> bool:
        group = PlayedGroup(plan)
        group.play()
        return any({DONE, FAILED} == set(room.reports) for room in group.rooms)

    plan = find(groups(troubles=(0,), ends=("done",), rooms=(1,)), between, settings=SOME)
    group = PlayedGroup(plan)
    group.play()
    assert list(group.rooms[0].outcomes.values()) == [FAILED] * plan.ranks
    assert {cause.detail for cause in group.rooms[0].causes.values() if cause} >= {"its deadline has passed"}


# -- what they draw ----------------------------------------------------------------------------------------------------


@given(groups(faults=(Faults(), DAMAGED)))
def test_what_is_drawn_prints_as_the_call_that_makes_it(plan: GroupPlan) -> None:
    assert eval(repr(plan), {**vars(group_plans)}) == plan


def test_they_shrink_to_two_ranks_that_do_a_room() -> None:
    assert find(groups(), lambda _: True, settings=ONCE) == PLAIN
    assert repr(PLAIN) == "GroupPlan(ranks=2, rooms=(GroupRoom(parts=(Part(), Part())),))"
    assert find(rooms.group_rooms(ranks=3), lambda _: True, settings=ONCE) == GroupRoom((Part(),) * 3)
    assert find(rooms.group_troubles(ranks=3), lambda _: True, settings=ONCE) == Trouble("timed out")


def test_what_is_asked_for_is_drawn_and_nothing_else_with_it() -> None:
    died = find(groups(), lambda plan: any(one.kind == "kill" for one in plan.troubles), settings=ONCE)
    assert died == PLAIN._replace(troubles=(Trouble("kill"),))
    late = find(rooms.group_rooms(ranks=2), lambda room: any(part.late for part in room.parts), settings=ONCE)
    assert late == GroupRoom((Part(), Part(late=1)))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_size_is_drawn(size: int) -> None:
    plan = find(groups(ranks=(1, 2, 4)), lambda plan: plan.ranks == size, settings=SOME)
    assert {len(room.parts) for room in plan.rooms} == {size}


@pytest.mark.parametrize("end", sorted(set(ENDS)))
def test_every_end_is_drawn_and_is_what_it_says(end: Any) -> None:
    drawn = find(rooms.group_rooms(ranks=2), lambda room: room.parts[1].end == end, settings=ONCE)
    assert drawn == GroupRoom((Part(), Part(end)))
    group = PlayedGroup(GroupPlan(2, (drawn,)))
    group.play()
    (room,) = group.rooms
    assert room.reports == [DONE, {"done": DONE, "never opened": None}.get(end, FAILED)]
    assert room.opened == ({0} if end == "never opened" else {0, 1})
    assert set(room.outcomes.values()) == {DONE if end == "done" else FAILED}


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_every_trouble_is_drawn_and_does_something(kind: Any) -> None:
    trouble = find(rooms.group_troubles(ranks=2), lambda one: one.kind == kind and one.rank == 1, settings=ONCE)
    plan = PLAIN._replace(pauses=(Pause(5, 10.0),))
    calm, troubled = PlayedGroup(plan), PlayedGroup(plan._replace(troubles=(trouble,)))
    for group in (calm, troubled):
        group.play()
        group.pass_time(10.0)
    assert troubled.dead == ({1} if kind == "kill" else set())
    assert troubled.world.steps != calm.world.steps, "it is as if nothing had happened"
