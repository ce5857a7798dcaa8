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


def _shape(traits: Traits) -> Shape:
    """One for prefixes and for layers, so that a real subject is started once for both."""
    state = (INDEXED,) if traits.when_indexed else (ALWAYS,)
    return shape_of(*(state if traits.components else ()))._replace(layers=traits.layers)


def _equal(traits: Traits) -> list[Shape]:
    return [_shape(traits)]


def _splits(traits: Traits) -> list[Shape]:
    """Prefill has larger pages."""
    shapes = []
    for split in sorted(traits.splits):
        shape = _shape(traits)
        larger, more = split * shape.page_bytes, split * shape.decode_pages
        shapes.append(shape._replace(split=split, page_bytes=larger, decode_pages=more))
    return shapes


def _shared(shapes: Callable[[Traits], list[Shape]]) -> Callable[[Traits], list[Shape]]:
    """The same, and once more with as few ranks as can share these pages."""

    def more(traits: Traits) -> list[Shape]:
        alone, several = shapes(traits), sorted(traits.ranks, key=lambda ranks: (sum(ranks), ranks))[:1]
        return alone + [alone[0]._replace(ranks=ranks) for ranks in several]

    return more


def _apart(subject: Subject, shape: Shape, base: Any) -> Any:
    """Layers that are sent apart, of prompts of which decode may hold the beginning."""
    return layered(subject, shape, prefixed(subject, shape, base) if subject.traits.prefixes else base)


class _Way(NamedTuple):
    """How pages are carried: for which checks, the trait that it needs, shapes and draws, words, share of a check."""

    ids: tuple[str, ...]
    need: str
    shapes: Callable[[Traits], list[Shape]]
    carried: Any
    also: str
    share: float


# A start costs seconds where ranks are processes: where a fault meets larger pages it meets nothing new.
_ALL, _INSIDE = ("L2", "L3", "S1", "S3", "A1"), "prefixes that end inside a page"
_APART = "layers that are sent apart"
_WAYS = (
    _Way(_ALL, "prefixes", _equal, prefixed, "prefixes", 0.2),
    _Way(("L2", "L3", "S3", "A1"), "layers", _equal, _apart, _APART, 0.25),
    _Way(("S1",), "layers", _shared(_equal), _apart, _APART, 0.4),
    _Way(("L2", "A1"), "splits", _splits, prefixed, _INSIDE, 0.2),
    _Way(("S1",), "splits", _shared(_splits), prefixed, _INSIDE, 0.4),
)


def _carrying(check: Check, way: _Way) -> Check:
    def draws(subject: Subject, shape: Shape) -> Any:
        return way.carried(subject, shape, check.draws(subject, shape))

    needs, share = (*check.needs, way.need), check.share * way.share
    return check._replace(shapes=way.shapes, draws=draws, needs=needs, share=share, also=way.also)


FURTHER = tuple(_carrying(check, way) for way in _WAYS for check in (*LIVE, *SAFE) if check.id in way.ids)
