"""The prefill side: rooms, the grants that they write for and their drains as frozen values, and one turn of them.

The counterpart of `engine.prefill_core` and its halves. What decides is asked of the running code through its module at
every step (`rooms.step_prefill`, `memory.step_drain`, `grants.GrantBook`, `sends.wanted_of`, `sends.too_much`).
"""

from __future__ import annotations

from typing import Any

from ...engine import grants as books
from ...engine import sends
from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.events import (
    DEADLINE_REASON,
    Bound,
    Close,
    Command,
    Declared,
    Do,
    DrainEvent,
    Fail,
    Held,
    Idle,
    PrefillEvent,
    Queued,
    Settled,
    Timer,
)
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Reason
from ...protocol.identity import RoomKey
from ...protocol.manifest import Declaration
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ...statemachine.table import Kind
from .glue import CUT, EOF, Broken, Cells, Effects, Ended, Sent, judge_step
from .prefill_values import PARKED, PrefillSide, Record, Writer, all_posted, armed, following, postable
from .scenario import TOKEN, Plan


class PrefillTurn:
    """One turn. The event is a tuple: what happens, then its arguments; each names a method `on_...`."""

    def __init__(self, plans: tuple[Plan, ...], cells: Cells, side: PrefillSide) -> None:
        self._plans = plans
        self._cells = cells
        self._side = side
        self._records = list(side.records)
        self._writers = list(side.writers)
        self._book = books.GrantBook()
        self._book.floor, self._book._over = side.floor, side.over  # noqa: SLF001 - the book as a value
        self._frames: list[tuple[int, Sent]] = []
        self._posts: list[tuple[int, int]] = []
        self._broken: Broken | None = None

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

    # -- rooms ---------------------------------------------------------------------------------------------------

    def _record(self, at: int) -> Record:
        record = self._records[at]
        assert record is not None
        return record

    def _open(self, at: int) -> bool:
        return self._record(at).room.phase not in TERMINAL

    def _fail(self, at: int, column: On, reason: Reason) -> None:
        self._step(at, Fail(column, reason), reason)

    def _step(self, at: int, event: PrefillEvent, reason: Reason | None = None) -> None:
        record = self._record(at)
        before = record.room
        if before is None:
            return
        room, row = rooms.step_prefill(before, event)
        self._cells.visit(rooms.PREFILL_ROOM, before.phase, event.KIND)
        first = record.last.first
        if row.kind is not Kind.IGNORE and room.phase is Phase.FAILED and before.phase not in TERMINAL:
            first = reason or Reason.MISMATCH
        self._records[at] = record._replace(room=room, last=Ended(room.phase, room.cause, first, record.last.reports))
        if row.kind is not Kind.IGNORE:
            self._carry_out(at, row.commands)
        now = self._record(at)
        self._broken = self._broken or judge_step("the room on prefill", record.last, now.last, armed(now))

    def _carry_out(self, at: int, commands: tuple[Command, ...]) -> None:
        for do, timer in commands:
            record = self._record(at)
            match do:
                case Do.ARM:
                    change = {"cap": True} if timer is Timer.CAP else {"timer": timer}
                    self._records[at] = record._replace(**change)
                case Do.DISARM:
                    self._records[at] = record._replace(cap=False, timer=None)
                case Do.SEND_ACCEPT:
                    self._tell(at, wire.Accept)
                case Do.SEND_FAILED:
                    reason = (record.last.first or Reason.REFUSED).mirrored
                    self._tell(at, lambda number, reason=reason: wire.Failed(number, reason, ""))
                case Do.DRAIN_FINISHED:
                    self._each_drain(at, DrainEvent.FINISHED)
                case Do.DRAIN_VOIDED:
                    self._each_drain(at, DrainEvent.VOIDED)
                case Do.REPORT:
                    if armed(record):
                        self._broken = self._broken or Broken(
                            "C2", "prefill's caller hears the end before the clean-up"
                        )
                    last = record.last._replace(reports=record.last.reports + 1)
                    self._records[at] = record._replace(last=last)
                    self._maybe_freed(at)
                case Do.FORGET:
                    self._records[at] = record._replace(closed=True)
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _tell(self, at: int, body: Any) -> None:
        for writer in self._of(at):
            self._push(Sent(body(writer.number)))

    def _push(self, sent: Sent) -> None:
        if self._side.link or sent.end:
            self._frames.append((0, sent))

    def _declare(self, at: int) -> None:
        """Compare the latest send with what each bound grant wants. As `PrefillCore._declare`."""
        record, plan = self._record(at), self._plans[at]
        send = plan.sends[record.sends - 1]
        declaration, pages = send.declaration, send.first_page + len(send.pages)
        for writer in self._of(at):
            wanted = self._plans[writer.use].bound
            if declaration.pages is None and pages > wanted.pages:
                declaration = Declaration(pages, declaration.aux, declaration.state)
            if declaration.state is None:
                counts = sends.too_much(plan.layout.component_names, send, wanted)
                declaration = Declaration(declaration.pages, declaration.aux, counts)
        if declaration != Declaration():
            self._step(at, Declared(declaration))

    # -- grants --------------------------------------------------------------------------------------------------

    def _key(self, writer: Writer) -> RoomKey | None:
        """The room that a grant is for; None for one that no caller here knows of."""
        return self._plans[writer.use].key if writer.use < len(self._plans) else None

    def _of(self, at: int) -> list[Writer]:
        return [writer for writer in self._writers if writer.record == at]

    def _writer(self, number: int) -> tuple[int, Writer]:
        return next((i, writer) for i, writer in enumerate(self._writers) if writer.number == number)

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
            self._push(Sent(wire.Reject(number, reason, "")))

    def _hold(self, key: RoomKey) -> None:
        for at, record in enumerate(self._records):
            if record is not None and not record.closed and self._plans[at].key == key:
                self._step(at, Held())
                cause = self._record(at).last.first
                if cause is not None:
                    self._push(Sent(wire.HoldLost(*key, cause.mirrored, "")))

    def _aborted(self, number: int, reason: Reason) -> None:
        found = [writer for writer in self._writers if writer.number == number]
        if not found:
            self._book.end(number)
            self._acknowledge(number)
            return
        if found[0].record != PARKED:
            self._fail(found[0].record, On.PEER_FAILED, reason)
        self._drain(number, DrainEvent.VOIDED)

    def _acknowledge(self, number: int) -> None:
        if number not in self._side.doubtful:
            self._push(Sent(wire.Ack(number)))

    def _lost(self, end: str) -> None:
        gone = end == EOF and not self._side.goodbye
        self._side = self._side._replace(link=False, gone=gone, goodbye=False)
        for writer in list(self._writers):
            if writer.record != PARKED:
                self._fail(writer.record, On.PEER_LOST, Reason.PEER_LOST)
            self._drain(writer.number, DrainEvent.VOIDED)
        self._retire()

    def _retire(self) -> None:
        """Once nothing is in flight decode may see the end of its old connection; a dead one is forgotten."""
        side = self._side
        if side.link or self._writers:
            return
        if side.kept and (side.gone or not side.doubtful):
            self._push(Sent(None, end=EOF))
            self._side = side = side._replace(kept=False)
        if side.gone:
            self._book = books.GrantBook()
            self._side = side._replace(doubtful=())

    # -- drains --------------------------------------------------------------------------------------------------

    def _idle_if_so(self, at: int) -> None:
        if self._open(at) and not any(map(self._busy, self._of(at))):
            self._step(at, Idle())

    def _if_kept_back(self, at: int) -> None:
        """The engine looks for what to post in the same turn, and finds a piece that has to wait for the totals."""
        for writer in self._of(at) if self._open(at) and self._record(at).room.phase is not Phase.METADATA else ():
            if following(self._plans, writer, self._record(at)) is not None:
                self._idle_if_so(at)

    def _busy(self, writer: Writer) -> bool:
        return bool(writer.drain.posted) or postable(self._plans, writer, self._record(writer.record))

    def _all_posted(self, writer: Writer) -> bool:
        return all_posted(self._plans, writer, self._record(writer.record))

    def _doubt(self, number: int) -> None:
        self._side = self._side._replace(doubtful=tuple(sorted({*self._side.doubtful, number})))

    def _each_drain(self, at: int, event: DrainEvent) -> None:
        for writer in self._of(at):
            self._drain(writer.number, event)

    def _drain(self, number: int, event: DrainEvent) -> None:
        if not any(writer.number == number for writer in self._writers):
            return
        i, writer = self._writer(number)
        if writer.drain.state is memory.Drain.DRAINED:
            return
        drain, row = memory.step_drain(writer.drain, event)
        self._cells.visit(memory.DRAIN, writer.drain.state, event)
        self._writers[i] = writer._replace(drain=drain)
        for do, _ in row.commands:
            match do:
                case Do.SEND_ACK:
                    self._acknowledge(number)
                case Do.FREE:
                    self._drained(number)
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _drained(self, number: int) -> None:
        _, writer = self._writer(number)
        self._writers = [other for other in self._writers if other.number != number]
        self._book.end(number)
        self._retire()
        if writer.record != PARKED:
            self._maybe_freed(writer.record)

    def _maybe_freed(self, at: int) -> None:
        record = self._record(at)
        if record.room.phase in TERMINAL and not self._of(at):
            self._records[at] = record._replace(freed=True)
