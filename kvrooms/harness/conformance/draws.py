"""Hypothesis strategies for plans, within what a subject's traits allow. The simplest values come first in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from .plan import Breach, Cut, Plan, RoomPlan
from .spelling import Entry, Form, Outer, allowed
from .subject import SIDES, ComponentShape, Shape, Side, Spelling, Subject, Traits

_OUTERS: tuple[Outer, ...] = ("list", "None", "absent", "tuple", "mapping", "iterator", "flat")
_ENTRIES: tuple[Entry, ...] = get_args(Entry)
_CHUNK_PAGES_MAX = 3
_SEEDS = 1 << 16
_UNEQUAL = ((1, 0), (0, 1), (1, 2), (2, 1), (2, 0), (0, 2))

INDEXED = ComponentShape("window", "when_indexed", 256, 24, 20)
INDEXED_TOO = ComponentShape("index", "when_indexed", 128, 20, 24)
ALWAYS = ComponentShape("conv", "always", 512, 20, 16)


def shape_of(*components: ComponentShape, page_bytes: int = 1024) -> Shape:
    """Memory for the few rooms of an example."""
    return Shape(page_bytes, 64, 56, 64, 12, 10, components)


def shapes(traits: Traits) -> list[Shape]:
    """Every kind of layout that the subject can have, the plainest first."""
    found = [shape_of()]
    if traits.components >= 1:
        found += [shape_of(INDEXED)] if traits.when_indexed else []
        found += [shape_of(ALWAYS)] if traits.always and (traits.components == 1 or not traits.when_indexed) else []
    if traits.components >= 2 and traits.when_indexed:
        found += [shape_of(INDEXED, INDEXED_TOO)]
        found += [shape_of(ALWAYS, INDEXED)] if traits.always else []
    return found


def rich(traits: Traits, page_bytes: int = 1024) -> list[Shape]:
    """One layout with state, if the subject has any, for properties that are not about spellings."""
    if not traits.components:
        return [shape_of(page_bytes=page_bytes)]
    return [shape_of(INDEXED if traits.when_indexed else ALWAYS, page_bytes=page_bytes)]


def forms(spellings: frozenset[Spelling], components: int) -> st.SearchStrategy[Form]:
    """Any spelling that the side allows: whole values, and empty entries beyond the components too."""
    outers = [outer for outer in _OUTERS if outer in spellings and (outer != "flat" or components == 1)]
    entries = [entry for entry in _ENTRIES if allowed(Form("list", (entry,)), spellings | {"list"})]

    def of(outer: Outer) -> st.SearchStrategy[Form]:
        if outer in ("absent", "None", "flat"):
            return st.just(Form(outer))
        beyond = 0 if outer == "mapping" else 1
        listed = st.lists(st.sampled_from(entries), max_size=components + beyond)
        return listed.map(lambda some: Form(outer, tuple(some)))

    return st.sampled_from(outers).flatmap(of)


def plain(spellings: frozenset[Spelling]) -> Form:
    """The spelling of a caller who thinks nothing of it."""
    return Form(next(outer for outer in ("list", "flat", "tuple", "mapping", "iterator", "None", "absent")
                     if outer in spellings))  # fmt: skip


@st.composite
def rooms(draw: Any, traits: Traits, shape: Shape, *, ordinary: bool = True) -> RoomPlan:
    """A room whose callers agree. ordinary: state has indices wherever the layout has state, plainly spelled."""
    chunks = draw(st.lists(st.integers(1, _CHUNK_PAGES_MAX), min_size=1, max_size=3 if traits.chunks else 1))
    if traits.zero_pages and not ordinary and draw(st.integers(0, 7)) == 7:
        chunks = [0]
    indexed = (1, 2) if ordinary else (0, 1, 0, 2)
    counts = {"always": st.just(1), "when_indexed": st.sampled_from(indexed)}
    state = tuple(draw(counts[one.owed]) for one in shape.state)
    if ordinary:
        prefill, decode = plain(traits.prefill_spellings), plain(traits.decode_spellings)
    else:
        prefill = draw(forms(traits.prefill_spellings, len(shape.state)))
        decode = draw(forms(traits.decode_spellings, len(shape.state)))
    return RoomPlan(tuple(chunks), state, prefill, decode, draw(_decode_at(traits, len(chunks))))


def _decode_at(traits: Traits, chunks: int) -> st.SearchStrategy[int]:
    return st.integers(0, chunks + 1) if traits.decode_first else st.just(chunks + 1)


@st.composite
def disagreeing(draw: Any, traits: Traits, shape: Shape, *, ordinary: bool = True) -> RoomPlan:
    """A room whose callers ask for different things: pages, or the indices of a component. ordinary: plainly spelled.

    Where one of them has no indices and the other has some, each spelling of "none" meets each spelling of "some".
    """
    room: RoomPlan = draw(rooms(traits, shape, ordinary=ordinary))
    indexed = [number for number, one in enumerate(shape.state) if one.owed == "when_indexed"]
    if indexed and draw(st.integers(0, 3)):
        number = draw(st.sampled_from(indexed))
        ours, theirs = draw(st.sampled_from(_UNEQUAL))
        return room._replace(state=_with(room.state, number, ours), decode_state=_with(room.state, number, theirs))
    least = 0 if traits.zero_pages and not ordinary else 1
    pages = draw(st.integers(least, room.pages + 2).filter(lambda count: count != room.pages))
    return room._replace(decode_pages=pages)


def _with(counts: tuple[int, ...], number: int, count: int) -> tuple[int, ...]:
    return (*counts[:number], count, *counts[number + 1 :])


def cuts(traits: Traits, kinds: Sequence[Breach], room: RoomPlan, first: int = 0) -> st.SearchStrategy[Cut]:
    """Something that ends the room early, after at least `first` of its calls."""
    sides: dict[Breach, list[Side]] = {
        "abort": [side for side in SIDES if side in traits.aborts],
        "close": list(SIDES),
        "kill": [side for side in SIDES if side in traits.kills],
        "fail": ["prefill"] if traits.failing_writes else [],
    }
    choices = [(kind, side) for kind in kinds for side in sides[kind]]
    calls = len(room.acts())
    return st.builds(
        lambda choice, at: Cut(choice[0], choice[1], at),
        st.sampled_from(choices),
        st.integers(first, max(first, calls)),
    )


@st.composite
def plans(draw: Any, traits: Traits, *of: st.SearchStrategy[RoomPlan], held: bool = False) -> Plan:
    """A plan of these rooms: any order of their calls, pauses between them, writes held back (if wanted)."""
    lives = tuple(draw(one) for one in of)
    calls = sum(len(room.acts()) for room in lives)
    weave = draw(st.lists(st.integers(0, len(lives) - 1), max_size=calls)) if len(lives) > 1 else []
    rests = draw(st.lists(st.integers(0, 6), max_size=calls))
    back = held and traits.held_writes and draw(st.booleans())
    return Plan(lives, tuple(weave), tuple(rests), held=back, seed=seeds(draw, traits))


def seeds(draw: Any, traits: Traits) -> int:
    """The subject's seed, where it has one."""
    return int(draw(st.integers(0, _SEEDS))) if traits.simulated else 0


