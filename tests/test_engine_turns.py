"""What a room costs an engine does not depend on what stands still beside it, nor on what has been before.

Counted in calls of functions of kvrooms, in a simulated world: seconds would say how busy a machine is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_bench import Bench, Shape, send_in
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine.prefill_links import PrefillLinks
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.faults import Faults
from kvrooms.harness.ports import SimTransport, Write

SMALL = EngineSettings(piece_bytes=64, inflight_per_peer_bytes=64)
ROOMS = 30
SLACK = 1.15
"""Orders are drawn, so the same rooms take a few turns more or less."""


class Calls:
    """How many functions of kvrooms were called, those of the simulated world apart."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens inside."""
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _called(self, frame: Any, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("kvrooms.") and not name.startswith("kvrooms.harness."):
            self.count += 1


def cost(bench: Bench, first: int, *, decode: int = 0) -> float:
    """Carry rooms one after another; the calls that each has taken."""
    calls = Calls()
    with calls.counted():
        for number in range(first, first + ROOMS):
            plan = bench.plan(3, decode=decode)
            rooms = bench.receive(plan, number, decode=decode), bench.offer(plan, number)
            send_in(rooms[1], plan, [3])
            bench.finish(*rooms)
            assert {room.poll() for room in rooms} == {Status.DONE}
            for room in rooms:
                room.close()
            bench.run(lambda rooms=rooms: all(room.memory_free for room in rooms))
    return calls.count / ROOMS


class StandingStill:
    """Writes to one decode engine, which stand still from now on. `writes`: those that were posted since."""

    def __init__(self, bench: Bench, decode: int) -> None:
        self.going, self.writes = False, list[Write]()
        transport, slow = bench.prefill._core.transport, bench.decodes[decode].engine._core.transport
        start = transport.start

        def held(target: SimTransport, rows: Any, message: bytes) -> Write:
            write: Write = start(target, rows, message)
            if target is slow and not self.going:
                bench.world.hold(write)
                self.writes.append(write)
            return write

        transport.start = held


def check_slow_peer(seed: int = 3) -> None:
    """Rooms that wait for a decode engine whose writes stand still cost the rooms of another nothing; all arrive."""
    bench = Bench(seed, decodes=2, settings=SMALL, pages=400, slots=200)
    cost(bench, 1000, decode=1)
    usual = cost(bench, 2000, decode=1)
    slow = StandingStill(bench, 0)
    waiting = []
    for number in range(100):
        plan = bench.plan(3)
        rooms = bench.receive(plan, number), bench.offer(plan, number)
        send_in(rooms[1], plan, [3])
        waiting.append(rooms)
    bench.run(lambda: bool(slow.writes) and all(sender.phase != "METADATA" for _, sender in waiting))
    assert cost(bench, 3000, decode=1) < SLACK * usual
    assert len(slow.writes) == 1, "no more is posted to it than may be in flight"
    for _, sender in waiting[::2]:
        sender.abort()
    bench.settle()
    assert bench.prefill.tables()["ready"] <= len(waiting) // 2 + 1, "the one whose write stands still, and no other"
    assert cost(bench, 4000, decode=1) < SLACK * usual
    slow.going = True
    bench.world.heal()
    bench.finish(*(room for rooms in waiting for room in rooms))
    for rooms in waiting[1::2]:
        assert {room.poll() for room in rooms} == {Status.DONE}
    for rooms in waiting:
        for room in rooms:
            room.close()
    bench.settle()
    bench.check_clean()


def test_rooms_that_wait_for_a_slow_peer_cost_those_of_others_nothing() -> None:
    check_slow_peer()


ASIDE = "self._set_aside(writer)\n            continue"
IN_TURN = "self._ready[writer] = None\n            blocked += 1\n            continue"


@named(
    [
        Mutant(PrefillPosting, "_work", ASIDE, IN_TURN),
        Mutant(PrefillPosting, "_count_posted", "self._call_up(writer.peer)", "pass"),
        Mutant(PrefillPosting, "_withdraw", "writer.peer.aside.pop(writer, None)", "pass"),
    ]
)
def test_slow_peers_find_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_slow_peer)


