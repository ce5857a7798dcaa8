"""Rooms whose bytes go through staging slots that decode lends: however one ends, every slot comes back."""

from __future__ import annotations

from typing import Any

import pytest
from mutants import Mutant

from kvrooms import Status
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ranks import Ranks
from kvrooms.shapes.table import CASES
from kvrooms.transport.ports import CloseCause

HOWS = ("aborted on decode", "aborted on prefill", "prefill dies", "cut off", "write fails", "done")
SETTINGS = EngineSettings(bootstrap_timeout_s=4.0, queued_timeout_s=6.0)


def rooms(ranks: Ranks, number: int) -> list[Any]:
    return [member.rooms[number] for member in ranks.members() if number in member.rooms]


def staged(ranks: Ranks) -> int:
    """Slots in use; a process that was killed holds nothing, whatever its tables said."""
    alive = [member for member in ranks.members() if not member.engine._core.channel.dead]
    return sum(member.engine.tables()["staged"] for member in alive)


def hurt(ranks: Ranks, how: str) -> None:
    """What happens to the room, at this moment."""
    prefill = next(iter(ranks.prefills.values()))
    decode = ranks.decodes[0]
    match how:
        case "aborted on decode" | "aborted on prefill":
            member = decode if how.endswith("decode") else prefill
            member.rooms[0].abort("its caller has changed its mind")
        case "prefill dies":
            ranks.world.kill(prefill.name)
            prefill.rooms.clear()
        case "cut off":
            decode.engine._core.channel.cut(CloseCause.TIMED_OUT)
        case "write fails":
            for write in list(ranks.world.writes):
                write.source.fail(write, "broken")


def check(seed: int, how: str) -> int:
    """One room that is lent slots and ends in this way; how many were lent at that moment."""
    ranks = Ranks(CASES["staging-tp2-1"], seed, settings=SETTINGS)
    world = ranks.world
    ranks.call(0)
    for _ in range(world.random.randrange(60)):
        world.step()
    lent = staged(ranks)
    hurt(ranks, how)
    world.settle()
    if how == "write fails":  # it is in doubt until its process is gone
        for member in ranks.prefills.values():
            world.kill(member.name)
            member.rooms.clear()
    end = world.now + 60.0
    world.run(lambda: world.now >= end, timers=True)
    for room in rooms(ranks, 0):
        assert room.poll() in (Status.DONE, Status.FAILED)
        assert room.memory_free
    assert staged(ranks) == 0, (how, seed)
    return lent


def check_all(how: str) -> int:
    """In eight runs, each at another moment."""
    return sum(check(seed, how) for seed in range(8))


@pytest.mark.parametrize("how", HOWS)
def test_every_slot_comes_back(how: str) -> None:
    assert check_all(how) > 0, "no run had slots at that moment"


def test_slots_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(DecodeCore, "_free", "self._take_back(grant)", "pass").plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all("aborted on decode")


def test_what_is_in_flight_keeps_its_slots() -> None:
    """A room that was aborted may still be written to: its slots are lent to nobody else before that is over."""
    ranks = Ranks(CASES["staging-tp2-1"], 1, settings=SETTINGS)
    ranks.world.writes_held = True
    ranks.call(0)
    ranks.world.settle()
    lent = ranks.decodes[0].engine.tables()["staged"]
    assert lent > 0
    hurt(ranks, "aborted on decode")
    ranks.world.settle()
    assert not ranks.decodes[0].rooms[0].memory_free
    assert ranks.decodes[0].engine.tables()["staged"] > 0
    ranks.world.writes_held = False
    ranks.world.settle()
    assert staged(ranks) == 0
