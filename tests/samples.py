"""Layouts, manifests and frames that several tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvrooms.protocol.identity import ATTEMPT_MAX, ITEMS_MAX, PAGES_MAX, ROOM_MAX, U64_MAX
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from kvrooms.protocol.manifest import Manifest
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.staging import SLOTS_MAX, Slots

NAMES = ("conv", "swa", "index")


def layout(*owed: Owed, kv: int = 2, aux: tuple[str, ...] = ("token", "logprob")) -> Layout:
    """A layout with so many KV buffers, these aux buffers, and one state component for each `owed`."""
    return Layout(
        page_size=16,
        kv=tuple(BufferSpec(i // 2, "kv"[i % 2], 64, "float16") for i in range(kv)),
        aux=tuple(AuxSpec(name, 4, "int32") for name in aux),
        state=tuple(
            ComponentSpec(name, "mamba", when, (BufferSpec(9, name, 32, "float32"),))
            for name, when in zip(NAMES, owed, strict=False)
        ),
    )


def dense(components: int, owed: Owed = Owed.WHEN_INDEXED) -> Layout:
    """A layout with so many components that are all owed alike."""
    return layout(*(owed for _ in range(components)))


@cache
def huge() -> Any:
    """An array of one byte more than there may be items, reserved and never touched."""
    return np.empty(ITEMS_MAX + 1, np.uint8)


def manifest(pages: int = 2, aux: bool = True, state: tuple[int, ...] = (), first: int = 0) -> Manifest:
    """A manifest of the shared layouts: positions [first, pages), the aux buffers or not, indices per component."""
    kv = ((first, pages),) if first < pages else ()
    owed = tuple((name, n) for name, n in zip(NAMES, state, strict=False) if n)
    return Manifest(pages, kv, ("token", "logprob") if aux else (), owed)


# -- strategies: any value that the wire's types admit ---------------------------------------------------------------

u64 = st.integers(0, U64_MAX)
grants = st.integers(1, U64_MAX)
names = st.text(min_size=1, max_size=12)
details = st.text(max_size=40)
rooms = st.integers(0, ROOM_MAX)
attempts = st.integers(0, ATTEMPT_MAX)
pages = st.integers(0, PAGES_MAX)
counts = st.integers(1, ITEMS_MAX)
buffers = st.builds(BufferSpec, st.integers(0, 2**31), names, st.integers(1, 2**40), names)
components = st.builds(
    ComponentSpec, names, names, st.sampled_from(Owed), st.lists(buffers, min_size=1, max_size=3).map(tuple)
)
layouts = st.builds(
    Layout,
    st.integers(1, 2**20),
    st.lists(buffers, max_size=3).map(tuple),
    st.lists(st.builds(AuxSpec, names, st.integers(1, 2**40), names), max_size=3).map(tuple),
    st.lists(components, max_size=3).map(tuple),
)
regions = st.builds(Region, u64, counts, st.sampled_from(["DRAM", "VRAM"]), st.integers(0, 2**16))
groups = st.lists(regions, max_size=3).map(tuple)
all_regions = st.builds(Regions, groups, groups, st.lists(groups, max_size=3).map(tuple))
staging_slots = st.builds(
    Slots,
    u64,
    st.integers(1, SLOTS_MAX),
    st.integers(1, 2**40),
    st.lists(st.tuples(st.sampled_from(PartKind), names), max_size=3).map(tuple),
)
manifests = st.builds(
    Manifest,
    pages,
    st.lists(st.tuples(pages, pages), max_size=4).map(tuple),
    st.lists(names, max_size=4).map(tuple),
    st.lists(st.tuples(names, counts), max_size=4).map(tuple),
)
