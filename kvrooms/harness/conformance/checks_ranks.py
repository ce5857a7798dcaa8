"""What holds at any number of ranks: checks that are played once more, by subjects whose sides can have several."""

from __future__ import annotations

from .check import Check
from .checks_live import CHECKS as LIVE
from .checks_safe import CHECKS as SAFE
from .draws import ALWAYS, INDEXED, shape_of
from .subject import Shape, Traits

_IDS = ("L2", "L3", "S1", "A1")
_SHARE = 0.75


def _shapes(traits: Traits) -> list[Shape]:
    """A layout with state, if there is any, for each number of ranks; the fewest first."""
    state = (INDEXED,) if traits.when_indexed else (ALWAYS,)
    shape = shape_of(*(state if traits.components else ()))
    return [shape._replace(ranks=ranks) for ranks in sorted(traits.ranks, key=lambda ranks: (sum(ranks), ranks))]


def _with_ranks(check: Check) -> Check:
    needs = (*check.needs, "ranks")
    return check._replace(shapes=_shapes, needs=needs, share=check.share * _SHARE, also="sides of several ranks")


FURTHER = tuple(_with_ranks(check) for check in (*LIVE, *SAFE) if check.id in _IDS)
