"""A rank's pools in memory that its process and the conductor share: the conductor sees every byte of it.

The memory has no name and goes when the last process lets go of it. Between buffers lie bytes that belong to nobody.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch

from ...protocol.layout import BufferSpec, Layout
from ...protocol.memory import Buffer, Component, Memory
from ...shapes.pools import Bytes, Pool, Sizes, blank
from ...shapes.truth import canary
from ...shapes.walk import buffers_of

_GAP, _ALIGN = 256, 64
_NOBODYS = 10**6


def bytes_of(layout: Layout, sizes: Sizes) -> int:
    """How much memory a rank's pools take, gaps included."""
    places = _places(layout, sizes)
    return (places[-1][1] if places else 0) + _GAP


def make(size: int) -> int:
    """A descriptor of new memory."""
    descriptor = os.memfd_create("kvrooms-shape")
    os.ftruncate(descriptor, size)
    return descriptor


def attach(descriptor: int, size: int) -> Bytes:
    """The bytes behind a descriptor, which is closed. They are let go of with the last array that shows them."""
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)


def pool_in(memory: Bytes, layout: Layout, sizes: Sizes) -> Pool:
    """The pools that lie in a rank's memory."""
    return tuple(memory[start:stop] for start, stop in _places(layout, sizes))


def fill(memory: Bytes, layout: Layout, sizes: Sizes, rank: str) -> None:
    """Canaries everywhere, in the gaps too."""
    memory[:] = np.frombuffer(canary(rank, _NOBODYS, len(memory)), dtype=np.uint8)
    for array, pattern in zip(pool_in(memory, layout, sizes), blank(layout, sizes, rank), strict=True):
        array[:] = pattern


def _places(layout: Layout, sizes: Sizes) -> list[tuple[int, int]]:
    places, at = [], _GAP
    for where in buffers_of(layout):
        at = -(-at // _ALIGN) * _ALIGN
        places.append((at, at + where.item_length * sizes.items(where.part)))
        at = places[-1][1] + _GAP
    return places


def described(memory: Bytes, layout: Layout, sizes: Sizes) -> Memory:
    """What an engine is given, by the ways that any caller has: tensors, and shards of those that are split."""
    arrays = iter(pool_in(memory, layout, sizes))

    def buffer(spec: BufferSpec) -> Buffer:
        return Buffer(spec.layer, spec.role, _tensor(next(arrays), spec.item_length, spec.dtype), spec.shards)

    kv = [buffer(spec) for spec in layout.kv]
    aux = {spec.name: _tensor(next(arrays), spec.item_length, spec.dtype) for spec in layout.aux}
    state = [
        Component(one.name, one.kind, one.owed.value, [buffer(spec) for spec in one.buffers]) for one in layout.state
    ]
    return Memory(layout.page_size, kv, aux, state)


def _tensor(array: Bytes, item_length: int, dtype: str) -> torch.Tensor:
    """The items of a buffer, as elements of its type."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.from_numpy(array.reshape(-1, item_length)).view(kind)
