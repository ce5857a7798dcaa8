"""The control channel on real sockets: what ended a connection, and what closing hands over."""

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from tcp_support import channels, connected, descriptors, framed, frames, of, payload, plain, pump, strange

from kvrooms.transport import tcp
from kvrooms.transport.ports import CloseCause, Closed, FrameIn, Opened
from kvrooms.transport.tcp import TcpChannel

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


def test_eof_is_a_peer_that_closed_and_its_last_frames_come_first(raw):
    server, stranger, number = raw
    stranger.sendall(framed(payload(1)) + framed(payload(2)))
    stranger.close()
    seen = pump(lambda e: of(Closed, e), server)
    assert seen[:2] == [FrameIn(number, payload(1)), FrameIn(number, payload(2))]
    assert seen[2][:2] == (number, CloseCause.PEER_CLOSED)
    assert len(seen) == 3
    assert not server.poll()
    server.send(number, framed(payload(3)))  # ignored
    server.close(number)
    server.flush()
    assert not server.poll()


def test_a_reset_is_told_apart(raw):
    server, stranger, number = raw
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()
    (closed,) = pump(lambda e: of(Closed, e), server)
    assert closed[:2] == (number, CloseCause.RESET)


def test_a_reset_that_a_send_finds_is_a_reset_and_frames_before_it_are_delivered(raw):
    server, stranger, number = raw
    stranger.sendall(framed(payload(1)))
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()
    # Before any poll: the send meets the error, and takes it away from recv.
    end = time.monotonic() + 20
    seen = []
    while not of(Closed, seen):
        server.send(number, framed(payload(9)))
        server.flush()
        seen += server._events
        server._events = []
        assert time.monotonic() < end
    assert of(Closed, seen)[0][:2] == (number, CloseCause.RESET)
    assert frames(seen) in ([], [payload(1)])  # the system may drop what a reset overtook


class Broken:
    """A socket whose send fails with one error after another, and whose recv then says EOF, as the kernel's does."""

    def __init__(self, real, code):
        self._real, self._code = real, code

    def __getattr__(self, name):
        return getattr(self._real, name)

    def send(self, data):
        raise OSError(self._code, os.strerror(self._code))

    def recv(self, size):
        if isinstance(data := self._real.recv(size), bytes) and data:
            return data
        return b""


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (errno.ETIMEDOUT, CloseCause.TIMED_OUT),
        (errno.EHOSTUNREACH, CloseCause.TIMED_OUT),
        (errno.ECONNRESET, CloseCause.RESET),
        (errno.EPIPE, CloseCause.PEER_CLOSED),
    ],
)
def test_an_eof_after_a_failed_send_proves_nothing(raw, code, cause):
    server, stranger, number = raw
    stranger.sendall(framed(payload(1)))
    stranger.shutdown(socket.SHUT_WR)
    link = server._links[number]
    link.socket.setblocking(True)
    assert link.socket.recv(1, socket.MSG_PEEK)  # it is there
    link.socket.setblocking(False)
    link.socket = Broken(link.socket, code)
    server.send(number, framed(payload(2)))
    server.flush()
    seen = server._events
    server._events = []
    assert seen[0] == FrameIn(number, payload(1))
    assert seen[1][:2] == (number, cause)
    assert len(seen) == 2


def test_a_broken_pipe_alone_is_no_proof(raw):
    server, _, number = raw
    link = server._links[number]
    real = link.socket

    class Silent(Broken):
        def recv(self, size):
            raise BlockingIOError

    link.socket = Silent(real, errno.EPIPE)
    server.send(number, framed(payload(2)))
    server.flush()
    (closed,) = server.poll()
    assert closed[:2] == (number, CloseCause.TIMED_OUT)


@pytest.mark.parametrize(
    ("code", "cause"), [(errno.ECONNRESET, CloseCause.RESET), (errno.ETIMEDOUT, CloseCause.TIMED_OUT)]
)
def test_errors_of_recv_are_told_apart(raw, code, cause):
    server, stranger, number = raw
    link = server._links[number]

    class Failing(Broken):
        def recv(self, size):
            raise OSError(self._code, os.strerror(self._code))

    link.socket = Failing(link.socket, code)
    stranger.sendall(b"x")
    (closed,) = pump(lambda e: of(Closed, e), server)
    assert closed[:2] == (number, cause)


