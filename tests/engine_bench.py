"""Engines in a simulated world with real memory, and an oracle that knows every byte of it and no engine's tables.

A `Plan` says where each position of one room lies on both sides. A `Bench` holds engines, draws plans whose items no
other live room has, and audits at every step of the world:

- a destination that is said to be free has no write to it in flight, and holds the right bytes if its room is DONE;
- a source that is said to be free is read by no write in flight;
- both are overwritten at once, so that a write which comes later, or reads later, is found by `check_bytes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvrooms import Buffer, Component, DecodeEngine, Memory, PrefillEngine, Status
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.world import Faults, World

INDEXED = ("swa", "index")
ALWAYS = ("conv", "ssm")
UNTOUCHED, FREED, SPENT = 0xA5, 0x5A, 0xEE
Bytes = npt.NDArray[np.uint8]
Items = dict[str, list[int]]


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
        kv = [Buffer(layer, role, a) for (layer, role), a in zip(roles, self.parts["kv"], strict=True)]
        aux = dict(zip(("token", "logprob"), self.parts["aux"], strict=False))
        state = [self._component(name) for name in shape.components]
        self.memory = Memory(page_size=16, kv=kv, aux=aux, state=state)

    def _component(self, name: str) -> Component:
        buffers = [Buffer(90 + i, "s", array) for i, array in enumerate(self.parts[name])]
        return Component(name, "some", "always" if name in ALWAYS else "when_indexed", buffers)

    def read(self, part: str, items: Sequence[int]) -> list[Bytes]:
        """A copy of some items, per buffer."""
        return [buffer[list(items)].copy() for buffer in self.parts[part]]

    def fill(self, part: str, items: Sequence[int], byte: int) -> None:
        """Overwrite some items."""
        for buffer in self.parts[part]:
            buffer[list(items)] = byte

    def ranges(self, part: str, items: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The address ranges of some items."""
        for buffer in self.parts[part]:
            for item in items:
                start = buffer.ctypes.data + item * buffer.shape[1]
                yield start, start + buffer.shape[1]


def source_pool(shape: Shape, seed: int, **sizes: int) -> Pool:
    """Memory full of different bytes."""
    draw = np.random.default_rng(seed)
    return Pool(shape, lambda n, m: draw.integers(0, 256, (n, m), dtype=np.uint8), **sizes)


def target_pool(shape: Shape, **sizes: int) -> Pool:
    """Memory that nobody has written to."""
    return Pool(shape, lambda n, m: np.full((n, m), UNTOUCHED, dtype=np.uint8), **sizes)


class Plan:
    """One room: where each position lies. kv: all pages of the prompt on the source, those owed on the target."""

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


class Side:
    """An engine, its memory, and which items no room has."""

    def __init__(self, engine: Any, pool: Pool, draw: random.Random) -> None:
        self.engine = engine
        self.pool = pool
        self.free = {part: list(range(len(buffers[0]))) for part, buffers in pool.parts.items() if buffers}
        self.expected = {part: [b.copy() for b in buffers] for part, buffers in pool.parts.items()}
        self._draw = draw

    def take(self, part: str, count: int) -> list[int]:
        """Items that no room has, in any order."""
        free = self.free.get(part, [])
        self._draw.shuffle(free)
        taken, free[:] = free[:count], free[count:]
        assert len(taken) == count, f"the test asks for more {part} than there is"
        return taken

    def give_back(self, items: Items, byte: int) -> None:
        """Overwrite items, and hand them out again."""
        for part, some in items.items():
            self.pool.fill(part, some, byte)
            for expected in self.expected[part] if some else ():
                expected[some] = byte
            if some:
                self.free[part] += some

    @property
    def name(self) -> str:
        """The engine's name."""
        return str(self.engine.name)


class Held(NamedTuple):
    """A room that has items of a side."""

    room: DecodeRoom | PrefillRoom
    side: Side
    plan: Plan


