"""Peers made by hand for one real engine: they put frames on the wire, and remember what they were told."""

from __future__ import annotations

from typing import Any

from ...protocol import notify, wire
from ...protocol.identity import agent_name
from ...protocol.registration import Registration
from ...transport.ports import Arrival, Closed, FrameIn, Opened
from ..channel import SimChannel
from ..ports import SimTransport
from ..simulate.memory import Pool
from ..world import World
from .base import Machine

BOOTSTRAP = "http://world:1"


class Hand:
    """An incarnation, memory, an agent, and one control channel."""

    def __init__(self, machine: Machine, world: World, pool: Pool, name: str) -> None:
        self.machine = machine
        self.world = world
        self.pool = pool
        self.name = name
        self.layout = pool.memory.layout
        self.incarnation = world.random.getrandbits(64) | 1
        self.transport = SimTransport(world, agent_name(self.incarnation), name)
        self.transport.register(self.layout, pool.memory.regions)
        self.channel = SimChannel(world, name)
        self.peer = 0
        self.connection = 0

    def listen(self) -> list[wire.Body]:
        """What has arrived since the last time. Pings are answered."""
        bodies: list[wire.Body] = []
        for event in self.channel.poll():
            match event:
                case Opened(connection):
                    self.connection = connection
                case FrameIn(_, frame):
                    received = wire.decode(frame)
                    self.peer = received.source
                    if isinstance(received.body, wire.Ping):
                        self.say(wire.Pong(received.body.sequence))
                    else:
                        self.machine.note(self.name, "message", f"hears {_words(received.body)}")
                        bodies.append(received.body)
                case Closed():
                    self.connection = 0
        return bodies

    def say(self, body: wire.Body, floor: int = 0, *, target: int | None = None) -> None:
        """Send a frame; it arrives some time."""
        if not isinstance(body, wire.Pong):
            self.machine.note(
                self.name, "message", f"says {_words(body)}" + (f", floor {floor}" if floor else ""), "wire"
            )
        theirs = self.peer if target is None else target
        self.say_raw(wire.encode(body, self.incarnation, theirs, floor)[wire.PREFIX_LENGTH :])

    def say_raw(self, frame: bytes) -> None:
        """Send any bytes as a frame."""
        if self.connection:
            self.channel.send(self.connection, bytes(wire.PREFIX_LENGTH) + frame)
            self.channel.flush()


class HandDecode(Hand):
    """A decode engine made by hand."""

    def join(self, address: str) -> None:
        """Connect, and complete the handshake."""
        self.channel.dial(address)
        self.world.settle()
        self.listen()
        regions = self.pool.memory.regions
        self.say(wire.Hello(self.name, self.transport.agent, self.layout, regions, self.transport.metadata()), target=0)
        self.world.settle()
        self.listen()


class HandPrefill(Hand):
    """A prefill engine made by hand, in the registry under its name."""

    def register(self) -> None:
        """Take connections, and let the registry know."""
        entry = Registration(self.name, 0, self.channel.listen(), self.incarnation, 16, self.layout.digest.hex(), 30.0)
        self.world.registry[BOOTSTRAP, self.name, 0] = entry

    def welcome(self) -> None:
        """Answer a HELLO."""
        self.say(wire.Welcome(self.name, self.transport.agent, self.layout))

    def notify(self, target: Any, agent: str, grant: int, token: int, part: notify.Part) -> None:
        """A notification arrives at an agent, under any name."""
        words = f"{part.kind.name} {part.first} to {part.first + part.size - 1} of grant {grant}, token {token}"
        whose = "" if agent == self.transport.agent else ", in another's name"
        self.machine.note(self.name, "notification", words + whose, "decode")
        arrival = Arrival(agent, notify.encode(grant, token, (part,)))
        self.world.later((target, "notifications"), lambda: target._arrive(arrival), ordered=False)  # noqa: SLF001


def _words(body: wire.Body) -> str:
    grant = getattr(body, "grant", None)
    return type(body).__name__.upper() + (f" of grant {grant}" if grant is not None else "")
