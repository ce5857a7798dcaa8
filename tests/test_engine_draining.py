"""Draining: no new rooms, open ones end or are aborted, and who waits in vain is told at once."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, send_in
from mutants import Mutant, dies, named

from kvrooms import EngineClosed, Status
from kvrooms.engine.host import Drained, Engine
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.protocol.failure import Reason

AGES = 1e6
"""More patience than anything here needs."""


def room(bench: Bench, number: int) -> tuple[Any, Any, Any]:
    plan = bench.plan(2)
    return plan, bench.receive(plan, number), bench.offer(plan, number)


def drains_check(side: str) -> None:
    """What is sent ends well, what is not is aborted, and nothing new is opened."""
    bench = Bench(1)
    engine = getattr(bench, side)
    plan, *well = room(bench, 1)
    _, *stuck = room(bench, 2)
    send_in(well[1], plan, [2])
    said = engine.drain(AGES)
    mine = stuck[side == "prefill"]
    assert said == Drained(1, 1, (said.aborted[0],), 0)
    assert "room 2" in said.aborted[0]
    assert mine.failure.detail == "the engine was drained"
    assert well[0].poll() is well[1].poll() is Status.DONE
    bench.finish(*stuck)
    assert all(one.failure.retryable for one in stuck), "another engine may take it"
    with pytest.raises(EngineClosed, match="takes no new rooms"):
        bench.receive(plan, 3) if side == "decode" else bench.offer(plan, 3)


@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_open_rooms_end_and_the_rest_is_aborted(side: str) -> None:
    drains_check(side)


def test_without_any_time_everything_is_aborted_and_the_memory_is_told() -> None:
    bench = Bench(2)
    plan, receiver, sender = room(bench, 1)
    bench.settle()
    bench.world.writes_held = True
    send_in(sender, plan, [2])
    bench.settle()
    said = bench.decode.drain(0.0)
    assert (said.done, said.failed, said.held) == (0, 1, 1), "a write of it may still land"
    assert not receiver.memory_free
    bench.world.writes_held = False
    bench.until_free(receiver, sender)


@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_those_that_had_to_be_aborted_are_told_oldest_first(side: str) -> None:
    bench = Bench(2)
    for number in (5, 3, 8, 1, 7, 2):
        plan = bench.plan(1)
        bench.receive(plan, number) if side == "decode" else bench.offer(plan, number)
    said = getattr(bench, side).drain(0.0)
    assert [int(one.split("room ")[1].split()[0]) for one in said.aborted] == [5, 3, 8, 1, 7, 2]


def refuses_check() -> None:
    """A grant that waits for a room, and one that comes later, are refused without a timer."""
    bench = Bench(3)
    early = bench.receive(bench.plan(1), 1)
    bench.settle()
    assert bench.prefill.tables()["parked"] == 1
    bench.prefill.drain(0.0)
    late = bench.receive(bench.plan(1), 2)
    bench.finish(early, late)
    for one in (early, late):
        assert (one.failure.reason, one.failure.origin) == (Reason.REFUSED, "peer")
        assert one.failure.retryable
    bench.settle()
    assert bench.prefill.tables()["parked"] == 0
    assert early.memory_free
    assert late.memory_free


def test_who_waits_for_a_room_that_will_not_be_opened_is_told() -> None:
    refuses_check()


@named([
    Mutant(PrefillCore, "drain", "for writer in self._parked.all():", "for writer in ():"),
    Mutant(PrefillGrants, "_park", "or self.draining", ""),
    Mutant(Engine, "drain", 'room.abort("the engine was drained", again=True)', "pass"),
    Mutant(Engine, "drain", "held = sum(", "held = 0 * sum("),
])  # fmt: skip
def test_the_checks_of_draining_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def checks() -> None:
        drains_check("decode")
        refuses_check()
        test_without_any_time_everything_is_aborted_and_the_memory_is_told()

    dies(checks)
