"""When short runs of bytes go through a staging buffer: the rule, in one place.

A write costs time per run and time per byte. Where the runs of one pair of ranks are short, the sender gathers them
into a registered buffer and sends what lies together on the receiver as one run.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .grids import Grid

RUNS_MIN = 64
"""Fewer runs in one send are not worth a copy."""
SLOT_BYTES = 2**21
"""A staging buffer is divided into slots, which fit the processor's caches: what was gathered is read from there."""


def slot_bytes(size: int) -> int:
    """How long the slots of a buffer of `size` bytes are, at least 2: there is more than one."""
    return min(SLOT_BYTES, size // 2)


class Staging(NamedTuple):
    """max_slice: the longest runs, on average, that are gathered. slot_bytes: the most that one write gathers."""

    max_slice: int
    slot_bytes: int


class Way(enum.Enum):
    """How the runs of a grid are sent."""

    DIRECT = "one by one"
    GATHERED = "gathered on the sender, and sent as what lies together on the receiver"


def way_of(grid: Grid, staging: Staging) -> Way:
    """How the runs of a grid are sent. Only the host's memory is gathered, and only where it halves their number."""
    runs, segments = len(grid.size), len(grid.segments) - 1
    if grid.bytes > staging.max_slice * runs or grid.source.memory != "DRAM":
        return Way.DIRECT
    return Way.GATHERED if segments * 2 <= runs and grid.gathering.grain else Way.DIRECT
