"""Deadlines: each ends its room, says what it waited for, and reaches the other side. And what is bounded stays so."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from engine_bench import Bench, Shape, send_in
from engine_peers import HandDecode, HandPrefill
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine import grants, prefill_links
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.world import Faults
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason
from kvrooms.transport.ports import CloseCause

BOOTSTRAP = "http://world:1"
CALLER = (
    "waiting for the caller of prefill-0; open: its next send, for page",
    "does whatever computes this request still run",
)


def ended(bench: Bench, room: Any, reason: Reason, after: float, *words: str) -> None:
    """The room ends by this deadline, at this time, and says so."""
    bench.finish(room, timers=True)
    assert room.failure.reason is reason, room.failure
    assert bench.world.now == pytest.approx(after, abs=0.1)
    for word in words:
        assert word in room.failure.detail, room.failure.detail
    assert room.failure.retryable
    bench.settle()


def test_no_registry_entry() -> None:
    bench = Bench(1, prefills=0)
    room = bench.decode.open(7, bootstrap=BOOTSTRAP, instance="nobody", pages=[1])
    ended(
        bench, room, Reason.DEADLINE_BOOTSTRAP, 30, "room 7 was in METADATA after 30", "0 engines fit 'nobody' rank 0"
    )
    assert room.memory_free
    room.close()
    bench.pass_time(3)
    assert not any(bench.decode.tables().values())


def test_a_prefill_engine_that_is_dead_or_does_not_answer() -> None:
    for answers in (True, False):
        bench = Bench(2, prefills=1)
        hand = HandPrefill(bench)
        hand.channel.dead = not answers
        room = bench.decode.open(7, bootstrap=BOOTSTRAP, instance="hand", pages=[1])
        words = "does not answer" if answers else "nobody listens"
        ended(bench, room, Reason.DEADLINE_BOOTSTRAP, 30, "waiting for hand", words)
        assert room.memory_free
        room.close()
        bench.pass_time(3)
        assert not any(bench.decode.tables().values())


def test_a_prefill_engine_that_comes_late_is_found() -> None:
    for seed in range(10):
        bench = Bench(seed, prefills=0)
        room = bench.decode.open(7, bootstrap=BOOTSTRAP, pages=[1], aux_index=0)
        bench.pass_time(12)
        bench.prefills.append(bench.add_prefill("late"))
        sender = bench.prefill.open(7, aux_index=1)
        sender.send([3], last=True)
        bench.finish(room, sender, timers=True)
        assert room.poll() is sender.poll() is Status.DONE
        assert bench.world.now < 14


def test_prefill_that_never_sends() -> None:
    bench = Bench(3)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan, queued_timeout_s=400)
    ended(bench, receiver, Reason.DEADLINE_WAITING, 300, "room 7 was in KV after 300.0 s, waiting for prefill-0")
    assert (sender.failure.reason, sender.failure.origin) == (Reason.DEADLINE_WAITING, "peer")
    assert receiver.memory_free
    assert sender.memory_free


@pytest.mark.parametrize("own", [True, False], ids=["of the room", "of the engine"])
def test_a_transfer_that_stands_still(own: bool) -> None:
    bench = Bench(4, settings=None if own else EngineSettings(moving_timeout_s=5))
    plan = bench.plan(3)
    options = {"moving_timeout_s": 5} if own else {}
    receiver, sender = bench.receive(plan, **options), bench.offer(plan)
    for page in plan.source["kv"][:2]:
        bench.pass_time(4)
        sender.send([page])
        bench.settle()
    start = bench.world.now
    ended(bench, receiver, Reason.DEADLINE_MOVING, start + 5, "room 7 was in KV")
    assert sender.failure.reason is Reason.DEADLINE_MOVING
    assert receiver.memory_free


def test_a_room_that_makes_progress_for_ever_meets_its_cap() -> None:
    bench = Bench(5, pages=64)
    plan = bench.plan(60)
    receiver, sender = bench.receive(plan, cap_timeout_s=20), bench.offer(plan)
    for page in plan.source["kv"]:
        if receiver.poll().terminal:
            break
        sender.send([page]) if not sender.poll().terminal else None
        bench.pass_time(1)
    assert receiver.failure.reason is Reason.DEADLINE_CAP
    assert bench.world.now == pytest.approx(20, abs=1.1)
    assert sender.failure.reason is Reason.DEADLINE_CAP


def test_prefill_that_is_never_asked() -> None:
    bench = Bench(6)
    room = bench.prefill.open(7, queued_timeout_s=40)
    room.send([1], last=True)
    ended(
        bench, room, Reason.DEADLINE_BOOTSTRAP, 40, "room 7 was in METADATA", "for a decode engine; open: its METADATA"
    )
    assert room.memory_free


def test_a_caller_of_prefill_that_sends_no_more() -> None:
    bench = Bench(7)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan, queued_timeout_s=20, moving_timeout_s=10)
    ended(bench, sender, Reason.DEADLINE_WAITING, 20, "room 7 was in KV", *CALLER)
    assert "in its queue" not in sender.failure.detail
    assert receiver.failure.reason is Reason.DEADLINE_WAITING
    again_plan = bench.plan(2)
    receiver = bench.receive(again_plan, 8, moving_timeout_s=600)
    sender = bench.offer(again_plan, 8, moving_timeout_s=10)
    sender.send(again_plan.source["kv"][:1])  # which settles: from there on it is the caller's turn
    ended(bench, sender, Reason.DEADLINE_WAITING, 320, "room 8 was in KV", *CALLER, "by the caller so far: 1 pages")
    assert receiver.failure.reason is Reason.DEADLINE_WAITING


def check_kept_back(seed: int) -> None:
    """A write that waits for the totals waits for prefill's caller: no transfer stands still."""
    bench = Bench(seed)
    plan = bench.plan(1)
    receiver = bench.receive(plan, aux_index=None, moving_timeout_s=600)
    sender = bench.offer(plan, aux_index=None, queued_timeout_s=50, moving_timeout_s=10)
    sender.send(plan.source["kv"])
    words = (
        "room 7 was in KV",
        "waiting for the caller of prefill-0; open: its last send",
        "the caller so far: 1 pages",
    )
    ended(bench, sender, Reason.DEADLINE_WAITING, 50, *words)
    assert receiver.failure.reason is Reason.DEADLINE_WAITING


