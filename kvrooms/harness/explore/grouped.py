"""One room between P prefill and D decode ranks, where those of decode form a group: `ranks` and `group_world` in one.

Between a decode rank's engine and its part of the group lie two steps that any other may come between, as there are two
threads: the engine's word on how its room has ended, and the group's that it must end. All else is taken from the two
searches. A rank's own deadline and the leader's may pass at any moment, so between any two steps of the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from ...protocol.events import Fail, RoomEvent
from ...protocol.failure import Reason
from ...protocol.status import TERMINAL, Phase
from ..evidence import Counterexample, Step
from .glue import Broken
from .group_moves import Apply, end_here, moves, start
from .group_world import Frozen, Seen, Setup, freeze, thaw
from .premises import LATE, steps_of
from .ranks import Ranks, Shape
from .ranks import World as Between
from .search import Found
from .system import Move

EACH, APART = (True, True), (True, False, False, True)
GROUPED: tuple[tuple[Shape, Setup], ...] = (
    (Shape(1, 2, EACH, in_time=True), Setup("1 to 2", 2, opened=True)),
    (Shape(2, 2, APART, in_time=True, bound=True), Setup("2 to 2", 2, opened=True)),
    (Shape(1, 2, EACH, "decode overdue", bound=True), Setup("1 to 2", 2, opened=True)),
    (Shape(1, 2, EACH, bound=True), Setup("1 to 2", 2, opened=True, faults=("break", "lose"), budget=1)),
    (Shape(1, 2, EACH, bound=True), Setup("1 to 2", 2, opened=True, faults=("kill leader",), budget=1)),
    (Shape(2, 2, APART, "prefill dies", in_time=True, bound=True), Setup("2 to 2", 2, opened=True)),
)
LARGER = ((Shape(2, 2, APART, "decode overdue", in_time=True, bound=True), Setup("2 to 2", 2, opened=True)),)
"""It takes minutes."""


class World(NamedTuple):
    """All of it. passed: a deadline of the leader has passed."""

    between: Between
    group: Frozen
    passed: bool = False


Way = tuple[str, World, tuple[Broken, ...]]


class Grouped:
    """The search. limit: of states; past it the search is not complete."""

    def __init__(self, shape: Shape, setup: Setup, limit: int = 2_000_000) -> None:
        assert shape.decodes == setup.size
        self._shape, self._setup, self._limit = shape, setup, limit
        self._ranks = Ranks(shape)
        self._seen = Seen()
        self._timers: Counter[str] = Counter()
        self._checked: Counter[str] = Counter()
        self._start = World(self._ranks.located(), start(setup))

    def run(self) -> Found:
        """Explore it all."""
        paths: dict[World, tuple[World | None, str]] = {self._start: (None, "")}
        queue, steps, broken = deque([self._start]), 0, dict[str, Counterexample]()
        while queue and len(paths) < self._limit:
            world, bottom = queue.popleft(), True
            for text, after, wrong in self._moves(world):
                bottom = False
                steps += 1
                for found in wrong:
                    broken.setdefault(found.property, self._example(found, paths, world, text))
                if after not in paths and not wrong:
                    paths[after] = (world, text)
                    queue.append(after)
            for found in self._judge(world, bottom=bottom):
                broken.setdefault(found.property, self._example(found, paths, world))
        cells = self._ranks.cells + self._seen.cells.visits
        return Found(
            states=len(paths),
            transitions=steps,
            complete=not queue,
            checked={**self._checked, "S2": steps_of(cells, LATE)},
            broken=broken,
            timers=dict(self._timers),
            cells=dict(cells),
            outcomes=frozenset(self._seen.outcomes),
        )

    def _example(
        self, found: Broken, paths: dict[World, tuple[World | None, str]], world: World, last: str = ""
    ) -> Counterexample:
        texts = [last] if last else []
        at: World | None = world
        while at is not None:
            at, text = paths[at]
            texts.append(text)
        texts.pop()
        steps = tuple(Step(float(i), "ranks", "state", text) for i, text in enumerate(reversed(texts), 1))
        name = f"explore group: {self._shape.prefills} to {self._shape.decodes}"
        return Counterexample(found.property, found.summary, name, {"owed": str(self._shape.owed)}, steps)

    # -- what can happen -----------------------------------------------------------------------------------------

    def _moves(self, world: World) -> Iterator[Way]:
        for text, between in self._ranks.moves(world.between):
            yield text, world._replace(between=between), ()
        yield from self._seams(world)
        for move, who, text, apply in moves(thaw(self._setup, world.group), callers=False):
            passed = move is Move.TIMER and who == "leader"
            if move is Move.TIMER:
                self._timers[f"{'decision' if passed else 'parked'}: outcome of a group"] += 1
            yield self._in_group(world._replace(passed=world.passed or passed), f"{who} {text}", apply)

    def _seams(self, world: World) -> Iterator[Way]:
        """Between each decode rank's engine and its part of the group."""
        for rank in thaw(self._setup, world.group).ranks:
            if rank.member is None:
                continue
            d, life = rank.number, rank.lives[-1]
            phase = world.between.decodes[d].phase
            if life.local == "open" and phase in TERMINAL:
                end = "done" if phase is Phase.DONE else "failed"
                yield self._in_group(world, f"decode {d}: says that its room is {end}", end_here(d, end))
            if life.aborted and phase not in TERMINAL:
                ended = self._ranks.decode(world.between, d, Fail(RoomEvent.ABORT, Reason.ABORTED))
                yield f"decode {d}: its group ends the room", world._replace(between=ended), ()

    def _in_group(self, world: World, text: str, apply: Apply) -> Way:
        moved = thaw(self._setup, world.group, self._seen)
        apply(moved)
        moved.settle()
        return text, world._replace(group=freeze(moved)), tuple(moved.broken)

    # -- what holds ----------------------------------------------------------------------------------------------

    def _judge(self, world: World, *, bottom: bool) -> Iterator[Broken]:
        group = thaw(self._setup, world.group)
        faultless = group.left == self._setup.budget and not world.passed
        self._checked.update(self._ranks.premises(world.between, bottom=bottom, faultless=faultless))
        yield from self._ranks.judge(world.between, bottom=bottom, faultless=faultless)
        phases = [room.phase for room in world.between.decodes]
        shown = [rank.lives[-1].shown for rank in group.ranks]
        self._checked["A1"] += any(shown)
        living = [rank.number for rank in group.ranks if rank.member is not None]
        if "done" in shown and set(phases) != {Phase.DONE}:
            yield Broken("A1", f"an outcome is DONE, and the rooms are {[phase.value for phase in phases]}")
        if group.leader is not None and {"done", "failed"} <= set(shown):
            yield Broken("A1", f"the outcomes are {shown}")
        if not bottom:
            return
        self._checked["C1"] += 1
        for number in living:
            if not shown[number]:
                yield Broken("L3", f"nothing happens any more, and rank {number} knows no outcome")
        expected = "done" if set(phases) == {Phase.DONE} else "failed"
        if faultless and set(shown) != {expected}:
            yield Broken("L2", f"the rooms are {[phase.value for phase in phases]}, and the outcomes are {shown}")
        if group.leader is not None and (vars(group.leader)["_rooms"] or group.armed):
            yield Broken("C1", "the leader still has the room")
