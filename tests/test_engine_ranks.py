"""Rooms between several ranks in the simulated world when something goes wrong; memory and the next room afterwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from kvrooms import Status
from kvrooms.engine.core import Ports
from kvrooms.engine.decode import DecodeEngine
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_ranks import STAGES
from kvrooms.harness.mutants.probes_shapes import FOUR, HEADS, ONE, TWO, shape
from kvrooms.harness.ranks import Member, Ranks
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.layout import Instance
from kvrooms.shapes import deal, pools
from kvrooms.shapes.build import Model, Side

HYBRID = Model(attention=(0,), kv_heads=4, head_bytes=2, mamba=(1,), window=(2,), conv_bytes=2, ssm_bytes=3)
BY_KIND = Side(page_size=2, stages=((0, 1), (2,)))
"""Attention and Mamba on prefill rank 0, sliding window and aux on rank 1."""


def ranks_of(prefill: Side, decode: Side, model: Model = HEADS, seed: int = 0, **options: Any) -> Ranks:
    return Ranks(shape(model, prefill, decode, prompts=(5, 4)), seed, **options)


def held(ranks: Ranks, *numbers: int) -> None:
    """Every call for some rooms, and nothing that is written lands."""
    ranks.world.writes_held = True
    ranks.call(*numbers)
    ranks.world.settle()


def rooms(ranks: Ranks, number: int = 0) -> list[Any]:
    return [member.rooms[number] for member in ranks.members() if number in member.rooms]


def pass_time(ranks: Ranks, seconds: float) -> None:
    end = ranks.world.now + seconds
    ranks.world.run(lambda: ranks.world.now >= end, timers=True)


def all_free(ranks: Ranks, number: int = 0) -> bool:
    return all(room.memory_free for room in rooms(ranks, number))


def serves(ranks: Ranks, number: int = 1) -> None:
    """Another room is DONE on every rank, as if nothing had happened."""
    ranks.world.writes_held = False
    ranks.early.clear()
    ranks.play(number)
    assert [room.poll() for room in rooms(ranks, number)] == [Status.DONE] * len(ranks.members())
    assert ranks.early == []


def writes_of(ranks: Ranks, member: Member) -> list[Any]:
    return [write for write in ranks.world.writes if write.source is member.transport]


# -- one of many dies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("sides", "who"), [((FOUR, ONE), ("prefill", 2)), ((STAGES, TWO), ("decode", 1))])
def test_a_rank_that_dies_at_any_moment(seed: int, sides: tuple[Side, Side], who: tuple[str, int]) -> None:
    """Who had met it fails without a timer; who had not waits for whoever comes in its place, until the deadline."""
    ranks = ranks_of(*sides, seed=seed, settings=EngineSettings(bootstrap_timeout_s=4.0, queued_timeout_s=6.0))
    ranks.call(0)
    for _ in range(ranks.world.random.randrange(120)):
        ranks.world.step()
    dead = ranks.prefills[0, who[1]] if who[0] == "prefill" else ranks.decodes[who[1]]
    ranks.world.kill(dead.name)
    dead.rooms.clear()
    ranks.world.settle()
    assert {room.poll() for room in rooms(ranks)} <= {Status.BOOTSTRAPPING, Status.WAITING, Status.DONE, Status.FAILED}
    pass_time(ranks, 7.0)
    ends = {room.poll() for room in rooms(ranks)}
    assert ends <= {Status.DONE, Status.FAILED}
    assert all_free(ranks)
    ranks.start(dead)
    serves(ranks)


def test_the_failure_names_the_rank_that_is_lost_and_the_others_are_told() -> None:
    ranks = ranks_of(FOUR, ONE)
    held(ranks, 0)
    ranks.world.kill("prefill-0 2")
    ranks.prefills[0, 2].rooms.clear()
    ranks.world.settle()
    failure = ranks.decodes[0].rooms[0].failure
    assert failure.reason is Reason.PEER_LOST
    assert "prefill-0 2" in failure.detail
    others = [ranks.prefills[0, rank].rooms[0].failure for rank in (0, 1, 3)]
    assert [(one.reason, one.origin) for one in others] == [(Reason.PEER_LOST, "peer")] * 3
    assert not ranks.decodes[0].rooms[0].memory_free, "the writes of three that live have not landed"
    ranks.world.writes_held = False
    ranks.world.settle()
    assert all_free(ranks)


class OneName(Ranks):
    """As in a deployment: all ranks of an instance have its name."""

    def meddle(self, member: Member, ports: Ports) -> None:
        if member.key[0] == "prefill":
            ports.name = f"prefill-{member.key[1]}"


@pytest.mark.parametrize("words", [["prefill-0 rank 2", "prefill-0 rank 3"], ["prefill-0"]])
def test_the_orchestrators_word_is_about_one_rank_or_about_all(words: list[str]) -> None:
    ranks = OneName(shape(HEADS, FOUR, ONE, prompts=(5, 4)))
    held(ranks, 0)
    room = ranks.decodes[0].rooms[0]
    for runner in ranks.world._runners:
        if runner.transport in (ranks.prefills[0, 2].transport, ranks.prefills[0, 3].transport):
            runner.core.name = "stands still"
    ranks.world.stall("stands still")
    pass_time(ranks, 30.0)
    assert room.failure.reason is Reason.PEER_LOST
    assert room.failure.detail.startswith("prefill-0 rank ")
    for write in ranks.world.writes:
        if write.source in (ranks.prefills[0, 0].transport, ranks.prefills[0, 1].transport):
            ranks.world.finish(write)
    ranks.world.settle()
    assert ranks.decodes[0].engine.tables()["grants"] == 2
    for word in words:
        assert not room.memory_free
        ranks.decodes[0].engine.peer_fenced(word)
        ranks.world.settle()
    assert room.memory_free


# -- one is late -------------------------------------------------------------------------------------------------------


def test_aux_of_one_rank_comes_before_the_pages_of_another() -> None:
    ranks = ranks_of(STAGES, ONE)
    held(ranks, 0)
    (receiver,) = ranks.decodes.values()
    for write in writes_of(ranks, ranks.prefills[0, 1]):  # the last stage: its pages, and aux
        ranks.world.finish(write)
    ranks.world.settle()
    assert receiver.rooms[0].phase == "KV"
    assert ranks.prefills[0, 1].rooms[0].poll() is Status.DONE
    ranks.world.writes_held = False
    ranks.world.settle()
    assert {room.poll() for room in rooms(ranks)} == {Status.DONE}
    assert ranks.early == []
    serves(ranks)


def test_one_component_of_two_is_late() -> None:
    ranks = ranks_of(BY_KIND, ONE, HYBRID)
    held(ranks, 0)
    (receiver,) = ranks.decodes.values()
    for write in writes_of(ranks, ranks.prefills[0, 0]):  # pages, and Mamba's state
        ranks.world.finish(write)
    ranks.world.settle()
    assert not receiver.rooms[0].poll().terminal
    pass_time(ranks, 1.0)
    ranks.world.writes_held = False
    ranks.world.settle()
    assert {room.poll() for room in rooms(ranks)} == {Status.DONE}
    assert ranks.differs(0) == []
    serves(ranks)


def test_the_deadline_says_which_rank_has_not_sent_what() -> None:
    ranks = ranks_of(BY_KIND, ONE, HYBRID, settings=EngineSettings(moving_timeout_s=3.0, cap_timeout_s=60.0))
    ranks.receive(0, 0)
    for rank in (0, 1):
        ranks.offer(0, rank)
    ranks.send(0, 0)
    ranks.world.settle()
    pass_time(ranks, 4.0)
    failure = ranks.decodes[0].rooms[0].failure
    assert failure.reason is Reason.DEADLINE_MOVING
    assert "window" in failure.detail
    assert "rank 1" in failure.detail
    assert {room.poll() for room in rooms(ranks)} == {Status.FAILED, Status.DONE}
    assert ranks.prefills[0, 1].rooms[0].poll() is Status.FAILED
    serves(ranks)


# -- aborts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["it settles", "it dies"])
def test_an_abort_that_three_of_four_have_acknowledged(end: str) -> None:
    ranks = ranks_of(FOUR, ONE)
    held(ranks, 0)
    (receiver,) = ranks.decodes.values()
    receiver.rooms[0].abort("changed its mind")
    slow = ranks.prefills[0, 3]
    for write in ranks.world.writes:
        if write.source is not slow.transport:
            ranks.world.finish(write)
    ranks.world.settle()
    assert [ranks.prefills[0, rank].rooms[0].memory_free for rank in range(4)] == [True, True, True, False]
    assert not receiver.rooms[0].memory_free
    assert receiver.engine.tables()["grants"] == 1
    pass_time(ranks, 60.0)
    assert not receiver.rooms[0].memory_free, "time proves nothing"
    if end == "it dies":
        ranks.world.kill(slow.name)
        slow.rooms.clear()
    else:
        ranks.world.writes_held = False
    ranks.world.settle()
    assert all_free(ranks)
    if end == "it dies":
        ranks.start(slow)
    serves(ranks)


@pytest.mark.parametrize("seed", range(10))
def test_two_decode_ranks_abort_one_room_at_once(seed: int) -> None:
    ranks = ranks_of(STAGES, TWO, seed=seed)
    held(ranks, 0)
    for rank in (0, 1):
        ranks.decodes[rank].rooms[0].abort(f"rank {rank} has had enough")
    ranks.world.settle()
    ranks.world.writes_held = False
    ranks.world.settle()
    assert {room.poll() for room in rooms(ranks)} == {Status.FAILED}
    assert all_free(ranks)
    told = [ranks.prefills[0, rank].rooms[0].failure.detail for rank in (0, 1)]
    assert set(told) <= {"rank 0 has had enough", "rank 1 has had enough"}
    assert [ranks.decodes[rank].rooms[0].failure.detail for rank in (0, 1)] == [
        "rank 0 has had enough",
        "rank 1 has had enough",
    ]
    serves(ranks)


# -- who asks, and who does not ----------------------------------------------------------------------------------------


def test_a_decode_rank_that_never_asks() -> None:
    """Nothing is posted for the others before all have asked; the deadline says how many are missing."""
    ranks = ranks_of(STAGES, TWO, settings=EngineSettings(queued_timeout_s=5.0))
    ranks.receive(0, 0)
    for rank in (0, 1):
        ranks.offer(0, rank)
        ranks.send(0, rank)
    ranks.world.settle()
    assert ranks.writes == []
    pass_time(ranks, 6.0)
    failures = [room.failure for room in rooms(ranks)]
    assert {room.poll() for room in rooms(ranks)} == {Status.FAILED}
    assert Reason.DEADLINE_BOOTSTRAP in {failure.reason for failure in failures}
    assert any("waiting for receiver 1 of 2; open: its METADATA" in failure.detail for failure in failures)
    assert all_free(ranks)
    serves(ranks)


def another_instance(ranks: Ranks, rank: int) -> Member:
    other = replace(ranks.decode, id=ranks.decode.id + 1)
    sizes = deal.decode_sizes(ranks.case)
    pool = pools.blank(other.ranks[rank].layout, sizes, f"another {rank}")
    member = Member(("decode", 1, rank), other.ranks[rank], pool, sizes)
    parts = ranks.world.assemble(member.name, member.memory, ranks.settings, instance=other, rank=rank)
    member.engine = DecodeEngine(member.memory, settings=ranks.settings, assembly=parts)
    return member


def test_a_room_that_another_instance_has_asked_for_first_is_refused_to_the_ranks_it_was_not_meant_for() -> None:
    ranks = ranks_of(ONE, TWO)
    other, places = another_instance(ranks, 1), ranks.rooms[0].decode[1]
    before = pools.copy_of(other.pool)
    claimed = other.engine.open(
        0, bootstrap="http://world:1", instance="prefill-0", pages=places.pages, aux_index=places.aux_slot, tokens=5
    )
    ranks.offer(0, 0)
    ranks.send(0, 0)
    ranks.world.settle()
    for rank in (0, 1):
        ranks.receive(0, rank)
    ranks.world.settle()
    for rank in (0, 1):
        failure = ranks.decodes[rank].rooms[0].failure
        assert failure.reason is Reason.REFUSED
        assert "is bound to decode-1 1" in failure.detail
    claimed.abort("it was not meant for this one")
    ranks.world.settle()
    assert all((a == b).all() for a, b in zip(before, other.pool, strict=True)), "no rank has written to it"
    assert all_free(ranks)
    serves(ranks)


# -- who registers, and what -------------------------------------------------------------------------------------------


def test_a_rank_that_registers_late_is_waited_for() -> None:
    ranks = ranks_of(TWO, ONE, start=False)
    for member in (ranks.prefills[0, 0], ranks.decodes[0]):
        ranks.start(member)
    room = ranks.receive(0, 0)
    pass_time(ranks, 3.0)
    assert room.poll() is Status.BOOTSTRAPPING
    ranks.start(ranks.prefills[0, 1])
    for rank in (0, 1):
        ranks.offer(0, rank)
        ranks.send(0, rank)
    ranks.world.run(lambda: room.poll().terminal, timers=True)
    assert room.poll() is Status.DONE
    assert ranks.early == []
    serves(ranks)


def test_a_rank_that_registers_after_the_room_has_failed() -> None:
    ranks = ranks_of(TWO, ONE, start=False)
    for member in (ranks.prefills[0, 0], ranks.decodes[0]):
        ranks.start(member)
    room = ranks.receive(0, 0, bootstrap_timeout_s=2.0)
    sender = ranks.offer(0, 0, queued_timeout_s=2.0)
    pass_time(ranks, 3.0)
    assert room.failure.reason is sender.failure.reason is Reason.DEADLINE_BOOTSTRAP
    assert "waiting for prefill-0 rank 1 (0 engines fit" in room.failure.detail
    assert all_free(ranks)
    ranks.start(ranks.prefills[0, 1])
    late = ranks.offer(0, 1, queued_timeout_s=2.0)
    pass_time(ranks, 3.0)
    assert late.failure.reason is Reason.DEADLINE_BOOTSTRAP
    serves(ranks)


def test_a_rank_that_comes_back_with_other_heads_is_refused_in_words_until_it_has_its_own_again() -> None:
    ranks = ranks_of(TWO, ONE)
    ranks.play(0)
    own = ranks.prefills[0, 1]
    ranks.world.kill(own.name)
    ranks.world.settle()
    first = ranks.prefill[0].ranks[0]
    other = Member(own.key, first, pools.blank(first.layout, own.sizes, "other"), own.sizes)
    ranks.start(other)
    room = ranks.receive(1, 0)
    pass_time(ranks, 3.0)
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED
    assert "no prefill rank has units 2 to 3" in room.failure.detail
    assert room.memory_free
    room.close()
    ranks.world.kill(other.name)
    ranks.world.settle()
    ranks.start(own)
    serves(ranks)


def test_an_instance_that_comes_back_with_its_heads_split_otherwise_is_paired_anew() -> None:
    ranks = ranks_of(TWO, ONE)
    ranks.play(0)
    for rank in (0, 1):
        ranks.world.kill(ranks.prefills[0, rank].name)
    ranks.world.settle()
    one, two = ranks.prefills[0, 0], ranks.prefills[0, 1]
    for rank, was in ((0, two), (1, one)):
        ranks.prefills[0, rank] = ranks.start(Member(("prefill", 0, rank), was.member, was.pool, was.sizes))
    ranks.prefill[0] = Instance((two.member, one.member))
    ranks.rooms[1] = dataclasses.replace(ranks.rooms[1], prefill=ranks.rooms[1].prefill[::-1])
    serves(ranks)
    assert ranks.differs(0, 1) == []


# -- everything at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_ranks_come_and_go(seed: int) -> None:
    """Whatever dies when: rooms end within their deadlines, DONE means landed, and in the end a room is served."""
    settings = EngineSettings(bootstrap_timeout_s=4.0, queued_timeout_s=6.0, moving_timeout_s=8.0)
    sides = ((FOUR, ONE), (STAGES, TWO), (TWO, FOUR), (Side(cp=3, page_size=2), TWO))[seed % 4]
    ranks = Ranks(shape(HEADS, *sides, prompts=(5,) * 8), seed, settings=settings)
    draw = ranks.world.random
    for number in range(7):
        ranks.call(number)
        for _ in range(draw.randrange(200)):
            ranks.world.step(timers=draw.random() < 0.02)
        dead = draw.choice(ranks.members())
        ranks.world.kill(dead.name)
        dead.rooms.clear()
        for _ in range(draw.choice((0, 0, 40))):
            ranks.world.step()
        ranks.start(dead)
    pass_time(ranks, 20.0)
    for member in ranks.members():
        for number, room in member.rooms.items():
            assert room.poll().terminal, (member.name, number, room)
            assert room.memory_free, (member.name, number, room, room.memory_status)
    assert ranks.early == []
    serves(ranks, 7)
    for member in ranks.members():
        for room in member.rooms.values():
            room.close()
    ranks.world.settle()
    for member in ranks.members():
        tables = member.engine.tables()
        assert not any(tables[name] for name in ("rooms", "grants", "keys", "claims")), (member.name, tables)
        assert not tables.get("waiting", 0)
