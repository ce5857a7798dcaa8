"""A bad message is counted, and complained of ever more rarely; what an honest peer may say late is only counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_bench import Bench, send_in
from engine_chaos import Chaos
from engine_peers import HandDecode, HandPrefill, pack
from mutants import Mutant, dies

from kvrooms.engine.core import EngineCore
from kvrooms.engine.decode_arrivals import DecodeArrivals
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.prefill_grants import PrefillGrants
from kvrooms.engine.prefill_links import PrefillLinks
from kvrooms.harness.world import Faults
from kvrooms.protocol import notify, wire
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.notify import Part, PartKind

UNKNOWN = 9999
WORDS = (Reason.SEND_ERROR, "x", True)


def complaints(engine: Any) -> dict[str, int]:
    return dict(engine._core._complaints)


def check(engine: Any, say: Callable[[], None], counted: str, complaint: str | None) -> None:
    """What is said twice is counted twice, and complained of twice or not at all."""
    before = engine.counters().get(counted, 0), complaints(engine)
    for _ in range(2):
        say()
    assert engine.counters()[counted] == before[0] + 2
    told = {what: n - before[1].get(what, 0) for what, n in complaints(engine).items() if n != before[1].get(what, 0)}
    assert told == ({} if complaint is None else {complaint: 2})


# -- prefill -----------------------------------------------------------------------------------------------------------

TO_PREFILL = {
    "indices out of range": (lambda hand, n: hand.metadata(n, pages=pack(0, UNKNOWN)), "grants malformed"),
    "indices that are cut off": (lambda hand, n: hand.metadata(n, pages=b"xyz"), "grants malformed"),
    "a slot of aux that is not there": (lambda hand, n: hand.metadata(n, aux_index=UNKNOWN), "grants malformed"),
}


@pytest.mark.parametrize("what", TO_PREFILL)
def test_a_metadata_that_does_not_fit(what: str) -> None:
    bench = Bench(1)
    hand, grants = HandDecode(bench).join(), iter(range(1, 3))
    metadata, counted = TO_PREFILL[what]

    def say() -> None:
        hand.say(metadata(hand, next(grants)))
        bench.settle()

    check(bench.prefill, say, counted, "a grant that does not fit")
    assert len(hand.heard(wire.Reject)) == 2


def test_a_grant_that_was_given_before() -> None:
    bench = Bench(2)
    hand = HandDecode(bench).join()
    hand.say(hand.metadata(5))
    bench.settle()

    def say() -> None:
        hand.say(hand.metadata(5))
        bench.settle()

    check(bench.prefill, say, "grants repeated", "a grant that was given before")


def test_an_abort_that_is_repeated_is_nobodys_fault() -> None:
    bench = Bench(3)
    hand = HandDecode(bench).join()
    for _ in range(3):
        hand.say(wire.Abort(5, *WORDS))
        bench.settle()
    assert len(hand.heard(wire.Ack)) == 3
    assert not complaints(bench.prefill)


def test_a_handshake_that_is_refused() -> None:
    bench = Bench(4)

    def say() -> None:
        hand = HandDecode(bench)
        hand.dial()
        hand.say(hand.hello(agent="someone else"), target=0)
        bench.settle()
        assert hand.heard(wire.Refuse)

    check(bench.prefill, say, "connections dropped: refused", "a handshake was refused")


def test_a_frame_of_another_incarnation() -> None:
    bench = Bench(5)
    hand = HandDecode(bench).join()

    def say() -> None:
        hand.say(wire.Ping(1), source=hand.incarnation + 2)
        bench.settle()

    check(bench.prefill, say, "frames of another incarnation", "a frame of another incarnation")


def test_a_room_that_too_many_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(6)
    monkeypatch.setattr(bench.prefill._core, "_holders_max", 2)
    sender = bench.offer(bench.plan(2))
    hands = [HandDecode(bench).join() for _ in range(3)]
    for hand in hands[:2]:
        hand.say(wire.Hold(7, 0))
    bench.settle()

    def say() -> None:
        hands[2].say(wire.Hold(7, 0))
        bench.settle()

    check(bench.prefill, say, "holds of too many peers", "a room is held by too many peers")
    assert bench.prefill.tables()["holders"] == 2
    sender.abort()
    bench.settle()
    assert [len(hand.heard(wire.HoldLost)) for hand in hands] == [1, 1, 0]


# -- decode ------------------------------------------------------------------------------------------------------------


def joined(seed: int) -> tuple[Bench, HandPrefill, Any]:
    """A decode engine that waits for a room of a prefill engine made by hand."""
    bench = Bench(seed, prefills=2)
    hand = HandPrefill(bench)
    receiver = bench.receive(bench.plan(2), instance="hand")
    hand.join()
    return bench, hand, receiver


TO_DECODE = {
    "acceptances": lambda number: wire.Accept(number),
    "failures": lambda number: wire.Failed(number, *WORDS),
    "acknowledgements": lambda number: wire.Ack(number),
}


@pytest.mark.parametrize("what", [*TO_DECODE, "refusals"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "never given"])
def test_words_about_no_open_grant(what: str, given: bool) -> None:
    """Of one that was given they may be late; of one that never was they are nobody's honest words."""
    bench, hand, _ = joined(7)
    (metadata,) = hand.heard(wire.Metadata)
    if given:
        hand.say(wire.Reject(metadata.grant, *WORDS))
        bench.settle()
    number = metadata.grant if given else UNKNOWN
    counted = "acknowledgements" if what == "refusals" else what
    body = wire.Reject(number, *WORDS) if what == "refusals" else TO_DECODE[what](number)

    def say() -> None:
        hand.say(body)
        bench.settle()

    complaint = None if given else "words about a grant that was never given"
    check(bench.decode, say, f"{counted} of no open grant", complaint)


