"""Verdicts in words: pools that are not what they must be, writes that are not what is owed, cells that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from .oracle import Address
from .pools import Pool
from .views import LayoutView
from .walk import buffers_of, place_in_item, shards_of

_WORDS = 8


class Write(NamedTuple):
    """One run of bytes from a prefill rank's memory to a decode rank's."""

    prefill: int
    source: int
    decode: int
    target: int
    length: int


def compare(layout: LayoutView, wanted: Pool, found: Pool) -> list[str]:
    """What differs between two pools of a rank, one sentence a buffer; empty when every byte is equal."""
    words = []
    for where, want, have in zip(buffers_of(layout), wanted, found, strict=True):
        if want.shape != have.shape:
            words.append(f"{where.words}: {have.size} bytes instead of {want.size}")
            continue
        wrong = np.flatnonzero(want != have)
        if wrong.size:
            item, byte = divmod(int(wrong[0]), where.item_length)
            more = f", and {wrong.size - 1} bytes more" if wrong.size > 1 else ""
            values = f"{have[wrong[0]]} instead of {want[wrong[0]]}"
            words.append(f"{where.words}: item {item}, byte {byte}: {values}{more}")
    return words


def complaints(debts: Mapping[Address, frozenset[Address]], writes: Iterable[Write]) -> list[str]:
    """Where writes are not what is owed, each byte once and from one of its holders: the first few, in words."""
    words = []
    written: set[Address] = set()
    for write in writes:
        for index in range(write.length):
            target, source = (write.decode, write.target + index), (write.prefill, write.source + index)
            if target not in debts:
                words.append(f"{_at('decode', target)} is not owed, {_at('prefill', source)} wrote it")
            elif target in written:
                words.append(f"{_at('decode', target)} was written again, by {_at('prefill', source)}")
            elif source not in debts[target]:
                words.append(f"{_at('decode', target)} came from {_at('prefill', source)}, not one of its holders")
            written.add(target)
            if len(words) == _WORDS:
                return words
    missing = sorted(debts.keys() - written)
    words += [f"{_at('decode', target)} was not written" for target in missing[: _WORDS - len(words)]]
    return words


def _at(side: str, address: Address) -> str:
    return f"{side} rank {address[0]} address {address[1]}"


def ill_formed(layout: LayoutView) -> list[str]:
    """Where cells of one item overlap or leave it, in words."""
    words = []
    buffers = [*layout.kv, *(buffer for component in layout.state for buffer in component.buffers)]
    for buffer in buffers:
        taken: set[int] = set()
        for which, shard in enumerate(shards_of(buffer)):
            where = f"layer {buffer.layer} {buffer.role} shard {which}"
            if shard.first + shard.units > shard.total:
                words.append(f"{where}: units {shard.first} to {shard.first + shard.units - 1} of {shard.total}")
            starts = [place_in_item(shard, row, unit) for row in range(shard.rows) for unit in range(shard.units)]
            cells = [byte for start in starts for byte in range(start, start + shard.unit_bytes)]
            if min(cells, default=0) < 0 or max(cells, default=0) >= buffer.item_length:
                words.append(f"{where}: a cell leaves the item of {buffer.item_length} bytes")
            if len(set(cells)) < len(cells) or taken & set(cells):
                words.append(f"{where}: cells overlap")
            taken |= set(cells)
    return words
