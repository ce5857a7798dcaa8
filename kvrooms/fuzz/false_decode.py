"""Strikes by an engine that was let in: it has shaken hands with prefill, and what it says from then on is hostile."""

from __future__ import annotations

import random
import socket
from typing import Any

import msgspec
import numpy as np

from ..protocol import wire
from ..protocol.failure import Reason
from ..protocol.identity import agent_name
from ..protocol.manifest import Manifest
from ..transport.nixl import NixlTransport
from . import samples
from .mutate import Sample, mutated
from .pool import AUX_BYTES, PAGE_BYTES, STATE_BYTES, memory
from .sockets import connect, drain, send

PAGES, SLOTS, STATES = 16, 4, 8
_WELCOME_S = 10.0
_U64 = 2**64 - 1


class FalseDecode:
    """One incarnation of a decode engine, with an agent and memory of its own."""

    def __init__(self, rng: random.Random, address: str) -> None:
        self.incarnation = rng.getrandbits(64) | 1
        self._address = address
        arrays = [np.zeros((items, size), np.uint8) for items, size in _SIZES]
        self._memory = memory(*arrays)
        self.layout, self.regions = self._memory.layout, self._memory.regions
        self._agent = NixlTransport(agent_name(self.incarnation))
        self._agent.register(self.layout, self.regions)
        self.blob = self._agent.metadata()
        self._socket: socket.socket | None = None
        self._grant = 0
        self.prefill = 0

    def hello(self) -> bytes:
        """Our handshake."""
        body = wire.Hello("attacker", self._agent.agent, self.layout, self.regions, self.blob)
        return wire.encode(body, self.incarnation, 0)

    def join(self) -> None:
        """Shake hands as an honest engine would, and learn which incarnation prefill is. Raises OSError."""
        made = connect(self._address)
        if made is None:
            raise OSError(f"{self._address} does not answer")
        send(made, self.hello())
        made.settimeout(_WELCOME_S)
        prefix = made.recv(wire.PREFIX_LENGTH, socket.MSG_WAITALL)
        frame = made.recv(wire.frame_length(prefix), socket.MSG_WAITALL)
        welcome = wire.decode(frame)
        assert isinstance(welcome.body, wire.Welcome), welcome.body
        self.prefill = welcome.source
        self._socket = made

    def plan(self, rng: random.Random) -> tuple[bytes, bool]:
        """One hostile thing to say, and whether to hang up after it."""
        return self.data(rng), rng.random() < 0.002

    def strike(self, data: bytes, hang_up: bool) -> None:
        """Say it, after a new handshake where the last connection has ended."""
        now = self._socket
        if now is None or drain(now) is None:
            if now is not None:
                now.close()
            self._socket = now = connect(self._address)
            if now is None:
                return
            send(now, self.hello())
        if not send(now, data) or hang_up:
            now.close()
            self._socket = None

    def data(self, rng: random.Random) -> bytes:
        """One frame, length included."""
        kind = rng.random()
        source, target, floor = self.incarnation, self.prefill, 0
        if kind < 0.02:
            return self._unruly(rng)
        if kind < 0.12:
            source, target = rng.choice(((_U64, target), (source, 0), (target, source), (0, 0), (source, _U64)))
        elif kind < 0.2:
            floor = rng.choice((1, self._grant // 2, self._grant, self._grant + 5))
        elif kind < 0.201:
            floor = _U64
        body = self._body(rng)
        if isinstance(body, bytes):
            head = wire.encode(wire.Ping(0), source, target, floor)[
                wire.PREFIX_LENGTH : wire.PREFIX_LENGTH + wire.HEADER_LENGTH
            ]
            frame = head[:1] + body[:1] + head[2:] + body[1:]
            return len(frame).to_bytes(4, "little") + frame
        return wire.encode(body, source, target, floor)

    def _body(self, rng: random.Random) -> wire.Body | bytes:
        """A body; or its kind in a byte and what stands after the header, where it is no valid one."""
        kind = rng.random()
        if kind < 0.3:
            body = self._metadata(rng) if rng.random() < 0.6 else _says(rng, self._grant)
            tree = msgspec.msgpack.decode(msgspec.msgpack.encode(body))
            broken = mutated(rng, Sample(b"", tree, msgspec.msgpack.encode), samples.frames()[0].whole)
            return bytes([body.KIND]) + broken
        if kind < 0.55:
            return msgspec.structs.replace(self._metadata(rng), **rng.choice(_IMPOSSIBLE))
        if kind < 0.7:
            return self._metadata(rng)
        if kind < 0.75:
            return wire.Hold(rng.getrandbits(63), 0)
        return _says(rng, self._grant)

    def _metadata(self, rng: random.Random) -> wire.Metadata:
        """One that is valid, for a room that nobody opens. Its grant is the next one, an earlier one, or far ahead."""
        self._grant += 1
        grant = (
            self._grant if rng.random() < 0.9 else rng.choice((1, self._grant + 1000, _U64, rng.getrandbits(64) | 1))
        )
        pages = rng.randrange(4)
        manifest = Manifest(pages, ((0, pages),) if pages else (), ("answer",), (("window", 1),))
        where = np.arange(pages, dtype=np.int32)
        window = (samples.packed(rng.randrange(STATES)),)
        room, token = rng.getrandbits(63), rng.getrandbits(64)
        return wire.Metadata(room, 0, grant, token, manifest, wire.pack_indices(where), rng.randrange(SLOTS), window)

    def _unruly(self, rng: random.Random) -> bytes:
        """What ends a connection, or should."""
        goodbye = wire.encode(wire.Goodbye((1, 2)), self.incarnation, self.prefill)
        return rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", self.hello(), goodbye, goodbye[:9], rng.randbytes(40)))

    def close(self) -> None:
        """Hang up and destroy the agent."""
        if self._socket is not None:
            self._socket.close()
        self._agent.close()


def _says(rng: random.Random, grant: int) -> wire.Body:
    """Any frame but METADATA, whoever has the right to send it."""
    number = rng.choice((1, max(1, grant), grant + 1, _U64, rng.getrandbits(64) | 1))
    reason, detail = rng.choice(tuple(Reason)), rng.choice(("", "no", "x" * 1024))
    choices: tuple[wire.Body, ...] = (
        wire.Abort(number, reason, detail, reason.retryable),
        wire.Abort(number, reason, detail, reason.retryable),
        wire.Accept(number),
        wire.Reject(number, reason, detail, reason.retryable),
        wire.Failed(number, reason, detail, reason.retryable),
        wire.Ack(number),
        wire.Ping(rng.getrandbits(64)),
        wire.Pong(rng.getrandbits(64)),
        wire.HoldLost(number % 2**63, 0, reason, detail, reason.retryable),
        wire.Refuse(("no",), Reason.HANDSHAKE_REFUSED, retryable=False),
    )
    return choices[rng.randrange(len(choices))]


_SIZES = ((PAGES, PAGE_BYTES), (SLOTS, AUX_BYTES), (STATES, STATE_BYTES))
_IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"pages": samples.packed(PAGES)},
    {"pages": samples.packed(-1)},
    {"pages": samples.packed(2**31 - 1, 0, 0)},
    {"pages": b"\1\2\3"},
    {"pages": b"\0" * 4096},
    {"aux_index": -1},
    {"aux_index": SLOTS},
    {"aux_index": 2**31 - 1},
    {"state": ()},
    {"state": (samples.packed(STATES),)},
    {"state": (samples.packed(0), samples.packed(0))},
    {"state": (b"",)},
    {"direction": "read"},
    {"direction": ""},
    {"manifest": Manifest(1, ((0, 2),), ("answer",), ())},
    {"manifest": Manifest(2, ((1, 1),), ("answer",), ())},
    {"manifest": Manifest(9, ((3, 5), (4, 9)), ("answer",), ())},
    {"manifest": Manifest(2**24, ((0, 2**24),), ("answer",), ())},
    {"manifest": Manifest(1, ((0, 1),), ("other",), ())},
    {"manifest": Manifest(1, ((0, 1),), ("answer",), (("window", 2**31 - 1),))},
    {"manifest": Manifest(1, ((0, 1),), ("answer",), (("window", 1), ("window", 1)))},
    {"manifest": Manifest(1, ((0, 1),), ("answer",), (("conv", 1),))},
    {"digest": True},
    {"room": 2**63 - 1, "attempt": 2**32 - 1},
)
