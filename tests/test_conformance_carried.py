"""Prefixes and layers that are sent apart under the suite: what is put to whom, what is found, and how it is said."""

from __future__ import annotations

import re

import pytest
from conformance_toy import CARRIED as MISTAKES
from conformance_toy import Toy
from hypothesis import find, settings

from kvrooms.harness.conformance.checks_carried import FURTHER
from kvrooms.harness.conformance.draws import plans, rooms, shape_of
from kvrooms.harness.conformance.draws_carried import layered, prefixed
from kvrooms.harness.conformance.own_nixl import KvroomsNixl
from kvrooms.harness.conformance.own_pool import blank, whole
from kvrooms.harness.conformance.own_sim import KvroomsSim
from kvrooms.harness.conformance.plan import Part, Plan, RoomPlan
from kvrooms.harness.conformance.play import play
from kvrooms.harness.conformance.reduce import smaller
from kvrooms.harness.conformance.report import markdown_of
from kvrooms.harness.conformance.stage import Stage
from kvrooms.harness.conformance.subject import Item, Unsupported
from kvrooms.harness.conformance.suite import Session, default_effort, judge_check, run
from kvrooms.harness.mutants.catalogue import BY_NAME
from kvrooms.harness.mutants.plant import _function

SHAPE = shape_of(page_bytes=2048)
BEYOND = ("prefixes", "prefixes that end inside a page", "layers that are sent apart")


def beyond(subject, property_id, also, examples=100):
    """The verdict of one of these checks alone."""
    [check] = [one for one in FURTHER if (one.id, one.also) == (property_id, also)]
    effort = default_effort(subject, examples=examples, seconds=600.0, shrink_s=600.0)
    return judge_check(Session(subject, effort), check)


def judged(subject, *properties, examples=60):
    return run(subject, default_effort(subject, examples=examples, seconds=600.0, shrink_s=600.0), properties)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def drawn(way, shape, wanted):
    """The smallest plan of this kind for which something is true."""
    base = plans(Toy.traits, rooms(Toy.traits, shape))
    return find(way(Toy(), shape, base), wanted, settings=settings(max_examples=2000, database=None, derandomize=True))


def test_prefixes_reach_from_nothing_to_everything_and_end_inside_a_page():
    [room] = drawn(prefixed, shape_of(), lambda plan: True).rooms
    assert (room.held, room.split, room.sends) == (0, 1, ())
    [room] = drawn(prefixed, shape_of(), lambda plan: plan.rooms[0].held == plan.rooms[0].pages_wanted).rooms
    assert (room.held, room.chunks) == (1, (1,))
    halves = shape_of(page_bytes=2048)._replace(split=2)
    [room] = drawn(prefixed, halves, lambda plan: plan.rooms[0].held % 2 and plan.rooms[0].short).rooms
    assert (room.held, room.short, room.pages_wanted, room.agrees) == (1, 1, 1, True)


def test_nobody_holds_everything_where_a_room_must_own_a_page():
    class Owning(Toy):
        traits = Toy.traits._replace(zero_pages=False)

    one = RoomPlan((1,))
    from hypothesis import strategies as st

    base = prefixed(Owning(), shape_of(), st.just(Plan((one,))))
    assert find(base, lambda plan: True, settings=settings(database=None, derandomize=True)).rooms == (one,)
    assert {room.held for less in smaller(Plan((one._replace(chunks=(3,), held=2),)), Owning.traits)
            for room in less.rooms} <= {0, 1, 2}  # fmt: skip


def in_order(room, layers):
    reached = dict.fromkeys(range(layers), 0)
    for part in room.parts:
        for layer in part.layers or range(layers):
            assert part.chunk == reached[layer], room.parts
            reached[layer] += 1
    assert set(reached.values()) == {len(room.chunks)}


def test_each_layer_goes_through_the_chunks_in_order_also_in_what_is_made_smaller():
    shape, seen = shape_of()._replace(layers=3), []

    def ahead(plan):
        [room] = plan.rooms
        in_order(room, 3)
        seen.append(room)
        chunks = [part.chunk for part in room.parts]
        return chunks != sorted(chunks)

    plan = drawn(layered, shape, ahead)
    for room in seen[:200]:
        for less in smaller(Plan((room,)), Toy.traits):
            in_order(less.rooms[0], 3)
    assert sum(plan.rooms[0].chunks) <= 3
    assert any(not room.sends for room in seen)


