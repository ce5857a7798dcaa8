"""The links of a decode engine: finding prefill engines, handshakes, and what the end of a connection proves."""

from __future__ import annotations

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.events import LeaseEvent
from ..protocol.events import RoomEvent as On
from ..protocol.failure import Failure, Reason
from ..protocol.layout import differences
from ..protocol.registration import Resolved
from ..protocol.staging import Slots
from ..transport.ports import CloseCause, Closed, Opened
from .core import Link, Ports
from .decode_sources import DecodeSources
from .decode_state import REDIAL_FIRST_S, DecodeLink, DecodeRecord, Grant, Peer, joined
from .timers import Alarm

_PROOFS = (CloseCause.PEER_CLOSED, CloseCause.RESET)
"""Only the peer's kernel closes or resets: its process is gone, unless it said GOODBYE before."""
_REDIAL_MAX_S = 1.0


class DecodeLinks(DecodeSources):
    """The half of a decode core that keeps connections. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._peers: dict[int, Peer] = {}
        self._first_grant = 1

    # -- what the other half does --------------------------------------------------------------------------------

    def _fail(self, record: DecodeRecord, column: On, failure: Failure) -> None:
        """End a room."""
        raise NotImplementedError

    def _lease(self, grant: Grant, event: LeaseEvent) -> None:
        """Step a lease."""
        raise NotImplementedError

    def _send_metadata(self, link: DecodeLink, grant: Grant) -> None:
        """Advertise a grant on a link that is up."""
        raise NotImplementedError

    def _slots_for(self, link: DecodeLink) -> Slots | None:
        """What is said of our staging slots in a handshake."""
        raise NotImplementedError

    # -- links ---------------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        """Take in what the registry has found."""
        busy = False
        for answer in self.registry.poll() if self._tickets else ():
            busy = True
            link = self._tickets.pop(answer.ticket, None)
            if link is None:
                continue
            if isinstance(answer, Resolved):
                self._found(link, answer.registration)
            else:
                self._redial(link, answer.why)
        return busy

    def _reach(self, link: DecodeLink) -> None:
        """Dial what the registry has named, or use the connection that there is."""
        registration, link.found = link.found, None
        assert registration is not None
        link.sought = registration.incarnation
        for other in self._by_target.values():
            reaches = other.incarnation if other.up else other.sought
            if other.connection is not None and not other.dropped and reaches == link.sought:
                if link.share == other.share:
                    self._share(link, other)
                else:
                    self._unlike(link, registration.address)
                return
        link.trouble = f"{registration.address} does not answer"
        link.connection = self.channel.dial(registration.address)
        self._links[link.connection] = link
        self._timers.arm(link, Alarm.HANDSHAKE, self.now + self.settings.handshake_timeout_s)

    def _share(self, link: DecodeLink, other: DecodeLink) -> None:
        """Two targets name one engine, which keeps one connection per peer: the second uses that of the first.

        So do all that use that of the second: what waits at a link is found by its target again when its room ends.
        """
        self._by_target |= {target: other for target, one in self._by_target.items() if one is link}
        held, link.held = link.held, {}
        for grant in held:
            if other.up:
                self._send_metadata(other, grant)
            else:
                other.held[grant] = None
        other.holds.update(link.holds)
        other.sources.update(link.sources)
        if other.up:
            self._linked(other)

    def _unlike(self, link: DecodeLink, address: str) -> None:
        """The engine has a connection for what it is under another name: nothing of this one can go over it."""
        words = f"{address} is registered under two names, and not with the same memory"
        link.sought = 0  # what that engine still has to promise goes over its connection
        self._refused(link, Failure(Reason.HANDSHAKE_REFUSED, words))
        idle = [one for one in self._by_target.values() if one.sources.keys() & link.sources.keys() and self._idle(one)]
        self._tickets = {ticket: one for ticket, one in self._tickets.items() if one not in idle}
        for one in idle:  # whoever opens a room by that name looks for all of its ranks again
            self._timers.disarm(one, Alarm.REDIAL)
            self._let_go_of(one)
        if link not in idle:
            self._redial(link, words)

    def _idle(self, link: DecodeLink) -> bool:
        """Whether a link has no connection, and nothing waits for one."""
        waits = link.held or link.holds or self._awaited(link) or self._owes_aborts(link)
        return link.connection is None and not waits

    def _redial(self, link: DecodeLink, trouble: str) -> None:
        """Try again after a pause, as long as somebody needs the link."""
        link.trouble = trouble
        if not (link.held or link.holds or self._owes_aborts(link) or self._awaited(link)):
            self._unlearn(link)
            self._let_go_of(link)
            return
        self._timers.arm(link, Alarm.REDIAL, self.now + link.backoff_s)
        link.backoff_s = min(link.backoff_s * 2, _REDIAL_MAX_S)

    def _owes_aborts(self, link: DecodeLink) -> bool:
        """Whether grants wait for an answer over this link: it may have taken the place of one that had them."""
        return bool(link.peer is not None and link.peer.grants) or self._owed_by(link.sought)

    def _owed_by(self, incarnation: int) -> bool:
        """See `DecodeSources._owed_by`."""
        peer = self._peers.get(incarnation)
        return peer is not None and bool(peer.grants)

    def _opened(self, event: Opened) -> None:
        link = self._links.get(event.connection)
        if isinstance(link, DecodeLink):
            try:
                slots = self._slots_for(link)
            except WireError as error:  # more runs than anybody plans
                self._refuse(link, (str(error),))
                return
            blob = self.transport.metadata()  # with the slots, if these are new
            self._send(link, wire.Hello(self.name, self.agent, self.layout, self.regions, blob, link.share, slots))
            link.introduced, link.incarnation = True, link.sought

    def _drop(self, link: Link, why: str) -> None:
        """Whoever got our HELLO takes the end of the connection for our death, unless GOODBYE comes first."""
        assert isinstance(link, DecodeLink)
        if link.introduced and not link.up and not link.dropped:
            self._send(link, wire.Goodbye())
        super()._drop(link, why)

    def _handshake(self, link: Link, source: int, target: int, body: wire.Body) -> None:
        assert isinstance(link, DecodeLink)
        match body:
            case wire.Welcome() if source != link.sought:
                # Whoever gives himself out for a peer that we have would speak for the rooms of that peer.
                link.incarnation = source
                self._drop(link, "not the engine that the registry named")
            case wire.Welcome(engine, agent, layout) if target == self.incarnation:
                unequal = differences(self._expected(link), layout)
                if unequal:
                    self._refuse(link, unequal)
                    return
                self._welcomed(link, source, engine, agent)
            case wire.Refuse(words, reason, retryable):
                self._refused(link, Failure.heard(reason, joined(words), retryable))
            case _:
                self._unexpected(link, body)
                self._drop(link, "no handshake")

    def _welcomed(self, link: DecodeLink, incarnation: int, engine: str, agent: str) -> None:
        peer = self._peers.get(incarnation)
        if peer is None:
            peer = Peer(incarnation, engine, agent, self._first_grant, link.number)
            self._peers[incarnation] = peer
        before, link.peer = link.peer, peer
        if before is not None and before is not peer:
            self._retire(before)
        peer.link = link
        self._timers.disarm(peer, Alarm.FENCE)
        link.incarnation, link.engine = incarnation, peer.name
        link.backoff_s = REDIAL_FIRST_S
        self._established(link)
        for grant in list(peer.grants.values()):
            self._lease(grant, LeaseEvent.LINK_UP)
        held, link.held = link.held, {}
        for grant in held:
            self._send_metadata(link, grant)
        self._linked(link)

    def _linked(self, link: DecodeLink) -> None:
        """A link is up."""

    def _refuse(self, link: Link, words: tuple[str, ...]) -> None:
        assert isinstance(link, DecodeLink)
        self._refused(link, Failure(Reason.HANDSHAKE_REFUSED, joined(words)))

    def _refused(self, link: DecodeLink, failure: Failure) -> None:
        """The two engines cannot work together: the rooms of every instance that is behind this link learn why."""
        self._drop(link, "refused")
        for source in link.sources:
            self._give_up(source, failure)

    def _lost(self, link: Link, event: Closed) -> None:
        assert isinstance(link, DecodeLink)
        was_up, link.up, link.introduced = link.up, False, False
        peer = link.peer
        if peer is not None and was_up and peer.link is link:
            peer.link = None
            failure = Failure(Reason.PEER_LOST, f"{peer.name}: {event.cause.value}")
            proof = self._proof(link, peer, event.cause)
            for grant in list(peer.grants.values()):
                self._fail(grant.record, On.PEER_LOST, failure)
                if proof is not None:
                    self._lease(grant, proof)
            if link.last_heard <= peer.fenced_at and proof is None:
                self._timers.arm(peer, Alarm.FENCE, link.last_heard + self.settings.heartbeat_timeout_s)
            self._retire(peer)
        self._unlearn(link)
        link.goodbye = False
        self._redial(link, f"the connection ended: {event.cause.value} {event.detail}")

    def _proof(self, link: DecodeLink, peer: Peer, cause: CloseCause) -> LeaseEvent | None:
        """What the end of a connection proves of its writer: None, it may live and write.

        The orchestrator's word is about a name, which a process that lives may have as well. That one is heard of
        within the heartbeat's limit, or it comes back.
        """
        if cause in _PROOFS and not link.goodbye:
            return LeaseEvent.WRITER_GONE
        silent = self.now - link.last_heard > self.settings.heartbeat_timeout_s
        return LeaseEvent.FENCED if link.last_heard <= peer.fenced_at and silent else None

    def fence(self, engine: str) -> None:
        """The orchestrator says that writers named `engine` were fenced. See `_proof` for one that is connected."""
        for peer in list(self._peers.values()):
            if engine in (peer.name, peer.engine):
                peer.fenced_at = self.now
                self._fenced(peer)

    def _fenced(self, peer: Peer) -> None:
        """A peer that is said to be fenced, and is not connected, writes no more."""
        if peer.link is not None:
            return
        failure = Failure(Reason.PEER_LOST, f"{peer.name} was fenced")
        for grant in list(peer.grants.values()):
            self._fail(grant.record, On.PEER_LOST, failure)
            self._lease(grant, LeaseEvent.FENCED)

    def _left(self, link: Link, undrained: tuple[int, ...]) -> None:
        """GOODBYE of a prefill engine: a promise for every grant but the undrained."""
        assert isinstance(link, DecodeLink)
        peer = link.peer
        if peer is None or peer.link is not link:
            return
        failure = Failure(Reason.PEER_LOST, f"{peer.name} said goodbye", "peer")
        for grant in list(peer.grants.values()):
            self._fail(grant.record, On.PEER_LOST, failure)
            if grant.number not in undrained:
                self._lease(grant, LeaseEvent.ACKED)

    def _retire(self, peer: Peer) -> None:
        """Forget an incarnation that has no connection and no grant left.

        It may live, and come back: it remembers which of our grants are over, so none of their numbers is used again.
        A link may still name an entry that was forgotten before; the one that has taken its place stays.
        """
        if peer.link is None and not peer.grants and self._peers.get(peer.incarnation) is peer:
            del self._peers[peer.incarnation]
            self._timers.disarm(peer, Alarm.FENCE)
            self._first_grant = max(self._first_grant, peer.next_grant)

    def _floor(self, link: Link) -> int:
        assert isinstance(link, DecodeLink)
        return link.peer.floor if link.up and link.peer is not None else 0  # else it is another incarnation's, perhaps
