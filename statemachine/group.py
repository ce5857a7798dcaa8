"""The two machines of a room in a group of ranks: the decision, on the leader, and the room as each rank sees it.

What holds:

- The leader decides each room once: DONE when every rank has reported DONE; FAILED as soon as one has reported a
  failure, or is lost, or the deadline passes, with that first cause. It tells every rank, repeats itself on each new
  connection until the rank has acknowledged, and forgets the room when all have.
- A rank that has reported waits for the leader's word. It may take DONE back (before it leaves, or when it cannot be
  told any more what it has missed), which fails the room unless the leader had decided; then that decision stands.
  So no two ranks see different outcomes, whatever their clocks say and however their connections break.
- If the leader is lost, nobody decides any more, and what a rank was not told is FAILED there. A rank that was told
  DONE before keeps it: then, and only then, one rank's DONE can be another's FAILED, for rooms whose outcome was on its
  way when the leader was lost. Such an instance is lost as a whole: no room of it becomes DONE any more.
- A rank that is lost may come back, if only its connection was lost. The outcomes that it was not told are kept for it:
  of the rooms that were DONE when it was lost, and of the latest that have failed. If there were too many of those, it
  takes back whatever it has reported.

No time, no network, no callbacks: `engine.group_leader` and `engine.group_member` hold the rooms by their keys.
"""

from __future__ import annotations

import msgspec

from ..protocol.events import Do, Symbol, Timer
from ..protocol.failure import Failure
from ..protocol.group import (
    Acknowledged,
    Back,
    Cause,
    DecisionEvent,
    Ended,
    LeaderGone,
    LeaderInput,
    LinkUp,
    Lost,
    MemberEvent,
    MemberInput,
    Overdue,
    RankGone,
    Reported,
    Told,
    Withdraw,
)
from .memory import Always
from .table import Kind, Row, Table, arm, fail, go, ignore


class Decision(Symbol):
    """The states of a room on the leader."""

    OPEN = "some ranks have reported DONE, none has failed, and not all have reported"
    DONE = "every rank's room is DONE; not every rank has acknowledged that"
    FAILED = "some rank's room cannot be DONE; not every rank has acknowledged that"


class Standing(Symbol):
    """The states of a rank's room as its group sees it."""

    OPEN = "the room is open here"
    REPORTED = "it is DONE here, and reported so; the outcome is not known"
    WITHDRAWN = "it was reported DONE and then FAILED; whichever came first where it is decided"
    FAILING = "it is reported FAILED; the outcome is not known"
    DONE = "the outcome is DONE"
    FAILED = "the outcome is FAILED"


class Votes(Symbol):
    """What holds of a decision's reports and acknowledgements after an event."""

    REPEATED = "the event says nothing new"
    MISSING = "a rank has not reported DONE"
    ALL_DONE = "every rank has reported DONE"
    OWED = "a rank has not acknowledged the outcome"
    SETTLED = "every rank has acknowledged the outcome, or is lost"
    ASKED = "the rank repeats a report that was counted: it has missed the outcome"
    NEXT = "the rank has acknowledged the outcome: it speaks of the room's next life"


DecisionRow = Row[Decision, Votes]
StandingRow = Row[Standing, Always]
_ENDS = (DecisionEvent.FAILED, DecisionEvent.LOST, DecisionEvent.DEADLINE)
_UNDECIDED = (Standing.OPEN, Standing.REPORTED, Standing.WITHDRAWN, Standing.FAILING)


