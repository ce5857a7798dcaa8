"""The grants of a prefill engine: METADATA taken in, bound to its room, parked, refused, aborted; and holds."""

from __future__ import annotations

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.events import Bound, DrainEvent, Held, Queued
from ..protocol.events import RoomEvent as On
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RANKS_MAX, RoomKey
from ..protocol.manifest import Declaration
from ..protocol.plan import DescriptorTable
from ..protocol.status import TERMINAL, Phase
from .core import Ports
from .grants import Verdict
from .parking import Parking
from .prefill_posting import PrefillPosting
from .prefill_state import PrefillPeer, PrefillRecord, Writer
from .sends import Outbox, Send, Shared, lent_to, wanted_of
from .timers import Alarm


class PrefillGrants(PrefillPosting):
    """The part of a prefill core that knows which grant belongs to which room. See `EngineCore`."""

    def __init__(self, ports: Ports, source: DescriptorTable) -> None:
        super().__init__(ports, source)
        self._rooms: dict[RoomKey, PrefillRecord] = {}
        self._parked = Parking(ports.settings)
        self._holders_max = RANKS_MAX

    def _declare(self, record: PrefillRecord, send: Send) -> None:
        """Compare a send with what each bound rank expects."""
        raise NotImplementedError

    def _metadata(self, peer: PrefillPeer, body: wire.Metadata) -> None:
        number, key = body.grant, RoomKey(body.room, body.attempt)
        if number in peer.drains or peer.book.verdict(number) is Verdict.OVER:
            self.counters["grants repeated"] += 1
            self._complain("a grant that was given before", f"{peer.engine}: grant {number}")
            if number not in peer.drains:
                self._reject(peer, number, Reason.REFUSED, "the grant is void or over")
            return
        try:
            assert peer.regions is not None
            shared = None if peer.covers is None or peer.layout is None else Shared(peer.layout, peer.covers)
            wanted = wanted_of(self.layout, self.regions, peer.regions, body, shared)
            slots = lent_to(body, peer.staging)
        except WireError as error:
            self.counters["grants malformed"] += 1
            self._complain("a grant that does not fit", f"{peer.engine}: {error}")
            self._over(peer, number)
            self._reject(peer, number, Reason.PROTOCOL, str(error))
            return
        assert peer.table is not None
        limit = self.settings.piece_bytes
        outbox = Outbox(self.layout, self._source, peer.table, limit, peer.pairs, lent=bool(slots))
        writer = Writer(peer, number, body.token, key, wanted, outbox, slots)
        peer.drains[number] = writer
        self._place(writer)

    def _place(self, writer: Writer) -> None:
        """Give a new grant to its room, or park it until the room is opened."""
        record = self._rooms.get(writer.key)
        if record is not None and record.room.phase not in TERMINAL:
            stranger = next((one for one in record.writers if _strange(one, writer)), None)
            if stranger is not None:
                self._refuse_grant(writer, f"{writer.key} is bound to {stranger.peer.engine}")
                return
            bound = next((one for one in record.writers if one.receiver == writer.receiver), None)
            if bound is not None:
                if bound.number > writer.number:
                    self._refuse_grant(writer, f"{writer.key} is bound to a newer grant ({bound.number})")
                    return
                if not _all_posted(bound):
                    detail = f"decode asked again for {writer.key} (grant {writer.number})"
                    self._fail(record, On.PEER_FAILED, Failure(Reason.SUPERSEDED, detail, "peer"))
                record = None
        # A room that is DONE or will be, or was superseded, says nothing to a new grant: that waits for its next life.
        if record is None or record.room.phase is Phase.DONE:
            self._park(writer)
        else:
            self._bind(record, writer)

    def _bind(self, record: PrefillRecord, writer: Writer) -> None:
        writer.record = record
        record.writers[writer] = None
        record.holders.pop(writer.peer, None)  # it asks now: what becomes of the room is told to its grant
        self._step(record, Bound(writer.receiver, writer.wanted.manifest, writer.receivers, writer.peer.covers))
        if record.sends and record.sends[-1].declaration == Declaration() and record.room.phase not in TERMINAL:
            self._declare(record, record.sends[-1])  # not the last one, but it may be too much already
        if record.room.phase not in TERMINAL:
            for send in record.sends:
                writer.outbox.put(send)
            if record.sends:
                self._step(record, Queued())
            for bound in record.writers:  # those that came before it have waited for it
                self._make_ready(bound)

    def _park(self, writer: Writer) -> None:
        if self.closing or self.draining:
            self._refuse_grant(writer, "the engine is being closed, or drained: it takes no new rooms")
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
        """Refuse a grant. Decode takes this for an acknowledgement too, so nothing is said of a grant in doubt."""
        if peer.link is not None and number not in peer.doubtful:
            self._send(peer.link, wire.Reject(number, *Failure(reason, detail).told))

    def _over(self, peer: PrefillPeer, number: int) -> None:
        peer.book.end(number)
        if peer.book.overfull and peer.link is not None:
            self._drop(peer.link, "too many gaps in its grants")

    def _acknowledge(self, peer: PrefillPeer, number: int) -> None:
        """Promise that nothing of the grant is posted and nothing will land; not if one of its writes has failed."""
        if peer.link is not None and number not in peer.doubtful:
            self._send(peer.link, wire.Ack(number))

    def _hold(self, peer: PrefillPeer, key: RoomKey) -> None:
        """Decode asks to keep a room. One that is not known may still be opened: nothing is said of it."""
        record = self._rooms.get(key)
        if record is None:
            return
        self._step(record, Held())
        if record.failure is not None:
            self._tell_lost(record, peer, record.failure)
        elif record.room.phase not in TERMINAL and not any(writer.peer is peer for writer in record.writers):
            self._remember(record, peer)

    def _remember(self, record: PrefillRecord, peer: PrefillPeer) -> None:
        """Whoever holds a room is told when it fails. No room has more ranks to ask for it than so many."""
        if len(record.holders) < self._holders_max or peer in record.holders:
            record.holders[peer] = None
            return
        self.counters["holds of too many peers"] += 1
        self._complain("a room is held by too many peers", f"{record.key}, by {peer.engine} too")

    def _tell_holders(self, record: PrefillRecord, failure: Failure) -> None:
        """In the step in which the room fails: its caller may close it next, and then nobody knows of it any more."""
        holders, record.holders = record.holders, {}
        for peer in holders:
            self._tell_lost(record, peer, failure)

    def _tell_lost(self, record: PrefillRecord, peer: PrefillPeer, failure: Failure) -> None:
        if peer.link is not None:
            self._send(peer.link, wire.HoldLost(record.key.room, record.key.attempt, *failure.told))

    def _forget_holder(self, peer: PrefillPeer) -> None:
        """A peer without a connection: it says anew what it holds when it is back."""
        for record in self._rooms.values():
            record.holders.pop(peer, None)

    def _aborted(self, peer: PrefillPeer, body: wire.Abort) -> None:
        writer = peer.drains.get(body.grant)
        if writer is None:
            self._over(peer, body.grant)  # also one that was never seen: its METADATA must find it void
            self._acknowledge(peer, body.grant)
            return
        if writer.record is not None:
            failure = Failure.heard(body.reason, body.detail, body.retryable)
            self._fail(writer.record, On.PEER_FAILED, failure)
        self._unpark(writer)
        self._drain(writer, DrainEvent.VOIDED)


def _strange(bound: Writer, writer: Writer) -> bool:
    """Whether a new grant is of an instance, or of a rank of it, other than those that a room is bound to."""
    if (bound.instance, bound.receivers) != (writer.instance, writer.receivers):
        return True
    return bound.receiver == writer.receiver and bound.peer is not writer.peer


def _all_posted(writer: Writer) -> bool:
    """Whether a grant only has to settle: decode may have all of it, be DONE, and use the room's number again."""
    record = writer.record
    assert record is not None
    return record.room.ledger.declared.complete and not writer.unposted
