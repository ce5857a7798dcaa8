"""Groups of ranks over simulated connections and clocks: joining, outcomes, losses, returns, and the end."""

from __future__ import annotations

from typing import Any

import pytest

from kvrooms.engine.group import RECENT, RoomGroup
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.channel import SimChannel
from kvrooms.harness.groups import gather, rank_in
from kvrooms.harness.world import World
from kvrooms.protocol import group as said
from kvrooms.protocol import wire
from kvrooms.protocol.errors import EngineClosed, GroupIncomplete, HandshakeRefused, InvalidArgument
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Status
from kvrooms.transport.ports import CloseCause

KEY = RoomKey(7, 0)
CUT = Failure(Reason.SEND_ERROR, "the cable is cut")
SETTINGS = EngineSettings(decision_timeout_s=60.0)
DONE, FAILED = Status.DONE, Status.FAILED


class User:
    """An engine as its group sees it."""

    def __init__(self, group: RoomGroup) -> None:
        self.outcomes: dict[RoomKey, tuple[Status, Failure | None]] = {}
        self.aborted: dict[RoomKey, Failure] = {}
        group.attach(self)

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        assert key not in self.outcomes
        self.outcomes[key] = status, failure

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        self.aborted[key] = failure


class Bench:
    """A world with a group in it."""

    def __init__(self, size: int = 3, seed: int = 1, settings: EngineSettings = SETTINGS) -> None:
        self.world = World(seed)
        self.groups = gather(self.world, size, settings)
        self.users = [User(group) for group in self.groups]

    def enter(self, *ranks: int, key: RoomKey = KEY) -> None:
        for rank in ranks or range(len(self.groups)):
            self.groups[rank].enter(key)

    def done(self, *ranks: int, key: RoomKey = KEY) -> None:
        for rank in ranks or range(len(self.groups)):
            self.groups[rank].report(key, DONE)

    def outcomes(self, key: RoomKey = KEY) -> list[Status | None]:
        return [group.outcome(key) for group in self.groups]

    def settle(self) -> None:
        self.world.settle()

    def wait(self, seconds: float) -> None:
        end = self.world.now + seconds
        self.world.run(lambda: self.world.now >= end, timers=True)
        self.settle()

    def until(self, *ranks: int, key: RoomKey = KEY, timers: bool = True) -> None:
        """Run until the ranks know the outcome."""
        self.world.run(lambda: all(self.groups[rank].outcome(key) for rank in ranks), timers=timers)

    def serves(self, number: int = 99) -> None:
        """A new room becomes DONE without a timer."""
        key = RoomKey(number, 0)
        self.enter(key=key)
        self.done(key=key)
        self.until(*range(len(self.groups)), key=key, timers=False)
        assert set(self.outcomes(key)) == {DONE}
        self.settle()
        assert all(not group.problems for group in self.groups)
        for group in self.groups:
            left = {name: count for name, count in group.tables().items() if name not in ("timers", "connections")}
            assert not any(left.values()), left

    def channel(self, rank: int) -> SimChannel:
        return self.world.runner(f"rank {rank}").channel


# -- joining -------------------------------------------------------------------------------------------------------


def test_every_rank_knows_what_each_has_said() -> None:
    bench = Bench()
    assert {group.members for group in bench.groups} == {(b"rank 0", b"rank 1", b"rank 2")}
    (number,) = {group.id for group in bench.groups}
    assert 0 < number < 2**63
    assert Bench(seed=2).groups[0].id != number
    assert repr(bench.groups[1]) == f"<RoomGroup {number:x} rank 1 of 3>"
    bench.serves()


def test_a_group_of_one() -> None:
    bench = Bench(size=1)
    assert bench.groups[0].members == (b"rank 0",)
    bench.serves()


def test_who_is_missing_is_named() -> None:
    world = World(1)
    first = rank_in(world, 0, 4, "", b"")
    second = rank_in(world, 2, 4, first.address)
    world.settle()
    for group in (first, second):
        with pytest.raises(GroupIncomplete, match=r"after 0 s ranks 1, 3 had not joined") as caught:
            group.join(0)
        assert caught.value.missing == (1, 3)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(InvalidArgument, match="join"):
            group.attach(User.__new__(User))
    rank_in(world, 1, 4, first.address)
    world.settle()
    with pytest.raises(GroupIncomplete, match="rank 3 had not"):
        second.join(0)
    rank_in(world, 3, 4, first.address)
    world.settle()
    assert second.join(0) is second


