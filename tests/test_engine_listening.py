"""Decode looks at its transport as long as anything may be written to it, whether the room of it goes on or not.

Seen with UCX over shared memory: a write under way does not settle at its writer until its target polls. Decode that
stops to poll when its last room has failed would wait for ever for prefill's acknowledgement, and so for its memory.
"""

from __future__ import annotations

import pytest
from engine_bench import Bench, in_flight, send_in
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine import decode_core
from kvrooms.engine.settings import EngineSettings


def aborted(seed: int) -> tuple[Bench, list[int]]:
    """A room aborted by decode while writes to it stand still; and how often decode has looked at its transport."""
    bench = Bench(seed, settings=EngineSettings(piece_bytes=32))
    bench.world.writes_held = True
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [1, 2])
    bench.settle()
    assert any(in_flight(bench.world))
    looks = [0]
    transport = bench.decode._core.transport
    arrivals = transport.arrivals

    def look():
        looks[0] += 1
        return arrivals()

    transport.arrivals = look
    receiver.abort()
    bench.settle()
    assert receiver.poll() is sender.poll() is Status.FAILED
    assert not receiver.memory_free
    return bench, looks


def check_listening() -> None:
    for seed in range(3):
        bench, looks = aborted(seed)
        core = bench.decode._core
        before = looks[0]
        core.turn()
        assert core.listening, "its thread would sleep for long"
        assert looks[0] == before + 1, "it does not look"
        bench.world.writes_held = False
        bench.settle()
        assert bench.decode.tables()["grants"] == 0
        before = looks[0]
        core.turn()
        assert not core.listening
        assert looks[0] == before


def test_decode_looks_at_its_transport_until_a_failed_rooms_memory_is_free() -> None:
    check_listening()


@named(
    [
        Mutant(decode_core.DecodeCore, "_take_in", "self.listening", "self._by_token"),
        Mutant(decode_core.DecodeCore, "_take_in", "self.listening", "True"),
    ]
)
def test_a_mutant_that_looks_for_open_rooms_only_or_always_dies(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)
    dies(check_listening)
