"""The decode side by itself: a room that receives from one to three ranks, and the lease of each grant.

Anything may arrive, in any order, any number of times. The writers are modelled by one bit each, "may it still write?":
memory must come back exactly when that turns to no.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from ...protocol.events import (
    Accepted,
    Close,
    DecodeEvent,
    Do,
    Fail,
    Landed,
    LeaseEvent,
    RoomEvent,
    Timer,
)
from ...protocol.failure import Reason
from ...protocol.layout import Owed
from ...protocol.manifest import Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ..strategies import layouts, manifests
from .facts import PARTS, Facts, Judge
from .room_side import RoomSide

WHO = "decode"
PROOFS = (LeaseEvent.ACKED, LeaseEvent.WRITER_GONE, LeaseEvent.FENCED)
some_manifests = layouts(components=st.sampled_from([1, 2, 0]), owed=[Owed.WHEN_INDEXED]).flatmap(
    lambda layout: st.lists(manifests(layout, pages=2), min_size=1, max_size=3)
)


class Writer:
    """One grant: its lease, and the truth about its writer."""

    def __init__(self) -> None:
        self.lease = memory.LEASE.initial
        self.may_write = False
        self.advertised = False
        self.proof = False
        self.freed = False
        self.retrying = False


class DecodeSide(RoomSide):
    """See the module."""

    NAME: ClassVar[str] = "decode side"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L1", "L2", "L3", "L5", "S1", "S2", "S3", "C1", "C2")

    @initialize(owed=some_manifests, patience=st.integers(0, 12))
    def open(self, owed: Sequence[Manifest], patience: int) -> None:
        """The caller opens the room. patience: so many steps nothing ends it, so that later phases are seen too."""
        self.began = True
        self.patience = patience
        self.facts = Facts(tuple(owed))
        self.judge = Judge(self, self.facts)
        self.room = rooms.decode_room(tuple(owed))
        self.writers = [Writer() for _ in owed]
        self.note(WHO, "call", f"open: {len(owed)} sending ranks owe {', '.join(map(str, owed))}")
        for do, timer in rooms.DECODE_ROOM.initial_commands:
            if do is Do.ARM:
                assert timer is not None
                self.judge.arm(timer)

    # -- what arrives ----------------------------------------------------------------------------------------------

    @rule(rank=st.integers(0, 2))
    def advertise(self, rank: int) -> None:
        """METADATA goes out on a connection that is up; only of a grant whose memory was not freed meanwhile."""
        rank %= len(self.writers)
        if not self.writers[rank].freed:
            self.note(WHO, "message", "METADATA", f"prefill {rank}")
            self._lease(rank, LeaseEvent.ADVERTISED)

    @rule(rank=st.integers(0, 2))
    def accepted(self, rank: int) -> None:
        """ACCEPT arrives."""
        rank %= len(self.writers)
        if self.writers[rank].advertised:
            self._take(Accepted(rank), f"ACCEPT of rank {rank}")

    @rule(at=st.integers(0, 63))
    def landed(self, at: int) -> None:
        """A notification arrives: of one position or of several, new or not."""
        chunks = [chunk for chunk in self.facts.chunks if self.writers[chunk.rank].advertised]
        if chunks:
            chunk = chunks[at % len(chunks)]
            self._take(Landed(*chunk), f"landed: {chunk}")

    @rule(parts=st.sampled_from(PARTS))
    def parts_land(self, parts: frozenset[PartKind]) -> None:
        """Every writer has its METADATA, and writes all that it owes of some parts."""
        for rank in range(len(self.writers)):
            self.advertise(rank)
            self.accepted(rank)
        for chunk in self.facts.chunks:
            if self.writers[chunk.rank].advertised and chunk.part in parts and chunk.items <= self.facts.open:
                self._take(Landed(*chunk), f"landed: {chunk}")

    @rule(owed=some_manifests, patience=st.integers(0, 12))
    @precondition(lambda self: self.facts.closed)
    def open_another(self, owed: Sequence[Manifest], patience: int) -> None:
        """The next room; the last one is closed."""
        self.open(owed, len(self.timeline) + patience)

    @precondition(lambda self: not self.patient)
    @rule()
    def close(self) -> None:
        """The caller is finished with the room; a room that was forgotten hears of nothing any more."""
        if not self.facts.closed:
            self.facts.closed = True
            self._take(Close(), "close")

    # -- what happens to memory ------------------------------------------------------------------------------------

    @precondition(lambda self: not self.patient)
    @rule(rank=st.integers(0, 2), proof=st.sampled_from(PROOFS))
    def proof(self, rank: int, proof: LeaseEvent) -> None:
        """The writer promises, or is proven, to write no more. Its room has failed by then, unless it was done."""
        rank %= len(self.writers)
        if self.writers[rank].advertised:
            reason = Reason.PEER_FAILED if proof is LeaseEvent.ACKED else Reason.PEER_LOST
            column = RoomEvent.PEER_FAILED if proof is LeaseEvent.ACKED else RoomEvent.PEER_LOST
            self._take(Fail(column, reason), f"{proof.name} of rank {rank}")
            self._lease(rank, proof)

    @rule(rank=st.integers(0, 2), event=st.sampled_from([LeaseEvent.LINK_UP, LeaseEvent.RETRY]))
    def insist(self, rank: int, event: LeaseEvent) -> None:
        """The connection is up again, or the pause between two ABORTs is over."""
        rank %= len(self.writers)
        writer = self.writers[rank]
        if event is LeaseEvent.LINK_UP or writer.retrying:
            self._lease(rank, event)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _take(self, event: DecodeEvent, words: str) -> None:
        before, facts = self.room, self.facts
        self.visit("decode room", before.phase, event.KIND)
        self.note(WHO, "message" if isinstance(event, (Accepted, Landed)) else "call", words)
        news = before.phase not in TERMINAL and self._learn(event)
        if isinstance(event, Close) and before.phase not in TERMINAL:
            facts.ended, news = Reason.ABORTED, True
        self.room, row = rooms.step_decode(before, event)
        self.note(WHO, "state", f"{self.room.phase.name}: {', '.join(map(str, row.commands)) or 'nothing'}")
        self.judge.step(before, self.room, row, news)
        for do, _ in row.commands:
            for rank in range(len(self.writers)):
                if do in _TO_LEASES:
                    self._lease(rank, _TO_LEASES[do])
        if before.phase not in TERMINAL and self.room.phase in TERMINAL:
            self._ended()

    def _learn(self, event: DecodeEvent) -> bool:
        """Enter an event in the facts. Whether it says something new."""
        facts = self.facts
        match event:
            case Accepted(sender=rank):
                news = rank not in facts.ranks
                facts.ranks.add(rank)
                return news
            case Landed(sender=rank):
                items = {(rank, event.part, event.component, p) for p in range(event.start, event.stop)}
                news = rank not in facts.ranks or bool(items & facts.open)
                facts.ranks.add(rank)
                facts.open -= items
                return news
            case Fail(reason=reason):
                facts.ended = reason
                return True
        return False

    def _ended(self) -> None:
        """A room has ended: leases that nobody can write to are over, the others' writers are told."""
        for rank, writer in enumerate(self.writers):
            if self.room.phase is Phase.DONE:
                self.check("L5", writer.freed, f"everything has landed, and the memory of grant {rank} is not free")
            elif not writer.advertised:
                self.check("L5", writer.freed, f"grant {rank} was never advertised, and its memory is not free")
            elif writer.may_write:
                self.check("L3", writer.retrying, f"the room failed, and writer {rank} is not told")

    def _lease(self, rank: int, event: LeaseEvent) -> None:
        writer = self.writers[rank]
        self.visit("lease", writer.lease, event)
        writer.lease, row = memory.step_lease(writer.lease, event)
        done = [do for do, _ in row.commands]
        if event is LeaseEvent.ADVERTISED and not writer.freed:
            writer.advertised, writer.may_write = True, True
        over = event in PROOFS or (event is LeaseEvent.LANDED and self.room.phase is Phase.DONE)
        writer.may_write = writer.may_write and not over
        if Do.FREE in done:
            self.check(
                "S3", not writer.may_write, f"{event.name} gives back memory of grant {rank}, whose writer may write"
            )
            self.check("S3", not writer.freed, f"{event.name} gives back the memory of grant {rank} a second time")
            writer.freed = True
        self.check("L5", writer.freed or writer.may_write or not writer.advertised,
                   f"after {event.name} nobody writes for grant {rank}, and its memory is not free")  # fmt: skip
        self._insistence(rank, event, done, [timer for _, timer in row.commands])

    def _insistence(self, rank: int, event: LeaseEvent, done: list[Do], timers: list[Timer | None]) -> None:
        writer = self.writers[rank]
        writer.retrying = (writer.retrying or Timer.ABORT_RETRY in timers) and Do.DISARM not in done
        waits = writer.may_write and self.room.phase is Phase.FAILED
        if event is not LeaseEvent.ADVERTISED:
            self.check(
                "L5",
                not waits or writer.retrying,
                f"grant {rank} waits for an acknowledgement, and nothing asks for it",
            )
        self.check(
            "C1", waits or not writer.retrying, f"the memory of grant {rank} is settled, and its ABORT is repeated"
        )
        if waits and event in (LeaseEvent.FAILED, LeaseEvent.RETRY, LeaseEvent.LINK_UP):
            self.check("L5", Do.SEND_ABORT in done, f"{event.name}: no ABORT of grant {rank} is sent")

    @invariant()
    def every_state_has_exits(self) -> None:
        """L1."""
        if self.began:
            self.judge.exits(rooms.DECODE_ROOM.name, self.room, rooms.step_decode)


_TO_LEASES = {
    Do.LEASE_LANDED: LeaseEvent.LANDED,
    Do.LEASE_FAILED: LeaseEvent.FAILED,
    Do.LEASE_CLOSED: LeaseEvent.CLOSED,
}
