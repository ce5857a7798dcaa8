"""A bad day: rooms opened, sent, aborted and closed at random while engines stall and connections end.

Whatever happens, rooms end, no byte of a free range changes, and afterwards the engines are as new. Everything is drawn
from one seed.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from engine_bench import Bench, Plan, Shape, Side, in_flight

from kvrooms.harness.stateful.stage import SHORT
from kvrooms.harness.world import Faults
from kvrooms.transport.ports import CloseCause


class Open(NamedTuple):
    """A room: both handles, its plan, and how many pages were sent."""

    receiver: Any
    sender: Any
    plan: Plan
    sent: list[int]


class Chaos:
    """One bad day."""

    def __init__(self, seed: int, faults: Faults, *, decodes: int = 2, rooms: int = 14) -> None:
        self.bench = Bench(seed, Shape(indexed=1, layers=1), decodes=decodes, settings=SHORT, pages=24, slots=12)
        self.faults = faults
        self.draw = self.bench.world.random
        self.numbers = itertools.count()
        self.open: list[Open] = []
        self.rooms = rooms
        self.widows: list[Any] = []
        self.seen: set[str] = set()

    def day(self) -> None:
        """The day, and the evening: everything heals, ends and is cleaned up."""
        world = self.bench.world
        world.faults = self.faults
        while self.rooms or (self.open and self.draw.random() < 0.9):
            act = self.draw.choice([self.begin, self.begin, self.send, self.send, self.send, self.end, self.disturb])
            act()
            self.bench.steps(self.draw.randrange(40), timers=True)
        self.heal()
        rooms = [*self.widows, *(room for opened in self.open for room in (opened.receiver, opened.sender))]
        self.bench.finish(*rooms, timers=True)
        for room in rooms:
            self.note(room)
            room.close()
        self.bench.run(self.only_orphans, timers=True)
        for side in self.bench.decodes:
            side.engine.peer_fenced(self.bench.prefills[0].name)
        self.bench.run(lambda: not self.bench.held and self.idle(), timers=True)
        self.bench.steps(100, timers=True)  # a few heartbeats
        self.bench.check_clean()

    def only_orphans(self) -> bool:
        """Whether all that is held was granted to dead processes that were cut off before: there is no proof.

        Then only the orchestrator's word helps, and it is true.
        """
        alive = {side.engine._core.incarnation for side in self.bench.prefills}
        peers = [peer for side in self.bench.decodes for peer in side.engine._core._peers.values()]
        orphans = sum(len(peer.grants) for peer in peers if peer.incarnation not in alive)
        return len(self.bench.held) == orphans

    def idle(self) -> bool:
        """Whether only connections are left."""
        engines = [side.engine for side in (*self.bench.decodes, *self.bench.prefills)]
        left = ("rooms", "grants", "parked", "posted", "keys", "claims", "tickets", "in_flight")
        return not any(engine.tables().get(name, 0) for engine in engines for name in left)

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        world = self.bench.world
        world.faults = Faults()
        world.writes_held = False
        for side in (*self.bench.decodes, *self.bench.prefills):
            world.stall(side.name, stalled=False)

    # -- what happens ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open a room on both sides, if there is memory for it."""
        decode = self.draw.randrange(len(self.bench.decodes))
        enough = len(self.bench.prefills[0].free["kv"]) >= 5 and len(self.bench.decodes[decode].free["kv"]) >= 5
        slots = min(len(side.free[part]) for side in (self.bench.prefills[0], self.bench.decodes[decode])
                    for part in ("aux", "swa"))  # fmt: skip
        if not self.rooms or not enough or slots < 2:
            return
        self.rooms -= 1
        number = next(self.numbers)
        plan = self.bench.plan(self.draw.randrange(1, 5), decode=decode, state={"swa": self.draw.randrange(3)})
        if self.draw.random() < 0.5:
            receiver = self.bench.receive(plan, number, decode=decode)
            sender = self.bench.offer(plan, number)
        else:
            sender = self.bench.offer(plan, number)
            receiver = self.bench.receive(plan, number, decode=decode)
        self.open.append(Open(receiver, sender, plan, [0]))

    def send(self) -> None:
        """Send something of a room that has not ended."""
        ready = [o for o in self.open if not o.sender.poll().terminal and o.sent[0] <= o.plan.pages]
        if not ready:
            return
        opened = self.draw.choice(ready)
        at, pages = opened.sent[0], opened.plan.source["kv"]
        if at == len(pages):
            opened.sender.send([], opened.plan.state(opened.plan.source), last=True)
        else:
            opened.sender.send(pages[at : at + 1])
        opened.sent[0] += 1

    def end(self) -> None:
        """Abort a room on one side, or close it on both."""
        if not self.open:
            return
        opened = self.draw.choice(self.open)
        side = self.draw.choice([opened.receiver, opened.sender])
        if self.draw.random() < 0.4:
            side.abort("on a bad day")
            return
        for room in (opened.receiver, opened.sender):
            self.note(room)
            room.close()
        self.open.remove(opened)

    def note(self, room: Any) -> None:
        """Remember how a room ended, so that a test can see that days differ."""
        status = room.poll().name
        self.seen.add(room.failure.reason.value if room.failure else status)
        if room.poll().terminal and not room.memory_free:
            self.seen.add(f"{type(room).__name__} {status}, memory not free")

    def disturb(self) -> None:
        """Stall or wake an engine, cut a connection, hold writes in flight or let them land."""
        world = self.bench.world
        side = self.draw.choice([*self.bench.decodes, *self.bench.prefills])
        if self.draw.random() < 0.06:
            self.crash(side)
            return
        match self.draw.randrange(6):
            case 0:
                world.stall(side.name)
                self.seen.add("stall")
            case 1 | 2:
                world.stall(side.name, stalled=False)
            case 3:
                side.engine._core.channel.cut(CloseCause.TIMED_OUT)
                self.seen.add("cut in flight" if any(in_flight(world)) else "cut")
            case 4:
                world.writes_held = True
                self.seen.add("held")
            case 5:
                world.writes_held = False

    def crash(self, side: Side) -> None:
        """An engine dies and another comes in its place."""
        self.bench.crash(side)
        gone = [o for o in self.open if side.engine in (o.receiver._desk, o.sender._desk)]
        self.open = [opened for opened in self.open if opened not in gone]
        for opened in gone:  # the survivors are closed later: by then they must have ended
            self.widows += [room for room in (opened.receiver, opened.sender) if room._desk is not side.engine]
        self.widows = [room for room in self.widows if room._desk is not side.engine]
        self.seen.add(f"{type(side.engine).__name__} crashed")
