"""Digests of what was sent and of what has landed: optional, for hardware or software that is not trusted.

A digest covers one reported part: buffer after buffer of the layout, position after position. Prefill takes it from the
source when it posts the write that reports the part, decode from the destination when the notification is there.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from ..protocol.errors import InvalidArgument
from ..protocol.layout import Layout, Region, Regions
from ..protocol.manifest import Indices
from ..protocol.notify import DIGEST_LENGTH, PartKind

_Buffers = Sequence[tuple[int, int]]


class Digester:
    """Reads the registered memory of one engine. Raises InvalidArgument when some of it is not the host's."""

    def __init__(self, layout: Layout, regions: Regions) -> None:
        if not regions.on_host:
            raise InvalidArgument("digest", 1, "digests are taken by the CPU, and a buffer is not in the host's memory")
        self._kv = _buffers([buffer.item_length for buffer in layout.kv], regions.kv)
        self._aux = _buffers([aux.item_length for aux in layout.aux], regions.aux)
        self._state = [
            _buffers([buffer.item_length for buffer in component.buffers], group)
            for component, group in zip(layout.state, regions.state, strict=True)
        ]

    def of(self, kind: PartKind, layout_component: int, items: Indices) -> bytes:
        """The digest of some items of a part, in their order."""
        buffers = {PartKind.KV: self._kv, PartKind.AUX: self._aux}.get(kind) or self._state[layout_component]
        digest = hashlib.blake2b(digest_size=DIGEST_LENGTH)
        for address, length in buffers:
            for first, count in _runs(items):
                digest.update((ctypes.c_char * (count * length)).from_address(address + first * length))
        return digest.digest()


def _buffers(lengths: list[int], regions: tuple[Region, ...]) -> _Buffers:
    return [(region.address, length) for region, length in zip(regions, lengths, strict=True)]


def _runs(items: Indices) -> Iterator[tuple[int, int]]:
    """The runs of consecutive items: (first, how many)."""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(items) != 1) + 1))
    for start, stop in zip(starts, [*starts[1:], len(items)], strict=True):
        yield int(items[start]), int(stop - start)
