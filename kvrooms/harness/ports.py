"""The simulated ports: transport, control channel, registry, clock and ids of one engine in a `World`."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.errors import PeerGone, TransportError
from ..protocol.layout import Layout, Regions
from ..protocol.plan import Descriptors, DescriptorTable, Piece
from ..protocol.registration import Registration, Resolved, Unresolved
from ..protocol.wire import PREFIX_LENGTH
from ..transport.ports import Arrival, ChannelEvent, CloseCause, Closed, FrameIn, Opened, Settlement

if TYPE_CHECKING:
    from .world import World

_BLOB = b"world:"


class SimClock:
    """The world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """See `Clock.now`."""
        return self._world.now


class SimIds:
    """Numbers drawn from the world's seed."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def incarnation(self) -> int:
        """See `Ids.incarnation`."""
        return self._random.getrandbits(64) | 1

    def token(self) -> int:
        """See `Ids.token`."""
        return self._random.getrandbits(64)


class SimRegistry:
    """The world's one registry, whatever its URL."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._answers: list[Resolved | Unresolved] = []

    def lookup(self, bootstrap: str, instance: str, rank: int) -> int:
        """See `Registry.lookup`."""
        ticket = self._world.number()
        self._world.later(self, lambda: self._answer(ticket, bootstrap, instance, rank))
        return ticket

    def _answer(self, ticket: int, bootstrap: str, instance: str, rank: int) -> None:
        known = [
            registration
            for (url, name), registration in self._world.registry.items()
            if url == bootstrap and instance in ("", name) and registration.rank == rank
        ]
        if len(known) == 1:
            self._answers.append(Resolved(ticket, known[0]))
        else:
            self._answers.append(Unresolved(ticket, f"{len(known)} engines fit {instance!r} rank {rank}"))
        self._world.wake()

    def poll(self) -> Sequence[Resolved | Unresolved]:
        """See `Registry.poll`."""
        answers, self._answers = self._answers, []
        return answers

    def announce(self, bootstrap: str, registration: Registration) -> None:
        """See `Registry.announce`."""
        self._world.registry[bootstrap, registration.instance] = registration

    def withdraw(self, bootstrap: str, registration: Registration) -> None:
        """See `Registry.withdraw`."""
        self._world.registry.pop((bootstrap, registration.instance), None)


class _End(NamedTuple):
    channel: SimChannel
    connection: int


