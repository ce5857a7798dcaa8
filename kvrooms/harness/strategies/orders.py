"""Orders of arrival, and faults: what a simulated world may do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..faults import Faults

Side: TypeAlias = Literal["decode", "prefill"]


class Schedule(random.Random):
    """A world's chance: its first picks one by one, then whatever the seed says. Both print, and shrink.

        world = World(); world.random = Schedule([2, 0, 1], seed=5)

    A choice among k things that could happen next takes number `pick * k // PICKS`.
    """

    PICKS = 12

    def __new__(cls, picks: Sequence[int] = (), seed: int = 0) -> Schedule:  # noqa: ARG004
        """See the class: random.Random would hash its arguments here."""
        return super().__new__(cls)

    def __init__(self, picks: Sequence[int] = (), seed: int = 0) -> None:
        super().__init__(seed)
        self.picks = tuple(picks)
        self.first = seed
        self._left: list[int] = list(reversed(self.picks))

    def random(self) -> float:
        """See `random.Random.random`."""
        if self._left:
            return self._left.pop() / self.PICKS
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        """See `random.Random.getrandbits`: ids, which must differ, take none of the picks."""
        return super().getrandbits(k)

    def __repr__(self) -> str:
        return f"Schedule({list(self.picks)}, seed={self.first})"


def schedules(*, picks: int = 40, seeds: int = 2**16) -> SearchStrategy[Schedule]:
    """Orders of arrival: up to so many picks in full, then a seed. Shrinks to `Schedule([], seed=0)`.

    @given(schedules())
    def test_it(schedule):
        world = World()
        world.random = schedule
    """
    return st.builds(Schedule, st.lists(st.integers(0, Schedule.PICKS - 1), max_size=picks), st.integers(0, seeds - 1))


@st.composite
def faults(draw: st.DrawFn, *, silent: bool = True) -> Faults:
    """What may go wrong by itself: frames repeated and in any order, writes that cannot be posted; and, if `silent`,
    what nobody notices at once: frames lost, late or damaged, writes that stand still, time lost.

    Most of what is drawn has one or two of these. Shrinks to nothing wrong.

        @given(faults())
        def test_it(faults):
            world = World(seed=1, faults=faults)
    """
    names = ["repeat", "post_fails"]
    names += ["drop", "late", "corrupt", "truncate", "write_slow", "write_stuck", "delay"] if silent else []
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    rates = {name: draw(st.sampled_from([0.1, 0.5])) for name in chosen}
    return Faults(reorder=draw(st.booleans()), **rates)


class Announced(NamedTuple):
    """A fault that tells of itself, on one side, after so many steps of the world.

    kind: "abort" (by the caller), "close" (the caller leaves), "post error" (no write can be posted; prefill), "cut"
    (the connection is reset by nobody's death), "kill" (the process dies, its kernel closes its connections).
    """

    kind: Literal["abort", "close", "post error", "cut", "kill"]
    side: Side
    after: int


def announced(*, steps: int = 60) -> SearchStrategy[Announced]:
    """Faults that announce themselves, within so many steps. Shrinks to an abort by decode at once.

    @given(announced())
    def test_it(fault): ...
    """
    kinds = st.sampled_from(
        [(kind, side) for kind in ("abort", "close", "cut", "kill") for side in ("decode", "prefill")]
        + [("post error", "prefill")]
    )
    return st.builds(lambda kind, after: Announced(kind[0], kind[1], after), kinds, st.integers(0, steps))
