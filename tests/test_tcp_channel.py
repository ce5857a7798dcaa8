"""The control channel on real sockets: opening, being woken."""

import os
import resource
import socket
import sys
import threading
import time

import pytest
from tcp_support import channels, connected, descriptors, fill, framed, frames, of, payload, plain, pump, strange

from kvrooms.transport import tcp_link
from kvrooms.transport.ports import CloseCause, Closed, Opened
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


# -- opening ----------------------------------------------------------------------------------------------------------


def test_both_sides_learn_the_others_address(server):
    with channels(TcpChannel(None)) as client:
        near = client.dial(server.address)
        mine, theirs = pump(lambda a, b: of(Opened, a) and of(Opened, b), client, server)
        assert mine == [Opened(near, False, server.address)]
        assert theirs[0].inbound
        assert theirs[0].address.startswith("127.0.0.1:")
        assert client.address == ""
        link = client._links[near]
        assert link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not link.socket.get_inheritable()
        assert not server._listener.socket.get_inheritable()


def test_frames_sent_before_the_connection_opens_arrive(server):
    with channels(TcpChannel(None)) as client:
        near = client.dial(server.address)
        client.send(near, framed(payload(1)))
        client.send(near, framed(payload(2)))
        _, seen = pump(lambda _, e: len(frames(e)) == 2, client, server)
        assert frames(seen) == [payload(1), payload(2)]


