"""A decode engine that fell silent and comes back: what prefill's transport still knows of it, and what not."""

from __future__ import annotations

import pytest
from engine_bench import Bench, serve_another
from engine_peers import HandDecode

from kvrooms.engine import prefill_links
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import wire
from kvrooms.protocol.layout import Region, Regions
from kvrooms.transport.ports import CloseCause

SMALL = EngineSettings(piece_bytes=32)


def watched(bench: Bench) -> list[str]:
    """What the prefill's transport is told about its peers, from here on."""
    told: list[str] = []
    transport = bench.prefill._core.transport
    add, remove = transport.add_peer, transport.remove_peer
    transport.add_peer = lambda *args: told.append("add") or add(*args)
    transport.remove_peer = lambda agent: told.append("remove") or remove(agent)
    return told


def silence(bench: Bench, name: str) -> None:
    """Stop an engine for longer than the other one waits, and let it go on."""
    bench.world.stall(name)
    bench.pass_time(20)
    bench.world.stall(name, stalled=False)
    bench.settle()


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_peer_that_comes_back_is_not_added_a_second_time(name: str) -> None:
    """Each time would leave one of NIXL's connections open at both ends."""
    bench = Bench(1)
    told = watched(bench)
    for room in range(5):
        serve_another(bench, room)
        silence(bench, name)
    serve_another(bench, 9)
    assert told == ["add"]


def test_a_peer_that_has_died_is_forgotten() -> None:
    bench = Bench(1)
    told = watched(bench)
    serve_another(bench)
    bench.world.kill("decode-0")
    bench.settle()
    assert told == ["add", "remove"]


def test_after_a_failed_write_a_peer_that_comes_back_is_added_anew() -> None:
    """What the transport knows of it may be what fails."""
    bench = Bench(1, settings=SMALL)
    told = watched(bench)
    plan = bench.plan(3)
    bench.world.writes_held = True
    receiver, sender = bench.receive(plan), bench.offer(plan)
    sender.send(plan.source["kv"], last=True)
    bench.settle()
    (peer,) = bench.prefill._core._peers.values()
    (writer,) = peer.drains.values()
    bench.prefill._core._doubt(writer)
    bench.world.writes_held = False
    bench.decode._core.channel.cut(CloseCause.TIMED_OUT)
    bench.finish(receiver, sender)
    bench.pass_time(3)
    serve_another(bench)
    assert told == ["add", "remove", "add"]


def test_only_so_many_absent_peers_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_links, "_LOADED_MAX", 2)
    bench = Bench(1)
    told = watched(bench)
    hands = [HandDecode(bench).join() for _ in range(4)]
    for hand in hands:
        hand.channel.cut(CloseCause.TIMED_OUT)
        bench.settle()
    assert told == ["add"] * 4 + ["remove"] * 2
    hands[0].join()
    hands[3].join()
    assert told == ["add"] * 4 + ["remove"] * 2 + ["add"]


def test_an_incarnation_that_describes_other_memory_than_before_is_refused() -> None:
    bench = Bench(1)
    hand = HandDecode(bench).join()
    regions = hand.pool.memory.regions
    moved = Regions(tuple(Region(one.address + 1, one.items) for one in regions.kv), regions.aux, regions.state)
    hand.dial()
    hand.say(hand.hello(regions=moved), target=0)
    bench.settle()
    (refusal,) = hand.heard(wire.Refuse)
    assert "other memory before" in refusal.words[0]
    hand.join()
