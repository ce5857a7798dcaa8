"""Whatever the layouts and topologies of two sides: what the ranks write is what an independent oracle says is owed."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from kvrooms.engine import decode_staging
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ranks import Ranks
from kvrooms.harness.strategies import pairs, topologies
from kvrooms.protocol import shaped
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.layout import AuxSpec, BufferSpec, Layout, Region, Regions, Shard
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.plan import Transfer
from kvrooms.protocol.shaped import PairTable, Side
from kvrooms.protocol.shares import CannotPair, Entry, Share, check_share, pair_up
from kvrooms.shapes.build import Model
from kvrooms.shapes.build import Side as Split
from kvrooms.shapes.oracle import Pair
from kvrooms.shapes.refusals import refusals
from kvrooms.shapes.table import EVERYTHING, Case

STAGES = Split(stages=((0,), (1,)))
PIECES = st.sampled_from((8, 40, 1 << 20))


def check(ranks: Ranks) -> None:
    ranks.play()
    assert ranks.failures() == []
    assert ranks.early == []
    assert ranks.miswritten() == []
    assert ranks.differs() == []


@given(case=topologies(), seed=st.integers(0, 1000), piece_bytes=PIECES)
def test_all_ranks_together_write_what_is_owed_and_each_byte_once(case: Case, seed: int, piece_bytes: int) -> None:
    note(str((case.model, case.prefill_side, case.decode_side)))
    ranks = Ranks(case, seed, settings=EngineSettings(piece_bytes=piece_bytes))
    event(f"{len(ranks.members())} ranks")
    check(ranks)


def test_nor_does_it_matter_what_goes_through_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with few bytes to stage, and buffers so small that slots run out."""
    for module in (shaped, decode_staging):
        monkeypatch.setattr(module, "RUNS_MIN", 1)
    seen: Counter[str] = Counter()
    staging = st.fixed_dictionaries(
        {
            "piece_bytes": PIECES,
            "staging_bytes": st.sampled_from((256, 1024, 1 << 16)),
            "staging_max_slice_bytes": st.sampled_from((4, 2048)),
        }
    )

    @settings(max_examples=3 * settings.default.max_examples)  # one in six stages anything
    @given(case=topologies(), seed=st.integers(0, 1000), sizes=staging)
    def staged(case: Case, seed: int, sizes: dict[str, int]) -> None:
        note(str((case.model, case.prefill_side, case.decode_side)))
        ranks = Ranks(case, seed, settings=EngineSettings(**sizes))
        ranks.play()
        assert ranks.failures() == []
        assert ranks.early == []
        assert ranks.differs() == []
        for member in ranks.members():
            seen.update(member.engine.counters())

    staged()
    assert seen["pieces gathered"] > 10
    assert seen["pieces scattered"] > 10


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case("", "", Model(attention=(0,)), Split(page_size=4), Split(), (1, 3, 4), prefix_tokens=EVERYTHING),
            id="decode holds all of a page that prefill alone has in one",
        ),
        pytest.param(
            Case("", "", Model(attention=(0,), mamba=(1,)), STAGES, STAGES, (5,)),
            id="a stage without attention has no pages and gets them named all the same",
        ),
        pytest.param(
            Case("", "", Model(attention=(0,)), Split(padding=3), Split(padding=3), (40,)),
            id="equal layouts, and bytes of an item that nobody may touch",
        ),
        pytest.param(
            Case("", "", Model(attention=(0, 1)), Split(cp=3), Split(tp=2), (1, 17), layerwise=True),
            id="layer by layer from ranks that have no page of a short prompt",
        ),
    ],
)  # fmt: skip
def test_what_was_found_once(case: Case) -> None:
    check(Ranks(case, 1))


@settings(max_examples=3 * settings.default.max_examples)
@given(both=pairs())
def test_what_cannot_work_is_refused_and_nothing_else(both: tuple) -> None:
    wrong = refusals(Pair(*both))
    event("refused" if wrong else "works")
    try:
        pair_up(*both)
        said: tuple[str, ...] = ()
    except CannotPair as error:
        said = error.words
    assert bool(said) == bool(wrong), (said, wrong)


