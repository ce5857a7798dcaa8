"""Grants: which are over, which wait for their room, and that remembering them takes no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_bench import UNTOUCHED, Bench, Shape, send_in
from engine_peers import HandDecode

from kvrooms import Status
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import wire
from kvrooms.protocol.errors import UncertainWrite
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Manifest

# -- grants that are over ----------------------------------------------------------------------------------------------


def untouched(hand: HandDecode) -> bool:
    """Whether nothing was ever written to the hand's memory."""
    return all(bool((buffer == UNTOUCHED).all()) for buffers in hand.pool.parts.values() for buffer in buffers)


def offered(bench: Bench) -> PrefillRoom:
    """A room that has sent all that the hand's METADATA wants."""
    plan = bench.plan(2)
    sender = bench.offer(plan)
    send_in(sender, plan, [2])
    return sender


def check_refused(bench: Bench, hand: HandDecode, **changes: Any) -> None:
    """A METADATA with grant 1 is refused, nothing is written, and the room stays as it was."""
    before = len(hand.heard(wire.Reject))
    hand.say(hand.metadata(1, **changes))
    bench.settle()
    rejections = hand.heard(wire.Reject)[before:]
    assert [(r.grant, r.reason) for r in rejections] == [(1, Reason.REFUSED)]


def check_metadata_after_its_abort(*, abort_first: bool) -> None:
    bench = Bench(1)
    hand = HandDecode(bench).join()
    if not abort_first:
        hand.say(hand.metadata(1))
    hand.say(wire.Abort(1, Reason.PEER_ABORTED, "", False))
    bench.settle()
    assert hand.heard(wire.Ack) == [wire.Ack(1)]
    sender = offered(bench)
    check_refused(bench, hand)
    hand.say(wire.Abort(1, Reason.PEER_ABORTED, "", False))
    bench.settle()
    assert hand.heard(wire.Ack) == [wire.Ack(1)] * 2, "acknowledging is idempotent"
    assert sender.poll() is Status.BOOTSTRAPPING
    assert untouched(hand)


@pytest.mark.parametrize("abort_first", [True, False], ids=["overtaken", "repeated"])
def test_a_metadata_after_its_own_acknowledgement_is_refused(abort_first: bool) -> None:
    check_metadata_after_its_abort(abort_first=abort_first)


def check_metadata_below_the_floor() -> None:
    bench = Bench(2)
    hand = HandDecode(bench).join()
    sender = offered(bench)
    hand.say(wire.Ping(1), floor=2)
    check_refused(bench, hand)
    assert sender.poll() is Status.BOOTSTRAPPING
    assert untouched(hand)


def test_a_metadata_below_the_floor_is_refused() -> None:
    check_metadata_below_the_floor()


def check_metadata_after_done() -> None:
    bench = Bench(3)
    hand = HandDecode(bench).join()
    sender = offered(bench)
    hand.say(hand.metadata(1))
    bench.finish(sender)
    assert sender.poll() is Status.DONE
    for buffers in hand.pool.parts.values():
        for buffer in buffers:
            buffer[:] = UNTOUCHED
    sender.close()
    bench.settle()
    again = offered(bench)
    check_refused(bench, hand)
    assert again.poll() is Status.BOOTSTRAPPING
    assert untouched(hand)


def test_a_metadata_repeated_after_done_is_refused_also_by_the_next_room_of_that_number() -> None:
    check_metadata_after_done()


def test_a_metadata_repeated_while_it_is_bound_is_ignored_and_counted() -> None:
    bench = Bench(4)
    hand = HandDecode(bench).join()
    plan = bench.plan(2)
    sender = bench.offer(plan)
    hand.say(hand.metadata(1), hand.metadata(1), hand.metadata(1, pages=b"nonsense"))
    bench.settle()
    assert not hand.heard(wire.Reject)
    assert hand.heard(wire.Accept) == [wire.Accept(1)]
    assert bench.prefill.counters()["grants repeated"] == 2
    send_in(sender, plan, [2])
    bench.finish(sender)
    assert sender.poll() is Status.DONE


