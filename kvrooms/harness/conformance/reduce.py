"""Making a broken example smaller, by what makes it shorter to read.

Hypothesis shrinks well where an example costs nothing. Where one that hangs costs seconds, a few steps must do: a room
less, a chunk less, one page, the plain order.
"""

from __future__ import annotations

from collections.abc import Iterator

from .plan import Plan, RoomPlan
from .spelling import Entry, Form, allowed
from .subject import Spelling, Traits


def smaller(plan: Plan, traits: Traits) -> Iterator[Plan]:
    """Plans that are a step smaller, the largest steps first."""
    rooms = plan.rooms
    for index in range(len(rooms)):
        if len(rooms) > 1:
            yield plan._replace(rooms=(*rooms[:index], *rooms[index + 1 :]), weave=())
    yield plan._replace(weave=(), rests=())
    yield plan._replace(held=False)
    yield from _quieter(plan)
    for index, room in enumerate(rooms):
        for less in _shorter(room, traits):
            yield plan._replace(rooms=(*rooms[:index], less, *rooms[index + 1 :]))
    yield plan._replace(weave=())
    yield plan._replace(rests=())
    yield plan._replace(seed=0)


def _quieter(plan: Plan) -> Iterator[Plan]:
    """Strangers, and guests, say less."""
    for index, (saying, at) in enumerate(plan.guests):
        rest = plan.guests[:index], plan.guests[index + 1 :]
        yield plan._replace(guests=(*rest[0], *rest[1]))
        if at:
            yield plan._replace(guests=(*rest[0], (saying, at - 1), *rest[1]))
    noise = plan.noise
    for index, (channel, side, parts) in enumerate(noise):
        before, after = noise[:index], noise[index + 1 :]
        yield plan._replace(noise=(*before, *after))
        for shorter in ((b"",), parts[:1], *((part,) for part in parts), (parts[0][: len(parts[0]) // 2], *parts[1:])):
            yield plan._replace(noise=(*before, (channel, side, shorter), *after))


def _shorter(room: RoomPlan, traits: Traits) -> Iterator[RoomPlan]:
    for chunks in _fewer(room.chunks):
        less = room.pages - sum(chunks)
        if room.decode_pages is None:
            yield room._replace(chunks=chunks)
        elif room.decode_pages > less:
            yield room._replace(chunks=chunks, decode_pages=room.decode_pages - less)
    if traits.decode_first:
        yield room._replace(decode_at=0)
    yield room._replace(cut=None)
    if room.cut is not None and room.cut.verb != "fail":
        yield room._replace(cut=room.cut._replace(then=False))
    if room.acts_max is not None:
        yield room._replace(acts_max=1)
    if room.decode_state is None:
        yield room._replace(state=tuple(min(count, 1) for count in room.state))
    for form in _plainer(room.prefill_form, traits.prefill_spellings):
        yield room._replace(prefill_form=form)
    for form in _plainer(room.decode_form, traits.decode_spellings):
        yield room._replace(decode_form=form)


def _fewer(chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield (1,)
    yield (sum(chunks),)
    for index in range(len(chunks)):
        if len(chunks) > 1:
            yield (*chunks[:index], *chunks[index + 1 :])
    for index, pages in enumerate(chunks):
        if pages > 1:
            yield (*chunks[:index], pages - 1, *chunks[index + 1 :])


def _plainer(form: Form, spellings: frozenset[Spelling]) -> Iterator[Form]:
    candidates = [Form("list"), Form("list", form.entries), form._replace(entries=form.entries[:1])]
    plain: tuple[Entry, ...] = tuple("list" for _ in form.entries)
    candidates += [form._replace(entries=form.entries[:-1]), form._replace(entries=plain)]
    for candidate in candidates:
        if candidate != form and allowed(candidate, spellings):
            yield candidate