def test_a_write_that_is_kept_back_is_no_stuck_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    check_kept_back(8)
    Mutant(PrefillPosting, "_work", "self._idle_if_so(writer.record)", "pass").plant(monkeypatch)
    dies(lambda: check_kept_back(8))


def check_stuck(seed: int) -> None:
    """What is handed over and does not settle is a transfer that stands still, from whichever side it is looked at."""
    bench = Bench(seed)
    plan = bench.plan(2)
    sender = bench.offer(plan, queued_timeout_s=50, moving_timeout_s=10)
    sender.send(plan.source["kv"], last=True)
    bench.settle()
    bench.world.writes_held = True
    receiver = bench.receive(plan)
    ended(bench, sender, Reason.DEADLINE_MOVING, 10, "room 7 was in KV", "handed over by the caller so far: everything")
    assert receiver.failure.reason is Reason.DEADLINE_MOVING


def check_turn(seed: int) -> None:
    """A room that waits for its turn behind one that moves is not slow; one that waits behind a stuck one is."""
    settings = EngineSettings(piece_bytes=64, inflight_per_peer_bytes=64, inflight_bytes=64)
    bench = Bench(seed, pages=40, settings=settings)
    long, short = bench.plan(20), bench.plan(1)
    first = [bench.receive(long, 1), bench.offer(long, 1)]
    bench.settle()
    bench.world.writes_held = True
    send_in(first[1], long, [20])
    bench.settle()
    second = [bench.receive(short, 2), bench.offer(short, 2, moving_timeout_s=10)]
    bench.settle()
    send_in(second[1], short, [1])
    for _ in range(4):
        bench.pass_time(6)
        core = bench.prefill._core
        core.progressed_at = core.clock.now()  # as if a piece of the first had settled
    assert not second[1].poll().terminal
    bench.finish(second[1], timers=True)
    assert second[1].failure.reason is Reason.DEADLINE_MOVING
    bench.world.writes_held = False
    bench.finish(*first, timers=True)


def check_late_turn(seed: int) -> None:
    """Twenty rooms share a network that carries a page a second: each is slow for a second, when its turn comes."""
    bench = Bench(seed, pages=40, slots=40, settings=EngineSettings(piece_bytes=64, inflight_per_peer_bytes=64))
    bench.world.writes_held = True
    rooms: list[Any] = []
    for number in range(20):
        plan = bench.plan(1, aux=False)
        rooms += [bench.receive(plan, number), bench.offer(plan, number, moving_timeout_s=4)]
        send_in(rooms[-1], plan, [1])
    bench.settle()
    for _ in range(30):
        for write in bench.world.writes[:1]:
            bench.world.finish(write)
        bench.pass_time(1)
    assert {room.poll() for room in rooms} == {Status.DONE}


