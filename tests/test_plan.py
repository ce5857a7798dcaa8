"""Transfer plans against an oracle that works byte by byte and shares no code with the planner."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named
from plan_oracle import Case, check_merged_is_indexed, check_plan, planned

from kvrooms.protocol import plan
from kvrooms.protocol.identity import COMPONENTS_MAX
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from kvrooms.protocol.notify import PARTS_MAX, Part, PartKind
from kvrooms.protocol.plan import DescriptorTable, Transfer

MEMORIES: list[Literal["DRAM", "VRAM"]] = ["DRAM", "VRAM"]


@pytest.fixture(autouse=True)
def _look_for_runs_in_small_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MERGE_FROM", plan.MERGE_MIN)


# -- cases -----------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    small = st.integers(1, 5)

    def specs(least: int) -> tuple[BufferSpec, ...]:
        lengths = draw(st.lists(small, min_size=least, max_size=3))
        return tuple(BufferSpec(i, "k", length, "u1") for i, length in enumerate(lengths))

    kv = specs(0)
    aux = tuple(AuxSpec(str(i), n, "u1") for i, n in enumerate(draw(st.lists(small, max_size=2))))
    state = tuple(ComponentSpec(f"c{i}", "m", Owed.ALWAYS, specs(1)) for i in range(draw(st.integers(0, 2))))
    layout = Layout(1, kv, aux, state)
    next_address = 0

    def group(lengths: list[int]) -> tuple[Region, ...]:
        nonlocal next_address
        items, memory = draw(st.integers(1, 9)), draw(st.sampled_from(MEMORIES))
        device = draw(st.integers(0, 1)) if memory == "VRAM" else 0
        made = []
        for length in lengths:
            next_address += draw(st.sampled_from([0, 1, 1000, 2**40]))
            made.append(Region(next_address, items, memory, device))
            next_address += items * length
        return tuple(made)

    def side() -> Regions:
        return Regions(
            group([spec.item_length for spec in kv]),
            group([spec.item_length for spec in aux]),
            tuple(group([spec.item_length for spec in component.buffers]) for component in state),
        )

    source, destination = side(), side()
    parts = [(PartKind.KV, 0, source.kv, destination.kv), (PartKind.AUX, 0, source.aux, destination.aux)]
    parts += [(PartKind.STATE, i, a, b) for i, (a, b) in enumerate(zip(source.state, destination.state, strict=True))]
    transfers = [draw(transfer(*part)) for part in parts if part[2]]
    limits = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    return Case(layout, source, destination, draw(st.permutations(transfers)), *limits)


@st.composite
def transfer(draw: st.DrawFn, kind: PartKind, which: int, ours: tuple[Region, ...], theirs: tuple[Region, ...]) -> Any:
    """Distinct items on both sides, often consecutive, at positions that start anywhere."""
    most = min(ours[0].items, theirs[0].items)
    n = draw(st.integers(0, 1 if kind is PartKind.AUX else most))

    def items(there: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        start = draw(st.integers(0, there - n))
        run = list(range(start, start + n))
        some = run if draw(st.booleans()) else draw(st.permutations(range(there)))[:n]
        return np.array(some, np.int32)

    source, destination = items(ours[0].items), items(theirs[0].items)
    first = 0 if kind is PartKind.AUX else draw(st.integers(0, 50))
    return Transfer(kind, which, which, first, source, destination)


def case(
    lengths: list[int], source: list[int], destination: list[int], piece_bytes: int, *, first: int = 0, every: int = 16
) -> Case:
    """A case with KV buffers only, of these item lengths, in host memory."""
    layout = Layout(1, tuple(BufferSpec(i, "k", n, "u1") for i, n in enumerate(lengths)), (), ())
    sides = [Regions(tuple(Region(base + i * 10**6, 64) for i in range(len(lengths))), (), ()) for base in (0, 10**9)]
    moved = Transfer(PartKind.KV, 0, 0, first, np.array(source, np.int32), np.array(destination, np.int32))
    return Case(layout, sides[0], sides[1], [moved], piece_bytes, every)


def layered(whole: Case, *layers: tuple[int, ...]) -> Case:
    """The same, with these buffers after each other; the last of them make the positions whole."""
    (moved,) = whole.transfers
    some = [moved._replace(buffers=buffers, report=buffers is layers[-1]) for buffers in layers]
    return whole._replace(transfers=some)


def in_turn(*several: Case) -> Case:
    """The transfers of cases of one layout, in turn."""
    transfers = [moved for one in several for moved in one.transfers]
    return several[0]._replace(transfers=transfers)


BACKWARDS = list(range(39, -1, -1))


EDGES = {
    "one piece": case([4, 4], [3, 4, 5, 6], [8, 9, 10, 11], 32),
    "one byte too few for one piece": case([4, 4], [3, 4, 5, 6], [8, 9, 10, 11], 31),
    "runs break on the source only": case([2], [0, 1, 2, 3, 7, 8, 9, 10], list(range(8)), 100),
    "runs break on the destination only": case([2], list(range(8)), [0, 1, 2, 3, 7, 8, 9, 10], 100),
    "backwards": case([2], list(range(7, -1, -1)), list(range(7, -1, -1)), 100),
    "mirrored": case([2], list(range(7, -1, -1)), list(range(8)), 100),
    "one source item for all": case([2], [3] * 8, list(range(8)), 100),
    "the last run is long": case([2, 3], [9, 0, 1, 2, 3, 4, 5, 6], [5, 20, 21, 22, 23, 24, 25, 26], 1000),
    "split by buffers": case([3, 3, 3], [1, 5], [2, 6], 6, first=7),
    "split, one byte too few": case([3, 3, 1], [1, 5], [2, 6], 6),
    "split, one buffer each": case([3, 3, 3], [1, 5], [2, 6], 3),
    "an item longer than the bound": case([3, 9, 3], [1, 5], [2, 6], 4),
    "one buffer, longer than the bound": case([9], [1, 5], [2, 6], 4),
    "many pieces, three to a report": case([2, 1], BACKWARDS[:11], BACKWARDS[5:16], 3, first=4, every=3),
    "many pieces of two items, two to a report": case([2, 1], BACKWARDS[:11], BACKWARDS[5:16], 7, every=2),
    "many pieces, each with a report": case([2, 1], BACKWARDS[:5], BACKWARDS[5:10], 6, every=1),
    "many pieces, merged": case([2, 1], list(range(11)), list(range(20, 31)), 12, first=3, every=2),
    "nothing": case([4], [], [], 10),
    "no buffers": case([], [], [], 10),
    "nothing, and then something": in_turn(case([4], [], [], 10), case([4], [5], [6], 10)),
    "two parts that fill a piece": in_turn(case([2], [3, 4], [3, 4], 6), case([2], [7], [8], 6, first=2)),
    "two parts, one byte too few": in_turn(case([2], [3, 4], [3, 4], 5), case([2], [7], [8], 5, first=2)),
    "after a part that fills a piece": in_turn(case([2], [3, 4], [3, 4], 4), case([2], [7], [8], 4, first=2)),
    "three parts, two to a piece": in_turn(*(case([2], [3 * i, 9], [7, i], 9, first=2 * i) for i in range(3))),
    "each layer a piece": layered(case([4, 4, 2], [1, 5], [2, 6], 12, first=3), (2, 0), (1,)),
    "each layer several pieces": layered(case([4, 4, 2], [1, 5, 9], [2, 6, 3], 9, first=3), (0,), (1, 2)),
    "layers of runs": layered(case([4, 4, 2], list(range(9)), list(range(1, 10)), 99), (0,), (1,), (2,)),
    "layers split by buffers": layered(case([4, 4, 2], [1, 5], [2, 6], 4), (0, 2), (1,)),
    "layers between whole parts": in_turn(
        case([4, 2], [30], [31], 99),
        layered(case([4, 2], [1, 5], [2, 6], 99, first=1), (1,), (0,)),
        layered(case([4, 2], [7], [8], 99, first=3), (0,), (1,)),
        case([4, 2], [33], [34], 99, first=4),
    ),
}


def check_edges() -> None:
    for some in EDGES.values():
        check_plan(some)
        check_merged_is_indexed(some)


test_any_plan = given(case=cases())(check_plan)
test_merged_pieces_are_indexed_ones = given(case=cases())(check_merged_is_indexed)


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    check_plan(EDGES[name])
    check_merged_is_indexed(EDGES[name])


def test_how_many_pieces_and_what_they_report() -> None:
    counted = {name: [(piece.parts, piece.ordered) for piece in planned(some)] for name, some in EDGES.items()}
    whole = Part(PartKind.KV, 0, 0, 4)
    assert counted["one piece"] == [((whole,), False)]
    assert counted["one byte too few for one piece"] == [
        ((Part(PartKind.KV, 0, 0, 3),), False),
        ((Part(PartKind.KV, 0, 3, 1),), False),
    ]
    split = [((), False), ((Part(PartKind.KV, 0, 7, 1),), True), ((), False), ((Part(PartKind.KV, 0, 8, 1),), True)]
    assert counted["split by buffers"] == split
    assert counted["nothing"] == counted["no buffers"] == []
    assert counted["many pieces, each with a report"] == [
        ((Part(PartKind.KV, 0, first, size),), False) for first, size in ((0, 2), (2, 2), (4, 1))
    ]
    assert [parts for parts, _ in counted["two parts that fill a piece"]] == [
        (Part(PartKind.KV, 0, 0, 2), Part(PartKind.KV, 0, 2, 1))
    ]
    assert [len(parts) for parts, _ in counted["two parts, one byte too few"]] == [1, 1]
    assert [len(parts) for parts, _ in counted["three parts, two to a piece"]] == [2, 1]
    many = planned(case([1], BACKWARDS, BACKWARDS, 1))
    reports = {number: piece for number, piece in enumerate(many, start=1) if piece.parts}
    assert [(number, *piece.parts[0][2:], piece.ordered) for number, piece in reports.items()] == [
        (16, 0, 16, True), (32, 16, 16, True), (40, 32, 8, True),
    ]  # fmt: skip
    merged = next(iter(planned(EDGES["the last run is long"])))
    assert merged.source_descriptors is not None
    assert merged.source_descriptors.tolist() == [[18, 2, 0], [0, 14, 0], [10**6 + 27, 3, 0], [10**6, 21, 0]]


def test_which_pieces_of_layers_report() -> None:
    """None but the last of a position's last layer, and that one only once all others have settled."""
    counted = {name: [(piece.parts, piece.ordered) for piece in planned(some)] for name, some in EDGES.items()}
    silent, whole = ((), False), lambda first, size: ((Part(PartKind.KV, 0, first, size),), True)
    assert counted["each layer a piece"] == [silent, whole(3, 2)]
    assert counted["each layer several pieces"] == [silent] * 4 + [whole(3, 3)]
    assert counted["layers split by buffers"] == [silent] * 5 + [whole(0, 2)]
    assert counted["layers between whole parts"] == [
        ((Part(PartKind.KV, 0, 0, 1),), False), silent, whole(1, 2), silent, whole(3, 1),
        ((Part(PartKind.KV, 0, 4, 1),), False),
    ]  # fmt: skip


