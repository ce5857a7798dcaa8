"""Health says what is held, since when and because of whom; limits push back where the caller sees it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, Shape, send_in, serve_another
from mutants import Mutant, dies, named
from test_engine_ranks import held, pass_time, ranks_of, writes_of

from kvrooms import Overloaded, Status
from kvrooms.engine import decode_links, health
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_shapes import FOUR, ONE, TWO
from kvrooms.transport.ports import CloseCause

PAGE = 4 * 16  # two layers of K and V, 16 bytes each
AUX = 12


def stalled(bench: Bench, pages: int = 2) -> tuple[Any, Any]:
    """A room that was aborted on decode while prefill stands still."""
    plan = bench.plan(pages)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    bench.world.stall(bench.prefills[0].name)
    receiver.abort()
    bench.settle()
    return receiver, sender


def test_an_engine_at_rest_is_well() -> None:
    bench = Bench(1)
    assert bench.decode.health() == bench.prefill.health() == health.Health(True, (), 0, 0, 0, 0.0, 0.0)
    serve_another(bench)
    assert bench.decode.health().ok
    assert bench.prefill.health().ok


def test_quarantine_is_told_with_its_figures_and_frees_nothing() -> None:
    bench = Bench(2)
    receiver, sender = stalled(bench)
    said = bench.decode.health()
    assert (said.ok, said.quarantined, said.quarantined_bytes) == (True, 1, 2 * PAGE + AUX)
    bench.pass_time(29)
    assert bench.decode.health().ok
    bench.pass_time(3)
    said = bench.decode.health()
    assert not said.ok
    assert said.quarantined_s == pytest.approx(bench.world.now, abs=0.1)  # it was aborted at 0
    (problem,) = said.problems
    assert f"the oldest for {said.quarantined_s:.1f} s by prefill-0" in problem
    assert not receiver.memory_free
    bench.world.stall(bench.prefills[0].name, stalled=False)
    bench.until_free(receiver)
    assert bench.decode.health().ok
    bench.finish(sender, timers=True)


def test_too_much_in_quarantine_is_told_at_once() -> None:
    bench = Bench(3, settings=EngineSettings(quarantine_share=0.1))
    stalled(bench, pages=2)  # of 16 pages and 8 slots
    (problem,) = bench.decode.health().problems
    total = 16 * PAGE + 8 * AUX
    assert f"{2 * PAGE + AUX} bytes of ended rooms are held, of {total} registered" in problem


def test_prefill_tells_which_writes_of_ended_rooms_have_not_settled() -> None:
    bench = Bench(4)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    bench.world.writes_held = True
    send_in(sender, plan, [2])
    bench.settle()
    sender.abort()
    bench.settle()
    assert bench.prefill.health().quarantined == 1
    assert bench.prefill.health().quarantined_bytes > 0
    bench.world.writes_held = False
    bench.until_free(receiver, sender)
    assert bench.prefill.health().quarantined == 0


def check_quarantine_of_several_ranks() -> None:
    """Four ranks may write to one room: it is one room, and its memory is there once."""
    ranks = ranks_of(FOUR, ONE, settings=EngineSettings(quarantine_warn_s=3.0, quarantine_share=0.5))
    held(ranks, 0)
    (decode,) = ranks.decodes.values()
    buffers = decode.layout.kv
    pages, aux = len(ranks.rooms[0].decode[0].pages), decode.layout.aux
    size = pages * sum(b.item_length for b in buffers) + sum(one.item_length for one in aux)
    assert aux
    decode.rooms[0].abort()
    ranks.world.settle()
    pass_time(ranks, 4.0)
    said = decode.engine.health()
    assert (said.quarantined, said.quarantined_bytes) == (1, size)
    (problem,) = said.problems  # a third of what is registered is not half of it
    assert problem.startswith(
        f"memory of 1 ended rooms ({size} bytes) is held, the oldest for 4.0 s by prefill-0 0 rank"
    )
    for write in writes_of(ranks, ranks.prefills[0, 0]):
        ranks.world.finish(write)
    ranks.world.settle()
    assert not decode.rooms[0].memory_free
    said = decode.engine.health()
    assert (said.quarantined, said.quarantined_bytes) == (1, size), "nothing of it has come back yet"
    (problem,) = said.problems
    assert "by prefill-0 1 rank 1, prefill-0 2 rank 2, prefill-0 3 rank 3: no acknowledgement" in problem
    ranks.world.writes_held = False
    ranks.world.settle()
    assert decode.engine.health().quarantined == 0


def check_writes_to_several_ranks() -> None:
    """On prefill too, a room is one room, whichever decode ranks its writes go to."""
    ranks = ranks_of(ONE, TWO)
    held(ranks, 0)
    (prefill,) = ranks.prefills.values()
    posted = sum(length for write in ranks.world.writes for _, length, _ in write.rows)
    prefill.rooms[0].abort()
    ranks.world.settle()
    said = prefill.engine.health()
    assert (said.quarantined, said.quarantined_bytes) == (1, posted)
    assert posted


def test_a_room_of_several_ranks_is_counted_once() -> None:
    check_quarantine_of_several_ranks()
    check_writes_to_several_ranks()


@named([
    Mutant(DecodeCore, "held", "rooms.setdefault(grant.record, [])", "rooms.setdefault(grant, [])"),
    Mutant(PrefillCore, "held", "rooms.setdefault(writer.record or writer, [])", "rooms.setdefault(writer, [])"),
])  # fmt: skip
def test_the_checks_of_rooms_of_several_ranks_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def both() -> None:
        check_quarantine_of_several_ranks()
        check_writes_to_several_ranks()

    dies(both)


def test_rooms_that_stand_still_make_an_engine_unwell() -> None:
    bench = Bench(5, settings=EngineSettings(no_progress_s=50))
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.pass_time(40)
    assert bench.decode.health().ok
    sender.send(plan.source["kv"][:1])
    bench.settle()
    bench.pass_time(40)
    assert bench.decode.health().ok
    bench.pass_time(20)
    for engine in (bench.decode, bench.prefill):
        (problem,) = engine.health().problems
        assert "no" in problem
        assert "progress for 6" in problem
    sender.send(plan.source["kv"][1:], last=True)
    bench.finish(receiver, sender)
    assert bench.decode.health().ok


def fence_check(seed: int) -> None:
    """The orchestrator's word about a name does not touch a living engine that has the same name."""
    bench = Bench(seed)
    old, _ = stalled(bench)
    bench.prefills[0].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.prefills.append(bench.add_prefill("prefill-1"))
    bench.prefills[1].engine.name = bench.prefills[0].name
    bench.prefills[1].engine._core.name = bench.prefills[0].name
    plan = bench.plan(2, prefill=1)
    receiver = bench.receive(plan, 8, instance="prefill-1", prefill=1)
    sender = bench.offer(plan, 8, prefill=1)
    bench.settle()
    bench.decode.peer_fenced(bench.prefills[0].name)
    bench.settle()
    assert old.memory_free
    assert not receiver.poll().terminal
    bench.pass_time(10)  # it is heard of: the word was not about it
    bench.prefills[1].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.settle()
    assert receiver.poll() is Status.FAILED
    assert not receiver.memory_free, "a living engine was taken for fenced"
    bench.until_free(receiver)
    bench.finish(sender, timers=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_fence_is_for_those_who_are_silent(seed: int) -> None:
    fence_check(seed)


def test_a_fence_that_comes_before_the_connection_is_given_up_counts_when_it_is() -> None:
    bench = Bench(7)
    receiver, _ = stalled(bench)
    bench.decode.peer_fenced("prefill-0")
    bench.settle()
    assert not receiver.memory_free
    bench.run(lambda: receiver.memory_free, timers=True)
    assert bench.world.now < 8  # the heartbeat's limit, no more


def cut_check(seed: int) -> None:
    """The word comes, and the network cuts the connection before a living engine of that name was heard of again."""
    bench = Bench(seed)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    bench.pass_time(3)
    bench.world.writes_held = True
    send_in(sender, plan, [2])
    bench.settle()
    bench.decode.peer_fenced("prefill-0")
    bench.settle()
    bench.prefills[0].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.settle()
    assert not receiver.memory_free, "a write of a living engine may still land"
    if seed % 2:
        bench.pass_time(2)
        bench.world.registry.clear()  # it has come back, and is lost again for longer
        bench.prefills[0].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.pass_time(20)
    assert not receiver.memory_free, "it lives"
    if seed % 2:
        return
    bench.world.writes_held = False
    bench.until_free(receiver, sender)
    bench.check_bytes()
    assert bench.decode.tables()["timers"] == 1


def silence_check(seed: int) -> None:
    """The word was true: it counts, though the connection ended otherwise than by silence."""
    bench = Bench(seed)
    receiver, _ = stalled(bench)
    bench.decode.peer_fenced("prefill-0")
    bench.settle()
    bench.prefills[0].engine._core.channel.cut(CloseCause.TIMED_OUT)
    bench.settle()
    assert not receiver.memory_free
    bench.run(lambda: receiver.memory_free, timers=True)
    assert bench.world.now < 8
    receiver.close()
    bench.settle()
    tables = bench.decode.tables()
    assert (tables["peers"], tables["grants"]) == (0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_fence_does_not_touch_a_living_engine_that_is_cut_off(seed: int) -> None:
    cut_check(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_fence_counts_however_the_connection_ends(seed: int) -> None:
    silence_check(seed)


FENCES = [
    Mutant(decode_links.DecodeLinks, "_proof", "link.last_heard <= peer.fenced_at and silent", "peer.fenced_at > -1"),
    Mutant(decode_links.DecodeLinks, "_proof", "and silent", ""),
    Mutant(decode_links.DecodeLinks, "_lost", "and proof is None", "and False"),
    Mutant(decode_links.DecodeLinks, "_welcomed", "self._timers.disarm(peer, Alarm.FENCE)", "pass"),
    Mutant(decode_links.DecodeLinks, "_fenced", "peer.link is not None", "False"),
]


@named(FENCES)
def test_the_check_of_fences_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: [check(seed) for seed in range(4) for check in (fence_check, cut_check, silence_check)])


def test_more_rooms_than_may_be_open_are_refused_and_nothing_changes() -> None:
    bench = Bench(8, settings=EngineSettings(rooms_max=3))
    plans = [bench.plan(1) for _ in range(4)]
    rooms = [(bench.receive(plan, n), bench.offer(plan, n)) for n, plan in enumerate(plans[:3])]
    for call in (bench.receive, bench.offer):
        with pytest.raises(Overloaded, match="3 rooms that are not closed"):
            call(plans[3], 3)
    for (_, sender), plan in zip(rooms, plans, strict=False):
        send_in(sender, plan, [1])
    bench.finish(*[room for pair in rooms for room in pair])
    for room in rooms[0]:
        room.close()
    bench.settle()
    receiver, sender = bench.receive(plans[3], 3), bench.offer(plans[3], 3)
    send_in(sender, plans[3], [1])
    bench.finish(receiver, sender)


def slow_peer_check(seed: int) -> None:
    """A decode engine to which nothing gets through does not hold up another."""
    settings = EngineSettings(piece_bytes=64, inflight_per_peer_bytes=128, inflight_bytes=256)
    bench = Bench(seed, Shape(), decodes=2, settings=settings, pages=32)
    slow, quick = bench.plan(12, decode=0), bench.plan(2, decode=1)
    rooms = [bench.receive(slow, 1, decode=0), bench.offer(slow, 1)]
    bench.settle()
    bench.world.writes_held = True
    send_in(rooms[1], slow, [12])
    bench.settle()
    held = bench.world.writes
    others = [bench.receive(quick, 2, decode=1), bench.offer(quick, 2)]
    bench.settle()
    send_in(others[1], quick, [2])
    bench.settle()
    posted = bench.prefill.tables()["posted"]
    assert posted > len(held), "the second peer's writes wait"
    bench.world.writes_held = False
    bench.finish(*rooms, *others)
    bench.check_bytes()


def test_a_slow_peer_holds_up_nobody_else() -> None:
    slow_peer_check(1)


@named([
    Mutant(PrefillPosting, "_may_post", "peer.posted_bytes + size <= self.settings.inflight_per_peer_bytes", "True"),
    Mutant(PrefillPosting, "_count_posted", "writer.peer.posted_bytes += size", "writer.peer.posted_bytes = 0"),
])  # fmt: skip
def test_the_check_of_slow_peers_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: slow_peer_check(1))