# -- shares of peers that lie ------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 5)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts as `check_layout` lets them pass; cells may overlap."""
    kv = []
    page = draw(st.integers(1, 3))
    for layer in range(draw(st.integers(0, 3))):
        shards = []
        for _ in range(draw(st.integers(0, 2))):
            units, first = draw(st.integers(1, 4)), draw(NUMBERS)
            rows = draw(st.sampled_from((1, page, 2)))
            total = first + units + draw(NUMBERS)
            shards.append(
                Shard(draw(NUMBERS), rows, draw(NUMBERS), units, draw(NUMBERS), draw(st.integers(1, 4)), first, total)
            )
        length = max((shard.end for shard in shards), default=4) + draw(NUMBERS)
        kv.append(BufferSpec(layer, "k", length, "uint8", tuple(shards)))
    aux = (AuxSpec("token", draw(st.integers(1, 4)), "int8"),) * draw(st.integers(0, 1))
    return Layout(page, tuple(kv), aux, ())


@st.composite
def entries(draw: st.DrawFn, ours: Layout, theirs: Layout) -> Entry:
    """One that fits, if the layouts are equal, and perhaps a number in it that is another."""
    if not ours.kv or (ours.aux and draw(st.booleans())):
        good = Entry(PartKind.AUX, "token", 0, 0, 0, 0, 1)
    else:
        buffer = draw(st.integers(0, len(ours.kv) - 1))
        parts = ours.kv[buffer].parts
        number = draw(st.integers(0, len(parts) - 1))
        low, high = parts[number].first, parts[number].first + parts[number].units
        first = draw(st.integers(low, high - 1))
        good = Entry(PartKind.KV, "", buffer, buffer, number, first, draw(st.integers(first + 1, high)))
    change = draw(st.sampled_from((None, None, "kind", "name", "source", "target", "shard", "first", "stop")))
    if change is None:
        return good
    values = {"kind": st.sampled_from(PartKind), "name": st.sampled_from(("", "token", "other"))}
    return msgspec.structs.replace(good, **{change: draw(values.get(change, NUMBERS))})


def side(layout: Layout, base: int, items: int) -> Side:
    kv = tuple(Region(base + 4096 * i, items) for i in range(len(layout.kv)))
    return Side(layout, Regions(kv, tuple(Region(base + 2**20, items) for _ in layout.aux), ()))


def inside(some: Side, address: int, length: int) -> bool:
    regions = [*zip(some.regions.kv, some.layout.kv, strict=True), *zip(some.regions.aux, some.layout.aux, strict=True)]
    ends = [(region.address, region.address + region.items * spec.item_length) for region, spec in regions]
    return any(low <= address and address + length <= high for low, high in ends)


@settings(max_examples=5 * settings.default.max_examples)
@given(st.data())
def test_a_share_that_lies_is_refused_by_its_entry_or_stays_within_the_registered_memory(data: st.DataObject) -> None:
    ours = data.draw(layouts(), "ours")
    theirs = ours if data.draw(st.booleans(), "equal") else data.draw(layouts(), "theirs")
    share = Share(1, 1, 0, tuple(data.draw(st.lists(entries(ours, theirs), min_size=1, max_size=3), "entries")))
    source, target = side(ours, 2**30, 3), side(theirs, 2**31, 3)
    try:
        check_share(share, ours, theirs)
        pair = PairTable(source, target, share)
        refused = ""
    except WireError as error:
        refused = error.field
    event("refused" if refused else "planned")
    assert not refused or refused.startswith("share.entries[")
    if refused:
        return
    some = np.arange(3, dtype=np.int32)
    parts = {(entry.kind, "" if entry.kind is PartKind.AUX else entry.name) for entry in share.entries}
    todo = [(Transfer(kind, 0, 0, 0, some, some), name) for kind, name in sorted(parts)]
    for piece in pair.pieces(todo, data.draw(PIECES, "piece")):
        for where, rows in ((source, piece.source_descriptors), (target, piece.destination_descriptors)):
            assert rows is not None
            assert all(inside(where, address, length) for address, length, _ in rows.tolist())