def check_many_small_parts() -> None:
    """A peer may ask for very many short intervals of pages: a notification holds only so many parts."""
    base = case([1], [0], [0], 10**6)
    one = base.transfers[0]
    many = [one._replace(first=i, source=one.source + i % 64, destination=one.destination + i % 64) for i in range(300)]
    pieces = planned(base._replace(transfers=many))
    assert [len(piece.parts) for piece in pieces] == [PARTS_MAX, PARTS_MAX, 300 - 2 * PARTS_MAX]
    assert [part.first for piece in pieces for part in piece.parts] == list(range(300))


def test_many_small_parts_share_pieces_within_what_a_notification_holds() -> None:
    check_many_small_parts()
    assert COMPONENTS_MAX + 2 <= PARTS_MAX  # one send never needs two pieces for that


def test_within_a_piece_one_buffer_comes_after_the_other() -> None:
    """Neighbours in a buffer stay neighbours, for a part and for some layers of it, even where they fill the piece."""
    whole = case([2, 1, 1], [9, 5, 3], [4, 8, 6], 12)
    some = layered(whole._replace(piece_bytes=9), (0, 2), (1,))
    for one, buffers in ((planned(whole)[0], (0, 1, 2)), (planned(some)[0], (0, 2))):
        assert one.source_indices.tolist() == [64 * buffer + item for buffer in buffers for item in (9, 5, 3)]
        assert one.destination_indices.tolist() == [64 * buffer + item for buffer in buffers for item in (4, 8, 6)]


