"""close() with rooms open: they end, both sides know, and what may still be written is not handed back."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, Plan
from test_engine_losses import SMALL, cut, middle, start

from kvrooms import DecodeEngine, EngineClosed, Status
from kvrooms.protocol.failure import Reason


def test_closing_prefill_ends_its_rooms_and_acknowledges_everything() -> None:
    for seed in range(10):
        for moment in range(0, 60, 7):
            bench = Bench(seed, settings=SMALL, pages=8)
            receiver, sender = start(bench)
            unsent = bench.offer(Plan({"kv": [], "aux": []}, {"kv": [], "aux": []}, 0, {}), 8, aux_index=None)
            bench.steps(moment)
            bench.prefill.close()
            assert unsent.failure.reason is Reason.SHUTDOWN
            assert sender.poll().terminal
            advertised = receiver.phase != "METADATA"
            bench.settle()
            if advertised:
                assert receiver.poll().terminal
                assert receiver.memory_free
            for room in (receiver, sender, unsent):
                room.close()
            with pytest.raises(EngineClosed, match="prefill-0 is closed"):
                bench.prefill.open(9)
            bench.prefill.close()


def test_closing_prefill_with_writes_that_do_not_settle_says_so() -> None:
    """The limit passes; GOODBYE lists the grant, and its range is not handed back: the writes may still land."""
    bench = Bench(3, settings=SMALL)
    receiver, sender = middle(bench)
    late = bench.receive(bench.plan(1), 8)
    before = bench.world.now
    bench.prefill.close(timeout=4)
    assert bench.world.now - before >= 4
    bench.settle()
    assert sender.failure.reason is Reason.SHUTDOWN
    assert late.failure is not None
    assert late.memory_free
    assert receiver.failure.reason is Reason.SHUTDOWN
    assert not receiver.memory_free
    bench.pass_time(60)
    assert not receiver.memory_free
    assert not sender.memory_free


def test_closing_decode_ends_its_rooms_and_waits_for_acknowledgements() -> None:
    for seed in range(10):
        for moment in range(0, 60, 7):
            bench = Bench(seed, settings=SMALL, pages=8)
            receiver, sender = start(bench)
            bench.steps(moment)
            bound = sender.phase not in ("METADATA", "DONE")
            bench.decode.close()
            assert receiver.memory_free
            assert bench.world.now == 0
            if receiver.poll() is Status.FAILED:
                assert receiver.failure.reason is Reason.SHUTDOWN
            bench.settle()
            if bound:
                assert sender.poll().terminal
            with pytest.raises(EngineClosed, match="decode-0 is closed"):
                bench.decode.open(9, bootstrap=bench.prefill.bootstrap)
            sender.close()
            bench.settle()
            tables: dict[str, Any] = bench.prefill.tables()
            assert not any(n for name, n in tables.items() if name not in ("void", "peers"))


def test_closing_decode_without_a_connection_makes_one_to_be_acknowledged() -> None:
    bench = Bench(4, settings=SMALL)
    receiver, _ = middle(bench)
    cut(bench)
    bench.world.writes_held = False
    bench.decode.close()
    assert receiver.memory_free
    assert bench.world.now < 5


def test_two_decode_engines_one_closes_the_other_does_not_notice() -> None:
    bench = Bench(5, settings=SMALL, decodes=2)
    lost, _ = start(bench, 1, decode=0)
    kept, kept_sender = start(bench, 2, decode=1)
    bench.steps(25)
    other: DecodeEngine = bench.decodes[0].engine
    other.close()
    bench.finish(lost, kept, kept_sender)
    assert kept.poll() is kept_sender.poll() is Status.DONE
