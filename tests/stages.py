"""Pipeline stages in a simulated world: the fewest lines that give each side several ranks."""

from __future__ import annotations

import numpy as np

from kvrooms import DecodeEngine, PrefillEngine
from kvrooms.engine.host import Place
from kvrooms.protocol.layout import Instance, Rank
from kvrooms.protocol.memory import Buffer, Component, Memory

LAYERS = 4
_PAGES, _BYTES = 16, 8


class Stages:
    """One side: the engine of each rank by number, and what lies in a page of a layer, whoever has that."""

    def __init__(self, count, components, byte):
        shares = [layers.tolist() for layers in np.array_split(np.arange(LAYERS), count)]
        self.kv = {layer: np.full((_PAGES, _BYTES), byte(layer), dtype=np.uint8) for layer in range(LAYERS)}
        self.aux = [np.full((_PAGES, 4), byte(LAYERS), dtype=np.uint8) for _ in shares]
        self.memories = [
            Memory(
                page_size=16,
                kv=[Buffer(layer, "latent", self.kv[layer]) for layer in layers],
                aux={"token": self.aux[rank]},
                state=[_component(name, layers) for name in ("swa", "index")[:components]],
            )
            for rank, layers in enumerate(shares)
        ]
        self.engines = []

    def __getitem__(self, rank):
        return self.engines[rank]

    def page(self, layer, page):
        return self.kv[layer][page].tobytes()

    def tokens(self, slot):
        return [aux[slot].tobytes() for aux in self.aux]


def _component(name, layers):
    buffers = [Buffer(layer, "s", np.zeros((_PAGES, _BYTES), dtype=np.uint8)) for layer in layers]
    return Component(name, "some", "when_indexed", buffers)


def prefill_stages(world, count, components):
    """Each page of each layer has other bytes."""
    side = Stages(count, components, lambda layer: np.arange(_PAGES)[:, None] + layer * _PAGES)
    for rank, memory in enumerate(side.memories):
        place = Place(rank, count, Rank(memory.layout))
        parts = world.assemble(f"prefill {rank}", memory, listen=True, place=place)
        side.engines.append(PrefillEngine(memory, assembly=parts))
    return side


def decode_stages(world, count, components):
    """Nobody has written to them."""
    side = Stages(count, components, lambda layer: 0xFF)
    instance = Instance(tuple(Rank(memory.layout) for memory in side.memories), 77)
    for rank, memory in enumerate(side.memories):
        parts = world.assemble(f"decode {rank}", memory, instance=instance, rank=rank)
        side.engines.append(DecodeEngine(memory, assembly=parts))
    return side
