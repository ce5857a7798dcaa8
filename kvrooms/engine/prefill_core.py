"""The core of a prefill engine: rooms that send, the drains of what they posted, and the decode engines it serves."""

from __future__ import annotations

from ..protocol import wire
from ..protocol.events import (
    DEADLINE_REASON,
    Close,
    Command,
    Declared,
    Do,
    DrainEvent,
    Fail,
    PrefillEvent,
    Queued,
    Settled,
    Timer,
)
from ..protocol.events import RoomEvent as On
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.identity import RoomKey
from ..protocol.manifest import Declaration
from ..protocol.status import TERMINAL
from ..statemachine.memory import Drain, step_drain
from ..statemachine.rooms import PREFILL_ROOM, step_prefill
from ..statemachine.table import Kind
from . import sends as sending
from .core import Link, Record, log_end
from .health import Held as HeldMemory
from .overdue import late_on_prefill
from .prefill_grants import PrefillGrants
from .prefill_state import PrefillPeer, PrefillRecord, Writer, held_of, met_of
from .sends import Send
from .timers import Alarm

_TO_DRAINS = {Do.DRAIN_FINISHED: DrainEvent.FINISHED, Do.DRAIN_VOIDED: DrainEvent.VOIDED}
# Every room asks for these; see `statemachine.ledger`.
_ARM, _DISARM, _SEND_ACCEPT, _REPORT, _FORGET, _FREE = (
    Do.ARM, Do.DISARM, Do.SEND_ACCEPT, Do.REPORT, Do.FORGET, Do.FREE,
)  # fmt: skip
_IGNORE, _FAIL, _PHASE, _CAP, _MOVING = Kind.IGNORE, Kind.FAIL, Alarm.PHASE, Timer.CAP, Timer.MOVING
_OPEN, _DRAINED, _VOIDED = Drain.OPEN, Drain.DRAINED, DrainEvent.VOIDED


