"""A decode engine that fell silent and comes back: what prefill's transport still knows of it, and what not."""

from __future__ import annotations

import pytest
from engine_bench import Bench, serve_another
from engine_peers import HandDecode
from msgspec.structs import replace

from kvrooms import Status
from kvrooms.engine import prefill_links
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import wire
from kvrooms.protocol.errors import PeerGone, TransportError
from kvrooms.protocol.failure import Reason
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


@pytest.mark.parametrize("how", ["another was named", "it answers too late"])
def test_a_handshake_that_decode_gives_up_is_no_death(how: str) -> None:
    """Prefill has taken the HELLO for good by then: it would read the end of the connection as that of a process."""
    bench = Bench(6)
    (key,) = bench.world.registry
    entry = bench.world.registry[key]
    told = watched(bench)
    room = bench.receive(bench.plan(1), 1, bootstrap_timeout_s=60)
    if how == "another was named":
        bench.world.registry[key] = replace(entry, incarnation=entry.incarnation ^ 2)
    else:
        welcome, bench.prefill._core._send = bench.prefill._core._send, lambda *_: None
    bench.settle()
    bench.pass_time(6)
    assert told == ["add"]
    assert not bench.prefill._core._peers[bench.decode._core.incarnation].gone
    if how == "another was named":
        bench.world.registry[key] = entry
    else:
        bench.prefill._core._send = welcome
    bench.pass_time(7)
    serve_another(bench)
    assert told == ["add"]
    assert not room.poll().terminal


# -- the way of the writes breaks, and both processes are well ---------------------------------------------------------


class Broken:
    """A prefill's transport: every write to a peer fails until the peer has been added `times` times more."""

    def __init__(self, bench: Bench, times: int = 1) -> None:
        self.told = watched(bench)
        self.failed = 0
        self._transport = bench.prefill._core.transport
        self._post = self._transport.post
        self._transport.post = self._posted
        self._needed = times + self.told.count("add")

    def _posted(self, *arguments: object) -> int | None:
        if self.told.count("add") < self._needed:
            self.failed += 1
            raise PeerGone("its connection has ended")
        return self._post(*arguments)


def lost_room(bench: Bench, number: int) -> None:
    """A room whose write fails: it fails on both sides, and its ranges stay where they are."""
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan, number), bench.offer(plan, number)
    sender.send(plan.source["kv"], last=True)
    bench.finish(receiver, sender)
    assert sender.failure.reason is receiver.failure.reason is Reason.SEND_ERROR
    bench.settle()
    assert not receiver.memory_free


def test_one_failed_write_does_not_fail_those_of_every_later_room() -> None:
    for seed in range(5):
        bench = Bench(seed)
        serve_another(bench)
        broken = Broken(bench)
        lost_room(bench, 1)
        for room in range(10, 14):
            serve_another(bench, room)
        assert broken.failed == 1
        assert broken.told == ["remove", "add"]
        assert bench.prefill.counters()["peers made known anew"] == 1


def test_rooms_that_wait_while_a_peer_is_made_known_anew_are_served() -> None:
    bench = Bench(2, settings=SMALL)
    serve_another(bench)
    plans = [bench.plan(2) for _ in range(4)]
    rooms = [(bench.receive(plan, i), bench.offer(plan, i)) for i, plan in enumerate(plans, 20)]
    bench.settle()
    broken = Broken(bench)
    for plan, (_, sender) in zip(plans, rooms, strict=True):
        sender.send(plan.source["kv"], last=True)
    bench.finish(*(room for pair in rooms for room in pair))
    assert [receiver.poll() for receiver, _ in rooms] == [Status.FAILED, *[Status.DONE] * 3]
    assert broken.failed == 1


def test_a_peer_whose_writes_keep_failing_has_to_introduce_itself_anew() -> None:
    """And as long as it does not help, there is one room to a handshake, not a room to a turn."""
    bench = Bench(3)
    serve_another(bench)
    broken = Broken(bench, times=3)
    lost_room(bench, 1)
    lost_room(bench, 2)  # it was made known anew for this one
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan, 3), bench.offer(plan, 3)
    sender.send(plan.source["kv"], last=True)
    bench.finish(receiver, sender)
    assert sender.failure.reason is receiver.failure.reason is Reason.PEER_LOST
    bench.pass_time(3)
    assert receiver.memory_free, "nothing was posted for it"
    lost_room(bench, 4)
    bench.pass_time(3)
    serve_another(bench, 9)
    assert broken.failed == 3
    assert bench.prefill.counters()["connections dropped: its writes keep failing"] == 1
    assert broken.told.count("add") == 3


def test_a_peer_that_is_really_dead_is_not_added_again() -> None:
    bench = Bench(4)
    serve_another(bench)
    broken = Broken(bench)
    plan = bench.plan(3)
    sender = bench.offer(plan, 1)
    bench.receive(plan, 1)
    bench.settle()
    bench.world.kill("decode-0")
    sender.send(plan.source["kv"], last=True)
    bench.finish(sender)
    bench.pass_time(10)
    assert broken.told == ["remove"]


def test_a_peer_that_cannot_be_added_again_loses_its_connection_and_may_come_back() -> None:
    bench = Bench(5)
    serve_another(bench)
    broken = Broken(bench)
    transport = bench.prefill._core.transport
    add = transport.add_peer

    def refused(*arguments: object) -> None:
        transport.add_peer = add
        raise TransportError("no more memory")

    transport.add_peer = refused
    lost_room(bench, 1)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan, 2), bench.offer(plan, 2)
    sender.send(plan.source["kv"], last=True)
    bench.finish(receiver, sender)
    assert receiver.failure.reason is Reason.PEER_LOST
    bench.pass_time(3)
    serve_another(bench, 9)
    assert broken.failed == 1
    assert bench.prefill.counters()["connections dropped: cannot be written to"] == 1
