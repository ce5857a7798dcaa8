"""What can happen next in a world: lanes of things in order or in no order, and one draw among all of them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Protocol

FOREVER = float("inf")
Action = Callable[[], None]


class Choosable(Protocol):
    """Something that can be drawn: `place` is its index among the choices, -1 while it is none."""

    place: int

    def happen(self, draw: random.Random) -> None:
        """It was drawn."""


class Choices:
    """A set of choosable things: put in, take out and draw in constant time, and the same on every machine."""

    def __init__(self) -> None:
        self.members: list[Choosable] = []

    def put(self, one: Choosable) -> None:
        """Make it a choice. Idempotent."""
        if one.place < 0:
            one.place = len(self.members)
            self.members.append(one)

    def drop(self, one: Choosable) -> None:
        """Make it none. Idempotent."""
        place = one.place
        if place >= 0:
            one.place = -1
            last = self.members.pop()
            if last is not one:
                last.place = place
                self.members[place] = last


class Lane:
    """Things that will happen: in order, or in any order. They stand still until `until`. write: they are bytes."""

    __slots__ = ("choices", "ordered", "place", "queue", "until", "write")

    def __init__(self, choices: Choices, *, ordered: bool, write: bool) -> None:
        self.choices = choices
        self.ordered = ordered
        self.write = write
        self.queue: list[Action] = []
        self.until = 0.0
        self.place = -1

    def happen(self, draw: random.Random) -> None:
        """Let the next thing happen, or any of them; of a write any number of them, in any order."""
        queue = self.queue
        count = 1 if not self.write or len(queue) == 1 else int(draw.random() * len(queue)) + 1
        for _ in range(count):
            if self.ordered or len(queue) == 1:
                action = queue.pop(0)
            else:
                at = int(draw.random() * len(queue))
                action, queue[at] = queue[at], queue[-1]
                queue.pop()
            if not queue:
                self.choices.drop(self)
            action()


class Lanes:
    """All lanes of a world, by key. Those that can go on are among the world's choices."""

    def __init__(self, choices: Choices) -> None:
        self.by_key: dict[object, Lane] = {}
        self.writes_held = False
        self._choices = choices
        self._waiting: list[tuple[float, int, Lane]] = []
        self._numbers = 0

    def add(self, key: object, action: Action, *, ordered: bool, write: bool = False) -> Lane:
        """Let `action` happen some time."""
        lane = self.by_key.get(key)
        if lane is None:
            lane = self.by_key[key] = Lane(self._choices, ordered=ordered, write=write)
        elif not lane.queue:
            lane.ordered = ordered
        lane.queue.append(action)
        if not lane.until and not (write and self.writes_held):
            self._choices.put(lane)
        return lane

    def hold(self, key: object, until: float) -> None:
        """Let a lane that has something stand still until then (`FOREVER`: until `release`)."""
        lane = self.by_key.get(key)
        if lane is not None and lane.queue:
            lane.until = until
            self._choices.drop(lane)
            if until < FOREVER:
                self._numbers += 1
                heapq.heappush(self._waiting, (until, self._numbers, lane))

    def next_release(self) -> float | None:
        """When the next lane goes on."""
        while self._waiting and self._waiting[0][2].until != self._waiting[0][0]:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def release(self, now: float) -> None:
        """Let go what may go on at `now` (`FOREVER`: everything)."""
        lanes = list(self.by_key.values()) if now == FOREVER else []
        while self._waiting and self._waiting[0][0] <= now:
            until, _, lane = heapq.heappop(self._waiting)
            if lane.until == until:
                lanes.append(lane)
        for lane in lanes:
            lane.until = 0.0
            self._offer(lane)

    def hold_writes(self, held: bool) -> None:
        """While true, no bytes land."""
        self.writes_held = held
        for lane in self.by_key.values():
            if lane.write:
                self._offer(lane)

    def _offer(self, lane: Lane) -> None:
        if lane.queue and not lane.until and not (lane.write and self.writes_held):
            self._choices.put(lane)
        else:
            self._choices.drop(lane)

    def sweep(self) -> None:
        """Forget lanes that are empty."""
        self.by_key = {key: lane for key, lane in self.by_key.items() if lane.queue or lane.until}
