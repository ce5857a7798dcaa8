"""Holds: while decode queues, prefill keeps what it has computed; when it does not, decode is told."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, send_in, serve_another
from engine_peers import HandDecode
from mutants import Mutant, dies, named

from kvrooms import InvalidArgument, RoomFailed, Status
from kvrooms.engine import holds
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ports import SimChannel
from kvrooms.harness.simulate.blocking import let_wait
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason
from kvrooms.transport.ports import CloseCause

SHORT = EngineSettings(queued_timeout_s=20, hold_renew_s=5)


def computed(bench: Bench, plan: Any) -> Any:
    """A room that prefill has computed and that nobody has asked for."""
    sender = bench.offer(plan)
    send_in(sender, plan, [plan.pages])
    return sender


def hold(bench: Bench, room: int = 7) -> Any:
    return bench.decode.hold(room, bootstrap=bench.prefill.bootstrap)


def check_kept(seed: int) -> None:
    """A room is kept for much longer than prefill waits by itself, and then served."""
    bench = Bench(seed, settings=SHORT)
    plan = bench.plan(3)
    sender, held = computed(bench, plan), hold(bench)
    bench.pass_time(95)
    assert not sender.poll().terminal
    assert held.lost is None
    receiver = bench.receive(plan)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE
    for room in (receiver, sender):
        room.close()
    bench.settle()
    assert bench.decode.tables()["holds"] == 0
    bench.check_clean()


@pytest.mark.parametrize("seed", range(4))
def test_a_room_is_kept_while_decode_queues(seed: int) -> None:
    check_kept(seed)


def check_lost(seed: int) -> None:
    """What prefill has given up is told to who holds it, and to who asks for it."""
    bench = Bench(seed, settings=SHORT)
    plan = bench.plan(2)
    sender, held = computed(bench, plan), hold(bench)
    bench.pass_time(8)
    sender.abort("evicted")
    bench.run(lambda: held.lost is not None, timers=True)
    assert (held.lost.reason, held.lost.origin, held.lost.detail) == (Reason.PEER_ABORTED, "peer", "evicted")
    assert bench.decode.tables()["holds"] == 0
    receiver = bench.receive(plan)
    bench.finish(receiver)
    assert receiver.failure.reason is Reason.PEER_ABORTED
    bench.settle()
    serve_another(bench)


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_room_is_told(seed: int) -> None:
    check_lost(seed)


def check_told_before_close(seed: int) -> None:
    """Whoever reads a failure closes its room: who holds it is told in the step in which it fails, without a timer."""
    bench = Bench(seed, decodes=2, settings=SHORT)
    sender = computed(bench, bench.plan(2))
    held = [side.engine.hold(7, bootstrap=bench.prefill.bootstrap) for side in bench.decodes]
    bench.settle()
    assert bench.prefill.tables()["holders"] == 2
    sender.abort("evicted")
    let_wait(sender, bench.world)
    sender.wait()
    with pytest.raises(RoomFailed):
        sender.failure_exception()
    bench.settle()
    for one in held:
        assert one.lost is not None
        assert (one.lost.reason, one.lost.origin, one.lost.detail) == (Reason.PEER_ABORTED, "peer", "evicted")
    assert bench.prefill.tables()["holders"] == 0
    bench.decode.release(held[0])
    check_next_life(bench, sender)


def check_next_life(bench: Bench, before: Any) -> None:
    """Nothing is remembered of a room that was closed: its number may be used again, and is held anew."""
    assert bench.prefill.tables()["rooms"] == 0, before
    plan = bench.plan(2)
    sender, held = computed(bench, plan), hold(bench)
    bench.pass_time(12)
    assert held.lost is None
    receiver = bench.receive(plan)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE


@pytest.mark.parametrize("seed", range(4))
def test_who_holds_a_room_is_told_before_it_is_closed(seed: int) -> None:
    check_told_before_close(seed)


def test_a_deadline_that_ends_a_room_is_told_to_who_holds_it() -> None:
    bench = Bench(1, settings=EngineSettings(queued_timeout_s=20, hold_renew_s=30))
    sender, held = computed(bench, bench.plan(2)), hold(bench)
    bench.finish(sender, timers=True)
    sender.close()
    bench.settle()
    assert held.lost.reason is Reason.DEADLINE_BOOTSTRAP


def check_asked_for(seed: int) -> None:
    """Who has asked for the room is told by its grant, once."""
    bench = Bench(seed)
    hand, sender = HandDecode(bench).join(), bench.offer(bench.plan(2))
    hand.say(wire.Hold(7, 0), hand.metadata(1), wire.Hold(7, 0))
    bench.settle()
    assert bench.prefill.tables()["holders"] == 0
    sender.abort()
    bench.settle()
    assert len(hand.heard(wire.Failed)) == 1
    assert not hand.heard(wire.HoldLost)


def test_who_has_asked_for_a_room_holds_it_no_more() -> None:
    check_asked_for(1)


def check_connection_lost(seed: int) -> None:
    """A peer without a connection holds nothing; back again it says anew what it holds, and is told."""
    bench = Bench(seed, settings=SHORT)
    sender, held = computed(bench, bench.plan(2)), hold(bench)
    bench.settle()
    channel = bench.prefill._core.channel
    assert isinstance(channel, SimChannel)
    channel.cut(CloseCause.TIMED_OUT)
    bench.run(lambda: not bench.prefill.tables()["holders"], timers=True)
    assert not sender.poll().terminal
    sender.abort("evicted")
    bench.run(lambda: held.lost is not None, timers=True)


def test_a_peer_without_a_connection_holds_nothing_until_it_is_back() -> None:
    check_connection_lost(1)


def test_without_a_hold_the_room_ends_and_who_asks_later_is_told() -> None:
    bench = Bench(1, settings=SHORT)
    plan = bench.plan(2)
    sender = computed(bench, plan)
    bench.finish(sender, timers=True)
    assert sender.failure.reason is Reason.DEADLINE_BOOTSTRAP
    receiver = bench.receive(plan)
    bench.finish(receiver)
    assert receiver.failure.reason is Reason.DEADLINE_BOOTSTRAP
    assert receiver.failure.origin == "peer"


def test_a_hold_that_is_released_is_not_renewed() -> None:
    bench = Bench(2, settings=SHORT)
    sender, held = computed(bench, bench.plan(1)), hold(bench)
    bench.pass_time(30)
    bench.decode.release(held)
    bench.decode.release(held)
    bench.settle()
    start = bench.world.now
    bench.finish(sender, timers=True)
    assert bench.world.now - start < 21
    assert bench.decode.tables()["holds"] == 0


def test_a_hold_finds_a_prefill_engine_that_comes_late_and_survives_a_cut() -> None:
    bench = Bench(3, prefills=0, settings=SHORT)
    held = bench.decode.hold(7, bootstrap="http://world:1")
    bench.pass_time(12)
    bench.prefills.append(bench.add_prefill("late"))
    sender = computed(bench, bench.plan(1))
    bench.pass_time(50)
    assert not sender.poll().terminal
    channel = bench.prefill._core.channel
    assert isinstance(channel, SimChannel)
    channel.cut(CloseCause.TIMED_OUT)
    bench.pass_time(50)
    assert not sender.poll().terminal
    bench.decode.release(held)
    bench.finish(sender, timers=True)


def test_the_same_room_is_held_once() -> None:
    bench = Bench(4)
    hold(bench)
    with pytest.raises(InvalidArgument, match="held already"):
        hold(bench)


@named([
    Mutant(holds.DecodeHolds, "_renew", "self.settings.hold_renew_s", "1e6"),
    Mutant(holds.DecodeHolds, "release", "self._timers.disarm(hold, Alarm.HOLD)", "pass"),
    Mutant(holds.DecodeHolds, "_hold_lost", "self.release(hold)", "pass"),
    Mutant(PrefillGrants, "_hold", "self._step(record, Held())", "pass"),
    Mutant(PrefillGrants, "_hold", "record.failure is not None", "False"),
    Mutant(PrefillGrants, "_hold", "writer.peer is peer", "False"),
    Mutant(PrefillGrants, "_bind", "record.holders.pop(writer.peer, None)", "pass"),
    Mutant(PrefillCore, "_tell_failed", "self._tell_holders(record, failure)", "pass"),
    Mutant(PrefillCore, "_void_all", "self._forget_holder(peer)", "pass"),
])  # fmt: skip
def test_the_checks_of_holds_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def all_of_them() -> None:
        check_kept(0)
        check_lost(0)
        check_told_before_close(0)
        check_asked_for(0)
        check_connection_lost(0)

    dies(all_of_them)