class SimChannel:
    """Connections between the world's channels. A frame is delivered some time after it was flushed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events: list[ChannelEvent] = []
        self._far: dict[int, _End] = {}
        self._queued: list[tuple[int, bytes]] = []
        self._address = ""
        self.dead = False

    def listen(self) -> str:
        """Take connections from now on; the address."""
        self._address = f"world:{self._world.number()}"
        self._world.listeners[self._address] = self
        return self._address

    def dial(self, address: str) -> int:
        """See `ControlChannel.dial`."""
        connection = self._world.number()
        self._world.later((self, connection), lambda: self._connect(connection, address))
        return connection

    def _connect(self, connection: int, address: str) -> None:
        if self.dead:
            return
        listener = self._world.listeners.get(address)
        if listener is None or listener.dead:
            self._event(Closed(connection, CloseCause.UNREACHABLE, f"nobody listens at {address}"))
            return
        theirs = self._world.number()
        self._far[connection] = _End(listener, theirs)
        listener._far[theirs] = _End(self, connection)  # noqa: SLF001 - the other end of the same class
        self._event(Opened(connection, inbound=False, address=address))
        listener._event(Opened(theirs, inbound=True, address="world:0"))  # noqa: SLF001

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        self._queued.append((connection, frame[PREFIX_LENGTH:]))

    def flush(self) -> None:
        """See `ControlChannel.flush`."""
        queued, self._queued = self._queued, []
        faults, draw = self._world.faults, self._world.random
        for connection, frame in queued:
            if faults.drop and draw.random() < faults.drop:
                continue
            self._deliver_later(connection, frame)
            if faults.repeat and draw.random() < faults.repeat:
                self._deliver_later(connection, frame)

    def _deliver_later(self, connection: int, frame: bytes) -> None:
        lane, ordered = (self, connection), not self._world.faults.reorder
        self._world.later(lane, lambda: self._deliver(connection, frame), ordered=ordered)

    def _deliver(self, connection: int, frame: bytes) -> None:
        far = self._far.get(connection)
        if far is not None:
            far.channel._event(FrameIn(far.connection, frame))  # noqa: SLF001

    def close(self, connection: int) -> None:
        """See `ControlChannel.close`. What is handed over with it arrives with it, whatever may happen to frames."""
        last = [frame for at, frame in self._queued if at == connection]
        self._queued = [(at, frame) for at, frame in self._queued if at != connection]
        self._world.later((self, connection), lambda: self._leave(connection, last))
        self._event(Closed(connection, CloseCause.LOCAL, ""))

    def _leave(self, connection: int, last: list[bytes]) -> None:
        for frame in last:
            self._deliver(connection, frame)
        self._end(connection, CloseCause.PEER_CLOSED)

    def cut(self, cause: CloseCause) -> None:
        """Every connection ends; both ends see `cause`."""
        for connection in list(self._far):
            self._end(connection, cause)
            self._event(Closed(connection, cause, ""))

    def kill(self) -> None:
        """The process is gone: its kernel closes what it had open, after what was on its way."""
        self.dead = True
        for connection in list(self._far):
            self._world.later((self, connection), partial(self._end, connection, CloseCause.PEER_CLOSED))

    def _end(self, connection: int, cause: CloseCause) -> None:
        far = self._far.pop(connection, None)
        if far is not None and far.channel._far.pop(far.connection, None) is not None:  # noqa: SLF001
            far.channel._event(Closed(far.connection, cause, ""))  # noqa: SLF001

    def poll(self) -> Sequence[ChannelEvent]:
        """See `ControlChannel.poll`."""
        events, self._events = self._events, []
        return events

    def _event(self, event: ChannelEvent) -> None:
        self._events.append(event)
        self._world.wake()


class Write:
    """A posted write: how many of its descriptors have not landed."""

    def __init__(self, handle: int, left: int) -> None:
        self.handle = handle
        self.left = left


class SimTransport:
    """Writes between the world's agents: real bytes, copied between the real addresses of this process."""

    def __init__(self, world: World, agent: str) -> None:
        self._world = world
        self._agent = agent
        self._table: DescriptorTable | None = None
        self._peers: dict[str, DescriptorTable] = {}
        self._lists: dict[int, dict[str, Descriptors]] = {}
        self._writes: set[int] = set()
        self._settled: list[Settlement] = []
        self._arrived: list[Arrival] = []
        self._dead = False
        self._killed = False
        self.post_error = ""
        world.agents[agent] = self

    @property
    def agent(self) -> str:
        """See `Transport.agent`."""
        return self._agent

    @property
    def backend(self) -> str:
        """See `Transport.backend`."""
        return "simulated"

    @property
    def in_flight(self) -> int:
        """See `Transport.in_flight`."""
        return len(self._writes)

    def register(self, layout: Layout, regions: Regions) -> DescriptorTable:
        """See `Transport.register`."""
        self._table = DescriptorTable(layout, regions)
        self._lists[id(self._table)] = self._table.lists()
        return self._table

    def metadata(self) -> bytes:
        """See `Transport.metadata`."""
        return _BLOB + self._agent.encode()

    def add_peer(self, agent: str, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
        """See `Transport.add_peer`."""
        if blob != _BLOB + agent.encode():
            raise TransportError(f"the metadata is not that of {agent}")
        table = self._peers[agent] = DescriptorTable(layout, regions)
        self._lists[id(table)] = table.lists()
        return table

    def remove_peer(self, agent: str) -> None:
        """See `Transport.remove_peer`."""
        table = self._peers.pop(agent, None)
        if table is not None:
            del self._lists[id(table)]

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """See `Transport.post`. The world decides when each descriptor lands; it never settles at once."""
        if self.post_error:
            raise TransportError(self.post_error)
        target = self._world.agents.get(agent)
        if target is None or target._dead:  # noqa: SLF001
            raise PeerGone(f"{agent} is gone")
        assert self._table is not None
        if piece.source_descriptors is not None and piece.destination_descriptors is not None:
            sources, targets = piece.source_descriptors, piece.destination_descriptors
        else:
            sources = self._lists[id(self._table)][piece.source_memory][piece.source_indices]
            targets = self._lists[id(self._peers[agent])][piece.destination_memory][piece.destination_indices]
        write = Write(self._world.number(), len(sources))
        self._writes.add(write.handle)
        for (source, length, _), (destination, _, _) in zip(sources.tolist(), targets.tolist(), strict=True):
            self._world.later(
                write,
                partial(self._land, write, source, destination, length, target, notification),
                ordered=False,
            )
        return write.handle

    def _land(
        self, write: Write, source: int, destination: int, length: int, target: SimTransport, notification: bytes
    ) -> None:
        if self._killed:
            return
        if target._dead:
            self._over(write, "the peer is gone")
            return
        ctypes.memmove(destination, source, length)
        write.left -= 1
        if write.left:
            return
        if notification:
            arrival = Arrival(self._agent, notification)
            self._world.later((target, "notifications"), lambda: target._arrive(arrival), ordered=False)
        self._world.later((self, "settlements"), lambda: self._over(write, None), ordered=False)

    def _arrive(self, arrival: Arrival) -> None:
        self._arrived.append(arrival)
        self._world.wake()

    def _over(self, write: Write, error: str | None) -> None:
        if write.handle in self._writes:
            self._writes.discard(write.handle)
            self._settled.append(Settlement(write.handle, error))
            self._world.wake()

    def settled(self) -> Sequence[Settlement]:
        """See `Transport.settled`."""
        settled, self._settled = self._settled, []
        return settled

    def arrivals(self) -> Sequence[Arrival]:
        """See `Transport.arrivals`."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def kill(self) -> None:
        """The process is gone, and with it what it had posted and not written yet."""
        self._dead = self._killed = True

    def close(self) -> None:
        """See `Transport.close`."""
        self._dead = True
