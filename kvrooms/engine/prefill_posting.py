"""Posting: the pieces of all grants, taking turns, each after a look at its lease."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from ..protocol import notify, wire
from ..protocol.errors import TransportError, UncertainWrite
from ..protocol.events import DrainEvent, Idle, PrefillEvent, Settled
from ..protocol.events import RoomEvent as On
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.manifest import Manifest
from ..protocol.notify import InSlot, Part, PartKind
from ..protocol.plan import Descriptors, DescriptorTable, Piece
from ..protocol.status import TERMINAL, Phase
from ..statemachine.memory import Drain
from . import sends as sending
from .core import Ports
from .digests import Digester
from .prefill_links import PrefillLinks
from .prefill_state import Posted, PrefillPeer, PrefillRecord, Writer
from .sends import Send

_BYTES_PER_TURN = 4 * 2**20
# Every room asks for these; see `statemachine.ledger`.
_METADATA, _OPEN, _POSTED, _SETTLED = Phase.METADATA, Drain.OPEN, DrainEvent.POSTED, DrainEvent.SETTLED


class PrefillPosting(PrefillLinks):
    """The part of a prefill core that posts writes and learns that they have settled. See `EngineCore`."""

    def __init__(self, ports: Ports, source: DescriptorTable) -> None:
        super().__init__(ports)
        self._source = source
        self._ready: OrderedDict[Writer, None] = OrderedDict()
        self._posted: dict[int, Posted] = {}
        self._posted_bytes = 0
        self._digester: Digester | None = None

    def _fail(self, record: PrefillRecord, column: On, failure: Failure) -> None:
        """End a room."""
        raise NotImplementedError

    def _step(self, record: PrefillRecord, event: PrefillEvent, failure: Failure | None = None) -> None:
        """Step a room."""
        raise NotImplementedError

    def _drain(self, writer: Writer, event: DrainEvent) -> None:
        """Step a drain."""
        raise NotImplementedError

    def _make_ready(self, writer: Writer) -> None:
        phase = writer.record.room.phase if writer.record is not None else _METADATA
        if not writer.ready and phase is not _METADATA and writer.drain.state is _OPEN:
            writer.ready = True
            self._ready[writer] = None

    def _withdraw(self, writer: Writer) -> None:
        """Nothing more of a grant is posted: it waits for no turn, and whoever waits behind it is called up."""
        if writer.ready:
            writer.ready = writer.called = False
            self._ready.pop(writer, None)
            writer.peer.aside.pop(writer, None)
            self._call_up(writer.peer)

    def _set_aside(self, writer: Writer) -> None:
        """Nothing more may be posted to its peer now. It is not looked at until that changes: others do not pay for it.

        One that was called up in vain is the first again, lest those that have less to post always go before it.
        """
        aside = writer.peer.aside
        aside[writer] = None
        if writer.called:
            aside.move_to_end(writer, last=False)

    def _call_up(self, peer: PrefillPeer) -> None:
        if peer.aside:
            writer, _ = peer.aside.popitem(last=False)
            writer.called = True
            self._ready[writer] = None

    def _work(self) -> bool:
        """Post pieces, taking turns among the grants; after some bytes, look at the ports again.

        Whoever is not set aside calls up the next of its peer: more may be possible there.
        """
        settings, worked, blocked = self.settings, False, 0
        budget = _BYTES_PER_TURN
        while budget > 0 and blocked < len(self._ready) and self._posted_bytes < settings.inflight_bytes:
            writer, _ = self._ready.popitem(last=False)
            piece = writer.outbox.peek(writer.wanted)
            if piece is None or _completes_too_early(writer, piece):
                writer.ready = writer.called = False
                self._call_up(writer.peer)
                if piece is not None:
                    self._idle_if_so(writer.record)
                continue
            if piece.landing is not None and not writer.empty:
                writer.ready = writer.called = False  # until decode has emptied a slot
                self._call_up(writer.peer)
                self.patient = True
                continue
            if not self._may_post(writer.peer, piece.bytes):
                self._set_aside(writer)
                continue
            writer.called = False
            self._call_up(writer.peer)
            self._ready[writer] = None
            if piece.ordered and writer.drain.posted:
                blocked += 1
                continue
            placed = self._place_in_slots(writer, piece)
            if placed is None:
                blocked += 1
                continue
            worked, blocked, self.patient = True, 0, False
            budget -= piece.bytes
            self._post(writer, *placed)
        if worked:
            self.channel.flush()
        return worked

    def _may_post(self, peer: PrefillPeer, size: int) -> bool:
        """The lease check before each post: has decode confirmed lately that it counts us among the living?

        And is it not so far behind already that more would only be in the way of others?
        """
        if peer.broken and not self._mended(peer):
            return False
        fits = peer.posted_bytes + size <= self.settings.inflight_per_peer_bytes or not peer.posted_bytes
        return fits and peer.link is not None and self.clock.now() <= peer.lease_until

    def _place_in_slots(self, writer: Writer, piece: Piece) -> tuple[Piece, int | None, int | None] | None:
        """A piece as it can be posted, with the slot of ours and the slot of decode that it takes. None: it waits.

        It waits until a write to the same decode engine has settled. Where others have all slots of ours, it goes
        without.
        """
        slot, staged, stage = None, piece.staged, self._stage
        if staged is not None:
            if stage is not None and piece.bytes <= stage.slot_bytes:
                slot = stage.take(writer.peer)
                if slot is None and stage.holds(writer.peer):
                    return None
            if stage is None or slot is None:
                piece = staged.direct()._replace(parts=piece.parts, ordered=piece.ordered)
            else:
                address = stage.gather(slot, staged.pack())
                self.counters["pieces gathered"] += 1
                piece = piece._replace(
                    source_memory="DRAM", source_descriptors=_moved(piece.source_descriptors, address)
                )
        filled = None
        if piece.landing is not None and writer.peer.staging is not None:
            filled = writer.empty.pop()
            writer.filled.add(filled)
            address = writer.peer.staging.address + filled * writer.peer.staging.length
            piece = piece._replace(destination_descriptors=_moved(piece.destination_descriptors, address))
        return piece, slot, filled

    def _emptied(self, peer: PrefillPeer, body: wire.Emptied) -> None:
        """Decode has emptied slots of a grant: they may be written to again."""
        writer = peer.drains.get(body.grant)
        for slot in body.slots:
            if writer is None or slot not in writer.filled:
                self.counters["slots emptied that were not filled"] += 1
                continue
            writer.filled.remove(slot)
            writer.empty.append(slot)
            self._make_ready(writer)

    def _unstage(self, writer: Writer, slot: int | None) -> None:
        """A write from a slot is over, or was not posted."""
        if slot is not None and self._stage is not None:
            self._stage.give(writer.peer, slot)

    def _rouse(self, peer: PrefillPeer) -> None:
        """Decode may be asleep on its socket, and neither a notification nor a write wakes it: ring.

        Within half its `linger_s` after it last heard of us it is awake; a needless ring costs more than a write.
        """
        link = peer.link
        quiet_s = self.settings.linger_s / 2
        if link is not None and self.clock.now() - max(peer.last_notified, link.last_sent) > quiet_s:
            self._ring(link)
            self.channel.flush()

    def _post(self, writer: Writer, piece: Piece, slot: int | None, filled: int | None) -> None:
        writer.outbox.take()
        writer.unposted -= sum(part.size for part in piece.parts)
        following = None if piece.parts else writer.outbox.peek(writer.wanted)
        message = self._message(writer, piece, filled)
        if message or (following is not None and following.ordered):
            self._rouse(writer.peer)  # so that it sees the report, or so that these writes settle before the next
        try:
            handle = self.transport.post(writer.peer.agent, piece, message)
        except TransportError as error:
            self._unstage(writer, slot)
            if isinstance(error, UncertainWrite):
                self._doubt(writer)
            if writer.record is not None:
                self._post_error(writer.record, Reason.SEND_ERROR, error)
            return
        if message:
            writer.peer.last_notified = self.clock.now()  # after it: on some transports the post is the copy
        if not writer.drain.posted:
            writer.turn_at = self.now
        self._drain(writer, _POSTED)
        if handle is None:
            self._unstage(writer, slot)
            self._settled(writer, piece, None)
        else:
            self._posted[handle] = Posted(writer, piece, slot)
            self._count_posted(writer, piece.bytes)

    def _post_error(self, record: PrefillRecord, reason: Reason, error: TransportError) -> None:
        if record.failure is None:
            record.error = error
        self._fail(record, On.POST_ERROR, Failure(reason, str(error)[:DETAIL_MAX]))

    def _message(self, writer: Writer, piece: Piece, filled: int | None) -> bytes:
        """The notification of a write; empty where it reports nothing."""
        parts = piece.parts
        if piece.landing is not None and filled is not None:
            part, first, stop = piece.landing
            return notify.encode(writer.number, writer.token, (part,), (), InSlot(filled, first, stop))
        if not parts:
            return b""
        digests: tuple[bytes, ...] = ()
        if writer.wanted.digest:
            assert writer.record is not None
            digests = tuple(self._digest(writer.record.sends, writer.wanted.manifest, part) for part in parts)
        return notify.encode(writer.number, writer.token, parts, digests)

    def _digest(self, sends: list[Send], manifest: Manifest, part: Part) -> bytes:
        kind, component, first, size = part
        names = self.layout.component_names
        place = names.index(manifest.state[component][0]) if kind is PartKind.STATE else 0
        if self._digester is None:
            self._digester = Digester(self.layout, self.regions)
        return self._digester.of(kind, place, sending.sent_items(sends, kind, place, first, first + size))

    def _count_posted(self, writer: Writer, size: int) -> None:
        self._posted_bytes += size
        writer.posted_bytes += size
        writer.peer.posted_bytes += size
        if size < 0:
            self._call_up(writer.peer)

    def _doubt(self, writer: Writer) -> None:
        """A write has failed. Its source is free, but its grant is never acknowledged.

        Seen with UCX over TCP: what a failed write had under way still lands if the peer lives. It lands in ranges that
        decode keeps quarantined, until this process is gone or was fenced.
        """
        peer = writer.peer
        peer.doubtful.add(writer.number)
        self.counters["grants in doubt"] += 1
        if peer.link is not None and not peer.broken:
            self._ring(peer.link)  # is it dead, or only what carried the writes?
        peer.broken, peer.answered = True, False

    def _settled(self, writer: Writer, piece: Piece, error: str | None) -> None:
        record = writer.record
        if error is not None:
            self._doubt(writer)
        self._drain(writer, _SETTLED)
        if record is None:
            return
        if error is not None:
            self._post_error(record, Reason.TRANSPORT_ERROR, TransportError(error))
            return
        writer.peer.suspect = False
        record.bytes += piece.bytes
        for kind, component, first, size in piece.parts:
            self._step(record, Settled(writer.receiver, kind, component, first, first + size))
        self._idle_if_so(record)

    def _idle_if_so(self, record: PrefillRecord | None) -> None:
        """Once all that can be posted has settled, what follows is the caller's turn."""
        if record is not None and record.room.phase not in TERMINAL and not any(map(_busy, record.writers)):
            self._step(record, Idle())

    def _waited_until(self, record: PrefillRecord) -> float:
        """Until when a room has only waited for its turn: until something of it was posted, or others last moved."""
        return max((writer.turn_at for writer in record.writers if writer.drain.posted), default=self.progressed_at)

    @property
    def listening(self) -> bool:
        """Posted writes have to be looked at until they settle."""
        return bool(self._posted)

    def _take_in(self) -> bool:
        busy = False
        if self._posted:
            for handle, error in self.transport.settled():
                busy = True
                writer, piece, slot = self._posted.pop(handle)
                self._unstage(writer, slot)
                self._count_posted(writer, -piece.bytes)
                self._settled(writer, piece, error)
        return busy


def _moved(rows: Descriptors | None, address: int) -> Descriptors:
    """Descriptors that count from an address."""
    assert rows is not None
    moved = rows.copy()
    moved[:, 0] += np.uint64(address)
    return moved


def _busy(writer: Writer) -> bool:
    """Whether something of a grant is posted, or can be."""
    if writer.drain.posted > 0:
        return True
    piece = writer.outbox.peek(writer.wanted)
    return piece is not None and not _completes_too_early(writer, piece)


def _completes_too_early(writer: Writer, piece: Piece) -> bool:
    """Whether decode would be DONE by this piece while prefill's caller may still say that there is more.

    The totals come with the last send at the latest, and decode is not to be DONE before they were compared.
    """
    record = writer.record
    completes = sum(part.size for part in piece.parts) == writer.unposted
    return completes and record is not None and not record.room.ledger.declared.complete
