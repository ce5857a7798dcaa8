"""The pools of one model as the memory of an engine."""

from __future__ import annotations

from typing import Any

from kvrooms import Buffer, Component, Memory, Shard, split

from .layout import KV, WINDOW, Part
from .pages import Pools, Table


def memory_of(pools: Pools) -> Memory:
    """Register every pool: full-attention layers as `kv`, window pages and states as components.

    A rank of a split model says which heads and channels of it each pool has.
    """
    layout = pools.layout

    def buffers(group: str) -> list[Buffer]:
        return [
            Buffer(layer=part.layer, role=part.role, array=pools.parts[part], shards=_shards(part, pools.parts[part]))
            for part in layout.group(group)
        ]

    components = []
    if layout.group(WINDOW):
        components.append(Component(name=WINDOW, kind="sliding_window", owed="when_indexed", buffers=buffers(WINDOW)))
    components += [Component(name=name, kind="mamba", owed="always", buffers=buffers(name)) for name in layout.states]
    return Memory(page_size=layout.page_size, kv=buffers(KV), aux=dict(pools.aux), state=components)


def _shards(part: Part, pool: Any) -> tuple[Shard, ...]:
    if part.total is None:
        return ()
    return split(pool, 1 + part.axis, part.first, part.total, rows=1 if part.paged else None)


def state_indices(pools: Pools, table: Table) -> dict[str, list[int]]:
    """What a whole request holds in each component."""
    names = ([WINDOW] if table.window else []) + list(pools.layout.states)
    return {name: table.pages(name) for name in names}
