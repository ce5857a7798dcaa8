"""What a peer says of itself again, or under another name, or at too great length: no plan outlives its memory.

Each of these has ended an engine's thread, and every room with it.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, send_in, serve_another
from engine_peers import HandDecode, pack
from msgspec.structs import replace

from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_shapes import shape
from kvrooms.harness.mutants.probes_staging import _MODEL, Model, Side, Staging
from kvrooms.harness.mutants.stage_ranks import RankStage
from kvrooms.harness.ranks import plain
from kvrooms.protocol import grids, wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.layout import Instance, Rank, Regions
from kvrooms.protocol.shares import Share, check_share, pair_up
from kvrooms.protocol.status import Status
from kvrooms.shapes.build import prefill_instance


def share_of(bench: Bench, hand: HandDecode) -> Share:
    """What decode is owed when it says so itself, though both layouts are equal."""
    sender = Instance((Rank(bench.prefills[0].pool.memory.layout),))
    (share,) = pair_up(sender, Instance((Rank(hand.layout),), 5)).shares.values()
    return share


@pytest.mark.parametrize("order", ["small, then large", "large, then small"])
def test_plans_are_of_the_memory_that_the_peer_has_now(order: str) -> None:
    """A HELLO whose blob the transport refuses leaves nothing of its share behind."""
    bench = Bench(3)
    hand = HandDecode(bench)
    share, large = share_of(bench, hand), hand.pool.memory.regions
    small = Regions(tuple(replace(region, items=2) for region in large.kv), large.aux, large.state)
    first, last = (small, large) if order.startswith("small") else (large, small)
    hellos = [
        hand.hello(share=None, regions=first),
        hand.hello(share=share, regions=first, blob=b"x"),
        hand.hello(share=share, regions=last, blob=b"x"),
        hand.hello(share=share, regions=first, blob=b"x"),
        hand.hello(share=share, regions=last),
    ]
    for hello in hellos:
        hand.dial()
        hand.say(hello, target=0)
        bench.settle()
    assert len(hand.heard(wire.Refuse)) == 3
    assert len(hand.heard(wire.Welcome)) == 2
    peer = bench.prefill._core._peers[hand.incarnation]
    assert peer.regions == last
    plan = bench.plan(2)
    room = bench.offer(plan)
    send_in(room, plan, [2])
    hand.say(hand.metadata(plan=plan, pages=pack(9, 10) if last is large else pack(0, 1)), floor=0)
    bench.finish(room)
    assert room.poll() is Status.DONE
    serve_another(bench)


def test_nothing_is_asked_for_twice() -> None:
    bench = Bench(3)
    hand = HandDecode(bench)
    share = share_of(bench, hand)
    check_share(share, hand.layout, hand.layout)
    for i, entry in enumerate(share.entries):
        twice = replace(share, entries=(*share.entries, entry))
        with pytest.raises(WireError) as caught:
            check_share(twice, hand.layout, hand.layout)
        at = len(share.entries)
        assert str(caught.value) == f"share.entries[{at}]: {entry} asks for units that another entry asks for", i
    hand.dial()
    hand.say(hand.hello(share=replace(share, entries=share.entries * 100)), target=0)
    bench.settle()
    assert "another entry asks for" in hand.heard(wire.Refuse)[0].words[0]
    serve_another(bench)


def test_runs_are_counted_before_they_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all entries of a part, and not when all of them are there."""
    bench = Bench(3)
    hand = HandDecode(bench)
    share, side = share_of(bench, hand), grids.Side(hand.layout, hand.pool.memory.regions)
    monkeypatch.setattr(grids, "RUNS_MAX", 3)
    made: list[Any] = []
    runs = grids._runs
    monkeypatch.setattr(grids, "_runs", lambda *given: made.append(given) or runs(*given))
    with pytest.raises(WireError, match="a block of 4 runs; at most 3 are planned"):
        grids.grids(side, side, replace(share, entries=(share.entries[0],) * 1000))
    assert len(made) == 4


def test_memory_in_more_runs_than_anybody_plans_is_refused_by_decode_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "RUNS_MAX", 30)
    model = Model(attention=(0, 1), kv_heads=4, head_bytes=1)
    stage = RankStage(shape(model, Side(page_size=8, head_major=True), Side(page_size=8), (8,)), 1)
    stage.call()
    stage.settle()
    (decode,) = [member for member in stage.members() if member.key[0] == "decode"]
    (room,) = decode.rooms.values()
    assert room.poll() is Status.FAILED
    assert room.failure is not None
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED
    assert "at most 30 are planned" in room.failure.detail


def test_one_engine_under_two_names_is_one_engine() -> None:
    """Registered a second time with other memory: rooms by that name learn it, and those by the first go on."""
    case = shape(_MODEL, Side(tp=2, page_size=4), Side(page_size=2), (96, 98))
    stage = Staging(case, 1, settings=EngineSettings(staging_bytes=1 << 26))
    other = plain(prefill_instance(_MODEL, Side(tp=2, page_size=2)))
    registry = stage.world.registry
    for rank in (0, 1):
        entry = registry["http://world:1", "prefill-0", rank]
        registry["http://world:1", "y", rank] = replace(entry, instance="y", member=other.ranks[rank], page_size=2)
    stage.receive(0, 0)
    stage.settle()
    plan = stage.rooms[1].decode[0]
    room = stage.decodes[0].engine.open(
        5,
        bootstrap="http://world:1",
        instance="y",
        pages=plan.pages,
        aux_index=plan.aux_slot,
        prefix_pages=stage.rooms[1].prefix,
        tokens=stage.rooms[1].tokens,
    )
    stage.settle()
    assert room.poll() is Status.FAILED
    assert room.failure is not None
    assert "is registered under two names" in room.failure.detail
    room.close()
    stage.settle()
    core = stage.decodes[0].engine._core
    assert {target.instance for target in core._by_target} == {"prefill-0"}, "nothing is left of the name"
