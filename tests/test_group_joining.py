"""How ranks find together over simulated connections, and who is kept out."""

from __future__ import annotations

from typing import Any

import pytest
from group_bench import CUT, DONE, FAILED, Bench, User

from kvrooms.engine.group import RoomGroup
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.channel import SimChannel
from kvrooms.harness.groups import rank_in
from kvrooms.harness.world import World
from kvrooms.protocol import group as said
from kvrooms.protocol import wire
from kvrooms.protocol.errors import GroupIncomplete, HandshakeRefused, InvalidArgument
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.identity import RoomKey


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
                said.ReportFailed(7, 0, 1, Reason.ABORTED, "", False), said.ReportDone(7, 0, 1),
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


@pytest.mark.parametrize("source", ["the leader", "somebody"])
def test_a_refusal_amid_what_a_leader_says_is_nonsense(source: str) -> None:
    """It is believed as the first word on a connection alone: then whoever listens there is another process."""
    bench = Bench()
    bench.enter()
    bench.done(0, 1)
    bench.settle()
    core = bench.world.runner("rank 0").core
    incarnation = core._ports.incarnation if source == "the leader" else 5
    core._channel.send(core._seats[1].connection, wire.encode(said.Refuse("who are you?"), incarnation, 0))
    core._channel.flush()
    bench.settle()
    bench.done(2)
    bench.until(0, 1, 2)
    assert bench.outcomes() == [DONE] * 3
    assert bench.groups[2].problems == ()


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
