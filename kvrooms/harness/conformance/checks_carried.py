"""Prefixes and layers that are sent apart: checks that are played once more with rooms that carry their pages so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .check import Check
from .checks_live import CHECKS as LIVE
from .checks_safe import CHECKS as SAFE
from .draws import ALWAYS, INDEXED, shape_of
from .draws_carried import layered, prefixed
from .subject import Shape, Subject, Traits

_IDS = ("L2", "L3", "S1", "S3", "A1")


def _shape(traits: Traits) -> Shape:
    state = (INDEXED,) if traits.when_indexed else (ALWAYS,)
    return shape_of(*(state if traits.components else ()))


def _equal(traits: Traits) -> list[Shape]:
    return [_shape(traits)]


def _splits(traits: Traits) -> list[Shape]:
    """Prefill has larger pages; once more with as few ranks as can share these."""
    shapes = []
    for split in sorted(traits.splits):
        shape = _shape(traits)
        larger, more = split * shape.page_bytes, split * shape.decode_pages
        shapes.append(shape._replace(split=split, page_bytes=larger, decode_pages=more))
    several = sorted(traits.ranks, key=lambda ranks: (sum(ranks), ranks))[:1]
    return shapes + [shapes[0]._replace(ranks=ranks) for ranks in several]


def _layers(traits: Traits) -> list[Shape]:
    return [_shape(traits)._replace(layers=traits.layers)]


class _Way(NamedTuple):
    """How pages are carried: the trait that it needs, its shapes and draws, its words, its share of a check."""

    need: str
    shapes: Callable[[Traits], list[Shape]]
    carried: Any
    also: str
    share: float


_WAYS = (
    _Way("prefixes", _equal, prefixed, "prefixes", 0.2),
    _Way("splits", _splits, prefixed, "prefixes that end inside a page", 0.4),
    _Way("layers", _layers, layered, "layers that are sent apart", 0.25),
)


def _carrying(check: Check, way: _Way) -> Check:
    def draws(subject: Subject, shape: Shape) -> Any:
        return way.carried(subject, shape, check.draws(subject, shape))

    needs, share = (*check.needs, way.need), check.share * way.share
    return check._replace(shapes=way.shapes, draws=draws, needs=needs, share=share, also=way.also)


FURTHER = tuple(_carrying(check, way) for way in _WAYS for check in (*LIVE, *SAFE) if check.id in _IDS)