def test_where_a_position_is_split() -> None:
    """Each piece takes as many buffers as fit; a single one is whole by itself, and reports at once."""
    assert [piece.bytes for piece in planned(case([3] * 5, [1], [2], 6))] == [6, 6, 3]
    assert [piece.bytes for piece in planned(case([3, 4, 2, 9, 1], [1], [2], 6))] == [3, 6, 9, 1]
    long = planned(EDGES["one buffer, longer than the bound"])
    assert [(len(piece.parts), piece.ordered) for piece in long] == [(1, False)] * 2
    assert list(plan.reported_last(iter(()), ())) == []


@pytest.mark.parametrize("top", [2**62 + 1, 2**64 - 8 * 8])
def test_the_last_addresses_there_are(top: int) -> None:
    layout = Layout(1, (BufferSpec(0, "k", 8, "u1"),), (), ())
    side = Regions((Region(top, 8),), (), ())
    indices = np.arange(8, dtype=np.int32)
    check_plan(Case(layout, side, side, [Transfer(PartKind.KV, 0, 0, 0, indices, indices)], 64))


@named(
    [
        Mutant(
            plan, "_large", "stop = min(at + step, positions)", "stop = min(at + step - 1, positions)"
        ),  # off by one
        Mutant(plan, "_large", "step = piece_bytes // item_bytes", "step = 1 + piece_bytes // item_bytes"),
        Mutant(plan, "_large", "part.report.first + since", "part.report.first + at"),  # forgets the pieces before
        Mutant(plan, "_large", "size=stop - since", "size=stop - at"),
        Mutant(plan, "_large", "ordered=reports and at > since", "ordered=False"),  # reports what is under way
        Mutant(plan, "_large", "stop == positions or", ""),  # the last pieces are never reported
        Mutant(plan, "_large", "since = stop if reports else since", "since = stop"),
        Mutant(plan, "_cut", "part.report.first + start", "part.report.first"),
        Mutant(plan, "_split", "(part.report,) if last else ()", "(part.report,)"),
        Mutant(plan, "_split", "ordered=last and len(cuts) > 1", "ordered=False"),
        Mutant(plan, "_cuts", "size + length > piece_bytes", "size + length > piece_bytes + 1"),
        Mutant(plan, "_cuts", "[*cuts, (start, len(lengths))]", "cuts or [(start, len(lengths))]"),
        Mutant(plan, "_runs", "(np.diff(part.source) != 1) |", "(np.diff(part.source) > 1) |"),
        Mutant(plan, "_runs", " | (np.diff(part.destination) != 1)", ""),
        Mutant(plan, "_runs", "np.flatnonzero(breaks) + 1", "np.flatnonzero(breaks)"),
        Mutant(plan, "_rows", "append=len(items)", "append=len(items) - 1"),
        Mutant(plan, "_rows", "counts * lengths", "lengths"),
    ]
)
def test_mutants_die_on_the_edges(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_edges)


