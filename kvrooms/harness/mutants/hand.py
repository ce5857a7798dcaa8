"""Peers made by hand: they say on the wire what a probe wants, to real engines on a stage."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ...protocol import notify, wire
from ...protocol.identity import agent_name
from ...protocol.manifest import Manifest
from ...protocol.registration import Registration
from ...transport.ports import Arrival, Closed, FrameIn, Opened
from ..ports import SimChannel, SimTransport
from .stage import UNTOUCHED, Broken, Pool, Stage

B = TypeVar("B", bound=wire.Body)
BOOTSTRAP = "http://world:1"


class Hand:
    """An incarnation, memory, an agent, and one control channel."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.pool = Pool(stage.shape, lambda n, m: np.full((n, m), UNTOUCHED, dtype=np.uint8), *stage.sizes)
        self.layout = self.pool.memory.layout
        self.incarnation = stage.world.random.getrandbits(64) | 1
        self.transport = SimTransport(stage.world, agent_name(self.incarnation))
        self.transport.register(self.layout, self.pool.memory.regions)
        self.channel = SimChannel(stage.world)
        self.peer = 0
        self.connection = 0
        self.frames: list[wire.Received] = []

    def heard(self, kind: type[B]) -> list[B]:
        """The bodies of one kind that have arrived so far."""
        for event in self.channel.poll():
            match event:
                case Opened(connection):
                    self.connection = connection
                case FrameIn(_, frame):
                    received = wire.decode(frame)
                    self.peer = received.source
                    self.frames.append(received)
                case Closed():
                    self.stage.note(self.name, "state", f"its connection is closed: {event.cause.value}")
        return [frame.body for frame in self.frames if isinstance(frame.body, kind)]

    def say(self, *bodies: wire.Body, floor: int = 0, source: int | None = None, target: int | None = None) -> None:
        """Send frames, and let what they cause happen."""
        ours = self.incarnation if source is None else source
        theirs = self.peer if target is None else target
        for body in bodies:
            grant = getattr(body, "grant", None)
            words = type(body).__name__.upper() + (f", grant {grant}" if grant is not None else "")
            self.stage.note(self.name, "message", words + (f", floor {floor}" if floor else ""), "wire")
            self.channel.send(self.connection, wire.encode(body, ours, theirs, floor))
        self.channel.flush()
        self.stage.settle()
        self.heard(wire.Ping)


class HandDecode(Hand):
    """A decode engine made by hand, connected to the stage's first prefill engine."""

    def __init__(self, stage: Stage, name: str = "decode by hand", *, joins: bool = True) -> None:
        super().__init__(stage, name)
        self.channel.dial(stage.prefills[0].engine.address)
        stage.settle()
        self.heard(wire.Welcome)
        if not joins:
            return
        hello = wire.Hello(name, self.transport.agent, self.layout, self.pool.memory.regions, self.transport.metadata())
        self.say(hello, target=0)
        if not self.heard(wire.Welcome):
            raise Broken("the handshake of an honest peer is not answered")

    def metadata(self, grant: int = 1, room: int = 7, *, pages: tuple[int, ...] = (8, 2, 5), **changes: Any) -> Any:
        """A METADATA for pages (8, 2, 5) and slot 3, with changes."""
        fields = {
            "room": room,
            "attempt": 0,
            "grant": grant,
            "token": 1000 + grant,
            "manifest": Manifest(len(pages), ((0, len(pages)),) if pages else (), self.layout.aux_names, ()),
            "pages": np.array(pages, dtype="<i4").tobytes(),
            "aux_index": 3,
            "state": (),
        }
        return wire.Metadata(**{**fields, **changes})

    def written(self, part: str, item: int) -> bool:
        """Whether anybody has written to an item."""
        return not self.pool.holds(part, [item], UNTOUCHED)


class HandPrefill(Hand):
    """A prefill engine made by hand, in the registry under its name."""

    def __init__(self, stage: Stage, name: str = "prefill-by-hand") -> None:
        super().__init__(stage, name)
        address = self.channel.listen()
        entry = Registration(name, 0, address, self.incarnation, 16, self.layout.digest.hex(), 30.0)
        stage.world.registry[BOOTSTRAP, name, 0] = entry

    def welcome(self) -> None:
        """Answer the HELLO of a decode engine that is looking for us."""
        self.stage.settle()
        self.heard(wire.Hello)
        self.say(wire.Welcome(self.name, self.transport.agent, self.layout))

    def grant(self) -> wire.Metadata:
        """The latest METADATA."""
        found = self.heard(wire.Metadata)
        if not found:
            raise Broken("no METADATA has come")
        return found[-1]

    def notify(self, *parts: notify.Part, agent: str | None = None, decode: int = 0) -> None:
        """Let a notification for the latest grant arrive at a decode engine, without a write, under any name."""
        grant = self.grant()
        words = ", ".join(f"{part.kind.name} {part.first} to {part.first + part.size - 1}" for part in parts)
        self.stage.note(self.name, "notification", f"{words}, under the name {agent or 'it has'}", "wire")
        target = self.stage.world.agents[self.stage.decodes[decode].ports.transport.agent]
        arrival = Arrival(agent or self.transport.agent, notify.encode(grant.grant, grant.token, parts))
        self.stage.world.later((target, "notifications"), lambda: target._arrive(arrival), ordered=False)  # noqa: SLF001
        self.stage.settle()