def _decision_table() -> Table[Decision, DecisionEvent, Votes]:
    cells: dict[tuple[Decision, DecisionEvent], tuple[DecisionRow, ...]] = {
        (state, event): (ignore(),) for state in Decision for event in DecisionEvent
    }
    decided = (Do.DISARM, Do.TELL_OUTCOME)
    cells[Decision.OPEN, DecisionEvent.DONE] = (
        ignore(Votes.REPEATED),
        go(Decision.DONE, *decided, guard=Votes.ALL_DONE),
        go(Decision.OPEN),
    )
    for event in _ENDS:
        stale: tuple[DecisionRow, ...] = (ignore(Votes.REPEATED),) if event is DecisionEvent.FAILED else ()
        kept = (Do.KEEP_OUTCOME,) if event is DecisionEvent.LOST else ()
        cells[Decision.OPEN, event] = (*stale, fail(Decision.FAILED, *decided, *kept))
    for state in (Decision.DONE, Decision.FAILED):
        for event in (DecisionEvent.DONE, DecisionEvent.FAILED):
            cells[state, event] = (
                go(state, Do.TELL_RANK, guard=Votes.ASKED),
                go(state, Do.KEEP_REPORT, guard=Votes.NEXT),
                ignore(),
            )
        for event in (DecisionEvent.LOST, DecisionEvent.ACKED):
            kept = (Do.KEEP_OUTCOME,) if event is DecisionEvent.LOST else ()
            cells[state, event] = (
                ignore(Votes.REPEATED),
                go(state, *kept, Do.FORGET, guard=Votes.SETTLED),
                go(state, *kept),
            )
        cells[state, DecisionEvent.BACK] = (go(state, Do.TELL_RANK, guard=Votes.OWED), ignore())
    return Table(
        name="group decision",
        title="The room on the leader of a group",
        states=Decision,
        events=tuple(DecisionEvent),
        guards=Votes,
        initial=Decision.OPEN,
        terminal=frozenset({Decision.DONE, Decision.FAILED}),
        cells=cells,
        initial_commands=(arm(Timer.DECISION),),
    )


def _standing_table() -> Table[Standing, MemberEvent, Always]:
    cells: dict[tuple[Standing, MemberEvent], tuple[StandingRow, ...]] = {
        (state, event): (ignore(),) for state in Standing for event in MemberEvent
    }
    shown = (Do.SHOW_OUTCOME, Do.FORGET)
    for state in _UNDECIDED:
        abort = (Do.ABORT_ROOM,) if state is Standing.OPEN else ()
        for event in (MemberEvent.TOLD_FAILED, MemberEvent.LEADER_LOST):
            cells[state, event] = (fail(Standing.FAILED, *abort, *shown),)
        if state is not Standing.OPEN:
            cells[state, MemberEvent.LINK_UP] = (go(state, Do.SEND_REPORT),)
    for state in (Standing.REPORTED, Standing.WITHDRAWN):
        cells[state, MemberEvent.TOLD_DONE] = (go(Standing.DONE, *shown),)
    # No leader that counts what it is told says this of a room that has failed here; it is not believed.
    cells[Standing.FAILING, MemberEvent.TOLD_DONE] = (fail(Standing.FAILED, *shown),)
    cells[Standing.OPEN, MemberEvent.ENDED_DONE] = (go(Standing.REPORTED, Do.SEND_REPORT),)
    cells[Standing.OPEN, MemberEvent.ENDED_FAILED] = (go(Standing.FAILING, Do.SEND_REPORT),)
    for event in (MemberEvent.RANK_LOST, MemberEvent.WITHDRAW):
        cells[Standing.OPEN, event] = (go(Standing.FAILING, Do.ABORT_ROOM, Do.SEND_REPORT),)
    cells[Standing.REPORTED, MemberEvent.WITHDRAW] = (go(Standing.WITHDRAWN, Do.SEND_REPORT),)
    return Table(
        name="group member",
        title="The room of one rank, as its group sees it",
        states=Standing,
        events=tuple(MemberEvent),
        guards=Always,
        initial=Standing.OPEN,
        terminal=frozenset({Standing.DONE, Standing.FAILED}),
        cells=cells,
    )


DECISION = _decision_table()
STANDING = _standing_table()
_DECISION = DECISION.compile()
_STANDING = STANDING.compile()


