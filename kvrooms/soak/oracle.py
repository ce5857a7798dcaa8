"""What every byte must be. Shares no code with the engine, and knows of nothing but rooms, parts and positions."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_TABLE = 2**20
_LONGEST = 2**16


class Oracle:
    """The bytes of each position of each part of each room of a run."""

    def __init__(self, seed: int) -> None:
        self._table: Bytes = np.random.default_rng(seed).integers(0, 256, _TABLE + _LONGEST, dtype=np.uint8)
        self._table.flags.writeable = False

    def item(self, number: int, part: str, position: int, length: int) -> Bytes:
        """The bytes of position `position` of `part` in room `number`: a place in the table that only these share."""
        if length > _LONGEST:
            raise ValueError(f"{length} bytes: an item may have {_LONGEST}")
        digest = hashlib.blake2b(f"{number}/{part}/{position}".encode(), digest_size=8).digest()
        at = int.from_bytes(digest, "little") % _TABLE
        return self._table[at : at + length]
