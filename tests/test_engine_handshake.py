"""Who may connect, and what a METADATA may ask for: what does not fit is refused in words, and nobody else notices."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_bench import Bench, Pool, Shape, send_in, serve_another
from engine_peers import HandDecode, HandPrefill, pack

from kvrooms import Buffer, Component, Memory, Status
from kvrooms.protocol import wire
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.layout import Region, Regions
from kvrooms.protocol.manifest import Manifest


def memory(*, page_size: int = 16, dtype: Any = np.uint8, width: int = 16, layers: int = 2, aux: str = "token",
           kind: str = "some", owed: Any = "when_indexed", name: str = "swa") -> Memory:  # fmt: skip
    """The memory of `Shape(indexed=1)`, or one that differs."""
    kv = [Buffer(n, role, np.zeros((8, width), dtype=dtype)) for n in range(layers) for role in "kv"]
    parts = [Buffer(90 + i, "s", np.zeros((8, n), dtype=np.uint8)) for i, n in enumerate((8, 12))]
    slots = {aux: np.zeros((8, 4), np.uint8), "logprob": np.zeros((8, 8), np.uint8)}
    return Memory(page_size, kv, slots, [Component(name, kind, owed, parts)])


UNEQUAL: dict[str, tuple[dict[str, Any], str]] = {
    "page size": ({"page_size": 32}, "page size: ours is 16 tokens, the peer's 32"),
    "element type": ({"dtype": np.int8}, "our element type is uint8, the peer's int8"),
    "item length": ({"width": 32}, "our items have 16 bytes, the peer's 32"),
    "layers": ({"layers": 3}, "kv: we have 4 buffers, the peer 6"),
    "aux": ({"aux": "first"}, "aux: ours is [token: uint8, 4 bytes"),
    "component": ({"name": "ssm"}, "state components: ours are ['swa'], the peer's ['ssm']"),
    "kind": ({"kind": "other"}, "state component 'swa': our kind is 'some', the peer's 'other'"),
    "owed": ({"owed": "always"}, "state component 'swa': we owe it when_indexed, the peer always"),
}


def own(assembled: Memory) -> Pool:
    """A pool around memory that a test made: only what engines and hands look at."""
    pool = Pool.__new__(Pool)
    pool.memory = assembled
    return pool


@pytest.mark.parametrize("difference", UNEQUAL)
def test_layouts_that_differ_are_refused_in_words(difference: str) -> None:
    from kvrooms import DecodeEngine

    changes, words = UNEQUAL[difference]
    for seed in range(5):
        bench = Bench(seed, Shape(indexed=1))
        assembled = memory(**changes)
        other = DecodeEngine(assembled, assembly=bench.world.assemble("other", assembled))
        state = [0] if difference == "owed" else None
        rooms = [
            other.open(n, bootstrap=bench.prefill.bootstrap, pages=[n], state_indices=state and [n]) for n in range(2)
        ]
        bench.finish(*rooms)
        for room in rooms:
            assert room.failure is not None
            assert room.failure.reason is Reason.HANDSHAKE_REFUSED
            assert words in room.failure.detail
            assert not room.failure.retryable
            assert room.memory_free
            room.close()
        serve_another(bench)
        bench.check_clean()
        assert not any(n for name, n in other.tables().items() if name not in ("links", "timers"))
        assert bench.world.now == 0
        late = other.open(9, bootstrap=bench.prefill.bootstrap, pages=[5], state_indices=state and [5])
        bench.finish(late)
        assert words in late.failure.detail


@pytest.mark.parametrize("difference", UNEQUAL)
def test_a_welcome_with_another_layout_is_refused_by_decode_too(difference: str) -> None:
    changes, words = UNEQUAL[difference]
    bench = Bench(1, Shape(indexed=1), prefills=2)
    hand = HandPrefill(bench, own(memory(**changes)))
    room = bench.receive(bench.plan(1), instance="hand")
    hand.join()
    bench.finish(room)
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED
    assert words in room.failure.detail
    assert room.memory_free


def test_an_engine_that_is_being_closed_refuses_for_now_only() -> None:
    bench = Bench(2, prefills=2)
    bench.prefill._core.closing = True
    hand = HandDecode(bench)
    hand.dial()
    hand.say(hand.hello())
    bench.settle()
    (refusal,) = hand.heard(wire.Refuse)
    assert refusal == wire.Refuse(("the engine is being closed",), Reason.SHUTDOWN, True)

    bench = Bench(2, prefills=2)
    theirs = HandPrefill(bench, bench.prefills[0].pool)
    room = bench.receive(bench.plan(1), instance="hand")
    bench.settle()
    assert theirs.heard(wire.Hello)
    theirs.say(refusal)
    bench.finish(room)
    assert room.failure == Failure(Reason.SHUTDOWN, "the engine is being closed", "peer")
    assert room.failure.retryable
    assert room.memory_free


def test_another_version_is_refused_in_words_on_both_sides() -> None:
    bench = Bench(2, prefills=2)
    hand = HandDecode(bench)
    hand.dial()
    frame = bytearray(wire.encode(hand.hello(), hand.incarnation, 0)[wire.PREFIX_LENGTH :])
    frame[0] = 9
    hand.say_raw(bytes(frame))
    bench.settle()
    words = "version: the peer speaks version 9, we speak version 1"
    assert hand.heard(wire.Refuse) == [wire.Refuse((words,), Reason.HANDSHAKE_REFUSED, False)]
    assert hand.closed

    theirs = HandPrefill(bench, bench.prefills[0].pool)
    room = bench.receive(bench.plan(1), instance="hand")
    bench.settle()
    assert theirs.heard(wire.Hello)
    frame = bytearray(wire.encode(theirs.welcome(), theirs.incarnation, theirs.peer)[wire.PREFIX_LENGTH :])
    frame[0] = 9
    theirs.say_raw(bytes(frame))
    bench.finish(room)
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED
    assert room.failure.detail == words
    serve_another(bench)


HELLOS: dict[str, tuple[Callable[[HandDecode], dict[str, Any]], str]] = {
    "another's agent": (lambda hand: {"agent": "kvrooms-0000000000000001"}, "hello.agent"),
    "no region": (lambda hand: {"regions": Regions((), (), ())}, "regions.kv"),
    "too few aux": (lambda hand: {"regions": Regions(hand.pool.memory.regions.kv, (), ())}, "regions.aux"),
    "wild address": (lambda hand: {"regions": wild(hand)}, "leave the address space"),
    "another's metadata": (lambda hand: {"blob": b"world:kvrooms-0000000000000001"}, "metadata is not that of"),
}


def wild(hand: HandDecode) -> Regions:
    """Regions that end after the last address."""
    regions = hand.pool.memory.regions
    return Regions(tuple(Region(2**64 - 8, r.items) for r in regions.kv), regions.aux, ())


@pytest.mark.parametrize("hello", HELLOS)
def test_a_hello_that_does_not_fit_is_refused_in_words(hello: str) -> None:
    bench = Bench(3)
    changes, words = HELLOS[hello]
    hand = HandDecode(bench)
    hand.dial()
    hand.say(hand.hello(**changes(hand)), target=0)
    bench.settle()
    (refusal,) = hand.heard(wire.Refuse)
    assert words in refusal.words[0]
    assert hand.closed
    assert bench.prefill.tables()["peers"] == 0
    serve_another(bench)


# -- METADATA made by hand ---------------------------------------------------------------------------------------------

FULL = ("token", "logprob")
GRANTS: dict[str, tuple[dict[str, Any], str]] = {
    "page too high": ({"pages": pack(0, 16)}, "metadata.pages: index 16 is not between 0 and 15"),
    "page negative": ({"pages": pack(-1, 1)}, "metadata.pages: index -1"),
    "too few pages": ({"pages": pack(0)}, "metadata.pages: 4 bytes, 8 are needed"),
    "odd bytes": ({"pages": b"\0\0\0"}, "metadata.pages: 3 bytes"),
    "aux slot too high": ({"aux_index": 8}, "metadata.aux_index"),
    "aux slot missing": ({"aux_index": -1}, "metadata.aux_index"),
    "aux slot for nothing": ({"manifest": Manifest(2, ((0, 2),), (), ())}, "metadata.aux_index"),
    "other aux": ({"manifest": Manifest(2, ((0, 2),), ("token",), ())}, "manifest.aux"),
    "read": ({"direction": "read"}, "metadata.direction: 'read' is not supported"),
    "positions past the end": ({"manifest": Manifest(1, ((0, 2),), FULL, ())}, "manifest.kv: position 1"),
    "overlap": ({"manifest": Manifest(4, ((0, 2), (1, 3)), FULL, ()), "pages": pack(0, 1, 2, 3)}, "manifest.kv"),
    "other component": ({"manifest": Manifest(2, ((0, 2),), FULL, (("conv", 1),)), "state": (b"",)}, "manifest.state"),
    "component twice": (
        {"manifest": Manifest(2, ((0, 2),), FULL, (("swa", 1), ("swa", 1))), "state": (pack(0), pack(1))},
        "manifest.state",
    ),
    "state without manifest": ({"state": (pack(0),)}, "metadata.state: 1 components, the manifest has 0"),
    "state missing": ({"manifest": Manifest(2, ((0, 2),), FULL, (("swa", 1),))}, "metadata.state: 0 components"),
    "state too short": (
        {"manifest": Manifest(2, ((0, 2),), FULL, (("swa", 2),)), "state": (pack(0),)},
        "metadata.state.swa: 4 bytes, 8 are needed",
    ),
    "state too high": (
        {"manifest": Manifest(2, ((0, 2),), FULL, (("swa", 1),)), "state": (pack(8),)},
        "metadata.state.swa: index 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("opened", [True, False], ids=["room open", "room not open"])
@pytest.mark.parametrize("grant", GRANTS)
def test_a_metadata_that_does_not_fit_is_rejected_and_nobody_else_notices(grant: str, opened: bool) -> None:
    changes, words = GRANTS[grant]
    bench = Bench(4, Shape(indexed=1))
    hand = HandDecode(bench).join()
    plan = bench.plan(2)
    sender = bench.offer(plan) if opened else None
    bench.settle()
    before = bench.prefill.tables()
    hand.say(hand.metadata(1, **changes))
    bench.settle()
    (rejection,) = hand.heard(wire.Reject)
    assert (rejection.grant, rejection.reason) == (1, Reason.PROTOCOL)
    assert words in rejection.detail
    assert {**bench.prefill.tables(), "void": 0} == {**before, "void": 0}
    hand.say(hand.metadata(1))  # what was rejected stays void, whatever it says now
    bench.settle()
    assert [r.reason for r in hand.heard(wire.Reject)] == [Reason.PROTOCOL, Reason.REFUSED]
    assert not hand.heard(wire.Accept)
    receiver = bench.receive(plan)
    sender = sender or bench.offer(plan)
    send_in(sender, plan, [2])
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    assert all((buffer == 0xA5).all() for buffers in hand.pool.parts.values() for buffer in buffers)


def test_a_metadata_made_by_hand_that_fits_is_served() -> None:
    """The tests above are worth something: the same frame without a fault is accepted and written to."""
    bench = Bench(5, Shape(indexed=1))
    hand = HandDecode(bench).join()
    plan = bench.plan(2)
    sender = bench.offer(plan)
    hand.say(hand.metadata(1, pages=pack(5, 3), aux_index=2))
    send_in(sender, plan, [2])
    bench.finish(sender)
    assert sender.poll() is Status.DONE
    assert hand.heard(wire.Accept) == [wire.Accept(1)]
    plan.target.update(kv=[5, 3], aux=[2])
    bench.settle()
    for part in ("kv", "aux"):
        for value, found in zip(plan.values[part], hand.pool.read(part, plan.target[part]), strict=True):
            np.testing.assert_array_equal(found, value)
    assert len(hand.transport.arrivals()) >= 1


@pytest.mark.parametrize("body", [wire.Accept(1), wire.Ack(1), wire.Welcome("a", "b", Bench().decode.memory.layout)])
def test_frames_of_the_other_side_are_counted_and_nothing_else(body: wire.Body) -> None:
    bench = Bench(6)
    hand = HandDecode(bench).join()
    before = bench.prefill.tables()
    hand.say(body)
    bench.settle()
    assert bench.prefill.tables() == before
    assert bench.prefill.counters() == {"frames unexpected": 1}
    assert not hand.closed
    serve_another(bench)


def test_a_frame_meant_for_another_incarnation_is_dropped() -> None:
    bench = Bench(7)
    hand = HandDecode(bench).join()
    before = bench.prefill.tables()
    hand.say(hand.metadata(), target=hand.peer ^ 2)
    hand.say(hand.metadata(), source=hand.incarnation ^ 2)
    bench.settle()
    assert bench.prefill.tables() == before
    assert bench.prefill.counters() == {"frames of another incarnation": 2}


@pytest.mark.parametrize(
    "raw", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 28, struct.pack("<BBHQQQ", 1, 99, 0, 1, 2, 3) + b"x"]
)
def test_bytes_that_are_no_frame_end_their_own_connection_only(raw: bytes) -> None:
    bench = Bench(8)
    stranger, known = HandDecode(bench), HandDecode(bench).join()
    stranger.dial()
    stranger.say_raw(raw)
    known.say_raw(raw)
    bench.settle()
    assert stranger.heard(wire.Refuse)
    assert stranger.closed
    assert not (known.heard(), known.closed)[1], "a peer that is known is only counted"
    assert bench.prefill.counters()["frames malformed"] == 2
    serve_another(bench)
