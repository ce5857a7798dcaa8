"""One property's check: what it needs of a subject, which plans it draws, and how it judges one that is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .plan import Plan
from .stage import Stage
from .subject import Shape, Subject, Traits

_WORDS = {
    "aborts": "a caller can abort a room",
    "deadlines": "rooms have deadlines",
    "failures": "a room tells why it has failed",
    "counts": "what is held can be counted",
    "frees": "there is a word on when memory is free again, apart from the end of the room",
    "kills": "a side can be killed",
    "failing_writes": "writes can be made to fail",
    "injects": "a stranger can say something",
    "guests": "a peer that was let in can lie",
    "ranks": "a side can have several ranks",
    "odd_ranks": "the ranks of a side can be given different things",
    "prefixes": "decode can hold the beginning of a prompt",
    "splits": "the pages of prefill can be larger than those of decode",
    "layers": "layers of a page can be sent apart",
    "room_numbers": "rooms have numbers that are used again",
}


class Check(NamedTuple):
    """The check of one property.

    shapes: layouts to try, one after another. draws: the strategy of plans (hypothesis). run: plays a plan; raises
    Broken if the property does not hold in it, returns whether the plan says anything about it at all. needs: traits,
    alternatives separated by "|". share: of the budget that a property has. warm: whether an ordinary room must
    have been served before the first example of a start. fits: whether a plan that was made smaller is still one of
    those that are drawn. also: of a check that goes beyond the first one of its property: what it is about, in words.
    A subject that cannot be judged by it is judged by the first one alone.
    """

    id: str
    shapes: Callable[[Traits], list[Shape]]
    draws: Callable[[Subject, Shape], Any]
    run: Callable[[Stage, Plan], bool]
    needs: tuple[str, ...] = ()
    share: float = 1.0
    warm: bool = False
    fits: Callable[[Plan], bool] = lambda _: True
    also: str = ""

    def lacks(self, traits: Traits) -> str | None:
        """Why the subject cannot be judged, or None."""
        for need in self.needs:
            ways = need.split("|")
            if not any(getattr(traits, way) for way in ways):
                words = " or ".join(_WORDS[way] for way in ways)
                return f"needs a subject where {words}"
        return None
