"""One room over many ranks, as data: how many pages, and where each rank has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ABSENT = -1
"""In a table of pages: another context parallel rank has this position."""


@dataclass(frozen=True)
class Places:
    """Where one rank has a room.

    `pages` of a prefill rank: the page of each position from 0 on, ABSENT where another rank has it. `pages` of a
    decode rank: the page of each position from the room's prefix on. `aux_slot` is None on a rank without aux buffers.
    `state` holds a list of indices by the name of each component that the rank has.
    """

    pages: tuple[int, ...]
    aux_slot: int | None = None
    state: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def indices(self, component: str) -> tuple[int, ...]:
        """The indices of a component; none for one that is not listed."""
        return dict(self.state).get(component, ())

    @property
    def valid_pages(self) -> tuple[int, ...]:
        """The pages that this rank has, in the order of their positions."""
        return tuple(page for page in self.pages if page != ABSENT)


@dataclass(frozen=True)
class RoomShape:
    """One room: counts in pages of the side that they belong to, and where each rank has its part.

    `instance` is the prefill instance (the data parallel rank) that serves it; `prefill` lists that instance's ranks.
    """

    seed: int
    source_pages: int
    target_pages: int
    prefix: int
    prefill: tuple[Places, ...]
    decode: tuple[Places, ...]
    tokens: int = 0
    instance: int = 0

    def source_table(self, rank: int) -> Mapping[int, int]:
        """The page of each position that a prefill rank has."""
        pages = self.prefill[rank].pages
        return {position: page for position, page in enumerate(pages) if page != ABSENT}

    def target_table(self, rank: int) -> Mapping[int, int]:
        """The page of each position of a decode rank, from the prefix on."""
        return {self.prefix + number: page for number, page in enumerate(self.decode[rank].pages)}


def part_of_prompt(pages: int, cp_rank: int, cp_size: int) -> range:
    """The positions that a context parallel rank has."""
    return range(pages * cp_rank // cp_size, pages * (cp_rank + 1) // cp_size)
