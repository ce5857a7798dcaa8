"""Intervals against the plainest oracle there is: sets of integers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named

from kvrooms.protocol import intervals
from kvrooms.protocol.intervals import Intervals

UNIVERSE = 7
numbers = st.integers(0, 40)
sets = st.one_of(
    st.frozensets(numbers, max_size=30),
    st.lists(st.tuples(numbers, st.integers(0, 12)), max_size=5).map(
        lambda runs: frozenset(itertools.chain.from_iterable(range(a, a + n) for a, n in runs))
    ),
)


def spell(positions: frozenset[int]) -> Intervals:
    """The one spelling of a set, found by walking every position."""
    result: list[tuple[int, int]] = []
    for position in range(max(positions, default=-1) + 1):
        if position in positions and position - 1 not in positions:
            stop = next(p for p in itertools.count(position) if p not in positions)
            result.append((position, stop))
    return tuple(result)


def check_all(positions: frozenset[int], start: int, stop: int) -> None:
    before = spell(positions)
    given_range = frozenset(range(start, stop))
    assert intervals.well_formed(before)
    assert intervals.size(before) == len(positions)
    assert intervals.covers(before, start, stop) == (given_range <= positions)
    assert intervals.span(start, stop) == spell(given_range)
    assert intervals.below(before, stop) == spell(frozenset(p for p in positions if p < stop))
    removed = intervals.remove(before, start, stop)
    assert removed == spell(positions - given_range)
    assert (removed is before) == (not positions & given_range)
    added = intervals.add(before, start, stop)
    assert added == spell(positions | given_range)
    assert (added is before) == (given_range <= positions)


def check_small() -> None:
    for members in itertools.product((False, True), repeat=UNIVERSE):
        positions = frozenset(itertools.compress(range(UNIVERSE), members))
        for start, stop in itertools.product(range(UNIVERSE + 1), repeat=2):
            check_all(positions, start, stop)


def check_well_formed() -> None:
    pairs = [(start, stop) for start in range(5) for stop in range(5)]
    for length in range(4):
        for some in itertools.product(pairs, repeat=length):
            inside = frozenset(itertools.chain.from_iterable(range(a, b) for a, b in some))
            assert intervals.well_formed(some) == (some == spell(inside)), some
    assert not intervals.well_formed(((-1, 2),))


def test_every_small_set_and_range() -> None:
    check_small()


test_any_set_and_range = given(positions=sets, start=numbers, stop=numbers)(check_all)


def test_exactly_one_spelling_is_well_formed() -> None:
    check_well_formed()


@given(st.lists(numbers, max_size=30))
def test_positions_in_any_order_and_number(positions: list[int]) -> None:
    assert intervals.from_positions(positions) == spell(frozenset(positions))
    assert intervals.from_positions(iter(positions)) == spell(frozenset(positions))


@given(sets, st.data())
def test_chunks_in_any_order_repeated_and_overlapping_leave_nothing(
    positions: frozenset[int], data: st.DataObject
) -> None:
    left = spell(positions)
    whole = [(a, b) for a, b in left]
    cuts = data.draw(st.lists(st.tuples(numbers, numbers), max_size=6))
    for start, stop in data.draw(st.permutations(whole + cuts)):
        left = intervals.remove(left, start, stop)
    assert left == intervals.NOTHING


LOSSES = [
    Mutant(intervals, "remove", "if max(a, stop) < b:", "if False:"),  # forgets the tail
    Mutant(intervals, "remove", "if a < min(b, start):", "if a < start <= b:"),  # forgets what lies wholly before
]


@named(
    [
        *LOSSES,
        Mutant(intervals, "remove", "return ((stop, b),) if stop < b else NOTHING", "return NOTHING"),
        Mutant(intervals, "remove", "((a, start), (stop, b)) if stop < b else ((a, start),)", "((a, start),)"),
        Mutant(intervals, "remove", "stop <= a or b <= start or start >= stop", "stop <= a or b <= start"),
        Mutant(intervals, "remove", "stop <= a or b <= start or", "stop < a or b < start or"),
        Mutant(intervals, "add", "pair[1] < start]", "pair[1] <= start]"),  # leaves neighbours apart
        Mutant(intervals, "add", "pair[0] > stop]", "pair[0] >= stop]"),
        Mutant(intervals, "add", "(*intervals[:-1], (intervals[-1][0], stop))", "(*intervals, (start, stop))"),
        Mutant(intervals, "covers", "a <= start and stop <= b", "a <= start and start <= b"),
        Mutant(intervals, "covers", "start >= stop or", "False or"),
        Mutant(intervals, "below", "a < stop", "a <= stop"),
        Mutant(intervals, "size", "stop - start", "stop - start + 1"),
        Mutant(intervals, "span", "start < stop", "start <= stop"),
    ]
)  # fmt: skip
def test_mutants_die_on_small_sets(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_small)


@named(LOSSES)
def test_mutants_die_on_any_sets(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: hunt(check_all, positions=sets, start=numbers, stop=numbers))


@named(
    [
        Mutant(intervals, "well_formed", "start <= edge", "start < edge"),
        Mutant(intervals, "well_formed", "stop <= start", "stop < start"),
        Mutant(intervals, "well_formed", "edge = -1", "edge = -2"),
    ]
)
def test_mutants_of_the_spelling_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_well_formed)