def test_a_leader_that_is_not_there_yet() -> None:
    world = World(1)
    second = rank_in(world, 1, 2, "world:1000")
    world.settle()
    with pytest.raises(GroupIncomplete, match="the leader had not joined: the leader, rank 0, cannot be reached"):
        second.join(0)


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [(1, 4, "this group has 3 ranks, and you were told 4"), (0, 3, "rank 0 is none"), (1, 3, "has joined already")],
)
def test_who_does_not_fit_is_refused_in_words(rank: int, size: int, words: str) -> None:
    world = World(1)
    first = rank_in(world, 0, 3, "", b"")
    rank_in(world, 1, 3, first.address)
    world.settle()
    if rank == 0:  # no RoomGroup says that
        channel = SimChannel(world, "stranger")
        connection = channel.dial(first.address)
        channel.send(connection, wire.encode(said.Join(0, 3, b""), 5, 0))
        channel.flush()
        world.settle()
        assert first.counters() == {"ranks refused": 1}
        return
    stranger = rank_in(world, rank, size, first.address)
    world.settle()
    with pytest.raises(HandshakeRefused, match=words):
        stranger.join(0)
    assert first.counters() == {"ranks refused": 1}
    rank_in(world, 2, 3, first.address)
    world.settle()
    assert len(first.members) == 3


def test_a_rank_that_dies_before_the_group_is_complete_can_be_replaced() -> None:
    world = World(1)
    first = rank_in(world, 0, 3, "", b"")
    rank_in(world, 1, 3, first.address, b"old")
    world.settle()
    world.kill("rank 1")
    world.settle()
    second = rank_in(world, 1, 3, first.address, b"new")
    rank_in(world, 2, 3, first.address)
    world.settle()
    assert first.members == second.members == (b"", b"new", b"")


def test_nobody_takes_the_place_of_a_rank_of_a_complete_group() -> None:
    bench = Bench()
    bench.world.kill("rank 2")
    late = rank_in(bench.world, 2, 3, bench.groups[0].address)
    bench.settle()
    with pytest.raises(HandshakeRefused, match="a process that has ended cannot be replaced"):
        late.join(0)


