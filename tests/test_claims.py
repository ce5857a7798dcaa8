"""Whose a page is: a handful of indices is looked at one by one, many at once; both say what plain sets say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named

from kvrooms import Buffer, InvalidArgument, Memory
from kvrooms.engine import claims
from kvrooms.engine.claims import Claims

PAGES, FEW = 96, claims._FEW
MEMORY = Memory(4, kv=[Buffer(0, "kv", np.zeros((PAGES, 8), np.uint8))])
_wanted = st.lists(st.integers(0, PAGES - 1), max_size=PAGES, unique=True) | st.lists(
    st.integers(0, PAGES - 1), min_size=FEW, max_size=FEW + 2
)
_runs = st.builds(lambda first, count: list(range(first, first + count)), st.integers(0, 20), st.integers(FEW - 1, 60))
steps = st.lists(st.tuples(st.booleans(), _wanted | _runs), min_size=1, max_size=8)


def check(steps: list[tuple[bool, list[int]]]) -> None:
    """Claim, and now and then give the oldest claim back; what is refused changes nothing."""
    mine = Claims(MEMORY.layout, MEMORY.regions)
    owned: list[list[int]] = []
    for gives_back, wanted in steps:
        if gives_back and owned:
            mine.give_back(np.array(owned.pop(0), dtype=np.int32), -1, ())
        taken = {index for room in owned for index in room}
        refused = len(set(wanted)) != len(wanted) or bool(taken & set(wanted))
        try:
            mine.take(np.array(wanted, dtype=np.int32), -1, ())
        except InvalidArgument:
            assert refused, f"{wanted} was refused, and {taken} is taken"
        else:
            assert not refused, f"{wanted} was given away, and {taken} is taken"
            owned.append(wanted)
        assert len(mine) == sum(map(len, owned))


@given(steps)
@example([(False, list(range(FEW))), (False, list(range(FEW))), (False, [*range(FEW), FEW - 1])])
@example([(False, list(range(FEW + 1))), (False, list(range(FEW, 2 * FEW + 1))), (True, list(range(FEW + 1)))])
def test_few_and_many_indices_are_claimed_alike(steps: list[tuple[bool, list[int]]]) -> None:
    check(steps)


MUTANTS = [
    Mutant(claims, "_check", "taken = indices[_view(claimed)[indices] != 0].tolist()", "taken = []"),
    Mutant(claims, "_check", "taken = [index for index in listed if claimed[index]]", "taken = []"),
    Mutant(claims, "_set", "elif len(indices):", "elif False:"),
    Mutant(claims, "_set", "_view(claimed)[indices] = value", "_view(claimed)[indices] = 1"),
    Mutant(claims, "_set", "claimed[index] = value", "claimed[index] = 1"),
    Mutant(claims, "check_once", "if same.any():", "if False:"),
]


@named(MUTANTS)
def test_each_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: hunt(check, steps=steps))
