"""Probes of rooms between many ranks when something goes wrong: one rank dies, aborts, differs, is late, a stranger."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...engine.decode import DecodeEngine
from ...protocol.failure import Reason
from ...protocol.status import Status
from ...shapes import deal, pools
from ...shapes.build import Model, Side
from ..ranks import Member
from .probe import Play, probe
from .probes_shapes import FOUR, HEADS, ONE, TWO, shape
from .stage import Broken
from .stage_ranks import RankStage

STAGES = Side(page_size=2, stages=((0,), (1,)))
"""Two prefill ranks, each of which sends to every decode rank."""
_WINDOW = Model(attention=(0,), kv_heads=4, head_bytes=2, window=(1,))


def _rooms(stage: RankStage) -> list[Any]:
    return [room for member in stage.members() for room in member.rooms.values()]


def _all_failed(stage: RankStage, *reasons: Reason) -> None:
    """Every room of every rank that lives has failed, with one of these reasons on those that were told."""
    for room in _rooms(stage):
        if room.poll() is not Status.FAILED:
            raise Broken(f"{room!r} should have failed like the other ranks; it says {room.poll().value}")
        if reasons and room.failure.reason not in reasons:
            raise Broken(f"{room!r} has failed, and not for what happened: {room.failure}")


def under_way(play: Play, prefill: Side, decode: Side) -> RankStage:
    """A room of which every rank has posted what it can, and nothing lands."""
    stage = play.ranks(shape(HEADS, prefill, decode, prompts=(5,)))
    stage.world.writes_held = True
    stage.fault("no write lands")
    stage.call()
    stage.settle()
    return stage


@probe("L3", seeds=3)
def what_ends_one_rank_ends_the_room_on_all(play: Play) -> None:
    """One of four prefill ranks dies or aborts, or one decode rank; without any timer."""
    for sides, what in (
        ((FOUR, ONE), "prefill-0 2 dies"),
        ((STAGES, TWO), "prefill-0 1 aborts"),
        ((STAGES, TWO), "decode-0 1 aborts"),
        ((ONE, FOUR), "decode-0 3 dies"),
    ):
        stage = under_way(play, *sides)
        who, how = what.rsplit(" ", 1)
        stage.fault(how, who)
        one = next(member for member in stage.members() if member.name == who)
        if how == "dies":
            stage.world.kill(who)
            one.rooms.clear()
        else:
            one.rooms[0].abort("it has better things to do")
        stage.settle()
        _all_failed(stage)
        stage.world.writes_held = False
        stage.settle()
        for member in stage.members():
            if member.rooms and not member.rooms[0].memory_free:
                raise Broken(f"nothing is in flight any more, and memory of {member.name} is not free")


@probe("L3", seeds=2)
def a_decode_rank_that_asks_late_is_told_too(play: Play) -> None:
    """A room has failed for the ranks that were there; another decode rank asks for it afterwards."""
    for first in ("decode", "prefill"):
        stage = play.ranks(shape(HEADS, STAGES, TWO, prompts=(5,)))
        stage.offer(0, 0)
        stage.offer(0, 1)
        stage.receive(0, 0)
        stage.settle()
        one = stage.decodes[0] if first == "decode" else stage.prefills[0, 0]
        stage.fault("aborts", one.name)
        one.rooms[0].abort("too late for the other one")
        stage.settle()
        stage.receive(0, 1)
        stage.settle()
        _all_failed(stage)


@probe("A1", seeds=2)
def a_rank_that_differs_fails_all(play: Play) -> None:
    """One prefill rank has another number of pages, or of indices, than the decode ranks expect of it."""
    for what in ("pages", "indices"):
        stage = play.ranks(shape(_WINDOW, TWO, ONE, prompts=(5,)))
        room = stage.rooms[0]
        stage.world.writes_held = True
        stage.receive(0, 0)
        stage.offer(0, 0)
        stage.send(0, 0)
        sender = stage.offer(0, 1, pages=room.source_pages - (what == "pages"))
        sends = list(stage.sends(0, 1))
        pages = [page for send in sends for page in send["pages"]][: room.source_pages - (what == "pages")]
        window = list(room.prefill[1].indices("window"))[what == "indices" :]
        stage.note("prefill-0 1 caller", "call", f"send({len(pages)} pages, {len(window)} indices)", "prefill-0 1")
        sender.send(pages, {"window": window}, last=True)
        stage.settle()
        _all_failed(stage)
        if sender.failure is None or sender.failure.reason is not Reason.MISMATCH:
            raise Broken(f"what {sender!r} has is not what was asked for, and it says {sender.failure}")


@probe("S3", seeds=2)
def memory_of_a_room_is_free_when_its_last_writer_is_done(play: Play) -> None:
    """Two ranks write to a decode rank that aborts; one has settled and promised, the other has not."""
    for slow in (0, 1):
        stage = under_way(play, TWO, ONE)
        stage.fault("the room is aborted", "decode-0 0")
        receiver = stage.decodes[0].rooms[0]
        receiver.abort("changed its mind")
        for write in stage.world.writes:
            if write.source is not stage.prefills[0, slow].transport:
                stage.world.finish(write)
        stage.settle()
        if receiver.memory_free:
            raise Broken(f"a write of prefill rank {slow} is in flight, and the memory that it is for is free")
        stage.world.writes_held = False
        stage.settle()


@probe("S5", seeds=2)
def a_rank_of_another_instance_takes_nobodys_place(play: Play) -> None:
    """Decode rank 0 has asked for a room; rank 1 of another instance asks for it, too, before its own rank 1 does."""
    stage = play.ranks(shape(HEADS, ONE, TWO, prompts=(5,)))
    stage.receive(0, 0)
    stage.offer(0, 0)
    stage.settle()
    stranger = _stranger(stage, 1)
    stage.note("stranger", "call", "open(0)", "stranger")
    places = stage.rooms[0].decode[1]
    claims = stranger.engine.open(
        0, bootstrap="http://world:1", instance="prefill-0", pages=places.pages, aux_index=places.aux_slot, tokens=5
    )
    stage.settle()
    if claims.poll() is not Status.FAILED:
        raise Broken(f"a room is bound to other ranks, and a stranger that asks for it is told nothing: {claims!r}")
    stage.receive(0, 1)
    stage.send(0, 0)
    stage.settle()
    for room in _rooms(stage):
        if room.poll() is not Status.DONE:
            raise Broken(f"a stranger has asked for a room, and {room!r} is not DONE: {room.failure}")
    if stage.differs():
        raise Broken(stage.differs()[0])


def _stranger(stage: RankStage, rank: int) -> Member:
    """A rank like those of the stage, of an instance of its own."""
    other = replace(stage.decode, id=stage.decode.id + 1)
    sizes = deal.decode_sizes(stage.case)
    pool = pools.blank(other.ranks[rank].layout, sizes, "stranger")
    member = Member(("decode", 1, rank), other.ranks[rank], pool, sizes)
    parts = stage.world.assemble("stranger", member.memory, stage.settings, instance=other, rank=rank)
    member.engine = DecodeEngine(member.memory, settings=stage.settings, assembly=parts)
    return member
