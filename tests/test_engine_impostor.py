"""Who answers at the address of a prefill engine must be the one that the registry named, and nobody else's voice."""

from __future__ import annotations

import msgspec
import pytest
from engine_bench import Bench
from engine_peers import BOOTSTRAP, HandPrefill
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine.decode_links import DecodeLinks
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason

LIES = {
    "accept": lambda number: wire.Accept(number),
    "ack": lambda number: wire.Ack(number),
    "failed": lambda number: wire.Failed(number, Reason.ABORTED, "x", False),
    "reject": lambda number: wire.Reject(number, Reason.REFUSED, "x", True),
    "goodbye": lambda number: wire.Goodbye(()),
}


def check_impostor(lie: str) -> None:
    """A false engine welcomes decode in the name of one that decode is connected to, and speaks of its rooms."""
    bench = Bench(4, prefills=2)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan, 7), bench.offer(plan, 7)
    sender.send(plan.source["kv"][:1])
    bench.settle()
    honest = bench.prefill._core.incarnation
    hand = HandPrefill(bench)
    lured = bench.receive(bench.plan(1), 8, instance="hand", cap_timeout_s=30)
    bench.settle()
    hand.heard(wire.Hello)
    hand.say(hand.welcome(), source=honest)
    hand.say(*(LIES[lie](number) for number in (1, 2, 3)), source=honest)
    bench.settle()
    assert not receiver.poll().terminal, receiver.failure
    sender.send(plan.source["kv"][1:], last=True)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    bench.check_bytes()
    assert not lured.poll().terminal
    assert bench.decode.counters()["connections dropped: not the engine that the registry named"] >= 1


@pytest.mark.parametrize("lie", LIES)
def test_an_engine_that_welcomes_in_the_name_of_another_is_not_listened_to(lie: str) -> None:
    check_impostor(lie)


def test_the_engine_that_took_the_address_over_is_found_once_the_registry_knows_it() -> None:
    bench = Bench(5)
    hand = HandPrefill(bench)
    room = bench.receive(bench.plan(1), 8, instance="hand", bootstrap_timeout_s=60)
    stale = bench.world.registry[BOOTSTRAP, "hand", 0]
    bench.world.registry[BOOTSTRAP, "hand", 0] = msgspec.structs.replace(stale, incarnation=stale.incarnation ^ 2)
    bench.settle()
    hand.heard(wire.Hello)
    hand.say(hand.welcome())
    bench.settle()
    hand.listen_up()
    assert hand.closed, "somebody else was named"
    assert not hand.heard(wire.Metadata)
    bench.world.registry[BOOTSTRAP, "hand", 0] = stale
    bench.pass_time(2)
    hand.heard(wire.Hello)
    hand.say(hand.welcome())
    bench.settle()
    assert hand.heard(wire.Metadata)
    assert not room.poll().terminal


@named([Mutant(DecodeLinks, "_handshake", "source != link.sought", "False")])
def test_the_check_finds_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: check_impostor("failed"))
