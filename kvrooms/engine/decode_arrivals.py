"""Notifications as a decode engine takes them in: whose they are, what they report, whether it is what was sent."""

from __future__ import annotations

from ..protocol import notify
from ..protocol.errors import WireError
from ..protocol.events import DecodeEvent, Landed
from ..protocol.events import RoomEvent as On
from ..protocol.failure import Failure, Reason
from ..protocol.notify import InSlot, Part, PartKind
from ..statemachine.ledger import within
from .core import Ports
from .decode_staging import DecodeStaging
from .decode_state import DecodeRecord, Grant, Peer
from .digests import Digester


class DecodeArrivals(DecodeStaging):
    """The part of a decode core that learns what has landed. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._by_token: dict[int, Grant] = {}
        self._digester = Digester(ports.layout, ports.regions) if ports.settings.digest else None

    def _step(self, record: DecodeRecord, event: DecodeEvent, failure: Failure | None = None) -> None:
        """Step a room."""
        raise NotImplementedError

    @property
    def listening(self) -> bool:
        """While any grant is held, its room open or not: seen with UCX, a write settles only once its target polls."""
        return bool(self._by_token) or any(peer.grants for peer in self._peers.values())

    def _take_in(self) -> bool:
        busy = False
        if self.listening:
            for agent, message in self.transport.arrivals():
                busy = True
                self._arrival(agent, message)
        return self._answers() or busy

    def _arrival(self, agent: str, message: bytes) -> None:
        try:
            grant_number, token, parts, digests, staged = notify.decode(message)
        except WireError as error:
            self.counters["notifications malformed"] += 1
            self._complain("a malformed notification", error)
            return
        grant = self._by_token.get(token)
        if grant is None or grant.peer is None or grant.number != grant_number or grant.peer.agent != agent:
            self.counters["notifications of no open grant"] += 1
            if grant is not None:
                self._complain("a notification in the name of another's grant", agent)
            for peer in [peer for peer in self._peers.values() if peer.agent == agent]:
                self._suspect(peer, grant_number)
            return
        for i, (kind, component, first, size) in enumerate(parts):
            if not within(grant.manifest, kind, component, first, first + size):
                self._violated(grant, Reason.PROTOCOL, f"{kind.name} positions {first} to {first + size} are not owed")
                return
            if self._digester is not None and not self._intact(grant, parts[i], digests[i : i + 1]):
                return
            if staged is not None:
                self._staged(grant, parts[i], staged)
                return
            self._step(grant.record, Landed(grant.sender, kind, component, first, first + size))

    def _staged(self, grant: Grant, part: Part, staged: InSlot) -> None:
        """A part lies in a slot: what is whole once it is where it belongs has landed."""
        try:
            landed = self._unpacked(grant, part, staged)
        except WireError as error:
            self._violated(grant, Reason.PROTOCOL, str(error))
            return
        for kind, component, first, size in landed:
            self._step(grant.record, Landed(grant.sender, kind, component, first, first + size))
        self._emptied(grant, staged.slot)

    def _intact(self, grant: Grant, part: Part, digest: tuple[bytes, ...]) -> bool:
        """Whether a landed part is what was sent; else its room has failed."""
        assert self._digester is not None
        kind, component, first, size = part
        names = self.layout.component_names
        place = names.index(grant.manifest.state[component][0]) if kind is PartKind.STATE else 0
        items = grant.destination.items(grant.manifest, kind, component, first, first + size)
        if digest == (self._digester.of(kind, place, items),):
            return True
        what = "have another digest than what was sent" if digest else "came without the digest that was asked for"
        self._violated(grant, Reason.CORRUPTED, f"{kind.name} positions {first} to {first + size} {what}")
        return False

    def _violated(self, grant: Grant, reason: Reason, detail: str) -> None:
        """What a notification says of an open grant is not true: its room has failed."""
        assert grant.peer is not None
        self.counters["notifications that are not true"] += 1
        self._complain("a notification that is not true", f"{grant.peer.name}, {grant.record.key}: {detail}")
        self._fail(grant.record, On.VIOLATION, Failure(reason, detail, "peer"))

    def _suspect(self, peer: Peer, number: int) -> None:
        """Words about no open grant: of one that was given they may be late, and nobody's fault."""
        if number >= peer.next_grant:
            self._complain("words about a grant that was never given", f"{peer.name}: grant {number}")
