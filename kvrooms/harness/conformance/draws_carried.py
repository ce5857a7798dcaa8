"""What a room may carry otherwise: a prompt of which decode holds the beginning, layers that are sent apart.

Each takes plans that are drawn already and changes their rooms, so that whatever rooms do meets whatever they carry.
Where nothing is drawn a plan stays as it was: that is what examples shrink to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from .plan import Part, Plan, RoomPlan
from .subject import Shape, Subject, Traits

_SWAPS_MAX = 4


@st.composite
def prefixed(draw: Any, subject: Subject, shape: Shape, base: st.SearchStrategy[Plan]) -> Plan:
    """Plans of which decode holds the first pages, up to all of them; with `Shape.split` they end inside a page."""
    plan: Plan = draw(base)
    rooms = []
    for drawn in plan.rooms:
        room = drawn._replace(split=shape.split)
        if shape.split > 1:
            room = room._replace(short=draw(st.integers(0, shape.split - 1 if room.pages_expected else 0)))
        most = room.pages_wanted if subject.traits.zero_pages else max(0, room.pages_wanted - 1)
        held = draw(st.integers(0, most))
        rooms.append(room._replace(held=most if draw(st.integers(0, 3)) == 3 else held))
    return plan._replace(rooms=tuple(rooms))


@st.composite
def layered(draw: Any, subject: Subject, shape: Shape, base: st.SearchStrategy[Plan]) -> Plan:
    """Plans in which layers of a chunk are sent apart, in any order, and some go ahead of others."""
    plan: Plan = draw(base)
    return plan._replace(rooms=tuple(_apart(draw, subject.traits, shape, room) for room in plan.rooms))


def _apart(draw: Any, traits: Traits, shape: Shape, room: RoomPlan) -> RoomPlan:
    parts: list[Part] = []
    for chunk, pages in enumerate(room.chunks):
        turns = draw(st.lists(st.integers(0, shape.layers - 1), min_size=shape.layers, max_size=shape.layers))
        parts += _parts(chunk, turns if pages else ())
    for at in draw(st.lists(st.integers(0, max(0, len(parts) - 2)), max_size=_SWAPS_MAX)):
        if at + 1 < len(parts) and _independent(*parts[at : at + 2]):
            parts[at : at + 2] = reversed(parts[at : at + 2])
    sends = tuple(parts) if any(part.layers for part in parts) else ()
    more = room._replace(sends=sends)
    if not traits.decode_first:
        return more._replace(decode_at=len(more.parts) + 1)
    if room.cut is None:
        return more._replace(decode_at=draw(st.integers(0, len(more.parts) + 1)))
    return more._replace(cut=room.cut._replace(at=draw(st.integers(room.cut.at, len(more.acts())))))


def _parts(chunk: int, turns: Sequence[int]) -> Iterator[Part]:
    """The sends of one chunk. turns: when the turn of each layer is; layers whose turn is the same go together."""
    if len(set(turns)) < 2:
        yield Part(chunk)
        return
    for turn in sorted(set(turns)):
        yield Part(chunk, tuple(layer for layer, when in enumerate(turns) if when == turn))


def _independent(one: Part, two: Part) -> bool:
    """Whether two sends may change places: a layer goes through the chunks in order."""
    return bool(one.layers and two.layers) and (one.chunk == two.chunk or not set(one.layers) & set(two.layers))
