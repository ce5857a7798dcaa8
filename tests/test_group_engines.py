"""Engines whose rooms have one outcome for all ranks: two decode ranks in a simulated world, a sender for each."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from mutants import Mutant, dies, named

from kvrooms import DecodeEngine, EngineClosed, InvalidArgument, Overloaded, RoomFailed, Status
from kvrooms.engine import host
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.groups import gather
from kvrooms.harness.mutants.stage import UNTOUCHED, Pool, Shape, Stage
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.identity import RoomKey

DONE, FAILED = Status.DONE, Status.FAILED
SETTINGS = EngineSettings(decision_timeout_s=60.0)


class Bench:
    """Two decode engines in one group, and a prefill engine for each, which belong to no group."""

    def __init__(self, seed: int = 1, settings: EngineSettings = SETTINGS) -> None:
        self.stage = Stage(seed, prefills=0, decodes=0, settings=settings)
        self.stage.prefills = [self.stage.add_prefill(f"prefill-{rank}") for rank in range(2)]
        self.world = self.stage.world
        self.groups = gather(self.world, 2, settings)
        self.decodes = [self.engine(rank) for rank in range(2)]

    def engine(self, rank: int) -> DecodeEngine:
        pool = Pool(Shape(), lambda n, m: np.full((n, m), UNTOUCHED, dtype=np.uint8), 16, 8)
        assembly = self.world.assemble(f"decode {rank}", pool.memory, self.stage.settings)
        return DecodeEngine(pool.memory, settings=self.stage.settings, assembly=assembly, group=self.groups[rank])

    def receive(self, rank: int, number: int = 7, **options: Any) -> Any:
        prefill = self.stage.prefills[rank]
        given = {"pages": [8, 2, 5], "aux_index": 3, **options}
        return self.decodes[rank].open(number, bootstrap=prefill.engine.bootstrap, instance=prefill.name, **given)

    def both(self, number: int = 7) -> list[Any]:
        return [self.receive(rank, number) for rank in range(2)]

    def send(self, rank: int, number: int = 7) -> Any:
        sender = self.stage.offer(number, prefill=rank)
        sender.send([3, 9, 4], last=True)
        return sender

    def settle(self) -> None:
        self.world.settle()


def test_without_a_group_the_outcome_is_the_rooms_own() -> None:
    stage = Stage(1)
    receiver, sender = stage.pair()
    assert receiver.outcome is receiver.poll() is Status.BOOTSTRAPPING
    stage.finish(receiver, sender)
    assert receiver.outcome is sender.outcome is receiver.wait_outcome(0) is DONE
    assert receiver.outcome_failure is None
    other = stage.receive(8, pages=[1], aux_index=1)
    other.abort("no")
    stage.settle()
    assert other.outcome is FAILED
    assert other.outcome_failure is other.failure
    assert asyncio.run(other.decided()) is FAILED


def test_the_outcome_is_not_terminal_before_every_rank_is_done() -> None:
    bench = Bench()
    rooms = bench.both()
    bench.send(0)
    bench.settle()
    assert [room.poll() for room in rooms] == [DONE, Status.BOOTSTRAPPING]
    assert rooms[0].outcome is Status.TRANSFERRING
    assert rooms[0].wait(0) is DONE
    with pytest.raises(TimeoutError, match="room 7 has no outcome after 0 s; here it is in DONE"):
        rooms[0].wait_outcome(0)
    bench.send(1)
    bench.settle()
    assert [room.outcome for room in rooms] == [room.wait_outcome(0) for room in rooms] == [DONE, DONE]
    assert asyncio.run(rooms[1].decided()) is DONE
    assert all(room.outcome_failure is None for room in rooms)
    for room in rooms:
        room.failure_exception()


def test_a_failure_on_one_rank_ends_the_room_on_the_other_and_tells_its_peer() -> None:
    bench = Bench()
    rooms, senders = bench.both(), [bench.stage.offer(7, prefill=rank) for rank in range(2)]
    bench.settle()
    senders[1].abort("changed my mind")
    bench.settle()
    assert [room.outcome for room in rooms] == [room.poll() for room in rooms] == [FAILED, FAILED]
    words = "rank 1 of the group: peer_aborted: changed my mind"
    assert rooms[0].failure.detail == words
    assert rooms[0].outcome_failure.detail == words
    assert rooms[1].failure.detail == "changed my mind"
    assert senders[0].poll() is FAILED
    assert senders[0].failure.detail == words
    assert all(room.memory_free for room in rooms)
    rooms[0].close()
    bench.settle()  # `failure_exception` waits until the engine has let go of the room
    with pytest.raises(RoomFailed, match=words):
        rooms[0].failure_exception()


def test_a_rank_that_opens_a_room_late_which_has_failed_tells_its_own_peer() -> None:
    """Once it is connected, METADATA goes out with the opening, before the group can say anything; ABORT follows."""
    bench = Bench()
    rooms, senders = bench.both(6), [bench.send(rank, 6) for rank in range(2)]
    bench.settle()
    assert [room.outcome for room in rooms] == [DONE, DONE]
    for room in (*rooms, *senders):
        room.close()
    early, senders = bench.receive(0), [bench.stage.offer(7, prefill=rank) for rank in range(2)]
    bench.settle()
    senders[0].abort("changed my mind")
    bench.settle()
    assert early.outcome is FAILED
    assert senders[1].poll() is Status.BOOTSTRAPPING
    late = bench.receive(1)
    bench.settle()
    words = "rank 0 of the group: peer_aborted: changed my mind"
    assert late.failure.detail == senders[1].failure.detail == words
    assert bench.world.now < 1, "no deadline was needed"


def test_a_room_that_is_done_here_and_failed_elsewhere() -> None:
    bench = Bench()
    rooms = bench.both()
    bench.send(0)
    bench.settle()
    rooms[1].abort("no")
    bench.settle()
    assert [room.poll() for room in rooms] == [DONE, FAILED]
    assert [room.outcome for room in rooms] == [FAILED, FAILED]
    assert rooms[0].failure is None
    assert rooms[0].outcome_failure.reason is Reason.ABORTED
    assert rooms[0].outcome_failure.detail == "rank 1 of the group: aborted: no"
    rooms[0].close()
    bench.settle()
    with pytest.raises(RoomFailed, match="rank 1 of the group: aborted: no"):
        rooms[0].failure_exception()


def test_a_key_is_in_use_until_its_group_has_decided() -> None:
    bench = Bench()
    rooms = bench.both()
    bench.send(0)
    bench.settle()
    rooms[0].close()
    bench.settle()
    with pytest.raises(InvalidArgument, match="room 7 is open already"):
        bench.receive(0)
    bench.receive(0, 8).abort()
    bench.send(1)
    bench.settle()
    assert rooms[0].outcome is DONE
    for room in rooms:
        room.close()
    bench.settle()
    for sender in [room for _, room in bench.stage.rooms]:
        sender.close()
    bench.settle()
    again = bench.both()
    bench.send(0)
    bench.send(1)
    bench.settle()
    assert [room.outcome for room in again] == [DONE, DONE]


def check_old_ends_do_not_count() -> None:
    """The outcome fails a room that is still open here; its key is used again before the engine has ended it."""
    bench = Bench()
    rooms = bench.both()
    bench.settle()
    bench.world.stall("decode 0")  # it will end the room later
    rooms[1].abort("no")
    bench.settle()
    assert rooms[0].outcome is FAILED
    assert rooms[0].poll() is not FAILED
    rooms[0].close()
    rooms[1].close()
    again = [bench.receive(0, pages=[9, 10, 11], aux_index=4), bench.receive(1, pages=[9, 10, 11], aux_index=4)]
    bench.world.stall("decode 0", stalled=False)
    bench.settle()
    assert [room.outcome.terminal for room in again] == [False, False], again[0].outcome_failure
    bench.send(0)
    bench.send(1)
    bench.settle()
    assert [room.outcome for room in again] == [DONE, DONE]


def test_the_late_end_of_a_room_is_not_that_of_its_next_life() -> None:
    check_old_ends_do_not_count()


def test_the_loss_of_a_rank_ends_the_rooms_of_the_others_and_shows_in_their_health() -> None:
    bench = Bench()
    assert bench.decodes[0].health().ok
    rooms = bench.both()
    bench.settle()
    bench.world.kill("rank 1")
    bench.settle()
    assert rooms[0].outcome is rooms[0].poll() is FAILED
    health = bench.decodes[0].health()
    assert not health.ok
    assert health.problems[0].startswith("rank 1 is lost: its process has ended")
    late = bench.receive(0, 8)
    bench.settle()
    assert late.outcome is FAILED
    assert late.failure.detail.startswith("rank 1 of the group: peer_lost")


def test_an_engine_that_is_closed_fails_its_rooms_on_every_rank() -> None:
    bench = Bench()
    rooms = bench.both()
    bench.settle()
    bench.decodes[1].close()
    bench.settle()
    assert [room.outcome for room in rooms] == [FAILED, FAILED]
    assert rooms[0].failure.reason is Reason.SHUTDOWN
    bench.groups[0].close()
    with pytest.raises(EngineClosed, match="its group is closed"):
        bench.receive(0, 8)


def test_undecided_rooms_count_as_open_ones() -> None:
    bench = Bench(settings=EngineSettings(decision_timeout_s=60.0, rooms_max=1))
    room = bench.receive(0)
    bench.send(0)
    bench.settle()
    room.close()
    bench.settle()
    assert bench.decodes[0].tables()["undecided"] == 1
    with pytest.raises(Overloaded, match="1 rooms of decode 0 wait for their group"):
        bench.receive(0, 8, pages=[1], aux_index=1)


def test_one_group_for_one_engine_and_only_when_all_have_joined() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="it belongs to an engine already"):
        bench.engine(0)


def test_nothing_stays_behind() -> None:
    bench = Bench()
    before: list[dict[str, int]] = []
    for number in range(1, 12):
        rooms, senders = bench.both(number), [bench.send(rank, number) for rank in range(2)]
        bench.settle()
        assert {room.outcome for room in rooms} == {DONE}
        for room in (*rooms, *senders):
            room.close()
        bench.settle()
        tables = [one.tables() for one in (*bench.decodes, *bench.groups)]
        before = before or tables
        assert tables == before
    assert bench.groups[0].outcome(RoomKey(11, 0)) is DONE


@named(
    [
        Mutant(host.Engine, "room_ended", "if self._undecided.get(key) is not room:", "if False:"),
        Mutant(host.Engine, "on_abort", "room = self._undecided.get(key)", "room = None"),
    ]
)
def test_mutants_of_the_hooks_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def look() -> None:
        check_old_ends_do_not_count()
        test_a_failure_on_one_rank_ends_the_room_on_the_other_and_tells_its_peer()

    dies(look)
