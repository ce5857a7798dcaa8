"""Runs of bytes packed into a range, beside a reckoning that looks at every single byte."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kvrooms.protocol import packing
from kvrooms.protocol.packing import Packed, Packing


class Run(NamedTuple):
    """One run of a block: its address in item 0 at row 0, its length, the length of an item, the stride of a row."""

    base: int
    size: int
    item: int
    row: int = 0


Groups = list[list[Run]]


def packing_of(groups: Groups, *, by_row: bool = False) -> Packing:
    """What is tested, made from plain numbers."""
    runs = [run for group in groups for run in group]
    base, size, item, row = (np.array(values, dtype=np.uint64) for values in zip(*runs, strict=True))
    edges = np.cumsum([0, *(len(group) for group in groups)])
    return Packing((base, item, row), size, edges, by_row=by_row)


def numbers(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


def reckoned(groups: Groups, blocks: list[tuple[int, int]], *, by_row: bool) -> list[int]:
    """The address of every byte in its order: group after group, block after block, run after run."""
    return [
        run.base + item * run.item + (row * run.row if by_row else 0) + byte
        for group in groups
        for item, row in blocks
        for run in group
        for byte in range(run.size)
    ]


def bytes_of(packed: Packed) -> list[int]:
    """The address of every byte of a packed range."""
    return [
        packed.origin + grain * packed.grain + byte for grain in packed.grains.tolist() for byte in range(packed.grain)
    ]


@st.composite
def grouped(draw: st.DrawFn) -> Groups:
    """Groups of a few runs, some of which follow each other; the lengths have a common divisor, often a large one."""
    unit = draw(st.sampled_from((1, 3, 8, 12)))
    units = st.integers(1, 4).map(lambda n: n * unit)
    start = draw(st.sampled_from((0, 2**62))) + draw(st.integers(0, 100))  # beyond what a float tells apart
    groups: Groups = []
    for _ in range(draw(st.integers(1, 4))):
        item, group = draw(units) * 8, []
        row, at = draw(units), start + draw(st.integers(0, 9)) * unit
        for _ in range(draw(st.integers(1, 4))):
            group.append(Run(at, draw(units), item, row))
            at += group[-1].size
            if draw(st.booleans()):
                at += draw(units)
            if draw(st.integers(0, 4)) == 0:
                row += unit
        groups.append(group)
    return groups


BLOCKS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=4)


@given(groups=grouped(), blocks=BLOCKS, by_row=st.booleans(), data=st.data())
def test_every_byte_is_packed_in_its_place(
    groups: Groups, blocks: list[tuple[int, int]], by_row: bool, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(groups) - 1), "first")
    stop = data.draw(st.integers(first + 1, len(groups)), "stop")
    made = packing_of(groups, by_row=by_row)
    items, rows = (numbers([block[i] for block in blocks]) for i in (0, 1))
    wanted = reckoned(groups[first:stop], blocks, by_row=by_row)
    packed = made.of(items, rows, first, stop)
    assert bytes_of(packed) == wanted
    assert packed.bytes == len(wanted)
    assert packed.grains.dtype == np.int64
    if not blocks:
        return
    addresses, lengths = made.ranges(items, rows, first, stop)
    assert (addresses.dtype, lengths.dtype) == (np.uint64, np.uint64)
    pairs = list(zip(addresses.tolist(), lengths.tolist(), strict=True))
    assert [at + byte for at, length in pairs for byte in range(length)] == wanted
    assert all(at + length != after for (at, length), (after, _) in pairwise(pairs))
    event(f"{len({len(group) for group in groups})} widths")


def together(groups: Groups) -> Groups:
    """Runs of a group that follow each other, in every block, as one."""
    found: Groups = []
    for group in groups:
        found.append([])
        for run in group:
            last = found[-1][-1] if found[-1] else None
            if last is not None and (last.base + last.size, last.row) == (run.base, run.row):
                found[-1][-1] = last._replace(size=last.size + run.size)
            else:
                found[-1].append(run)
    return found


@given(groups=grouped(), by_row=st.booleans())
def test_a_grain_is_as_long_as_it_can_be(groups: Groups, by_row: bool) -> None:
    runs = [run for group in together(groups) for run in group]
    origin = min(run.base for run in runs)
    strides = [value for run in runs for value in (run.item, run.row if by_row else 0)]
    made = packing_of(groups, by_row=by_row)
    assert made.origin == origin
    assert made.grain == math.gcd(*(run.size for run in runs), *(run.base - origin for run in runs), *strides)
    assert made.average == sum(run.size for run in runs) // len(runs)
    assert made.worth_while == (made.grain >= 8)


def test_runs_of_two_groups_are_never_one() -> None:
    one, two = Run(0, 16, 64), Run(16, 16, 64)
    assert packing_of([[one, two]]).grain == 32
    assert packing_of([[one], [two]]).grain == 16


def test_a_row_that_no_block_begins_at_does_not_shorten_the_grains() -> None:
    group = [[Run(0, 64, 128, row=8)]]
    assert packing_of(group).grain == 64
    assert packing_of(group, by_row=True).grain == 8


@pytest.mark.parametrize(("most", "worth"), [(3, False), (4, True)])
def test_too_many_grains_are_not_packed(most: int, worth: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GRAINS_MAX", most)
    assert packing_of([[Run(0, 16, 64), Run(24, 16, 64)]]).worth_while is worth


@pytest.mark.parametrize(("length", "worth"), [(7, False), (8, True)])
def test_grains_that_are_too_short_are_not_packed(length: int, worth: bool) -> None:
    assert packing_of([[Run(0, length, 8 * length)]]).worth_while is worth


def test_neighbouring_blocks_are_one_range() -> None:
    made = packing_of([[Run(100, 8, 8)], [Run(1000, 8, 16)]])
    addresses, lengths = made.ranges(numbers([2, 3, 5]), numbers([0, 0, 0]), 0, 2)
    assert list(zip(addresses.tolist(), lengths.tolist(), strict=True)) == [
        (116, 16), (140, 8), (1032, 8), (1048, 8), (1080, 8),
    ]  # fmt: skip
