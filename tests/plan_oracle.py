"""An oracle of transfer plans that works byte by byte, and what every plan must be beside it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from kvrooms.protocol import plan
from kvrooms.protocol.layout import Layout, Region, Regions
from kvrooms.protocol.notify import PARTS_MAX, PartKind
from kvrooms.protocol.plan import DescriptorTable, Piece, Transfer

Place = tuple[str, int, int]
"""One byte of memory: its kind, its device, its address."""

Row = tuple[int, int, int]


class Case(NamedTuple):
    """Two sides of one layout, and what is to be moved."""

    layout: Layout
    source: Regions
    destination: Regions
    transfers: list[Transfer]
    piece_bytes: int
    report_every: int = plan.REPORT_EVERY


def buffers_of(layout: Layout, regions: Regions, transfer: Transfer) -> list[tuple[Region, int]]:
    """The regions of a transfer's part, each with its bytes per item."""
    if transfer.kind is PartKind.KV:
        found = [(region, spec.item_length) for region, spec in zip(regions.kv, layout.kv, strict=True)]
        return found if transfer.buffers is None else [found[i] for i in transfer.buffers]
    if transfer.kind is PartKind.AUX:
        return [(region, aux.item_length) for region, aux in zip(regions.aux, layout.aux, strict=True)]
    which = transfer.layout_component
    specs = layout.state[which].buffers
    return [(region, spec.item_length) for region, spec in zip(regions.state[which], specs, strict=True)]


def bytes_of_position(case: Case, transfer: Transfer, at: int) -> list[tuple[Place, Place]]:
    """The (source, destination) bytes of the transfer's position number `at`."""
    found = []
    sides = (buffers_of(case.layout, side, transfer) for side in (case.source, case.destination))
    for (ours, length), (theirs, _) in zip(*sides, strict=True):
        for byte in range(length):
            source = ours.address + int(transfer.source[at]) * length + byte
            target = theirs.address + int(transfer.destination[at]) * length + byte
            found.append(((ours.memory, ours.device, source), (theirs.memory, theirs.device, target)))
    return found


def all_rows(layout: Layout, regions: Regions) -> dict[str, list[Row]]:
    """What the prepared lists must hold: every item of every buffer, in the layout's order."""
    lengths = [spec.item_length for spec in layout.kv] + [aux.item_length for aux in layout.aux]
    lengths += [spec.item_length for component in layout.state for spec in component.buffers]
    rows: dict[str, list[Row]] = {}
    for region, length in zip(regions.in_order(), lengths, strict=True):
        for item in range(region.items):
            rows.setdefault(region.memory, []).append((region.address + item * length, length, region.device))
    return rows


def bytes_of_piece(piece: Piece, ours: dict[str, list[Row]], theirs: dict[str, list[Row]]) -> list[tuple[Place, Place]]:
    """The (source, destination) bytes that a piece moves."""
    if piece.source_descriptors is None or piece.destination_descriptors is None:
        assert piece.source_descriptors is piece.destination_descriptors is None
        sources = [ours[piece.source_memory][i] for i in piece.source_indices.tolist()]
        targets = [theirs[piece.destination_memory][i] for i in piece.destination_indices.tolist()]
    else:
        assert len(piece.source_indices) == len(piece.destination_indices) == 0
        sources = [tuple(row) for row in piece.source_descriptors.tolist()]
        targets = [tuple(row) for row in piece.destination_descriptors.tolist()]
    found = []
    for (source, length, device), (target, there, other) in zip(sources, targets, strict=True):
        assert length == there
        for byte in range(length):
            found.append(
                ((piece.source_memory, device, source + byte), (piece.destination_memory, other, target + byte))
            )
    return found


def planned(case: Case) -> list[Piece]:
    tables = DescriptorTable(case.layout, case.source), DescriptorTable(case.layout, case.destination)
    for table, side in zip(tables, (case.source, case.destination), strict=True):
        lists = {memory: [tuple(row) for row in rows.tolist()] for memory, rows in table.lists().items()}
        assert lists == all_rows(case.layout, side)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "REPORT_EVERY", case.report_every)
        return list(plan.pieces(*tables, case.transfers, case.piece_bytes))


def check_plan(case: Case) -> None:
    pieces = planned(case)
    ours, theirs = all_rows(case.layout, case.source), all_rows(case.layout, case.destination)
    moved = [bytes_of_piece(piece, ours, theirs) for piece in pieces]
    owed: dict[tuple[PartKind, int, int], Counter[tuple[Place, Place]]] = {}
    for t in case.transfers:
        for at in range(len(t.source)):  # layer by layer, a position is in several transfers
            owed.setdefault((t.kind, t.component, t.first + at), Counter()).update(bytes_of_position(case, t, at))
    total: Counter[tuple[Place, Place]] = sum(owed.values(), Counter())
    assert Counter(pair for some in moved for pair in some) == total  # exactly what is owed, each byte once

    reported: set[tuple[PartKind, int, int]] = set()
    for number, (piece, some) in enumerate(zip(pieces, moved, strict=True)):
        assert piece.bytes == len(some) > 0
        assert piece.bytes <= case.piece_bytes or one_long_item(case, piece, some)
        assert len(piece.parts) <= PARTS_MAX
        assert piece.source_indices.dtype == piece.destination_indices.dtype == "int32"
        mine = Counter(some)
        for part in piece.parts:
            for position in range(part.first, part.first + part.size):
                key = (part.kind, part.component, position)
                assert key not in reported
                reported.add(key)
                if piece.ordered:  # what is missing here is in earlier pieces, which settle first
                    before = sum((Counter(other) for other in moved[: number + 1]), Counter())
                    assert owed[key] <= before
                else:
                    assert owed[key] <= mine
        assert piece.parts or any(later.ordered for later in pieces[number + 1 :])
    assert reported == set(owed)


def one_long_item(case: Case, piece: Piece, some: list[tuple[Place, Place]]) -> bool:
    """Whether the piece is longer than the bound because a single item of one buffer is."""
    lengths = {length for t in case.transfers for _, length in buffers_of(case.layout, case.source, t)}
    addresses = [address for (_, _, address), _ in some]
    consecutive = addresses == list(range(addresses[0], addresses[0] + len(addresses)))
    return len(piece.source_indices) == 1 and consecutive and piece.bytes in lengths


def check_merged_is_indexed(case: Case) -> None:
    """Whether runs are merged or not, the same bytes are moved and the same positions are reported."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for least in (1, 2, plan.MERGE_MIN, 10**9):
            patch.setattr(plan, "MERGE_MIN", least)
            pieces = planned(case)
            ours, theirs = all_rows(case.layout, case.source), all_rows(case.layout, case.destination)
            moved = sorted(pair for piece in pieces for pair in bytes_of_piece(piece, ours, theirs))
            parts = [part for piece in pieces for part in piece.parts]
            found.append((moved, {(p.kind, p.component, p.first + i) for p in parts for i in range(p.size)}))
            if least == 10**9:
                assert all(piece.source_descriptors is None for piece in pieces)
    assert all(some == found[0] for some in found)
