"""Memory of a room between several ranks when its instance is not whole any more: who lives can still acknowledge."""

from __future__ import annotations

from typing import Any

import pytest
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine.decode_links import DecodeLinks
from kvrooms.harness.mutants.probes_shapes import FOUR, HEADS, ONE, shape
from kvrooms.harness.ranks import Ranks
from kvrooms.transport.ports import CloseCause


def rooms(ranks: Ranks, number: int = 0) -> list[Any]:
    return [member.rooms[number] for member in ranks.members() if number in member.rooms]


def check_living_ranks_acknowledge() -> None:
    """Connections broke while one rank left; no room can be placed before another is in its place."""
    ranks = Ranks(shape(HEADS, FOUR, ONE, prompts=(5, 4)))
    world, (decode,) = ranks.world, ranks.decodes.values()
    world.writes_held = True
    ranks.call(0)
    world.settle()
    gone = ranks.prefills[0, 1]
    world.runner(decode.name).channel.cut(CloseCause.TIMED_OUT)
    world.kill(gone.name)
    del world.registry["http://world:1", "prefill-0", 1]
    gone.rooms.clear()
    world.settle()
    assert decode.rooms[0].poll() is Status.FAILED
    assert not decode.rooms[0].memory_free, "writes to it are under way"
    world.writes_held = False
    decode.engine.peer_fenced(gone.name)
    end = world.now + 10.0
    world.run(lambda: world.now >= end, timers=True)
    assert all(room.memory_free for room in rooms(ranks)), decode.rooms[0].memory_status
    ranks.start(gone)
    ranks.early.clear()
    ranks.play(1)
    assert {room.poll() for room in rooms(ranks, 1)} == {Status.DONE}
    assert ranks.early == []


def test_a_living_rank_acknowledges_although_another_of_its_instance_is_gone() -> None:
    check_living_ranks_acknowledge()


@named([Mutant(DecodeLinks, "_owed_by", "return", "return False and")])
def test_the_check_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_living_ranks_acknowledge)
