"""Holds: while decode queues, prefill keeps what it has computed; when it does not, decode is told."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, send_in, serve_another
from mutants import Mutant, dies, named

from kvrooms import InvalidArgument, Status
from kvrooms.engine import holds
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ports import SimChannel
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
])  # fmt: skip
def test_the_checks_of_holds_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def both() -> None:
        check_kept(0)
        check_lost(0)

    dies(both)
