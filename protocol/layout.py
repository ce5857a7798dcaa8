"""What an engine's memory looks like: the layout that both sides must share, and the regions that each side has.

A `Layout` is the part that must be equal on both sides (page size, layers, item lengths, element types, aux buffers,
state components); its digest is compared at the handshake and `differences` says in words what is not equal.
`Regions` are one side's addresses and item counts for the buffers of a layout, in the layout's order.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import msgspec

from .errors import WireError
from .identity import AUX_MAX, BUFFERS_MAX, COMPONENTS_MAX, ITEMS_MAX, NAME_MAX, RANKS_MAX, SHARDS_MAX, U64_MAX

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
Length = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class Owed(enum.Enum):
    """When a state component is owed: in every room, or only in rooms that give indices for it."""

    ALWAYS = "always"
    WHEN_INDEXED = "when_indexed"


Offset = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Shard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of an item that is split among ranks: a grid of cells, each `unit_bytes` long.

    Cell (row, unit) begins at `offset + row * row_stride + unit * unit_stride` of the item and is unit `first + unit`
    of `total` in the whole model (a KV head, a channel of a Mamba layer). Rows are a page's tokens, or there is one.
    """

    offset: Offset
    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    row_stride: Offset
    units: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    unit_stride: Offset
    unit_bytes: Length
    first: Annotated[int, msgspec.Meta(ge=0, le=2**24)]
    total: Annotated[int, msgspec.Meta(ge=1, le=2**24)]

    @property
    def end(self) -> int:
        """The first byte of the item behind the last cell."""
        return (
            self.offset + (self.rows - 1) * self.row_stride + (self.units - 1) * self.unit_stride + self.unit_bytes
        )  # fmt: skip


class BufferSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One buffer: the global layer id, its role ("k", "v", "kv", "conv", ...), bytes per item, element type.

    shards: how an item is split among ranks; none: it is one opaque unit, the same on every rank that has it.
    """

    layer: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    role: Name
    item_length: Length
    dtype: Name
    shards: Annotated[tuple[Shard, ...], msgspec.Meta(max_length=SHARDS_MAX)] = ()

    def __str__(self) -> str:
        return f"layer {self.layer} {self.role}"

    @property
    def padding(self) -> int:
        """Bytes of an item that are in no cell."""
        return self.item_length - sum(shard.rows * shard.units * shard.unit_bytes for shard in self.parts)

    @property
    def parts(self) -> tuple[Shard, ...]:
        """The shards; of a buffer without any, the one that is all of it."""
        return self.shards or (Shard(0, 1, 0, 1, 0, self.item_length, 0, 1),)


class AuxSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One aux buffer: its name, bytes per slot, element type."""

    name: Name
    item_length: Length
    dtype: Name


class ComponentSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One state component: an open name, a kind, when it is owed, and its buffers."""

    name: Name
    kind: Name
    owed: Owed
    buffers: Annotated[tuple[BufferSpec, ...], msgspec.Meta(min_length=1, max_length=BUFFERS_MAX)]


class Layout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True):
    """Everything about the memory that both sides must share."""

    page_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    kv: Annotated[tuple[BufferSpec, ...], msgspec.Meta(max_length=BUFFERS_MAX)]
    aux: Annotated[tuple[AuxSpec, ...], msgspec.Meta(max_length=AUX_MAX)]
    state: Annotated[tuple[ComponentSpec, ...], msgspec.Meta(max_length=COMPONENTS_MAX)]

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that are equal exactly when the layouts are."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).digest()

    @cached_property
    def aux_names(self) -> tuple[str, ...]:
        """The names of the aux buffers, in order."""
        return tuple(aux.name for aux in self.aux)

    @cached_property
    def padded(self) -> bool:
        """Whether an item has bytes in no cell: nobody touches them, so whole items cannot be sent."""
        buffers = (*self.kv, *(buffer for component in self.state for buffer in component.buffers))
        return any(buffer.padding for buffer in buffers)

    @cached_property
    def component_names(self) -> tuple[str, ...]:
        """The names of the state components, in order."""
        return tuple(component.name for component in self.state)


RankNumber = Annotated[int, msgspec.Meta(ge=0, le=RANKS_MAX - 1)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=RANKS_MAX)]


class Rank(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one rank of an instance has. cp_rank, cp_size: which part of the prompt's pages (prefill only)."""

    layout: Layout
    cp_rank: RankNumber = 0
    cp_size: Ranks = 1


class Instance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All ranks of an instance, in order. id: tells apart instances that ask one prefill rank for the same room."""

    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(min_length=1, max_length=RANKS_MAX)]
    id: Annotated[int, msgspec.Meta(ge=0)] = 0


def check_layout(layout: Layout) -> None:
    """Raise WireError, naming the buffer, unless every shard lies within its item and within its total.

    Also unless each layer and role, aux name and component stands once: parts of two ranks are paired by these.
    """
    groups = [("kv", layout.kv), *((f"state.{component.name}", component.buffers) for component in layout.state)]
    for field, buffers in groups:
        if len({(spec.layer, spec.role) for spec in buffers}) != len(buffers):
            raise WireError(f"layout.{field}", "the same layer and role stand there twice")
        for spec in buffers:
            for shard in spec.shards:
                if shard.end > spec.item_length:
                    raise WireError(f"layout.{field}", f"{spec}: a shard ends at {shard.end} of {spec.item_length}")
                if shard.first + shard.units > shard.total:
                    last = shard.first + shard.units - 1
                    raise WireError(f"layout.{field}", f"{spec}: unit {last} of {shard.total} in all")
    for field, names in (("aux", layout.aux_names), ("state", layout.component_names)):
        if len(set(names)) != len(names):
            raise WireError(f"layout.{field}", f"a name stands twice in {list(names)}")


class Region(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One registered buffer: its first byte's address, its number of items, and where it lives."""

    address: Annotated[int, msgspec.Meta(ge=0)]
    items: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_MAX)]
    memory: Literal["DRAM", "VRAM"] = "DRAM"
    device: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0