def test_ranks_that_say_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "MEMBERS_MAX", 10)
    world = World(1)
    first = rank_in(world, 0, 3, "", b"")
    rank_in(world, 1, 3, first.address, b"123456")
    world.settle()
    second = rank_in(world, 2, 3, first.address, b"123456")
    world.settle()
    with pytest.raises(HandshakeRefused, match="more of themselves than 10 bytes"):
        second.join(0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 0, "x:1"), "size"), ((3, 3, "x:1"), "rank"), ((0, 2, "nonsense"), "leader"), ((1, 2, "x:0"), "leader"),
        ((0, 2, "x:1", "text"), "member"), ((0, 2, "x:1", bytes(2**20 + 1)), "member"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RoomGroup(*arguments)
    assert caught.value.field == field


def test_figures_that_do_not_go_together() -> None:
    with pytest.raises(InvalidArgument, match="decision_timeout_s: a group needs at least twice heartbeat_timeout_s"):
        RoomGroup(0, 2, "127.0.0.1:0", decision_timeout_s=9, heartbeat_timeout_s=5)


# -- outcomes ------------------------------------------------------------------------------------------------------


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


# -- connections that break ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_breaks_without_proof_costs_no_room(when: str) -> None:
    bench = Bench()
    bench.enter()
    if when == "after":
        bench.done(1, 2)
        bench.settle()
    bench.channel(1).cut(CloseCause.TIMED_OUT)
    bench.done(*range(3)) if when == "before" else bench.done(0)
    bench.until(0, 1, 2)
    assert bench.outcomes() == [DONE] * 3
    assert bench.world.now < 1
    bench.wait(3)
    bench.serves()


def test_an_outcome_that_was_on_its_way_when_the_connection_broke_is_said_again() -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    bench.done(0)
    bench.until(0, timers=False)
    assert bench.outcomes() == [DONE, None, None]
    for rank in (1, 2):
        bench.channel(rank).cut(CloseCause.TIMED_OUT)
    bench.until(1, 2)
    assert bench.outcomes() == [DONE] * 3
    bench.wait(3)
    bench.serves()


def test_a_leader_that_cannot_say_that_it_gave_up_a_connection() -> None:
    """It does not read on, and its end stays open: the rank sees silence, and connects anew before it is lost."""
    bench = Bench()
    bench.enter()
    channel = bench.channel(0)
    channel.jam(channel.connections[0])
    bench.done()
    bench.until(0, 1, 2)
    assert bench.outcomes() == [DONE] * 3
    assert bench.world.now < 5
    bench.wait(3)
    bench.serves()


def test_a_rank_whose_process_ends_fails_what_is_undecided_at_once() -> None:
    bench = Bench()
    bench.enter(key=RoomKey(1, 0))
    bench.done(key=RoomKey(1, 0))
    bench.settle()
    bench.enter()
    bench.done(0)
    bench.world.kill("rank 2")
    bench.settle()
    assert bench.world.now == 0
    assert bench.outcomes()[:2] == [FAILED] * 2
    assert bench.outcomes(RoomKey(1, 0))[:2] == [DONE] * 2, "what was decided stays"
    for rank in (0, 1):
        failure = bench.users[rank].outcomes[KEY][1]
        assert failure is not None
        assert failure.reason is Reason.PEER_LOST
        assert failure.detail.startswith("rank 2 of the group: peer_lost: its process has ended")
        assert bench.groups[rank].problems[0].startswith("rank 2 is lost: its process has ended")
    assert KEY in bench.users[1].aborted
    key = RoomKey(8, 0)
    bench.enter(0, 1, key=key)
    bench.settle()
    assert set(bench.users[0].aborted) == set(bench.users[1].aborted) - {KEY} == {key}
    bench.done(0, 1, key=key)
    bench.settle()
    assert bench.outcomes(key)[:2] == [FAILED] * 2


@pytest.mark.parametrize("how", ["silence", "reset"])
def test_a_rank_that_was_lost_and_lives_comes_back(how: str) -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    if how == "silence":
        bench.world.stall("rank 2")
        bench.until(0, 1)
        assert 5 < bench.world.now < 8
        bench.world.stall("rank 2", stalled=False)
    else:
        bench.channel(2).cut(CloseCause.RESET)  # it looks like the other's death at both ends
    bench.done(0)
    bench.until(0, 1, 2)
    assert len(set(bench.outcomes())) == 1
    assert how == "reset" or set(bench.outcomes()) == {FAILED}
    bench.wait(3)
    bench.serves()


def test_done_that_a_lost_rank_was_not_told_is_kept_for_it() -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    bench.world.stall("rank 2")
    bench.done(0)
    bench.until(0, 1)
    assert bench.outcomes() == [DONE, DONE, None]
    bench.wait(20)  # it is lost by now
    assert bench.groups[0].problems
    other = RoomKey(8, 0)
    bench.enter(0, 1, key=other)
    bench.done(0, 1, key=other)
    bench.settle()
    assert bench.outcomes(other) == [FAILED, FAILED, None]
    assert bench.groups[0].tables()["kept outcomes"] >= 1
    bench.world.stall("rank 2", stalled=False)
    bench.until(2)
    assert bench.outcomes() == [DONE] * 3
    bench.wait(3)
    bench.enter(2, key=other)  # it did not get to that before
    bench.settle()
    assert bench.outcomes(other) == [FAILED] * 3
    bench.serves()


# -- the leader ----------------------------------------------------------------------------------------------------


def test_the_death_of_the_leader_fails_what_is_undecided_and_keeps_what_was_told() -> None:
    bench = Bench()
    bench.enter(key=RoomKey(1, 0))
    bench.done(key=RoomKey(1, 0))
    bench.settle()
    bench.enter()
    bench.done(1, 2)
    bench.world.kill("rank 0")
    bench.settle()
    assert bench.world.now == 0
    assert bench.outcomes()[1:] == [FAILED] * 2
    assert bench.outcomes(RoomKey(1, 0))[1:] == [DONE] * 2
    failure = bench.users[1].outcomes[KEY][1]
    assert failure is not None
    assert "rank 0 of the group: peer_lost: the leader is lost: its process has ended" in failure.detail
    assert bench.groups[1].problems[0].startswith("the leader is lost: its process has ended")
    bench.enter(1, key=RoomKey(2, 0))
    bench.settle()
    assert bench.groups[1].outcome(RoomKey(2, 0)) is FAILED
    assert RoomKey(2, 0) in bench.users[1].aborted


def test_a_leader_that_stands_still_for_a_while_decides_when_it_goes_on() -> None:
    bench = Bench()
    bench.enter()
    bench.done(0, 1)
    bench.settle()
    bench.world.stall("rank 0")
    bench.done(2)
    bench.wait(25)
    assert bench.outcomes() == [None] * 3, "nobody decides while the leader lives"
    bench.world.stall("rank 0", stalled=False)
    bench.until(0, 1, 2)
    assert set(bench.outcomes()) == {DONE}
    bench.wait(5)
    bench.serves()


def test_a_leader_that_stood_still_for_too_long_fences_itself() -> None:
    """All reports lie in its sockets when it goes on. Some rank might have given it up; so it counts none of them."""
    bench = Bench()
    bench.enter()
    bench.world.stall("rank 0")
    bench.done()
    bench.wait(45)  # more than half of the time after which ranks take it for lost
    assert bench.outcomes() == [None] * 3
    bench.world.stall("rank 0", stalled=False)
    bench.until(0, 1, 2)
    assert bench.outcomes() == [FAILED] * 3
    bench.wait(10)
    bench.serves()


def test_a_leader_that_stands_still_for_ever_is_given_up() -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    bench.world.stall("rank 0")
    bench.until(1, 2)
    assert 60 < bench.world.now < 62
    assert "the leader is lost: nothing was heard of it for 60." in bench.groups[1].problems[0]
    bench.done(0)
    bench.world.stall("rank 0", stalled=False)
    bench.until(0)
    assert bench.outcomes() == [FAILED] * 3


def test_a_leader_that_dies_while_a_rank_stands_still_is_found_dead() -> None:
    bench = Bench()
    bench.enter()
    bench.done(1, 2)
    bench.settle()
    bench.world.stall("rank 2")
    bench.wait(8)  # it is lost, and was told so
    bench.world.kill("rank 0")
    bench.settle()
    bench.world.stall("rank 2", stalled=False)
    now = bench.world.now
    bench.until(2)
    assert bench.world.now < now + 1
    assert bench.groups[2].outcome(KEY) is FAILED


# -- the end -------------------------------------------------------------------------------------------------------


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


# -- strangers -----------------------------------------------------------------------------------------------------


def test_what_strangers_say_changes_nothing() -> None:
    bench = Bench()
    bench.enter()
    bench.done(0, 1)
    bench.settle()
    stranger = SimChannel(bench.world, "stranger")
    seat = bench.world.runner("rank 2").core._ports.incarnation
    bodies: list[bytes] = [
        b"", b"\x01", bytes(64), wire.encode(wire.Ping(1), 5, 0)[4:],
        *(
            wire.encode(body, 5, 0)[4:]
            for body in (
                said.Join(2, 3, b""), said.Resume(2), said.Resume(0), said.Resume(9),
                said.ReportFailed(7, 0, 1, Reason.ABORTED, ""), said.ReportDone(7, 0, 1),
                said.OutcomeDone(7, 0, 1, 1), said.Leave(final=True, detail=""), said.Answer(0),
            )
        ),
    ]  # fmt: skip
    for frame in bodies:
        connection = stranger.dial(bench.groups[0].address)
        bench.settle()
        stranger.send(connection, bytes(4) + frame)
        stranger.flush()
        bench.settle()
    assert bench.outcomes() == [None] * 3
    assert bench.groups[0].counters() == {
        "frames malformed": 4, "frames unexpected": 5, "ranks refused": 4
    }  # fmt: skip
    assert seat != 5
    idle = stranger.dial(bench.groups[0].address)
    bench.wait(6)
    assert not stranger.far(idle)
    assert bench.groups[0].counters()["connections dropped: no handshake"] == 1
    bench.done(2)
    bench.settle()
    assert bench.outcomes() == [DONE] * 3
    bench.wait(3)
    bench.serves()


def test_a_rank_that_says_nonsense_loses_its_connection_and_no_room() -> None:
    bench = Bench()
    bench.enter()
    bench.done(0, 1)
    bench.settle()
    core = bench.world.runner("rank 2").core
    for nonsense in (said.Welcome(0, ()), said.Join(2, 3, b""), said.OutcomeDone(7, 0, 1, 1)):
        core.say(nonsense)
    core._channel.send(core._connection, bytes(80))
    core._channel.flush()
    bench.settle()
    counters = bench.groups[0].counters()
    assert counters == {"frames unexpected": 3, "frames malformed": 1}
    bench.done(2)
    bench.until(0, 1, 2)
    assert bench.outcomes() == [DONE] * 3


def test_a_rank_that_reports_on_more_rooms_than_a_leader_keeps_is_lost() -> None:
    settings = EngineSettings(decision_timeout_s=60.0, rooms_max=2)
    bench = Bench(size=2, settings=settings)
    for number in range(5):
        bench.enter(1, key=RoomKey(number, 0))
        bench.done(1, key=RoomKey(number, 0))
    bench.settle()
    assert (
        "it reports on more rooms than this leader keeps" in bench.groups[0].problems[0] or not bench.groups[0].problems
    )
    bench.until(1, key=RoomKey(4, 0))
    assert {bench.groups[1].outcome(RoomKey(number, 0)) for number in range(5)} == {FAILED}


def test_outcomes_of_rooms_that_nobody_opens_here_are_few_and_not_kept_for_long() -> None:
    settings = EngineSettings(decision_timeout_s=60.0, parked_total=3, parked_per_peer=3)
    bench = Bench(size=2, settings=settings)
    for number in range(6):
        bench.enter(0, key=RoomKey(number, 0))
        bench.groups[0].report(RoomKey(number, 0), FAILED, CUT)
    bench.settle()
    assert bench.groups[1].tables()["parked outcomes"] == 3
    bench.enter(1, key=RoomKey(5, 0))
    bench.settle()
    assert bench.groups[1].outcome(RoomKey(5, 0)) is FAILED
    bench.wait(21)
    assert bench.groups[1].tables()["parked outcomes"] == 0
