"""Somebody between a rank and its leader, who passes on every frame, and puts others between them."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque

from ..protocol import group, wire
from ..protocol.errors import WireError
from ..protocol.registration import parse_address
from . import samples
from .mutate import mutated

_REMEMBERED = 200
_PEACE_S = 0.5
"""Nonsense ends a connection; whoever ends each new one at once keeps the rank away from its group, and it is lost."""


def framed(frame: bytes) -> bytes:
    """With its length before it."""
    return len(frame).to_bytes(wire.PREFIX_LENGTH, "little") + frame


def read_frame(of: socket.socket) -> bytes:
    """The next frame, without its length; b"" at the end. Raises OSError."""
    prefix = of.recv(wire.PREFIX_LENGTH, socket.MSG_WAITALL)
    return of.recv(wire.frame_length(prefix), socket.MSG_WAITALL) if len(prefix) == wire.PREFIX_LENGTH else b""


class Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self._writing = threading.Lock()
        self.passed: deque[bytes] = deque(maxlen=_REMEMBERED)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while frame := read_frame(self._source):
                self.put(frame)
                self.passed.append(frame)  # only now, so that nothing comes before the first word
        except (OSError, WireError):
            pass
        for one in (self._target, self._source):
            try:
                one.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def put(self, frame: bytes) -> None:
        """Send a frame. Raises OSError."""
        with self._writing:
            self._target.sendall(framed(frame))


class Proxy:
    """Listens for the rank. What it puts in has been said before, is of nobody whom the other side knows, or nonsense.

    Whoever can also change what the honest ones say can end rooms, and must be kept out (`docs/security.md`).
    """

    def __init__(self, leader: str) -> None:
        self._leader = parse_address(leader)
        self._server = socket.create_server(("127.0.0.1", 0))
        host, port = self._server.getsockname()
        self.address = f"{host}:{port}"
        self._ways: tuple[Way, ...] = ()
        self._between: list[tuple[threading.Thread, socket.socket]] = []
        self._samples = samples.group_frames()
        self._peace = 0.0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(self._leader)
                except OSError:
                    near.close()
                    continue
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ways = ways = Way(near, far), Way(far, near)
                thread = threading.Thread(target=_end, args=(ways, near, far), daemon=True)
                thread.start()
                self._between = [one for one in self._between if one[0].is_alive()] + [(thread, near)]
        except OSError:
            pass  # closed

    def strike(self, rng: random.Random) -> bytes:
        """Put one frame between those of one side. Returns it."""
        ways = self._ways
        if not ways:
            return b""
        way = rng.choice(ways)
        data = self._data(rng, way)
        try:
            if data:
                way.put(data)
        except OSError:
            pass  # the connection has just been given up; there will be another
        return data

    def _data(self, rng: random.Random, way: Way) -> bytes:
        said = list(way.passed)
        if not said:
            return b""
        now = time.monotonic()
        if rng.random() < 0.7 or now < self._peace:
            return rng.choice(said)
        self._peace = now + _PEACE_S
        sample = rng.choice(self._samples)
        data = mutated(rng, sample, sample.whole) if rng.random() < 0.5 else sample.whole
        return data[: wire.FRAME_MAX]

    def close(self) -> None:
        """Listen no more, and hang up."""
        end_server(self._server)
        self._thread.join()
        for thread, near in self._between:
            hang_up(near)
            thread.join()


def _end(ways: tuple[Way, Way], *sockets: socket.socket) -> None:
    for way in ways:
        way.thread.join()
    for one in sockets:
        one.close()


def end_server(server: socket.socket) -> None:
    """Stop listening; who waits in `accept` is told."""
    hang_up(server)
    server.close()


def hang_up(one: socket.socket) -> None:
    """Whoever reads from it, on either side, is told."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is over already


def stranger_data(rng: random.Random) -> bytes:
    """What somebody says to a leader who is no rank of it: whole frames, broken ones, pieces, nothing."""
    sample = rng.choice(samples.group_frames())
    source, target = rng.getrandbits(64) | 1, rng.choice((0, 1, 2**64 - 1))
    number = rng.randrange(4)
    bodies: tuple[wire.Body, ...] = (
        group.Join(number, 3, b"me"),
        group.Join(1, rng.randrange(1, 9), b""),
        group.Resume(number),
        group.ReportDone(1, 0, 1),
        group.OutcomeDone(1, 0, 1, 1),
        group.Leave(final=True, detail=""),
    )
    kind = rng.random()
    if kind < 0.5:
        return wire.encode(rng.choice(bodies), source, target)
    if kind < 0.7:
        return framed(mutated(rng, sample, sample.whole)[: wire.FRAME_MAX])
    if kind < 0.8:
        return framed(sample.whole)[: rng.randrange(len(sample.whole))]
    if kind < 0.9:
        return rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b""))
    return rng.randbytes(rng.randrange(200))
