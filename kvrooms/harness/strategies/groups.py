"""Strategies for groups of ranks: what each does with some rooms, and what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ..faults import Faults
from ..group_plans import End, GroupPlan, GroupRoom, Kind, Part, Pause, Trouble

T = TypeVar("T")
ENDS: tuple[End, ...] = ("done",) * 12 + ("failed", "aborted", "stuck", "never opened")
KINDS: tuple[Kind, ...] = ("timed out", "reset", "closed", "jam", "stall", "stall", "jump", "kill")
_SECONDS: dict[Kind, tuple[float, ...]] = {"stall": (8.0, 0.5, 3.0, 25.0, 70.0), "jump": (2.0, 8.0, 30.0)}
_GAPS = st.sampled_from((0, 1, 2))
_PAUSES = st.builds(
    Pause, steps=st.sampled_from((0, 2, 5, 10, 20)), seconds=st.sampled_from((0.0, 0.0, 0.0, 0.1, 1.0, 3.0))
)


@st.composite
def groups(
    draw: DrawFn,
    *,
    ranks: Sequence[int] = (2, 3, 4),
    rooms: Sequence[int] = (1, 2, 3),
    troubles: Sequence[int] = (0, 1, 2),
    ends: Sequence[End] = ENDS,
    kinds: Sequence[Kind] = KINDS,
    faults: Sequence[Faults] = (Faults(),),
) -> GroupPlan:
    """What the ranks of a group do with some rooms, when, and what goes wrong; `group_play.PlayedGroup` plays it.

    ranks: how many there may be. rooms, troubles: the fewest and the most of these. ends: how a rank's part of a room
    may end. kinds: what may go wrong; one that is named twice is drawn twice as often. faults: of frames, for example
    `(Faults(), group_plans.DAMAGED)`. The order in which things are delivered is not in it: draw it with `schedules`.

    Shrinks to the first of these; by default to two ranks that open a room, which is done there at once.

        @given(plan=groups(troubles=(0,)), order=schedules())
        def test_it(plan, order):
            group = PlayedGroup(plan, order)
            group.play()
    """
    size = draw(st.sampled_from(ranks))
    drawn = draw(_several(group_rooms(ranks=size, ends=ends), min(rooms), max(rooms)))
    gaps = draw(_several(_GAPS, len(drawn), len(drawn)))
    some = tuple(room._replace(at=at) for room, at in zip(drawn, accumulate(gaps), strict=True))
    moments = GroupPlan(size, some).moments
    wrong = group_troubles(ranks=size, moments=moments, kinds=kinds)
    troubled = draw(_several(wrong, min(troubles), max(troubles)))
    pauses = draw(_several(_PAUSES, 0, moments))
    return GroupPlan(size, some, tuple(troubled), tuple(pauses), draw(st.sampled_from(faults)))


@lru_cache
def _several(some: SearchStrategy[T], fewest: int, most: int) -> SearchStrategy[list[T]]:
    return st.lists(some, min_size=fewest, max_size=most)


def group_rooms(*, ranks: int, ends: Sequence[End] = ENDS) -> SearchStrategy[GroupRoom]:
    """How each of so many ranks has a room: whether and when it opens it, how and when it ends there; its deadline.

    Shrinks to a room that is done on every rank at once.

        @given(group_rooms(ranks=2, ends=("done", "aborted")))
        def test_it(room):
            plan = GroupPlan(2, (room,), (Trouble("kill", rank=1),))
    """
    return _rooms(ranks, tuple(ends))


@lru_cache
def _rooms(ranks: int, ends: tuple[End, ...]) -> SearchStrategy[GroupRoom]:
    late, takes = st.sampled_from((0, 0, 0, 1, 3)), st.sampled_from((0, 1, 2, 3))
    parts = st.builds(Part, end=st.sampled_from(ends), late=late, takes=takes)
    return st.builds(GroupRoom, st.tuples(*[parts] * ranks), deadline_s=st.sampled_from((20.0, 3.0, 6.0)))


def group_troubles(*, ranks: int, moments: int = 1, kinds: Sequence[Kind] = KINDS) -> SearchStrategy[Trouble]:
    """What goes wrong on one of so many ranks, at one of so many moments; whether it is back, and when.

    Shrinks to connections of rank 0 that time out at once.

        @given(group_troubles(ranks=3, kinds=("stall", "kill")))
        def test_it(trouble):
            plan = GroupPlan(3, (GroupRoom((Part(),) * 3),), (trouble,))
    """
    return _troubles(ranks, moments, tuple(kinds))


@lru_cache
def _troubles(ranks: int, moments: int, kinds: tuple[Kind, ...]) -> SearchStrategy[Trouble]:
    rank, at = st.integers(0, ranks - 1), st.integers(0, moments - 1)
    each = {
        kind: st.builds(Trouble, st.just(kind), rank=rank, at=at, seconds=st.sampled_from(_SECONDS.get(kind, (0.0,))))
        for kind in kinds
    }
    return st.sampled_from(kinds).flatmap(each.__getitem__)
