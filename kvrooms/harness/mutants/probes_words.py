"""Probes of what a room between many ranks says when its time is up: who held it up, and how much is held for it."""

from __future__ import annotations

from ...engine.settings import EngineSettings
from ...protocol.status import Status
from .probe import Play, probe
from .probes_ranks import under_way
from .probes_shapes import FOUR, HEADS, ONE, TWO, shape
from .stage import Broken
from .stage_ranks import RankStage

_SETTINGS = EngineSettings(bootstrap_timeout_s=3.0, queued_timeout_s=3.0, moving_timeout_s=3.0)


def _names(stage: RankStage, room: object, wanted: str, others: tuple[str, ...]) -> None:
    """The failure says for whom a room waited, and blames nobody else."""
    failure = getattr(room, "failure", None)
    words = "" if failure is None else failure.detail.partition("waiting for ")[2].partition("; ")[0]
    stage.note("operator", "state", f"reads: waiting for {words}")
    if wanted not in words or any(other in words for other in others):
        raise Broken(f"{wanted} held the room up, and its failure says that it waited for {words!r}", failure=failure)


@probe("L3", seeds=1)
def the_rank_that_is_late_is_the_one_that_is_named(play: Play) -> None:
    """One rank of several does not answer, does not ask, is not reached; or it is prefill's own caller that is late."""
    stage = play.ranks(shape(HEADS, FOUR, ONE, prompts=(5,)), settings=_SETTINGS)
    receiver = stage.receive(0, 0)
    for rank in (0, 1, 3):
        stage.offer(0, rank)
    stage.pass_time(4.0)
    _names(stage, receiver, "prefill-0 2", ("prefill-0 0", "prefill-0 1", "prefill-0 3"))

    stage = play.ranks(shape(HEADS, ONE, FOUR, prompts=(5,)), settings=_SETTINGS)
    sender = stage.offer(0, 0)
    for rank in (0, 1, 3):
        stage.receive(0, rank)
    stage.send(0, 0)
    stage.pass_time(4.0)
    _names(stage, sender, "receiver 2 of 4", ("decode-0",))

    stage = play.ranks(shape(HEADS, ONE, TWO, prompts=(5,)), settings=_SETTINGS)
    stage.world.writes_held = True
    stage.call()
    stage.settle()
    for write in list(stage.world.writes):
        if write.target is stage.decodes[0].transport:
            stage.world.finish(write)
    stage.pass_time(4.0)
    _names(stage, stage.prefills[0, 0].rooms[0], "decode-0 1", ("decode-0 0",))

    stage = play.ranks(shape(HEADS, ONE, TWO, prompts=(5,)), settings=_SETTINGS)
    for rank in (0, 1):
        stage.receive(0, rank)
    sender = stage.offer(0, 0)
    stage.pass_time(4.0)
    _names(stage, sender, "the caller of prefill-0", ("decode",))


@probe("L5", seeds=1)
def a_room_is_held_once_whoever_may_write_to_it(play: Play) -> None:
    """An aborted room whose four writers stand still: health tells one room, with what it has and no more."""
    stage = under_way(play, FOUR, ONE)
    (decode,) = stage.decodes.values()
    pages, aux = len(stage.rooms[0].decode[0].pages), sum(one.item_length for one in decode.layout.aux)
    size = pages * sum(buffer.item_length for buffer in decode.layout.kv) + aux
    decode.rooms[0].abort("the user is gone")
    stage.settle()
    said = decode.engine.health()
    if decode.rooms[0].poll() is not Status.FAILED or decode.rooms[0].memory_free:
        raise Broken("an aborted room should be held until its writers have acknowledged")
    if (said.quarantined, said.quarantined_bytes) != (1, size):
        raise Broken(f"one room of {size} bytes is held, and health says {said}")
