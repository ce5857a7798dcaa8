"""A stranger in a simulated world: it connects to prefill engines, says what it likes, and forges notifications.

It knows names, addresses, room numbers, grants, and every notification that has passed; it does not know tokens, and it
has no part in anybody's room. What it says must not end an engine's loop, disturb a room, complete one, or be written.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from ...protocol import wire
from ...protocol.failure import Reason
from ...protocol.identity import agent_name
from ...protocol.manifest import Manifest
from ...transport.ports import Arrival, FrameIn, Opened
from ..channel import SimChannel
from ..ports import SimTransport
from .judge import Judge
from .memory import target_pool

_TOKEN = slice(12, 20)
"""Where a notification carries its token."""


class Stranger:
    """One stranger. It has memory and an agent of its own, and connects again when it is shown the door."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.world = judge.world
        self.pool = target_pool(judge.shape, pages=4, slots=2)
        self.incarnation = self.world.random.getrandbits(64) | 1
        self.transport = SimTransport(self.world, agent_name(self.incarnation), "stranger")
        self.transport.register(self.pool.memory.layout, self.pool.memory.regions)
        self.channel = SimChannel(self.world, "stranger")
        self.connection = 0
        self.peer = 0
        self.grants = 0

    def act(self) -> None:
        """Do something."""
        draw = self.world.random
        self._listen()
        acts: list[Callable[[random.Random], None]] = [self._forge, self._forge, self._babble]
        if not self.connection:
            acts.append(self._dial)
        elif self.peer:
            acts += [self._ask, self._ask, self._say]
        else:
            acts += [self._hello, self._hello]
        draw.choice(acts)(draw)

    def _dial(self, draw: random.Random) -> None:
        self.channel.dial(draw.choice(self.judge.prefills).engine.address)

    def _listen(self) -> None:
        for event in self.channel.poll():
            match event:
                case Opened(connection):
                    self.connection, self.peer = connection, 0
                case FrameIn(_, frame) if len(frame) > wire.HEADER_LENGTH and frame[1] == wire.Welcome.KIND:
                    self.peer = int.from_bytes(frame[4:12], "little")
                case FrameIn():
                    pass
                case _:
                    self.connection = self.peer = 0

    def _send(self, frame: bytes, what: str) -> None:
        if self.connection:
            self.judge.examples["S5"] += 1
            self.judge.injected["stranger's frame"] += 1
            self.judge.note("stranger", "message", what)
            self.channel.send(self.connection, bytes(wire.PREFIX_LENGTH) + frame)
            self.channel.flush()

    def _say_body(self, body: wire.Body, floor: int = 0) -> None:
        frame = wire.encode(body, self.incarnation, self.peer, floor)[wire.PREFIX_LENGTH :]
        self._send(frame, type(body).__name__.upper())

    def leave(self) -> None:
        """Go away, as a process does that ends."""
        self._listen()
        self.transport.kill()
        self.channel.kill()

    # -- on the control channel ------------------------------------------------------------------------------------

    def _babble(self, draw: random.Random) -> None:
        """Bytes that are no frame."""
        noise = draw.choice((b"GET /health HTTP/1.1\r\n\r\n", b"", b"\x00" * 40, draw.randbytes(draw.randrange(1, 64))))
        self._send(noise, f"{len(noise)} bytes of noise")

    def _hello(self, draw: random.Random) -> None:
        """A handshake that is right, or wrong in one field."""
        layout, regions = self.pool.memory.layout, self.pool.memory.regions
        honest = self.judge.decodes[0].pool.memory.regions
        body = wire.Hello("stranger", self.transport.agent, layout, regions, self.transport.metadata())
        wrong = (
            wire.Hello("stranger", self.judge.prefills[0].name, layout, regions, self.transport.metadata()),
            wire.Hello("stranger", self.transport.agent, layout, honest, self.transport.metadata()),
            wire.Hello("stranger", self.transport.agent, layout, regions, b"another's"),
        )
        self._say_body(draw.choice((body, body, body, *wrong)))

    def _ask(self, draw: random.Random) -> None:
        """METADATA for a room that another has, or for one that nobody will ever open; more than there is, too."""
        taken = [
            life.key
            for life in self.judge.lives
            if life.sender.room is not None and life.sender.room.phase != "METADATA"
        ]
        key = draw.choice(taken) if taken and draw.random() < 0.7 else (draw.getrandbits(62) | 1 << 61, 0)
        self.grants += 1
        manifest = _asked(self.judge, draw)
        pages = [draw.randrange(4) for _ in range(manifest.pages)]
        if draw.random() < 0.2:
            pages = [page + 1000 for page in pages]
        packed = np.array(pages, dtype="<i4").tobytes()
        aux = 0 if manifest.aux else -1
        body = wire.Metadata(key[0], key[1], self.grants, draw.getrandbits(64), manifest, packed, aux, ())
        self._say_body(body, draw.choice((0, self.grants, 1 << 40)))

    def _say(self, draw: random.Random) -> None:
        """Frames that are not this side's to say, or about grants of others."""
        grant = draw.randrange(1, 60)
        bodies = (
            wire.Abort(grant, Reason.PEER_ABORTED, "stranger", retryable=False),
            wire.Accept(grant),
            wire.Ack(grant),
            wire.Failed(grant, Reason.PEER_FAILED, "stranger", retryable=True),
            wire.Reject(grant, Reason.REFUSED, "stranger", retryable=True),
            wire.Goodbye((grant,)),
            wire.Pong(grant),
        )
        self._say_body(draw.choice(bodies), draw.choice((0, 1 << 40)))

    # -- beside the data -------------------------------------------------------------------------------------------

    def _forge(self, draw: random.Random) -> None:
        """A notification for a decode engine: noise, a real one again, or a real one with another token."""
        judge = self.judge
        judge.injected["forged notification"] += 1
        judge.examples["S5"] += 1
        if not judge.heard or draw.random() < 0.2:
            agent, target = self.transport.agent, judge.decodes[0].engine
            message = draw.randbytes(draw.randrange(48))
            transport = next(t for t in self.world.agents.values() if t.name == target.name and not t.dead)
        else:
            transport, agent, real = draw.choice(judge.heard)
            message = real if draw.random() < 0.3 else _with_another_token(real, draw)
        judge.note("stranger", "notification", f"forged, under the name of {agent}", to=transport.name)
        for life in judge.lives:
            life.targeted = life.targeted or (life.receiver.side.name == transport.name and life.receiver.open)
        forged = Arrival(agent, message)
        self.world.later((transport, "notifications"), lambda: transport._arrive(forged), ordered=False)  # noqa: SLF001


def _asked(judge: Judge, draw: random.Random) -> Manifest:
    """What a stranger's METADATA asks for."""
    pages = draw.randrange(3)
    aux = judge.decodes[0].pool.memory.layout.aux_names if draw.random() < 0.5 else ()
    return Manifest(pages, ((0, pages),) if pages else (), aux, ())


def _with_another_token(message: bytes, draw: random.Random) -> bytes:
    """A notification that says as much as its writer could, and does not know the token."""
    forged = bytearray(message)
    if len(forged) >= _TOKEN.stop:
        forged[_TOKEN] = draw.randbytes(8)
        for _ in range(draw.randrange(3)):
            forged[draw.randrange(_TOKEN.stop, len(forged)) if len(forged) > _TOKEN.stop else 4] = draw.randrange(256)
    return bytes(forged)
