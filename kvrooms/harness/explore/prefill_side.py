"""The prefill side: rooms, the grants that they write for and their drains as frozen values, and one turn of them.

The counterpart of `engine.prefill_core` and its halves. What decides is asked of the running code through its module at
every step (`rooms.step_prefill`, `memory.step_drain`, `grants.GrantBook`, `sends.wanted_of`, `sends.too_much`).
"""

from __future__ import annotations

from typing import Any

from ...engine import grants as books
from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.events import (
    DEADLINE_REASON,
    Bound,
    Close,
    Declared,
    DrainEvent,
    Held,
    Queued,
    Settled,
    Timer,
)
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Reason
from ...protocol.identity import RoomKey
from ...protocol.manifest import Declaration
from ...protocol.status import Phase
from ...statemachine import rooms
from .glue import CUT, EOF, Effects, Ended, Sent
from .prefill_rooms import PrefillRooms
from .prefill_values import PARKED, PrefillSide, Record, Writer
from .scenario import TOKEN


class PrefillTurn(PrefillRooms):
    """One turn. The event is a tuple: what happens, then its arguments; each names a method `on_...`."""

    def take(self, event: tuple[Any, ...]) -> tuple[PrefillSide, Effects]:
        """The side after an event, and what it hands over."""
        getattr(self, f"on_{event[0]}")(*event[1:])
        held = {writer.record for writer in self._writers}
        records = tuple(
            record._replace(room=None) if record and record.closed and record.freed and i not in held else record
            for i, record in enumerate(self._records)
        )
        over = self._book._over  # noqa: SLF001 - the book as a value
        side = self._side._replace(records=records, writers=tuple(self._writers), floor=self._book.floor, over=over)
        return side, Effects(tuple(self._frames), tuple(self._posts), self._broken)

    # -- what the caller does ------------------------------------------------------------------------------------

    def on_open(self, at: int) -> None:
        """The caller opens the room."""
        room = rooms.prefill_room()
        self._records[at] = Record(room, Ended(room.phase, None, None, 0))
        self._carry_out(at, rooms.PREFILL_ROOM.initial_commands)
        self._step(at, Declared(self._plans[at].opening))
        for writer in [w for w in self._writers if w.record == PARKED and self._key(w) == self._plans[at].key]:
            self._place(writer)

    def on_send(self, at: int) -> None:
        """The caller hands over the next chunk."""
        record = self._record(at)
        self._records[at] = record._replace(sends=record.sends + 1)
        self._step(at, Queued())
        self._declare(at)
        self._if_kept_back(at)

    def on_send_too_much(self, at: int) -> None:
        """The caller hands over all that is left and one page more."""
        plan = self._plans[at]
        self._records[at] = self._record(at)._replace(sends=len(plan.sends))
        self._step(at, Queued())
        last = plan.sends[-1]
        assert last.declaration.pages is not None
        more = Declaration(last.declaration.pages + 1, None, last.declaration.state)
        self._step(at, Declared(more))

    def on_fail(self, at: int, column: On, reason: Reason) -> None:
        """Something ends the room: its caller aborts, the engine shuts down."""
        self._fail(at, column, reason)

    def on_close(self, at: int) -> None:
        """The caller is finished with the room."""
        self._step(at, Close(), Reason.ABORTED)

    # -- what the wire brings ------------------------------------------------------------------------------------

    def on_frame(self, sent: Sent) -> None:
        """A frame arrives, or the connection ends."""
        if sent.end:
            self._lost(sent.end)
            return
        self._reached(sent.floor)
        match sent.body:
            case wire.Metadata() as body:
                self._metadata(body, full=False)
            case wire.Abort(number, reason, _):
                self._aborted(number, reason)
            case wire.Hold():
                self._hold(RoomKey(sent.body.room, sent.body.attempt))
            case wire.Goodbye():
                self._side = self._side._replace(goodbye=True)

    def on_full(self, sent: Sent) -> None:
        """A METADATA arrives, and nothing more can wait."""
        assert isinstance(sent.body, wire.Metadata)
        self._reached(sent.floor)
        self._metadata(sent.body, full=True)

    def on_connect(self) -> None:
        """A HELLO arrives and is welcome; an older connection is replaced."""
        if self._side.link:
            self._lost(CUT)
        self._side = self._side._replace(link=True, gone=False, kept=False, goodbye=False)

    def on_silent(self) -> None:
        """Decode has been silent for too long: the connection is given up, but not closed before the last write."""
        undrained = (*(writer.number for writer in self._writers), *self._side.doubtful)
        self._push(Sent(wire.Goodbye(undrained)))
        self._lost(CUT)
        if self._writers or self._side.doubtful:
            self._side = self._side._replace(kept=True)
        else:
            self._push(Sent(None, end=EOF))

    def on_run(self, run: str) -> None:
        """The process stands still or goes on."""
        self._side = self._side._replace(run=run)

    # -- what the transport does ---------------------------------------------------------------------------------

    def on_post(self, number: int) -> None:
        """The next piece of a grant is posted."""
        i, writer = self._writer(number)
        self._writers[i] = writer._replace(taken=writer.taken + 1)
        self._drain(number, DrainEvent.POSTED)
        self._posts.append((writer.use, writer.taken))

    def on_post_error(self, number: int, uncertain: bool) -> None:
        """The next piece of a grant cannot be posted; uncertain: some of it may be under way."""
        i, writer = self._writer(number)
        self._writers[i] = writer._replace(taken=writer.taken + 1)
        if uncertain:
            self._doubt(number)
            self._posts.append((writer.use, writer.taken))
        if writer.record != PARKED:
            self._fail(writer.record, On.POST_ERROR, Reason.SEND_ERROR)

    def on_settled(self, use: int, piece: int, good: bool) -> None:
        """A posted write is over."""
        found = [writer for writer in self._writers if writer.use == use]
        if not found:
            return
        writer = found[0]
        if not good:
            self._doubt(writer.number)
        self._drain(writer.number, DrainEvent.SETTLED)
        if writer.record == PARKED:
            return
        if not good:
            self._fail(writer.record, On.POST_ERROR, Reason.TRANSPORT_ERROR)
            return
        record = self._record(writer.record)
        for kind, component, first, size in self._plans[writer.use].writes(record.sends)[piece].piece.parts:
            self._step(writer.record, Settled(0, kind, component, first, first + size))
        self._idle_if_so(writer.record)

    # -- timers --------------------------------------------------------------------------------------------------

    def on_deadline(self, at: int, timer: Timer) -> None:
        """A deadline of the room passes."""
        self._fail(at, On.DEADLINE, DEADLINE_REASON[timer])

    def on_expired(self, number: int) -> None:
        """A grant has waited for its room for too long."""
        self._refuse(number)

    # -- grants --------------------------------------------------------------------------------------------------

    def _key(self, writer: Writer) -> RoomKey | None:
        """The room that a grant is for; None for one that no caller here knows of."""
        return self._plans[writer.use].key if writer.use < len(self._plans) else None

    def _reached(self, floor: int) -> None:
        self._book.raise_floor(floor)
        doubtful = tuple(number for number in self._side.doubtful if number >= floor)
        self._side = self._side._replace(doubtful=doubtful)

    def _metadata(self, body: wire.Metadata, *, full: bool) -> None:
        number = body.grant
        live = any(writer.number == number for writer in self._writers)
        if live or self._book.verdict(number) is books.Verdict.OVER:
            if not live:
                self._reject(number, Reason.REFUSED)
            return
        use = body.token - TOKEN
        try:
            self._plans[min(use, len(self._plans) - 1)].wanted(body)
        except WireError:
            self._book.end(number)
            self._reject(number, Reason.PROTOCOL)
            return
        writer = Writer(use, number)
        self._writers.append(writer)
        self._place(writer, full=full)

    def _place(self, writer: Writer, *, full: bool = False) -> None:
        keys, wanted = [plan.key for plan in self._plans], self._key(writer)
        at = next((i for i, r in enumerate(self._records) if r and not r.closed and keys[i] == wanted), None)
        if at is not None and self._open(at) and self._of(at):
            bound = self._of(at)[0]
            if bound.number > writer.number:
                self._refuse(writer.number)
                return
            if not self._all_posted(bound):
                self._fail(at, On.PEER_FAILED, Reason.SUPERSEDED)
            at = None
        if at is None or self._record(at).room.phase is Phase.DONE:
            self._park(writer, full=full)
        else:
            self._bind(at, writer)

    def _bind(self, at: int, writer: Writer) -> None:
        i, _ = self._writer(writer.number)
        self._writers[i] = writer._replace(record=at)
        self._step(at, Bound(0, self._plans[writer.use].bound))
        record = self._record(at)
        if record.sends and self._plans[at].sends[record.sends - 1].declaration == Declaration() and self._open(at):
            self._declare(at)
        if self._open(at) and record.sends:
            self._step(at, Queued())
            self._if_kept_back(at)

    def _park(self, writer: Writer, *, full: bool) -> None:
        if full:
            self._refuse(writer.number)
            return
        for other in [w for w in self._writers if w.record == PARKED and w.number != writer.number]:
            if self._key(other) == self._key(writer):
                self._refuse(min(other.number, writer.number))

    def _refuse(self, number: int) -> None:
        self._writers = [writer for writer in self._writers if writer.number != number]
        self._book.end(number)
        self._reject(number, Reason.REFUSED)

    def _reject(self, number: int, reason: Reason) -> None:
        if number not in self._side.doubtful:
            self._push(Sent(wire.Reject(number, reason, "", reason.retryable)))

    def _hold(self, key: RoomKey) -> None:
        for at, record in enumerate(self._records):
            if record is not None and not record.closed and self._plans[at].key == key:
                self._step(at, Held())
                cause = self._record(at).last.first
                if cause is not None:
                    self._push(Sent(wire.HoldLost(*key, cause.mirrored, "", cause.retryable)))

    def _aborted(self, number: int, reason: Reason) -> None:
        found = [writer for writer in self._writers if writer.number == number]
        if not found:
            self._book.end(number)
            self._acknowledge(number)
            return
        if found[0].record != PARKED:
            self._fail(found[0].record, On.PEER_FAILED, reason)
        self._drain(number, DrainEvent.VOIDED)

    def _lost(self, end: str) -> None:
        gone = end == EOF and not self._side.goodbye
        self._side = self._side._replace(link=False, gone=gone, goodbye=False)
        for writer in list(self._writers):
            if writer.record != PARKED:
                self._fail(writer.record, On.PEER_LOST, Reason.PEER_LOST)
            self._drain(writer.number, DrainEvent.VOIDED)
        self._retire()
