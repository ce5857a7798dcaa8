"""Making a broken example smaller, by what makes it shorter to read.

Hypothesis shrinks well where an example costs nothing. Where one that hangs costs seconds, a few steps must do: a room
less, a chunk less, one page, the plain order.
"""

from __future__ import annotations

from collections.abc import Iterator

from .plan import Part, Plan, RoomPlan
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
    yield from _plainly_carried(room, traits)
    for chunks, sends in _fewer(room):
        less, some = (
            room.pages - sum(chunks),
            _with_odd(room, room.pages - sum(chunks))._replace(chunks=chunks, sends=sends),
        )
        if some.decode_pages is None:
            yield _bounded(some, traits)
        elif some.decode_pages > less:
            yield _bounded(some._replace(decode_pages=some.decode_pages - less), traits)
    if traits.decode_first:
        yield room._replace(decode_at=0)
    yield room._replace(cut=None)
    if room.cut is not None and room.cut.verb != "fail":
        yield room._replace(cut=room.cut._replace(then=False))
    if room.acts_max is not None:
        yield room._replace(acts_max=1)
    if room.decode_state is None and room.odd is None:
        yield room._replace(state=tuple(min(count, 1) for count in room.state))
    for form in _plainer(room.prefill_form, traits.prefill_spellings):
        yield room._replace(prefill_form=form)
    for form in _plainer(room.decode_form, traits.decode_spellings):
        yield room._replace(decode_form=form)


def _bounded(room: RoomPlan, traits: Traits) -> RoomPlan:
    """The room with no larger prefix than it has room for."""
    least = 0 if traits.zero_pages else 1
    if room.odd is not None:
        room = room._replace(odd=room.odd._replace(held=min(room.odd.held, max(0, room.odd.pages - least))))
    return room._replace(held=min(room.held, max(0, room.pages_wanted - least)))


def _with_odd(room: RoomPlan, less: int) -> RoomPlan:
    """The room whose odd rank is given fewer pages, too."""
    return room if room.odd is None else room._replace(odd=room.odd._replace(pages=max(1, room.odd.pages - less)))


def _plainly_carried(room: RoomPlan, traits: Traits) -> Iterator[RoomPlan]:
    """A smaller prefix, or none; all layers together, or in the order of the chunks, or in fewer sends."""
    for held in sorted({0, room.held // 2, max(0, room.held - 1)} - {room.held}):
        yield room._replace(held=held)
    if room.odd is not None:
        yield room._replace(odd=room.odd._replace(rank=0))
        yield room._replace(odd=room.odd._replace(held=0))
        yield room._replace(held=0, odd=room.odd._replace(held=0))
        yield _bounded(room._replace(odd=room.odd._replace(pages=max(1, room.odd.pages - 1))), traits)
    if room.short:
        yield _bounded(room._replace(short=0), traits)
    if room.sends:
        yield room._replace(sends=())
        yield room._replace(sends=tuple(sorted(room.sends, key=lambda part: part.chunk)))
        for chunk in sorted({part.chunk for part in room.sends if part.layers}):
            whole = [part for part in room.sends if part.chunk < chunk]
            after = [part for part in room.sends if part.chunk > chunk]
            yield room._replace(sends=(*whole, Part(chunk), *after))


def _fewer(room: RoomPlan) -> Iterator[tuple[tuple[int, ...], tuple[Part, ...]]]:
    """Fewer chunks, or fewer pages in one of them, and the sends of those that are left."""
    chunks, sends = room.chunks, room.sends
    yield (1,), _of(sends, (0,))
    yield (sum(chunks),), _of(sends, (0,))
    for index in range(len(chunks)):
        if len(chunks) > 1:
            left = tuple(one for one in range(len(chunks)) if one != index)
            yield tuple(chunks[one] for one in left), _of(sends, left)
    for index, pages in enumerate(chunks):
        if pages > 1:
            yield (*chunks[:index], pages - 1, *chunks[index + 1 :]), sends


def _of(sends: tuple[Part, ...], chunks: tuple[int, ...]) -> tuple[Part, ...]:
    """The sends of these chunks, which are numbered anew."""
    return tuple(part._replace(chunk=chunks.index(part.chunk)) for part in sends if part.chunk in chunks)


def _plainer(form: Form, spellings: frozenset[Spelling]) -> Iterator[Form]:
    candidates = [Form("list"), Form("list", form.entries), form._replace(entries=form.entries[:1])]
    plain: tuple[Entry, ...] = tuple("list" for _ in form.entries)
    candidates += [form._replace(entries=form.entries[:-1]), form._replace(entries=plain)]
    for candidate in candidates:
        if candidate != form and allowed(candidate, spellings):
            yield candidate
