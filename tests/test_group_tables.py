"""The two machines of a group's rooms: every sequence of events against a model that shares no code with them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from mutants import Mutant, dies, named
from tables import explore

from kvrooms.protocol.events import Do
from kvrooms.protocol.failure import DETAIL_MAX, Failure, Reason
from kvrooms.protocol.group import (
    Acknowledged,
    Back,
    Cause,
    DecisionEvent,
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
from kvrooms.statemachine import group
from kvrooms.statemachine.group import (
    DECISION,
    STANDING,
    Decision,
    DecisionValue,
    Standing,
    StandingValue,
    decision,
)
from kvrooms.statemachine.table import Kind

BAD = Failure(Reason.SEND_ERROR, "the cable is cut")
GONE = Failure(Reason.PEER_LOST, "it is gone")
LATE = Cause(1, Failure(Reason.DEADLINE_DECISION, "late"))


def does(row: Any) -> list[Do]:
    return [command.do for command in row.commands]


def decided(events: list[Any], size: int = 3) -> tuple[DecisionValue, list[list[Do]]]:
    room, done = decision(size), []
    for event in events:
        room, row = group.step_decision(room, event)
        done.append(does(row))
    return room, done


# -- the decision --------------------------------------------------------------------------------------------------


def test_done_when_all_are() -> None:
    room, done = decided([Reported(0, 5), Reported(2, 1), Reported(0, 5), Reported(1, 9)])
    assert done == [[], [], [], [Do.DISARM, Do.TELL_OUTCOME]]
    assert (room.state, room.numbers, room.owed, room.cause) == (Decision.DONE, (5, 9, 1), frozenset({0, 1, 2}), None)


@pytest.mark.parametrize(
    ("event", "cause", "owed"),
    [
        (Reported(1, 3, BAD), Cause(1, BAD), {0, 1, 2}),
        (Reported(0, 5, BAD), Cause(0, BAD), {0, 1, 2}),  # it takes back that it was DONE
        (Overdue(LATE), LATE, {0, 1, 2}),
        (Lost(Cause(2, GONE)), Cause(2, GONE), {0, 1}),
    ],
)
def test_the_first_that_cannot_be_done_decides(event: Any, cause: Cause, owed: set[int]) -> None:
    room, done = decided([Reported(0, 5), event, Reported(1, 3, GONE), Overdue(LATE)])
    kept = [Do.KEEP_OUTCOME] if type(event) is Lost else []
    assert done == [[], [Do.DISARM, Do.TELL_OUTCOME, *kept], [], []]
    assert (room.state, room.cause, room.owed) == (Decision.FAILED, cause, frozenset(owed))


def test_a_report_of_earlier_is_stale() -> None:
    room, _ = decided([Reported(0, 5)])
    for stale in (Reported(0, 4), Reported(0, 4, BAD), Reported(0, 5), Back(0), Acknowledged(0)):
        after, row = group.step_decision(room, stale)
        assert after is room
        assert row.kind is Kind.IGNORE
    after, _ = group.step_decision(room, Reported(0, 6))
    assert after.numbers == (6, 0, 0)


def test_forgotten_when_all_have_acknowledged() -> None:
    events = [Reported(0, 1, BAD), Acknowledged(1), Acknowledged(1), Back(1), Back(2), Lost(Cause(2, GONE))]
    room, done = decided([*events, Acknowledged(0)])
    assert done[1:] == [[], [], [], [Do.TELL_RANK], [Do.KEEP_OUTCOME], [Do.FORGET]]
    assert not room.owed
    ended = [Reported(0, 1, BAD), Acknowledged(0), Acknowledged(1), Lost(Cause(2, GONE))]
    assert decided(ended)[1][-1] == [Do.KEEP_OUTCOME, Do.FORGET]


def test_what_comes_after_the_acknowledgement_is_of_the_next_life() -> None:
    events = [Reported(0, 4, BAD), Acknowledged(0), Acknowledged(1)]
    room, _ = decided([*events, Reported(2, 1)])
    assert not room.later, "it has not acknowledged: its report has crossed the outcome"
    room, done = decided([*events, Reported(0, 3), Reported(0, 5), Reported(1, 1)])
    assert done[3:] == [[], [Do.KEEP_REPORT], [Do.KEEP_REPORT]]
    assert room.later == (Reported(0, 5), Reported(1, 1))
    for stale in (Reported(0, 5), Reported(0, 4)):
        assert group.step_decision(room, stale)[0] is room
    room, _ = group.step_decision(room, Reported(0, 5, GONE))
    assert room.later == (Reported(1, 1), Reported(0, 5, GONE)), "taken back before it was counted"
    assert group.step_decision(room, Reported(0, 5))[0] is room, "what was taken back stays so"


def test_a_rank_that_has_missed_the_outcome_is_told_again() -> None:
    events = [Reported(0, 4), Reported(1, 1, BAD), Lost(Cause(0, GONE)), Reported(0, 4, GONE), Reported(0, 4, GONE)]
    room, done = decided(events)
    assert done[2:] == [[Do.KEEP_OUTCOME], [Do.TELL_RANK], []]
    assert room.owed == {0, 1, 2}


def test_missing_names_the_ranks() -> None:
    assert decided([Reported(1, 1)])[0].missing == (0, 2)


SIZE = 2
EVENTS: list[Any] = [
    *(Reported(rank, number, failure) for rank in range(SIZE) for number in (1, 2) for failure in (None, BAD)),
    *(Lost(Cause(rank, GONE)) for rank in range(SIZE)),
    Overdue(LATE),
    *(cls(rank) for cls in (Acknowledged, Back) for rank in range(SIZE)),
]


def check_decisions() -> set[tuple[Decision, str]]:
    """Every value that can be reached: decided once, told to all, and DONE only with a report of every rank."""
    seen: set[tuple[Decision, str]] = set()

    def advance(room: DecisionValue, event: Any) -> DecisionValue:
        after, row = group.step_decision(room, event)
        seen.add((room.state, event.KIND.name))
        told = Do.TELL_OUTCOME in does(row)
        assert told == (room.state is Decision.OPEN and after.state is not Decision.OPEN)
        assert (Do.DISARM in does(row)) == told
        assert (Do.FORGET in does(row)) == (room.state is not Decision.OPEN and bool(room.owed) and not after.owed)
        assert (after.cause is None) == (after.state is not Decision.FAILED)
        if told:
            assert after.owed == frozenset(range(SIZE)) - ({event.rank} if isinstance(event, Lost) else set())
        if room.state is not Decision.OPEN:
            assert (after.state, after.cause, after.numbers) == (room.state, room.cause, room.numbers)
            asked = isinstance(event, Reported) and Do.TELL_RANK in does(row)
            assert after.owed - room.owed == ({event.rank} if asked else set())
            if isinstance(event, Lost):
                assert event.rank not in after.owed
        if after.state is Decision.DONE:
            assert all(after.numbers)
        assert len({one.rank for one in after.later}) == len(after.later) <= SIZE
        return after

    reached = explore(decision(SIZE), EVENTS, advance)
    assert len(reached) > 100
    return seen


def test_all_decisions() -> None:
    assert check_decisions() == set(itertools.product(Decision, [event.name for event in DecisionEvent]))


@named(
    [
        Mutant(group, "_open", "number < before or (number == before and failure is None)", "False"),
        Mutant(group, "_open", "Votes.ALL_DONE if all(numbers) else", "Votes.ALL_DONE if any(numbers) else"),
        Mutant(group, "_decided", "Votes.OWED if owed else Votes.SETTLED", "Votes.SETTLED"),
        Mutant(group, "_decided", "rank in room.owed or number <", "number <"),
        Mutant(group, "_decided", "if one is not kept", "if True"),
        Mutant(group, "step_decision", "owed = everybody - {event.rank}", "owed = everybody"),
        Mutant(group, "step_decision", "state=row.to, owed=everybody)", "state=row.to)"),
    ]
)
def test_mutants_of_the_decision_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: (check_decisions(), test_a_report_of_earlier_is_stale()))


# -- a rank's room -------------------------------------------------------------------------------------------------

INPUTS: list[Any] = [
    Ended(1), Ended(1, BAD), Told(), Told(Cause(1, BAD)), RankGone(1, GONE), Withdraw(1, GONE),
    LeaderGone(Cause(0, GONE)), LinkUp(),
]  # fmt: skip


def check_standings() -> None:
    """Every sequence of inputs: the outcome is shown once, and is DONE only where DONE was reported and confirmed."""
    seen: set[tuple[Standing, str]] = set()

    def advance(value: tuple[StandingValue, bool, bool], event: Any) -> tuple[StandingValue, bool, bool]:
        room, reported_done, shown = value
        after, row = group.step_standing(room, event)
        seen.add((room.state, event.KIND.name))
        commands = does(row)
        assert commands.count(Do.SHOW_OUTCOME) == commands.count(Do.FORGET) == (after.decided and not room.decided)
        assert not (shown and commands)
        reported_done |= Do.SEND_REPORT in commands and after.failure is None
        assert (after.number > 0) or Do.SEND_REPORT not in commands
        assert (Do.ABORT_ROOM in commands) <= (room.state is Standing.OPEN)
        if room.state is Standing.OPEN and after.state in (Standing.FAILING, Standing.FAILED):
            assert isinstance(event, Ended) or Do.ABORT_ROOM in commands
        if after.state is Standing.DONE:
            assert reported_done
            assert isinstance(event, Told) or room.decided
        if isinstance(event, LeaderGone):
            assert after.decided
        if not after.decided and isinstance(event, LinkUp) and room.state is not Standing.OPEN:
            assert commands == [Do.SEND_REPORT]
            assert after is room, "a new connection changes nothing"
        return after, reported_done, shown or after.decided

    assert len(explore((StandingValue(), False, False), INPUTS, advance)) > 8
    assert seen == set(itertools.product(Standing, [event.name for event in MemberEvent]))


def test_all_standings() -> None:
    check_standings()


def standing(*events: Any) -> StandingValue:
    room = StandingValue()
    for event in events:
        room, _ = group.step_standing(room, event)
    return room


def test_a_rank_waits_for_the_word_of_the_leader() -> None:
    assert standing(Ended(4)) == StandingValue(Standing.REPORTED, 4)
    assert standing(Ended(4), RankGone(5, GONE)).state is Standing.REPORTED
    assert standing(Ended(4), Told()).state is Standing.DONE
    assert standing(Ended(4), Told(Cause(1, BAD))) == StandingValue(Standing.FAILED, 4, None, Cause(1, BAD))
    assert standing(Ended(4), LeaderGone(Cause(0, GONE))).cause == Cause(0, GONE)


def test_what_is_taken_back_may_be_decided_already() -> None:
    taken = standing(Ended(4), Withdraw(5, GONE))
    assert taken == StandingValue(Standing.WITHDRAWN, 4, GONE)
    assert group.step_standing(taken, Told())[0].state is Standing.DONE
    assert group.step_standing(taken, Told(Cause(2, BAD)))[0].state is Standing.FAILED
    assert standing(Withdraw(5, GONE)) == StandingValue(Standing.FAILING, 5, GONE)
    assert standing(Ended(4, BAD), Withdraw(5, GONE)) == StandingValue(Standing.FAILING, 4, BAD)


def test_a_room_that_has_failed_here_is_not_done() -> None:
    assert standing(Ended(4, BAD), Told()).state is Standing.FAILED
    assert standing(Told()).state is Standing.OPEN, "this rank has not said that its room is DONE"


def test_every_undecided_state_has_exits() -> None:
    """The loss of the leader ends each of them, and a failure that is told; the leader has the deadline."""
    for state in set(Standing) - STANDING.terminal:
        for event in (MemberEvent.LEADER_LOST, MemberEvent.TOLD_FAILED):
            (row,) = STANDING.cells[state, event]
            assert (row.kind, row.to) == (Kind.FAIL, Standing.FAILED)
    for event in (DecisionEvent.LOST, DecisionEvent.DEADLINE):
        assert DECISION.cells[Decision.OPEN, event][-1].to is Decision.FAILED
    assert [str(command) for command in DECISION.initial_commands] == ["ARM(DECISION)"]


# -- words ---------------------------------------------------------------------------------------------------------


def test_the_cause_names_the_rank() -> None:
    cause = Cause(2, BAD)
    assert cause.for_rank(2) is BAD
    assert cause.for_rank(0) == Failure(
        Reason.SEND_ERROR, "rank 2 of the group: send_error: the cable is cut", "peer"
    )  # fmt: skip
    assert "The engine was closed" in Cause(1, Failure(Reason.SHUTDOWN)).for_rank(0).detail
    assert len(Cause(1, Failure(Reason.ABORTED, "x" * DETAIL_MAX)).for_rank(0).detail) == DETAIL_MAX


def test_values_are_frozen() -> None:
    for value in (decision(2), StandingValue(), Cause(1, BAD), Reported(0, 1)):
        hash(value)
        with pytest.raises((AttributeError, msgspec.ValidationError)):
            value.rank = 3
