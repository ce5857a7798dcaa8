"""Layer by layer: KV of a layer is sent while later ones are computed, and a page has arrived once all of it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mutants import Mutant, dies, named

from kvrooms import Buffer, DecodeEngine, InvalidArgument, Memory, PrefillEngine, Status
from kvrooms.engine import sends
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.world import World
from kvrooms.protocol import plan

LAYERS, PAGES, LENGTH = 3, 8, 64
BOOTSTRAP = "http://prefill:1"


class Pair:
    """One prefill and one decode engine in a simulated world; pages of `LAYERS` layers, k and v apart."""

    def __init__(self, seed: int, piece_bytes: int = 2**20) -> None:
        self.world, settings = World(seed), EngineSettings(piece_bytes=piece_bytes)
        draw = np.random.default_rng(seed)
        shape = (2 * LAYERS, PAGES, LENGTH)
        self.ours, self.theirs = draw.integers(1, 256, shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8)
        memories = [
            Memory(4, [Buffer(i // 2, "kv"[i % 2], buffers[i]) for i in range(2 * LAYERS)])
            for buffers in (self.ours, self.theirs)
        ]
        sending = self.world.assemble("prefill", memories[0], settings, listen=True)
        self.prefill = PrefillEngine(memories[0], assembly=sending)
        self.decode = DecodeEngine(memories[1], assembly=self.world.assemble("decode", memories[1], settings))
        self.sender = self.prefill.open(1)
        self.receiver = self.decode.open(1, bootstrap=sending.bootstrap, pages=range(PAGES))

    def end(self) -> None:
        self.world.run(lambda: self.receiver.poll().terminal and self.sender.poll().terminal)


def whole_in_time(seed: int) -> None:
    """Chunks layer by layer, each layer at its own pace: DONE with every byte, and not before the last layer's."""
    pair = Pair(seed, piece_bytes=(64, 200, 2**20)[seed % 3])
    draw = np.random.default_rng(seed)
    reached = dict.fromkeys(range(LAYERS), 0)
    while sum(reached.values()) < LAYERS * PAGES:
        layer = int(draw.choice([one for one, at in reached.items() if at < PAGES]))
        some = [one for one, at in reached.items() if at == reached[layer]][: int(draw.integers(1, LAYERS + 1))]
        count = int(draw.integers(1, PAGES - reached[layer] + 1))
        at = reached[layer]
        for one in some:
            reached[one] += count
        last = sum(reached.values()) == LAYERS * PAGES
        assert not pair.receiver.poll().terminal
        pair.sender.send(range(at, at + count), layers=some, last=last)
        if not last and seed % 2:
            pair.world.settle()
            whole = min(reached.values())
            missing = pair.receiver.record.room.ledger.senders[0].missing.kv if pair.receiver.record else ()
            assert missing == ((whole, PAGES),) or not missing or missing[0][0] <= whole
            for a, _ in missing[:1]:
                assert a <= whole, "a page is reported although a layer of it was never sent"
                assert np.array_equal(pair.ours[:, :a], pair.theirs[:, :a]), "reported before it had landed"
    pair.end()
    assert pair.receiver.poll() is pair.sender.poll() is Status.DONE
    assert np.array_equal(pair.ours, pair.theirs)


@pytest.mark.parametrize("seed", range(60))
def test_every_layer_at_its_own_pace(seed: int) -> None:
    whole_in_time(seed)


MUTANTS = [
    Mutant(plan, "reported_last", "parts if last else ()", "parts"),
    Mutant(plan, "reported_last", "last and bool(parts)", "False"),
    Mutant(sends, "_layered", "report=stop == cut", "report=True"),
    Mutant(sends.Layers, "whole", "after = self.after", "after = tuple(at + self.sent for at in self.before)"),
]


@named(MUTANTS)
def test_the_check_finds_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        for seed in range(60):
            whole_in_time(seed)

    check()
    mutant.plant(monkeypatch)
    dies(check)


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (None, {"layers": [7]}, "layers"),
        (None, {"layers": []}, "layers"),
        (None, {"layers": "0"}, "layers"),
        (None, {"layers": 3}, "layers"),
        ([0], {"layers": [0, 1]}, "layers"),
        ([0], {}, "layers"),
        ([0], {"layers": [0], "last": True}, "last"),
        ([0, 1], {"layers": [2], "last": True}, None),
    ],
)
def test_layers_that_do_not_fit_are_named(first: Any, second: dict[str, Any], field: str | None) -> None:
    pair = Pair(1)
    if first is not None:
        pair.sender.send([0, 1], layers=first)
    if field is None:
        pair.sender.send([0, 1], **second)
        return
    with pytest.raises(InvalidArgument) as caught:
        pair.sender.send([2, 3], **second)
    assert caught.value.field == field
    rest = [layer for layer in range(LAYERS) if layer not in (first or [])]
    if first is not None:
        pair.sender.send([0, 1], layers=rest)
    pair.sender.send(range(2 if first is not None else 0, PAGES), last=True)  # and the room goes on
    pair.end()
    assert pair.receiver.poll() is Status.DONE
    assert np.array_equal(pair.ours, pair.theirs)
