"""What a stranger or a broken peer says never ends an engine's loop, never disturbs an honest room, and is counted.

`Bench.check_bytes` at the end shows that nothing was written where nobody asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_bench import Bench, Shape
from engine_peers import HandDecode, HandPrefill
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine import decode_arrivals
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.protocol import notify, wire
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.notify import Part, PartKind

HONEST = 1 << 50
SWA = Shape(indexed=1, layers=1)

edits = st.lists(
    st.tuples(st.sampled_from(["set", "cut", "insert", "double"]), st.integers(0, 4096), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
seeds = st.integers(0, 2**16)


def edited(frame: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """A frame with some bytes changed, removed, added or doubled."""
    data = bytearray(frame)
    for how, at, byte in changes:
        at %= len(data) + 1
        if how == "set" and at < len(data):
            data[at] = byte
        elif how == "cut":
            del data[at : at + 1 + byte % 8]
        elif how == "insert":
            data[at:at] = bytes([byte])
        elif how == "double":
            data[at:at] = data[at : at + byte]
    return bytes(data)


def honest(bench: Bench, room: int = HONEST) -> Callable[[], None]:
    """Begin an honest room; the result ends it, and shows that it was served without a timer."""
    plan = bench.plan(2, state={"swa": 1})
    receiver, sender = bench.receive(plan, room, prefill=0), bench.offer(plan, room)
    sender.send(plan.source["kv"][:1])

    def finish() -> None:
        sender.send(plan.source["kv"][1:], plan.state(plan.source), last=True)
        bench.finish(receiver, sender)
        assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
        receiver.close()
        sender.close()
        bench.settle()
        bench.check_bytes()

    return finish


def refused(bench: Bench, side: str) -> int:
    """How many frames an engine has counted as one that should not have come."""
    engine = bench.prefill if side == "prefill" else bench.decode
    return sum(n for name, n in engine.counters().items() if name.startswith("frames"))


# -- frames for prefill ------------------------------------------------------------------------------------------------


def decode_frames(hand: HandDecode) -> list[wire.Body]:
    """What a decode engine says."""
    return [
        hand.hello(),
        hand.metadata(1),
        wire.Abort(1, Reason.PEER_ABORTED, "x", False),
        wire.Ping(5),
        wire.Pong(1),
        wire.Goodbye((1, 2)),
    ]


@given(seeds, st.integers(0, 5), edits, st.booleans())
def test_edited_frames_to_prefill(seed: int, kind: int, changes: list[tuple[str, int, int]], known: bool) -> None:
    bench = Bench(seed, SWA)
    finish = honest(bench)
    hand = HandDecode(bench)
    hand.dial()
    if known:
        hand.say(hand.hello(), target=0)
        bench.settle()
        hand.heard()
    frame = wire.encode(decode_frames(hand)[kind], hand.incarnation, hand.peer if known else 0)[wire.PREFIX_LENGTH :]
    hand.say_raw(edited(frame, changes))
    bench.settle()
    finish()
    bench.pass_time(60)  # what it left behind expires
    tables = bench.prefill.tables()
    assert not any(tables[name] for name in ("rooms", "grants", "parked", "posted", "ready"))


@given(seeds, st.lists(st.binary(max_size=80), max_size=8), st.booleans())
def test_random_bytes_to_prefill(seed: int, frames: list[bytes], known: bool) -> None:
    bench = Bench(seed, SWA)
    finish = honest(bench)
    hand = HandDecode(bench)
    _ = hand.join() if known else hand.dial()
    for frame in frames:
        hand.say_raw(frame)
    bench.settle()
    finish()
    if frames:
        assert refused(bench, "prefill") >= (len(frames) if known else 1)
        assert bool(hand.closed or hand.heard(wire.Refuse)) != known, "a stranger is shown the door, a peer is not"


def test_strangers_that_connect_and_say_nothing_are_shown_the_door() -> None:
    bench = Bench(1, SWA)
    finish = honest(bench)
    hands = [HandDecode(bench) for _ in range(5)]
    for hand in hands:
        hand.dial()
    assert bench.prefill.tables()["links"] >= 5
    bench.pass_time(6)
    for hand in hands:
        hand.heard()
        assert hand.closed
    finish()
    assert bench.prefill.tables()["links"] == 1


# -- frames for decode -------------------------------------------------------------------------------------------------


def prefill_frames(hand: HandPrefill) -> list[wire.Body]:
    """What a prefill engine says."""
    return [
        hand.welcome(),
        wire.Refuse(("no", "really"), Reason.HANDSHAKE_REFUSED, False),
        wire.Accept(1),
        wire.Reject(1, Reason.REFUSED, "x", True),
        wire.Failed(1, Reason.MISMATCH, "y", False),
        wire.Ack(1),
        wire.Ping(2),
        wire.Pong(1),
        wire.Goodbye((1,)),
    ]


@given(seeds, st.integers(0, 8), edits, st.booleans())
def test_edited_frames_to_decode(seed: int, kind: int, changes: list[tuple[str, int, int]], known: bool) -> None:
    bench = Bench(seed, SWA, prefills=2)
    finish = honest(bench)
    hand = HandPrefill(bench)
    room = bench.receive(bench.plan(1), 7, instance="hand", bootstrap_timeout_s=8, cap_timeout_s=20)
    bench.settle()
    hand.heard()
    if known:
        hand.say(hand.welcome())
        bench.settle()
    frame = wire.encode(prefill_frames(hand)[kind], hand.incarnation, hand.peer)[wire.PREFIX_LENGTH :]
    hand.say_raw(edited(frame, changes))
    bench.settle()
    finish()
    bench.finish(room, timers=True)
    assert room.poll() is Status.FAILED


@given(seeds, st.lists(st.binary(max_size=80), min_size=1, max_size=8))
def test_random_bytes_to_decode(seed: int, frames: list[bytes]) -> None:
    bench = Bench(seed, SWA, prefills=2)
    finish = honest(bench)
    hand = HandPrefill(bench)
    room = bench.receive(bench.plan(1), 7, instance="hand")
    hand.join()
    for frame in frames:
        hand.say_raw(frame)
    bench.settle()
    finish()
    assert refused(bench, "decode") == len(frames)
    assert not room.poll().terminal, "bytes that say nothing end nothing"


# -- notifications -----------------------------------------------------------------------------------------------------


@given(seeds, st.lists(st.binary(max_size=64), min_size=1, max_size=10))
def test_random_notifications(seed: int, messages: list[bytes]) -> None:
    bench = Bench(seed, SWA)
    finish = honest(bench)
    bench.settle()
    for message in messages:
        arrive(bench, message, "who knows")
    bench.settle()
    assert bench.decode.counters()["notifications malformed"] == len(messages)
    finish()


def arrive(bench: Bench, message: bytes, agent: str) -> None:
    """Let a notification arrive at decode, as from any agent."""
    from kvrooms.transport.ports import Arrival

    bench.decode._core.transport._arrive(Arrival(agent, message))


ALL = (Part(PartKind.KV, 0, 0, 2), Part(PartKind.AUX, 0, 0, 1), Part(PartKind.STATE, 0, 0, 1))
FORGED: dict[str, Callable[[int, int, str], tuple[int, int, str]]] = {
    "another token": lambda grant, token, agent: (grant, token ^ 1, agent),
    "another grant": lambda grant, token, agent: (grant + 1, token, agent),
    "another agent": lambda grant, token, agent: (grant, token, "kvrooms-0000000000000001"),
    "no agent": lambda grant, token, agent: (grant, token, ""),
    "grant 0": lambda grant, token, agent: (0, token, agent),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_completion_completes_nothing(forged: str) -> None:
    for seed in range(10):
        bench = Bench(seed, SWA)
        finish = honest(bench)
        bench.settle()
        (grant,) = bench.decode._core._by_token.values()
        number, token, agent = FORGED[forged](grant.number, grant.token, grant.peer.agent)
        arrive(bench, notify.encode(number, token, ALL), agent)
        bench.settle()
        assert bench.decode.counters()["notifications of no open grant"] == 1
        assert bench.held[0].room.phase == "KV"
        finish()
        arrive(bench, notify.encode(grant.number, grant.token, ALL), grant.peer.agent)  # of a room that is over
        bench.settle()
        assert bench.decode.tables()["tokens"] == 0


NOT_OWED: dict[str, Part] = {
    "a page too many": Part(PartKind.KV, 0, 1, 2),
    "pages far away": Part(PartKind.KV, 0, 2**30, 1),
    "a page that decode holds": Part(PartKind.KV, 0, 0, 1),
    "a second aux": Part(PartKind.AUX, 0, 1, 1),
    "an index too many": Part(PartKind.STATE, 0, 0, 2),
    "another component": Part(PartKind.STATE, 1, 0, 1),
}


@pytest.mark.parametrize("part", NOT_OWED)
def test_positions_that_are_not_owed_fail_the_room_and_no_other(part: str) -> None:
    """Only who holds the token can say it: the peer of this grant. Its room fails, and the range waits for its word."""
    bench = Bench(3, SWA)
    finish = honest(bench)
    plan = bench.plan(2, prefix=1, state={"swa": 1})
    receiver, sender = bench.receive(plan, 8), bench.offer(plan, 8)
    bench.settle()
    grant = next(g for g in bench.decode._core._by_token.values() if g.record.key.room == 8)
    arrive(bench, notify.encode(grant.number, grant.token, (NOT_OWED[part],)), grant.peer.agent)
    bench.finish(receiver, sender)
    for room, origin in ((receiver, "peer"), (sender, "peer")):
        failure: Any = room.failure
        assert (failure.reason, failure.origin) == (Reason.PROTOCOL, origin)
        assert "are not owed" in failure.detail
    bench.settle()
    assert receiver.memory_free
    finish()


# -- the checks can fail -----------------------------------------------------------------------------------------------


def check_notifications() -> None:
    """Every forged and every impossible completion."""
    for forged in FORGED:
        test_a_forged_completion_completes_nothing(forged)
    for part in NOT_OWED:
        test_positions_that_are_not_owed_fail_the_room_and_no_other(part)


def test_the_checks_pass_without_a_mutant() -> None:
    check_notifications()


@named(
    [
        Mutant(DecodeCore, "_arrival", " or grant.peer.agent != agent", ""),
        Mutant(DecodeCore, "_arrival", " or grant.number != grant_number", ""),
        Mutant(DecodeCore, "_arrival", "self._by_token.get(token)", "next(iter(self._by_token.values()), None)"),
        Mutant(DecodeCore, "_arrival", "not within(grant.manifest, kind, component, first, first + size)", "False"),
        Mutant(decode_arrivals, "within", "a <= start and stop <= b", "a <= start"),
    ]
)
def test_the_checks_find_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_notifications)
