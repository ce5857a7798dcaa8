"""All ranks of a side of kvrooms as the one side that the suite knows: a room is open on each, and has one outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from .subject import OddRank, Refused, Request, Status, View

Call: TypeAlias = Callable[..., Any]
"""A method of `OwnSide` on one rank, by its name."""


class OwnRanks:
    """Each rank's caller has arguments of its own: what can be read once is read once by each.

    pause: what happens between the calls of two ranks, whose callers know nothing of each other."""

    def __init__(self, calls: Sequence[Call], pause: Callable[[], object] = lambda: None) -> None:
        self._calls = calls
        self._pause = pause
        self._odd: dict[tuple[int, ...], OddRank] = {}

    def open(self, request: Request) -> tuple[int, ...]:
        """Open a room on each; what one of them refuses, the others give up."""
        keys: list[int] = []
        odd, request = request.odd, request._replace(odd=None)
        for rank, call in enumerate(self._calls):
            mine = odd.request if odd is not None and odd.rank == rank else request
            try:
                keys.append(call("open", deepcopy(mine)))
            except Refused:
                for other, key in zip(self._calls, keys, strict=False):
                    other("close", key)
                raise
            self._pause()
        if odd is not None:
            self._odd[tuple(keys)] = odd
        return tuple(keys)

    def send(
        self, keys: tuple[int, ...], pages: Sequence[int], state_indices: Any, last: bool, layers: Sequence[int] = ()
    ) -> None:
        """Each rank's caller sends the same; one that has something else sends of that."""
        odd = self._odd.get(keys)
        for rank, (call, key) in enumerate(zip(self._calls, keys, strict=True)):
            some, state = pages, state_indices
            if odd is not None and odd.rank == rank:
                left = odd.request.pages
                some = left if last else left[: len(pages)]
                state = odd.state if last else state
                self._odd[keys] = odd._replace(request=odd.request._replace(pages=left[len(some) :]))
            call("send", key, *deepcopy((some, state, last, layers)))
            self._pause()

    def each(self, keys: tuple[int, ...], method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks."""
        answers = []
        for call, key in zip(self._calls, keys, strict=True):
            answers.append(call(method, key, *deepcopy(arguments)))
            if method == "abort":
                self._pause()
        return answers

    def poll(self, keys: tuple[int, ...]) -> Status:
        """Open until each rank knows the outcome. It must be the same on each."""
        said: list[Status] = self.each(keys, "poll")
        if "open" in said:
            return "open"
        if len(set(said)) > 1:
            raise AssertionError(f"the ranks of a side have different outcomes: {', '.join(said)}")
        return said[0]

    def explain(self, keys: tuple[int, ...]) -> View:
        """What each rank believes."""
        views: list[View] = self.each(keys, "explain")
        if len(views) == 1:
            return views[0]
        words = [
            [f"rank {number}: {one}" for number, one in enumerate(some) if one] for some in zip(*views, strict=True)
        ]
        return View(*map("; ".join, words))

    def failure(self, keys: tuple[int, ...]) -> str | None:
        """Why the room has failed, as the first rank that is told says it."""
        return next((said for said in self.each(keys, "failure") if said is not None), None)

    def held(self) -> Mapping[str, int]:
        """What all of them hold together."""
        held: Counter[str] = Counter()
        for call in self._calls:
            held.update(call("held"))
        return held