def test_a_name_is_resolved_without_holding_up_the_thread(server, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    resolve = tcp_link.resolve

    def slow(host, port, flags=0):
        if host == "some.where" and not flags:
            asked.set()
            assert answer.wait(20)
            return resolve("127.0.0.1", port)
        return resolve(host, port, flags)

    monkeypatch.setattr(tcp_link, "resolve", slow)
    with channels(TcpChannel(None)) as client:
        port = server.address.rsplit(":", 1)[1]
        near = client.dial(f"some.where:{port}")
        assert asked.wait(20)
        assert not client.poll()
        answer.set()
        begun = time.monotonic()
        client.wait(20)
        assert time.monotonic() - begun < 10, "the resolver wakes the sleeper"
        assert pump(lambda e: of(Opened, e), client) == [Opened(near, False, f"some.where:{port}")]


def test_localhost_is_a_name(server):
    with channels(TcpChannel(None)) as client:
        client.dial(f"localhost:{server.address.rsplit(':', 1)[1]}")
        pump(lambda e: of(Opened, e), client)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:PORT", "nobody listens"),
        ("no-such-host.invalid:80", "no-such-host.invalid"),
        ("nonsense", "host:port"),
        ("127.0.0.1:0", "host:port"),
        (f"{'a' * 70}.invalid:80", "cannot connect"),
    ],
)
def test_dialling_nothing_says_why(address, words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else can have it
        with channels(TcpChannel(None)) as client:
            near = client.dial(address.replace("PORT", str(taken.getsockname()[1])))
            client.send(near, framed(payload(1)))
            (closed,) = pump(lambda e: e, client)
            nobody = words == "nobody listens"
            assert closed[:2] == (near, CloseCause.NOBODY if nobody else CloseCause.UNREACHABLE)
            assert words in closed.detail
            assert not client.poll()
            assert not client._links


def test_a_second_address_of_a_name_is_tried(server, monkeypatch):
    resolve = tcp_link.resolve
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        def two(host, port, flags=0):
            dead = (socket.AF_INET, taken.getsockname())
            return [dead, *resolve(host, port, flags)]

        monkeypatch.setattr(tcp_link, "resolve", two)
        with channels(TcpChannel(None)) as client:
            client.dial(server.address)
            assert len(pump(lambda e: of(Opened, e), client)) == 1


def test_a_connection_to_oneself_is_none():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.connect(made.getsockname())
        assert "nobody" in tcp_link.connect_failure(made)


def test_a_dialled_connection_can_be_given_up_before_it_opens():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fill = [socket.socket() for _ in range(4)]
        try:
            for one in fill:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            with channels(TcpChannel(None)) as client:
                near = client.dial(f"127.0.0.1:{full.getsockname()[1]}")
                client.close(near)
                client.close(near)
                assert [event[:2] for event in client.poll()] == [(near, CloseCause.LOCAL)]
                assert not client.poll()
        finally:
            for one in fill:
                one.close()


def test_a_taken_port_is_refused_and_leaves_nothing_behind(server):
    host, port = server.address.rsplit(":", 1)
    before = len(descriptors())
    with pytest.raises(OSError, match="in use"):
        TcpChannel((host, int(port)))
    assert len(descriptors()) == before


def test_ipv6_addresses_have_brackets():
    try:
        channel = TcpChannel(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with channels(channel, TcpChannel(None)) as (server, client):
        assert server.address.startswith("[::1]:")
        client.dial(server.address)
        mine, theirs = pump(lambda a, b: of(Opened, a) and of(Opened, b), client, server)
        assert theirs[0].address.startswith("[::1]:")
        assert mine


def test_connections_over_the_limit_are_closed_on_arrival_and_counted():
    with channels(TcpChannel(("127.0.0.1", 0), max_connections=2)) as server:
        with plain(server), plain(server):
            pump(lambda e: len(of(Opened, e)) == 2, server)
            with plain(server) as third:
                pump(lambda _: server.refused == 1, server)
                assert third.recv(1) == b""
        pump(lambda e: len(of(Closed, e)) == 2, server)
        with plain(server):  # there is room again
            pump(lambda e: of(Opened, e), server)
        assert server.refused == 1


def test_without_file_descriptors_strangers_are_refused_and_do_not_keep_us_awake(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with plain(server):
        pump(lambda e: of(Opened, e), server)
        stranger = socket.socket()
        top = max(map(int, descriptors()))
        filled = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 2, hard))
        try:
            fill(lambda _: filled.append(os.dup(0)), None)
            host, port = server.address.rsplit(":", 1)
            stranger.settimeout(20)
            stranger.connect((host, int(port)))
            pump(lambda _: server.refused, server)
            begun = time.monotonic()
            server.wait(0.2)
            assert time.monotonic() - begun > 0.15, "the listening socket keeps ringing"
        finally:
            for one in filled:
                os.close(one)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert stranger.recv(1) == b""
        stranger.close()


# -- sleep and wake ---------------------------------------------------------------------------------------------------


def test_wait_ends_when_something_arrives(raw):
    server, stranger, _ = raw
    begun = time.monotonic()
    threading.Timer(0.1, stranger.sendall, (framed(payload(1)),)).start()
    server.wait(20)
    assert time.monotonic() - begun < 10
    assert frames(server.poll()) == [payload(1)]


def test_wait_does_not_begin_with_events_at_hand(server):
    with channels(TcpChannel(None)) as client:
        client.dial("nonsense")
        begun = time.monotonic()
        client.wait(20)
        assert time.monotonic() - begun < 10
        assert of(Closed, client.poll())


def test_a_wake_before_the_sleep_counts_and_counts_once(server):
    server.wake()
    server.wake()
    begun = time.monotonic()
    server.wait(20)
    assert time.monotonic() - begun < 10
    begun = time.monotonic()
    server.wait(0.2)
    assert time.monotonic() - begun > 0.15


def test_wakes_of_an_awake_owner_cost_no_system_call(server):
    class Refusing:
        def send(self, data):
            raise AssertionError("the owner is awake")

        def close(self):
            pass

    hammer, server._hammer = server._hammer, Refusing()
    for _ in range(3):
        server.wake()
    server._hammer = hammer


class Raced(TcpChannel):
    """A channel that is woken, by somebody else, right after its owner has looked at the mark of a wake."""

    race = False
    mark = False

    @property
    def _woken(self):
        seen = self.mark
        if self.race:
            self.race = False
            self.wake()
        return seen

    @_woken.setter
    def _woken(self, mark):
        self.mark = mark


def test_a_wake_between_the_last_look_and_the_sleep_is_not_lost():
    with channels(Raced(None)) as channel:
        channel.race = True
        begun = time.monotonic()
        channel.wait(20)
        assert time.monotonic() - begun < 10
        assert not channel.race


def test_no_wake_is_ever_lost(server):
    """Many threads queue and wake, one sleeps and takes: with a lost wake, a sleep of 20 s would end the test."""
    queue, total, threads = [], 4 * 3000, []

    def work():
        for index in range(3000):
            queue.append(index)
            server.wake()
            if index % 7 == 0:
                time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        taken, longest = 0, 0.0
        while taken < total:
            some = len(queue)  # it grows meanwhile
            taken += some
            del queue[:some]
            if taken < total and not queue:
                begun = time.monotonic()
                server.wait(20)
                longest = max(longest, time.monotonic() - begun)
                server.poll()
        assert longest < 10
    finally:
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join(20)