Group = Annotated[tuple[Region, ...], msgspec.Meta(max_length=BUFFERS_MAX)]


class Regions(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The registered buffers of one side, in the order of its layout."""

    kv: Group
    aux: Annotated[tuple[Region, ...], msgspec.Meta(max_length=AUX_MAX)]
    state: Annotated[tuple[Group, ...], msgspec.Meta(max_length=COMPONENTS_MAX)]

    @property
    def on_host(self) -> bool:
        """Whether the CPU can read all of it."""
        return all(region.memory == "DRAM" for region in self.in_order())

    @property
    def pages(self) -> int:
        """Number of KV pages (0 when the layout has no KV buffers)."""
        return self.kv[0].items if self.kv else 0

    @property
    def aux_slots(self) -> int:
        """Number of aux slots (0 without aux buffers)."""
        return self.aux[0].items if self.aux else 0

    def component_items(self, component: int) -> int:
        """Number of items (slots or pages) of a state component, by its position in the layout."""
        return self.state[component][0].items

    def in_order(self) -> Iterator[Region]:
        """All regions: KV, then aux, then the components' in their order."""
        yield from self.kv
        yield from self.aux
        for component in self.state:
            yield from component


def check_regions(layout: Layout, regions: Regions) -> None:
    """Raise WireError, naming the field, unless `regions` fits `layout` and every address range is representable."""
    groups: list[tuple[str, tuple[Region, ...], list[int]]] = [
        ("regions.kv", regions.kv, [b.item_length for b in layout.kv]),
        ("regions.aux", regions.aux, [a.item_length for a in layout.aux]),
    ]
    if len(regions.state) != len(layout.state):
        raise WireError("regions.state", f"{len(regions.state)} components, the layout has {len(layout.state)}")
    for spec, group in zip(layout.state, regions.state, strict=True):
        groups.append((f"regions.state.{spec.name}", group, [b.item_length for b in spec.buffers]))
    if sum(region.items for region in regions.in_order()) > ITEMS_MAX:
        raise WireError("regions", f"more than {ITEMS_MAX} items in all")
    for field, group, lengths in groups:
        if len(group) != len(lengths):
            raise WireError(field, f"{len(group)} buffers, the layout has {len(lengths)}")
        for region, length in zip(group, lengths, strict=True):
            if region.items != group[0].items or region.memory != group[0].memory or region.device != group[0].device:
                raise WireError(field, "its buffers differ in items, memory or device")
            if region.address + region.items * length > U64_MAX:
                raise WireError(field, f"address {region.address} and {region.items} items leave the address space")


def _buffers_differ(where: str, ours: tuple[BufferSpec, ...], theirs: tuple[BufferSpec, ...]) -> list[str]:
    if len(ours) != len(theirs):
        return [f"{where}: we have {len(ours)} buffers, the peer {len(theirs)}"]
    words = []
    for a, b in zip(ours, theirs, strict=True):
        if (a.layer, a.role) != (b.layer, b.role):
            words.append(f"{where}: our {a} stands where the peer has {b}")
        elif a.dtype != b.dtype:
            words.append(f"{where} {a}: our element type is {a.dtype}, the peer's {b.dtype}")
        elif a.item_length != b.item_length:
            words.append(f"{where} {a}: our items have {a.item_length} bytes, the peer's {b.item_length}")
        elif a.shards != b.shards:
            words.append(f"{where} {a}: our shards are {a.shards}, the peer's {b.shards}")
    return words


@lru_cache(maxsize=64)
def differences(ours: Layout, theirs: Layout) -> tuple[str, ...]:
    """What is not equal, one sentence per difference; empty exactly when the layouts are equal."""
    words: list[str] = []
    if ours.page_size != theirs.page_size:
        words.append(f"page size: ours is {ours.page_size} tokens, the peer's {theirs.page_size}")
    words += _buffers_differ("kv", ours.kv, theirs.kv)
    if ours.aux != theirs.aux:
        words.append(f"aux: ours is {_aux_words(ours)}, the peer's {_aux_words(theirs)}")
    if ours.component_names != theirs.component_names:
        words.append(
            f"state components: ours are {list(ours.component_names)}, the peer's {list(theirs.component_names)}"
        )
    else:
        for a, b in zip(ours.state, theirs.state, strict=True):
            where = f"state component {a.name!r}"
            if a.kind != b.kind:
                words.append(f"{where}: our kind is {a.kind!r}, the peer's {b.kind!r}")
            if a.owed is not b.owed:
                words.append(f"{where}: we owe it {a.owed.value}, the peer {b.owed.value}")
            words += _buffers_differ(where, a.buffers, b.buffers)
    return tuple(words)


def _aux_words(layout: Layout) -> str:
    return "[" + ", ".join(f"{a.name}: {a.dtype}, {a.item_length} bytes" for a in layout.aux) + "]"
