"""Connections from somebody who has no business here: garbage, half-open ones, other protocols, false names."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import urlsplit

from ..protocol import wire
from ..protocol.layout import Layout, Regions

_HALF_OPEN_S = 0.3


def payloads(draw: random.Random, layout: Layout, regions: Regions) -> list[bytes]:
    """What strangers send to a control port."""
    hello = wire.Hello("stranger", f"kvrooms-{1:016x}", layout, regions, b"no blob of any agent")
    honest = wire.encode(hello, 1, 0)
    return [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff" + draw.randbytes(64),
        b"\0\0\0\0",
        draw.randbytes(draw.randint(1, 400)),
        honest,
        honest[: draw.randint(5, len(honest) - 1)],
        wire.encode(wire.Ack(1), draw.getrandbits(63), 0),
        wire.encode(hello, 2, 0),
        b"",
    ]


async def visit(address: str, payload: bytes) -> None:
    """Connect, send, listen for a moment, and hang up. Whatever becomes of it is of no interest."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        return
    try:
        writer.write(payload)
        await writer.drain()
        async with asyncio.timeout(_HALF_OPEN_S):
            while await reader.read(4096):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


async def call_on(draw: random.Random, address: str, bootstrap: str, layout: Layout, regions: Regions) -> None:
    """A few visits to a control port, and one to the registry, all at once."""
    some = draw.sample(payloads(draw, layout, regions), draw.randint(1, 4))
    registry = urlsplit(bootstrap).netloc
    nonsense = b"PUT /v1/engines/x/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n" + draw.randbytes(9)
    await asyncio.gather(*(visit(address, one) for one in some), visit(registry, nonsense))