class DecisionValue(msgspec.Struct, frozen=True):
    """A room on the leader.

    numbers: of each rank's report that counts here, 0 for none. owed: ranks that have not acknowledged the outcome.
    later: reports that belong to the room's next life.
    """

    state: Decision
    numbers: tuple[int, ...]
    owed: frozenset[int] = frozenset()
    cause: Cause | None = None
    later: tuple[Reported, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not reported."""
        return tuple(rank for rank, number in enumerate(self.numbers) if not number)


def decision(size: int) -> DecisionValue:
    """A room on the leader of `size` ranks, before the first report is counted."""
    return DecisionValue(DECISION.initial, (0,) * size)


def step_decision(room: DecisionValue, event: LeaderInput) -> tuple[DecisionValue, DecisionRow]:
    """One step: the next value (the very same object if nothing changed) and the row taken."""
    changed, votes = _open(room, event) if room.state is Decision.OPEN else _decided(room, event)
    row = _DECISION[room.state, event.KIND, votes]
    if row.kind is Kind.IGNORE:
        return room, row
    assert row.to is not None
    if row.to is room.state:
        return changed, row
    everybody = frozenset(range(len(room.numbers)))
    if row.kind is Kind.GO:
        return msgspec.structs.replace(changed, state=row.to, owed=everybody), row
    owed = everybody - {event.rank} if isinstance(event, Lost) else everybody
    return msgspec.structs.replace(changed, state=row.to, owed=owed, cause=_cause(event)), row


def _open(room: DecisionValue, event: LeaderInput) -> tuple[DecisionValue, Votes]:
    """What an event changes in a room that is not decided, and what holds then."""
    match event:
        case Reported(rank=rank, number=number, failure=failure):
            before = room.numbers[rank]
            if number < before or (number == before and failure is None):
                return room, Votes.REPEATED
            numbers = (*room.numbers[:rank], number, *room.numbers[rank + 1 :])
            changed = msgspec.structs.replace(room, numbers=numbers)
            return changed, Votes.ALL_DONE if all(numbers) else Votes.MISSING
        case Lost() | Overdue():
            return room, Votes.MISSING
        case _:
            return room, Votes.REPEATED


def _decided(room: DecisionValue, event: LeaderInput) -> tuple[DecisionValue, Votes]:
    """What an event changes in a room that is decided, and what holds then."""
    match event:
        case Reported(rank=rank, number=number, failure=failure):
            kept = next((one for one in room.later if one.rank == rank), Reported(rank, 0))
            if rank in room.owed or number < room.numbers[rank] or number < kept.number:
                return room, Votes.REPEATED
            if number == room.numbers[rank]:
                return msgspec.structs.replace(room, owed=room.owed | {rank}), Votes.ASKED
            if number == kept.number and (failure is None or kept.failure is not None):
                return room, Votes.REPEATED
            later = (*(one for one in room.later if one is not kept), event)
            return msgspec.structs.replace(room, later=later), Votes.NEXT
        case Back(rank=rank):
            return room, Votes.OWED if rank in room.owed else Votes.REPEATED
        case Acknowledged(rank=rank) | Lost(cause=Cause(rank=rank)) if rank in room.owed:
            owed = room.owed - {rank}
            return msgspec.structs.replace(room, owed=owed), Votes.OWED if owed else Votes.SETTLED
        case _:
            return room, Votes.REPEATED


def _cause(event: LeaderInput) -> Cause:
    if isinstance(event, Reported):
        assert event.failure is not None
        return Cause(event.rank, event.failure)
    assert isinstance(event, Lost | Overdue)
    return event.cause


class StandingValue(msgspec.Struct, frozen=True):
    """A rank's room as its group sees it. number: of its report, 0 for none. failure: its own; cause: the group's."""

    state: Standing = STANDING.initial
    number: int = 0
    failure: Failure | None = None
    cause: Cause | None = None

    @property
    def decided(self) -> bool:
        """Whether the outcome is known."""
        return self.state in STANDING.terminal


def step_standing(room: StandingValue, event: MemberInput) -> tuple[StandingValue, StandingRow]:
    """One step: the next value (the very same object if nothing changed) and the row taken."""
    row = _STANDING[room.state, event.KIND, Always.ALWAYS]
    if row.kind is Kind.IGNORE:
        return room, row
    assert row.to is not None
    number, failure, cause = room.number, room.failure, room.cause
    match event:
        case Ended(number=new, failure=ended):
            number, failure = new, ended
        case RankGone(number=new, failure=gone) | Withdraw(number=new, failure=gone):
            number, failure = number or new, gone
        case Told(cause=told):
            cause = told
        case LeaderGone(cause=lost):
            cause = lost
        case LinkUp():  # pragma: no branch
            return room, row
    return StandingValue(row.to, number, failure, cause), row