def test_a_step_smaller_has_a_smaller_prefix_and_fewer_sends():
    parts = (Part(0, (0,)), Part(1, (0,)), Part(0, (1, 2)), Part(1, (1,)), Part(1, (2,)))
    plan = Plan((RoomPlan((2, 3), sends=parts, held=5, split=2, short=1),))
    steps = [less.rooms[0] for less in smaller(plan, Toy.traits) if less.size < plan.size]
    assert {room.held for room in steps if room.chunks == (2, 3)} == {0, 2, 4, 5}
    assert any(not room.sends for room in steps)
    assert (Part(0, (0,)), Part(0, (1, 2)), Part(1, (0,)), Part(1, (1,)), Part(1, (2,))) in [r.sends for r in steps]
    assert (Part(0), Part(1, (0,)), Part(1, (1,)), Part(1, (2,))) in [room.sends for room in steps]
    assert (Part(0, (0,)), Part(0, (1,)), Part(0, (2,))) in [room.sends for room in steps if room.chunks == (3,)]
    for room in steps:
        in_order(room, 3)
        assert room.held <= room.pages_wanted


# -- who is asked ------------------------------------------------------------------------------------------------------


def test_it_is_put_to_whoever_can_do_it_and_the_others_are_told():
    put = {way: {check.id for check in FURTHER if check.also == way} for way in BEYOND}
    everything = {"L2", "L3", "S1", "S3", "A1"}
    assert put == {BEYOND[0]: everything, BEYOND[1]: {"L2", "S1", "A1"}, BEYOND[2]: everything}
    [inside] = [check for check in FURTHER if (check.id, check.also) == ("S1", BEYOND[1])]
    assert [(shape.split, shape.ranks) for shape in inside.shapes(KvroomsSim.traits)] == [(2, (1, 1)), (2, (1, 2))]
    assert [shape.ranks for shape in inside.shapes(Toy.traits)] == [(1, 1)]
    [apart] = [check for check in FURTHER if (check.id, check.also) == ("S1", BEYOND[2])]
    assert [(shape.split, shape.ranks) for shape in apart.shapes(KvroomsSim.traits)] == [(1, (1, 1)), (1, (1, 2))]

    class Plain(Toy):
        traits = Toy.traits._replace(prefixes=False, splits=frozenset(), layers=0)

        def start(self, shape, **rest):
            assert (shape.split, shape.layers) == (1, 0)
            super().start(shape, **rest)

        def open(self, side, request):
            assert request.held == ()
            return super().open(side, request)

    outcomes = judged(Plain(), "S1", "SMOKE", examples=10)
    missing = {outcome.id: outcome.not_offered for outcome in outcomes}
    assert missing == {"SMOKE": (), "S1": ("sides of several ranks", BEYOND[0], BEYOND[2], BEYOND[1])}
    assert "not offered: sides of several ranks, prefixes, " in markdown_of(Plain(), outcomes, "this")
    [outcome] = judged(Toy(), "S1", examples=10)
    assert (outcome.ok, outcome.not_offered) == (True, ("sides of several ranks",))


