"""From a caller's tensors to a layout and regions: contiguity, bounds and element types checked once, up front.

Arrays are numpy arrays or torch tensors (recognised by their methods: torch is never imported here). The first
dimension counts items (pages or slots); an item's length in bytes is the size of everything after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument
from .identity import AUX_MAX, BUFFERS_MAX, COMPONENTS_MAX, ITEMS_MAX, NAME_MAX, check_int
from .layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions, Shard
from .split import check_shards


class Buffer(NamedTuple):
    """One layer's array of a role ("k", "v", "kv", "conv", ...): contiguous, shape [items, ...].

    shards: which part of the whole model's items this rank has (see `split`); none: items are not split, or whoever has
    the layer has all of them.
    """

    layer: int
    role: str
    array: Any
    shards: Sequence[Shard] = ()


class Component(NamedTuple):
    """A state component: its name, its kind, when it is owed, and its buffers (all with the same number of items)."""

    name: str
    kind: str
    owed: Literal["always", "when_indexed"]
    buffers: Sequence[Buffer]


class _Described(NamedTuple):
    region: Region
    item_length: int
    dtype: str


def _describe(field: str, array: Any) -> _Described:
    """Address, items, item length and element type of an array. Raises InvalidArgument naming the field."""
    if isinstance(array, np.ndarray):
        contiguous, address, memory, device = bool(array.flags.c_contiguous), array.ctypes.data, "DRAM", 0
        if not array.flags.writeable:
            raise InvalidArgument(field, array.shape, "the array is read-only")
        if array.dtype.hasobject or not array.dtype.isnative:  # pointers; or bytes in an order that no name tells
            raise InvalidArgument(field, array.dtype.str, "must have a plain element type in native byte order")
        item_size, dtype = array.itemsize, array.dtype.name
    elif hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        contiguous, address = bool(array.is_contiguous()), int(array.data_ptr())
        kind = array.device.type
        if kind not in ("cpu", "cuda"):
            raise InvalidArgument(field, kind, "only cpu and cuda tensors can be registered")
        memory, device = ("DRAM", 0) if kind == "cpu" else ("VRAM", int(array.device.index or 0))
        item_size, dtype = int(array.element_size()), str(array.dtype).removeprefix("torch.")
        storage = getattr(array, "untyped_storage", None)
        if (
            contiguous
            and storage is not None
            and storage().nbytes() < (array.storage_offset() + array.numel()) * item_size
        ):
            raise InvalidArgument(
                field, storage().nbytes(), "the tensor's storage was freed, or has fewer bytes than it"
            )
    else:
        raise InvalidArgument(field, type(array).__name__, "must be a numpy array or a torch tensor")
    shape = tuple(int(n) for n in array.shape)
    if not shape or 0 in shape:
        raise InvalidArgument(field, shape, "must have at least one item of at least one element")
    if not contiguous:
        raise InvalidArgument(field, shape, "must be contiguous")
    if shape[0] > ITEMS_MAX:
        raise InvalidArgument(field, shape, f"may have at most {ITEMS_MAX} items")
    item_length = item_size * int(np.prod(shape[1:], dtype=np.int64))
    region = Region(address, shape[0], cast(Literal["DRAM", "VRAM"], memory), device)
    return _Described(region, item_length, dtype)


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_MAX:
        raise InvalidArgument(field, value, f"must be a string of 1 to {NAME_MAX} characters")
    return value


def _buffers(
    field: str, buffers: Sequence[Buffer], page_size: int | None = None
) -> tuple[tuple[BufferSpec, ...], tuple[Region, ...]]:
    specs: list[BufferSpec] = []
    regions: list[Region] = []
    if len(buffers) > BUFFERS_MAX:
        raise InvalidArgument(field, len(buffers), f"may have at most {BUFFERS_MAX} buffers")
    for buffer in buffers:
        layer, role, array, shards = Buffer(*buffer)
        where = f"{field}[layer {layer} {role}]"
        described = _describe(where, array)
        layer_id = check_int(f"{field}.layer", layer, 0, 2**31)
        length, dtype = described.item_length, described.dtype
        parts = check_shards(f"{where}.shards", shards, length, page_size)
        specs.append(BufferSpec(layer_id, _name(f"{field}.role", role), length, dtype, parts))
        regions.append(described.region)
        _same_group(where, regions[0], described.region)
    if len({(spec.layer, spec.role) for spec in specs}) != len(specs):
        raise InvalidArgument(field, [str(spec) for spec in specs], "names the same layer and role twice")
    return tuple(specs), tuple(regions)


def _same_group(where: str, first: Region, region: Region) -> None:
    if region.items != first.items:
        raise InvalidArgument(where, region.items, f"must have {first.items} items like the buffers beside it")
    if (region.memory, region.device) != (first.memory, first.device):
        place = f"{region.memory} {region.device}"
        raise InvalidArgument(where, place, f"must live in {first.memory} {first.device} like the buffers beside it")


class Memory:
    """An engine's memory: KV pages, aux slots and state components, described and checked.

    page_size: tokens per page. kv: one buffer per layer and role, each [pages, ...]. aux: by name, each [slots, ...].
    state: the components, each with its own items. The arrays are kept alive as long as this object is.
    Raises InvalidArgument naming the field.
    """

    def __init__(
        self,
        page_size: int,
        kv: Sequence[Buffer] = (),
        aux: Mapping[str, Any] | None = None,
        state: Sequence[Component] = (),
    ) -> None:
        page_size = check_int("page_size", page_size, 1, 2**20)
        kv, aux, state = tuple(kv), dict(aux or {}), tuple(state)
        kv_specs, kv_regions = _buffers("kv", kv, page_size)
        if len(aux) > AUX_MAX:
            raise InvalidArgument("aux", len(aux), f"may have at most {AUX_MAX} buffers")
        aux_specs: list[AuxSpec] = []
        aux_regions: list[Region] = []
        for name, array in aux.items():
            described = _describe(f"aux[{name}]", array)
            aux_specs.append(AuxSpec(_name("aux", name), described.item_length, described.dtype))
            aux_regions.append(described.region)
            _same_group(f"aux[{name}]", aux_regions[0], described.region)
        specs, regions = _components(state)
        self.layout = Layout(page_size, kv_specs, tuple(aux_specs), specs)
        self.regions = Regions(kv_regions, tuple(aux_regions), regions)
        total = sum(region.items for region in self.regions.in_order())
        if total > ITEMS_MAX:  # they are numbered with int32, buffer after buffer
            raise InvalidArgument("kv, aux, state", total, f"may have at most {ITEMS_MAX} items in all together")
        self._arrays = (kv, aux, state)
        buffers = [*kv, *(buffer for component in state for buffer in Component(*component).buffers)]
        every = [*aux.values(), *(Buffer(*buffer).array for buffer in buffers)]
        # A numpy array that somebody refers to stays where it is: `resize` refuses, also with refcheck=False.
        self._anchors = tuple(weakref.ref(one) for array in every for one in _owners(array))
        # A tensor's storage can be freed under it.
        self._pointers = tuple(array.data_ptr for array in every if not isinstance(array, np.ndarray))
        self._addresses = [pointer() for pointer in self._pointers]

    def check_kept(self) -> None:
        """Raise InvalidArgument if a tensor was freed or moved since it was described; cheap enough for every call."""
        if [pointer() for pointer in self._pointers] != self._addresses:
            self.check_unmoved()

    def check_unmoved(self) -> None:
        """Raise InvalidArgument if one of the arrays was freed or moved since it was described."""
        kv, aux, state = self._arrays
        if Memory(self.layout.page_size, kv, aux, state).regions != self.regions:
            raise InvalidArgument("memory", self.regions.pages, "an array was moved or resized since it was described")


def _owners(array: Any) -> Iterator[npt.NDArray[Any]]:
    """A numpy array, and what it is a view of."""
    while isinstance(array, np.ndarray):
        yield array
        array = array.base


def _components(
    state: tuple[Component, ...],
) -> tuple[tuple[ComponentSpec, ...], tuple[tuple[Region, ...], ...]]:
    if len(state) > COMPONENTS_MAX:
        raise InvalidArgument("state", len(state), f"may have at most {COMPONENTS_MAX} components")
    specs: list[ComponentSpec] = []
    regions: list[tuple[Region, ...]] = []
    for name, kind, owed, buffers in state:
        where = f"state[{name}]"
        if owed not in ("always", "when_indexed"):
            raise InvalidArgument(f"{where}.owed", owed, 'must be "always" or "when_indexed"')
        buffer_specs, buffer_regions = _buffers(where, buffers)
        if not buffer_specs:
            raise InvalidArgument(where, buffers, "must have at least one buffer")
        specs.append(ComponentSpec(_name("state.name", name), _name(f"{where}.kind", kind), Owed(owed), buffer_specs))
        regions.append(buffer_regions)
    if len({spec.name for spec in specs}) != len(specs):
        raise InvalidArgument("state", [spec.name for spec in specs], "names a component twice")
    return tuple(specs), tuple(regions)
