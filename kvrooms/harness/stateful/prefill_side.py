"""The prefill side by itself: a room that sends to one to three ranks, and the drain of each grant.

Ranks are bound, items declared, writes posted and settled in any order, and anything may end the room. The transport is
modelled by the set of writes in flight: a promise, and memory handed back, must wait until it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from ...protocol.events import (
    Bound,
    Close,
    Declared,
    Do,
    DrainEvent,
    Fail,
    Held,
    Idle,
    PrefillEvent,
    Queued,
    RoomEvent,
    Settled,
)
from ...protocol.failure import Reason
from ...protocol.layout import Layout
from ...protocol.manifest import Declaration, Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ...statemachine.memory import DrainValue
from ..strategies import declarations, layouts, manifests
from .facts import ORDER, PARTS, Chunk, Facts, Judge
from .room_side import RoomSide

WHO = "prefill"
some_layouts = layouts(components=st.sampled_from([1, 2, 0]))
QUIET = (Held(), Queued(), Idle())
"""What says nothing of obligations."""


class SendingFacts(Facts):
    """What is known of a room that sends: also what its caller has declared."""

    def __init__(self, manifests: tuple[Manifest, ...]) -> None:
        super().__init__(manifests)
        self.declared: list[Any] = [None, None, None]

    @property
    def disagrees(self) -> bool:
        """Whether something that is declared is not what a bound rank expects."""
        wanted = [self.manifests[rank] for rank in self.ranks]
        return any(
            ours is not None and ours != theirs
            for one in wanted
            for ours, theirs in zip(self.declared, (one.pages, one.aux, one.state), strict=True)
        )

    def first_open(self) -> Phase:
        """See `Facts.first_open`: what is not declared is open."""
        undeclared = [phase for phase, said in zip(ORDER[1:4], self.declared, strict=True) if said is None]
        return min([*undeclared, super().first_open()], key=ORDER.index)


class Grant:
    """A receiving rank that is bound: its drain, and what is really in flight to it."""

    def __init__(self) -> None:
        self.drain = DrainValue()
        self.flying: list[Chunk] = []
        self.void = False
        self.freed = False
        self.told = False
        self.promised = False


class PrefillSide(RoomSide):
    """See the module."""

    facts: SendingFacts
    NAME: ClassVar[str] = "prefill side"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L1", "L2", "L3", "L5", "S1", "S2", "S3", "C1", "C2", "A1")

    @initialize(data=st.data(), layout=some_layouts, alike=st.booleans(), patience=st.integers(0, 12))
    def open(self, data: st.DataObject, layout: Layout, alike: bool, patience: int) -> None:
        """The caller opens the room; its receivers, if several, may not even agree with each other.

        patience: so many steps nothing ends it, so that later phases are seen too.
        """
        self.began = True
        self.patience = patience
        self.layout = layout
        count = data.draw(st.integers(1, 3), label="receiving ranks")
        some = data.draw(st.lists(manifests(layout, pages=2), min_size=count, max_size=count), label="wanted")
        wanted: Sequence[Manifest] = some[:1] * count if alike else some
        self.facts = SendingFacts(tuple(wanted))
        self.judge = Judge(self, self.facts)
        self.room = rooms.prefill_room(count)
        self.grants: dict[int, Grant] = {}
        self.note(WHO, "call", f"open for {count} receiving ranks that expect {', '.join(map(str, wanted))}")
        for do, timer in rooms.PREFILL_ROOM.initial_commands:
            if do is Do.ARM:
                assert timer is not None
                self.judge.arm(timer)

    # -- what arrives, and what the caller does --------------------------------------------------------------------

    @rule(rank=st.integers(0, 2))
    def bound(self, rank: int) -> None:
        """METADATA arrives; a second one of the same rank too."""
        rank %= len(self.facts.manifests)
        self.grants.setdefault(rank, Grant())
        self._take(Bound(rank, self.facts.manifests[rank]), f"METADATA of rank {rank}")

    @rule(data=st.data(), rank=st.integers(0, 2))
    def declare(self, data: st.DataObject, rank: int) -> None:
        """The caller says more of what it will send, right or wrong."""
        wanted = self.facts.manifests[rank % len(self.facts.manifests)]
        declaration = data.draw(declarations(wanted, self.layout), label="declared")
        self._take(Declared(declaration), f"declared: {declaration}")

    @rule()
    def declare_all(self) -> None:
        """The caller says all that it will send, as the first rank expects it."""
        wanted = self.facts.manifests[0]
        self._take(Declared(Declaration(wanted.pages, wanted.aux, wanted.state)), "declared: all that rank 0 expects")

    @rule()
    def quiet(self) -> None:
        """What says nothing of obligations."""
        for event in QUIET:
            self._take(event, event.KIND.name)

    @precondition(lambda self: not self.patient)
    @rule()
    def close(self) -> None:
        """The caller is finished with the room."""
        if not self.facts.closed:
            self.facts.closed = True
            self._take(Close(), "close")

    @precondition(lambda self: not self.patient)
    @rule(rank=st.integers(0, 2))
    def abort_arrives(self, rank: int) -> None:
        """ABORT of a grant arrives, maybe again: acknowledged as soon as nothing is in flight, and every time."""
        grant = self.grants.get(rank % len(self.facts.manifests))
        if grant is not None:
            self._take(Fail(RoomEvent.PEER_FAILED, Reason.PEER_ABORTED), f"ABORT of rank {rank}")
            grant.promised = False
            self._drain(grant, DrainEvent.VOIDED)
            self.check(
                "L5", grant.promised or bool(grant.flying), "nothing is in flight, and the ABORT is not acknowledged"
            )

    # -- writes ----------------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 63))
    def post(self, at: int) -> None:
        """A write is posted: of a grant that is open, once every rank is bound."""
        if self.room.phase is not Phase.METADATA:
            ready = [c for c in self.facts.chunks if c.rank in self.grants and c.items <= self.facts.open]
            ready = [c for c in ready if self.grants[c.rank].drain.state is memory.Drain.OPEN]
            if ready:
                self._post(ready[at % len(ready)])

    def _post(self, chunk: Chunk) -> None:
        grant = self.grants[chunk.rank]
        grant.flying.append(chunk)
        self.note(WHO, "write", f"posted: {chunk}", f"decode {chunk.rank}")
        self._drain(grant, DrainEvent.POSTED)

    @rule(at=st.integers(0, 63), failed=st.booleans())
    def settle(self, at: int, failed: bool) -> None:
        """A write in flight settles, or ends with an error."""
        flying = [(rank, chunk) for rank, grant in sorted(self.grants.items()) for chunk in grant.flying]
        if flying:
            self._settle(*flying[at % len(flying)], failed=failed)

    def _settle(self, rank: int, chunk: Chunk, *, failed: bool) -> None:
        grant = self.grants[rank]
        grant.flying.remove(chunk)
        self.note("wire", "write", f"{'failed' if failed else 'settled'}: {chunk}")
        self._drain(grant, DrainEvent.SETTLED)
        if failed:
            self._take(Fail(RoomEvent.POST_ERROR, Reason.TRANSPORT_ERROR), f"the write failed: {chunk}")
        else:
            self._take(Settled(*chunk), f"settled: {chunk}")

    @rule(parts=st.sampled_from(PARTS), settles=st.booleans())
    def parts_are_posted(self, parts: frozenset[PartKind], settles: bool) -> None:
        """Every rank is bound, the caller declares, and some parts are posted; they settle, or not yet."""
        for rank in range(len(self.facts.manifests)):
            if self.room.phase is Phase.METADATA:
                self.bound(rank)
        self.declare_all()
        for chunk in self.facts.chunks:
            grant = self.grants.get(chunk.rank)
            wanted = chunk.part in parts and chunk.items <= self.facts.open and self.room.phase is not Phase.METADATA
            if wanted and grant is not None and grant.drain.state is memory.Drain.OPEN:
                self._post(chunk)
                if settles:
                    self._settle(chunk.rank, chunk, failed=False)

    @rule(at=st.integers(0, 63))
    def settled_out_of_place(self, at: int) -> None:
        """What no engine lets happen: a write settles that nobody can have posted. It is ignored."""
        if self.room.phase in (Phase.METADATA, *TERMINAL) and self.facts.chunks:
            chunk = self.facts.chunks[at % len(self.facts.chunks)]
            self._take(Settled(*chunk), f"settled, never posted: {chunk}")

    @precondition(lambda self: self.facts.closed and not any(grant.flying for grant in self.grants.values()))
    @rule(data=st.data(), layout=some_layouts, alike=st.booleans(), patience=st.integers(0, 12))
    def open_another(self, data: st.DataObject, layout: Layout, alike: bool, patience: int) -> None:
        """The next room; the last one is closed."""
        self.open(data, layout, alike, len(self.timeline) + patience)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _take(self, event: PrefillEvent, words: str) -> None:
        before, facts = self.room, self.facts
        self.visit("prefill room", before.phase, event.KIND)
        self.note(WHO, "message" if isinstance(event, Bound) else "call", words)
        news = before.phase not in TERMINAL and self._learn(event)
        self.room, row = rooms.step_prefill(before, event)
        self.note(WHO, "state", f"{self.room.phase.name}: {', '.join(map(str, row.commands)) or 'nothing'}")
        self.judge.step(before, self.room, row, news)
        done = [do for do, _ in row.commands]
        for do in done:
            self._carry_out(do)
        if before.phase in TERMINAL and isinstance(event, Bound):
            self.check("L3", self.grants[event.receiver].told, "a grant came too late, and its rank is not told")
        elif self.room.phase is Phase.FAILED and before.phase not in TERMINAL:
            told = all(grant.told for grant in self.grants.values())
            self.check(
                "A1" if facts.ended is Reason.MISMATCH else "L3", told, "the room failed, and a bound rank is not told"
            )
        if isinstance(event, Bound) and news and self.room.phase is not Phase.FAILED:
            self.check("L2", Do.SEND_ACCEPT in done, "a rank is bound, and no ACCEPT is sent")

    def _carry_out(self, do: Do) -> None:
        grants = list(self.grants.values())
        for grant in grants:
            match do:
                case Do.SEND_FAILED:
                    grant.told = True
                case Do.DRAIN_FINISHED:
                    self._drain(grant, DrainEvent.FINISHED)
                case Do.DRAIN_VOIDED:
                    self._drain(grant, DrainEvent.VOIDED)

    def _learn(self, event: PrefillEvent) -> bool:
        """Enter an event in the facts. Whether it says something new."""
        facts = self.facts
        match event:
            case Bound(receiver=rank):
                news = rank not in facts.ranks
                facts.ranks.add(rank)
            case Declared(declaration=new):
                said = (new.pages, new.aux, new.state)
                merged = [old if item is None else item for old, item in zip(facts.declared, said, strict=True)]
                news = merged != facts.declared
                facts.declared = merged
            case Settled(receiver=rank):
                items = {(rank, event.part, event.component, p) for p in range(event.start, event.stop)}
                news = self.room.phase is not Phase.METADATA and bool(items & facts.open)
                facts.open -= items if news else set()
                return news
            case Fail(reason=reason):
                facts.ended = reason
                return True
            case Close():
                facts.ended = Reason.ABORTED
                return True
            case _:
                return False
        if news and facts.disagrees:
            facts.ended = Reason.MISMATCH
        return news

    def _drain(self, grant: Grant, event: DrainEvent) -> None:
        self.visit("drain", grant.drain.state, event)
        grant.drain, row = memory.step_drain(grant.drain, event)
        done = [do for do, _ in row.commands]
        grant.void = grant.void or event in (DrainEvent.VOIDED, DrainEvent.FINISHED)
        over = grant.void and not grant.flying
        if Do.SEND_ACK in done:
            grant.promised = True
            self.check("S3", over, f"{event.name}: a promise, and {len(grant.flying)} writes are in flight")
        if Do.FREE in done:
            self.check("S3", over, f"{event.name} gives memory back, and {len(grant.flying)} writes read it")
            self.check("S3", not grant.freed, f"{event.name} gives memory back a second time")
            grant.freed = True
        self.check("L5", grant.freed or not over, f"after {event.name} nothing is in flight, and the drain goes on")
        posting = grant.drain.state is memory.Drain.OPEN
        self.check("S3", not (posting and grant.void), "a grant is void, and more may be posted")
        self.check("L2", posting or grant.void, f"after {event.name} nothing may be posted any more, and nothing ended")

    @invariant()
    def every_state_has_exits(self) -> None:
        """L1."""
        if self.began:
            self.judge.exits(rooms.PREFILL_ROOM.name, self.room, rooms.step_prefill)