class PrefillCore(PrefillGrants):
    """Rooms that send. See `EngineCore`."""

    # -- what the caller asks (through `submit`) -----------------------------------------------------------------

    def open(self, record: PrefillRecord, declaration: Declaration) -> None:
        """Open a room: its key is not in use (the caller has checked)."""
        record.opened = record.progressed_at = self.now
        self._rooms[record.key] = record
        self._carry_out(record, PREFILL_ROOM.initial_commands, None)
        self._step(record, Declared(declaration))
        if self.closing:
            self._fail(record, On.ABORT, Failure(Reason.SHUTDOWN, "the engine is being closed"))
        for writer in self._parked.of(record.key):
            self._unpark(writer)
            self._place(writer)

    def send(self, record: PrefillRecord, send: Send) -> None:
        """Hand over pages, state and aux of a room. The caller has checked indices, order and totals."""
        if record.room.phase in TERMINAL:
            return
        if send.empty:  # it only says that the caller is there, however often
            record.greeted = False
        else:
            record.sends.append(send)
        self._step(record, Queued())
        self._declare(record, send)
        if record.room.phase not in TERMINAL:
            for writer in record.writers:
                writer.outbox.put(send)
                self._make_ready(writer)

    def abort(self, record: PrefillRecord, failure: Failure) -> None:
        """The caller, or the group, aborts the room. Idempotent."""
        self._fail(record, On.ABORT, failure)

    def close_room(self, record: PrefillRecord) -> None:
        """The caller is finished with the room. Idempotent."""
        if self._rooms.get(record.key) is record:
            self._step(record, Close(), Failure(Reason.ABORTED, "closed by its caller while it was open"))

    def _declare(self, record: PrefillRecord, send: Send) -> None:
        """Compare a send with what each bound rank expects; to have sent more than that is a difference at any time."""
        declaration, pages = send.declaration, send.first_page + len(send.pages)
        for writer in record.writers:
            wanted = writer.wanted.manifest
            if declaration.pages is None and pages > wanted.pages:
                declaration = Declaration(pages, declaration.aux, declaration.state)
            if declaration.state is None:
                counts = sending.too_much(self.layout.component_names, send, wanted, writer.peer.covers)
                declaration = Declaration(declaration.pages, declaration.aux, counts)
        if declaration != Declaration():
            self._step(record, Declared(declaration))

    # -- rooms ---------------------------------------------------------------------------------------------------

    def _fail(self, record: PrefillRecord, column: On, failure: Failure) -> None:
        self._step(record, Fail(column, failure.reason), failure)

    def _step(self, record: PrefillRecord, event: PrefillEvent, failure: Failure | None = None) -> None:
        before = record.room.phase
        room, row = step_prefill(record.room, event)
        record.room = room
        if row.kind is _IGNORE:
            self.counters["room events ignored"] += 1
            if failure is not None and record.failure is not None:
                record.add_context(failure)
            return
        if row.kind is _FAIL:
            words = "; ".join(room.ledger.disagreement)[:DETAIL_MAX]
            record.failure = failure or Failure(Reason.MISMATCH, words)
        elif type(event) is Settled:
            record.progress(self.now)
            self.progressed_at = self.now
        if room.phase in TERMINAL:
            record.sends.clear()
        elif room.phase is not before or record.progressed:
            record.watcher.moved(room.phase, record.progressed)
        self._carry_out(record, row.commands, event)

    def _carry_out(self, record: PrefillRecord, commands: tuple[Command, ...], event: PrefillEvent | None) -> None:
        for do, timer in commands:
            if do is _ARM:
                assert timer is not None
                self._arm(record, timer)
            elif do is _DISARM:
                self._timers.disarm(record, Alarm.PHASE)
                self._timers.disarm(record, Alarm.CAP)
            elif do is _SEND_ACCEPT:
                self._accept(record)
            elif do in _TO_DRAINS:
                self._each_drain(record, _TO_DRAINS[do])
            elif do is _REPORT:
                phase = record.room.phase
                record.watcher.ended(phase, record.failure, record.context, met_of(record))
                self.reported = True
                log_end(self.name, record, phase, self._peer_name(record), self.now)
                self._maybe_freed(record)  # a room that was never bound has no drain to wait for
            elif do is _FORGET:
                del self._rooms[record.key]
                record.watcher.forgotten()
            elif do is Do.SEND_FAILED:
                self._tell_failed(record)
            else:
                raise AssertionError(f"{do} is no command of this table ({event})")

    def _accept(self, record: PrefillRecord) -> None:
        """Tell decode that its grants are bound, each once; see the command."""
        for writer in record.writers:
            if not writer.accepted and (writer.unposted or record.room.ledger.declared.complete):
                writer.accepted = True
                self._tell(writer, wire.Accept(writer.number))

    def _arm(self, record: PrefillRecord, timer: Timer) -> None:
        settings = record.settings
        if timer is _CAP:
            self._timers.arm(record, Alarm.CAP, self.now + settings.cap_timeout_s)
            return
        seconds = settings.moving_timeout_s if timer is _MOVING else settings.queued_timeout_s
        record.timer, record.armed_at = timer, self.now
        self._timers.arm(record, _PHASE, self.now + seconds)

    def _has_waited(self, record: PrefillRecord) -> bool:
        """Whether a room has waited for its turn since its deadline was armed: then that begins with its turn."""
        since = self._waited_until(record)
        if since <= record.armed_at:
            return False
        record.armed_at = since
        self._timers.arm(record, Alarm.PHASE, since + record.settings.moving_timeout_s)
        return True

    def _deadline(self, record: PrefillRecord, timer: Timer) -> None:
        detail = late_on_prefill(record, timer, self.now, self.name)
        self._fail(record, On.DEADLINE, Failure(DEADLINE_REASON[timer], detail))

    @staticmethod
    def _peer_name(record: PrefillRecord) -> str:
        return ", ".join(writer.peer.engine for writer in record.writers) or "a decode engine's METADATA"

    def _tell_failed(self, record: PrefillRecord) -> None:
        failure = record.failure or Failure(Reason.REFUSED, f"{record.key} is already {record.room.phase.value}")
        for writer in record.writers:
            self._tell(writer, wire.Failed(writer.number, *failure.told))
        self._tell_holders(record, failure)

    def _tell(self, writer: Writer, body: wire.Body) -> None:
        if writer.peer.link is not None:
            self._send(writer.peer.link, body)

    # -- drains --------------------------------------------------------------------------------------------------

    def _void_all(self, peer: PrefillPeer, failure: Failure) -> None:
        self._forget_holder(peer)
        for writer in list(peer.drains.values()):
            if writer.record is not None:
                self._fail(writer.record, On.PEER_LOST, failure)
            self._unpark(writer)
            self._drain(writer, DrainEvent.VOIDED)

    def _each_drain(self, record: PrefillRecord, event: DrainEvent) -> None:
        for writer in list(record.writers):
            self._drain(writer, event)

    def _drain(self, writer: Writer, event: DrainEvent) -> None:
        if writer.drain.state is _DRAINED:
            return
        writer.drain, row = step_drain(writer.drain, event)
        if writer.drain.state is not _OPEN:
            self._withdraw(writer)
        if event is _VOIDED:
            writer.voided_at = self.now
        for do, _timer in row.commands:
            if do is _FREE:
                self._drained(writer)
            elif do is Do.SEND_ACK:
                self._acknowledge(writer.peer, writer.number)
            else:
                raise AssertionError(f"{do} is no command of this table")

    def _drained(self, writer: Writer) -> None:
        peer, record = writer.peer, writer.record
        peer.drains.pop(writer.number, None)
        self._over(peer, writer.number)
        self._retire(peer)
        if record is not None:
            record.writers.pop(writer, None)
            self._maybe_freed(record)

    @staticmethod
    def _maybe_freed(record: PrefillRecord) -> None:
        if record.room.phase in TERMINAL and not record.writers and not record.freed:
            record.freed = True
            record.watcher.freed("no write of it is posted, and none will be")

    # -- input ---------------------------------------------------------------------------------------------------

    def _reached(self, link: Link, floor: int) -> None:
        peer = self._peers[link.incarnation]
        peer.book.raise_floor(floor)
        if peer.doubtful:
            peer.doubtful = {number for number in peer.doubtful if number >= floor}

    def _frame(self, link: Link, body: wire.Body) -> None:
        peer = self._peers[link.incarnation]
        match body:
            case wire.Metadata():
                self._metadata(peer, body)
            case wire.Abort():
                self._aborted(peer, body)
            case wire.Hold(room, attempt):
                self._hold(peer, RoomKey(room, attempt))
            case wire.Emptied():
                self._emptied(peer, body)
            case _:
                self._unexpected(link, body)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        match alarm, owner:
            case Alarm.PHASE, PrefillRecord(timer=Timer.MOVING) as record if self._has_waited(record):
                pass
            case Alarm.PHASE, PrefillRecord(timer=Timer() as timer) as record:
                self._deadline(record, timer)
            case Alarm.CAP, PrefillRecord() as record:
                self._deadline(record, Timer.CAP)
            case Alarm.PARKED, Writer() as writer:
                self._refuse_grant(writer, f"{writer.key} was not opened here within {self.settings.parked_ttl_s} s")
            case _:
                raise AssertionError(f"{alarm} of {owner!r}")

    # -- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """See `EngineCore.drain`. Grants for rooms that will never be opened are refused at once."""
        super().drain()
        for writer in self._parked.all():
            self._refuse_grant(writer, "the engine is being drained: it takes no new rooms")

    def shutdown(self) -> None:
        """Fail every open room and refuse what is parked. Posted writes settle by themselves."""
        self.closing = True
        for record in list(self._rooms.values()):
            self._fail(record, On.ABORT, Failure(Reason.SHUTDOWN, "the engine was closed"))
        for writer in self._parked.all():
            self._refuse_grant(writer, "the engine was closed")

    @property
    def undrained(self) -> int:
        """How many grants have writes that have not settled."""
        return sum(len(peer.drains) for peer in list(self._peers.values()))

    def open_records(self) -> list[Record]:
        """See `EngineCore.open_records`."""
        return list(self._rooms.values())

    def held(self) -> list[HeldMemory]:
        """See `EngineCore.held`: the rooms with grants that are void and have writes in flight."""
        rooms: dict[PrefillRecord | Writer, list[Writer]] = {}
        for peer in list(self._peers.values()):
            for writer in list(peer.drains.values()):
                if writer.drain.state is Drain.VOID:
                    rooms.setdefault(writer.record or writer, []).append(writer)
        return [held_of(writers) for writers in rooms.values()]

    def tables(self) -> dict[str, int]:
        """See `EngineCore.tables`."""
        return {
            **super().tables(),
            "rooms": len(self._rooms),
            "peers": len(self._peers),
            "grants": self.undrained,
            "void": sum(len(peer.book) for peer in list(self._peers.values())),
            "parked": len(self._parked),
            "holders": sum(len(record.holders) for record in list(self._rooms.values())),
            "ready": len(self._ready) + sum(len(peer.aside) for peer in list(self._peers.values())),
            "posted": len(self._posted),
            "staged": 0 if self._stage is None else self._stage.used,
        }
