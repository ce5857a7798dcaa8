"""Breadth-first search over all states, with shortest paths; and what the finished graph says about liveness.

A state is kept as the bytes of its numbers: exact, and small. Edges are arrays. Whether everything ends is read off the
graph: it must shrink to nothing when states without a way on are taken away again and again (then it has no cycle, and
each bottom component is one state), and each state without a way on is judged.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...protocol.status import Phase
from ..evidence import Counterexample, Step
from . import ends
from .glue import Broken
from .moves import Moves, Successor
from .premises import Premises
from .system import Move, State, System
from .vacuity import WITH_STATE, WITHOUT_STATE

AFTER_BROKEN = 20_000
"""How many more states are looked at once a property is broken."""
Ints = npt.NDArray[np.int64]


class Found(NamedTuple):
    """What the search of one system has found. checked: how often each property had something to say."""

    states: int
    transitions: int
    complete: bool
    checked: dict[str, int]
    broken: dict[str, Counterexample]
    timers: dict[str, int] = {}  # noqa: RUF012 - never changed
    cells: dict[str, int] = {}  # noqa: RUF012 - never changed
    outcomes: frozenset[tuple[str, str, str]] = frozenset()
    depth: int = 0


class Search:
    """One search. name: the configuration's. limit: of states; past it the search is not complete."""

    def __init__(self, system: System, name: str, limit: int = 50_000_000) -> None:
        self.system = system
        self.moves = Moves(system)
        self._name = name
        self._limit = limit
        self._pack = struct.Struct(f"<{2 + 3 * system.lanes}I")
        self._seen: dict[bytes, int] = {}
        self._order: list[bytes] = []
        self._parents = array("q")
        self._first = array("q", [0])
        self._targets = array("q")
        self._kinds = array("b")
        self._broken: dict[str, tuple[Broken, int, Successor | None]] = {}
        self._timers: Counter[str] = Counter()
        self._quiet: list[int] = []
        self._last: list[int] = []
        self._complete = True
        self._depth = 0

    # -- the search ----------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Found:
        """Search everything, then judge the graph."""
        self._admit(self.system.initial(), -1)
        at, unpack, order = 0, self._pack.unpack, self._order
        level_end = 1
        while at < len(order):
            if at == level_end:
                self._depth += 1
                level_end = len(order)
            if at >= self._limit or (self._broken and at > self._stop_at):
                self._complete = False
                break
            self._expand(at, unpack(order[at]))
            at += 1
            if at % 50_000 == 0:
                progress(at)
        transitions = len(self._targets)
        if self._complete:
            self._judge_graph()
        return self._found(transitions)

    def _expand(self, at: int, state: State) -> None:
        targets, kinds = self._targets, self._kinds
        for successor in self.moves.of(state):
            if successor.broken is not None:
                self._breaks(successor.broken, at, successor)
            target = self._admit(successor.state, at)
            if successor.move is Move.TIMER and successor.obligation:
                self._timers[successor.obligation] += 1
            if target != at:
                targets.append(target)
                kinds.append(successor.move)
        self._first.append(len(targets))

    def _admit(self, state: State, parent: int) -> int:
        state = self._canonical(state)
        key = self._pack.pack(*state)
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = len(self._order)
            self._order.append(key)
            self._parents.append(parent)
            for broken in self._check(state):
                self._breaks(broken, number, None)
        return number

    def _canonical(self, state: State) -> State:
        """Of two equal prefill engines it does not matter which is which."""
        if not self.system.setup.symmetric:
            return state
        mirrored = self.system.mirrored(state)
        return min(state, mirrored)

    def _check(self, state: State) -> Iterator[Broken]:
        """The properties of single states that span their parts; and those of a part, found with its facts."""
        system = self.system
        decode = system.decode(state[0])
        if decode.broken is not None:
            yield decode.broken
        for lane in range(system.lanes):
            at = 2 + 3 * lane
            prefill, flight = system.prefill(state[at]), system.flight(state[at + 2])
            if prefill.broken is not None:
                yield prefill.broken
            if flight.reading & ~prefill.holds and prefill.alive:
                yield Broken("S3", "prefill's caller may use its pages again, and a write reads them")
            if not decode.running:
                continue
            if decode.done & ~flight.complete:
                yield Broken("S1", "the room on decode is DONE, and not every byte has landed")
            if decode.freed[lane] & (flight.flying | prefill.may_post):
                yield Broken("S3", "decode's caller may use its pages again, and a write to them may still land")
            if decode.released[lane] & prefill.bound:
                yield Broken("S4", "prefill writes for a grant that decode has released")

    # -- counterexamples -----------------------------------------------------------------------------------------

    def _breaks(self, broken: Broken, at: int, by: Successor | None) -> None:
        if not self._broken:
            self._stop_at = len(self._order) + AFTER_BROKEN
        self._broken.setdefault(broken.property, (broken, at, by))

    def path(self, at: int) -> list[State]:
        """A shortest path of states from the beginning to a state."""
        states: list[State] = []
        while at >= 0:
            states.append(self._pack.unpack(self._order[at]))
            at = self._parents[at]
        return states[::-1]

    def timeline(self, at: int, by: Successor | None = None) -> list[Step]:
        """The moves of a shortest path to a state, and one more."""
        states, steps = self.path(at), []
        for before, after in itertools.pairwise(states):
            taken = next(one for one in self.moves.of(before) if self._canonical(one.state) == after)
            steps.append(taken)
        if by is not None:
            steps.append(by)
        return [
            Step(float(i), one.label.who, one.label.kind, one.label.text, one.label.to)
            for i, one in enumerate(steps, 1)
        ]

    def _counterexample(self, broken: Broken, at: int, by: Successor | None) -> Counterexample:
        steps = self.timeline(at, by)
        state = by.state if by is not None else self._pack.unpack(self._order[at])
        scene = ends.Scene(self.system, state)
        plans = self.system.plans
        for use in range(len(plans)):
            which = f"use {use + 1}: " if len(plans) > 1 else ""
            steps.append(Step(float(len(steps) + 1), "both", "open", f"{which}{scene.open_words(use)}"))
        given = plans[0].request.text
        return Counterexample(broken.property, broken.summary, f"explore {self._name}", given, tuple(steps))

    # -- liveness ------------------------------------------------------------------------------------------------

    def _judge_graph(self) -> None:
        targets = np.frombuffer(self._targets, dtype=np.int64) if self._targets else np.empty(0, dtype=np.int64)
        kinds = np.frombuffer(self._kinds, dtype=np.int8) if self._kinds else np.empty(0, dtype=np.int8)
        first = np.frombuffer(self._first, dtype=np.int64)
        sources = np.repeat(np.arange(len(self._order), dtype=np.int64), np.diff(first))
        normal = kinds == Move.NORMAL
        circling = _circling(len(self._order), sources[normal], targets[normal])
        if len(circling):
            self._breaks(Broken("L2", "the two sides can go round in a circle for ever"), int(circling[0]), None)
        timed = normal | (kinds == Move.TIMER)
        circling = _circling(len(self._order), sources[timed], targets[timed])
        if len(circling):
            self._breaks(Broken("L3", "timers lead round in a circle for ever"), int(circling[0]), None)
        self._judge_ends(sources, normal, timed)

    def _judge_ends(self, sources: Ints, normal: npt.NDArray[np.bool_], timed: npt.NDArray[np.bool_]) -> None:
        number, unpack = len(self._order), self._pack.unpack
        self._quiet = np.flatnonzero(np.bincount(sources[normal], minlength=number) == 0).tolist()
        for at in self._quiet:
            for broken in ends.quiet(self.system, unpack(self._order[at])):
                self._breaks(broken, at, None)
        self._last = np.flatnonzero(np.bincount(sources[timed], minlength=number) == 0).tolist()
        for at in self._last:
            state = unpack(self._order[at])
            for broken in ends.last(self.system, state):
                self._breaks(broken, at, None)
            for broken in ends.unreleased(self.system, state):
                if self._comes_back(at):
                    self._breaks(broken, at, None)

    def _comes_back(self, start: int) -> bool:
        """Whether repeating the ABORT leads nowhere, or back to the very same state."""
        seen, queue = {start}, deque([start])
        moved = False
        while queue:
            at = queue.popleft()
            for i in range(self._first[at], self._first[at + 1]):
                if self._kinds[i] <= Move.RETRY:
                    moved = True
                    target = self._targets[i]
                    if target == start:
                        return True
                    if target not in seen:
                        seen.add(target)
                        queue.append(target)
        return not moved

    # -- the result ----------------------------------------------------------------------------------------------

    def _found(self, transitions: int) -> Found:
        system, states = self.system, len(self._order)
        rows = np.frombuffer(b"".join(self._order), dtype="<u4").reshape(states, -1)
        checked = Premises(system, rows).count(self._quiet, self._last)
        broken = {name: self._counterexample(*what) for name, what in self._broken.items()}
        return Found(
            states=states,
            transitions=transitions,
            complete=self._complete,
            checked=checked,
            broken=broken,
            timers=dict(self._timers),
            cells=dict(system.cells.visits),
            outcomes=outcomes(system),
            depth=self._depth,
        )


