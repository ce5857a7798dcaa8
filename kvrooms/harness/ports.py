"""The simulated ports: transport, registry, clock and ids of one engine in a `World` (the channel is elsewhere)."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..protocol.errors import PeerGone, TransportError
from ..protocol.layout import Layout, Regions
from ..protocol.plan import Descriptors, DescriptorTable, Piece
from ..protocol.registration import Registration, Resolved, Unresolved
from ..transport.ports import Arrival, Settlement
from .channel import SimChannel, nobody
from .faults import damage

if TYPE_CHECKING:
    from .world import World

__all__ = ["SimChannel", "SimClock", "SimIds", "SimRegistry", "SimTransport", "Write"]

_BLOB = b"world:"
_BROKEN = "the network broke"
_GONE = "the peer is gone"


class SimClock:
    """The world's time, as one engine's machine sees it: `offset` seconds later."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offset = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return self._world.now + self.offset


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
        self.owner: Callable[[], None] = nobody

    def lookup(self, bootstrap: str, instance: str, rank: int) -> int:
        """See `Registry.lookup`."""
        ticket = self._world.number()
        self._world.later(self, lambda: self._answer(ticket, bootstrap, instance, rank))
        return ticket

    def _answer(self, ticket: int, bootstrap: str, instance: str, rank: int) -> None:
        known = [
            registration
            for (url, name, number), registration in self._world.registry.items()
            if url == bootstrap and instance in ("", name) and number == rank
        ]
        if len(known) == 1:
            self._answers.append(Resolved(ticket, known[0]))
        else:
            self._answers.append(Unresolved(ticket, f"{len(known)} engines fit {instance!r} rank {rank}"))
        self.owner()

    def poll(self) -> Sequence[Resolved | Unresolved]:
        """See `Registry.poll`."""
        answers, self._answers = self._answers, []
        return answers

    def announce(self, bootstrap: str, registration: Registration) -> None:
        """See `Registry.announce`."""
        self._world.registry[bootstrap, registration.instance, registration.rank] = registration

    def withdraw(self, bootstrap: str, registration: Registration) -> None:
        """See `Registry.withdraw`."""
        key = (bootstrap, registration.instance, registration.rank)
        known = self._world.registry.get(key)
        if known is not None and known.incarnation == registration.incarnation:
            del self._world.registry[key]


class Write:
    """A posted write. rows: (source address, length, destination address) each; left: how many are to land."""

    __slots__ = ("error", "handle", "left", "message", "read", "rows", "source", "target")

    def __init__(
        self,
        handle: int,
        source: SimTransport,
        target: SimTransport,
        rows: list[tuple[int, int, int]],
        message: bytes,
    ) -> None:
        self.handle = handle
        self.source = source
        self.target = target
        self.rows = rows
        self.message = message
        self.left = len(rows)
        self.error: str | None = None
        self.read: dict[tuple[int, int, int], bytes] = {}

    def under_way(self, world: World) -> list[tuple[int, int, int]]:
        """What may still land: nothing once either end is gone."""
        lane = world._lanes.by_key.get(self)  # noqa: SLF001 - a write is a lane of its world
        if lane is None or self.target.dead or self.source.killed:
            return []
        return [action.args[1] for action in lane.queue if isinstance(action, partial) and len(action.args) == 2]


