"""The two machines of a group's room, each alone: what `alone` does for the others."""

from __future__ import annotations

from typing import Any

from ...protocol.events import Do
from ...protocol.failure import Failure, Reason
from ...protocol.group import (
    Acknowledged,
    Back,
    Cause,
    Ended,
    LeaderGone,
    LinkUp,
    Lost,
    MemberEvent,
    Overdue,
    RankGone,
    Reported,
    Told,
    Withdraw,
)
from ...statemachine import group
from .glue import Broken, Cells

_SIZE = 2
_BAD = Failure(Reason.ABORTED)
_CAUSE = Cause(1, _BAD)
_UNDECIDED = group.Decision.OPEN


class Deciding:
    """The room on the leader of two ranks. numbers: of each rank's reports, three of them."""

    name = "group decision alone"
    start = group.decision(_SIZE)
    events = (
        *(Reported(rank, number, bad) for rank in range(_SIZE) for number in (1, 2, 3) for bad in (None, _BAD)),
        *(Lost(Cause(rank, _BAD)) for rank in range(_SIZE)),
        Overdue(_CAUSE),
        *(Acknowledged(rank) for rank in range(_SIZE)),
        *(Back(rank) for rank in range(_SIZE)),
    )

    @staticmethod
    def step(cells: Cells, room: group.DecisionValue, event: Any) -> tuple[group.DecisionValue, list[Broken]]:
        """One step, and what it breaks."""
        after, row = group.step_decision(room, event)
        cells.visit(group.DECISION, room.state, event.KIND)
        given = [command.do for command in row.commands]
        decides = room.state is _UNDECIDED is not after.state
        broken = []
        if room.state is not _UNDECIDED and (after.state, after.cause) != (room.state, room.cause):
            broken.append(Broken("A1", f"the outcome was {room.state.name}, and {event.KIND.name} changed it"))
        if after.state is group.Decision.DONE and (not all(after.numbers) or after.cause is not None):
            broken.append(Broken("A1", f"the outcome is DONE, and ranks {after.missing} have not reported"))
        if (after.state is group.Decision.FAILED) != (after.cause is not None):
            broken.append(Broken("C2", f"the outcome is {after.state.name}, and its cause is {after.cause}"))
        if (Do.DISARM in given) != decides or (Do.TELL_OUTCOME in given) != decides:
            broken.append(Broken("L1", f"{event.KIND.name} in {room.state.name} gives {', '.join(map(str, given))}"))
        if room.state is _UNDECIDED and isinstance(event, Lost | Overdue) and not decides:
            broken.append(Broken("L1", f"{event.KIND.name} does not end it"))
        if Do.FORGET in given and after.owed:
            broken.append(Broken("A1", f"the outcome is forgotten, and ranks {sorted(after.owed)} may not know it"))
        return after, broken


class Standing:
    """The room of one rank."""

    name = "group member alone"
    start = group.StandingValue()
    events = (
        Ended(1),
        Ended(1, _BAD),
        Told(),
        Told(_CAUSE),
        RankGone(2, _BAD),
        Withdraw(3, _BAD),
        LeaderGone(_CAUSE),
        LinkUp(),
    )
    _ends = (MemberEvent.TOLD_FAILED, MemberEvent.LEADER_LOST)

    @classmethod
    def step(cls, cells: Cells, room: group.StandingValue, event: Any) -> tuple[group.StandingValue, list[Broken]]:
        """One step, and what it breaks."""
        after, row = group.step_standing(room, event)
        cells.visit(group.STANDING, room.state, event.KIND)
        given = [command.do for command in row.commands]
        broken = []
        if room.decided and (after != room or given):
            broken.append(Broken("S2", f"the outcome was {room.state.name}, and {event.KIND.name} changed it"))
        told = after.decided and not room.decided
        if (given.count(Do.SHOW_OUTCOME), given.count(Do.FORGET)) != (told, told):
            broken.append(Broken("S2", f"{event.KIND.name} in {room.state.name} gives {', '.join(map(str, given))}"))
        reported = room.state in (group.Standing.REPORTED, group.Standing.WITHDRAWN)
        if told and after.state is group.Standing.DONE and not (event.KIND is MemberEvent.TOLD_DONE and reported):
            broken.append(Broken("A1", f"{event.KIND.name} in {room.state.name} makes the outcome DONE"))
        if event.KIND in cls._ends and not after.decided:
            broken.append(Broken("L1", f"{event.KIND.name} does not end it"))
        return after, broken