@pytest.mark.parametrize("check", [check_stuck, check_turn, check_late_turn])
def test_a_stuck_transfer_is_told_from_one_that_waits(check: Any) -> None:
    for seed in range(3):
        check(seed)


@named([
    Mutant(PrefillPosting, "_idle_if_so", "self._step(record, Idle())", "pass"),
    Mutant(PrefillPosting, "_waited_until", "default=self.progressed_at", "default=self.now"),
    Mutant(PrefillPosting, "_waited_until", "default=self.progressed_at", "default=0.0"),
    Mutant(PrefillPosting, "_post", "writer.turn_at = self.now", "pass"),
    Mutant(PrefillCore, "_has_waited", "record.armed_at = since", "pass"),
    Mutant(PrefillCore, "_bind", "self._step(record, Queued())", "pass"),
])  # fmt: skip
def test_the_checks_of_turns_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def all_of_them() -> None:
        test_a_caller_of_prefill_that_sends_no_more()
        check_stuck(0)
        check_turn(0)
        check_late_turn(0)

    dies(all_of_them)


def test_deadlines_end_rooms_while_frames_are_lost_in_both_directions() -> None:
    for seed in range(5):
        bench = Bench(seed)
        plan = bench.plan(1)
        bench.world.faults = Faults(drop=1.0)
        receiver, sender = bench.receive(plan), bench.offer(plan)
        sender.send(plan.source["kv"], last=True)
        bench.finish(receiver, sender, timers=True)
        assert receiver.failure.reason is Reason.DEADLINE_BOOTSTRAP
        assert sender.failure.reason is Reason.DEADLINE_BOOTSTRAP


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_peer_that_leaves_too_many_gaps_is_shown_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "GAPS_MAX", 20)
    bench = Bench(8)
    hand = HandDecode(bench).join()
    for grant in range(1, 61, 2):
        hand.say(wire.Abort(grant, Reason.PEER_ABORTED, "", False))
    bench.settle()
    hand.heard()
    assert hand.closed
    assert bench.prefill.counters()["connections dropped: too many gaps in its grants"] >= 1
    assert bench.prefill.tables()["void"] <= 22


def test_decode_engines_that_were_cut_off_for_ever_are_remembered_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_links, "_UNPROVEN_MAX", 8)
    bench = Bench(9, Shape(layers=1), pages=2, slots=2)
    for _ in range(30):
        hand = HandDecode(bench).join()
        hand.channel.cut(CloseCause.TIMED_OUT)
        bench.settle()
        assert bench.prefill.tables()["peers"] <= 9
    assert bench.prefill.tables()["links"] == bench.prefill.tables()["timers"] == 0
    assert len(bench.prefill._core.transport._peers) <= prefill_links._LOADED_MAX, "too many absent peers stay known"


def test_tables_and_counters_may_be_read_from_any_thread() -> None:
    bench = Bench(10, Shape(layers=1), pages=2, slots=2)
    faults: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                for engine in (bench.prefill, bench.decode):
                    engine.tables()
                    engine.counters()
        except BaseException as fault:
            faults.append(fault)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=look)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        for _ in range(150):
            HandDecode(bench).join()
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not faults


@pytest.mark.parametrize("seed", range(5))
def test_a_room_waits_for_its_turn_behind_a_large_one_and_both_arrive(seed: int) -> None:
    """Pieces take turns: with one piece in flight at a time, a small room is not behind the whole of a large one."""
    bench = Bench(seed, pages=64, settings=EngineSettings(piece_bytes=64, inflight_bytes=64))
    plans = [bench.plan(40), bench.plan(1)]
    rooms = [(bench.receive(plan, n), bench.offer(plan, n)) for n, plan in enumerate(plans)]
    bench.settle()
    for (_, sender), plan in zip(rooms, plans, strict=True):
        send_in(sender, plan, [plan.pages])
    bench.finish(*rooms[1])
    assert not rooms[0][0].poll().terminal
    bench.finish(*rooms[0])
    assert {room.poll() for pair in rooms for room in pair} == {Status.DONE}
    bench.check_bytes()
