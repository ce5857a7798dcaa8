"""How an item of a tensor is split among ranks: shards from the tensor's shape; shards that a caller gives, checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .errors import InvalidArgument
from .identity import SHARDS_MAX, check_int
from .layout import Shard

_ROWS_MAX, _UNITS_MAX, _BYTES_MAX = 2**20, 2**24, 2**40
_CELLS_MAX = 2**22
_LIMITS = {
    "offset": (0, _BYTES_MAX),
    "rows": (1, _ROWS_MAX),
    "row_stride": (0, _BYTES_MAX),
    "units": (1, _UNITS_MAX),
    "unit_stride": (0, _BYTES_MAX),
    "unit_bytes": (1, _BYTES_MAX),
    "first": (0, _UNITS_MAX),
    "total": (1, _UNITS_MAX),
}


def split(
    array: Any,
    axis: int,
    first: int = 0,
    total: int | None = None,
    *,
    rows: int | None = None,
    groups: Sequence[tuple[int, int, int]] | None = None,
) -> tuple[Shard, ...]:
    """The shards of a tensor [items, ...] of which a rank has a part, for `Buffer`.

    axis: the dimension that is split (0 counts items). This rank has entries `first` and following of `total` in the
    whole model; total None: all there are. rows: the dimension of a page's tokens; None: an item has one row. groups:
    runs of entries that are numbered each by itself (x, B and C of a convolution's state), one after another along the
    axis, as (entries here, first, total). What comes behind `axis` and `rows` belongs to an entry; each index of the
    other dimensions (K and V in one tensor) makes a shard of its own. Raises InvalidArgument naming the argument.
    """
    shape, size = _shape(array)
    axis = check_int("axis", axis, 1, len(shape) - 1)
    if rows is not None:
        rows = check_int("rows", rows, 1, len(shape) - 1)
        if rows == axis:
            raise InvalidArgument("rows", rows, "is the dimension that is split")
    strides = [size * prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    inner = max(axis, rows or 0)
    outer = [dimension for dimension in range(1, inner) if dimension not in (axis, rows)]
    if groups is None:
        groups = [(shape[axis], first, shape[axis] if total is None else total)]
    elif first or total is not None:
        raise InvalidArgument("groups", groups, "are given with `first` or `total`, which each group has for itself")
    shards, begin = [], 0
    for number, group in enumerate(groups):
        entries, low, of = _group(number, group)
        for index in product(*(range(shape[dimension]) for dimension in outer)):
            shard = Shard(
                offset=begin * strides[axis] + sum(i * strides[d] for i, d in zip(index, outer, strict=True)),
                rows=1 if rows is None else shape[rows],
                row_stride=0 if rows is None else strides[rows],
                units=entries,
                unit_stride=strides[axis],
                unit_bytes=strides[inner],
                first=low,
                total=of,
            )
            shards.append(shard)
        begin += entries
    if begin != shape[axis]:
        raise InvalidArgument("groups", begin, f"must have {shape[axis]} entries in all, as dimension {axis} has")
    return check_shards("shards", shards, size * prod(shape[1:]))


def _shape(array: Any) -> tuple[tuple[int, ...], int]:
    """The dimensions of a tensor, and the bytes of an element."""
    shape = getattr(array, "shape", None)
    if isinstance(array, np.ndarray):
        size = array.itemsize
    elif shape is not None and hasattr(array, "element_size"):
        size = int(array.element_size())
    else:
        raise InvalidArgument("array", type(array).__name__, "must be a numpy array or a torch tensor")
    if len(array.shape) < 2 or 0 in array.shape:
        raise InvalidArgument("array", tuple(array.shape), "must have items, and at least one dimension of an item")
    return tuple(int(n) for n in array.shape), size


def _group(number: int, group: object) -> tuple[int, int, int]:
    field = f"groups[{number}]"
    if not isinstance(group, Sequence) or isinstance(group, str) or len(group) != 3:
        raise InvalidArgument(field, group, "must be (entries, first, total)")
    entries, first, total = group
    return (
        check_int(f"{field}: entries", entries, 1, _UNITS_MAX),
        check_int(f"{field}: first", first, 0, _UNITS_MAX),
        check_int(f"{field}: total", total, 1, _UNITS_MAX),
    )


def check_shards(field: str, shards: object, item_length: int, page_size: int | None = None) -> tuple[Shard, ...]:
    """The shards of a buffer, of plain integers. page_size: of a KV buffer, whose rows are a page's tokens.

    Raises InvalidArgument naming the shard, unless its cells lie in the item and in no other cell, and its units within
    the total.
    """
    if not isinstance(shards, Sequence) or not all(isinstance(shard, Shard) for shard in shards):
        raise InvalidArgument(field, shards, "must be a tuple of Shard")
    if len(shards) > SHARDS_MAX:
        raise InvalidArgument(field, len(shards), f"may have at most {SHARDS_MAX} shards")
    checked = []
    for number, given in enumerate(shards):
        where = f"{field}: shard {number}"
        values = {name: check_int(f"{where}.{name}", getattr(given, name), *limits) for name, limits in _LIMITS.items()}
        shard = Shard(**values)
        if shard.first + shard.units > shard.total:
            last = shard.first + shard.units - 1
            raise InvalidArgument(f"{where}.total", shard.total, f"unit {last} of this rank is not one of so many")
        if shard.end > item_length:
            raise InvalidArgument(where, shard.end, f"ends behind the {item_length} bytes of an item")
        if page_size is not None and shard.rows not in (1, page_size):
            words = f"must be {page_size}, a page's tokens, or 1 where it is the page as a whole"
            raise InvalidArgument(f"{where}.rows", shard.rows, words)
        if shard.rows * shard.units > _CELLS_MAX:
            raise InvalidArgument(where, shard.rows * shard.units, f"may have at most {_CELLS_MAX} cells in an item")
        checked.append(shard)
    overlap = _overlap(tuple(checked)) if checked else None
    if overlap is not None:
        raise InvalidArgument(field, overlap, "is a byte of an item that begins a cell and lies in another")
    return tuple(checked)


@lru_cache(maxsize=256)
def _overlap(shards: tuple[Shard, ...]) -> int | None:
    """The first byte of an item that begins a cell and lies in another one, too; None: there is none."""
    starts, ends = [], []
    for shard in shards:
        row = np.arange(shard.rows, dtype=np.int64) * shard.row_stride
        unit = np.arange(shard.units, dtype=np.int64) * shard.unit_stride
        start = (shard.offset + row[:, None] + unit).reshape(-1)
        starts.append(start)
        ends.append(start + shard.unit_bytes)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    wrong = np.flatnonzero(start[1:] < end[:-1])
    return int(start[wrong[0] + 1]) if len(wrong) else None
