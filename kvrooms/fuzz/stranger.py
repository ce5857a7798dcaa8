"""Strikes by somebody who was never let in: at prefill's control port, and at the registry's HTTP port."""

from __future__ import annotations

import random
import struct

from ..protocol import registration, wire
from ..protocol.layout import Layout, Regions
from ..protocol.registration import Registration
from . import samples
from .mutate import changed, mutated, noise
from .sockets import Kept, connect, send

_FLOOD_S = 2.0


def flood(address: str, connections: int) -> int:
    """So many connections at once; how many were made."""
    made = Kept(connections)
    count = 0
    for _ in range(connections):
        one = connect(address)
        if one is not None:
            made.add(one)
            count += 1
    made.close()
    return count


class Stranger:
    """Connections to a control port that are no handshake, or a bad one.

    Blobs are exchanged as a whole only: NIXL hands them to UCX, which ends the process on some that are nearly valid.
    No check of ours can tell, so who may send one is decided before (`docs/security.md`).
    """

    def __init__(self, address: str, layout: Layout, regions: Regions, blob: bytes) -> None:
        self._address = address
        self._layout = layout
        self._hello = wire.Hello("stranger", f"kvrooms-{1:016x}", layout, regions, blob)
        self._frames = samples.frames()
        self._kept = Kept()

    def data(self, rng: random.Random) -> bytes:
        """What is sent on one connection."""
        kind = rng.randrange(10)
        sample = self._frames[rng.randrange(len(self._frames))]
        whole = struct.pack("<I", len(sample.whole)) + sample.whole
        if kind == 0:
            return noise(rng, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        if kind == 1:
            return b""  # half open
        if kind == 2:
            return whole[: rng.randrange(len(whole))]  # truncated, and then silence
        if kind == 3:
            return struct.pack("<I", rng.choice((0, 1, 28, 2**22 + 1, 2**26, 2**32 - 1))) + whole
        if kind in (4, 5):
            return whole  # well-formed and out of place
        if kind == 6:
            bare = wire.Hello("stranger", f"kvrooms-{1:016x}", self._layout, self._hello.regions, b"no blob at all")
            return changed(rng, wire.encode(bare, 1, 0), whole)
        if kind == 7:  # a HELLO that is well-formed; its blob is that of another agent, or of none
            blob = rng.choice((self._hello.blob, b"\0", rng.randbytes(300)))
            false = wire.Hello("stranger", f"kvrooms-{2:016x}", self._layout, self._hello.regions, blob)
            return wire.encode(false, 2, 0)
        if kind == 8:  # its agent is not that of its incarnation
            return wire.encode(self._hello, rng.choice((0, 3, 2**64 - 1)), 0)
        body = mutated(rng, sample, whole)
        return struct.pack("<I", len(body)) + body

    def strike(self, data: bytes) -> None:
        """One connection, with what `data` returned."""
        one = connect(self._address)
        if one is not None:
            if data:
                send(one, data)
            self._kept.add(one)

    def flood(self, connections: int) -> int:
        """See `flood`."""
        return flood(self._address, connections)

    def close(self) -> None:
        """Hang up everywhere."""
        self._kept.close()


class WebStranger:
    """Requests to a registry."""

    def __init__(self, netloc: str, instance: str) -> None:
        self._address = netloc
        self._instance = instance
        self._kept = Kept()
        entry = Registration("attacker", 0, "127.0.0.1:9", 0xBAD, 16, "00", 1.0)
        self._body = registration.encode_announcement(entry)
        self._bodies = samples.announcements()

    def data(self, rng: random.Random) -> bytes:
        """One request, or what is meant to look like one."""
        kind = rng.randrange(10)
        other = f"attacker-{rng.randrange(50)}"
        if kind == 0:
            return noise(rng, b"PUT /v1/engines/x/0 HTTP/1.1\r\n")
        if kind == 1:
            return b"PUT /v1/engines/slow/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"  # and then silence
        if kind == 2:
            return _request("PUT", f"/v1/engines/{other}/0", mutated(rng, self._bodies[0], self._body))
        if kind == 3:  # the honest engine's name, and nothing that could be an engine
            return _request("PUT", f"/v1/engines/{self._instance}/0", noise(rng, b"{"))
        if kind == 4:
            return _request("DELETE", f"/v1/engines/{self._instance}/0?incarnation={rng.getrandbits(64) | 1:016x}")
        if kind == 5:
            return _request("PUT", f"/v1/engines/{other}/{rng.randrange(-1, 70000)}", self._body)
        if kind == 6:
            path = rng.choice(
                ("/", "/v1/engines", "/v1/engines/../../x", "/v1/engines/%00/0", "/v1/engines/-/0", "/health")
            )
            return _request(rng.choice(("GET", "POST", "HEAD", "TRACE", "X" * 40)), path)
        if kind == 7:
            return b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * rng.choice((1, 50, 2000)) + b"\r\n"
        if kind == 8:
            return _request("PUT", f"/v1/engines/{other}/0", b"{" + b" " * rng.choice((10, 70_000)))
        return changed(rng, _request("PUT", f"/v1/engines/{other}/0", self._body), self._body)

    def strike(self, data: bytes) -> None:
        """One request on a connection of its own, with what `data` returned."""
        one = connect(self._address)
        if one is not None:
            send(one, data)
            self._kept.add(one)

    def close(self) -> None:
        """Hang up everywhere."""
        self._kept.close()


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
