"""The decode engines that a prefill engine serves: handshakes, leases of posting, and the end of a connection."""

from __future__ import annotations

from typing import TypeAlias

from ..protocol import wire
from ..protocol.errors import TransportError, WireError
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.grids import Side
from ..protocol.identity import agent_name
from ..protocol.layout import check_layout, check_regions, differences
from ..protocol.shaped import PairTable
from ..protocol.shares import Covers, Share, check_share, covers_of
from ..protocol.staging import Slots, Staging, check_slots, slot_bytes
from ..transport.ports import CloseCause, Closed, Opened
from .core import EngineCore, Link, Ports, log
from .prefill_state import PrefillPeer
from .staging import Stage, make_stage
from .timers import Alarm

_Terms: TypeAlias = tuple[Share | None, Slots | None, Covers | None, PairTable | None]
_PROOFS = (CloseCause.PEER_CLOSED, CloseCause.RESET)
_UNPROVEN_MAX = 256
"""How many decode engines that went silent are remembered, in case they come back."""
_LOADED_MAX = 16
"""How many of these the transport still knows. Seen with UCX over TCP: each time that a living peer is removed and
added again, the connection of before stays open at both ends until one of the two processes ends."""


class PrefillLinks(EngineCore):
    """The half of a prefill core that keeps connections. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._peers: dict[int, PrefillPeer] = {}
        self._stage: Stage | None = None

    def _void_all(self, peer: PrefillPeer, failure: Failure) -> None:
        """Nothing more is posted for a peer: its rooms fail, its drains are void."""
        raise NotImplementedError

    def _call_up(self, peer: PrefillPeer) -> None:
        """More may be posted to a peer than before: the first grant that was set aside comes to post."""
        raise NotImplementedError

    def _opened(self, event: Opened) -> None:
        link = Link()
        link.connection, link.engine = event.connection, event.address
        self._links[event.connection] = link
        self._timers.arm(link, Alarm.HANDSHAKE, self.now + self.settings.handshake_timeout_s)

    def _handshake(self, link: Link, source: int, target: int, body: wire.Body) -> None:
        if not isinstance(body, wire.Hello):
            self._unexpected(link, body)
            self._drop(link, "no handshake")
            return
        try:
            peer = self._admit(link, source, body)
        except (WireError, TransportError) as error:
            self._refuse(link, (str(error),))
            return
        if peer is None:
            return
        link.incarnation, link.engine = source, body.engine
        peer.link = link
        peer.lease_until = self.now + self.settings.heartbeat_timeout_s
        self._peers[source] = peer
        self._established(link)
        self._send(link, wire.Welcome(self.name, self.agent, self.layout))

    def _admit(self, link: Link, source: int, hello: wire.Hello) -> PrefillPeer | None:
        """The peer of a HELLO that fits; None after refusing it in words. Raises WireError, TransportError."""
        if self.closing:
            self._refuse(link, ("the engine is being closed",), Reason.SHUTDOWN)
            return None
        if hello.share is None:
            unequal = differences(self.layout, hello.layout)
            if unequal:
                self._refuse(link, unequal)
                return None
        check_layout(hello.layout)
        check_regions(hello.layout, hello.regions)
        if source == 0 or hello.agent != agent_name(source):
            raise WireError("hello.agent", f"{hello.agent!r} is not the agent of incarnation {source:016x}")
        peer = self._peers.get(source)
        if peer is None:
            peer = PrefillPeer(source, hello.engine)
        elif peer.table is not None and (peer.regions, peer.layout) != (hello.regions, hello.layout):
            raise WireError("hello.regions", "the same incarnation has described other memory before")
        elif peer.link is not None and peer.link.connection is not None:
            old = peer.link.connection
            self._drop(peer.link, "replaced by a newer connection")
            self._closed(Closed(old, CloseCause.LOCAL, "replaced by a newer connection"))
        terms = self._terms(peer, hello)
        if terms is not None:
            self._unload(peer)  # what it has registered since then can be written to with its new metadata alone
        if peer.table is None:
            peer.table = self.transport.add_peer(hello.agent, hello.blob, hello.layout, hello.regions)
            peer.regions, peer.layout, peer.blob = hello.regions, hello.layout, hello.blob
            peer.broken = peer.suspect = False
        if terms is not None:
            peer.share, peer.staging, peer.covers, peer.pairs = terms
        return peer

    def _terms(self, peer: PrefillPeer, hello: wire.Hello) -> _Terms | None:
        """What we owe this decode rank, as it says itself; checked, and the plans made. None: as before, and of the
        same memory: plans are of the memory that they were made for. Raises WireError.
        """
        share, us = hello.share, self.instance.ranks[self.rank]
        same_memory = (peer.regions, peer.layout) == (hello.regions, hello.layout)
        if same_memory and (share, hello.staging) == (peer.share, peer.staging):
            return None
        if peer.drains:
            raise WireError("hello.share", "the same incarnation has asked for another share, and has grants of it")
        if hello.staging is not None:
            check_slots(hello.staging)
        covers, pairs = None, None
        if share is not None:
            check_share(share, self.layout, hello.layout)
            covers, pairs = covers_of(share, us), self._plans(share, Side(hello.layout, hello.regions), hello.staging)
        return share, hello.staging, covers, pairs

    def _plans(self, share: Share, theirs: Side, slots: Slots | None) -> PairTable:
        """The plans for a share; with staging if that is set, and there is or can be a buffer for it."""
        ours, settings = Side(self.layout, self.regions), self.settings
        if settings.staging_max_slice_bytes and settings.staging_bytes > 1:
            staging = Staging(settings.staging_max_slice_bytes, slot_bytes(settings.staging_bytes))
            pairs = PairTable(ours, theirs, share, staging, slots)
            if pairs.stages and self._stage is None:
                self._stage = make_stage(self.transport, settings.staging_bytes, self.name)
            if self._stage is not None or not pairs.stages:
                return pairs
        return PairTable(ours, theirs, share)

    def _refuse(self, link: Link, words: tuple[str, ...], reason: Reason = Reason.HANDSHAKE_REFUSED) -> None:
        if reason is not Reason.SHUTDOWN:  # that is nobody's fault
            self._complain("a handshake was refused", f"{link.engine}: {'; '.join(words)[:DETAIL_MAX]}")
        self._send(link, wire.Refuse(tuple(word[:DETAIL_MAX] for word in words[:64]), reason, reason.retryable))
        self._drop(link, "refused")

    def _lost(self, link: Link, event: Closed) -> None:
        peer = self._peers.get(link.incarnation)
        if peer is None or peer.link is not link:
            return
        peer.link = None
        peer.gone = event.cause in _PROOFS and not link.goodbye
        self._void_all(peer, Failure(Reason.PEER_LOST, f"{peer.engine}: {event.cause.value}"))
        self._retire(peer)

    def _let_go(self, link: Link, connection: int) -> None:
        """Decode takes the end of our connection for our death and uses its ranges again: not before the last write."""
        peer = self._peers.get(link.incarnation)
        if peer is not None and peer.link is None and (peer.drains or peer.doubtful) and not peer.gone:
            peer.kept.append(connection)
        else:
            self.channel.close(connection)

    def _retire(self, peer: PrefillPeer) -> None:
        """Let go of a peer that has no connection, once none of its writes is in flight.

        Its process may be alive (it went silent, or a network did) and come back as the same incarnation: what it then
        says of grants that we have forgotten is answered as for grants that we never saw.
        """
        if peer.link is not None or peer.drains:
            return
        while peer.kept and (peer.gone or not peer.doubtful):
            self.channel.close(peer.kept.pop())
        if peer.gone or peer.broken:
            self._unload(peer)
        if peer.gone:
            self._peers.pop(peer.incarnation, None)
            return
        absent = [other for other in self._peers.values() if not (other.link or other.drains)]
        for other in [other for other in absent if other.table is not None][:-_LOADED_MAX]:
            self._unload(other)
        if len(self._peers) > _UNPROVEN_MAX:
            for other in [other for other in absent if not other.doubtful][:1]:
                self._unload(other)
                del self._peers[other.incarnation]

    def _unload(self, peer: PrefillPeer) -> None:
        """Let the transport forget a peer; a HELLO makes it known again."""
        if peer.table is not None:
            self.transport.remove_peer(peer.agent)
            peer.table = None

    def _mended(self, peer: PrefillPeer) -> bool:
        """After a failed write: make the peer known to the transport anew, if it lives and none of its writes flies.

        Seen with UCX: once its connection has ended, every later write to the same peer fails as well, though both
        processes are well. Should a write fail again before one has settled, the peer has to introduce itself anew.
        """
        if not peer.answered or peer.posted_bytes or peer.link is None or peer.link.dropped:
            return False
        if peer.suspect:
            self._drop(peer.link, "its writes keep failing")
            return False
        assert peer.regions is not None
        self._unload(peer)
        try:
            peer.table = self.transport.add_peer(peer.agent, peer.blob, peer.layout or self.layout, peer.regions)
        except TransportError as error:
            log.warning("%s: %s cannot be written to any more: %s", self.name, peer.engine, error)
            self._drop(peer.link, "cannot be written to")
            return False
        log.info("%s: writes to %s had failed; it was made known anew", self.name, peer.engine)
        self.counters["peers made known anew"] += 1
        peer.broken, peer.suspect = False, True
        return True

    def _confirmed(self, link: Link) -> None:
        peer = self._peers.get(link.incarnation)
        if peer is not None and peer.link is link:
            peer.lease_until = link.ping_sent + self.settings.heartbeat_timeout_s
            peer.answered = True
            self._call_up(peer)

    def _undrained_of(self, link: Link) -> tuple[int, ...]:
        peer = self._peers.get(link.incarnation)
        return (*peer.drains, *peer.doubtful) if peer is not None and peer.link is link else ()
