"""Paged memory: the tensors that an engine registers, who holds which page, and reading and writing by position.

A pool is page-major: one contiguous tensor `[pages, page_size, heads, head_dim]` per layer and role, the layout that a
paged engine's cache has. State pools are `[slots, ...]`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .layout import AUX_FIRST_TOKEN, AUX_LOGPROB, KV, WINDOW, Extent, Layout, Part

CANARY = 0xA5


class Allocator:
    """Hands out item numbers in an order that is shuffled once: a request's pages are neither neighbours nor sorted."""

    def __init__(self, count: int, seed: str) -> None:
        self._free = list(range(count))
        random.Random(seed).shuffle(self._free)  # noqa: S311 - repeatable, no secret
        self._used: set[int] = set()

    def take(self, count: int) -> list[int]:
        """`count` free items. Raises MemoryError if there are fewer."""
        if count > len(self._free):
            raise MemoryError(f"{count} items asked for, {len(self._free)} free")
        taken, self._free = self._free[:count], self._free[count:]
        self._used.update(taken)
        return taken

    def give(self, items: Sequence[int]) -> None:
        """Return items: they go to the end of the queue. Raises ValueError for an item that is not out."""
        for item in items:
            if item not in self._used:
                raise ValueError(f"item {item} is not allocated")
            self._used.remove(item)
            self._free.append(item)

    @property
    def used(self) -> frozenset[int]:
        """The items that are out."""
        return frozenset(self._used)


@dataclass(frozen=True)
class Table:
    """What one request holds: page numbers by position, and one slot for the states and the aux values."""

    extent: Extent
    kv: list[int]
    window: list[int]
    slot: int

    def pages(self, group: str) -> list[int]:
        """The page or slot numbers in which the parts of `group` lie."""
        if group == KV:
            return self.kv
        return self.window if group == WINDOW else [self.slot]


@dataclass
class Pools:
    """The memory of one model on one side: `parts` by part, `aux` by name (`[slots, 1]`)."""

    layout: Layout
    parts: dict[Part, torch.Tensor]
    aux: dict[str, torch.Tensor]
    allocators: dict[str, Allocator]
    touched: dict[str, set[int]] = field(default_factory=dict)

    @staticmethod
    def create(layout: Layout, extents: Sequence[Extent], *, seed: str, fill: int) -> Pools:
        """Pools with room for requests of these `extents` and half as much again; every byte is `fill`."""

        def size(wanted: int) -> int:
            return wanted + max(4, wanted // 2)

        counts = {
            KV: size(sum(extent.kv_pages for extent in extents)),
            WINDOW: size(sum(extent.window_pages for extent in extents)),
        }
        slots = size(len(extents))
        parts = {part: _filled((counts.get(part.group, slots), *part.shape), part.dtype, fill) for part in layout.parts}
        aux = {
            AUX_FIRST_TOKEN: _filled((slots, 1), torch.int64, fill),
            AUX_LOGPROB: _filled((slots, 1), torch.float32, fill),
        }
        allocators = {name: Allocator(count, f"{seed}/{name}") for name, count in counts.items()}
        return Pools(layout, parts, aux, {**allocators, "slot": Allocator(slots, f"{seed}/slot")})

    def take(self, extent: Extent) -> Table:
        """Pages and a slot for one request. Raises MemoryError when the pools are full."""
        table = Table(
            extent,
            self.allocators[KV].take(extent.kv_pages),
            self.allocators[WINDOW].take(extent.window_pages),
            self.allocators["slot"].take(1)[0],
        )
        for name, items in ((KV, table.kv), (WINDOW, table.window), ("slot", [table.slot])):
            self.touched.setdefault(name, set()).update(items)
        return table

    def give(self, table: Table) -> None:
        """Return what `take` gave. Only when nobody may write there any more."""
        self.allocators[KV].give(table.kv)
        self.allocators[WINDOW].give(table.window)
        self.allocators["slot"].give([table.slot])

    def clear(self, table: Table) -> None:
        """Zero what `table` holds: the end of a last page that no token fills travels too, and must be known."""
        for part, pool in self.parts.items():
            pool[table.pages(part.group)] = 0
        for pool in self.aux.values():
            pool[table.slot] = 0

    def strays(self) -> list[str]:
        """Names of the pools in which a page or slot that nobody ever held is not canary all over."""
        found = []
        named = [(part.name, part.group, pool) for part, pool in self.parts.items()]
        named += [(f"aux/{name}", "slot", pool) for name, pool in self.aux.items()]
        for name, group, pool in named:
            held = self.touched.get(group if group in (KV, WINDOW) else "slot", set())
            rest = [item for item in range(pool.shape[0]) if item not in held]
            if bool((pool.flatten(1).view(torch.uint8)[rest] != CANARY).any()):
                found.append(name)
        return found


def write_tokens(pool: torch.Tensor, pages: Sequence[int], first: int, start: int, values: torch.Tensor) -> None:
    """Write `values`, `[heads, tokens, head_dim]` of the tokens from position `start` on, into a paged pool.

    `pages[0]` holds the positions from `first * page_size` on. Positions before that have no page and are dropped.
    """
    size = pool.shape[1]
    skip = max(0, first * size - start)
    if skip >= values.shape[1]:
        return
    at = torch.arange(start + skip, start + values.shape[1]) - first * size
    table = torch.tensor(pages, dtype=torch.int64)
    pool[table[at // size], at % size] = values[:, skip:].transpose(0, 1)


Landed = Mapping[str, torch.Tensor]


def read(pools: Pools, table: Table) -> dict[str, torch.Tensor]:
    """A copy of all that `table` holds, by name, in order of position: `[pages, page_size, heads, head_dim]` for
    paged parts, `[1, ...]` for states and aux."""
    copy = {part.name: pool[table.pages(part.group)] for part, pool in pools.parts.items()}
    copy.update({f"aux/{name}": pool[[table.slot]] for name, pool in pools.aux.items()})
    return copy


def sizes(landed: Landed) -> tuple[int, int]:
    """Bytes of what `read` gave: in all, and of the components alone (window pages and states)."""
    states = sum(part.nbytes for name, part in landed.items() if not name.startswith((f"{KV}/", "aux/")))
    return sum(part.nbytes for part in landed.values()), states


def _filled(shape: tuple[int, ...], dtype: torch.dtype, fill: int) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    tensor.flatten(1).view(torch.uint8).fill_(fill)
    return tensor
