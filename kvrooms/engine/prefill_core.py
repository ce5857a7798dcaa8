"""The core of a prefill engine: rooms that send, the drains of what they posted, and the decode engines it serves."""

from __future__ import annotations

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.events import (
    DEADLINE_REASON,
    Bound,
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
from ..protocol.plan import DescriptorTable
from ..protocol.status import TERMINAL, Phase
from ..statemachine.memory import Drain, step_drain
from ..statemachine.rooms import PREFILL_ROOM, step_prefill
from ..statemachine.table import Kind
from . import sends as sending
from .core import Link, Ports, Record, log_end
from .grants import Verdict
from .health import Held
from .parking import Parking
from .prefill_posting import PrefillPosting
from .prefill_state import PrefillPeer, PrefillRecord, Writer, late, met_of
from .sends import Outbox, Send, wanted_of
from .timers import Alarm


class PrefillCore(PrefillPosting):
    """Rooms that send. See `EngineCore`."""

    def __init__(self, ports: Ports, source: DescriptorTable) -> None:
        super().__init__(ports, source)
        self._rooms: dict[RoomKey, PrefillRecord] = {}
        self._parked = Parking(ports.settings)

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
        record.sends.append(send)
        self._step(record, Queued())
        self._declare(record, send)
        if record.room.phase not in TERMINAL:
            for writer in record.writers:
                writer.outbox.put(send)
                self._make_ready(writer)

    def abort(self, record: PrefillRecord, detail: str) -> None:
        """The caller aborts the room. Idempotent."""
        self._fail(record, On.ABORT, Failure(Reason.ABORTED, detail))

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
                counts = sending.too_much(self.layout.component_names, send, wanted)
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
        if row.kind is Kind.IGNORE:
            self.counters["room events ignored"] += 1
            if failure is not None and record.failure is not None:
                record.add_context(failure)
            return
        if row.kind is Kind.FAIL:
            words = "; ".join(room.ledger.disagreement)[:DETAIL_MAX]
            record.failure = failure or Failure(Reason.MISMATCH, words)
        elif isinstance(event, Settled):
            record.progress(self.now)
            self.progressed_at = self.now
        if room.phase in TERMINAL:
            record.sends.clear()
        elif room.phase is not before or record.progressed:
            record.watcher.moved(room.phase, record.progressed)
        self._carry_out(record, row.commands, event)

    def _carry_out(self, record: PrefillRecord, commands: tuple[Command, ...], event: PrefillEvent | None) -> None:
        for do, timer in commands:
            match do:
                case Do.ARM:
                    assert timer is not None
                    self._arm(record, timer)
                case Do.DISARM:
                    self._timers.disarm(record, Alarm.PHASE)
                    self._timers.disarm(record, Alarm.CAP)
                case Do.SEND_ACCEPT:
                    for writer in record.writers:
                        self._tell(writer, wire.Accept(writer.number))
                case Do.SEND_FAILED:
                    self._tell_failed(record)
                case Do.DRAIN_FINISHED:
                    self._each_drain(record, DrainEvent.FINISHED)
                case Do.DRAIN_VOIDED:
                    self._each_drain(record, DrainEvent.VOIDED)
                case Do.REPORT:
                    phase = record.room.phase
                    record.watcher.ended(phase, record.failure, record.context, met_of(record))
                    self.reported = True
                    log_end(self.name, record, phase, self._peer_name(record), self.now)
                    self._maybe_freed(record)  # a room that was never bound has no drain to wait for
                case Do.FORGET:
                    del self._rooms[record.key]
                    record.watcher.forgotten()
                case _:
                    raise AssertionError(f"{do} is no command of this table ({event})")

    def _arm(self, record: PrefillRecord, timer: Timer) -> None:
        settings = record.settings
        if timer is Timer.CAP:
            self._timers.arm(record, Alarm.CAP, self.now + settings.cap_timeout_s)
            return
        seconds = settings.moving_timeout_s if timer is Timer.MOVING else settings.queued_timeout_s
        record.timer, record.armed_at = timer, self.now
        self._timers.arm(record, Alarm.PHASE, self.now + seconds)

    def _deadline(self, record: PrefillRecord, timer: Timer) -> None:
        detail = late(record, timer, self.now, self._peer_name(record))
        self._fail(record, On.DEADLINE, Failure(DEADLINE_REASON[timer], detail))

    @staticmethod
    def _peer_name(record: PrefillRecord) -> str:
        return ", ".join(writer.peer.engine for writer in record.writers) or "a decode engine's METADATA"

    def _tell_failed(self, record: PrefillRecord) -> None:
        failure = record.failure or Failure(Reason.REFUSED, f"{record.key} is already {record.room.phase.value}")
        for writer in record.writers:
            self._tell(writer, wire.Failed(writer.number, failure.reason.mirrored, failure.detail))

    def _tell(self, writer: Writer, body: wire.Body) -> None:
        if writer.peer.link is not None:
            self._send(writer.peer.link, body)

    # -- grants --------------------------------------------------------------------------------------------------

    def _metadata(self, peer: PrefillPeer, body: wire.Metadata) -> None:
        number, key = body.grant, RoomKey(body.room, body.attempt)
        if number in peer.drains or peer.book.verdict(number) is Verdict.OVER:
            self.counters["grants repeated"] += 1
            if number not in peer.drains:
                self._reject(peer, number, Reason.REFUSED, "the grant is void or over")
            return
        try:
            assert peer.regions is not None
            wanted = wanted_of(self.layout, self.regions, peer.regions, body)
        except WireError as error:
            self._over(peer, number)
            self._reject(peer, number, Reason.PROTOCOL, str(error))
            return
        assert peer.table is not None
        outbox = Outbox(self.layout, self._source, peer.table, self.settings.piece_bytes)
        writer = Writer(peer, number, body.token, key, wanted, outbox)
        peer.drains[number] = writer
        self._place(writer)

    def _place(self, writer: Writer) -> None:
        """Give a new grant to its room, or park it until the room is opened."""
        record = self._rooms.get(writer.key)
        if record is not None and record.room.phase not in TERMINAL and record.writers:
            bound = next(iter(record.writers))
            if bound.peer is not writer.peer:
                self._refuse_grant(writer, f"{writer.key} is bound to {bound.peer.engine}")
                return
            if bound.number > writer.number:
                self._refuse_grant(writer, f"{writer.key} is bound to a newer grant ({bound.number})")
                return
            detail = f"decode asked again for {writer.key} (grant {writer.number})"
            self._fail(record, On.PEER_FAILED, Failure(Reason.SUPERSEDED, detail, "peer"))
            record = None
        # A room that is DONE, or was superseded, says nothing to a new grant: that waits for the room's next life.
        if record is None or record.room.phase is Phase.DONE:
            self._park(writer)
        else:
            self._bind(record, writer)

    def _bind(self, record: PrefillRecord, writer: Writer) -> None:
        writer.record = record
        record.writers[writer] = None
        self._step(record, Bound(0, writer.wanted.manifest))
        if record.sends and record.sends[-1].declaration == Declaration() and record.room.phase not in TERMINAL:
            self._declare(record, record.sends[-1])  # not the last one, but it may be too much already
        if record.room.phase not in TERMINAL:
            for send in record.sends:
                writer.outbox.put(send)
            if record.sends:
                self._step(record, Queued())
            self._make_ready(writer)

    def _park(self, writer: Writer) -> None:
        if self.closing or self.draining:
            self._refuse_grant(writer, "the engine is being closed")
            return
        if self._parked.full(writer.peer):
            self._refuse_grant(writer, f"{writer.key} is not open here, and too many such grants wait already")
            return
        for other in [other for other in self._parked.of(writer.key) if other.peer is writer.peer]:
            older, newer = sorted((other, writer), key=lambda one: one.number)
            self._refuse_grant(older, f"decode asked again for {writer.key} (grant {newer.number})")
            if older is writer:
                return
        self._parked.add(writer)
        self._timers.arm(writer, Alarm.PARKED, self.now + self.settings.parked_ttl_s)

    def _unpark(self, writer: Writer) -> None:
        if self._parked.remove(writer):
            self._timers.disarm(writer, Alarm.PARKED)

    def _refuse_grant(self, writer: Writer, detail: str) -> None:
        """A grant without a room is refused; Reject is its acknowledgement too."""
        self._unpark(writer)
        writer.peer.drains.pop(writer.number, None)
        self._over(writer.peer, writer.number)
        self._reject(writer.peer, writer.number, Reason.REFUSED, detail)

    def _reject(self, peer: PrefillPeer, number: int, reason: Reason, detail: str) -> None:
        if peer.link is not None:
            self._send(peer.link, wire.Reject(number, reason, detail[:DETAIL_MAX]))

    def _over(self, peer: PrefillPeer, number: int) -> None:
        peer.book.end(number)
        if peer.book.overfull and peer.link is not None:
            self._drop(peer.link, "too many gaps in its grants")

    def _acknowledge(self, peer: PrefillPeer, number: int) -> None:
        """Promise that nothing of the grant is posted and nothing will land; not if one of its writes has failed."""
        if peer.link is not None and number not in peer.doubtful:
            self._send(peer.link, wire.Ack(number))

    def _aborted(self, peer: PrefillPeer, body: wire.Abort) -> None:
        writer = peer.drains.get(body.grant)
        if writer is None:
            self._over(peer, body.grant)  # also one that was never seen: its METADATA must find it void
            self._acknowledge(peer, body.grant)
            return
        if writer.record is not None:
            self._fail(writer.record, On.PEER_FAILED, Failure(body.reason, body.detail, "peer"))
        self._unpark(writer)
        self._drain(writer, DrainEvent.VOIDED)

    # -- drains --------------------------------------------------------------------------------------------------

    def _void_all(self, peer: PrefillPeer, failure: Failure) -> None:
        for writer in list(peer.drains.values()):
            if writer.record is not None:
                self._fail(writer.record, On.PEER_LOST, failure)
            self._unpark(writer)
            self._drain(writer, DrainEvent.VOIDED)

    def _each_drain(self, record: PrefillRecord, event: DrainEvent) -> None:
        for writer in list(record.writers):
            self._drain(writer, event)

    def _drain(self, writer: Writer, event: DrainEvent) -> None:
        if writer.drain.state is Drain.DRAINED:
            return
        writer.drain, row = step_drain(writer.drain, event)
        if event is DrainEvent.VOIDED:
            writer.voided_at = self.now
        for do, _timer in row.commands:
            match do:
                case Do.SEND_ACK:
                    self._acknowledge(writer.peer, writer.number)
                case Do.FREE:
                    self._drained(writer)
                case _:
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
            record.watcher.freed()

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
            case _:
                self._unexpected(link, body)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        match alarm, owner:
            case Alarm.PHASE, PrefillRecord(timer=Timer.MOVING) as record if self._queued(record):
                self._arm(record, Timer.MOVING)
            case Alarm.PHASE, PrefillRecord(timer=Timer() as timer) as record:
                self._deadline(record, timer)
            case Alarm.CAP, PrefillRecord() as record:
                self._deadline(record, Timer.CAP)
            case Alarm.PARKED, Writer() as writer:
                self._refuse_grant(writer, f"{writer.key} was not opened here within {self.settings.parked_ttl_s} s")
            case _:
                raise AssertionError(f"{alarm} of {owner!r}")

    # -- the end -------------------------------------------------------------------------------------------------

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

    def held(self) -> list[Held]:
        """See `EngineCore.held`: the grants that are void and have writes in flight."""
        writers = [writer for peer in list(self._peers.values()) for writer in list(peer.drains.values())]
        return [writer.held for writer in writers if writer.drain.state is Drain.VOID]

    def tables(self) -> dict[str, int]:
        """See `EngineCore.tables`."""
        return {
            **super().tables(),
            "rooms": len(self._rooms),
            "peers": len(self._peers),
            "grants": self.undrained,
            "void": sum(len(peer.book) for peer in list(self._peers.values())),
            "parked": len(self._parked),
            "ready": len(self._ready),
            "posted": len(self._posted),
        }
