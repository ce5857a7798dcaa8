"""The manifest: every spelling of nothing is one value, wrong values are named, disagreement is put into words."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, named
from samples import NAMES, dense, layout, manifest

from kvrooms.protocol import manifest as m
from kvrooms.protocol import wire
from kvrooms.protocol.errors import InvalidArgument, WireError
from kvrooms.protocol.identity import PAGES_MAX
from kvrooms.protocol.layout import Layout, Owed
from kvrooms.protocol.manifest import Declaration, Manifest

ITEMS = 50
INVALID = (InvalidArgument, ValueError)


def nothing_at_all() -> Iterator[int]:
    """A generator that ends at once."""
    yield from ()


# Factories, because a generator says what it says only once.
ENTRIES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "[]": list,
    "()": tuple,
    "[None]": lambda: [None],
    "[None, None]": lambda: [None, None],
    "[[]]": lambda: [[]],
    "[(), []]": lambda: [(), []],
    "[[None, []]]": lambda: [[None, []]],
    "range(0)": lambda: range(0),
    "set()": set,
    "deque()": deque,
    "{}": dict,
    "generator": lambda: nothing_at_all(),
    "generator of nothings": lambda: iter([None, []]),
    "numpy int32": lambda: np.empty(0, np.int32),
    "numpy int64 (0, 3)": lambda: np.empty((0, 3), np.int64),
    "numpy (1, 0)": lambda: np.empty((1, 0), np.int32),
    "numpy float": lambda: np.array([]),
    "[numpy]": lambda: [np.empty(0, np.int32)],
    "torch int64": lambda: torch.empty(0, dtype=torch.int64),
    "torch int32 (2, 0)": lambda: torch.empty((2, 0), dtype=torch.int32),
    "[torch, numpy]": lambda: [torch.empty(0, dtype=torch.int64), np.empty(0, np.int64)],
}
WHOLE: dict[str, Callable[[], Any]] = {
    **ENTRIES,
    "[[], []]": lambda: [[], []],
    "([], ())": lambda: ([], ()),
    "[None, []]": lambda: [None, []],
    "[[]] * 5": lambda: [[]] * 5,
    "iterator": lambda: iter(()),
    "generator of generators": lambda: (nothing_at_all() for _ in range(2)),
    "numpy (2, 0)": lambda: np.empty((2, 0), np.int64),
}


Entry = Callable[[], Any]
WAYS: dict[str, Callable[[Entry, tuple[str, ...]], Any]] = {
    "each {}": lambda entry, names: [entry() for _ in names],
    "tuple of {}": lambda entry, names: tuple(entry() for _ in names),
    "generator of {}": lambda entry, names: (entry() for _ in names),
    "mapping to {}": lambda entry, names: {name: entry() for name in names},
    "last mapped to {}": lambda entry, names: {name: entry() for name in names[-1:]},
    "more entries than components: {}": lambda entry, names: [entry() for _ in range(4)],
}


def spellings(spec: Layout) -> dict[str, Entry]:
    """Every way to say that no component has indices: whole values, lists of entries, mappings."""
    found = dict(WHOLE)
    for (way, make), (label, entry) in itertools.product(WAYS.items(), ENTRIES.items()):
        found[way.format(label)] = partial(make, entry, spec.component_names)
    return found


def bounds(spec: Layout) -> tuple[int, ...]:
    return tuple(ITEMS for _ in spec.state)


def given_indices(spec: Layout, value: object, **options: bool) -> list[list[int]]:
    found = m.state_indices(spec, value, bounds(spec), **options)
    assert all(indices.dtype == np.int32 for indices in found)
    return [indices.tolist() for indices in found]


def on_the_wire(spec: Layout, value: object) -> bytes:
    """The bytes of a METADATA made from `value`."""
    indices = m.state_indices(spec, value, bounds(spec))
    wanted = m.derive(spec, 3, 1, indices, aux=True)
    packed = tuple(wire.pack_indices(some) for some in indices if len(some))
    pages = wire.pack_indices(np.array([4, 5], np.int32))
    return wire.encode(wire.Metadata(7, 0, 1, 99, wanted, pages, 2, packed), 1, 2, 1)


def check_nothing_is_one_value() -> None:
    for components in range(3):
        spec = dense(components)
        expected = on_the_wire(spec, None)
        for label, spell in spellings(spec).items():
            indices = m.state_indices(spec, spell(), bounds(spec))
            assert m.derive(spec, 3, 0, indices, aux=True) == manifest(3, state=()), (components, label)
            assert on_the_wire(spec, spell()) == expected, (components, label)


def test_every_spelling_of_nothing_is_the_same_manifest_and_the_same_bytes() -> None:
    check_nothing_is_one_value()


@pytest.mark.parametrize("components", [0, 1, 2])
def test_the_number_of_spellings(components: int) -> None:
    assert len(spellings(dense(components))) == len(WHOLE) + len(WAYS) * len(ENTRIES) == 29 + 132


@pytest.mark.parametrize("components", [1, 2])
def test_nothing_for_a_component_owed_always_is_refused_by_name(components: int) -> None:
    spec = dense(components, Owed.ALWAYS)
    for label, spell in spellings(spec).items():
        with pytest.raises(InvalidArgument, match="'conv' is owed always") as caught:
            m.state_indices(spec, spell(), bounds(spec))
        assert caught.value.field == "state_indices", label
        assert given_indices(spec, spell(), complete=False) == [[]] * components
        assert given_indices(spec, spell(), skip_state=True) == [[]] * components


def test_always_is_looked_at_per_component() -> None:
    spec = layout(Owed.ALWAYS, Owed.WHEN_INDEXED, Owed.ALWAYS)
    assert given_indices(spec, {"conv": [1], "index": [2]}) == [[1], [], [2]]
    with pytest.raises(InvalidArgument, match="'index' is owed always"):
        m.state_indices(spec, [[1], [4], []], bounds(spec))
    with pytest.raises(InvalidArgument, match="skip_state"):
        m.state_indices(spec, [[1], [], [2]], bounds(spec), skip_state=True)
    m.owed_always(spec, (1, 0, 2))
    with pytest.raises(InvalidArgument, match="'conv'"):
        m.owed_always(spec, (0, 5, 2))


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "generator": lambda some: (i for i in some),
    "numpy ints in a list": lambda some: [np.int64(i) for i in some],
    "torch scalars in a list": lambda some: list(torch.tensor(some, dtype=torch.int64)),
    "numpy int8": lambda some: np.array(some, np.int8),
    "numpy uint8": lambda some: np.array(some, np.uint8),
    "numpy int32": lambda some: np.array(some, np.int32),
    "numpy int64": lambda some: np.array(some, np.int64),
    "numpy uint64": lambda some: np.array(some, np.uint64),
    "torch int32": lambda some: torch.tensor(some, dtype=torch.int32),
    "torch int64": lambda some: torch.tensor(some, dtype=torch.int64),
}
some_indices = st.lists(st.integers(0, ITEMS - 1), max_size=6)
forms = st.sampled_from(sorted(FORMS))


def check_spellings_agree(one: list[int], two: list[int], form: str, other: str) -> None:
    spec = dense(2)
    first, second = FORMS[form], FORMS[other]
    assert given_indices(spec, [first(one), second(two)]) == [one, two]
    assert given_indices(spec, (part for part in (first(one), second(two)))) == [one, two]
    assert given_indices(spec, {"swa": second(two), "conv": first(one)}) == [one, two]
    assert given_indices(spec, {"swa": second(two)}) == [[], two]
    if one:
        assert given_indices(spec, [first(one)]) == [one, []]
    single = dense(1)
    assert given_indices(single, first(one)) == [one]  # flat
    assert given_indices(single, [first(one)]) == [one]
    assert given_indices(single, {"conv": first(one)}) == [one]
    found = m.page_indices("pages", first(one), ITEMS)
    assert found.dtype == np.int32
    assert found.tolist() == one


test_indices_are_the_same_in_every_spelling = given(one=some_indices, two=some_indices, form=forms, other=forms)(
    check_spellings_agree
)


def test_a_two_dimensional_array_has_one_row_per_component() -> None:
    assert given_indices(dense(2), np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert given_indices(dense(1), torch.tensor([[1, 2]])) == [[1, 2]]


def test_the_callers_array_is_copied() -> None:
    theirs = np.array([1, 2], np.int32)
    ours = m.page_indices("pages", theirs, ITEMS)
    theirs[0] = 9
    assert ours.tolist() == [1, 2]
    assert m.page_indices("pages", None, ITEMS).tolist() == []


WRONG: list[tuple[object, str]] = [
    (5, "state_indices"),
    ("12", "state_indices"),
    (b"12", "state_indices"),
    (1.5, "state_indices"),
    (np.array(3), "state_indices"),
    ([3, 4], "state_indices"),  # flat, but two components
    ([[1], 2], "state_indices[1]"),
    ([None, 2], "state_indices[1]"),
    ([[1], "ab"], "state_indices[1]"),
    ([[1], [2], [3]], "state_indices[2]"),
    ([[1], [ITEMS]], "state_indices[swa]"),
    ([[-1], []], "state_indices[conv]"),
    ([[1.0], []], "state_indices[conv]"),
    ([[True], []], "state_indices[conv]"),
    ([[[1]], []], "state_indices[conv]"),
    ([["a"], []], "state_indices[conv]"),
    ([[1, None], []], "state_indices[conv]"),
    ([[None, 1], []], "state_indices[conv]"),  # dropping it would move the 1 from position 1 to position 0
    ([[[], 1], []], "state_indices[conv]"),
    ([np.array([0.5]), []], "state_indices[conv]"),
    ([np.array([True]), []], "state_indices[conv]"),
    ([np.array([[1]]), []], "state_indices[conv]"),
    ([np.array(["a"]), []], "state_indices[conv]"),
    ({"conv": [2**40]}, "state_indices[conv]"),
    ({"conv": [2**80]}, "state_indices[conv]"),
    ({"conv": 3}, "state_indices[conv]"),
    ({"conv": [1], "nope": [1]}, "state_indices"),
    ({"nope": []}, "state_indices"),
    ({0: [1]}, "state_indices"),
    (np.array([[1, 2], [3, -4]]), "state_indices[swa]"),
    (torch.tensor([[1, ITEMS], [3, 4]]), "state_indices[conv]"),
]


@pytest.mark.parametrize(("value", "field"), WRONG, ids=lambda value: repr(value)[:40])
def test_wrong_values_are_named(value: object, field: str) -> None:
    spec = dense(2)
    with pytest.raises(InvalidArgument) as caught:
        m.state_indices(spec, value, bounds(spec))
    assert caught.value.field == field


def test_indices_without_a_component() -> None:
    with pytest.raises(InvalidArgument, match="exactly one component, not 0"):
        m.state_indices(dense(0), [1], ())
    with pytest.raises(InvalidArgument, match="0 state components"):
        m.state_indices(dense(0), [[], [1]], ())


@pytest.mark.parametrize("value", [[-1], [8], [1, 2, 900], np.array([8]), np.array([-1]), [3.5], ["a"], [True], 4, "1"])
def test_wrong_pages_are_named(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        m.page_indices("pages", value, 8)
    assert caught.value.field == "pages"
    with pytest.raises(InvalidArgument, match="pages"):
        m.page_indices("pages", value, 0)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 100])
def test_a_wrong_page_is_found_wherever_it_stands(count: int) -> None:
    for at in {0, count // 2, count - 1}:
        for wrong in (-1, 50):
            pages = np.full(count, 7, dtype=np.int64)
            pages[at] = wrong
            with pytest.raises(InvalidArgument, match="pages") as caught:
                m.page_indices("pages", pages, 50)
            assert caught.value.value == wrong
            pages[at] = 49
            assert m.extent(pages) == (7 if count > 1 else 49, 49)


def test_derive_says_what_is_owed() -> None:
    spec = layout(Owed.WHEN_INDEXED, Owed.WHEN_INDEXED)
    one, none = np.array([3], np.int32), np.empty(0, np.int32)
    assert m.derive(spec, 5, 2, (none, one), aux=True) == Manifest(5, ((2, 5),), ("token", "logprob"), (("swa", 1),))
    assert m.derive(spec, 5, 5, (), aux=False) == Manifest(5, (), (), ())  # the whole prompt is on decode already
    assert m.derive(spec, 0, 0, (one, one), aux=False) == Manifest(0, (), (), (("conv", 1), ("swa", 1)))


def check_words() -> None:
    """Every combination of not declared, equal, different: the words name what differs, nothing else."""
    wanted = manifest(4, state=(1, 2))
    pages = {None: [], 4: [], 3: ["pages: prefill has 3, decode expects 4"]}
    aux: dict[tuple[str, ...] | None, list[str]] = {
        None: [],
        ("token", "logprob"): [],
        (): ["aux: prefill sends [], decode expects ['token', 'logprob']"],
    }
    conv, swa = "state component 'conv': prefill sends {}", "state component 'swa': prefill sends {}"
    state: dict[tuple[tuple[str, int], ...] | None, list[str]] = {
        None: [],
        (("conv", 1), ("swa", 2)): [],
        (): [conv.format("0 indices, decode expects 1"), swa.format("0 indices, decode expects 2")],
        (("conv", 2), ("swa", 2)): [conv.format("2 indices, decode expects 1")],
        (("conv", 1), ("swa", 1)): [swa.format("1 indices, decode expects 2")],
        (("conv", 1),): [swa.format("0 indices, decode expects 2")],
        (("conv", 1), ("swa", 2), ("index", 1)): ["state component 'index': prefill sends 1 indices, decode expects 0"],
    }
    for said in itertools.product(pages, aux, state):
        declared = Declaration(*said)
        expected = (*pages[said[0]], *aux[said[1]], *state[said[2]])
        assert m.differences(declared, wanted) == expected, said
        assert declared.complete == (None not in said)


def test_declarations_are_compared_in_words() -> None:
    check_words()


def check_peers_manifest() -> None:
    spec = layout(Owed.WHEN_INDEXED, Owed.ALWAYS)
    names = ("token", "logprob")
    good = [
        Manifest(4, ((0, 1), (2, 4)), names, (("conv", 1), ("swa", 1))),
        Manifest(4, ((0, 4),), (), (("swa", 1),)),
        Manifest(0, (), (), ()),
        Manifest(PAGES_MAX, ((0, PAGES_MAX),), names, (("conv", 9),)),
    ]
    bad = [
        (Manifest(4, ((0, 0),), (), ()), "kv"),
        (Manifest(4, ((2, 1),), (), ()), "kv"),
        (Manifest(4, ((0, 2), (2, 4)), (), ()), "kv"),  # adjacent: a second spelling of one set
        (Manifest(4, ((2, 4), (0, 1)), (), ()), "kv"),
        (Manifest(4, ((0, 3), (2, 4)), (), ()), "kv"),
        (Manifest(4, ((0, 5),), (), ()), "kv"),
        (Manifest(4, (), ("token",), ()), "aux"),
        (Manifest(4, (), ("logprob", "token"), ()), "aux"),
        (Manifest(4, (), (), (("nope", 1),)), "state"),
        (Manifest(4, (), (), (("swa", 1), ("conv", 1))), "state"),
        (Manifest(4, (), (), (("swa", 1), ("swa", 1))), "state"),
    ]
    for one in good:
        m.check_manifest(spec, one)
    cases = [(spec, one, field) for one, field in bad] + [(layout(kv=0), Manifest(1, ((0, 1),), (), ()), "kv")]
    for fitted, one, field in cases:
        with pytest.raises(WireError) as caught:
            m.check_manifest(fitted, one)
        assert caught.value.field == f"manifest.{field}"


def test_a_peers_manifest_is_checked() -> None:
    check_peers_manifest()


@given(st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 3), max_size=2), st.booleans())
def test_what_derive_makes_is_what_check_accepts(pages: int, prefix: int, each: list[int], aux: bool) -> None:
    spec = dense(len(each))
    indices = tuple(np.arange(n, dtype=np.int32) for n in each)
    wanted = m.derive(spec, pages, prefix, indices, aux)
    m.check_manifest(spec, wanted)
    assert wanted.kv == (((prefix, pages),) if prefix < pages else ())
    assert dict(wanted.state) == {name: n for name, n in zip(NAMES, each, strict=False) if n}
    assert m.differences(Declaration(pages, wanted.aux, wanted.state), wanted) == ()


@named(
    [
        # two predicates for one question: "is there a list" in one place, "are there indices" in another
        Mutant(m, "_spelled", "return [] if all(map(_says_nothing, listed)) else listed", "return listed"),
        Mutant(m, "_says_nothing", "entry is None or", "False or"),
        Mutant(m, "_says_nothing", 'or 0 in getattr(entry, "shape", ())', ""),
        Mutant(m, "_says_nothing", "all(map(_says_nothing, entry))", "not entry"),
        Mutant(m, "counts_of", " if total)", ")"),
        Mutant(m, "_entries", "[*spelled[: len(names)], *([] for _ in names[len(spelled) :])]", "spelled"),
    ]
)
def test_mutants_of_nothing_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_nothing_is_one_value)


@named(
    [
        Mutant(m, "differences", "if declared.state is not None and", "if declared.state and"),  # [] is not "not yet"
        Mutant(m, "differences", "if declared.pages is not None and", "if declared.pages and False and"),
        Mutant(m, "differences", "if declared.aux is not None and", "if declared.aux and"),
        Mutant(m, "differences", "ours.get(name, 0) != theirs.get(name, 0)", "(name in ours) != (name in theirs)"),
        Mutant(m, "differences", "(*ours, *theirs)", "ours"),
    ]
)
def test_mutants_of_the_comparison_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_words)


@named(
    [
        Mutant(m, "check_manifest", "manifest.kv[-1][1] > manifest.pages", "manifest.kv[-1][1] > manifest.pages + 1"),
        Mutant(
            m, "check_manifest", "if names and names != [", "if set(names) - set(layout.component_names) and names != ["
        ),
        Mutant(m, "check_manifest", "if not well_formed(manifest.kv)", "if False"),
        Mutant(m, "check_manifest", "and not layout.kv", "and False"),
    ]
)
def test_mutants_of_the_check_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_peers_manifest)
