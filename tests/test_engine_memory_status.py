"""The answer to an abort: what may be done with the memory, and why."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, send_in

from kvrooms.transport.ports import CloseCause

NEVER = "free: it was never advertised to anybody"
LANDED = "free: all of it has landed"
PROMISED = "free: the writer has promised that it writes no more"
GONE = "free: the writer's process is gone"
FENCED = "free: the orchestrator has said that the writer was fenced"
NOTHING = "free: no write of it is posted, and none will be"


def started(seed: int = 1) -> tuple[Bench, Any, Any]:
    bench = Bench(seed)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    return bench, receiver, sender


def status(room: Any) -> tuple[bool, str]:
    return tuple(room.memory_status)


def test_before_anything_was_advertised() -> None:
    bench = Bench(1, prefills=0)
    receiver = bench.decode.open(7, bootstrap="http://world:1", pages=[1])
    assert status(receiver) == (False, "held: the room has not ended")
    receiver.abort()
    bench.settle()
    assert status(receiver) == (True, NEVER)


def test_after_the_end_the_answer_is_that_of_the_end() -> None:
    bench = Bench(2)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [2])
    bench.settle()
    assert tuple(receiver.abort()) == (True, LANDED)
    assert tuple(sender.abort()) == (True, NOTHING)


def test_an_abort_that_is_acknowledged() -> None:
    bench, receiver, sender = started()
    under_way = (False, "held: the abort is under way; ask memory_status again")
    assert tuple(receiver.abort()) == under_way  # nothing blocks
    assert status(receiver) == under_way
    bench.settle()
    assert status(receiver) == (True, PROMISED)
    assert status(sender) == (True, NOTHING)


def test_a_writer_that_stands_still_and_is_fenced() -> None:
    bench, receiver, _ = started()
    bench.world.stall("prefill-0")
    receiver.abort()
    bench.settle()
    free, why = status(receiver)
    assert not free
    assert "until the writer acknowledges the abort" in why
    bench.prefills[0].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.settle()
    assert not receiver.memory_free
    bench.decode.peer_fenced("prefill-0")
    bench.settle()
    assert status(receiver) == (True, FENCED)


def test_a_writer_that_dies() -> None:
    bench, receiver, _ = started()
    bench.world.kill("prefill-0")
    bench.settle()
    assert status(receiver) == (True, GONE)


def test_writes_that_have_not_settled() -> None:
    bench = Bench(5)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    bench.world.writes_held = True
    send_in(sender, plan, [2])
    bench.settle()
    sender.abort()
    bench.settle()
    assert status(sender) == (False, "held: posted writes that read it have not settled")
    bench.world.writes_held = False
    bench.until_free(receiver, sender)
    assert status(sender) == (True, NOTHING)


@pytest.mark.parametrize("side", [0, 1])
def test_an_abort_is_idempotent(side: int) -> None:
    bench, *rooms = started()
    for _ in range(3):
        rooms[side].abort("the first cause")
    bench.settle()
    rooms[side].abort("a later one")
    bench.settle()
    assert rooms[side].failure.detail == "the first cause"
