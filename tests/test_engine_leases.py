"""Memory outlives rooms: a range comes back only by an acknowledgement, by proof, or by the orchestrator's word.

`Bench` looks on: whatever is said to be free is overwritten at once, and no byte of it may change afterwards.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_bench import Bench, Plan, in_flight, send_in, serve_another
from engine_peers import HandPrefill

from kvrooms import InvalidArgument, Status
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.world import Faults
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason

SMALL = EngineSettings(piece_bytes=32)


def start(bench: Bench, *, decode_first: bool = True, room: int = 7, pages: int = 3) -> tuple[DecodeRoom, PrefillRoom]:
    """A room that agrees, opened on both sides and sent."""
    plan = bench.plan(pages)
    receiver = bench.receive(plan, room) if decode_first else None
    sender = bench.offer(plan, room)
    send_in(sender, plan, [1, pages - 1])
    return receiver or bench.receive(plan, room), sender


@pytest.mark.parametrize("decode_first", [True, False], ids=["decode first", "prefill first"])
@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_abort_from_either_side_at_every_step(which: str, decode_first: bool) -> None:
    for seed in range(4):
        for moment in itertools.count():
            bench = Bench(seed, settings=SMALL, pages=8)
            receiver, sender = start(bench, decode_first=decode_first)
            going_on = bench.steps(moment)
            aborted, other = (receiver, sender) if which == "decode" else (sender, receiver)
            aborted.abort("changed my mind")
            bench.settle()
            check_aborted(bench, aborted, other)
            if not going_on:
                assert receiver.poll() is sender.poll() is Status.DONE
                break


def check_aborted(bench: Bench, aborted: DecodeRoom | PrefillRoom, other: DecodeRoom | PrefillRoom) -> None:
    """Both sides know, without a timer; all memory is back; nothing is left; the next room is served."""
    if aborted.poll() is Status.FAILED:
        assert aborted.failure is not None
        assert (aborted.failure.reason, aborted.failure.detail) == (Reason.ABORTED, "changed my mind")
    if other.poll() is Status.FAILED:
        assert other.failure is not None
        assert (other.failure.reason, other.failure.detail) == (Reason.PEER_ABORTED, "changed my mind")
        assert other.failure.origin == "peer"
    elif other.poll() is not Status.DONE:  # it was never asked: no METADATA had been sent, and none will be
        assert isinstance(other, PrefillRoom)
        assert other.phase == "METADATA"
    assert aborted.memory_free
    for room in (aborted, other):
        room.close()
    bench.settle()
    assert other.memory_free
    bench.check_clean()
    serve_another(bench)
    bench.check_clean()
    assert bench.world.now == 0


@pytest.mark.parametrize("seed", range(40))
def test_abort_that_overtakes_its_metadata(seed: int) -> None:
    """Frames in any order: whatever comes first, nothing is written after the acknowledgement."""
    bench = Bench(seed, settings=SMALL, pages=8)
    serve_another(bench)
    bench.world.faults = Faults(reorder=True, repeat=0.3)
    rooms = []
    for number in range(3):
        receiver, sender = start(bench, room=number, decode_first=bool(number % 2), pages=2)
        bench.steps(bench.world.random.randrange(8))
        receiver.abort()
        bench.settle()
        assert receiver.poll().terminal
        assert receiver.memory_free
        receiver.close()
        rooms.append(sender)
    for sender in rooms:
        sender.close()
    bench.settle()
    bench.check_bytes()
    bench.world.faults = Faults()
    serve_another(bench)


# -- quarantine --------------------------------------------------------------------------------------------------------


def in_the_middle(bench: Bench) -> tuple[Plan, DecodeRoom, PrefillRoom]:
    """A room whose writes are posted and do not land."""
    bench.world.writes_held = True
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [2, 1])
    bench.settle()
    assert any(in_flight(bench.world))
    return plan, receiver, sender


@pytest.mark.parametrize("who", ["decode aborts", "prefill aborts", "both close"])
def test_ranges_stay_quarantined_as_long_as_a_write_is_in_flight(who: str) -> None:
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        plan, receiver, sender = in_the_middle(bench)
        if who == "both close":
            receiver.close()
            sender.close()
        else:
            (receiver if who == "decode aborts" else sender).abort()
        bench.settle()
        assert receiver.poll() is sender.poll() is Status.FAILED
        bench.pass_time(100)
        assert not receiver.memory_free
        assert not sender.memory_free
        with pytest.raises(InvalidArgument, match=r"pages: it belongs to a room whose memory is not free yet"):
            bench.decode.open(8, bootstrap=bench.prefill.bootstrap, pages=plan.target["kv"][:1])
        with pytest.raises(InvalidArgument, match=r"aux_index: the slot belongs to a room"):
            bench.decode.open(8, bootstrap=bench.prefill.bootstrap, aux_index=plan.target["aux"][0])
        bench.world.writes_held = False
        bench.settle()
        assert receiver.memory_free
        assert sender.memory_free
        receiver.close()
        sender.close()
        bench.settle()
        bench.check_clean()


def test_the_orchestrators_word_releases_what_nobody_acknowledges() -> None:
    bench = Bench(8, prefills=2)
    hand = HandPrefill(bench)
    plan = bench.plan(2)
    receiver = bench.receive(plan, instance="hand")
    fine = bench.plan(1)
    other, _ = bench.receive(fine, 8), bench.offer(fine, 8)
    hand.join()
    receiver.abort()
    bench.pass_time(60)
    assert not receiver.memory_free
    bench.decode.peer_fenced("somebody else")
    bench.settle()
    assert not receiver.memory_free
    bench.decode.peer_fenced("hand")
    bench.settle()
    assert receiver.memory_free
    assert not other.poll().terminal
    assert sum(isinstance(b, wire.Abort) for b in hand.heard()) > 3


def test_an_abort_is_repeated_with_pauses_that_grow_until_it_is_acknowledged() -> None:
    bench = Bench(9, prefills=2)
    hand = HandPrefill(bench)
    receiver = bench.receive(bench.plan(2), instance="hand")
    hand.join()
    (metadata,) = hand.heard(wire.Metadata)
    receiver.abort("why not")
    times: list[float] = []

    def look() -> bool:
        times.extend([bench.world.now] * (len(hand.heard(wire.Abort)) - len(times)))
        return hand.pong() or len(times) == 9

    bench.run(look, timers=True)
    pauses = np.diff(times)
    np.testing.assert_allclose(pauses, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], atol=0.02)
    assert hand.heard(wire.Abort)[0] == wire.Abort(metadata.grant, Reason.PEER_ABORTED, "why not", False)
    assert not receiver.memory_free
    hand.say(wire.Ack(metadata.grant))
    bench.settle()
    assert receiver.memory_free
    assert bench.decode.tables()["grants"] == 0


def test_nothing_is_posted_after_the_lease_of_posting_until_decode_confirms_it() -> None:
    """Prefill sleeps through its heartbeats with pieces to post; on waking it must ask before it posts."""
    for seed in range(10):
        check_fence(seed)


def check_fence(seed: int) -> None:
    bench = Bench(seed, settings=EngineSettings(piece_bytes=32, inflight_bytes=32))
    bench.world.writes_held = True
    receiver, sender = start(bench)
    bench.settle()
    posts = []
    transport = bench.prefill._core.transport
    post = transport.post
    transport.post = lambda *arguments: posts.append(bench.world.now) or post(*arguments)
    core = bench.prefill._core
    heard: list[float] = []
    confirmed = core._confirmed
    core._confirmed = lambda link: heard.append(bench.world.now) or confirmed(link)
    bench.world.writes_held = False
    bench.world.now += 60  # both slept: a machine that was suspended
    bench.finish(receiver, sender, timers=True)
    assert all(heard and at >= heard[0] for at in posts), (heard, posts)


# -- errors of the transport -------------------------------------------------------------------------------------------


def fail_a_write(bench: Bench, *, at_the_post: bool) -> None:
    transport = bench.prefill._core.transport
    if at_the_post:
        transport.post_error = "no more descriptors"
        return
    bench.world.writes_held = True
    bench.settle()
    write = bench.world.writes[0]
    bench.world.lose(write)
    transport.fail(write, "cable out")
    bench.world.writes_held = False


def assert_failed_alike(receiver: DecodeRoom, sender: PrefillRoom, reason: Reason) -> None:
    assert sender.failure is not None
    assert receiver.failure is not None
    assert (sender.failure.reason, sender.failure.origin) == (reason, "local")
    assert (receiver.failure.reason, receiver.failure.origin) == (reason, "peer")
    assert receiver.failure.detail == sender.failure.detail


def test_a_write_that_cannot_be_posted_fails_both_sides_and_frees_both() -> None:
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        other, other_sender = start(bench, room=1)
        bench.finish(other, other_sender)
        receiver, sender = start(bench)
        fail_a_write(bench, at_the_post=True)
        bench.finish(receiver, sender)
        assert_failed_alike(receiver, sender, Reason.SEND_ERROR)
        bench.prefill._core.transport.post_error = ""
        for room in (receiver, sender, other, other_sender):
            room.close()
        bench.settle()
        assert bench.world.now == 0
        serve_another(bench)
        bench.check_clean()


def test_a_write_that_fails_later_keeps_the_destination_until_the_writer_is_gone() -> None:
    """Bytes that it had under way may still land, so nobody promises that they will not."""
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        receiver, sender = start(bench)
        fail_a_write(bench, at_the_post=False)
        bench.finish(receiver, sender)
        assert_failed_alike(receiver, sender, Reason.TRANSPORT_ERROR)
        receiver.close()
        sender.close()
        bench.settle()
        assert sender.memory_free
        assert not receiver.memory_free
        bench.world.kill(bench.prefill.name)
        bench.settle()
        assert receiver.memory_free


def test_a_mutant_that_acknowledges_a_grant_in_doubt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefillCore, "_doubt", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_write_that_fails_later_keeps_the_destination_until_the_writer_is_gone()
