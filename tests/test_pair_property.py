"""The pieces of one pair of ranks, through slots or not, beside a reckoning token by token and byte by byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plan_support import cases, share, side

from kvrooms.protocol import shaped
from kvrooms.protocol.grids import Side
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.packing import Packed
from kvrooms.protocol.plan import Piece, Transfer
from kvrooms.protocol.shaped import PairTable
from kvrooms.protocol.shares import Entry
from kvrooms.protocol.staging import Slots, Staging

KV, AUX, STATE = PartKind.KV, PartKind.AUX, PartKind.STATE
HERE, THERE, SLOT = 2**40, 2**41, 2**33
ITEMS = 10
Moved = tuple[int, int]  # a byte's address on the source and on the target


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def spread(packed: Packed) -> list[int]:
    """The addresses that the bytes of a packed range have."""
    assert packed.grains.dtype == np.int64
    return [packed.origin + g * packed.grain + k for g in packed.grains.tolist() for k in range(packed.grain)]


def span(rows: Any) -> list[int]:
    return [address + k for address, length, _ in rows.tolist() for k in range(length)]


def carried(piece: Piece, pair: PairTable, transfer: Transfer, name: str = "", most: int = 2**40) -> list[Moved]:
    """What a piece copies, byte by byte: gathered on the source and scattered on the target, where it says so."""
    assert piece.source_descriptors is not None
    assert piece.destination_descriptors is not None
    assert len(piece.source_indices) == len(piece.destination_indices) == 0
    assert piece.source_descriptors.dtype == piece.destination_descriptors.dtype == np.uint64
    source, target = span(piece.source_descriptors), span(piece.destination_descriptors)
    assert len(source) == len(target) == piece.bytes
    if piece.staged is not None:
        slot = spread(piece.staged.pack())
        assert len(slot) == piece.bytes
        source = [slot[at] for at in source]
    if piece.landing is not None:
        part, first, stop = piece.landing
        low = part.first - transfer.first
        some = transfer.source[low : low + part.size]
        to = transfer.destination
        grid = pair.grid(transfer.kind, name)
        if grid.source_tokens == grid.target_tokens:
            to = to[low : low + part.size]
        landed = transfer._replace(first=part.first, source=np.zeros_like(some), destination=to)
        slot = spread(pair.unpacking(landed, name, first, stop, most))
        target = [slot[at] for at in target]
    return list(zip(source, target, strict=True))


# -- beside a reckoning ----------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """One send of pages, and what it copies for each position."""

    transfer: Transfer
    due: dict[int, list[Moved]]


def at(where: Side, index: int, entry: Entry, item: int, row: int) -> Iterator[int]:
    """The address of every byte that an entry speaks of, of one row of an item."""
    spec, region = where.layout.kv[index], where.regions.kv[index]
    shard = spec.parts[entry.shard]
    for unit in range(entry.first, entry.stop):
        for byte in range(shard.unit_bytes):
            place = shard.offset + row * shard.row_stride + (unit - shard.first) * shard.unit_stride
            yield region.address + item * spec.item_length + place + byte


def reckoned(source: Side, target: Side, entries: list[Entry], transfer: Transfer) -> dict[int, list[Moved]]:
    """Per position of the source what is copied, token by token."""
    ours, theirs = source.layout.page_size, target.layout.page_size
    begin = transfer.first if ours == theirs else transfer.target_first
    due: dict[int, list[Moved]] = {}
    for n, item in enumerate(transfer.source.tolist()):
        position = transfer.first + n
        due[position] = []
        for row in range(ours):
            token = position * ours + row
            page = token // theirs - begin
            if not 0 <= page < len(transfer.destination):
                continue
            for e in entries:
                if transfer.buffers is None or e.source in transfer.buffers:
                    to = at(target, e.target, e, int(transfer.destination[page]), token % theirs)
                    due[position] += zip(at(source, e.source, e, item, row), to, strict=True)
    return due


@st.composite
def sends(draw: st.DrawFn, source: Side, target: Side, entries: list[Entry]) -> Sent:
    """Some pages that lie anywhere, for pages that lie anywhere; of some buffers or of all."""
    ours, theirs = source.layout.page_size, target.layout.page_size
    first, count = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    low, high = first, first + count
    if ours != theirs:  # every page of ours has a token on one of theirs
        low = draw(st.integers(max(0, first * ours // theirs - 1), ((first + 1) * ours - 1) // theirs))
        stop = (high - 1) * ours // theirs + 1
        high = draw(st.integers(max(low + 1, stop), max(low, stop) + 2))
    items, pages = (draw(st.permutations(range(ITEMS)))[:n] for n in (count, high - low))
    buffers = draw(st.one_of(st.none(), st.sets(st.sampled_from([e.source for e in entries]), min_size=1)))
    some = tuple(sorted(buffers)) if buffers else None
    report = buffers is None or draw(st.booleans())
    transfer = Transfer(KV, 0, 0, first, numbers(*items), numbers(*pages), low if ours != theirs else 0, some, report)
    return Sent(transfer, reckoned(source, target, entries, transfer))


STAGINGS = st.builds(Staging, st.sampled_from((300, 32, 8)), st.sampled_from((400, 5000, 48)))


@settings(max_examples=2 * settings.default.max_examples)
@given(
    case=cases(scale=8),
    piece_bytes=st.sampled_from((1, 100, 700, 10**6)),
    runs=st.sampled_from((1, 1, 9)),
    data=st.data(),
)
def test_every_byte_goes_where_it_belongs_in_pieces_that_report_what_is_there(
    case: tuple[Side, Side, list[Entry]], piece_bytes: int, runs: int, data: st.DataObject
) -> None:
    source, target = (side(some.layout, base, ITEMS) for some, base in zip(case[:2], (HERE, THERE), strict=True))
    entries = case[2]
    staging = data.draw(
        st.sampled_from((True, True, True, False)).flatmap(lambda on: STAGINGS if on else st.none()), "staging"
    )
    receiver = PairTable(source, target, share(*entries), data.draw(STAGINGS, "receiver"))
    assert receiver._staging is not None
    slots = Slots(SLOT, 4, receiver._staging.slot_bytes, receiver.scattered) if receiver.scattered else None
    pair = PairTable(source, target, share(*entries), staging, slots)
    sent = data.draw(sends(source, target, entries), "transfer")
    lent = slots is not None and data.draw(st.booleans(), "lent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaped, "RUNS_MIN", runs)
        made = list(pair.pieces([(sent.transfer, "")], piece_bytes, lent=lent))
    missing = {position: set(pairs) for position, pairs in sent.due.items()}
    reported: Counter[int] = Counter()
    for piece in made:
        moved = carried(piece, receiver, sent.transfer, most=slots.length if slots else 2**40)
        assert len(moved) == len(set(moved))
        if piece.staged is not None:
            event("scattered" if piece.landing else "gathered")
            assert staging is not None
            assert piece.bytes <= max(staging.slot_bytes, piece_bytes if piece.landing else 0)
            assert sorted(carried(piece.staged.direct(), receiver, sent.transfer)) == sorted(moved)
        assert bool(piece.landing) == bool(lent and staging)
        before = {position for position, rest in missing.items() if rest != set(sent.due[position])}
        for rest in missing.values():
            rest.difference_update(moved)
        for part in piece.parts:
            positions = range(part.first, part.first + part.size)
            reported.update(positions)
            assert not any(missing[position] for position in positions), "reported before it is there"
            assert piece.ordered or not before & set(positions), "reported before earlier pieces have settled"
            assert not piece.ordered or before or sent.transfer.buffers is not None, "waits for nothing"
    assert not any(missing.values())
    assert sum(piece.bytes for piece in made) == sum(len(set(pairs)) for pairs in sent.due.values())
    assert reported == (Counter(list(sent.due)) if sent.transfer.report else Counter())
