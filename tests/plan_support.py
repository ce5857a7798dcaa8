"""Small layouts for the tests of who sends what, and of the plans between two ranks."""

from __future__ import annotations

from typing import Any

import msgspec

from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Rank, Shard


def heads(first: int, units: int, total: int = 4, size: int = 8, rows: int = 4, **change: Any) -> BufferSpec:
    """A buffer of layer 0 with some of the model's heads, token after token."""
    shard = Shard(0, rows, units * size, units, size, size, first, total)
    return msgspec.structs.replace(BufferSpec(0, "k", rows * units * size, "uint8", (shard,)), **change)


def rank(
    *kv: BufferSpec, page: int = 4, aux: tuple[str, ...] = (), state: Any = (), cp: tuple[int, int] = (0, 1)
) -> Rank:
    """A rank with these buffers."""
    return Rank(Layout(page, kv, tuple(AuxSpec(name, 8, "int64") for name in aux), tuple(state)), *cp)


def swa(kind: str = "swa", owed: Owed = Owed.WHEN_INDEXED, layer: int = 1, rows: int = 1) -> ComponentSpec:
    """A state component of one buffer."""
    return ComponentSpec("s", kind, owed, (heads(0, 4, rows=rows, layer=layer),))
