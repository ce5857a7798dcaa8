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
        hand.say(wire.Reject(grant, Reason.REFUSED, ""))
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


def test_the_seeds_that_found_them() -> None:
    for seed in (1_000_123, 1_001_605):
        outcome = run_seed(seed)
        assert not outcome.found, outcome.found[0].text()
