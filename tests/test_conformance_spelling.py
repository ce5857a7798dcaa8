"""Spellings of state indices: built, said as text, and meaning what the oracle says, to the product's reader too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrooms.harness.conformance.draws import forms, plain
from kvrooms.harness.conformance.own_pool import Pool, size_of
from kvrooms.harness.conformance.plan import Act, Cut, RoomPlan
from kvrooms.harness.conformance.spelling import Form, allowed, build, fitted, needs, spelled
from kvrooms.harness.conformance.subject import ABSENT, ALL_SPELLINGS, ComponentShape, Item, Shape
from kvrooms.protocol.manifest import state_indices as read

NAMES = ("window", "index")
INDICES = st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple)


@pytest.mark.parametrize(
    ("form", "indices", "text"),
    [
        (Form("absent"), (), "absent"),
        (Form("None"), ((),), "None"),
        (Form("list"), ((),), "[]"),
        (Form("tuple"), ((),), "()"),
        (Form("list", ("list",)), ((),), "[[]]"),
        (Form("list", ("list", "list")), ((),), "[[], []]"),
        (Form("list", ("None",)), ((),), "[None]"),
        (Form("list", ("tuple",)), ((),), "[()]"),
        (Form("tuple", ("tuple",)), ((3, 5),), "((3, 5),)"),
        (Form("list", ("list",)), ((3, 5),), "[[3, 5]]"),
        (Form("list", ("array", "None")), ((3, 5), ()), "[array([3, 5]), None]"),
        (Form("mapping", ("list", "list")), ((3,), ()), "{'window': [3], 'index': []}"),
        (Form("flat"), ((3, 5),), "[3, 5]"),
        (Form("iterator", ("list",)), ((3,),), "iter([[3]])"),
    ],
)
def test_a_value_is_said_as_it_is_written(form, indices, text):
    assert spelled(form, indices, NAMES) == text


def test_what_is_absent_is_one_thing_everywhere():
    import pickle

    assert build(Form("absent"), (), NAMES) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT


def test_an_iterator_is_made_anew_each_time():
    form = Form("iterator", ("list",))
    first, second = (build(form, ((3,),), NAMES) for _ in range(2))
    assert list(first) == [[3]]
    assert list(first) == []
    assert list(second) == [[3]]


@given(data=st.data(), indices=st.lists(INDICES, max_size=2).map(tuple))
def test_every_spelling_means_its_indices_to_the_product_too(data, indices):
    """The oracle's meaning is the indices that went in; that the product reads the same out of it is L2's ground."""
    components = len(indices)
    form = fitted(data.draw(forms(ALL_SPELLINGS, components)), indices)
    value = build(form, indices, NAMES)
    shape = Shape(
        16, 1, 1, 8, 1, 1, tuple(ComponentShape(NAMES[i], "when_indexed", 8, 8, 8) for i in range(components))
    )
    memory = Pool(shape, "decode", lambda size: np.zeros(size, np.uint8)).memory()
    found = read(memory.layout, None if value is ABSENT else value, (8,) * components)
    assert [list(map(int, some)) for some in found] == [list(some) for some in indices][: len(found)]
    assert len(found) in {components, 0 if components == 0 else components}


@given(data=st.data(), indices=st.lists(INDICES, min_size=1, max_size=2).map(tuple))
def test_a_fitted_form_needs_only_what_was_allowed_or_a_plain_list(data, indices):
    allowed_here = data.draw(st.frozensets(st.sampled_from(sorted(ALL_SPELLINGS)), min_size=1)) | {"list"}
    form = data.draw(forms(allowed_here, len(indices)))
    assert allowed(form, allowed_here)
    assert needs(fitted(form, indices)) <= allowed_here
    assert fitted(fitted(form, indices), indices) == fitted(form, indices)


def test_a_plain_spelling_is_the_first_that_is_allowed():
    assert plain(frozenset({"absent", "None", "list"})) == Form("list")
    assert plain(frozenset({"mapping", "absent"})) == Form("mapping")
    assert plain(frozenset({"absent"})) == Form("absent")


def test_the_order_of_calls_follows_the_plan():
    room = RoomPlan(chunks=(1, 2), decode_at=1)
    opens = [Act("open"), Act("open", "decode")]
    sends = [Act("send", "prefill", 0), Act("send", "prefill", 1)]
    assert room.acts() == [*opens, *sends]
    assert room.acts(barrier=True) == [*opens, Act("rest"), *sends]
    assert room._replace(decode_at=9).acts()[-1] == Act("open", "decode")
    assert room._replace(only="decode").acts() == [Act("open", "decode")]
    assert room._replace(acts_max=1).acts() == [Act("open")]
    cut = Cut("abort", "decode", 2)
    assert room._replace(cut=cut).acts() == [*opens, Act("abort", "decode")]
    assert room._replace(cut=cut._replace(then=True)).acts() == [*opens, Act("abort", "decode"), *sends]


def test_memory_is_read_as_it_was_filled():
    shape = Shape(64, 3, 2, 8, 2, 2, (ComponentShape("window", "when_indexed", 16, 3, 3),))
    pool = Pool(shape, "prefill", lambda size: np.zeros(size, np.uint8))
    assert size_of(shape, "prefill") == 3 * 64 + 2 * 8 + 3 * 16
    items = [Item("kv", 2), Item("aux", 1), Item("state", 0)]
    for number, item in enumerate(items):
        length = {"kv": 64, "aux": 8, "state": 16}[item.kind]
        pool.fill(item, bytes(range(number, number + length)))
    for number, item in enumerate(items):
        assert pool.read(item)[:2] == bytes([number, number + 1])
