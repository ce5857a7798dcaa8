"""The truth about a room: which bytes each of its cells holds, on whichever rank.

Bytes follow from a cell's global name and the room's seed, so that replicas agree without being told, and no two cells
of any two rooms are alike.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Cell(NamedTuple):
    """The global name of a run of bytes, equal on every rank that has it.

    `part` is "kv", "aux/NAME" or "state/NAME". `place` is the token for KV (the first token of a page that is opaque in
    tokens), the position in the list of indices for state, 0 for aux. `row` is the row of a state cell, else 0.
    """

    part: str
    layer: int
    role: str
    shard: int
    unit: int
    place: int
    row: int


def cell_bytes(seed: int, cell: Cell, length: int) -> bytes:
    """The first `length` bytes of a cell of the room with this seed."""
    return hashlib.shake_128(repr((seed, *cell)).encode()).digest(length)


def byte_of(seed: int, cell: Cell, index: int) -> int:
    """Byte `index` of a cell of the room with this seed."""
    return cell_bytes(seed, cell, index + 1)[index]


def canary(rank: str, buffer: int, length: int) -> bytes:
    """What a buffer of a rank holds before any room: a pattern of its own, so that a stray byte of it is known too."""
    return hashlib.shake_128(repr(("canary", rank, buffer)).encode()).digest(length)
