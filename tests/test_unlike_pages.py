"""Which pages a METADATA may name where the pages of the two sides are of different sizes: every one that has a use."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from plan_support import heads, rank

from kvrooms.engine.sends import Shared, wanted_of
from kvrooms.protocol import wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.layout import Layout, Region, Regions
from kvrooms.protocol.manifest import Manifest
from kvrooms.protocol.shares import Covers

SIZES = [(a, b) for a in range(1, 5) for b in range(1, 5) if a != b]


def layout(page: int) -> Layout:
    return rank(heads(0, 4, rows=page), page=page).layout


def asked(sizes: tuple[int, int], manifest: Manifest, first: int, count: int) -> None:
    """What prefill makes of a METADATA. Raises WireError."""
    ours, theirs = (layout(page) for page in sizes)
    pages = np.arange(count, dtype="<i4").tobytes()
    body = wire.Metadata(1, 0, 1, 1, manifest, pages, -1, (), first_page=first)
    regions = Regions((Region(4096, 20),), (), ())
    wanted = wanted_of(ours, regions, regions, body, Shared(theirs, Covers(True, (), ())))
    assert (wanted.pages.tolist(), wanted.pages_from) == (list(range(count)), first)


def useful(sizes: tuple[int, int], low: int, high: int, first: int, count: int) -> bool:
    """Whether every page of either side has a token that is on a page of the other."""
    a, b = sizes
    ours, theirs = set(range(low * a, high * a)), set(range(first * b, (first + count) * b))
    mine = (range(page * a, page * a + a) for page in range(low, high))
    others = (range(page * b, page * b + b) for page in range(first, first + count))
    return all(theirs & set(page) for page in mine) and all(ours & set(page) for page in others)


@pytest.mark.parametrize("sizes", SIZES)
def test_every_page_of_either_side_has_a_use(sizes: tuple[int, int]) -> None:
    for low, high in itertools.combinations(range(4), 2):
        for first, count in itertools.product(range(14), range(14)):
            manifest = Manifest(high, ((low, high),), (), ())
            if useful(sizes, low, high, first, count):
                asked(sizes, manifest, first, count)
                continue
            with pytest.raises(WireError) as caught:
                asked(sizes, manifest, first, count)
            assert caught.value.field in {"metadata.pages", "metadata.first_page"}


def test_without_pages_none_are_named() -> None:
    asked((2, 1), Manifest(0, (), (), ()), 0, 0)
    with pytest.raises(WireError, match="4 bytes, 0 are needed"):
        asked((2, 1), Manifest(0, (), (), ()), 0, 1)
