"""What an example is: rooms, how each is spelled and cut into chunks, the order of calls, and what goes wrong.

Values only. Memory and room numbers are given out when a plan is played.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from .spelling import PLAIN, Form
from .subject import SIDES, GuestSays, Side

Breach: TypeAlias = Literal["abort", "close", "kill", "fail"]
Verb: TypeAlias = Literal["open", "send", "abort", "close", "kill", "fail", "rest"]


class Act(NamedTuple):
    """One call. side: whose caller; index: of the send, for "send". "rest": let both sides run until all is quiet."""

    verb: Verb
    side: Side = "prefill"
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody wants here


class Cut(NamedTuple):
    """Something that ends a room early. at: how many of its acts were done before (all, if there are fewer).

    "fail": the writes fail from here on. then: whether the caller goes on with the room all the same.
    """

    verb: Breach
    side: Side
    at: int
    then: bool = False


class Part(NamedTuple):
    """One send: of which chunk, and of which layers of it; (): of all."""

    chunk: int
    layers: tuple[int, ...] = ()


class Odd(NamedTuple):
    """One rank of a side whose caller is given something else than those of the others.

    pages: of the whole prompt; held: how many of these decode holds; state: indices per component.
    """

    side: Side
    rank: int
    pages: int
    held: int = 0
    state: tuple[int, ...] = ()


class RoomPlan(NamedTuple):
    """One room. chunks: pages of prefill of each send. decode_pages, decode_state: what decode expects, if not the
    same.

    state: indices per component. decode_at: before which of prefill's calls (open, send, send, ...) decode opens.
    acts_max: the callers do no more than so many calls (they disappear); None: all.
    sends: the sends, where layers of a chunk are sent apart; (): one per chunk. split: how many of decode's pages one
    of prefill's is; short: how many of them the last one lacks. held: how many of its pages decode holds already.
    odd: a rank that is given something else; only in rooms whose pages are of the same size on both sides.
    """

    chunks: tuple[int, ...] = (1,)
    state: tuple[int, ...] = ()
    prefill_form: Form = PLAIN
    decode_form: Form = PLAIN
    decode_at: int = 0
    decode_pages: int | None = None
    decode_state: tuple[int, ...] | None = None
    only: Side | None = None
    acts_max: int | None = None
    cut: Cut | None = None
    sends: tuple[Part, ...] = ()
    split: int = 1
    short: int = 0
    held: int = 0
    odd: Odd | None = None

    @property
    def pages(self) -> int:
        """Pages of the prompt, as prefill sends it."""
        return sum(self.chunks)

    @property
    def pages_expected(self) -> int:
        """Pages of the prompt, in prefill's pages, as decode expects it."""
        return self.pages if self.decode_pages is None else self.decode_pages

    @property
    def pages_wanted(self) -> int:
        """Pages that decode has for the prompt, those that it holds already included."""
        return max(0, self.pages_expected * self.split - self.short)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each send is of."""
        return self.sends or tuple(map(Part, range(len(self.chunks))))

    @property
    def state_wanted(self) -> tuple[int, ...]:
        """Indices per component that decode expects."""
        return self.state if self.decode_state is None else self.decode_state

    @property
    def agrees(self) -> bool:
        """Whether both callers ask for the same."""
        return self.pages == self.pages_expected and self.state == self.state_wanted

    @property
    def even(self) -> bool:
        """Whether all ranks want the same in the end, however much of it each of them holds."""
        return self.odd is None or (self.odd.pages, self.odd.state) == (self.pages, self.state)

    def acts(self, *, barrier: bool = False) -> list[Act]:
        """The calls in order, the cut among them. barrier: rest once both sides are open, so that each knows."""
        prefill = [Act("open"), *(Act("send", "prefill", i) for i in range(len(self.parts)))]
        at = min(self.decode_at, len(prefill))
        acts = [*prefill[:at], Act("open", "decode"), *prefill[at:]]
        if self.only is not None:
            acts = [act for act in acts if act.side == self.only]
        if barrier and self.only is None:
            acts.insert(max(acts.index(Act("open", side)) for side in SIDES) + 1, Act("rest"))
        if self.acts_max is not None:
            acts = acts[: self.acts_max]
        if self.cut is not None:
            at, cut = min(self.cut.at, len(acts)), Act(self.cut.verb, self.cut.side)
            acts = [*acts[:at], cut, *(acts[at:] if self.cut.then else [])]
        return acts


def _cut_size(room: RoomPlan) -> int:
    return (0 if room.cut is None else 2 + room.cut.then) + (room.acts_max or 0)


def _carried_size(room: RoomPlan) -> int:
    """What layers that are sent apart, and a prefix, add to a room that is read."""
    chunks = [part.chunk for part in room.sends]
    ahead = sum(chunks[at] > later for at in range(len(chunks)) for later in chunks[at:])
    size = 2 * len(chunks) + sum(len(part.layers) for part in room.sends) + ahead + room.held + room.short
    return size if room.odd is None else size + 3 + room.odd.pages + room.odd.held + sum(room.odd.state) + room.odd.rank


class Plan(NamedTuple):
    """An example. rooms: those it is about, `weave` says whose turn it is at each step (any number modulo the rooms
    that have calls left; where it ends, the first). rests: for how many moments both sides may run after each step.

    held: writes are held back until all calls are made. noise: what strangers say, as (channel, parts), one between
    each two steps. guests: what a peer that was let in says of the first room, and after how many of its calls.
    deadline: rooms end by their deadlines in this example. lost: whose control messages are lost.
    attempt: a number that is used again is used with its next attempt. seed: of the subject, if it draws anything.
    """

    rooms: tuple[RoomPlan, ...]
    weave: tuple[int, ...] = ()
    rests: tuple[int, ...] = ()
    held: bool = False
    noise: tuple[tuple[Literal["control", "notification"], Side, tuple[bytes, ...]], ...] = ()
    guests: tuple[tuple[GuestSays, int], ...] = ()
    deadline: bool = False
    lost: Side | None = None
    attempt: bool = False
    seed: int = 0

    @property
    def size(self) -> int:
        """How much there is to read in it: the smallest of several counterexamples is shown."""
        size = 10 * len(self.rooms) + sum(self.rests) + sum(map(bool, self.weave)) + 3 * len(self.noise)
        for room in self.rooms:
            size += len(room.chunks) + room.pages + sum(room.state) + room.decode_at + _cut_size(room)
            size += _carried_size(room)
            for form in (room.prefill_form, room.decode_form):
                size += len(form.entries) + (form.outer != "list") + sum(entry != "list" for entry in form.entries)
        size += sum(sum(map(len, parts)) for _, _, parts in self.noise) // 8 + sum(3 + at for _, at in self.guests)
        return size + self.held + self.deadline + (self.lost is not None) + (self.seed > 0)
