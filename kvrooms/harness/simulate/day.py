"""The day of a simulated run: rooms are opened, sent, aborted and closed while things go wrong."""

from __future__ import annotations

import random

from ...transport.ports import CloseCause
from .callers import Callers, make_life
from .judge import Judge
from .lives import Key, Life, Trouble
from .memory import Side
from .record import Record
from .strangers import Stranger
from .swarm import draw_swarm

OPEN_MAX = 10
ACTS_MAX = 4000
_PATIENCE_S = 1e6
_HEARD_STEPS = 2000


class Day:
    """One run's day. `live` lets it pass; see `Evening` for what comes after it."""

    def __init__(self, seed: int, record: Record | None = None) -> None:
        self.swarm = draw_swarm(random.Random(seed))  # noqa: S311 - a simulation, to be replayed
        self.judge = Judge(seed, self.swarm, record)
        self.callers = Callers(self.judge)
        self.world = self.judge.world
        self.draw = self.world.random
        self.left = self.swarm.rooms
        self.serials = 0
        self.past: list[Life] = []
        self.dead: set[str] = set()
        self.killed: set[str] = set()
        self.closed: set[str] = set()
        self.stalled: set[str] = set()
        self.strangers = [Stranger(self.judge)] if self.swarm.strangers else []

    def live(self) -> None:
        """Everything that happens on that day."""
        draw, swarm, judge = self.draw, self.swarm, self.judge
        self.world.faults = swarm.faults
        for _ in range(ACTS_MAX):
            if judge.found or (not self.left and draw.random() < 0.05):
                return
            dice = draw.random()
            if dice < swarm.trouble:
                self.mischief()
            elif dice < swarm.trouble + swarm.strangers:
                self.strangers[0].act()
            elif not self.go_on() and not self.wait():
                return
            dice = draw.random()
            judge.steps(int(dice * dice * 14), timers=draw.random() < swarm.pace)

    # -- rooms -----------------------------------------------------------------------------------------------------

    def go_on(self) -> bool:
        """Let a caller do what it intends next, or begin a room. False: nobody can do anything now."""
        draw, judge = self.draw, self.judge
        may = self.callers.may
        ready = [(life, caller) for life in judge.lives for caller in life.callers if may(caller)]
        if self.left and (not ready or (len(ready) < OPEN_MAX and draw.random() < 0.25)) and self.begin():
            return True
        if not ready:
            return False
        life, caller = ready[int(draw.random() * len(ready))]
        self.callers.act(life, caller)
        if caller.closed:
            self.sweep()
        return True

    def wait(self) -> bool:
        """Nobody can do anything before something has happened. False: nothing will."""
        self.sweep()
        if self.world.busy:
            self.judge.steps(10)
            return True
        queues = any(caller.queues_until > self.world.now for life in self.judge.lives for caller in life.callers)
        return bool(queues or self.swarm.pace or self.stalled) and self.judge.steps(20, timers=True)

    def sweep(self) -> None:
        """Put lives that are over into the past."""
        over = [life for life in self.judge.lives if life.done_with]
        for life in over:
            self.judge.lives.remove(life)
            self._past(life)

    def _past(self, life: Life) -> None:
        judge = self.judge
        judge.examples["L2" if life.trouble is Trouble.NONE else "L3"] += 1
        judge.examples["L5"] += 1
        judge.examples["A1"] += not life.agree
        judge.examples["S4"] += life.again
        self.past.append(life)

    def begin(self) -> bool:
        """Make a room that its callers will open. False: there is no memory for it."""
        draw, judge = self.draw, self.judge
        if len(judge.lives) > 3 * OPEN_MAX:
            return False
        where = (draw.randrange(len(judge.decodes)), draw.randrange(len(judge.prefills)))
        pages = draw.choice((0, 1, 1, 2, 2, 3, 4, 6))
        state = {name: draw.randrange(3) for name in judge.shape.components if name in ("swa", "index")}
        sides = (judge.decodes[where[0]], judge.prefills[where[1]])
        if any(len(free) < (pages if part == "kv" else 2) for side in sides for part, free in side.free.items()):
            return False
        self.left -= 1
        self.serials += 1
        prefix = draw.randrange(pages + 1) if draw.random() < 0.2 else 0
        aux = draw.random() < 0.85
        plan = judge.plan(pages, prefix=prefix, aux=aux, state=state, decode=where[0], prefill=where[1])
        life = make_life(self.serials, self._key(sides), plan, judge, where)
        judge.lives.append(life)
        self._inherit(life)
        return True

    def _key(self, sides: tuple[Side, Side]) -> Key:
        """A number that nobody has used, or one that has been used: as the next attempt, or as the same one."""
        if self.past and self.draw.random() < self.swarm.callers["again"]:
            old = self.draw.choice(self.past)
            same = self.draw.random() < 0.5 and not self.strangers
            attempts = [life.key[1] for life in (*self.past, *self.judge.lives) if life.key[0] == old.key[0]]
            taken = any(life.key == old.key for life in self.judge.lives)
            return old.key if same and not taken else (old.key[0], max(attempts) + 1)
        return (self.draw.choice((self.serials, self.serials, 2**63 - self.serials)), 0)

    def _inherit(self, life: Life) -> None:
        """What an earlier life with the same key means for this one."""
        before = [old for old in (*self.past, *self.judge.lives) if old is not life and old.key == life.key]
        life.again = any(old.key[0] == life.key[0] for old in self.past)
        for old in before:
            if not all(caller.free for caller in old.callers) or any(caller.gone for caller in old.callers):
                old.mixed = life.mixed = True
                self.judge.touch(life, Trouble.SILENT, f"the same attempt as {old}, of which memory is held")

    # -- mischief --------------------------------------------------------------------------------------------------

    def mischief(self) -> None:
        """Something happens to an engine or a connection."""
        draw, judge, world = self.draw, self.judge, self.world
        if self.stalled and draw.random() < 0.5:
            name = draw.choice(sorted(self.stalled))
            self.stalled.discard(name)
            world.stall(name, stalled=False)
            return
        kinds = list(self.swarm.mischief)
        kind = draw.choices(kinds, [self.swarm.mischief[one] for one in kinds])[0]
        side = draw.choice((*judge.decodes, *judge.prefills))
        match kind:
            case "fence":
                self.fence()
            case "stall":
                self.stalled.add(side.name)
                world.stall(side.name)
            case "cut":
                side.channel.cut(CloseCause.TIMED_OUT)
            case "jam":
                connections = side.channel.connections
                if connections:
                    side.channel.jam(draw.choice(connections))
            case "jump":
                world.jump(side.name, draw.choice((0.3, 3.0, 30.0, 300.0)))
            case _:
                what, where = kind.split()
                side = draw.choice(judge.prefills if where == "prefill" else judge.decodes)
                if what == "drain":
                    self.drain(side)
                self.end(side, kill=what == "kill")

    def drain(self, side: Side) -> None:
        """An engine takes no new rooms, and those that do not end meanwhile are aborted."""
        judge, decode = self.judge, side in self.judge.decodes
        self.stalled.discard(side.name)
        self.world.stall(side.name, stalled=False)
        judge.injected["engine drained"] += 1
        judge.note(side.name, "call", "is drained")
        for other in judge.prefills if decode else judge.decodes:
            for life in judge.between(side, other) if decode else judge.between(other, side):
                judge.touch(life, Trouble.ANNOUNCED, f"{side.name} is drained")
        mine = judge.rooms_of(side)
        judge.examples["L1"] += 1
        try:
            said = side.engine.drain(_PATIENCE_S)
        except TimeoutError as error:
            judge.accuse("L1", f"{side.name} is drained, and a room of it does not end: {error}")
            return
        left = [one for one in mine if one.end is None]
        held = sum(not one.free for one in mine)
        if left or said.held != held or said.done + said.failed != len(mine):
            judge.accuse("L1" if left else "S3", f"{side.name} had {len(mine)} rooms, {held} of them with memory, "
                         f"and was drained: {said}")  # fmt: skip

    def fence(self) -> None:
        """The orchestrator says of a name whose process was killed that it was fenced. Its namesake lives.

        Only where nothing is wrong with the namesake's connection: who lives and cannot be heard is not spared.
        """
        judge, faults = self.judge, self.swarm.faults
        names = sorted(name for name in self.killed if name not in self.stalled)
        if not names or faults.frames or faults.delay or faults.reorder or self.stalled:
            return
        name = self.draw.choice(names)
        prefill = next(side for side in judge.prefills if side.name == name)
        decode = self.draw.choice(judge.decodes)
        if not judge.established(decode, prefill):
            return
        judge.fenced.add(name)
        judge.injected["namesake fenced"] += 1
        judge.note("orchestrator", "call", f"{name} was fenced", to=decode.name)
        decode.engine.peer_fenced(name)
        ends = (decode.channel, prefill.channel)
        before = judge.heard_of[ends]
        for _ in range(_HEARD_STEPS):
            if judge.heard_of[ends] > before or judge.found or not self.world.step(timers=True):
                return

    def end(self, side: Side, *, kill: bool) -> None:
        """An engine dies or is closed, and another comes in its place."""
        judge, world = self.judge, self.world
        if side in judge.prefills:
            self.dead.add(side.name)
            (self.killed.add if kill else self.closed.add)(side.name)
            self.killed -= self.closed  # what a closed one had posted may still land
        self.stalled.discard(side.name)
        if kill or side.channel.jammed:  # over a jammed connection no GOODBYE can go: such an end looks like a death
            judge.crash(side)
            return
        world.stall(side.name, stalled=False)
        judge.engine("closed", side.name)
        side.engine.close(self.draw.choice((0.5, 20.0)))
        judge.replace(side)
