"""Strikes at decode: a registry that answers nonsense, and a prefill engine that is none.

Decode opens rooms with it (lures), and so hands it what it hands every prefill engine: the blob of its agent, grants
and tokens of those rooms. All of that is used against it.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import deque

from ..protocol import registration, wire
from ..protocol.failure import Reason
from ..protocol.identity import agent_name
from ..protocol.layout import Layout
from ..protocol.manifest import Manifest
from ..protocol.registration import Registration
from . import samples
from .mutate import changed, mutated, noise
from .sockets import drain, send

_PATIENCE_S = 0.3
_WORKERS = 4
NAME = "false"
"""What decode knows it by."""


class FalsePrefill:
    """A registry and a control port, each served by a few threads. `messages` counts what they have sent."""

    def __init__(self, seed: int, layout: Layout, honest: int, elsewhere: str) -> None:
        """honest: the incarnation of the honest prefill engine; elsewhere: an address that is none of ours."""
        self._seed = seed
        self._layout = layout
        self._honest = honest
        self._elsewhere = elsewhere
        self._incarnation = random.Random(f"{seed} false prefill").getrandbits(64) | 1
        self._lock = threading.Lock()
        self._serial = 0
        self._closed = False
        self.messages = 0
        self.met = threading.Event()
        """Decode has introduced itself."""
        self.decode = (0, "", b"")
        """decode's incarnation, its agent's name and its blob."""
        self.grants: deque[tuple[int, int]] = deque(maxlen=64)
        """(grant, token) of the rooms that decode has opened with us."""
        self._web, self._control = _listen(), _listen()
        self.bootstrap = f"http://127.0.0.1:{self._web.getsockname()[1]}"
        self._address = f"127.0.0.1:{self._control.getsockname()[1]}"
        for listener, serve in ((self._web, self._answer), (self._control, self._shake_hands)):
            for _ in range(_WORKERS):
                threading.Thread(target=self._serve, args=(listener, serve), daemon=True).start()

    def _draw(self) -> random.Random:
        with self._lock:
            self._serial += 1
            return random.Random(f"{self._seed} false prefill {self._serial}")

    def _say(self, to: socket.socket, data: bytes) -> bool:
        with self._lock:
            self.messages += 1
        return send(to, data)

    def _serve(self, listener: socket.socket, serve: object) -> None:
        assert callable(serve)
        while not self._closed:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with one:
                one.settimeout(_PATIENCE_S)
                try:
                    serve(one, self._draw())
                except OSError:
                    pass

    # -- the registry ------------------------------------------------------------------------------------------------

    def _answer(self, one: socket.socket, rng: random.Random) -> None:
        request = one.recv(4096)
        path = request.partition(b"/v1/engines/")[2].partition(b" ")[0].decode("latin1")
        instance = path.partition("/")[0]
        us = Registration(instance, 0, self._address, self._incarnation, 16, self._layout.digest.hex(), 30.0)
        data = _ok(registration.encode_record(us, 30.0)) if not self.met.is_set() else self._nonsense(rng, us)
        self._say(one, data)
        if rng.random() < 0.3:
            drain(one)

    def _nonsense(self, rng: random.Random, us: Registration) -> bytes:
        kind = rng.randrange(12)
        body = registration.encode_record(us, 30.0)
        if kind < 5:
            return _ok(body)
        if kind == 5:
            return _ok(mutated(rng, samples.records()[0], body))
        if kind == 6:
            return noise(rng, _ok(body))
        if kind == 7:
            return changed(rng, _ok(body), body)
        if kind == 8:
            return b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + body
        if kind == 9:
            return (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 6
            )
        if kind == 10:
            return b"HTTP/1.1 302 Found\r\nLocation: " + self.bootstrap.encode() + b"/\r\nContent-Length: 0\r\n\r\n"
        changes = rng.choice(
            (
                {"address": "127.0.0.1:1"},
                {"address": self._elsewhere},
                {"address": "no.such.host.invalid:4"},
                {"instance": "another"},
                {"incarnation": self._honest},
                {"incarnation": 1},
            )
        )
        fields = {name: getattr(us, name) for name in us.__struct_fields__} | changes
        return _ok(registration.encode_record(Registration(**fields), 30.0))

    # -- the control port --------------------------------------------------------------------------------------------

    def _shake_hands(self, one: socket.socket, rng: random.Random) -> None:
        frame = _frame(one)
        if frame is None:
            return
        received = wire.decode(frame)
        if not isinstance(received.body, wire.Hello):
            return
        decode = received.source
        first = not self.met.is_set()
        if first:
            self.decode = (decode, received.body.agent, received.body.blob)
        kind = 0 if first else rng.randrange(10)
        if kind < 6:
            if self._say(one, self._welcome(self._incarnation, decode)):
                self._converse(one, rng, decode)
        elif kind == 6:
            body = mutated(rng, samples.handshakes()[2], frame)
            self._say(one, struct.pack("<I", len(body)) + body)
        elif kind == 7:
            self._say(one, noise(rng, frame))
        elif kind == 8:  # in the name of another, to whom decode is connected
            if self._say(one, self._welcome(self._honest, decode)):
                self._converse(one, rng, decode, self._honest)
        else:
            self._say(
                one,
                wire.encode(
                    wire.Refuse(("x" * 1024,) * rng.choice((1, 64)), Reason.HANDSHAKE_REFUSED, retryable=False),
                    self._incarnation,
                    decode,
                ),
            )

    def _welcome(self, incarnation: int, decode: int) -> bytes:
        return wire.encode(wire.Welcome(NAME, agent_name(incarnation), self._layout), incarnation, decode)

    def _converse(self, one: socket.socket, rng: random.Random, decode: int, source: int = 0) -> None:
        """Listen for METADATA, then say hostile things; hang up in the end, which is what releases decode's leases."""
        source = source or self._incarnation
        grant = 1
        frame = _frame(one)
        while frame is not None:
            body = wire.decode(frame).body
            if isinstance(body, wire.Metadata):
                grant = body.grant
                self.grants.append((body.grant, body.token))
                self.met.set()
                break
            frame = _frame(one)
        for _ in range(rng.randrange(1, 12)):
            if not self._say(one, self._frame_for(rng, grant, source, decode)):
                return
        drain(one)

    def _frame_for(self, rng: random.Random, grant: int, source: int, decode: int) -> bytes:
        if rng.random() < 0.3:
            all_frames = samples.frames()
            sample = all_frames[rng.randrange(len(all_frames))]
            data = bytearray(mutated(rng, sample, b"\0" * 8))
            data[4 : wire.HEADER_LENGTH - 8] = struct.pack("<QQ", source, decode)[: max(0, len(data) - 4)]
            return struct.pack("<I", len(data)) + bytes(data)
        number = rng.choice((grant, grant, grant + 1, 1, 2**64 - 1))
        reason = rng.choice(tuple(Reason))
        choices: tuple[wire.Body, ...] = (
            wire.Accept(number),
            wire.Accept(number),
            wire.Failed(number, reason, "x", reason.retryable),
            wire.Reject(number + 1 & 2**64 - 1 or 1, reason, "x", reason.retryable),
            wire.Ack(number),
            wire.Ping(rng.getrandbits(64)),
            wire.Pong(rng.getrandbits(64)),
            wire.HoldLost(number % 2**63, 0, reason, "x", reason.retryable),
            wire.Goodbye((number,)),
            wire.Refuse(("no",), Reason.HANDSHAKE_REFUSED, retryable=False),
            wire.Welcome("again", agent_name(source), self._layout),
            wire.Metadata(1, 0, number, 1, Manifest(0, (), (), ()), b"", -1, ()),
        )
        target = decode if rng.random() < 0.9 else rng.getrandbits(64)
        return wire.encode(choices[rng.randrange(len(choices))], source, target, rng.choice((0, 0, 2**64 - 1)))

    def close(self) -> None:
        """Stop listening; the threads end with the process."""
        self._closed = True
        self._web.close()
        self._control.close()


def _listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _frame(one: socket.socket) -> bytes | None:
    """The next whole frame; None when none comes."""
    try:
        prefix = one.recv(wire.PREFIX_LENGTH, socket.MSG_WAITALL)
        if len(prefix) < wire.PREFIX_LENGTH:
            return None
        length = wire.frame_length(prefix)
        frame = one.recv(length, socket.MSG_WAITALL)
    except OSError:
        return None
    return frame if len(frame) == length else None
