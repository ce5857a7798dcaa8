"""What the manifest refuses, and which value it names: arrays as they come from numpy take a path of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import dense

from kvrooms.protocol.errors import InvalidArgument
from kvrooms.protocol.manifest import page_indices, state_indices


class Several:
    """An object that could stand for a number and has members; it is no number."""

    def __index__(self) -> int:
        return 1

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, 2.0]),
        np.array([[1, 2]]),
        np.array([[[1], [2]]]),
        np.array([True, False]),
        np.array(1),
        np.array(["a", "b"]),
    ],
    ids=["floats", "two dimensions", "three dimensions", "bools", "no dimension", "texts"],
)
def test_an_array_that_is_no_flat_array_of_integers_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        page_indices("pages", value, 9)
    assert caught.value.field == "pages"


def numbers_of_numpy(some: list[int]) -> list[np.int64]:
    return [np.int64(i) for i in some]


@pytest.mark.parametrize("of", [list, np.array, numbers_of_numpy], ids=["list", "array", "list of numpy's numbers"])
@pytest.mark.parametrize(("given", "bad"), [([3, -1, 4], -1), ([0, 9], 9), ([1, 12, 9], 12), ([-2, 12], -2)])
def test_the_index_that_is_out_of_bounds_is_named(of: Any, given: list[int], bad: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        page_indices("pages", of(given), 9)
    assert (caught.value.field, caught.value.value, caught.value.why) == ("pages", bad, "must be between 0 and 8")
    assert page_indices("pages", of([0, 8]), 9).tolist() == [0, 8]


def test_without_items_there_is_no_index() -> None:
    with pytest.raises(InvalidArgument) as caught:
        page_indices("pages", [0], 0)
    assert (caught.value.value, caught.value.why) == (0, "there are no items")


def test_entries_that_fit_no_component_are_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        state_indices(dense(1), {"other": [1]}, (4,))
    assert caught.value.value == "other"
    assert caught.value.why.startswith("no such component; the layout has ['conv']")
    with pytest.raises(InvalidArgument) as caught:
        state_indices(dense(2), [0, 1], (4, 4))
    assert (caught.value.field, caught.value.value) == ("state_indices", [0, 1])
    with pytest.raises(InvalidArgument) as caught:
        state_indices(dense(1), [[0], [1]], (4,))
    assert (caught.value.field, caught.value.value) == ("state_indices[1]", [1])


def test_an_object_with_members_is_no_number() -> None:
    with pytest.raises(InvalidArgument):
        state_indices(dense(1), [Several()], (4,))
