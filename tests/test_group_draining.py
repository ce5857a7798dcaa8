"""A rank that drains does not leave before its group has decided its rooms: the others' would fail with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from mutants import Mutant, dies, named

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, RoomGroup, Status
from kvrooms.engine.host import Engine
from kvrooms.protocol.identity import RoomKey

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]
LIMIT_S = 40.0
KEYS = (RoomKey(1, 0), RoomKey(2, 0))


def memory() -> Memory:
    return Memory(4, kv=[Buffer(0, "k", np.zeros((4, 64), np.uint8))])


@pytest.fixture
def groups() -> Iterator[list[RoomGroup]]:
    """Two ranks; the other one is no engine, and says by hand how its rooms end."""
    with ExitStack() as stack:
        leader = stack.enter_context(RoomGroup(0, 2, "127.0.0.1:0"))
        other = stack.enter_context(RoomGroup(1, 2, leader.address))
        joining = threading.Thread(target=other.join)
        joining.start()
        leader.join()
        joining.join(LIMIT_S)
        yield [leader, other]


def drains_check(leader: RoomGroup, other: RoomGroup) -> None:
    """Of two rooms that are DONE on this rank, the other rank has ended one."""
    prefill = PrefillEngine(memory(), name="draining-p")
    decode = DecodeEngine(memory(), name="draining-d", group=leader)
    rooms = []
    with prefill, decode:
        for key in KEYS:
            other.enter(key)
            room = decode.open(key.room, bootstrap=prefill.bootstrap, pages=[key.room])
            sender = prefill.open(key.room)
            sender.send([key.room], last=True)
            assert sender.wait(LIMIT_S) is room.wait(LIMIT_S) is Status.DONE
            assert room.outcome is Status.TRANSFERRING
            rooms.append(room)
        other.report(KEYS[0], Status.DONE)
        assert rooms[0].wait_outcome(LIMIT_S) is Status.DONE
        drained = decode.drain(0.0)
        assert (drained.done, drained.failed) == (1, 1)
        assert [name for name in drained.aborted if "room 2" in name] == list(drained.aborted) != []


def test_a_drain_waits_for_the_outcome_of_rooms_that_are_done_here(groups: list[RoomGroup]) -> None:
    drains_check(*groups)


@named([
    Mutant(Engine, "drain", "room.wait_outcome(", "room.wait("),
    Mutant(Engine, "drain", "room.outcome is", "room.poll() is"),
])  # fmt: skip
def test_the_check_notices(groups: list[RoomGroup], mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: drains_check(*groups))
