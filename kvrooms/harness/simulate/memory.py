"""Real memory for simulated engines, and an oracle's knowledge of it: who holds each item, and what it must contain.

A `Plan` says where each position of one room lies on both sides and which bytes it has; a `Side` is an engine with its
memory and knows which items no room has. No engine's table is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...protocol.memory import Buffer, Component, Memory

INDEXED = ("swa", "index")
ALWAYS = ("conv", "ssm")
UNTOUCHED, FREED, SPENT = 0xA5, 0x5A, 0xEE
Bytes = npt.NDArray[np.uint8]
Items = dict[str, list[int]]
"""Per part ("kv", "aux", or a component) some items, in the order of their positions."""


class Shape(NamedTuple):
    """A layout: so many components owed when_indexed, and always; layers of K and V; aux or not."""

    indexed: int = 0
    always: int = 0
    layers: int = 2
    aux: bool = True
    item: int = 16

    @property
    def components(self) -> tuple[str, ...]:
        """Their names, in the layout's order."""
        return (*INDEXED[: self.indexed], *ALWAYS[: self.always])


DENSE = Shape()


class Pool:
    """One side's memory: per part ("kv", "aux", or a component) its buffers, each [items, bytes]."""

    def __init__(self, shape: Shape, make: Callable[[int, int], Bytes], *, pages: int = 16, slots: int = 8) -> None:
        self.shape = shape
        roles = [(layer, role) for layer in range(shape.layers) for role in "kv"]
        self.parts: dict[str, list[Bytes]] = {"kv": [make(pages, shape.item) for _ in roles]}
        self.parts["aux"] = [make(slots, 4), make(slots, 8)] if shape.aux else []
        for name in shape.components:
            self.parts[name] = [make(slots, 8), make(slots, 12)]
        self.places = {
            part: [(int(buffer.ctypes.data), buffer.shape[1]) for buffer in buffers]
            for part, buffers in self.parts.items()
        }
        kv = [Buffer(layer, role, a) for (layer, role), a in zip(roles, self.parts["kv"], strict=True)]
        aux = dict(zip(("token", "logprob"), self.parts["aux"], strict=False))
        state = [self._component(name) for name in shape.components]
        self.memory = Memory(page_size=16, kv=kv, aux=aux, state=state)

    def _component(self, name: str) -> Component:
        buffers = [Buffer(90 + i, "s", array) for i, array in enumerate(self.parts[name])]
        return Component(name, "some", "always" if name in ALWAYS else "when_indexed", buffers)

    def read(self, part: str, items: Sequence[int]) -> list[Bytes]:
        """A copy of some items, per buffer."""
        listed = list(items)
        return [buffer[listed] for buffer in self.parts[part]]

    def fill(self, part: str, items: Sequence[int], byte: int) -> None:
        """Overwrite some items."""
        for buffer in self.parts[part]:
            buffer[list(items)] = byte

    def ranges(self, part: str, items: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The address ranges of some items."""
        for base, length in self.places[part]:
            for item in items:
                yield base + item * length, base + (item + 1) * length


def source_pool(shape: Shape, seed: int, **sizes: int) -> Pool:
    """Memory full of different bytes."""
    draw = np.random.default_rng(seed)
    return Pool(shape, lambda n, m: draw.integers(0, 256, (n, m), dtype=np.uint8), **sizes)


def target_pool(shape: Shape, **sizes: int) -> Pool:
    """Memory that nobody has written to."""
    return Pool(shape, lambda n, m: np.full((n, m), UNTOUCHED, dtype=np.uint8), **sizes)


class Plan:
    """One room: where each position lies. kv: all pages of the prompt on the source, those owed on the target.

    values: per part and buffer, the bytes that are owed.
    """

    def __init__(self, source: Items, target: Items, prefix: int, values: dict[str, list[Bytes]]) -> None:
        self.source = source
        self.target = target
        self.prefix = prefix
        self.values = values

    @property
    def pages(self) -> int:
        """How many pages the prompt has."""
        return len(self.source["kv"])

    def state(self, items: Items) -> dict[str, list[int]]:
        """The state indices of one side, by component."""
        return {name: some for name, some in items.items() if name not in ("kv", "aux")}


class Held:
    """A room that has items of a side. freed: the engine has said that they are free again. note: a judge's."""

    def __init__(self, room: Any, side: Side, plan: Plan, *, receives: bool) -> None:
        self.room = room
        self.side = side
        self.plan = plan
        self.receives = receives
        self.freed = False
        self.note: Any = None

    @property
    def items(self) -> Items:
        """What it has."""
        return self.plan.target if self.receives else self.plan.source


class Side:
    """An engine, its memory, its control channel, and which items no room has."""

    def __init__(self, engine: Any, pool: Pool, draw: random.Random, channel: Any = None) -> None:
        self.engine = engine
        self.channel = channel
        self.pool = pool
        self.free = {part: list(range(len(buffers[0]))) for part, buffers in pool.parts.items() if buffers}
        self.owners: dict[int, tuple[Held, int]] = {}
        """By the address of an item of a buffer: who has it, or had it last, and its length."""
        self._before = {part: [b.copy() for b in buffers] for part, buffers in pool.parts.items()}
        self._filled: dict[str, dict[int, int]] = {part: {} for part in pool.parts}
        self._draw = draw

    def take(self, part: str, count: int) -> list[int]:
        """Items that no room has, in any order."""
        if not count:
            return []
        free = self.free.get(part, [])
        self._draw.shuffle(free)
        taken, free[:] = free[:count], free[count:]
        assert len(taken) == count, f"more {part} is asked for than there is"
        return taken

    def own(self, held: Held) -> None:
        """Its items are a room's from here on."""
        owners = self.owners
        for part, some in held.items.items():
            for base, length in self.pool.places[part]:
                for item in some:
                    owners[base + item * length] = (held, length)

    def give_back(self, items: Items, byte: int) -> None:
        """Overwrite items, and hand them out again."""
        for part, some in items.items():
            if some:
                self.pool.fill(part, some, byte)
                self._filled[part].update(dict.fromkeys(some, byte))
                self.free[part] += some

    def expected(self, part: str) -> list[Bytes]:
        """What every item of a part must contain unless a room has it."""
        for item, byte in self._filled[part].items():
            for before in self._before[part]:
                before[item] = byte
        return self._before[part]

    @property
    def name(self) -> str:
        """The engine's name."""
        return str(self.engine.name)
