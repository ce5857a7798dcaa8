"""Rooms of a named shape: pages, slots and indices that no two rooms of a rank share."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ..protocol.layout import Instance, Layout
from .pools import Sizes
from .rooms import ABSENT, Places, RoomShape, part_of_prompt
from .table import Case

_SPARE = 4
_RUN_MAX = 4
_WINDOW_PAGES = 3


def rooms(case: Case, seed: int = 0) -> tuple[RoomShape, ...]:
    """One room for each prompt, all of which may be open at once; the same for the same arguments."""
    dealers = [
        [_Dealer(case, rank.layout, "prefill", f"{seed}/{number}/{which}") for which, rank in enumerate(instance.ranks)]
        for number, instance in enumerate(case.prefill)
    ]
    receivers = [_Dealer(case, rank.layout, "decode", f"{seed}/{n}") for n, rank in enumerate(case.decode.ranks)]
    dealt = []
    for number, tokens in enumerate(case.prompts):
        instance = number % case.dp
        source, target, prefix = _pages(case, tokens)
        counts = _state_counts(source, prefix)
        prefill = [
            dealer.deal(source, part_of_prompt(source, rank.cp_rank, rank.cp_size), counts)
            for rank, dealer in zip(case.prefill[instance].ranks, dealers[instance], strict=True)
        ]
        decode = [dealer.deal(target - prefix, range(target - prefix), counts) for dealer in receivers]
        name = seed * 1000 + number
        dealt.append(RoomShape(name, source, target, prefix, tuple(prefill), tuple(decode), tokens, instance))
    return tuple(dealt)


def prefill_sizes(case: Case) -> Sizes:
    """The items of each prefill rank: enough for all rooms, and some that stay nobody's."""
    return _sizes(case, "prefill")


def decode_sizes(case: Case) -> Sizes:
    """The items of each decode rank: enough for all rooms, and some that stay nobody's."""
    return _sizes(case, "decode")


def instances_of(case: Case) -> tuple[Instance, ...]:
    """The prefill instances, then the decode instance."""
    return (*case.prefill, case.decode)


def _pages(case: Case, tokens: int) -> tuple[int, int, int]:
    """Source pages, target pages and prefix of a prompt; a prefix counts in whole pages of decode."""
    target = -(-tokens // case.decode_side.page_size)
    prefix = target if case.prefix_tokens >= tokens else case.prefix_tokens // case.decode_side.page_size
    return -(-tokens // case.prefill_side.page_size), target, prefix


def _state_counts(pages: int, prefix: int) -> Mapping[str, int]:
    """How many indices a room gives for each component: a slot, the window's pages, the pages that are owed."""
    return {"mamba": 1, "window": min(_WINDOW_PAGES, pages), "index": max(pages - prefix, 0)}


def _sizes(case: Case, side: str) -> Sizes:
    prompts = [_pages(case, tokens) for tokens in case.prompts]
    pages = sum(source if side == "prefill" else target - prefix for source, target, prefix in prompts)
    counts = [_state_counts(source, prefix) for source, _target, prefix in prompts]
    state = {name: sum(count[name] for count in counts) + _SPARE for name in counts[0]}
    return Sizes(pages + _SPARE, len(prompts) + _SPARE, state)


class _Dealer:
    """The free items of one rank, in runs of neighbours that lie anywhere."""

    def __init__(self, case: Case, layout: Layout, side: str, who: str) -> None:
        sizes = _sizes(case, side)
        chance = random.Random(f"{case.name}/{side}/{who}")
        self._layout = layout
        self._pages = _deck(sizes.pages, chance)
        self._slots = _deck(sizes.slots, chance)
        self._state = {name: _deck(sizes.state[name], chance) for name in layout.component_names}

    def deal(self, positions: int, own: range, counts: Mapping[str, int]) -> Places:
        """Places for a room of so many positions, of which this rank has its own."""
        pages = tuple(self._pages.pop() if position in own else ABSENT for position in range(positions))
        slot = self._slots.pop() if self._layout.aux else None
        state = tuple((name, tuple(deck.pop() for _ in range(counts[name]))) for name, deck in self._state.items())
        return Places(pages, slot, state)


def _deck(items: int, chance: random.Random) -> list[int]:
    """All items, to be popped from the end: short runs of consecutive ones, in any order."""
    runs, first = [], 0
    while first < items:
        length = min(chance.randint(1, _RUN_MAX), items - first)
        runs.append(range(first, first + length))
        first += length
    chance.shuffle(runs)
    return [item for run in runs for item in run][::-1]
