"""Groups of ranks in worlds where connections break, processes stand still and die, and frames are damaged.

The judge knows what each rank reported and what it was told, and nothing of the product.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from mutants import Mutant, dies, hunt, named

from kvrooms.engine import group_hub, group_leader, group_member
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness import strategies as rooms
from kvrooms.harness.faults import Faults
from kvrooms.harness.group_plans import DAMAGED, GroupPlan, GroupRoom, Part, Pause, Trouble
from kvrooms.harness.group_play import PlayedGroup
from kvrooms.harness.strategies.groups import KINDS
from kvrooms.protocol.status import Status
from kvrooms.statemachine import group as tables

FEW = EngineSettings(decision_timeout_s=40.0, parked_total=20, parked_per_peer=20)
MANY: dict[str, Any] = {"ranks": (3,), "rooms": (20,), "troubles": (0, 9), "faults": (Faults(), Faults(), DAMAGED)}
DEATHLESS = tuple(kind for kind in KINDS if kind != "kill")
FENCED = GroupPlan(
    3,
    (GroupRoom((Part(takes=1), Part(takes=2), Part(takes=2))),),
    (Trouble("stall", seconds=70.0, at=1),),
    (Pause(40), Pause(20), Pause(20, 75.0)),
)
"""A leader that stands still for so long that a rank gives it up, with reports in its sockets."""
AWAY = GroupPlan(
    3,
    (GroupRoom((Part(), Part(), Part(takes=1))),),
    (Trouble("timed out", rank=1, at=1), Trouble("stall", rank=1, at=1, seconds=8.0)),
    (Pause(40), Pause(0, 20.0)),
)
"""A rank that is away, without a connection, when a room becomes DONE that it has reported; and is back later."""


class Chaos(PlayedGroup):
    """A plan, an order, and the judge."""

    def __init__(self, plan: GroupPlan, order: rooms.Schedule | None = None) -> None:
        super().__init__(plan, order, FEW)

    def run(self) -> None:
        """The plan, and what must hold of it."""
        self.play()
        for room in self.rooms:
            assert not self.untold(room), f"ranks {self.untold(room)} know no outcome of {room.key}"
        self.pass_time(100)  # what is kept for whoever comes late goes
        self.judge()
        for rank in self.living:
            left = {
                name: count
                for name, count in self.groups[rank].tables().items()
                if name not in ("timers", "connections", "kept outcomes")
            }
            assert not any(left.values()), left
        if len(self.together) == self.plan.ranks:
            assert set(self.serve().outcomes.values()) == {Status.DONE}
            assert all(not group.problems for group in self.groups)

    def judge(self) -> None:
        """DONE only where all ranks have reported it; FAILED beside it only for ranks that had lost their leader."""
        for room in self.rooms:
            if Status.DONE not in room.outcomes.values():
                continue
            assert room.reports == [Status.DONE] * self.plan.ranks, f"{room.key} is DONE, and {room.reports}"
            failed = {rank for rank, status in room.outcomes.items() if status is Status.FAILED}
            assert not failed & set(self.together), f"{room.key} is DONE for some and FAILED for ranks {failed}"
            first = min(room.told_at[rank] for rank in room.outcomes if rank not in failed)
            for rank in failed - self.dead:
                words = f"rank {rank} has given its leader up, and then {room.key} was DONE for others"
                assert first <= room.told_at[rank], words


def outcomes_agree(plan: GroupPlan, order: rooms.Schedule) -> None:
    Chaos(plan, order).run()


@settings(max_examples=40)
@given(plan=rooms.groups(**MANY), order=rooms.schedules())
def test_outcomes_agree_whatever_goes_wrong(plan: GroupPlan, order: rooms.Schedule) -> None:
    outcomes_agree(plan, order)


@given(plan=rooms.groups(**{**MANY, "rooms": (10,)}, kinds=DEATHLESS), order=rooms.schedules())
def test_a_group_without_deaths_is_whole_again(plan: GroupPlan, order: rooms.Schedule) -> None:
    outcomes_agree(plan, order)


@pytest.mark.deep
@pytest.mark.timeout(900)
@settings(max_examples=4000)
@given(plan=rooms.groups(**{**MANY, "ranks": (2, 3, 4)}), order=rooms.schedules())
def test_very_many_worlds(plan: GroupPlan, order: rooms.Schedule) -> None:
    outcomes_agree(plan, order)


def test_chaos_is_chaos() -> None:
    """What goes wrong does go wrong, and not everything fails because of it."""
    seen: Counter[str] = Counter()

    @settings(max_examples=60, phases=[Phase.generate])
    @given(plan=rooms.groups(**MANY), order=rooms.schedules())
    def look(plan: GroupPlan, order: rooms.Schedule) -> None:
        played = Chaos(plan, order)
        played.play()
        seen.update(status.name for room in played.rooms for status in room.outcomes.values())
        seen["a rank has lost its leader"] += bool(set(played.living) - set(played.together))
        seen["a rank has died"] += bool(played.dead)
        seen["frames were damaged"] += played.plan.faults is DAMAGED
        seen["all was well"] += plan.calm

    look()
    assert seen["DONE"] > 100, seen
    assert seen["FAILED"] > 100, seen
    assert min(seen.values()) >= 3, seen


def many_worlds() -> None:
    Chaos(FENCED).run()
    Chaos(AWAY).run()
    hunt(outcomes_agree, plan=rooms.groups(**MANY), order=rooms.schedules())


@named(
    [
        Mutant(group_member.Member, "link_down", "self.linked = False", "self.leader_lost(Failure(Reason.ABORTED))"),
        Mutant(group_member.Member, "link_up", "self._step(key, LinkUp())", "pass"),
        Mutant(group_leader.Leader, "_carry_out", "self._keep(event.rank, room)", "pass"),
        Mutant(group_leader.Leader, "_begin", "for cause in self.absent.values():", "for cause in ():"),
        Mutant(group_hub.HubCore, "_look", "if seat.confirmed < limit", "if False"),
        Mutant(tables, "_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),
    ]
)
def test_mutants_of_groups_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(many_worlds)