def check_metadata_repeated_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(4)
    hand = HandDecode(bench).join()
    offered(bench)

    def fails(*_: object) -> None:
        raise UncertainWrite("some of it may be under way")

    monkeypatch.setattr(bench.prefill._core.transport, "post", fails)
    hand.say(hand.metadata(1))
    bench.settle()
    assert [f.grant for f in hand.heard(wire.Failed)] == [1]
    hand.say(hand.metadata(1), wire.Abort(1, Reason.PEER_ABORTED, "", False))
    bench.settle()
    assert not hand.heard(wire.Reject), "a refusal is an acknowledgement, and the failed write may still land"
    assert not hand.heard(wire.Ack)


def test_a_metadata_repeated_for_a_grant_in_doubt_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_metadata_repeated_in_doubt(monkeypatch)


def test_a_second_metadata_for_a_room_ends_the_first_and_waits_for_the_next_life() -> None:
    bench = Bench(5)
    hand = HandDecode(bench).join()
    plan = bench.plan(2)
    sender = bench.offer(plan)
    hand.say(hand.metadata(1))
    bench.settle()
    hand.say(hand.metadata(2))
    bench.finish(sender)
    assert sender.failure is not None
    assert sender.failure.reason is Reason.SUPERSEDED
    bench.settle()
    assert [f.grant for f in hand.heard(wire.Failed)] == [1]
    assert hand.heard(wire.Ack) == [wire.Ack(1)]
    sender.close()
    bench.settle()
    again = offered(bench)
    bench.finish(again)
    assert again.poll() is Status.DONE
    assert [a.grant for a in hand.heard(wire.Accept)] == [1, 2]


def test_a_second_metadata_does_not_end_a_room_that_only_has_to_settle() -> None:
    """Decode has everything, is DONE, and uses the number again, before prefill has heard that its writes are over."""
    bench = Bench(5)
    hand = HandDecode(bench).join()
    bench.world.writes_held = True
    sender = offered(bench)
    hand.say(hand.metadata(1))
    bench.settle()
    hand.say(hand.metadata(2))
    bench.settle()
    assert not sender.poll().terminal
    bench.world.writes_held = False
    bench.finish(sender)
    assert sender.poll() is Status.DONE
    sender.close()
    bench.settle()
    again = offered(bench)
    bench.finish(again)
    assert again.poll() is Status.DONE
    assert [a.grant for a in hand.heard(wire.Accept)] == [1, 2]


def test_an_older_metadata_that_comes_late_does_not_end_a_newer_one() -> None:
    bench = Bench(6)
    hand = HandDecode(bench).join()
    sender = bench.offer(bench.plan(2))
    hand.say(hand.metadata(2), hand.metadata(1))
    bench.settle()
    assert sender.poll() is Status.WAITING
    assert [r.grant for r in hand.heard(wire.Reject)] == [1]
    hand.say(hand.metadata(4, room=8), hand.metadata(3, room=8))  # the same where the room is not open yet
    bench.settle()
    assert [r.grant for r in hand.heard(wire.Reject)] == [1, 3]
    assert bench.prefill.tables()["parked"] == 1


# -- METADATA for rooms that are not open ------------------------------------------------------------------------------


def test_a_parked_metadata_expires_and_its_sender_is_told() -> None:
    bench = Bench(10, settings=EngineSettings(parked_ttl_s=10))
    receiver = bench.receive(bench.plan(1))
    bench.settle()
    assert bench.prefill.tables()["parked"] == 1
    bench.finish(receiver, timers=True)
    assert receiver.failure is not None
    assert (receiver.failure.reason, receiver.failure.origin) == (Reason.REFUSED, "peer")
    assert "room 7 was not opened here within 10" in receiver.failure.detail
    assert receiver.failure.retryable
    assert bench.world.now == pytest.approx(10, abs=0.1)
    assert receiver.memory_free
    receiver.close()
    bench.settle()
    bench.check_clean()


