"""The core of a decode engine: rooms that receive, and the leases of what they exposed."""

from __future__ import annotations

from ..protocol import wire
from ..protocol.events import (
    DEADLINE_REASON,
    Accepted,
    Close,
    Command,
    DecodeEvent,
    Do,
    Fail,
    Landed,
    LeaseEvent,
    Located,
    Timer,
)
from ..protocol.events import RoomEvent as On
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RoomKey
from ..protocol.status import TERMINAL
from ..statemachine.memory import Lease, step_lease
from ..statemachine.rooms import DECODE_ROOM, step_decode
from ..statemachine.table import Kind
from . import account
from .account import Met
from .core import Link, Ports, Record, log_end
from .decode_arrivals import DecodeArrivals
from .decode_state import DecodeLink, DecodeRecord, Grant, Peer, Route, held_of, wanted_from
from .health import Held
from .holds import Hold
from .overdue import late_on_decode
from .timers import Alarm

_FREED = {
    LeaseEvent.FAILED: "it was never advertised to anybody",
    LeaseEvent.LANDED: "all of it has landed",
    LeaseEvent.ACKED: "the writer has promised that it writes no more",
    LeaseEvent.WRITER_GONE: "the writer's process is gone",
    LeaseEvent.FENCED: "the orchestrator has said that the writer was fenced",
}

_TO_LEASES = {Do.LEASE_LANDED: LeaseEvent.LANDED, Do.LEASE_FAILED: LeaseEvent.FAILED,
              Do.LEASE_CLOSED: LeaseEvent.CLOSED}  # fmt: skip
# Every room asks for these; see `statemachine.ledger`.
_ARM, _DISARM, _SEND_METADATA, _REPORT, _FORGET, _FREE = (
    Do.ARM, Do.DISARM, Do.SEND_METADATA, Do.REPORT, Do.FORGET, Do.FREE,
)  # fmt: skip
_IGNORE, _FAIL, _PHASE, _QUARANTINED = Kind.IGNORE, Kind.FAIL, Alarm.PHASE, Lease.QUARANTINED
_CAP, _MOVING, _WAITING = Timer.CAP, Timer.MOVING, Timer.WAITING