class Bench:
    """A world with prefill and decode engines. `prefills` and `decodes` list the sides."""

    def __init__(
        self,
        seed: int = 0,
        shape: Shape = DENSE,
        *,
        prefills: int = 1,
        decodes: int = 1,
        faults: Faults | None = None,
        settings: EngineSettings | None = None,
        **sizes: int,
    ) -> None:
        self.world = World(seed, faults)
        self.shape = shape
        self.settings = settings or EngineSettings()
        self.sizes = sizes
        self.prefills = [self.add_prefill(f"prefill-{i}", seed + i) for i in range(prefills)]
        self.decodes = [self.add_decode(f"decode-{i}") for i in range(decodes)]
        self.held: list[Held] = []
        self.audits = 0

    def add_prefill(self, name: str, seed: int = 0) -> Side:
        """A prefill engine of this name, in place of one that had it before."""
        pool = source_pool(self.shape, seed, **self.sizes)
        assembly = self.world.assemble(name, pool.memory, self.settings, listen=True)
        return Side(PrefillEngine(pool.memory, settings=self.settings, assembly=assembly), pool, self.world.random)

    def add_decode(self, name: str) -> Side:
        """A decode engine."""
        pool = target_pool(self.shape, **self.sizes)
        assembly = self.world.assemble(name, pool.memory, self.settings)
        return Side(DecodeEngine(pool.memory, settings=self.settings, assembly=assembly), pool, self.world.random)

    @property
    def prefill(self) -> PrefillEngine:
        """The first prefill engine."""
        engine: PrefillEngine = self.prefills[0].engine
        return engine

    @property
    def decode(self) -> DecodeEngine:
        """The first decode engine."""
        engine: DecodeEngine = self.decodes[0].engine
        return engine

    def crash(self, side: Side) -> None:
        """kill -9; a prefill engine comes back under its name, with other memory. Its own rooms are nobody's."""
        self.world.kill(side.name)
        self.held = [held for held in self.held if held.side is not side]
        if side in self.prefills:
            self.prefills[self.prefills.index(side)] = self.add_prefill(side.name, self.world.random.randrange(1000))
        else:
            name = f"{side.name}+"
            self.decodes[self.decodes.index(side)] = self.add_decode(name)

    # -- rooms -----------------------------------------------------------------------------------------------------

    def plan(self, pages: int = 3, *, prefix: int = 0, aux: bool = True, state: dict[str, int] | None = None,
             prefill: int = 0, decode: int = 0) -> Plan:  # fmt: skip
        """Draw items for a room of so many pages, of which decode holds `prefix`, and indices per component."""
        counts = {"kv": pages, "aux": int(aux and self.shape.aux), **dict.fromkeys(self.shape.components, 0)}
        counts.update({name: 1 for name in self.shape.components if name in ALWAYS})
        counts.update(state or {})
        giver, taker = self.prefills[prefill], self.decodes[decode]
        source = {part: giver.take(part, count) for part, count in counts.items()}
        target = {part: taker.take(part, count - (prefix if part == "kv" else 0)) for part, count in counts.items()}
        owed = {part: items[prefix if part == "kv" else 0 :] for part, items in source.items()}
        return Plan(source, target, prefix, {part: giver.pool.read(part, items) for part, items in owed.items()})

    def receive(self, plan: Plan, room: int = 7, *, decode: int = 0, prefill: int = 0, **options: Any) -> DecodeRoom:
        """Open the room on decode."""
        side = self.decodes[decode]
        arguments: dict[str, Any] = {
            "bootstrap": self.prefills[prefill].engine.bootstrap,
            "instance": self.prefills[prefill].name if len(self.prefills) > 1 else "",
            "pages": plan.target["kv"],
            "aux_index": next(iter(plan.target["aux"]), None),
            "state_indices": plan.state(plan.target) or None,
            "prefix_pages": plan.prefix,
        }
        handle: DecodeRoom = side.engine.open(room, **{**arguments, **options})
        self.held.append(Held(handle, side, plan))
        return handle

    def offer(self, plan: Plan, room: int = 7, *, prefill: int = 0, early: bool = False, **options: Any) -> PrefillRoom:
        """Open the room on prefill; `early`: declare the number of pages at once."""
        side = self.prefills[prefill]
        arguments: dict[str, Any] = {
            "pages": plan.pages if early else None,
            "aux_index": next(iter(plan.source["aux"]), None),
        }
        handle: PrefillRoom = side.engine.open(room, **{**arguments, **options})
        self.held.append(Held(handle, side, plan))
        return handle

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, timers: bool = False) -> None:
        """Run the world and audit before every step."""
        self.world.run(lambda: self.audit() or until(), timers=timers)

    def finish(self, *rooms: DecodeRoom | PrefillRoom, timers: bool = False) -> None:
        """Run until rooms have ended."""
        self.run(lambda: all(room.poll().terminal for room in rooms), timers=timers)

    def reach(self, room: DecodeRoom | PrefillRoom, phase: str) -> None:
        """Run until a room is in a phase."""
        self.run(lambda: room.phase == phase)

    def until_free(self, *rooms: DecodeRoom | PrefillRoom) -> None:
        """Run, timers too, until the memory of rooms is free."""
        self.run(lambda: all(room.memory_free for room in rooms), timers=True)

    def settle(self) -> None:
        """Run until nothing happens any more without a timer."""
        while self.world.step():
            self.audit()
        self.audit()

    def steps(self, count: int, *, timers: bool = False) -> bool:
        """Run so many steps. False: nothing can happen any more."""
        for _ in range(count):
            if not self.world.step(timers=timers):
                return False
            self.audit()
        return True

    def pass_time(self, seconds: float) -> None:
        """Run, timers too, for so many seconds of the world."""
        end = self.world.now + seconds
        self.run(lambda: self.world.now >= end, timers=True)

    # -- the oracle ------------------------------------------------------------------------------------------------

    def audit(self) -> bool:
        """Look at every room whose items have been said to be free since the last audit. Always False."""
        self.audits += 1
        if any(held.room.memory_free for held in self.held):
            freed = [held for held in self.held if held.room.memory_free]
            self.held = [held for held in self.held if not held.room.memory_free]
            for held in freed:
                self._freed(held)
        return False

    def _freed(self, held: Held) -> None:
        room, side, plan = held
        assert room.poll().terminal, f"{room!r} is said to be free, and goes on"
        receives = isinstance(room, DecodeRoom)
        items = plan.target if receives else plan.source
        mine = [pair for part, some in items.items() for pair in side.pool.ranges(part, some)]
        for source, target, length in in_flight(self.world):
            at = target if receives else source
            clash = any(start < at + length and at < stop for start, stop in mine)
            assert not clash, f"{room!r} is said to be free, and a write of {length} bytes is in flight"
        if receives and room.poll() is Status.DONE:
            self.check_landed(side, plan)
        side.give_back(items, FREED if receives else SPENT)

    @staticmethod
    def check_landed(side: Side, plan: Plan) -> None:
        """Every byte of the plan is in its place."""
        for part, values in plan.values.items():
            for i, (value, found) in enumerate(zip(values, side.pool.read(part, plan.target[part]), strict=True)):
                np.testing.assert_array_equal(found, value, err_msg=f"{part}, buffer {i}")

    def check_bytes(self) -> None:
        """Every byte of every side that no live room has is what it was when its last room let go of it."""
        self.audit()
        for side in (*self.decodes, *self.prefills):
            live = [held.plan.target if isinstance(held.room, DecodeRoom) else held.plan.source
                    for held in self.held if held.side is side]  # fmt: skip
            for part, buffers in side.pool.parts.items():
                mask = np.ones(len(buffers[0]) if buffers else 0, dtype=bool)
                mask[[item for items in live for item in items[part]]] = False
                for i, (buffer, expected) in enumerate(zip(buffers, side.expected[part], strict=True)):
                    where = f"{side.name}, {part}, buffer {i}: changed after it was free, or written by a stranger"
                    np.testing.assert_array_equal(buffer[mask], expected[mask], err_msg=where)

    def check_clean(self) -> None:
        """No table holds anything of any room, and no range is claimed."""
        self.check_bytes()
        for side in (*self.decodes, *self.prefills):
            tables = side.engine.tables()
            left = {
                name: n
                for name, n in tables.items()
                if n and name not in ("links", "peers", "targets", "timers", "void")
            }
            assert not left, f"{side.name} still holds {left}"
            assert tables["timers"] <= tables["links"], f"{side.name}: a timer of nothing: {tables}"
            if tables["peers"] == tables["links"]:  # of one that went away unproven more may be remembered
                assert tables.get("void", 0) <= tables["peers"], f"{side.name}: {tables}"
        assert not self.held