@pytest.mark.parametrize("given", [True, False], ids=["given", "never given"])
def test_a_notification_of_no_open_grant(given: bool) -> None:
    bench, hand, receiver = joined(8)
    (metadata,) = hand.heard(wire.Metadata)
    if given:  # and aborted: a write of it may be on its way
        receiver.abort()
        bench.settle()
    number = metadata.grant if given else UNKNOWN

    def say() -> None:
        hand.notify(notify.encode(number, metadata.token if given else 1, (Part(PartKind.KV, 0, 0, 1),)))
        bench.settle()

    complaint = None if given else "words about a grant that was never given"
    check(bench.decode, say, "notifications of no open grant", complaint)


def test_a_notification_in_the_name_of_anothers_grant() -> None:
    bench, hand, receiver = joined(9)
    (metadata,) = hand.heard(wire.Metadata)

    def say() -> None:
        message = notify.encode(metadata.grant, metadata.token, (Part(PartKind.KV, 0, 0, 1),))
        hand.notify(message, agent="someone else")
        bench.settle()

    complaint = "a notification in the name of another's grant"
    check(bench.decode, say, "notifications of no open grant", complaint)
    assert not receiver.poll().terminal


def test_a_notification_of_what_is_not_owed() -> None:
    bench, hand, receiver = joined(10)
    (metadata,) = hand.heard(wire.Metadata)
    hand.notify(notify.encode(metadata.grant, metadata.token, (Part(PartKind.KV, 0, 50, 1),)))
    bench.settle()
    assert receiver.failure.reason is Reason.PROTOCOL
    assert bench.decode.counters()["notifications that are not true"] == 1
    assert complaints(bench.decode) == {"a notification that is not true": 1}


def test_a_hold_that_is_lost_after_it_was_released_is_nobodys_fault() -> None:
    bench, hand, _ = joined(11)

    def say() -> None:
        hand.say(wire.HoldLost(1234, 0, *WORDS))
        bench.settle()

    check(bench.decode, say, "losses of no open hold", None)


# -- honest peers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_nobody_complains_of_honest_peers_whatever_happens_to_them(seed: int) -> None:
    """Rooms aborted at random, engines that stall, die and come back, connections that end."""
    chaos = Chaos(seed, Faults())
    chaos.day()
    for side in (*chaos.bench.decodes, *chaos.bench.prefills):
        assert not complaints(side.engine)


def test_nobody_complains_of_a_hold_that_ends_in_any_way() -> None:
    for how in ("asked for", "released", "aborted"):
        bench = Bench(12)
        plan = bench.plan(2)
        sender = bench.offer(plan)
        send_in(sender, plan, [2])
        held = bench.decode.hold(7, bootstrap=bench.prefill.bootstrap)
        bench.settle()
        if how == "asked for":
            receiver = bench.receive(plan)
            bench.finish(receiver, sender)
        else:
            if how == "released":
                bench.decode.release(held)
            sender.abort()
        sender.close()
        bench.settle()
        assert not complaints(bench.decode)
        assert not complaints(bench.prefill)
        assert (held.lost is not None) is (how == "aborted")


# -- that these tests notice -------------------------------------------------------------------------------------------


NOTICED: list[tuple[Mutant, Callable[[], None]]] = [
    (Mutant(PrefillGrants, "_metadata", 'self.counters["grants malformed"] += 1', "pass"),
     lambda: test_a_metadata_that_does_not_fit("indices out of range")),
    (Mutant(PrefillGrants, "_metadata", 'self._complain("a grant that does not fit"', '("a grant that does not fit"'),
     lambda: test_a_metadata_that_does_not_fit("indices that are cut off")),
    (Mutant(PrefillGrants, "_metadata", 'self._complain("a grant that was given before"', '("a grant"'),
     test_a_grant_that_was_given_before),
    (Mutant(PrefillLinks, "_refuse", "reason is not Reason.SHUTDOWN", "False"), test_a_handshake_that_is_refused),
    (Mutant(EngineCore, "_frame_in", 'self._complain("a frame of another incarnation"', '("a frame"'),
     test_a_frame_of_another_incarnation),
    (Mutant(DecodeCore, "_known", 'self.counters[f"{what} of no open grant"] += 1', "pass"),
     lambda: test_words_about_no_open_grant("acceptances", given=True)),
    (Mutant(DecodeCore, "_frame", 'self._known(peer, number, "failures")', "pass"),
     lambda: test_words_about_no_open_grant("failures", given=True)),
    (Mutant(DecodeArrivals, "_suspect", "number >= peer.next_grant", "False"),
     lambda: test_words_about_no_open_grant("acceptances", given=False)),
    (Mutant(DecodeArrivals, "_suspect", "number >= peer.next_grant", "True"),
     lambda: test_words_about_no_open_grant("acknowledgements", given=True)),
    (Mutant(DecodeArrivals, "_arrival", "self._suspect(peer, grant_number)", "pass"),
     lambda: test_a_notification_of_no_open_grant(given=False)),
    (Mutant(DecodeArrivals, "_arrival", 'self._complain("a notification in the name', '("a notification in the name'),
     test_a_notification_in_the_name_of_anothers_grant),
    (Mutant(DecodeArrivals, "_violated", 'self.counters["notifications that are not true"] += 1', "pass"),
     test_a_notification_of_what_is_not_owed),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "look"), NOTICED, ids=[str(mutant) for mutant, _ in NOTICED])
def test_the_checks_of_complaints_notice(
    mutant: Mutant, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)
    dies(look)