class SimTransport:
    """Writes between the world's agents: real bytes, copied between the real addresses of this process."""

    def __init__(self, world: World, agent: str, name: str = "") -> None:
        self._world = world
        self._agent = agent
        self._table: DescriptorTable | None = None
        self._registered: list[tuple[int, int]] = []
        self._peers: dict[str, DescriptorTable] = {}
        self._lists: dict[int, dict[str, Descriptors]] = {}
        self._writes: dict[int, Write] = {}
        self._settled: list[Settlement] = []
        self._arrived: list[Arrival] = []
        self.name = name
        self.owner: Callable[[], None] = nobody
        self.dead = False
        self.killed = False
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
        self._registered = _ranges(layout, regions)
        self._lists[id(self._table)] = self._table.lists()
        return self._table

    def register_staging(self, address: int, length: int) -> None:
        """See `Transport.register_staging`."""
        self._registered.append((address, address + length))

    def metadata(self) -> bytes:
        """See `Transport.metadata`."""
        return _BLOB + self._agent.encode()

    def add_peer(self, agent: str, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
        """See `Transport.add_peer`."""
        target = self._world.agents.get(agent)
        if blob != _BLOB + agent.encode() or target is None:
            raise TransportError(f"the metadata is not that of {agent}")
        for start, stop in _ranges(layout, regions):
            if not any(a <= start and stop <= b for a, b in target._registered):  # noqa: SLF001
                raise TransportError(f"{agent} has not registered the memory that it describes")
        table = self._peers[agent] = DescriptorTable(layout, regions)
        self._lists[id(table)] = table.lists()
        return table

    def remove_peer(self, agent: str) -> None:
        """See `Transport.remove_peer`."""
        table = self._peers.pop(agent, None)
        if table is not None:
            del self._lists[id(table)]

    # -- writes --------------------------------------------------------------------------------------------------

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """See `Transport.post`. The world decides when each descriptor lands; it never settles at once."""
        world = self._world
        if agent not in self._peers:
            raise PeerGone(f"{agent} is no peer")
        rows = self._rows(agent, piece)
        if self.post_error or (world.faults.post_fails and world.random.random() < world.faults.post_fails):
            world.witness.refused(self, agent, rows[0][0])
            raise TransportError(self.post_error or "no more descriptors")
        target = world.agents.get(agent)
        if target is None or target.dead:
            raise PeerGone(f"{agent} is gone")
        write = self.start(target, rows, notification)
        if world.faults.at_once and world.random.random() < world.faults.at_once:
            world.finish(write)
            self._writes.pop(write.handle)
            return None
        if world.faults.writes:
            self._disturb(write)
        return write.handle

    def start(self, target: SimTransport, rows: list[tuple[int, int, int]], notification: bytes) -> Write:
        """Let a write begin: from here on the world lets it land."""
        write = Write(self._world.number(), self, target, rows, notification)
        self._writes[write.handle] = write
        self._world.witness.posted(write)
        for row in rows:
            self._world.later(write, partial(self._land, write, row), ordered=False)
        return write

    def _rows(self, agent: str, piece: Piece) -> list[tuple[int, int, int]]:
        assert self._table is not None
        if piece.source_descriptors is not None and piece.destination_descriptors is not None:
            sources, targets = piece.source_descriptors, piece.destination_descriptors
        else:
            sources = self._lists[id(self._table)][piece.source_memory][piece.source_indices]
            targets = self._lists[id(self._peers[agent])][piece.destination_memory][piece.destination_indices]
        columns = zip(sources[:, 0].tolist(), sources[:, 1].tolist(), targets[:, 0].tolist(), strict=True)
        return list(columns)

    def _disturb(self, write: Write) -> None:
        world = self._world
        faults, draw, tell = world.faults, world.random, world.witness.disturbs
        if draw.random() < faults.write_fails:
            tell("failed", write)
            world.later(write, partial(self._break, write), ordered=False)
        if draw.random() < faults.write_stuck:
            tell("stuck", write)
            world.hold(write)
        elif draw.random() < faults.write_slow:
            tell("slow", write)
            world.hold(write, draw.random() * faults.late_s)

    def _break(self, write: Write) -> None:
        """It ends with an error, unless all of it has landed; what is under way lands all the same."""
        if write.left:
            self.fail(write, _BROKEN)

    def fail(self, write: Write, error: str) -> None:
        """A write ends with an error, now. What of it is under way has been read, and may still land."""
        write.error = error
        write.read = {row: ctypes.string_at(row[0], row[1]) for row in write.under_way(self._world)}
        self._over(write, error)

    def _land(self, write: Write, row: tuple[int, int, int]) -> None:
        if self.killed:
            return
        target, world = write.target, self._world
        if target.dead:
            self._over(write, _GONE)
            return
        source, length, destination = row
        ctypes.memmove(destination, source if write.error is None else write.read[row], length)
        if world.faults.flips and world.random.random() < world.faults.flips:
            world.witness.disturbs("damaged", write)
            damage(destination, length, world.random)
        write.left -= 1
        world.witness.landed(write, source, destination, length)
        if write.left or write.error is not None:
            return
        if write.message:
            arrival = Arrival(self._agent, write.message)
            world.later((target, "notifications"), partial(target._arrive, arrival), ordered=False)  # noqa: SLF001
        world.later((self, "settlements"), partial(self._over, write, None), ordered=False)  # nothing if it has settled

    def _arrive(self, arrival: Arrival) -> None:
        self._world.witness.notified(self, *arrival)
        self._arrived.append(arrival)
        self.owner()

    def _over(self, write: Write, error: str | None) -> None:
        if self._writes.pop(write.handle, None) is not None:
            self._world.witness.settled(write, error)
            self._settled.append(Settlement(write.handle, error))
            self.owner()

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
        self.killed = True
        self.close()

    def close(self) -> None:
        """See `Transport.close`. A write to it that is not settled may fail, though all its bytes have landed."""
        self.dead = True
        for other in self._world.agents.values():
            if not other.dead:
                other.lose(self)

    def lose(self, target: SimTransport) -> None:
        """The agent `target` is gone: what is posted to it and not settled may fail."""
        for write in self._writes.values():
            if write.target is target and not write.left:
                failed = partial(self._over, write, _GONE)
                self._world.later((self, "settlements"), failed, ordered=False)  # nothing if it has settled


def _ranges(layout: Layout, regions: Regions) -> list[tuple[int, int]]:
    """The address ranges that regions name."""
    lengths = [spec.item_length for spec in layout.kv] + [spec.item_length for spec in layout.aux]
    lengths += [spec.item_length for component in layout.state for spec in component.buffers]
    return [(r.address, r.address + r.items * n) for r, n in zip(regions.in_order(), lengths, strict=True)]