def in_flight(world: World) -> Iterator[tuple[int, int, int]]:
    """The (source address, target address, length) of every descriptor that has not landed."""
    for lane in world._lanes.values():
        for action in lane.queue:
            if isinstance(action, partial) and action.func.__name__ == "_land":
                _, source, target, length, peer, _ = action.args
                if not peer._dead and not action.func.__self__._killed:  # else nothing is read nor written any more
                    yield source, target, length


def send_in(room: PrefillRoom, plan: Plan, chunks: Sequence[int], *, state: Any = None, last: bool = True) -> None:
    """Send the plan's pages in chunks of these sizes; state and, if `last`, the end go with the last chunk."""
    at = 0
    for i, size in enumerate(chunks):
        final = i == len(chunks) - 1
        if not final:
            room.send(plan.source["kv"][at : at + size])
        else:
            room.send(plan.source["kv"][at : at + size], plan.state(plan.source) if state is None else state, last=last)
        at += size


def serve_another(bench: Bench, room: int = 99, **where: int) -> None:
    """A room that agrees is served without a timer, and closed."""
    plan = bench.plan(2, **where)
    receiver = bench.receive(plan, room, **where)
    sender = bench.offer(plan, room, prefill=where.get("prefill", 0))
    send_in(sender, plan, [1, 1])
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    receiver.close()
    sender.close()
    bench.settle()
