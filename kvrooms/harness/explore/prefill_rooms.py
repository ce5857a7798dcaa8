"""The rooms and drains of a prefill side: stepping them, and carrying out what their tables command.

The counterpart of `engine.prefill_core` and `engine.prefill_posting`; `prefill_side` adds what comes from outside. What
decides is asked of the running code through its module at every step (`rooms.step_prefill`, `memory.step_drain`).
"""

from __future__ import annotations

from typing import Any

from ...engine import grants as books
from ...engine import sends
from ...protocol import wire
from ...protocol.events import (
    Command,
    Declared,
    Do,
    DrainEvent,
    Fail,
    Idle,
    PrefillEvent,
    Timer,
)
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ...statemachine.table import Kind
from .glue import EOF, Broken, Cells, Ended, Sent, judge_step
from .prefill_values import PARKED, PrefillSide, Record, Writer, all_posted, armed, following, postable, unposted
from .scenario import Plan


class PrefillRooms:
    """A prefill side during one turn."""

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
        self._untidy: Broken | None = None

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
        broken = judge_step("the room on prefill", record.last, now.last, armed(now))
        self._broken = self._broken or broken or self._untidy

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
                    self._accept(at)
                case Do.SEND_FAILED:
                    reason = (record.last.first or Reason.REFUSED).mirrored
                    self._tell(at, lambda number, reason=reason: wire.Failed(number, reason, "", reason.retryable))
                case Do.DRAIN_FINISHED:
                    self._each_drain(at, DrainEvent.FINISHED)
                case Do.DRAIN_VOIDED:
                    self._each_drain(at, DrainEvent.VOIDED)
                case Do.REPORT:
                    if armed(record):
                        self._untidy = Broken("C2", "prefill's caller hears the end before the clean-up")
                    last = record.last._replace(reports=record.last.reports + 1)
                    self._records[at] = record._replace(last=last)
                    self._maybe_freed(at)
                case Do.FORGET:
                    self._records[at] = record._replace(closed=True)
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _accept(self, at: int) -> None:
        """As `PrefillCore._accept`."""
        complete = self._record(at).room.ledger.declared.complete
        for writer in self._of(at):
            if not writer.accepted and (complete or unposted(self._plans, writer, self._record(at))):
                i, _ = self._writer(writer.number)
                self._writers[i] = writer._replace(accepted=True)
                self._push(Sent(wire.Accept(writer.number)))

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

    def _of(self, at: int) -> list[Writer]:
        return [writer for writer in self._writers if writer.record == at]

    def _writer(self, number: int) -> tuple[int, Writer]:
        return next((i, writer) for i, writer in enumerate(self._writers) if writer.number == number)

    # -- drains --------------------------------------------------------------------------------------------------

    def _acknowledge(self, number: int) -> None:
        if number not in self._side.doubtful:
            self._push(Sent(wire.Ack(number)))

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
