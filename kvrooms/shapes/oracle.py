"""What prefill ranks hold of a room, what decode ranks are owed, and what their pools must be afterwards.

Slow on purpose: every cell is visited by itself, and `owed` every byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from .pools import Pool, copy_of
from .rooms import RoomShape
from .truth import Cell, cell_bytes
from .views import InstanceView
from .walk import Spot, spots

Address: TypeAlias = tuple[int, int]
"""A rank's number, and the address of a byte in its memory."""


class Pair(NamedTuple):
    """The prefill instance that serves a room, and the decode instance that it is for."""

    prefill: InstanceView
    decode: InstanceView


def source_spots(prefill: InstanceView, rank: int, room: RoomShape) -> Iterator[Spot]:
    """Every cell that a prefill rank has of a room, whoever else has it too."""
    return spots(prefill.ranks[rank].layout, room.source_table(rank), room.prefill[rank])


def due_spots(pair: Pair, rank: int, room: RoomShape) -> Iterator[Spot]:
    """Every cell that a decode rank is owed."""
    layout = pair.decode.ranks[rank].layout
    end = min(room.source_pages * pair.prefill.ranks[0].layout.page_size, room.target_pages * layout.page_size)
    for spot in spots(layout, room.target_table(rank), room.decode[rank]):
        if spot.cell.part != "kv" or spot.cell.place < end:
            yield spot


def paint(prefill: InstanceView, rank: int, pool: Pool, room: RoomShape) -> None:
    """Write into a prefill rank's pools what it has of the room, and nothing else."""
    _write(pool, room, source_spots(prefill, rank, room))


def expected(pair: Pair, rank: int, before: Pool, room: RoomShape) -> Pool:
    """What a decode rank's pools must hold once the room is DONE, having held `before`: untouched bytes included."""
    after = copy_of(before)
    _write(after, room, due_spots(pair, rank, room))
    return after


def due_bytes(pair: Pair, rank: int, room: RoomShape) -> int:
    """How many bytes a decode rank is owed."""
    return sum(spot.length for spot in due_spots(pair, rank, room))


def owed(
    pair: Pair, room: RoomShape, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> dict[Address, frozenset[Address]]:
    """For each byte that is owed, by decode rank and address: the bytes, by prefill rank and address, that may be sent.

    `sources` and `targets` give the address of each buffer of each rank, in the order of its layout. Raises ValueError
    for a byte that no prefill rank has, and for one that would be owed twice.
    """
    holders: dict[tuple[Cell, int], set[Address]] = {}
    for rank, bases in enumerate(sources):
        for spot in source_spots(pair.prefill, rank, room):
            for index in range(spot.length):
                byte = (rank, bases[spot.buffer] + spot.offset + index)
                holders.setdefault((spot.cell, index), set()).add(byte)
    debts: dict[Address, frozenset[Address]] = {}
    for rank, bases in enumerate(targets):
        for spot in due_spots(pair, rank, room):
            for index in range(spot.length):
                byte = (rank, bases[spot.buffer] + spot.offset + index)
                if (spot.cell, index) not in holders:
                    raise ValueError(f"no prefill rank has byte {index} of {spot.cell}, owed to decode rank {rank}")
                if byte in debts:
                    raise ValueError(f"decode rank {rank} has two cells at address {byte[1]}: one is {spot.cell}")
                debts[byte] = frozenset(holders[spot.cell, index])
    return debts


def _write(pool: Pool, room: RoomShape, cells: Iterator[Spot]) -> None:
    for buffer, offset, length, cell in cells:
        if not 0 <= offset <= len(pool[buffer]) - length:
            raise ValueError(f"{cell} would lie outside buffer {buffer}")
        pool[buffer][offset : offset + length] = np.frombuffer(cell_bytes(room.seed, cell, length), dtype=np.uint8)
