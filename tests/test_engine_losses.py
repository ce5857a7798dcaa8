"""Engines that die, stall, lose their connection or close: what that proves, what it does not, and what comes back."""

from __future__ import annotations

import itertools

import pytest
from engine_bench import Bench, Shape, in_flight, send_in, serve_another
from engine_peers import HandDecode, HandPrefill

from kvrooms import Status
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason
from kvrooms.transport.ports import CloseCause

SMALL = EngineSettings(piece_bytes=32)
SWA = Shape(indexed=1)
AnyRoom = DecodeRoom | PrefillRoom


def start(bench: Bench, room: int = 7, *, pages: int = 3, prefill: int = 0, decode: int = 0) -> tuple[AnyRoom, AnyRoom]:
    """A room that agrees, opened on both sides and sent."""
    plan = bench.plan(pages, prefill=prefill, decode=decode)
    receiver = bench.receive(plan, room, prefill=prefill, decode=decode)
    sender = bench.offer(plan, room, prefill=prefill)
    send_in(sender, plan, [1, pages - 1])
    return receiver, sender


def middle(bench: Bench) -> tuple[AnyRoom, AnyRoom]:
    """A room whose writes are posted and do not land."""
    bench.world.writes_held = True
    rooms = start(bench)
    bench.settle()
    assert any(in_flight(bench.world))
    return rooms


def cut(bench: Bench, cause: CloseCause = CloseCause.TIMED_OUT) -> None:
    """Every connection ends; nobody knows why."""
    bench.decode._core.channel.cut(cause)


# -- a process that dies -----------------------------------------------------------------------------------------------


def test_prefill_killed_at_every_step() -> None:
    """EOF is proof: rooms that had a connection fail at once, and every range comes back, without a timer."""
    for seed in range(4):
        for moment in itertools.count():
            bench = Bench(seed, settings=SMALL, pages=8)
            receiver, _ = start(bench)
            going_on = bench.steps(moment)
            bench.world.kill("prefill-0")
            advertised = bench.decode.tables()["grants"] > 0
            bench.settle()
            if advertised:
                assert receiver.memory_free
                if receiver.poll() is not Status.DONE:
                    assert receiver.failure.reason is Reason.PEER_LOST
            elif not receiver.poll().terminal:  # nobody is known to be lost: it may still come, until the deadline
                bench.finish(receiver, timers=True)
                assert receiver.failure.reason is Reason.DEADLINE_BOOTSTRAP
                assert receiver.memory_free
                bench.pass_time(3)  # it was being looked for
            bench.held = [held for held in bench.held if held.side is not bench.prefills[0]]
            receiver.close()
            bench.settle()
            bench.prefills[0] = bench.add_prefill("prefill-0", seed)  # the same name comes back
            serve_another(bench) if advertised else None
            bench.check_clean()
            if not going_on:
                break


def test_decode_killed_at_every_step() -> None:
    for seed in range(4):
        for moment in itertools.count():
            bench = Bench(seed, settings=SMALL, decodes=2, pages=8)
            _, sender = start(bench)
            going_on = bench.steps(moment)
            bound = sender.phase != "METADATA"
            bench.world.kill("decode-0")
            bench.held = [held for held in bench.held if held.side is not bench.decodes[0]]
            bench.decodes[0] = bench.decodes.pop()
            bench.settle()
            if bound and sender.poll() is not Status.DONE:
                assert sender.failure.reason in (Reason.PEER_LOST, Reason.SEND_ERROR, Reason.TRANSPORT_ERROR)
            assert sender.memory_free == sender.poll().terminal
            sender.close()
            bench.settle()
            serve_another(bench)
            bench.check_clean()
            if not going_on:
                break


def check_parked_and_killed() -> None:
    bench = Bench(1, decodes=2)
    bench.receive(bench.plan(1))
    bench.settle()
    assert bench.prefill.tables()["parked"] == 1
    bench.world.kill("decode-0")
    bench.held.clear()
    bench.decodes[0] = bench.decodes.pop()
    bench.settle()
    bench.check_clean()
    serve_another(bench)