def outcomes(system: System) -> frozenset[tuple[str, str, str]]:
    """(side, phase, cause) of every room that was reached; and what a room that is DONE was asked for."""
    found = set()
    asked = [WITH_STATE if any(plan.request.state) else WITHOUT_STATE for plan in system.plans]
    for name, sides in (("decode", system.decodes.values), ("prefill", system.prefills.values)):
        for record, state in ((r, state) for side in sides for r, state in zip(side.records, asked, strict=True) if r):
            found.add((name, record.last.phase.value, record.last.cause.value if record.last.cause else ""))
            if record.last.phase is Phase.DONE:
                found.add((name, Phase.DONE.value, state))
    return frozenset(found)


def _circling(number: int, sources: Ints, targets: Ints) -> Ints:
    """The states that are left when those without a way on are taken away again and again: they can reach a cycle."""
    ways = np.bincount(sources, minlength=number)
    by_target = np.argsort(targets, kind="stable")
    start = np.searchsorted(targets[by_target], np.arange(number + 1))
    into = sources[by_target]
    done = ways == 0
    frontier = np.flatnonzero(done)
    while len(frontier):
        counts = start[frontier + 1] - start[frontier]
        offsets = np.repeat(start[frontier] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        before = into[offsets + np.arange(int(counts.sum()))]
        np.subtract.at(ways, before, 1)
        fresh = np.unique(before)
        frontier = fresh[(ways[fresh] == 0) & ~done[fresh]]
        done[frontier] = True
    return np.flatnonzero(~done)