PEER = """
import sys, socket
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stop", [False, True])
def test_a_killed_process_is_an_eof_and_a_stopped_one_silence(server, stop):
    port = server.address.rsplit(":", 1)[1]
    child = subprocess.Popen(
        [sys.executable, "-c", PEER, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "up\n"
        (opened,) = pump(lambda e: of(Opened, e), server)
        if stop:
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            server.wait(0.2)
            assert not server.poll()
        child.kill()
        (closed,) = pump(lambda e: of(Closed, e), server)
        assert closed.connection == opened.connection
        assert closed.cause in {CloseCause.PEER_CLOSED, CloseCause.RESET}
    finally:
        child.kill()
        child.wait(20)
        child.stdin.close()
        child.stdout.close()


def test_a_peer_that_does_not_read_is_given_up(server):
    with channels(TcpChannel(("127.0.0.1", 0), backlog_limit=2**20)) as small, plain(small) as stranger:
        number = of(Opened, pump(lambda e: of(Opened, e), small))[0].connection
        for index in range(2**20):
            small.send(number, framed(payload(index, 32768)))
            small.flush()
            if closed := of(Closed, small.poll()):
                break
        assert closed[0][:2] == (number, CloseCause.OVERFLOW)
        assert not small._links
        stranger.close()


def test_partial_writes_go_on_where_they_stopped(pair):
    server, client, _, near = pair
    client._links[near].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    wanted = [payload(0)] + [os.urandom(size) for size in (100_000, 29, 900_000, 70_000, 29, 29)] * 3
    for one in wanted:
        client.send(near, framed(one))
    client.flush()
    link = client._links[near]
    assert link.queued, "the test wants the network to be full"
    assert link.watched & tcp._WRITE
    _, seen = pump(lambda _, e: len(frames(e)) == len(wanted), client, server)
    assert frames(seen) == wanted
    assert link.queued == 0
    client.poll()
    assert not link.watched & tcp._WRITE, "an idle connection must not keep the sleeper awake"


def test_flush_sends_many_small_frames_in_one_call(pair):
    _, client, _, near = pair
    link = client._links[near]
    calls = []

    class Counting(Broken):
        def send(self, data):
            calls.append(len(data))
            return self._real.send(data)

    link.socket = Counting(link.socket, 0)
    for index in range(50):
        client.send(near, framed(payload(index)))
    client.flush()
    client.flush()
    assert calls == [50 * len(framed(payload(0)))]
    link.socket = link.socket._real


def test_close_hands_over_what_is_queued(pair):
    server, client, far, near = pair
    wanted = [payload(index, 100_000) for index in range(60)]
    for one in wanted:
        client.send(near, framed(one))
    client.close(near)
    client.close(near)
    client.send(near, framed(payload(99)))  # too late
    mine, theirs = pump(lambda _, e: of(Closed, e), client, server)
    assert [event[:2] for event in mine] == [(near, CloseCause.LOCAL)]
    assert frames(theirs) == wanted
    assert of(Closed, theirs)[0][:2] == (far, CloseCause.PEER_CLOSED)
    pump(lambda _: not client._lingering, client)


def test_close_with_unread_bytes_does_not_destroy_the_last_words(raw):
    server, stranger, number = raw
    stranger.sendall(framed(payload(1)) * 1000)
    server.send(number, framed(payload(2)))
    server.close(number)
    stranger.sendall(framed(payload(1)) * 1000)
    pump(lambda e: of(Closed, e), server)
    received = b""
    stranger.settimeout(20)
    while data := stranger.recv(4096):
        received += data
        server.poll()
    assert received == framed(payload(2))
    stranger.close()
    pump(lambda _: not server._lingering, server)


def test_a_lingering_connection_is_dropped_in_the_end(raw, monkeypatch):
    monkeypatch.setattr(tcp, "_LINGER_S", 0.2)
    server, _, number = raw
    server.close(number)
    assert len(server._lingering) == 1
    pump(lambda _: not server._lingering, server)


def test_close_all_hands_over_and_is_idempotent(server):
    client = TcpChannel(None)
    before = len(descriptors())
    near = client.dial(server.address)
    pump(lambda a, _: of(Opened, a), client, server)
    client.send(near, framed(payload(1)))
    client.close_all()
    client.close_all()
    client.wake()
    seen = pump(lambda e: of(Closed, e), server)
    assert frames(seen) == [payload(1)]
    assert of(Closed, seen)[0].cause is CloseCause.PEER_CLOSED
    assert len(descriptors()) < before


def test_close_all_does_not_wait_for_a_silent_peer(raw):
    server, _, _ = raw
    begun = time.monotonic()
    server.close_all()
    assert time.monotonic() - begun < 5