def test_what_a_killed_decode_had_parked_is_forgotten() -> None:
    check_parked_and_killed()


def test_a_killed_prefill_does_not_touch_the_rooms_of_another() -> None:
    for seed in range(10):
        bench = Bench(seed, settings=SMALL, prefills=2)
        lost, _ = start(bench, 1, prefill=0)
        kept, kept_sender = start(bench, 1 << 40, prefill=1)
        bench.run(lambda rooms=(lost, kept): all(room.phase != "METADATA" for room in rooms))
        bench.world.kill("prefill-0")
        bench.finish(lost, kept, kept_sender)
        assert kept.poll() is kept_sender.poll() is Status.DONE


# -- a process that stops and goes on ----------------------------------------------------------------------------------


def test_a_stalled_prefill_proves_nothing() -> None:
    """Rooms fail after the heartbeat; ranges wait until it goes on, reconnects and acknowledges."""
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        receiver, sender = middle(bench)
        bench.world.stall("prefill-0")
        bench.finish(receiver, timers=True)
        assert receiver.failure.reason is Reason.PEER_LOST
        assert 5 <= bench.world.now <= 7
        bench.pass_time(60)
        assert not receiver.memory_free
        bench.world.writes_held = False
        bench.pass_time(20)  # everything has landed, and nobody has said so
        assert not receiver.memory_free
        bench.world.stall("prefill-0", stalled=False)
        bench.until_free(receiver, sender)
        assert sender.failure.reason is Reason.PEER_LOST
        receiver.close()
        sender.close()
        bench.pass_time(10)
        serve_another(bench)
        bench.pass_time(3)
        bench.check_clean()


def test_a_stalled_decode_is_given_up_and_comes_back() -> None:
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        receiver, sender = middle(bench)
        bench.world.stall("decode-0")
        bench.finish(sender, timers=True)
        assert sender.failure.reason is Reason.PEER_LOST
        bench.pass_time(30)
        assert not sender.memory_free, "its writes have not settled"
        bench.world.stall("decode-0", stalled=False)
        bench.finish(receiver, timers=True)
        assert receiver.failure.reason is Reason.PEER_LOST
        bench.pass_time(30)
        assert not receiver.memory_free
        bench.world.writes_held = False
        bench.until_free(receiver, sender)
        receiver.close()
        sender.close()
        bench.settle()
        serve_another(bench)


# -- connections -------------------------------------------------------------------------------------------------------


def check_cut() -> None:
    for seed in range(10):
        bench = Bench(seed, settings=SMALL)
        serve_another(bench)
        receiver, sender = middle(bench)
        cut(bench)
        bench.settle()
        for room in (receiver, sender):
            assert room.failure.reason is Reason.PEER_LOST
            assert "timed out" in room.failure.detail
        bench.pass_time(30)
        assert not receiver.memory_free
        assert not sender.memory_free
        bench.world.writes_held = False
        bench.settle()  # they are connected again: the acknowledgement needs no timer any more
        assert receiver.memory_free
        assert sender.memory_free
        serve_another(bench)


def test_a_cut_connection_proves_nothing_and_is_made_again() -> None:
    check_cut()


def check_abort_after_reconnect() -> None:
    bench = Bench(3, prefills=2)
    hand = HandPrefill(bench)
    receiver = bench.receive(bench.plan(1), instance="hand")
    hand.join()
    receiver.abort()
    bench.run(lambda: hand.pong() or bench.world.now > 20, timers=True)  # the pauses between two ABORTs are 5 s now
    cut(bench)
    hand.frames.clear()
    bench.run(lambda: bool(hand.heard(wire.Hello)), timers=True)
    before = bench.world.now
    hand.join()
    assert hand.heard(wire.Abort)
    hand.say(wire.Ack(hand.heard(wire.Abort)[0].grant))
    bench.settle()
    assert receiver.memory_free
    assert bench.world.now == before


def test_an_abort_without_an_acknowledgement_is_repeated_at_once_on_a_new_connection() -> None:
    check_abort_after_reconnect()


