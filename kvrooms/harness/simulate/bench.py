"""Engines in a simulated world with real memory, and an oracle that knows every byte of it and no engine's tables.

A `Bench` holds engines, draws plans whose items no other live room has, and looks on:

- at the moment a room is DONE on decode, every byte of it is in its place;
- at the moment memory is said to be free, no write to it and no read of it is in flight; it is overwritten at once, so
  that a write which comes later, or reads later, does not go unseen;
- each time bytes land, their destination is a room's that has not ended its lease, and the very room whose source they
  are read from.

What is wrong is an exception here (`Broken`, which names the property); a judge may collect it instead (`complain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...engine.decode import DecodeEngine, DecodeRoom
from ...engine.prefill import PrefillEngine, PrefillRoom
from ...engine.settings import EngineSettings
from ...protocol.status import Status
from ..faults import Faults
from ..ports import Write
from ..witness import Witness
from ..world import World
from .blocking import let_wait
from .memory import ALWAYS, DENSE, FREED, SPENT, Held, Plan, Shape, Side, source_pool, target_pool

AnyRoom = DecodeRoom | PrefillRoom
_KEPT = ("links", "peers", "targets", "timers", "void")
"""Tables that rightly hold something of connections when no room is left."""


class Broken(AssertionError):
    """A property does not hold. `property_id` names it."""

    def __init__(self, property_id: str, words: str) -> None:
        self.property_id = property_id
        super().__init__(f"{property_id}: {words}")


class Bench(Witness):
    """A world with prefill and decode engines. `prefills` and `decodes` list the sides."""

    every_room = False
    """Whether every room of the engines is opened through the bench: what lands elsewhere is then nobody's wish."""

    overwrites = True
    """Whether memory is overwritten when it is free."""

    def __init__(
        self,
        seed: int = 0,
        shape: Shape = DENSE,
        *,
        prefills: int = 1,
        decodes: int = 1,
        faults: Faults | None = None,
        settings: EngineSettings | None = None,
        pages: int = 16,
        slots: int = 8,
    ) -> None:
        self.world = World(seed, faults)
        self.world.witness = self
        self.shape = shape
        self.settings = settings or EngineSettings()
        self.sizes = {"pages": pages, "slots": slots}
        self.by_agent: dict[str, Side] = {}
        self.held: list[Held] = []
        self.prefills = [self.add_prefill(f"prefill-{i}", seed + i) for i in range(prefills)]
        self.decodes = [self.add_decode(f"decode-{i}") for i in range(decodes)]

    def add_prefill(self, name: str, seed: int = 0) -> Side:
        """A prefill engine of this name, in place of one that had it before."""
        pool = source_pool(self.shape, seed, **self.sizes)
        assembly = self.world.assemble(name, pool.memory, self.settings, listen=True)
        engine = PrefillEngine(pool.memory, settings=self.settings, assembly=assembly)
        side = Side(engine, pool, self.world.random, assembly.ports.channel)
        self.by_agent[assembly.ports.transport.agent] = side
        return side

    def add_decode(self, name: str) -> Side:
        """A decode engine."""
        pool = target_pool(self.shape, **self.sizes)
        assembly = self.world.assemble(name, pool.memory, self.settings)
        engine = DecodeEngine(pool.memory, settings=self.settings, assembly=assembly)
        side = Side(engine, pool, self.world.random, assembly.ports.channel)
        self.by_agent[assembly.ports.transport.agent] = side
        return side

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

    def crash(self, side: Side) -> Side:
        """kill -9; another engine comes in its place. Returns the newcomer."""
        self.world.kill(side.name)
        return self.replace(side)

    def replace(self, side: Side) -> Side:
        """Another engine, with other memory, in place of one that has ended: prefill under the same name.

        The rooms of the old one are nobody's. Returns the newcomer.
        """
        self.held = [held for held in self.held if held.side is not side]
        if side in self.prefills:
            new = self.add_prefill(side.name, self.world.random.randrange(1000))
            self.prefills[self.prefills.index(side)] = new
        else:
            base, _, number = side.name.partition("+")
            new = self.add_decode(f"{base}+{int(number or 0) + 1}")
            self.decodes[self.decodes.index(side)] = new
        return new

    # -- rooms -----------------------------------------------------------------------------------------------------

    def plan(
        self,
        pages: int = 3,
        *,
        prefix: int = 0,
        aux: bool = True,
        state: dict[str, int] | None = None,
        prefill: int = 0,
        decode: int = 0,
    ) -> Plan:
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
        self.hold(handle, side, plan, receives=True)
        return handle

    def offer(self, plan: Plan, room: int = 7, *, prefill: int = 0, early: bool = False, **options: Any) -> PrefillRoom:
        """Open the room on prefill; `early`: declare the number of pages at once."""
        side = self.prefills[prefill]
        arguments: dict[str, Any] = {
            "pages": plan.pages if early else None,
            "aux_index": next(iter(plan.source["aux"]), None),
        }
        handle: PrefillRoom = side.engine.open(room, **{**arguments, **options})
        self.hold(handle, side, plan, receives=False)
        return handle

    def hold(self, room: AnyRoom, side: Side, plan: Plan, *, receives: bool) -> Held:
        """A room has items of a side until it says that they are free."""
        let_wait(room, self.world)
        held = Held(room, side, plan, receives=receives)
        self.held.append(held)
        side.own(held)
        lock = side.engine.lock
        room._end.call(lock, lambda: self.ended(held))  # noqa: SLF001 - where `wait` and `await` wait, too
        room._free.call(lock, lambda: self.freed(held))  # noqa: SLF001
        return held

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, timers: bool = False) -> None:
        """Run the world."""
        self.world.run(until, timers=timers)

    def finish(self, *rooms: AnyRoom, timers: bool = False) -> None:
        """Run until rooms have ended."""
        self.run(lambda: all(room.poll().terminal for room in rooms), timers=timers)

    def reach(self, room: AnyRoom, phase: str) -> None:
        """Run until a room is in a phase."""
        self.run(lambda: room.phase == phase)

    def until_free(self, *rooms: AnyRoom) -> None:
        """Run, timers too, until the memory of rooms is free."""
        self.run(lambda: all(room.memory_free for room in rooms), timers=True)

    def settle(self) -> None:
        """Run until nothing happens any more without a timer."""
        self.world.settle()

    def steps(self, count: int, *, timers: bool = False) -> bool:
        """Run so many steps. False: nothing can happen any more."""
        return all(self.world.step(timers=timers) for _ in range(count))

    def pass_time(self, seconds: float) -> None:
        """Run, timers too, for so many seconds of the world."""
        end = self.world.now + seconds
        self.run(lambda: self.world.now >= end, timers=True)

    # -- the oracle ------------------------------------------------------------------------------------------------

    def complain(self, property_id: str, words: str, *held: Held) -> None:
        """A property does not hold; `held`: for which rooms. Raises Broken."""
        raise Broken(property_id, words)

    def ended(self, held: Held) -> None:
        """A room has ended: what is DONE has landed."""
        if held.receives and held.room.poll() is Status.DONE:
            wrong = self.not_landed(held.side, held.plan)
            if wrong:
                self.complain("S1", f"{held.room!r}, and {wrong} has not landed", held)

    def freed(self, held: Held) -> None:
        """A room's items are said to be free: nobody writes them, nobody reads them."""
        if held not in self.held:
            return
        self.held.remove(held)
        held.freed = True
        room, side = held.room, held.side
        if not room.poll().terminal:
            self.complain("S3", f"{room!r} is said to be free, and goes on", held)
        writes = [write for write in self.world.writes if held.receives or write.error is None]
        under_way = [row for write in writes for row in write.under_way(self.world)]
        if under_way:
            mine = [pair for part, some in held.items.items() for pair in side.pool.ranges(part, some)]
            for source, length, target in under_way:
                at = target if held.receives else source
                if any(start < at + length and at < stop for start, stop in mine):
                    words = f"{room!r} is said to be free, and a write of {length} bytes is in flight"
                    self.complain("S3", words, held)
        if self.overwrites:
            side.give_back(held.items, FREED if held.receives else SPENT)

    def landed(self, write: Write, source: int, destination: int, length: int) -> None:
        """Bytes have landed: in a room's memory, from the same room's."""
        taker = self.by_agent.get(write.target.agent)
        giver = self.by_agent.get(write.source.agent) if write.error is None else None  # a failed one read it before
        for offset, taken in _holders(taker, destination, length) if taker is not None else ():
            given = giver.owners.get(source + offset) if giver is not None else None
            from_room = given[0] if given is not None else None
            if taken is not None:
                self._landed_in(taken, from_room, length)
            elif self.every_room:
                self.complain("S5", f"{length} bytes landed in {write.target.name}, in an item that no room ever had")
        for _, read in _holders(giver, source, length) if giver is not None else ():
            if read is not None and read.freed:
                self.complain("S3", f"{length} bytes of {read.room!r} were read after it was said to be free", read)

    def _landed_in(self, taken: Held, given: Held | None, length: int) -> None:
        others = given is not None and given.plan is not taken.plan
        if given is not None and others and (taken.freed or not self.may_mix(given, taken)):
            self.complain(
                "S4", f"{length} bytes of {given.room!r} landed in the memory of {taken.room!r}", taken, given
            )
        elif taken.freed:
            self.complain("S3", f"{length} bytes landed in the memory of {taken.room!r}, which was free", taken)

    def may_mix(self, given: Held, taken: Held) -> bool:
        """Whether one room's bytes may be written into the memory of another, which still has a lease."""
        return False

    @staticmethod
    def not_landed(side: Side, plan: Plan) -> str:
        """What of a plan is not in its place: "" if everything is."""
        for part, values in plan.values.items():
            if not plan.target[part]:
                continue
            for i, (value, found) in enumerate(zip(values, side.pool.read(part, plan.target[part]), strict=True)):
                if value.tobytes() != found.tobytes():
                    wrong = [
                        at for at, (a, b) in enumerate(zip(value, found, strict=True)) if a.tobytes() != b.tobytes()
                    ]
                    return f"{part}, buffer {i}, positions {wrong}"
        return ""

    def check_landed(self, side: Side, plan: Plan) -> None:
        """Every byte of the plan is in its place. Raises AssertionError."""
        assert not self.not_landed(side, plan), self.not_landed(side, plan)

    def check_bytes(self) -> None:
        """Every byte of every side that no live room has is what it was when its last room let go of it."""
        for side in (*self.decodes, *self.prefills):
            live = [held.items for held in self.held if held.side is side]
            for part, buffers in side.pool.parts.items():
                mask = np.ones(len(buffers[0]) if buffers else 0, dtype=bool)
                mask[[item for items in live for item in items[part]]] = False
                for i, (buffer, expected) in enumerate(zip(buffers, side.expected(part), strict=True)):
                    if not np.array_equal(buffer[mask], expected[mask]):
                        where = f"{side.name}, {part}, buffer {i}"
                        self.complain("S3", f"{where}: changed after it was free, or written by a stranger")

    def left_over(self, side: Side) -> str:
        """What the tables of an engine hold although no room is left: "" if nothing."""
        return left_over(side.name, side.engine.tables())

    def check_clean(self) -> None:
        """No table holds anything of any room, and no range is claimed."""
        self.check_bytes()
        for side in (*self.decodes, *self.prefills):
            left = self.left_over(side)
            if left:
                self.complain("C1", left)
        assert not self.held