def test_a_subject_that_says_it_can_and_cannot_is_unknown():
    class Boasting(Toy):
        def send_layers(self, *arguments, last):
            if len(arguments[1]) < self.layers:
                raise Unsupported("these layers have to go together")
            super().send_layers(*arguments, last=last)

    [outcome] = judged(Boasting(), "S1", examples=40)
    assert (outcome.ok, outcome.reason) == (None, "these layers have to go together")


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "property_id", "said", "words"),
    [
        ("by-count", "S1", {"chunks": "[2]", "decode_holds": "[2]", "decode_pages": "[0]"}, "holds other bytes"),
        ("again", "S1", {"chunks": "[1]", "decode_holds": "[0]", "decode_pages": "[]"},
         "kv item 0, which decode held already, was written to"),
        ("rounded", "L2", {"chunks": "[1]", "decode_holds": "[2]", "decode_pages": "[0]",
                           "page_sizes": "a page of prefill is 2 of decode's"}, "decode waits"),
        ("first-layer", "S1", {"chunks": "[1]"}, "holds other bytes"),
        ("last-layer", "S1", {}, "holds other bytes"),
        ("apart-by-count", "S1", {"chunks": "[2]", "decode_holds": "[2]", "decode_pages": "[0]"}, "holds other bytes"),
    ],
)  # fmt: skip
def test_each_mistake_is_found_and_shown_in_its_smallest_room(mistake, property_id, said, words):
    assert mistake in MISTAKES
    [outcome] = judged(Toy(mistake), property_id)
    found = outcome.counterexample
    assert outcome.ok is False
    assert words in outcome.reason
    assert said.items() <= found.input.items()
    assert not [name for name in found.input if name.startswith("other_room")]
    if "layer" in mistake or "apart" in mistake:
        assert re.fullmatch(r"0: chunk 0 layers \[.*\], 1: chunk 0 layers \[.\]", found.input["sends"])
        assert "send(1 pages, layers=[" in found.text() or mistake != "first-layer"
    else:
        assert "sends" not in found.input
        assert "1 held" in found.text()


def test_without_prefixes_and_layers_nobody_would_know():
    for mistake in MISTAKES:

        class Plain(Toy):
            traits = Toy.traits._replace(prefixes=False, splits=frozenset(), layers=0)

        assert all(outcome.ok for outcome in judged(Plain(mistake), "L2", "S1", examples=20))


# -- kvrooms itself ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "property_id", "also", "said"),
    [
        ("prefix-in-the-wrong-pages", "S1", BEYOND[1], {"decode_holds": "[2]", "decode_pages": "[0]"}),
        ("tokens-that-are-there-come-again", "S1", BEYOND[1], {"page_sizes": "a page of prefill is 2 of decode's"}),
        (
            "reported-with-the-first-layer",
            "S1",
            BEYOND[2],
            {"sends": "0: chunk 0 layers [0, 1, 2], 1: chunk 0 layers [3]"},
        ),
    ],
)
def test_mistakes_in_kvrooms_that_only_such_rooms_show(name, property_id, also, said, monkeypatch):
    fault = BY_NAME[name].fault
    function = _function(fault.place)
    monkeypatch.setattr(function, "__code__", function.__code__)
    fault.plant()
    outcome = beyond(KvroomsSim(), property_id, also)
    assert outcome.ok is False
    assert said.items() <= outcome.counterexample.input.items()


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("ranks", [(1, 1), (2, 4)])
def test_a_page_of_prefill_is_read_as_the_pages_of_decode_that_it_is(side, ranks):
    shape = SHAPE._replace(split=2, layers=4, ranks=ranks)
    pools = [blank(shape, side, rank) for rank in range(shape.ranks_of(side))]
    data = bytes(number * 7 % 251 for number in range(shape.page_bytes_of(side)))
    for pool in pools:
        pool.fill(Item("kv", 2), data)
    assert whole(pools, Item("kv", 2)) == data
    tokens = pools[0].memory().layout.page_size
    assert tokens == (32 if side == "prefill" else 16)


@pytest.mark.nixl
@pytest.mark.parametrize("split", [1, 2])
def test_on_real_nixl_half_a_prompt_is_there_and_the_rest_comes_layer_by_layer(split):
    shape = SHAPE._replace(split=split, layers=4, decode_pages=64)
    parts = (Part(0, (1, 3)), Part(1, (1,)), Part(0, (0, 2)), Part(1, (0, 2, 3)))
    stage = Stage(KvroomsNixl(), shape, patience_s=20.0, deadline_s=None, seed=0)
    try:
        lives = play(stage, Plan((RoomPlan((2, 1), sends=parts, split=split, held=split, short=split - 1),)))
        lives += play(stage, Plan((RoomPlan((2,), split=split, held=2 * split),)))
        assert stage.settle(lambda: all(live.ended for live in lives))
        for live in lives:
            assert live.state == {"prefill": "done", "decode": "done"}
            assert live.wrong_at_done is None
            assert stage.strayed(live) is None
    finally:
        stage.stop()
