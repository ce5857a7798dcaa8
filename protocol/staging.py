"""When short runs of bytes go through staging buffers: the rules, in one place.

A write costs time per run and time per byte. Where the runs of one pair of ranks are short, the sender gathers them
into a slot of a registered buffer. What lies together on the receiver is then sent as one run. Where the runs lie apart
on the receiver as well, the slot is sent as one run into a slot of the receiver, which scatters it. For which parts
the receiver decides, because it lends the slots; a part goes that way throughout a grant or not at all.
"""

from __future__ import annotations

import enum
from typing import Annotated, NamedTuple

import msgspec

from .errors import WireError
from .grids import Grid
from .identity import COMPONENTS_MAX, NAME_MAX, U64_MAX
from .notify import PartKind

RUNS_MIN = 64
"""Fewer runs, in one send or in a whole room, are not worth a copy."""
SLOT_BYTES = 2**22
"""How long a slot of a large staging buffer is: beside the copies, what a write costs by itself hardly counts then."""
SLOTS_MAX = 2**20
LENT_MAX = 2
"""The most slots that are lent to one grant: enough to fill some while others are emptied."""
LENT_SHARE = 4
"""A grant gets one of so many free slots, so that many rooms get some."""

Lent = tuple[PartKind, Annotated[str, msgspec.Meta(max_length=NAME_MAX)]]


class Slots(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A receiver's staging slots, in the host's memory: the first one's address, how many, how long each is.

    parts: which parts are scattered from them, by kind and component ("" for KV).
    """

    address: Annotated[int, msgspec.Meta(ge=0)]
    count: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    length: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    parts: Annotated[tuple[Lent, ...], msgspec.Meta(max_length=COMPONENTS_MAX + 1)]


def check_slots(slots: Slots) -> None:
    """Raise WireError unless every slot has an address, and no aux is to go through one."""
    if slots.address + slots.count * slots.length > U64_MAX:
        raise WireError("hello.staging", f"address {slots.address} and {slots.count} slots leave the address space")
    if any(kind is PartKind.AUX for kind, _ in slots.parts):
        raise WireError("hello.staging", "aux is never staged")


class Staging(NamedTuple):
    """What a side allows. max_slice: the longest runs, on average, that are staged. slot_bytes: of its own slots."""

    max_slice: int
    slot_bytes: int


class Way(enum.Enum):
    """How the runs of a grid are sent."""

    DIRECT = "one by one"
    GATHERED = "gathered on the sender, and sent as what lies together on the receiver"
    SCATTERED = "sent in a row to a slot of the receiver, gathered before if need be, and scattered there"


def slot_bytes(size: int) -> int:
    """How long the slots of a buffer of `size` bytes are, at least 2: there is more than one."""
    return min(SLOT_BYTES, size // 2)


def gathers(grid: Grid, staging: Staging) -> bool:
    """Whether a sender gathers the runs of a grid by itself: in the host's memory, and if that halves their number."""
    if not _short(grid, staging) or grid.source.memory != "DRAM":
        return False
    return _joins(grid) and grid.gathering.worth_while


def scatters(kind: PartKind, grid: Grid, staging: Staging) -> bool:
    """Whether a receiver lends slots for a part: short runs that the sender cannot join, in the host's memory."""
    if kind is PartKind.AUX or not _short(grid, staging) or grid.target.memory != "DRAM":
        return False
    return not _joins(grid) and longest(grid) <= staging.slot_bytes and grid.scattering.worth_while


def longest(grid: Grid) -> int:
    """How long a slot is at least that a part goes through: no buffer of a position is cut."""
    return int(grid.buffers.bytes.max()) * grid.blocks_per_position


def check_room(slots: Slots, kind: PartKind, name: str, grid: Grid) -> None:
    """Raise WireError unless a receiver's slots can hold a part that is to go through them."""
    if (kind, name) in slots.parts and longest(grid) > slots.length:
        words = f"slots of {slots.length} bytes for {kind.name} {name!r}, of which {longest(grid)} lie in one buffer"
        raise WireError("hello.staging", words)


def bundles(grid: Grid, staging: Staging) -> bool:
    """Whether a sender gathers what the receiver scatters. Where it lies in long ranges, these are sent as they are."""
    packing = grid.bundling
    return grid.source.memory == "DRAM" and packing.worth_while and packing.average <= staging.max_slice


def _short(grid: Grid, staging: Staging) -> bool:
    return grid.bytes <= staging.max_slice * len(grid.size)


def _joins(grid: Grid) -> bool:
    return len(grid.segments.bytes) * 2 <= len(grid.size)
