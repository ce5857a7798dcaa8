"""Every interleaving of small groups of ranks: two and three, with reconnects, losses, deaths, and keys used again.

Liveness is judged where no timer runs: when nothing happens by itself any more, every room that was opened on a living
rank has its outcome. Only where a rank never opens the room does the leader's deadline have to act.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ...engine.group_leader import Deciding
from ...protocol.identity import RoomKey
from ..evidence import Counterexample, Tally
from ..evidence import Step as Line
from .glue import Broken
from .group_moves import Step, after, start
from .group_world import Frozen, Seen, Setup, World, thaw
from .premises import AGREES, LATE, WAITS, steps_of
from .search import Found
from .system import Move

SETUPS: dict[str, Setup] = {
    one.name: one
    for one in (
        Setup("group-2", 2),
        Setup("group-2-broken", 2, faults=("break", "lose"), budget=2),
        Setup("group-2-ended", 2, faults=("kill", "kill leader", "withdraw", "break"), budget=2),
        Setup("group-2-forgets", 2, faults=("lose", "break"), budget=2, opened=True, kept=0),
        Setup("group-2-never", 2, never=(1,), faults=("break", "lose", "kill leader"), budget=1),
        Setup("group-2-again", 2, lives=2, faults=("break", "lose"), budget=1),
        Setup("group-3", 3),
        Setup("group-3-break", 3, ends=("done",), faults=("break",), budget=1),
        Setup("group-3-lose", 3, ends=("done",), faults=("lose",), budget=1, opened=True),
        Setup("group-3-fail", 3, ends=("failed",), faults=("lose",), budget=1, opened=True),
        Setup("group-3-kill", 3, ends=("done",), faults=("kill", "kill leader"), budget=1),
        Setup("group-3-withdraw", 3, ends=("done",), faults=("withdraw",), budget=1),
        Setup("group-3-left", 3, ends=("done",), faults=("withdraw", "kill"), budget=2, opened=True),
        Setup("group-3-never", 3, never=(2,), ends=("done",), faults=("kill leader",), budget=1),
    )
}
QUICK = ("group-2", "group-2-broken", "group-2-ended", "group-2-never", "group-3")
SMALLEST = (
    Setup("group-2", 2),
    Setup("group-2-faults", 2, faults=("break", "lose", "kill", "kill leader", "withdraw"), budget=1),
    Setup("group-2-never", 2, never=(1,)),
    Setup("group-2-forgets", 2, faults=("lose",), budget=1, opened=True, kept=0),
    Setup("group-3-done", 3, ends=("done",), opened=True),
)
"""A fraction of a second together: enough to notice most mistakes."""
PROPERTIES = ("A1", "S2", "L1", "L2", "L3", "C1")


class GroupResult(NamedTuple):
    """What the search of one setup has found. timers, cells, outcomes: as in `search.Found`."""

    name: str
    states: int
    transitions: int
    complete: bool
    seconds: float
    tally: Tally
    timers: dict[str, int]
    cells: dict[str, int]
    outcomes: frozenset[tuple[str, str, str]]

    def found(self) -> Found:
        """It, as the other searches tell what they have found."""
        return Found(
            states=self.states,
            transitions=self.transitions,
            complete=self.complete,
            checked={one: self.tally.verdict(one).examples for one in PROPERTIES},
            broken={one.property: one for one in self.tally.counterexamples()},
            timers=self.timers,
            cells=self.cells,
            outcomes=self.outcomes,
        )


class GroupSearch:
    """One search."""

    def __init__(self, setup: Setup, limit: int = 5_000_000) -> None:
        self.setup = setup
        self._limit = limit
        self._seen: dict[Frozen, int] = {}
        self._order: list[Frozen] = []
        self._parents: list[int] = []
        self._ways: list[list[tuple[Move, int]]] = []
        self._broken: dict[str, Counterexample] = {}
        self._timers: Counter[str] = Counter()
        self._watched = Seen()
        self._cut: set[int] = set()
        self._ends: Counter[str] = Counter()

    def run(self) -> GroupResult:
        """Search everything, and judge the graph."""
        started = time.monotonic()
        self._admit(start(self.setup), -1)
        at = 0
        while at < len(self._order) and at < self._limit:
            ways: list[tuple[Move, int]] = []
            for step in after(self.setup, self._order[at], self._watched):
                for broken in step.broken:
                    self._breaks(broken, at, step)
                if step.broken:
                    self._cut.add(at)
                    continue  # what follows from it shows nothing more
                target = self._admit(step.state, at)
                if step.move is Move.TIMER:
                    self._timers[f"{'decision' if step.who == 'leader' else 'parked'}: outcome of a group"] += 1
                if target != at:
                    ways.append((step.move, target))
            self._ways.append(ways)
            at += 1
        complete = at == len(self._order)
        if complete:
            self._judge()
        transitions = sum(map(len, self._ways))
        seconds = time.monotonic() - started
        return GroupResult(
            name=self.setup.name,
            states=at,
            transitions=transitions,
            complete=complete,
            seconds=seconds,
            tally=self._tally(),
            timers=dict(self._timers),
            cells=dict(self._watched.cells.visits),
            outcomes=frozenset(self._watched.outcomes),
        )

    def _admit(self, state: Frozen, parent: int) -> int:
        number = self._seen.get(state)
        if number is None:
            number = self._seen[state] = len(self._order)
            self._order.append(state)
            self._parents.append(parent)
        return number

    # -- liveness ------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for kinds, property_id in (((Move.NORMAL,), "L2"), ((Move.NORMAL, Move.TIMER), "L3")):
            circling = self._circling(kinds)
            if circling is not None:
                self._breaks(Broken(property_id, "the ranks can go on for ever and decide nothing"), circling)
        for at, ways in enumerate(self._ways):
            possible = {kind for kind, _ in ways}
            if Move.NORMAL in possible or at in self._cut:
                continue
            world = thaw(self.setup, self._order[at])
            faulty = world.left < self.setup.budget
            if not world.timed and not self.setup.never and self.setup.lives == 1:
                self._ends["L3" if faulty else "L2"] += 1
                for broken in _undecided(world, "L3" if faulty else "L2"):
                    self._breaks(broken, at)
            if Move.TIMER not in possible:
                self._ends.update(["L3", "C1"] if world.timed or faulty else ["C1"])
                for broken in (*_undecided(world, "L3"), *_left(world)):
                    self._breaks(broken, at)

    def _circling(self, kinds: Sequence[Move]) -> int | None:
        """A state from which moves of these kinds lead round in a circle; None if there is none."""
        into: list[list[int]] = [[] for _ in self._ways]
        count = [0] * len(self._ways)
        for at, ways in enumerate(self._ways):
            for kind, target in ways:
                if kind in kinds:
                    into[target].append(at)
                    count[at] += 1
        ready = deque(at for at, number in enumerate(count) if not number)
        done = 0
        while ready:
            done += 1
            for before in into[ready.popleft()]:
                count[before] -= 1
                if not count[before]:
                    ready.append(before)
        return None if done == len(count) else next(at for at, number in enumerate(count) if number)

    # -- the result ----------------------------------------------------------------------------------------------

    def _breaks(self, broken: Broken, at: int, by: Step | None = None) -> None:
        if broken.property not in self._broken:
            lines = [*self._timeline(at), *([_line(by)] if by is not None else [])]
            given = {"ranks": str(self.setup.size), "faults": str(self.setup.budget)}
            source = f"explore {self.setup.name}"
            self._broken[broken.property] = Counterexample(
                broken.property,
                broken.summary,
                source,
                given,
                tuple(msgspec.structs.replace(line, at=float(i)) for i, line in enumerate(lines, 1)),
            )

    def _timeline(self, at: int) -> list[Line]:
        states = []
        while at >= 0:
            states.append(at)
            at = self._parents[at]
        lines = []
        for before, now in zip(states[:0:-1], states[-2::-1], strict=True):
            target = self._order[now]
            lines.append(_line(next(one for one in after(self.setup, self._order[before]) if one.state == target)))
        return lines

    def _tally(self) -> Tally:
        tally, cells = Tally(), self._watched.cells.visits
        by_steps = {name: steps_of(cells, which) for name, which in (("A1", AGREES), ("S2", LATE), ("L1", WAITS))}
        held = {**by_steps, **self._ends}
        for property_id in PROPERTIES:
            found = self._broken.get(property_id)
            if found is not None:
                tally.broke(found)
            elif held.get(property_id):
                tally.held(property_id, held[property_id])
        return tally


def _line(step: Step) -> Line:
    kind = {Move.FAULT: "fault", Move.TIMER: "timer"}.get(step.move, "message")
    return Line(0.0, step.who, kind, step.text)


def _undecided(world: World, property_id: str) -> Iterator[Broken]:
    """Rooms of living ranks that have not ended, or have no outcome."""
    for rank in world.ranks:
        if rank.member is not None and rank.waits:
            yield Broken(
                property_id, f"without a timer nothing happens any more, and rank {rank.number} knows no outcome"
            )
    outcomes = {life.shown for rank in world.ranks if rank.member is not None for life in rank.lives[:1]}
    locals_ = {life.local for rank in world.ranks for life in rank.lives[:1]}
    expected = "failed" if "failed" in locals_ else "done"
    if property_id == "L2" and outcomes != {expected}:
        yield Broken("L2", f"the rooms are {sorted(locals_)}, and the outcomes are {sorted(outcomes)}")


def _left(world: World) -> Iterator[Broken]:
    """What is left in tables when everything is over."""
    dead = {rank.number for rank in world.ranks if rank.member is None}
    if world.leader is not None:
        rooms: dict[RoomKey, Deciding] = vars(world.leader)["_rooms"]
        kept = sum(len(some) for rank, some in vars(world.leader)["_kept"].items() if rank not in dead)
        if rooms or kept or world.armed:
            yield Broken("C1", f"the leader still has {len(rooms)} rooms, {kept} kept outcomes")
    for rank in world.ranks:
        tables = rank.member.tables() if rank.member is not None else {}
        if any(tables.values()):
            yield Broken("C1", f"rank {rank.number} still has {tables}")


def explore_groups(
    names: Sequence[str] | None = None, progress: Callable[[str], None] | None = None
) -> list[GroupResult]:
    """Explore setups, all by default. Raises KeyError for an unknown name."""
    results = []
    for setup in [SETUPS[name] for name in (SETUPS if names is None else names)]:
        results.append(GroupSearch(setup).run())
        if progress is not None:
            progress(f"{setup.name}: {results[-1].states} states")
    return results
