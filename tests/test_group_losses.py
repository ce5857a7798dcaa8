"""Groups of ranks whose connections break, whose processes stand still, and whose leader is lost."""

from __future__ import annotations

import pytest
from group_bench import DONE, FAILED, KEY, Bench
from mutants import Mutant, dies, named

from kvrooms.engine.group_hub import HubCore
from kvrooms.engine.group_spoke import SpokeCore
from kvrooms.harness import world
from kvrooms.harness.world import World
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.transport.ports import CloseCause


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


def check_what_was_missed_comes_first() -> None:
    """A room is decided while ranks are away, another as they come back: outcomes are told in their order."""
    other = RoomKey(8, 0)
    for steps in range(20):
        bench = Bench()
        bench.enter()
        bench.settle()
        for rank in (1, 2):
            bench.channel(rank).cut(CloseCause.PEER_CLOSED)
        for _ in range(steps):
            bench.world.step()
        bench.enter(0, key=other)
        bench.done(0, key=other)
        bench.done()
        bench.until(0, 1, 2, timers=False)
        assert len(set(bench.outcomes())) == 1


def test_a_rank_that_comes_back_hears_first_what_it_has_missed() -> None:
    check_what_was_missed_comes_first()


@named([Mutant(HubCore, "tell", "if not seat.returning:", "if True:")])
def test_the_order_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_what_was_missed_comes_first)


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


def check_pause_after_malformed_frames() -> None:
    """Everything that the leader says to rank 1 is damaged, on each new connection too."""
    bench = Bench()
    bench.enter()
    bench.done(0, 1)
    bench.settle()
    channel = bench.channel(0)
    honest, damaged = channel.send, bench.groups[1]._core._connection
    there = bench.channel(1).number_there(damaged)
    others = {one for one in channel.connections if one != there}
    channel.send = lambda connection, frame: honest(connection, frame if connection in others else frame[:-1])
    bench.done(2)
    bench.until(0, 2)
    before = bench.world.steps
    bench.wait(30)
    assert bench.groups[1].counters()["frames malformed"] in range(30, 70)  # with a pause of a second in the end
    assert bench.world.steps - before < 10_000
    channel.send = honest
    bench.until(1)
    assert bench.outcomes() == [DONE] * 3
    bench.wait(3)
    bench.serves()


def test_a_rank_that_hears_nothing_but_malformed_frames_does_not_connect_without_pause() -> None:
    check_pause_after_malformed_frames()


@named([
    Mutant(SpokeCore, "_frame_in", "self._redial_later()", "self._dial()"),
    Mutant(SpokeCore, "_redial_later", "2 * self._pause_s", "self._pause_s"),
])  # fmt: skip
def test_the_pause_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    monkeypatch.setattr(world, "STEPS_MAX", 20_000)
    monkeypatch.setattr(World, "settle", lambda one: one.run(lambda: not one.busy))
    dies(check_pause_after_malformed_frames)
