"""An engine's staging buffer: slots for what is gathered before it is sent, and the copies.

The engine's thread alone touches it, and copies on that thread: at most a slot at a time, then it looks at its ports
again. A slot is taken when a write is posted and given back when that write has settled, whatever it settled with. So
who waits for a slot waits for a write of his own; who has none, because others have all of them, goes without.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from ..protocol.errors import TransportError
from ..protocol.packing import Packed
from ..protocol.staging import slot_bytes
from ..transport.ports import Transport

log = logging.getLogger("kvrooms.engine")

_ALIGN = 4096
_IN_USE: set[Stage] = set()
"""Stages with slots that are taken: somebody may write to these, or read them, whatever becomes of their engine."""
Bytes = npt.NDArray[np.uint8]


class Stage:
    """Slots of equal length in one range of memory. Nobody may hold more than half of them."""

    def __init__(self, size: int) -> None:
        """size: bytes of all slots; at least 2."""
        self.slot_bytes = slot_bytes(size)
        self.slots = size // self.slot_bytes
        memory: Bytes = np.empty(self.slots * self.slot_bytes + _ALIGN, dtype=np.uint8)
        skip = -memory.ctypes.data % _ALIGN
        self._memory = memory[skip : skip + self.slots * self.slot_bytes]
        self.address: int = self._memory.ctypes.data
        self._free = list(range(self.slots))
        self._held: Counter[Hashable] = Counter()

    @property
    def length(self) -> int:
        """Bytes of all slots."""
        return len(self._memory)

    @property
    def used(self) -> int:
        """How many slots are taken."""
        return self.slots - len(self._free)

    @property
    def free(self) -> int:
        """How many slots are not taken."""
        return len(self._free)

    def holds(self, owner: Hashable) -> bool:
        """Whether somebody has slots."""
        return self._held[owner] > 0

    def take(self, owner: Hashable) -> int | None:
        """A slot, or None when there is none for him. The lowest, so that the same few stay in the caches."""
        if not self._free or self._held[owner] >= self.slots // 2:
            return None
        self._held[owner] += 1
        _IN_USE.add(self)
        return heapq.heappop(self._free)

    def give(self, owner: Hashable, slot: int) -> None:
        """A slot is free again."""
        heapq.heappush(self._free, slot)
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        if not self.used:
            _IN_USE.discard(self)

    def gather(self, slot: int, packed: Packed) -> int:
        """Copy what a packed range holds into a slot. Returns the slot's address."""
        first = slot * self.slot_bytes
        into = self._memory[first : first + packed.bytes].view(np.dtype((np.void, packed.grain)))
        np.take(_grains(packed), packed.grains, out=into, mode="clip")
        return self.address + first

    def scatter(self, slot: int, packed: Packed) -> None:
        """Copy what lies in a slot to where a packed range belongs."""
        first = slot * self.slot_bytes
        source = self._memory[first : first + packed.bytes].view(np.dtype((np.void, packed.grain)))
        np.put(_grains(packed), packed.grains, source, mode="clip")


def make_stage(transport: Transport, size: int, name: str) -> Stage | None:
    """A registered stage. Without one, which is logged, short runs go one by one."""
    stage = Stage(size)
    try:
        transport.register_staging(stage.address, stage.length)
    except TransportError as error:
        log.warning("%s: no staging: %s", name, error)
        return None
    return stage


class _Memory:
    """So many grains from an address on, for numpy. What lies between those that are copied is not touched."""

    def __init__(self, address: int, count: int, grain: int) -> None:
        data = (address, False)
        self.__array_interface__ = {"data": data, "shape": (count,), "typestr": f"|V{grain}", "version": 3}


def _grains(packed: Packed) -> npt.NDArray[np.void]:
    """Memory as grains, from the origin to the last that is needed."""
    return np.asarray(_Memory(packed.origin, int(packed.grains.max()) + 1, packed.grain))