class DecodeCore(DecodeArrivals):
    """Rooms that receive. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._rooms: dict[RoomKey, DecodeRecord] = {}
        self._acks: list[tuple[Peer, int]] = []

    # -- what the caller asks (through `submit`) -----------------------------------------------------------------

    def open(self, record: DecodeRecord) -> None:
        """Open a room: its key is not in use, its ranges are the room's alone (the caller has checked both)."""
        record.opened = record.progressed_at = self.now
        self._rooms[record.key] = record
        self._carry_out(record, DECODE_ROOM.initial_commands)
        source = self._source(record.target)
        if source.routes is None:
            source.waiting[record] = None
        else:
            self._located(record, source.routes)
        if self.closing:
            self._fail(record, On.ABORT, Failure(Reason.SHUTDOWN, "the engine is being closed"))

    def _located(self, record: DecodeRecord, routes: tuple[Route, ...]) -> None:
        wanted = [wanted_from(self.layout, route, record.wish) for route in routes]
        record.grants = tuple(
            Grant(record, i, route.target, manifest, to, self.ids.token())
            for i, (route, (manifest, to)) in enumerate(zip(routes, wanted, strict=True))
        )
        record.unreleased = len(record.grants)
        self._step(record, Located(tuple(manifest for manifest, _ in wanted)))

    def abort(self, record: DecodeRecord, failure: Failure) -> None:
        """The caller, or the group, aborts the room. Idempotent."""
        self._fail(record, On.ABORT, failure)

    def close_room(self, record: DecodeRecord) -> None:
        """The caller is finished with the room. Idempotent."""
        if self._rooms.get(record.key) is record:
            self._step(record, Close(), Failure(Reason.ABORTED, "closed by its caller while it was open"))

    # -- rooms ---------------------------------------------------------------------------------------------------

    def _fail(self, record: DecodeRecord, column: On, failure: Failure) -> None:
        self._step(record, Fail(column, failure.reason), failure)

    def _step(self, record: DecodeRecord, event: DecodeEvent, failure: Failure | None = None) -> None:
        before = record.room.phase
        room, row = step_decode(record.room, event)
        record.room = room
        if row.kind is _IGNORE:
            self.counters["room events ignored"] += 1
            if failure is not None and record.failure is not None:
                record.add_context(failure)
            return
        if row.kind is _FAIL:
            record.failure = failure
        elif type(event) is Landed:
            record.progress(self.now)
            self.progressed_at = self.now
        if room.phase not in TERMINAL:
            if room.phase is not before or record.progressed:
                record.watcher.moved(room.phase, record.progressed)
        elif before not in TERMINAL:
            for grant in record.grants:
                self._by_token.pop(grant.token, None)
        self._carry_out(record, row.commands)

    def _carry_out(self, record: DecodeRecord, commands: tuple[Command, ...]) -> None:
        for do, timer in commands:
            if do is _ARM:
                assert timer is not None
                self._arm(record, timer)
            elif do is _DISARM:
                self._timers.disarm(record, Alarm.PHASE)
                self._timers.disarm(record, Alarm.CAP)
            elif do is _SEND_METADATA:
                for grant in record.grants:
                    self._advertise(grant)
            elif do in _TO_LEASES:
                for grant in record.grants:
                    self._lease(grant, _TO_LEASES[do])
                if not record.grants and do is Do.LEASE_FAILED:
                    self._unplaced(record)
            elif do is _REPORT:
                phase = record.room.phase
                record.watcher.ended(phase, record.failure, record.context, self._met(record))
                self.reported = True
                log_end(self.name, record, phase, self._peer_name(record), self.now)
            elif do is _FORGET:
                del self._rooms[record.key]
                record.grants = ()
                record.watcher.forgotten()
            else:
                raise AssertionError(f"{do} is no command of this table")

    def _arm(self, record: DecodeRecord, timer: Timer) -> None:
        settings = record.settings
        if timer is _CAP:
            self._timers.arm(record, Alarm.CAP, self.now + settings.cap_timeout_s)
            return
        if timer is _MOVING:
            seconds = settings.moving_timeout_s
        else:
            seconds = settings.waiting_timeout_s if timer is _WAITING else settings.bootstrap_timeout_s
        record.timer = timer
        self._timers.arm(record, _PHASE, self.now + seconds)

    def _deadline(self, record: DecodeRecord, timer: Timer) -> None:
        source = self._sources.get(record.target)
        unknown = [] if source is None else source.unknown
        detail = late_on_decode(record, timer, self.now, self._by_target, unknown)
        self._fail(record, On.DEADLINE, Failure(DEADLINE_REASON[timer], detail))

    @staticmethod
    def _met(record: DecodeRecord) -> Met | None:
        if record.failure is None:
            return None
        missing = [sender.missing for sender in record.room.ledger.senders]
        return account.met_by_all(list(zip((grant.manifest for grant in record.grants), missing, strict=True)))

    @staticmethod
    def _peer_name(record: DecodeRecord) -> str:
        grants, name = record.grants, record.target.instance or record.target.bootstrap
        if len(grants) > 1:
            return f"{name} ({len(grants)} ranks)"
        return grants[0].peer.name if grants and grants[0].peer is not None else name

    # -- leases --------------------------------------------------------------------------------------------------

    def _lease(self, grant: Grant, event: LeaseEvent) -> None:
        before = grant.lease
        grant.lease, row = step_lease(before, event)
        if grant.lease is _QUARANTINED is not before:
            grant.quarantined_at = self.now
        for do, _timer in row.commands:
            if do is _FREE:
                self._free(grant, event)
            elif do is _ARM:
                settings = self.settings
                grant.retry_s = min(grant.retry_s * 2 or settings.abort_retry_s, settings.abort_retry_max_s)
                self._timers.arm(grant, Alarm.RETRY, self.now + grant.retry_s)
            elif do is _DISARM:
                self._timers.disarm(grant, Alarm.RETRY)
            elif do is Do.SEND_ABORT:
                self._send_abort(grant)
            else:
                raise AssertionError(f"{do} is no command of this table")

    def _advertise(self, grant: Grant) -> None:
        link = self._watch(self._source(grant.record.target), grant.target)
        if link.up and not link.dropped:
            self._send_metadata(link, grant)
        else:
            link.held[grant] = None

    def _send_metadata(self, link: DecodeLink, grant: Grant) -> None:
        peer = link.peer
        assert peer is not None
        record, destination = grant.record, grant.destination
        grant.peer, grant.number = peer, peer.next_grant
        peer.next_grant += 1
        peer.grants[grant.number] = grant
        self._by_token[grant.token] = grant
        self._lease(grant, LeaseEvent.ADVERTISED)
        self._send(
            link,
            wire.Metadata(
                room=record.key.room,
                attempt=record.key.attempt,
                grant=grant.number,
                token=grant.token,
                manifest=grant.manifest,
                pages=wire.pack_indices(destination.pages),
                aux_index=destination.aux_index,
                state=tuple(wire.pack_indices(indices) for indices in destination.state),
                digest=self._digester is not None,
                first_page=destination.first_page if link.share is not None else 0,
                slots=self._lend(link, grant),
            ),
        )

    def _free(self, grant: Grant, event: LeaseEvent) -> None:
        record = grant.record
        self._take_back(grant)
        link = self._by_target.get(grant.target)
        if link is not None:
            link.held.pop(grant, None)
        peer = grant.peer
        if peer is not None:
            peer.grants.pop(grant.number, None)
            self._retire(peer)
        record.unreleased -= 1
        if record.unreleased == 0:
            record.watcher.freed(_FREED[event])

    def _unplaced(self, record: DecodeRecord) -> None:
        """A room has failed before it was known who sends it: nobody was told of its memory."""
        source = self._sources.get(record.target)
        if source is not None:
            source.waiting.pop(record, None)
        record.watcher.freed(_FREED[LeaseEvent.FAILED])

    def _send_abort(self, grant: Grant) -> None:
        peer, failure = grant.peer, grant.record.failure
        assert peer is not None
        if peer.link is not None:
            self._send(peer.link, wire.Abort(grant.number, *(failure or Failure(Reason.PEER_ABORTED)).told))

    # -- input ---------------------------------------------------------------------------------------------------

    def _frame(self, link: Link, body: wire.Body) -> None:
        assert isinstance(link, DecodeLink)
        peer = link.peer
        assert peer is not None
        match body:
            case wire.Accept(number):
                grant = self._known(peer, number, "acceptances")
                if grant is not None:
                    self._step(grant.record, Accepted(grant.sender))
            case wire.Failed(number, reason, detail, retryable):
                self._peer_failed(peer, number, Failure.heard(reason, detail, retryable))
                self._known(peer, number, "failures")
            case wire.Reject(number, reason, detail, retryable):
                self._peer_failed(peer, number, Failure.heard(reason, detail, retryable))
                self._acked(peer, number)
            case wire.HoldLost():
                self._hold_lost(body, link)
            case wire.Ack(number):
                self._acks.append((peer, number))
            case _:
                self._unexpected(link, body)

    def _work(self) -> bool:
        """Take in acknowledgements, after all that may say better why the room of one that is open has failed."""
        acks, self._acks = self._acks, []
        for peer, number in acks:
            self._peer_failed(peer, number, Failure(Reason.PEER_FAILED, "it will not write any more", "peer"))
            self._acked(peer, number)
        if acks:
            self.channel.flush()
        return bool(acks)

    def _known(self, peer: Peer, number: int, what: str) -> Grant | None:
        """The open grant that a peer speaks of. One that is over may have ended while the words were on their way."""
        grant = peer.grants.get(number)
        if grant is None:
            self.counters[f"{what} of no open grant"] += 1
            self._suspect(peer, number)
        return grant

    def _peer_failed(self, peer: Peer, number: int, failure: Failure) -> None:
        grant = peer.grants.get(number)
        if grant is not None and grant.record.room.phase not in TERMINAL:
            self._fail(grant.record, On.PEER_FAILED, failure)

    def _acked(self, peer: Peer, number: int) -> None:
        grant = self._known(peer, number, "acknowledgements")
        if grant is not None:
            self._lease(grant, LeaseEvent.ACKED)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        match alarm, owner:
            case Alarm.PHASE, DecodeRecord(timer=Timer() as timer) as record:
                self._deadline(record, timer)
            case Alarm.CAP, DecodeRecord() as record:
                self._deadline(record, Timer.CAP)
            case Alarm.RETRY, Grant() as grant:
                self._lease(grant, LeaseEvent.RETRY)
            case Alarm.HOLD, Hold() as hold:
                self._renew(hold)
            case Alarm.REDIAL, DecodeLink() as link:
                self._seek(link)
            case Alarm.FENCE, Peer() as peer:
                self._fenced(peer)
            case _:
                raise AssertionError(f"{alarm} of {owner!r}")

    # -- the end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Fail every open room. Their leases end as the peers acknowledge."""
        self.closing = True
        for record in list(self._rooms.values()):
            self._fail(record, On.ABORT, Failure(Reason.SHUTDOWN, "the engine was closed"))

    @property
    def undrained(self) -> int:
        """How many leases are not released."""
        return sum(len(peer.grants) for peer in list(self._peers.values()))

    def open_records(self) -> list[Record]:
        """See `EngineCore.open_records`."""
        return list(self._rooms.values())

    def held(self) -> list[Held]:
        """See `EngineCore.held`: the rooms of which a grant is in quarantine."""
        rooms: dict[DecodeRecord, list[Grant]] = {}
        for peer in list(self._peers.values()):
            for grant in list(peer.grants.values()):
                if grant.lease is Lease.QUARANTINED:
                    rooms.setdefault(grant.record, []).append(grant)
        return [held_of(self.layout, grants) for grants in rooms.values()]

    def tables(self) -> dict[str, int]:
        """See `EngineCore.tables`."""
        return {
            **super().tables(),
            "rooms": len(self._rooms),
            "targets": len(self._by_target.keys() | self._sources.keys()),
            "tokens": len(self._by_token),
            "peers": len(self._peers),
            "grants": self.undrained,
            "tickets": len(self._tickets),
            "holds": len(self._holds),
            "staged": 0 if self._stage is None else self._stage.used,
            "waiting": sum(len(source.waiting) for source in list(self._sources.values())),
        }
