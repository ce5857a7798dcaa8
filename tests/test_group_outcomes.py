"""One outcome for all ranks, over simulated connections: which, when, because of whom, and what is left of it."""

from __future__ import annotations

import pytest
from group_bench import CUT, DONE, FAILED, KEY, Bench, User

from kvrooms.engine.group import RECENT
from kvrooms.protocol.errors import EngineClosed, InvalidArgument
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Status


def test_done_when_all_are() -> None:
    bench = Bench()
    bench.enter()
    for rank in range(3):
        bench.settle()
        assert bench.outcomes() == [None] * 3
        bench.done(rank)
    bench.settle()
    assert bench.outcomes() == [DONE] * 3
    assert all(user.outcomes == {KEY: (DONE, None)} and not user.aborted for user in bench.users)
    assert bench.groups[0].wait_outcome(KEY, 0) is DONE


def test_the_first_failure_ends_the_room_everywhere_and_names_its_rank() -> None:
    bench = Bench()
    bench.enter()
    bench.done(0)
    bench.groups[1].report(KEY, FAILED, CUT)
    bench.settle()
    assert bench.outcomes() == [FAILED] * 3
    words = Failure(Reason.SEND_ERROR, "rank 1 of the group: send_error: the cable is cut", "peer")
    assert [user.outcomes[KEY][1] for user in bench.users] == [words, CUT, words]
    assert [user.aborted for user in bench.users] == [{}, {}, {KEY: words}]  # only there it was still open
    bench.done(2)
    bench.settle()
    assert bench.groups[2].counters() == {"rooms that ended after their outcome": 1}
    bench.serves()


@pytest.mark.parametrize("whose", range(3))
def test_every_rank_learns_whether_the_room_may_be_tried_again(whose: int) -> None:
    """By the word of the rank that failed it, whether it leads or not."""
    bench = Bench()
    bench.enter()
    bench.groups[whose].report(KEY, FAILED, Failure(Reason.ABORTED, "out of memory", again=True))
    bench.settle()
    assert bench.outcomes() == [FAILED] * 3
    assert all(user.outcomes[KEY][1].retryable for user in bench.users)


def test_a_rank_that_never_opens_the_room_is_named_by_the_deadline() -> None:
    bench = Bench()
    bench.enter(0, 1)
    bench.done(0, 1)
    bench.wait(59)
    assert bench.outcomes() == [None] * 3
    bench.until(0, 1)
    assert 60 <= bench.world.now < 61
    status, failure = bench.users[0].outcomes[KEY]
    assert status is FAILED
    assert failure is not None
    assert failure.reason is Reason.DEADLINE_DECISION
    assert "rank 2 has not reported on room 7 within 60 s" in failure.detail
    bench.wait(25)
    bench.serves()


def test_whoever_opens_a_failed_room_late_does_not_wait_for_the_deadline() -> None:
    bench = Bench()
    bench.enter(0)
    bench.groups[0].report(KEY, FAILED, CUT)
    bench.settle()
    bench.enter(1)
    bench.settle()
    assert bench.groups[1].outcome(KEY) is FAILED
    assert "the cable is cut" in bench.users[1].aborted[KEY].detail
    bench.wait(21)
    bench.enter(2)  # long after
    bench.done(2)
    bench.settle()
    assert bench.groups[2].outcome(KEY) is None
    bench.until(2)
    assert bench.groups[2].outcome(KEY) is FAILED


def test_a_key_can_be_used_again_once_it_is_decided() -> None:
    bench = Bench()
    for life in range(4):
        bench.enter()
        with pytest.raises(InvalidArgument, match="room 7 is not decided by its group yet"):
            bench.groups[0].enter(KEY)
        if life % 2:
            bench.groups[1].report(KEY, FAILED, CUT)
        bench.done(0, 1, 2)
        bench.settle()
        assert bench.outcomes() == [FAILED if life % 2 else DONE] * 3
        for user in bench.users:
            user.outcomes.clear()


def test_nothing_grows_with_the_number_of_rooms() -> None:
    bench = Bench()
    bench.serves()
    before = [group.tables() for group in bench.groups]
    for number in range(1000, 1000 + RECENT + 200):
        key = RoomKey(number, 0)
        bench.enter(key=key)
        if number % 3:
            bench.done(key=key)
        else:
            bench.groups[number % 2].report(key, FAILED, CUT)
    bench.settle()
    assert [group.tables() for group in bench.groups] == before
    known = [bench.groups[0].outcome(RoomKey(number, 0)) for number in range(1000, 1000 + RECENT + 200)]
    assert len([status for status in known if status]) == RECENT, "the rest is long ago"


def test_the_first_report_counts_and_only_of_rooms_that_were_entered() -> None:
    bench = Bench()
    bench.done(0)
    bench.settle()
    assert bench.groups[0].counters() == {"rooms that ended after their outcome": 1}
    bench.enter()
    bench.groups[0].report(KEY, FAILED, CUT)
    bench.groups[0].report(KEY, DONE)
    bench.settle()
    assert bench.outcomes() == [FAILED] * 3
    with pytest.raises(InvalidArgument, match="must be DONE or FAILED"):
        bench.groups[0].report(KEY, Status.WAITING)


def test_a_rank_that_leaves_takes_back_what_is_not_decided() -> None:
    bench = Bench()
    bench.enter()
    bench.done(0, 2)
    bench.settle()
    bench.groups[2].close()
    assert bench.groups[2].outcome(KEY) is FAILED
    bench.settle()
    assert bench.outcomes() == [FAILED] * 3
    failure = bench.users[0].outcomes[KEY][1]
    assert failure is not None
    assert failure.detail == "rank 2 of the group: shutdown: rank 2 has closed its group"
    assert bench.world.now < 1
    assert "rank 2 is lost: it has left the group" in bench.groups[0].problems[0]
    assert bench.groups[2].closed
    bench.groups[2].close()
    with pytest.raises(EngineClosed):
        bench.groups[2].join(0)


def test_a_leader_that_leaves_decides_first() -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    bench.groups[0].close()
    bench.settle()
    assert bench.outcomes() == [FAILED] * 3
    assert "it has left: the group was closed on its leader" in bench.groups[1].problems[0]
    assert bench.world.now < 1
    for rank in (1, 2):
        bench.groups[rank].close()


def test_a_room_that_ends_after_its_group_has_failed() -> None:
    bench = Bench()
    bench.enter()
    bench.groups[1].close()
    assert bench.users[1].outcomes[KEY][0] is FAILED
    assert not bench.groups[1].report(KEY, DONE), "the group is closed"
    bench.groups[1].enter(RoomKey(8, 0))
    assert not bench.groups[1].report(RoomKey(8, 0), DONE)
    assert bench.groups[1].outcome(RoomKey(8, 0)) is FAILED
    assert bench.groups[1].wait_outcome(RoomKey(8, 0), 0) is FAILED
    with pytest.raises(EngineClosed, match="room 9 was not entered"):
        bench.groups[1].wait_outcome(RoomKey(9, 0), 0)


def test_one_engine_has_one_group() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="it belongs to an engine already"):
        User(bench.groups[0])
