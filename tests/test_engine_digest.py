"""Digests: one wrong byte, anywhere, and the room fails on both sides; nothing wrong, and it is as without them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from engine_bench import Bench, Shape, send_in
from engine_peers import HandPrefill
from mutants import Mutant, dies, named

from kvrooms import Status
from kvrooms.engine import digests, sends
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ports import SimTransport
from kvrooms.protocol import notify, wire
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.notify import PartKind

SHAPE = Shape(indexed=1, always=1)


class Damage:
    """Flips a bit of the n-th descriptor that lands."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        land = SimTransport._land

        def damaged(transport: SimTransport, write: Any, row: tuple[int, int, int]) -> None:
            land(transport, write, row)
            self.left -= 1
            if self.left == 0:
                _, length, target = row
                byte = (ctypes.c_ubyte * length).from_address(target)
                byte[length // 2] ^= 16

        patch.setattr(SimTransport, "_land", damaged)


def room(seed: int, *, digest: int = 1, piece_bytes: int = 100, prefix: int = 1) -> tuple[Bench, Any, Any]:
    """A room with everything, to its end; small pieces, so that there are many."""
    bench = Bench(seed, SHAPE, settings=EngineSettings(piece_bytes=piece_bytes, digest=digest))
    plan = bench.plan(6, prefix=prefix, state={"swa": 3})
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [2, 0, 4])
    bench.run(lambda: receiver.poll().terminal)
    return bench, receiver, sender


@pytest.mark.parametrize("piece_bytes", [40, 100, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_right_passes(seed: int, piece_bytes: int) -> None:
    bench, receiver, sender = room(seed, piece_bytes=piece_bytes)
    assert receiver.poll() is Status.DONE, receiver.failure
    bench.finish(sender)
    bench.settle()
    bench.check_bytes()


LANDINGS = 5 * 4 + 3 * 2 + 2 + 2
"""Descriptors of that room: pages owed, window, recurrent state, aux; times their buffers."""


def check_damage(patch: pytest.MonkeyPatch, at: int, piece_bytes: int = 100) -> None:
    with patch.context() as damage:
        damaged = Damage(damage, at)
        _, receiver, _sender = room(at, piece_bytes=piece_bytes)
        assert damaged.left <= 0
        assert receiver.poll() is Status.FAILED, "one byte is wrong, and the room is DONE"
        assert receiver.failure.reason is Reason.CORRUPTED
        assert receiver.failure.retryable


@pytest.mark.parametrize("at", range(1, LANDINGS + 1))
def test_one_wrong_byte_fails_the_room(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_damage(monkeypatch, at)


def test_the_other_side_learns_it_and_the_memory_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    Damage(monkeypatch, 3)
    bench, receiver, sender = room(1)
    bench.finish(sender)
    assert (sender.failure.reason, sender.failure.origin) == (Reason.CORRUPTED, "peer")
    bench.until_free(receiver, sender)


def test_without_digests_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    Damage(monkeypatch, 3)
    with pytest.raises(AssertionError):  # the bench does, and that is how one knows that the damage was done
        room(3, digest=0)[0].settle()


@named([
    Mutant(digests.Digester, "of", "in buffers", "in buffers[:1]"),
    Mutant(digests, "_runs", "int(stop - start)", "1"),
    Mutant(DecodeCore, "_intact", "if digest == (self._digester.of(kind, place, items),):", "if digest:"),
    Mutant(DecodeCore, "_intact", "if kind is PartKind.STATE else 0", "if False else 0"),
    Mutant(PrefillPosting, "_digest", "if kind is PartKind.STATE else 0", "if False else 0"),
    Mutant(sends, "sent_items", "max(0, start - first)", "start"),
])  # fmt: skip
def test_the_check_of_digests_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def check() -> None:
        for seed in range(3):
            assert room(seed)[1].poll() is Status.DONE
        for at in range(1, LANDINGS + 1):
            check_damage(monkeypatch, at, piece_bytes=1 << 20)

    dies(check)


def test_a_notification_without_the_digest_that_was_asked_for_completes_nothing() -> None:
    bench = Bench(5, settings=EngineSettings(digest=1), prefills=2)
    hand = HandPrefill(bench)
    receiver = bench.receive(bench.plan(2), instance="hand")
    hand.join()
    (metadata,) = hand.heard(wire.Metadata)
    assert metadata.digest
    hand.notify(notify.encode(metadata.grant, metadata.token, (notify.Part(PartKind.KV, 0, 0, 2),)))
    bench.settle()
    assert receiver.failure.reason is Reason.CORRUPTED
    assert "without the digest" in receiver.failure.detail
