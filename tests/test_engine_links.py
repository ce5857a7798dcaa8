"""Whom a decode engine remembers and looks for, and what it says of its grants to whom: found by simulation."""

from __future__ import annotations

from engine_bench import Bench, send_in, serve_another
from engine_peers import HandPrefill

from kvrooms.engine.decode_state import Peer
from kvrooms.harness.simulate.run import run_seed
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Reason
from kvrooms.transport.ports import CloseCause


def test_to_forget_an_entry_again_does_not_forget_the_one_in_its_place() -> None:
    """A link may name an entry that was forgotten while another has been made for the same incarnation."""
    bench = Bench(1)
    serve_another(bench)
    core = bench.decode._core
    (peer,) = core._peers.values()
    link, peer.link = peer.link, None
    core._retire(Peer(peer.incarnation, peer.engine, peer.agent, 1))
    assert core._peers == {peer.incarnation: peer}
    peer.link = link
    serve_another(bench)


def test_leases_are_looked_after_over_whichever_link_took_the_place_of_theirs() -> None:
    """Two names for one engine: the second name's link takes over, and has no other reason to exist than old leases."""
    for seed in range(10):
        bench = Bench(seed)
        bench.world.writes_held = True
        plan = bench.plan(2)
        receiver, sender = bench.receive(plan, instance="prefill-0"), bench.offer(plan)
        send_in(sender, plan, [2])
        bench.settle()
        bench.world.stall("prefill-0")
        bench.decodes[0].channel.cut(CloseCause.TIMED_OUT)
        bench.settle()
        assert receiver.failure is not None
        assert receiver.failure.reason is Reason.PEER_LOST
        other = bench.receive(bench.plan(1), 8, instance="")
        bench.settle()
        other.close()
        bench.pass_time(12)  # the handshake of the second link is given up, and nobody waits for it any more
        assert not receiver.memory_free
        bench.world.heal()
        bench.pass_time(12)
        assert receiver.memory_free


def test_what_is_said_to_an_incarnation_before_its_welcome_is_not_about_grants_of_another() -> None:
    """Grants are numbered per incarnation: the floor of one that died would make the next refuse new grants."""
    bench = Bench(3, prefills=2)
    hand = HandPrefill(bench)
    for number in range(3):
        receiver = bench.receive(bench.plan(1), number, instance="hand")
        _ = hand.join() if number == 0 else bench.settle()
        grant = hand.heard(wire.Metadata)[-1].grant
        hand.say(wire.Reject(grant, Reason.REFUSED, "", True))
        bench.finish(receiver)
        receiver.close()
    waiting = bench.receive(bench.plan(1), 7, instance="hand")
    bench.settle()
    assert hand.heard(wire.Metadata)[-1].grant == 4
    assert hand.frames[-1].floor == 4
    newcomer = HandPrefill(bench)
    hand.channel.cut(CloseCause.TIMED_OUT)  # and it dies: of the last grant there is no proof
    bench.run(lambda: bool(newcomer.heard(wire.Goodbye)), timers=True)
    assert not waiting.memory_free
    assert newcomer.heard(wire.Hello)
    assert {frame.floor for frame in newcomer.frames} == {0}


def renamed(bench: Bench) -> None:
    """Rooms wait for an engine that has two names, and so one link. It dies, and another one has both names."""
    registry = bench.world.registry
    ((url, gone),) = [(url, one) for (url, name, _), one in registry.items() if name == "prefill-0"]
    registry[url, "moved", 0] = registry[url, "alias", 0] = gone
    bench.world.stall("prefill-0")
    for number, name in enumerate(("moved", "alias")):
        bench.receive(bench.plan(1), number, instance=name)
    bench.settle()
    links = bench.decode._core._by_target
    assert len({link for target, link in links.items() if target.instance in ("moved", "alias")}) == 1
    (there,) = [one for (_, name, _), one in registry.items() if name == "prefill-1"]
    registry[url, "moved", 0] = registry[url, "alias", 0] = there
    bench.world.kill("prefill-0")


def test_a_name_that_went_by_the_link_of_another_goes_where_that_one_goes() -> None:
    """Else its rooms would wait at a link that nobody looks after any more."""
    bench = Bench(2, prefills=2)
    serve_another(bench, 50, prefill=1)
    renamed(bench)
    bench.pass_time(2)
    for number, name in enumerate(("moved", "alias"), 10):
        plan = bench.plan(1, prefill=1)
        receiver, sender = bench.receive(plan, number, instance=name), bench.offer(plan, number, prefill=1)
        send_in(sender, plan, [1])
        bench.finish(receiver, sender)
        assert receiver.failure is sender.failure is None


def test_a_room_that_has_ended_is_never_advertised_whoever_s_link_it_waited_at() -> None:
    """Its memory has gone back to its caller."""
    bench = Bench(2, prefills=3)
    bench.world.stall("prefill-1")
    bench.receive(bench.plan(1), 50, prefill=1)
    bench.settle()
    renamed(bench)
    bench.pass_time(2)
    rooms = [held.room for held in bench.held]
    assert len(rooms) == 3
    for room in rooms:
        room.abort()
    sent: list[wire.Body] = []
    core = bench.decode._core
    send = core._send
    core._send = lambda link, body: sent.append(body) or send(link, body)
    bench.world.heal()
    bench.pass_time(2)
    assert not [body for body in sent if isinstance(body, wire.Metadata)]
    assert not bench.decode.tables()["grants"]


def test_the_seeds_that_found_them() -> None:
    for seed in (1_000_123, 1_001_605):
        outcome = run_seed(seed)
        assert not outcome.found, outcome.found[0].text()
