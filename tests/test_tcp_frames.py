"""The control channel on real sockets: frames out of a stream of bytes, malformed ones, and how they are sent."""

import itertools
import os
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tcp_support import SMALLEST, channels, connected, framed, frames, of, payload, plain, pump, strange

from kvrooms.protocol.errors import WireError
from kvrooms.protocol.wire import FRAME_MAX, HEADER_LENGTH
from kvrooms.transport import tcp_link
from kvrooms.transport.ports import CloseCause, Closed, FrameIn, Opened
from kvrooms.transport.tcp import FIRST_FRAME_MAX, TcpChannel
from kvrooms.transport.tcp_link import Link

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server():
    with channels(TcpChannel(("127.0.0.1", 0))) as channel:
        yield channel


@pytest.fixture
def pair(server):
    with connected(server) as both:
        yield both


@pytest.fixture
def raw(server):
    with strange(server) as both:
        yield both


@pytest.mark.parametrize("cut", range(len(framed(payload(0))) * 2 + 1))
def test_frames_split_at_every_byte(cut):
    stream = framed(payload(1)) + framed(payload(2))
    link, events = Link(7, "", inbound=True), []
    link.split(stream[:cut], events)
    assert frames(events) == [payload(1), payload(2)][: cut // len(framed(payload(0)))]
    link.split(stream[cut:], events)
    assert events == [FrameIn(7, payload(1)), FrameIn(7, payload(2))]


@given(st.lists(st.integers(SMALLEST, 300), max_size=8), st.lists(st.integers(1, 120), min_size=1))
def test_any_pieces_give_the_same_frames(sizes, steps):
    wanted = [payload(number, size) for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, wanted))
    link, events, at = Link(1, "", inbound=True), [], 0
    for step in itertools.cycle(steps):
        if at >= len(stream):
            break
        link.split(stream[at : at + step], events)
        at += step
    assert frames(events) == wanted


def test_a_frame_byte_by_byte_over_a_socket(raw):
    server, stranger, number = raw
    stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seen = []
    for byte in framed(payload(5)):
        assert not of(FrameIn, seen)
        stranger.send(bytes([byte]))
        seen += server.poll()
    seen += pump(lambda e: of(FrameIn, seen + e), server) if not of(FrameIn, seen) else []
    assert of(FrameIn, seen) == [FrameIn(number, payload(5))]


def test_many_frames_at_once_arrive_in_order_both_ways(pair):
    server, client, far, near = pair
    count = 20_000
    for number in range(count):
        client.send(near, framed(payload(number, SMALLEST + number % 300)))
        server.send(far, framed(payload(number)))
    mine, theirs = pump(lambda a, b: len(frames(a)) >= count <= len(frames(b)), client, server)
    assert frames(theirs) == [payload(number, SMALLEST + number % 300) for number in range(count)]
    assert frames(mine) == [payload(number) for number in range(count)]


def test_long_frames_go_through_and_the_longest_is_no_slower_per_byte(pair):
    server, client, _, near = pair
    client.send(near, framed(payload(0)))
    took = {}
    for size in (FRAME_MAX // 16, FRAME_MAX):
        long = os.urandom(1024) * (size // 1024)
        begun = time.perf_counter()
        client.send(near, framed(long))
        _, seen = pump(lambda _, e, size=size: any(len(f) == size for f in frames(e)), client, server)
        took[size] = time.perf_counter() - begun
        assert frames(seen)[-1] == long
    # 16 times as long; copying at every piece would make it 256 times as slow.
    assert took[FRAME_MAX] < 100 * took[FRAME_MAX // 16]


def test_a_partial_frame_costs_what_it_has_not_what_it_announces(raw):
    server, stranger, _ = raw
    stranger.sendall(framed(payload(1)) + struct.pack("<I", FRAME_MAX) + bytes(100))
    pump(lambda e: of(FrameIn, e), server)
    (link,) = server._links.values()
    assert len(link._partial) == 104


@pytest.mark.parametrize("length", [0, 1, HEADER_LENGTH, FIRST_FRAME_MAX + 1, 0xFFFFFFFF])
def test_a_malformed_length_ends_the_connection(raw, length):
    server, stranger, number = raw
    stranger.sendall(struct.pack("<I", length) + b"x")
    (closed,) = of(Closed, pump(lambda e: of(Closed, e), server))
    assert closed[:2] == (number, CloseCause.BAD_FRAME)
    assert str(length) in closed.detail
    # Our end of it would look like our death: it stays until whoever knows what we have posted lets go of it.
    stranger.settimeout(0.2)
    with pytest.raises(TimeoutError):
        stranger.recv(1)
    server.close(number)
    stranger.settimeout(20)
    try:
        assert stranger.recv(1) == b""
    except ConnectionResetError:
        pass


def test_garbage_after_good_frames_is_refused_after_them(raw):
    server, stranger, number = raw
    stranger.sendall(framed(payload(1)) + framed(payload(2)) + b"GET / HTTP/1.1\r\n\r\n")
    seen = pump(lambda e: of(Closed, e), server)
    assert seen[:2] == [FrameIn(number, payload(1)), FrameIn(number, payload(2))]
    assert seen[2][:2] == (number, CloseCause.BAD_FRAME)


def test_only_the_first_frame_is_limited_to_the_short_length():
    long = payload(1, FIRST_FRAME_MAX + 1)
    with pytest.raises(WireError, match="length"):
        Link(1, "", inbound=True).split(framed(long), [])
    link, events = Link(1, "", inbound=True), []
    link.split(framed(payload(0)) + framed(long), events)
    assert frames(events) == [payload(0), long]
    with pytest.raises(WireError, match="length"):
        link.split(struct.pack("<I", FRAME_MAX + 1), events)


def test_one_talkative_peer_does_not_starve_another(server):
    class Endless:
        """A socket that always has a full chunk to read."""

        def __init__(self, real):
            self.real = real

        def recv(self, size):
            return framed(payload(1, size - 4))

        def __getattr__(self, name):
            return getattr(self.real, name)

    with plain(server) as loud, plain(server) as quiet:
        opened = of(Opened, pump(lambda e: len(of(Opened, e)) == 2, server))
        link = server._links[opened[0].connection]
        link.socket = Endless(link.socket)
        loud.sendall(b"x")
        quiet.sendall(framed(payload(7)))
        seen = pump(lambda e: payload(7) in frames(e), server)
        assert sum(len(frame) + 4 for frame in frames(seen)) % tcp_link.CHUNK == SMALLEST + 4
        link.socket = link.socket.real