@pytest.mark.parametrize(("per_peer", "total"), [(3, 100), (3, 5)])
def test_too_many_parked_are_refused_at_once_and_those_that_wait_are_kept(per_peer: int, total: int) -> None:
    bench = Bench(11, decodes=2, settings=EngineSettings(parked_per_peer=per_peer, parked_total=total))
    rooms = {n: bench.receive(bench.plan(1, decode=n % 2), n, decode=n % 2) for n in range(8)}
    bench.settle()
    kept = [n for n, room in rooms.items() if not room.poll().terminal]
    assert len(kept) == min(2 * per_peer, total) == bench.prefill.tables()["parked"]
    for n in set(rooms) - set(kept):
        failure = rooms[n].failure
        assert failure is not None
        assert failure.reason is Reason.REFUSED
        assert f"room {n} is not open here, and too many such grants wait already" in failure.detail
        assert rooms[n].memory_free
    held = {h.room: h.plan for h in bench.held}
    for n in kept:
        sender = bench.offer(held[rooms[n]], n)
        send_in(sender, held[rooms[n]], [1])
        bench.finish(sender, rooms[n])
        assert rooms[n].poll() is Status.DONE
    assert bench.world.now == 0


def check_parked_places() -> None:
    bench = Bench(14, settings=EngineSettings(parked_per_peer=2, parked_total=2))
    for room in range(6):
        plan = bench.plan(1)
        receiver = bench.receive(plan, room)
        bench.settle()
        sender = bench.offer(plan, room)
        send_in(sender, plan, [1])
        bench.finish(receiver, sender)
        assert receiver.poll() is Status.DONE, receiver.failure
        receiver.close()
        sender.close()
        bench.settle()


def test_a_parked_place_is_given_back_when_its_room_opens() -> None:
    check_parked_places()


# -- what prefill remembers --------------------------------------------------------------------------------------------


def test_grants_that_are_over_take_no_memory_while_one_room_stays_open() -> None:
    bench = Bench(12, Shape(layers=1), pages=6, slots=6)
    longest = bench.plan(1)
    long_lived, _ = bench.receive(longest, 10_000), bench.offer(longest, 10_000)
    most = 0
    for room in range(600):
        plan = bench.plan(1)
        receiver, sender = bench.receive(plan, room), bench.offer(plan, room)
        if room % 3:
            sender.send(plan.source["kv"], last=True)
        else:
            receiver.abort()
        bench.finish(receiver)
        receiver.close()
        sender.close()
        bench.settle()
        most = max(most, bench.prefill.tables()["void"])
        assert bench.decode.tables()["grants"] == 1
    assert most <= 2
    assert not long_lived.poll().terminal


def test_a_manifest_from_a_hand_pairs_positions_with_gaps() -> None:
    """What decode holds already need not be a prefix on the wire: positions [0, 1) and [2, 4) of five pages."""
    bench = Bench(13)
    hand = HandDecode(bench).join()
    plan = bench.plan(5)
    sender = bench.offer(plan)
    manifest = Manifest(5, ((0, 1), (2, 4)), ("token", "logprob"), ())
    hand.say(hand.metadata(1, manifest=manifest, pages=np.array([9, 4, 1], "<i4").tobytes()))
    send_in(sender, plan, [1, 2, 2])
    bench.finish(sender)
    assert sender.poll() is Status.DONE
    for value, found in zip(plan.values["kv"], hand.pool.read("kv", [9, 4, 1]), strict=True):
        np.testing.assert_array_equal(found, value[[0, 2, 3]])
    for buffer in hand.pool.parts["kv"]:
        assert (np.delete(buffer, [9, 4, 1], axis=0) == UNTOUCHED).all()
