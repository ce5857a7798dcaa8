"""Sets of positions as sorted, disjoint, non-adjacent half-open intervals `((start, stop), ...)`.

A plain tuple, so that it is hashable, compares by value and costs nothing to carry in a frozen room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Intervals: TypeAlias = tuple[tuple[int, int], ...]

NOTHING: Intervals = ()


def span(start: int, stop: int) -> Intervals:
    """The interval [start, stop); nothing when it is empty."""
    return ((start, stop),) if start < stop else NOTHING


def size(intervals: Intervals) -> int:
    """How many positions the set holds."""
    return sum([stop - start for start, stop in intervals])


def covers(intervals: Intervals, start: int, stop: int) -> bool:
    """Whether every position of [start, stop) is in the set; true for an empty range."""
    return start >= stop or any(a <= start and stop <= b for a, b in intervals)


def remove(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The set without [start, stop). Returns the very same object when nothing was removed."""
    if len(intervals) == 1:  # the common case: chunks arrive in order
        a, b = intervals[0]
        if stop <= a or b <= start or start >= stop:
            return intervals
        if start <= a:
            return ((stop, b),) if stop < b else NOTHING
        return ((a, start), (stop, b)) if stop < b else ((a, start),)
    if start >= stop or all(stop <= a or b <= start for a, b in intervals):
        return intervals
    kept: list[tuple[int, int]] = []
    for a, b in intervals:
        if a < min(b, start):
            kept.append((a, min(b, start)))
        if max(a, stop) < b:
            kept.append((max(a, stop), b))
    return tuple(kept)


def add(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The set with [start, stop). Returns the very same object when nothing was added."""
    if covers(intervals, start, stop):
        return intervals
    if intervals and intervals[-1][1] == start:  # the common case: growing at the end
        return (*intervals[:-1], (intervals[-1][0], stop))
    before = [pair for pair in intervals if pair[1] < start]
    after = [pair for pair in intervals if pair[0] > stop]
    touching = [pair for pair in intervals if pair[1] >= start and pair[0] <= stop]
    merged = (min([start, *(a for a, _ in touching)]), max([stop, *(b for _, b in touching)]))
    return (*before, merged, *after)


def below(intervals: Intervals, stop: int) -> Intervals:
    """The part of the set under `stop`."""
    return tuple((a, min(b, stop)) for a, b in intervals if a < stop)


def from_positions(positions: Iterable[int]) -> Intervals:
    """The set of the given positions, in any order, repeated or not."""
    result: Intervals = NOTHING
    for position in sorted(set(positions)):
        result = add(result, position, position + 1)
    return result


def well_formed(intervals: Intervals) -> bool:
    """Whether the tuple is sorted, disjoint, non-adjacent and without empty members: the one spelling of a set."""
    edge = -1
    for start, stop in intervals:
        if start <= edge or stop <= start:
            return False
        edge = stop
    return True