def noise(subject: Subject) -> st.SearchStrategy[tuple[str, Side, tuple[bytes, ...]]]:
    """What a stranger may say: any bytes, and the subject's own messages cut, changed, repeated, or as they are."""
    choices = []
    for channel in sorted(subject.traits.injects):
        own = [tuple(message) for message in subject.sayings(channel)]
        garbage = st.lists(st.binary(max_size=64), min_size=1, max_size=1 if channel == "notification" else 4)
        said = garbage.map(tuple)
        if own:
            said = st.one_of(said, st.builds(_changed, st.sampled_from(own), st.integers(0, 99), st.binary(max_size=8)))
        # A notification goes to whoever waits for bytes; a stranger calls on the side that listens, and on both here.
        sides: list[Side] = ["decode"] if channel == "notification" else list(SIDES)
        choices.append(st.tuples(st.just(channel), st.sampled_from(sides), said))
    return st.one_of(choices)


def _changed(parts: tuple[bytes, ...], how: int, put: bytes) -> tuple[bytes, ...]:
    """A message with one part cut, replaced, left out, repeated or overwritten; or as it is."""
    parts = tuple(part.replace(b"{room}", b"7000001") for part in parts)
    at, kind = how % len(parts), how // len(parts) % 6
    part = parts[at]
    middle = how % (len(part) + 1)
    others: list[tuple[bytes, ...]] = [
        (part,),
        (part[:middle],),
        (put,),
        (),
        (part, part),
        (part[:middle] + put + part[middle + len(put) :],),
    ]
    return (*parts[:at], *others[kind], *parts[at + 1 :]) or (b"",)