def check_answers_again(seed: int = 0) -> None:
    """What is not posted because a decode engine has not been heard of lately goes on with its next answer."""
    bench = Bench(seed, settings=EngineSettings(heartbeat_s=1.0, heartbeat_timeout_s=5.0), pages=64)
    cost(bench, 1000)
    rooms = []
    for number in range(8):
        plan = bench.plan(2)
        rooms.append((bench.receive(plan, number), bench.offer(plan, number), plan))
    bench.run(lambda: all(sender.phase != "METADATA" for _, sender, _ in rooms))
    (peer,) = bench.prefill._core._peers.values()
    peer.lease_until = bench.world.now - 1.0
    for _, sender, plan in rooms:
        send_in(sender, plan, [2])
    bench.settle()
    assert len(peer.aside) == len(rooms), "nothing is posted without the lease"
    both = [room for receiver, sender, _ in rooms for room in (receiver, sender)]
    bench.finish(*both, timers=True)
    assert {room.poll() for room in both} == {Status.DONE}
    assert bench.world.now < 5.0, "heartbeats, and no deadline"


@pytest.mark.parametrize("seed", range(3))
def test_what_waits_for_a_peer_is_called_up_when_it_answers_again(seed: int) -> None:
    check_answers_again(seed)


def test_whoever_is_not_called_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(PrefillLinks, "_confirmed", "self._call_up(peer)", "pass").plant(monkeypatch)
    dies(check_answers_again)


def storm(bench: Bench, first: int) -> None:
    """Rooms of which half are moving, aborted by either side or both."""
    rooms = []
    for number in range(first, first + 400):
        plan = bench.plan(1)
        rooms.append((number, bench.receive(plan, number), bench.offer(plan, number)))
        if number % 2:
            send_in(rooms[-1][2], plan, [1])
    bench.run(lambda: all(sender.phase != "METADATA" for _, _, sender in rooms))
    for number, *both in rooms:
        for room in both[:: (-1, 1)[number // 2 % 2]][: 1 + number // 4 % 2]:
            room.abort("a storm")
    bench.finish(*(room for _, *both in rooms for room in both))
    for _, *both in rooms:
        for room in both:
            room.close()
    bench.settle()
    bench.check_clean()


def check_storm() -> None:
    """After a storm of aborts a room takes no more calls than before, and every table is as it was."""
    bench = Bench(5, pages=500, slots=500)
    cost(bench, 0)
    usual = cost(bench, 100)
    bench.settle()
    before = [side.engine.tables() for side in (*bench.prefills, *bench.decodes)]
    storm(bench, 1000)
    assert [side.engine.tables() for side in (*bench.prefills, *bench.decodes)] == before
    assert cost(bench, 5000) < SLACK * usual


def test_after_a_storm_of_aborts_a_room_takes_no_more_than_before() -> None:
    check_storm()


def test_a_storm_of_which_something_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants that are over and are looked at in every turn; the counts alone find them, before any table does."""
    over = "[book.verdict(n) for book in [peer.book for peer in self._peers.values()] for n in range(book.floor)]"
    Mutant(PrefillPosting, "_take_in", "busy = False", f"busy = False; {over}").plant(monkeypatch)
    bench = Bench(5, pages=500, slots=500)
    usual = cost(bench, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "check_clean", lambda: None)
        storm(bench, 1000)
    assert cost(bench, 5000) > 2 * usual


@pytest.mark.parametrize("at_once", [0.0, 0.5, 1.0])
def test_writes_that_are_over_when_they_are_posted_and_such_as_are_not_end_alike(at_once: float) -> None:
    """A write of either kind is reported, counted and settled, and the last one may be of either."""
    settings = EngineSettings(piece_bytes=32)
    kinds: set[bool] = set()
    for seed in range(20):
        bench = Bench(seed, Shape(indexed=1), faults=Faults(at_once=at_once), settings=settings)
        transport = bench.prefill._core.transport
        post = transport.post

        def noted(*arguments: Any, post: Any = post) -> int | None:
            handle: int | None = post(*arguments)
            kinds.add(handle is None)
            return handle

        transport.post = noted
        plan = bench.plan(4, state={"swa": 2})
        rooms = bench.receive(plan), bench.offer(plan)
        send_in(rooms[1], plan, [2, 2])
        bench.finish(*rooms)
        assert {room.poll() for room in rooms} == {Status.DONE}
        for room in rooms:
            room.close()
        bench.settle()
        bench.check_clean()
    assert kinds == {0.0: {False}, 0.5: {False, True}, 1.0: {True}}[at_once]
