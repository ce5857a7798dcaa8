"""What the tests of the control channel share: frames, a pump for channels that one thread drives, two set-ups."""

import contextlib
import os
import socket
import struct
import time

from kvrooms.protocol.wire import HEADER_LENGTH
from kvrooms.transport.ports import FrameIn, Opened
from kvrooms.transport.tcp import TcpChannel

SMALLEST = HEADER_LENGTH + 1


def framed(payload):
    return struct.pack("<I", len(payload)) + payload


def payload(number, size=SMALLEST):
    return struct.pack("<Q", number) + bytes(size - 8)


@contextlib.contextmanager
def channels(*made):
    try:
        yield made[0] if len(made) == 1 else made
    finally:
        for channel in made:
            channel.close_all()


def pump(until, *all_channels, seconds=20.0):
    """Poll and flush until `until(events of the first)` holds; the events of each."""
    events = [[] for _ in all_channels]
    end = time.monotonic() + seconds
    while True:
        for channel, seen in zip(all_channels, events, strict=True):
            seen += channel.poll()
            channel.flush()
        if until(*events):
            return events[0] if len(events) == 1 else events
        assert time.monotonic() < end, f"it did not come; last seen: {[short(e) for e in events]}"


def short(events):
    return [f"frame of {len(e.frame)}" if isinstance(e, FrameIn) else e for e in events[-3:]]


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def frames(events):
    return [event.frame for event in of(FrameIn, events)]


def descriptors():
    return os.listdir("/proc/self/fd")  # noqa: PTH208


def fill(call, argument):
    """Call until it refuses."""
    with contextlib.suppress(OSError):
        while True:
            call(argument)


@contextlib.contextmanager
def plain(server):
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        yield stranger


@contextlib.contextmanager
def connected(server):
    """The server, a channel that is connected to it, and the number of the connection on each side."""
    with channels(TcpChannel(None)) as client:
        near = client.dial(server.address)
        _, seen = pump(lambda a, b: of(Opened, a) and of(Opened, b), client, server)
        yield server, client, of(Opened, seen)[0].connection, near


@contextlib.contextmanager
def strange(server):
    """The server, a plain socket that is connected to it, and the connection's number."""
    with plain(server) as stranger:
        yield server, stranger, of(Opened, pump(lambda e: of(Opened, e), server))[0].connection
