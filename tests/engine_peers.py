"""Peers made by hand: they say on the wire what a test wants, to real engines in a simulated world."""

from __future__ import annotations

from typing import Any

import numpy as np
from engine_bench import Bench, Plan, Pool, target_pool

from kvrooms.harness.ports import SimChannel, SimTransport
from kvrooms.protocol import wire
from kvrooms.protocol.identity import agent_name
from kvrooms.protocol.manifest import Manifest
from kvrooms.protocol.registration import Registration
from kvrooms.transport.ports import Arrival, Closed, FrameIn, Opened

BOOTSTRAP = "http://world:1"


class Hand:
    """What both sides share: an incarnation, memory, an agent, and one control channel."""

    def __init__(self, bench: Bench, pool: Pool) -> None:
        self.world = bench.world
        self.pool = pool
        self.layout = pool.memory.layout
        self.incarnation = bench.world.random.getrandbits(64) | 1
        self.transport = SimTransport(bench.world, agent_name(self.incarnation))
        self.transport.register(self.layout, pool.memory.regions)
        self.channel = SimChannel(bench.world)
        self.peer = 0
        self.connections: list[int] = []
        self.closed: list[Closed] = []
        self.frames: list[wire.Received] = []
        self.answered = 0

    def listen_up(self) -> None:
        """Take in what has arrived."""
        for event in self.channel.poll():
            match event:
                case Opened(connection):
                    self.connections.append(connection)
                case FrameIn(_, frame):
                    received = wire.decode(frame)
                    self.peer = received.source
                    self.frames.append(received)
                case Closed():
                    self.closed.append(event)

    def heard(self, kind: type[wire.Body] | None = None) -> list[Any]:
        """The bodies that have arrived so far, of one kind or all."""
        self.listen_up()
        return [frame.body for frame in self.frames if kind is None or isinstance(frame.body, kind)]

    def say(self, *bodies: wire.Body, floor: int = 0, source: int | None = None, target: int | None = None) -> None:
        """Send frames on the latest connection."""
        ours, theirs = source or self.incarnation, self.peer if target is None else target
        for body in bodies:
            self.channel.send(self.connections[-1], wire.encode(body, ours, theirs, floor))
        self.channel.flush()

    def pong(self) -> bool:
        """Answer the latest ping. Always False."""
        pings = self.heard(wire.Ping)
        if len(pings) > self.answered:
            self.answered = len(pings)
            self.say(wire.Pong(pings[-1].sequence))
        return False

    def say_raw(self, frame: bytes) -> None:
        """Send any bytes as a frame (without length prefix)."""
        self.channel.send(self.connections[-1], bytes(wire.PREFIX_LENGTH) + frame)
        self.channel.flush()


class HandDecode(Hand):
    """A decode engine made by hand."""

    def __init__(self, bench: Bench, pool: Pool | None = None, prefill: int = 0) -> None:
        super().__init__(bench, pool or target_pool(bench.shape))
        self.bench = bench
        self.address = bench.prefills[prefill].engine.address

    def dial(self) -> None:
        """Open a connection."""
        self.channel.dial(self.address)
        self.bench.settle()
        self.listen_up()

    def hello(self, **changes: Any) -> wire.Hello:
        """Our HELLO, with changes."""
        fields = {
            "engine": "hand",
            "agent": self.transport.agent,
            "layout": self.layout,
            "regions": self.pool.memory.regions,
            "blob": self.transport.metadata(),
        }
        return wire.Hello(**{**fields, **changes})

    def join(self) -> HandDecode:
        """Connect and complete the handshake."""
        self.dial()
        self.say(self.hello(), target=0)
        self.bench.settle()
        assert self.heard(wire.Welcome)
        return self

    def metadata(self, grant: int = 1, room: int = 7, *, plan: Plan | None = None, **changes: Any) -> wire.Metadata:
        """A METADATA for this plan (else two pages, slot 0), with changes."""
        if plan is None:
            manifest, pages, slot = Manifest(2, ((0, 2),), self.layout.aux_names, ()), [0, 1], 0
        else:
            manifest = Manifest(plan.pages, ((0, plan.pages),), self.layout.aux_names, ())
            pages, slot = plan.target["kv"], plan.target["aux"][0]
        fields = {
            "room": room,
            "attempt": 0,
            "grant": grant,
            "token": 1000 + grant,
            "manifest": manifest,
            "pages": pack(*pages),
            "aux_index": slot,
            "state": (),
        }
        return wire.Metadata(**{**fields, **changes})


class HandPrefill(Hand):
    """A prefill engine made by hand, registered as `name`."""

    def __init__(self, bench: Bench, pool: Pool | None = None, name: str = "hand") -> None:
        super().__init__(bench, pool or bench.prefills[0].pool if bench.prefills else pool or target_pool(bench.shape))
        self.bench = bench
        self.name = name
        self.register()

    def register(self) -> None:
        """Listen, and tell the registry."""
        address = self.channel.listen()
        entry = Registration(self.name, 0, address, self.incarnation, 16, self.layout.digest.hex(), 30.0)
        self.world.registry[BOOTSTRAP, self.name, 0] = entry

    def welcome(self, **changes: Any) -> wire.Welcome:
        """Our WELCOME, with changes."""
        fields = {"engine": self.name, "agent": self.transport.agent, "layout": self.layout}
        return wire.Welcome(**{**fields, **changes})

    def join(self) -> HandPrefill:
        """Answer the HELLO of a decode engine that is looking for us."""
        self.bench.settle()
        assert self.heard(wire.Hello)
        self.say(self.welcome())
        self.bench.settle()
        return self

    def notify(self, message: bytes, *, agent: str | None = None, decode: int = 0) -> None:
        """Let a notification arrive at a decode engine, under any name."""
        arrival = Arrival(agent or self.transport.agent, message)
        self.bench.decodes[decode].engine._core.transport._arrive(arrival)


def pack(*indices: int) -> bytes:
    """Indices as METADATA carries them."""
    return np.array(indices, dtype="<i4").tobytes()