@named(
    [
        Mutant(plan, "pieces", "or not _same_lists(pending[0], part)", ""),
        Mutant(plan, "pieces", "size > room or", "size > room + 1 or"),
        Mutant(plan, "_same_lists", "a.source_part.memory == b.source_part.memory and", "True and"),
        Mutant(plan, "_rows", "part.device", "0"),
        Mutant(plan, "pieces", "destination.part(kind, layout_component)", "destination.part(kind, 0)"),
        Mutant(DescriptorTable, "_part", "bases[-1] + region.items", "bases[-1] + region.items - 1"),
        Mutant(DescriptorTable, "_part", "self._next.get(memory, 0)", "sum(self._next.values())"),
    ]
)
def test_mutants_die_on_any_case(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def check(case: Case) -> None:
        check_plan(case)
        check_merged_is_indexed(case)

    dies(lambda: hunt(check, case=cases()))


@named(
    [
        Mutant(plan, "pieces", " or len(pending) == PARTS_MAX", ""),
        Mutant(plan, "pieces", "len(pending) == PARTS_MAX", "len(pending) > PARTS_MAX"),
    ]
)
def test_mutants_without_the_bound_on_parts_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_many_small_parts)


def test_a_mutant_that_reports_nothing_at_all_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(plan, "pieces", "if not len(items):", "if False:").plant(monkeypatch)
    dies(check_edges)