@pytest.mark.parametrize("how", ["the network", "prefill slept", "decode slept"])
def test_after_an_idle_connection_has_ended_rooms_are_served_as_before(how: str) -> None:
    """Grant numbers go on where they were: prefill remembers which are over."""
    for seed in range(5):
        bench = Bench(seed)
        for room in range(4):
            serve_another(bench, room)
        if how == "the network":
            cut(bench)
        else:
            name = "prefill-0" if how == "prefill slept" else "decode-0"
            bench.world.stall(name)
            bench.pass_time(20)
            bench.world.stall(name, stalled=False)
        bench.settle()
        assert bench.decode.tables()["links"] == 0
        for room in range(6):
            serve_another(bench, room)
        bench.check_clean()


def test_a_connection_that_is_replaced_is_no_death() -> None:
    """The same incarnation connects a second time: its rooms fail, its grants are void, and it is served again."""
    bench = Bench(1)
    hand = HandDecode(bench).join()
    plan = bench.plan(2)
    sender = bench.offer(plan)
    hand.say(hand.metadata(1))
    bench.settle()
    old = hand.connections[-1]
    hand.join()
    assert sender.failure.reason is Reason.PEER_LOST
    assert wire.Goodbye(()) in hand.heard() or wire.Goodbye((1,)) in hand.heard()
    assert [c.connection for c in hand.closed] == [old]
    hand.say(hand.metadata(1))
    hand.say(wire.Abort(1, Reason.PEER_ABORTED, "", False))
    sender.close()
    bench.settle()
    assert [r.grant for r in hand.heard(wire.Reject)] == [1]
    assert wire.Ack(1) in hand.heard()
    again = bench.offer(plan)
    send_in(again, plan, [2])
    hand.say(hand.metadata(2))
    bench.finish(again)
    assert again.poll() is Status.DONE


@pytest.mark.parametrize("together", [True, False])
def test_two_ways_to_name_one_prefill_engine_share_a_connection(together: bool) -> None:
    """By name, or as the only one its registry knows: neither may push the other's connection out."""
    for seed in range(20):
        bench = Bench(seed, settings=SMALL)
        plans = [bench.plan(2) for _ in range(6)]
        rooms: list[AnyRoom] = []
        for n, plan in enumerate(plans):
            rooms.append(bench.receive(plan, n, instance="prefill-0" if n % 2 else ""))
            if not together:
                bench.settle()
            rooms.append(bench.offer(plan, n))
            send_in(rooms[-1], plan, [1, 1])
        bench.finish(*rooms)
        assert {room.poll() for room in rooms} == {Status.DONE}, [str(room.failure) for room in rooms]
        assert bench.prefill.tables()["links"] == bench.decode.tables()["links"] == 1
        for room in rooms:
            room.close()
        bench.settle()
        bench.check_clean()
        cut(bench)
        bench.settle()
        for name, tables in (("links", bench.decode.tables()), ("targets", bench.decode.tables())):
            assert tables[name] == 0
        serve_another(bench)


def test_a_prefill_engine_that_says_goodbye_without_an_end_is_no_death() -> None:
    """GOODBYE lists what is undrained; what it does not list is acknowledged, and the end after it proves nothing."""
    bench = Bench(2, prefills=2)
    hand = HandPrefill(bench)
    plans = [bench.plan(1) for _ in range(3)]
    rooms = [bench.receive(plan, n, instance="hand") for n, plan in enumerate(plans)]
    hand.join()
    assert [m.grant for m in hand.heard(wire.Metadata)] == [1, 2, 3]
    hand.say(wire.Goodbye((2,)))
    bench.finish(*rooms)
    assert {room.failure.reason for room in rooms} == {Reason.PEER_LOST}
    assert [room.memory_free for room in rooms] == [True, False, True]
    hand.channel.close(hand.connections[-1])
    bench.pass_time(30)
    assert [room.memory_free for room in rooms] == [True, False, True]
    hand.join()  # it was looked for all the time, because of the one grant
    assert hand.heard(wire.Abort)[-1].grant == 2
    hand.say(wire.Ack(2))
    bench.settle()
    assert rooms[1].memory_free