def left_over(name: str, tables: dict[str, int]) -> str:
    """What tables of an engine hold although no room is left: "" if nothing."""
    left = {table: n for table, n in tables.items() if n and table not in _KEPT}
    if left:
        return f"{name} still holds {left}"
    if tables["timers"] > tables["links"]:
        return f"{name}: a timer of nothing: {tables}"
    if tables["peers"] == tables["links"] and tables.get("void", 0) > tables["peers"]:
        return f"{name}: void grants of nobody: {tables}"  # of one that went away unproven more may be kept
    return ""


def _holders(side: Side, at: int, length: int) -> Iterator[tuple[int, Held | None]]:
    """Offset and holder (the last one, if there is none now; None: there never was one) of each item in a range."""
    offset = 0
    while offset < length:
        entry = side.owners.get(at + offset)
        if entry is None:
            yield offset, None
            return
        yield offset, entry[0]
        offset += entry[1]


def in_flight(world: World) -> Iterator[tuple[int, int, int]]:
    """The (source address, target address, length) of every descriptor that has not landed."""
    for write in world.writes:
        for source, length, target in write.under_way(world):
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


def serve_another(bench: Bench, room: int = 99, *, prefill: int = 0, decode: int = 0) -> None:
    """A room that agrees is served without a timer, and closed."""
    plan = bench.plan(2, prefill=prefill, decode=decode)
    receiver = bench.receive(plan, room, prefill=prefill, decode=decode)
    sender = bench.offer(plan, room, prefill=prefill)
    send_in(sender, plan, [1, 1])
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
    receiver.close()
    sender.close()
    bench.settle()
