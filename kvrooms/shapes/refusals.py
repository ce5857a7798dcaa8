"""Pairs of instances that cannot work together, and why."""

from __future__ import annotations

from collections.abc import Iterator

from .oracle import Pair
from .views import BufferView, InstanceView, LayoutView, RankView
from .walk import shards_of


def refusals(pair: Pair) -> list[str]:
    """Why two instances cannot work together: the field, and what each side has; empty when they can."""
    words: list[str] = []
    for number, rank in enumerate(pair.decode.ranks):
        who = f"decode rank {number}"
        if rank.cp_size != 1:
            words.append(f"{who}: cp_size is {rank.cp_size}, it must be 1")
        words += _aux(who, rank.layout, pair.prefill)
        for part, buffer in _buffers(rank.layout):
            words += _buffer(f"{who}, {part} layer {buffer.layer} {buffer.role}", part, rank, buffer, pair.prefill)
    return words


def _buffers(layout: LayoutView) -> Iterator[tuple[str, BufferView]]:
    for buffer in layout.kv:
        yield "kv", buffer
    for component in layout.state:
        for buffer in component.buffers:
            yield f"state {component.name}", buffer


def _aux(who: str, layout: LayoutView, prefill: InstanceView) -> Iterator[str]:
    for aux in layout.aux:
        theirs = [other for rank in prefill.ranks for other in rank.layout.aux if other.name == aux.name]
        if not theirs:
            yield f"{who}, aux {aux.name}: no prefill rank has it"
        for other in theirs:
            if other.item_length != aux.item_length:
                yield f"{who}, aux {aux.name}: item_length is {aux.item_length}, on prefill {other.item_length}"
            if other.dtype != aux.dtype:
                yield f"{who}, aux {aux.name}: dtype is {aux.dtype}, on prefill {other.dtype}"


def _buffer(where: str, part: str, rank: RankView, buffer: BufferView, prefill: InstanceView) -> Iterator[str]:
    theirs = [
        (other_rank, other)
        for other_rank in prefill.ranks
        for other_part, other in _buffers(other_rank.layout)
        if (other_part, other.layer, other.role) == (part, buffer.layer, buffer.role)
    ]
    if not theirs:
        yield f"{where}: no prefill rank has it"
    fits = True
    for other_rank, other in theirs:
        for field, ours, its in _fields(part, (rank, buffer), (other_rank, other)):
            if ours != its:
                fits = False
                yield f"{where}: {field} is {ours}, on prefill {its}"
    if theirs and fits:
        for which, shard in enumerate(shards_of(buffer)):
            for unit in range(shard.first, shard.first + shard.units):
                if not _has_all(part, unit, which, theirs):
                    yield f"{where} shard {which}: no prefill ranks have unit {unit} of a whole prompt"


def _fields(
    part: str, ours: tuple[RankView, BufferView], theirs: tuple[RankView, BufferView]
) -> Iterator[tuple[str, object, object]]:
    """The fields that must be equal, in the order in which they are looked at."""
    (rank, a), (other, b) = ours, theirs
    yield "dtype", a.dtype, b.dtype
    yield "number of shards", len(shards_of(a)), len(shards_of(b))
    sizes = rank.layout.page_size, other.layout.page_size
    for which, (one, two) in enumerate(zip(shards_of(a), shards_of(b), strict=False)):
        yield f"shard {which} total", one.total, two.total
        yield f"shard {which} unit_bytes", one.unit_bytes, two.unit_bytes
        if part != "kv":
            yield f"shard {which} rows", one.rows, two.rows
        elif one.rows != sizes[0] or two.rows != sizes[1]:
            # A page without rows of tokens is paired with the like of it as a whole.
            yield f"shard {which} rows", one.rows, two.rows
            yield f"page_size of pages without rows (shard {which})", *sizes


def _has_all(part: str, unit: int, which: int, theirs: list[tuple[RankView, BufferView]]) -> bool:
    """Whether ranks that have a unit have all of it: of KV, together, every page of any prompt."""
    parts: dict[int, set[int]] = {}
    for rank, buffer in theirs:
        shard = shards_of(buffer)[which]
        if shard.first <= unit < shard.first + shard.units:
            parts.setdefault(rank.cp_size, set()).add(rank.cp_rank)
    return any(part != "kv" or have == set(range(size)) for size, have in parts.items())
