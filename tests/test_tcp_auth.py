"""A secret on the control channel: who is let in, and that nothing on a connection can be changed by who carries it."""

import contextlib
import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, named
from tcp_support import channels, framed, frames, of, payload, plain, pump

from kvrooms.protocol.errors import WireError
from kvrooms.transport import tcp_auth, tcp_door
from kvrooms.transport.ports import CloseCause, Closed, FrameIn, Opened
from kvrooms.transport.tcp import TcpChannel
from kvrooms.transport.tcp_auth import MAGIC, TAG_LENGTH, Proof, Session
from kvrooms.transport.tcp_door import Door, is_here

pytestmark = pytest.mark.timeout(60)
SECRET = b"sixteen bytes of it"
REFUSED = "connections not authenticated"


def listening(secret=SECRET, **options):
    return TcpChannel(("127.0.0.1", 0), door=Door(secret, **options))


def dialling(secret=SECRET, **options):
    return TcpChannel(None, door=Door(secret, **options))


@pytest.fixture
def server():
    with channels(listening()) as channel:
        yield channel


@contextlib.contextmanager
def proven(server):
    """A client that has proven itself to the server, and the numbers of the connection there and here."""
    with channels(dialling()) as client:
        near = client.dial(server.address)
        _, seen = pump(lambda a, b: of(Opened, a) and of(Opened, b), client, server)
        yield client, of(Opened, seen)[0].connection, near


def exchange(dialler, listener):
    """Carry the exchange to its end."""
    said, answer = dialler.first, b""
    while said or answer:
        answer = listener.take(said) if said else b""
        said = dialler.take(answer) if answer else b""


def both(secret=SECRET, other=SECRET):
    return Proof(secret, b"d" * 32, inbound=False), Proof(other, b"l" * 32, inbound=True)


def sessions():
    dialler, listener = both()
    exchange(dialler, listener)
    return dialler.session, listener.session


# -- the exchange ------------------------------------------------------------------------------------------------------


def test_both_ends_come_out_with_keys_that_fit():
    near, far = sessions()
    for number in range(3):
        far.check(payload(number), near.seal(payload(number)))
        near.check(payload(number), far.seal(payload(number)))


@given(st.lists(st.integers(1, 40), min_size=1))
def test_the_exchange_may_come_in_any_pieces(steps):
    dialler, listener = both()
    pieces = iter(steps * 200)

    def carry(data, to):
        said = b""
        while data:
            size = next(pieces)
            said += to.take(data[:size])
            data = data[size:]
        return said

    said = dialler.first
    while said:
        said = carry(carry(said, listener), dialler)
    assert dialler.session is not None
    assert listener.session is not None
    assert dialler.rest == listener.rest == b""


def test_what_follows_the_proof_is_the_first_frame():
    dialler, listener = both()
    said = dialler.take(listener.take(dialler.first))
    dialler.take(listener.take(said) + b"frame")
    assert dialler.rest == b"frame"
    assert dialler.session is not None


def test_another_secret_is_refused_before_the_listener_has_said_anything_that_helps():
    dialler, listener = both(b"a" * 16, b"b" * 16)
    greeting = listener.take(dialler.first)
    assert greeting == MAGIC + b"l" * 32, "nothing that depends on the secret"
    with pytest.raises(WireError, match="another secret"):
        listener.take(dialler.take(greeting))
    assert listener.session is None


def test_a_listener_that_does_not_know_the_secret_gets_no_frame():
    dialler, _ = both()
    dialler.take(MAGIC + b"l" * 32)
    with pytest.raises(WireError, match="another secret"):
        dialler.take(b"\0" * 32)
    assert dialler.session is None


def test_our_own_proof_sent_back_proves_nothing():
    dialler, _ = both()
    proof = dialler.take(MAGIC + b"d" * 32)  # our own random bytes too
    with pytest.raises(WireError, match="another secret"):
        dialler.take(proof)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"\0\0\0\x20", b"K", b"KRA0"])
def test_what_is_no_greeting_is_refused_at_its_first_wrong_byte(start):
    listener = Proof(SECRET, b"l" * 32, inbound=True)
    if MAGIC.startswith(start):
        assert listener.take(start) == b""
    else:
        with pytest.raises(WireError, match="does not authenticate"):
            listener.take(start)


def test_no_two_connections_have_the_same_keys():
    one, other = sessions(), [Proof(SECRET, bytes([n]) * 32, inbound=n == 2) for n in (1, 2)]
    exchange(*other)
    tags = [end.seal(b"frame") for end in (*one, *(end.session for end in other))]
    assert len(set(tags)) == 4


# -- frames ------------------------------------------------------------------------------------------------------------


def check_frames():
    """Every way to change a stream of frames is found at the first one that is wrong."""
    for harm in ("changed", "repeated", "left out", "reordered", "sent back", "of another connection", "another tag"):
        near, far = sessions()
        sent = [(frame, near.seal(frame)) for frame in (b"zero", b"one", b"two")]
        other = Session(b"x" * 32, b"y" * 32)
        arrives = {
            "changed": [sent[0], (b"onE", sent[1][1])],
            "repeated": [sent[0], sent[0]],
            "left out": [sent[0], sent[2]],
            "reordered": [sent[1], sent[0]],
            "sent back": [(b"zero", far.seal(b"zero"))],
            "of another connection": [(b"zero", other.seal(b"zero"))],
            "another tag": [sent[0], (b"one", sent[0][1])],
        }[harm]
        for frame, digest in arrives[:-1] if harm != "reordered" else []:
            far.check(frame, digest)
        with pytest.raises(WireError, match="digest"):
            far.check(*(arrives[0] if harm == "reordered" else arrives[-1]))


def test_a_frame_that_is_not_the_next_one_is_found():
    check_frames()


@named(
    [
        Mutant(tcp_auth, "_digest", ', salt=number.to_bytes(16, "little")', ""),
        Mutant(tcp_auth, "_digest", "key=key", "key=b'k'"),
        Mutant(Session, "check", "not hmac.compare_digest", "hmac.compare_digest"),
        Mutant(Session, "check", "self._received += 1", "pass"),
        Mutant(Proof, "take", '[self._made(f"frames of the {role}") for role in ROLES]', "[b'k' * 32] * 2"),
    ]
)
def test_the_check_of_frames_finds_it(mutant, monkeypatch):
    mutant.plant(monkeypatch)
    dies(check_frames)


def test_frames_go_both_ways_and_those_that_waited_for_the_proof_too(server):
    with channels(dialling()) as client:
        near = client.dial(server.address)
        client.send(near, framed(payload(1)))
        client.send(near, framed(payload(2)))
        _, seen = pump(lambda _, e: len(frames(e)) == 2, client, server)
        assert frames(seen) == [payload(1), payload(2)]
        opened = of(Opened, seen)[0]
        assert opened.inbound
        for number in range(200):
            server.send(opened.connection, framed(payload(number, 100 + number)))
        mine = pump(lambda e, _: len(frames(e)) == 200, client, server)[0]
        assert frames(mine) == [payload(number, 100 + number) for number in range(200)]
        assert client.counters() == server.counters() == {"connections refused: too many": 0}


def test_a_long_frame_in_many_pieces(server):
    with proven(server) as (client, _, near):
        long = os.urandom(1024) * 5000
        client.send(near, framed(payload(1)))
        client.send(near, framed(long))
        client.send(near, framed(payload(2)))
        _, seen = pump(lambda _, e: len(frames(e)) == 3, client, server)
        assert frames(seen) == [payload(1), long, payload(2)]


# -- who is not let in -------------------------------------------------------------------------------------------------


def undisturbed(server):
    """A connection that proved itself before, and a check that it still works."""
    stack = contextlib.ExitStack()
    client, far, near = stack.enter_context(proven(server))

    def check():
        client.send(near, framed(payload(77)))
        server.send(far, framed(payload(78)))
        mine, theirs = pump(lambda a, b: frames(a) and frames(b), client, server)
        assert (frames(mine), frames(theirs)) == ([payload(78)], [payload(77)])
        assert not of(Closed, mine)
        assert far not in {closed.connection for closed in of(Closed, theirs)}
        stack.close()

    return check


def test_another_secret_is_not_let_in_and_both_ends_know_why(server):
    check = undisturbed(server)
    with channels(dialling(b"another secret, long")) as client:
        near = client.dial(server.address)
        client.send(near, framed(payload(1)))
        mine, theirs = pump(lambda e, _: of(Closed, e), client, server)
        (closed,) = of(Closed, mine)
        assert closed[:2] == (near, CloseCause.UNREACHABLE)
        assert "did not prove that it knows our secret" in closed.detail
        assert theirs == [], "the engine behind the door sees nothing of it"
    assert server.counters()[REFUSED] == 1
    check()


def test_without_a_secret_one_is_not_let_in_and_is_told_what_is_missing(server):
    check = undisturbed(server)
    with channels(TcpChannel(None)) as client:
        near = client.dial(server.address)
        client.send(near, framed(payload(1)))
        mine, theirs = pump(lambda e, _: of(Closed, e), client, server)
        assert of(Closed, mine)[0].connection == near
        assert not of(FrameIn, mine + theirs)
        assert not of(Opened, theirs)
    assert server.counters()[REFUSED] == 1
    check()


def test_a_secret_where_the_other_side_has_none_is_said_on_both_sides():
    with channels(TcpChannel(("127.0.0.1", 0)), dialling()) as (server, client):
        near = client.dial(server.address)
        seen = pump(lambda e, _: of(Closed, e), server, client)[0]
        (closed,) = of(Closed, seen)
        assert closed.cause is CloseCause.BAD_FRAME
        assert "set KVROOMS_SECRET" in closed.detail
        server.close(closed.connection)
        mine = pump(lambda e, _: of(Closed, e), client, server)[0]
        assert of(Closed, mine)[0][:2] == (near, CloseCause.UNREACHABLE)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 20, 35, 36, 37, 60, 67])
def test_a_connection_that_is_cut_during_the_exchange_is_nothing(server, cut):
    check = undisturbed(server)
    with plain(server) as stranger:
        proof = Proof(SECRET, os.urandom(32), inbound=False)
        stranger.sendall(proof.first[:cut])
        if cut >= 36:
            greeting = b""
            while len(greeting) < 36:
                server.poll()
                stranger.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    greeting += stranger.recv(36 - len(greeting))
            stranger.sendall(proof.take(greeting)[: cut - 36])
    seen = pump(lambda _: server.counters().get(REFUSED), server)
    assert seen == []
    assert len(server._links) == 1
    check()


def test_a_dialler_that_is_cut_off_during_the_exchange_is_told(server):
    for said in (b"", MAGIC, MAGIC + b"x" * 32, MAGIC + b"x" * 32 + b"y" * 5):
        with channels(dialling()) as client, socket.create_server(("127.0.0.1", 0)) as false:
            near = client.dial(f"127.0.0.1:{false.getsockname()[1]}")
            one, _ = false.accept()
            one.sendall(said)
            one.close()
            (closed,) = of(Closed, pump(lambda e: of(Closed, e), client))
            assert closed[:2] == (near, CloseCause.UNREACHABLE)


@pytest.mark.parametrize("said", [b"", b"K", MAGIC + b"x" * 31])
def test_who_says_too_little_is_closed_in_time_and_a_sleeping_channel_wakes_for_it(said):
    with channels(listening(seconds=0.2)) as server:
        check = undisturbed(server)
        with plain(server) as stranger:
            stranger.sendall(said)
            end = time.monotonic() + 20
            while not server.counters().get(REFUSED):
                server.wait(20)
                assert not server.poll()
                assert time.monotonic() < end, "nothing woke it"
            stranger.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
        check()


def test_one_byte_at_a_time_does_not_buy_more_time():
    with channels(listening(seconds=0.3)) as server, plain(server) as stranger:
        greeting = iter(MAGIC + b"x" * 32 + b"y" * 31)
        end = time.monotonic() + 20
        while not server.counters().get(REFUSED):
            with contextlib.suppress(OSError):
                if (byte := next(greeting, None)) is not None:
                    stranger.send(bytes([byte]))
            assert not server.poll()
            server.wait(0.01)
            assert time.monotonic() < end


def test_of_too_many_that_say_nothing_the_oldest_go_and_an_honest_one_gets_in():
    with channels(listening(most=5, seconds=30)) as server, contextlib.ExitStack() as stack:
        check = undisturbed(server)
        for _ in range(40):
            stack.enter_context(plain(server))
        pump(lambda _: server.counters().get(REFUSED) == 35, server)
        assert len(server._links) == 1 + 5
        with proven(server):
            pass
        check()


# -- who carries it ----------------------------------------------------------------------------------------------------


class Relay:
    """Between a client and the server; `change` sees every piece that goes to the server and may return another."""

    def __init__(self, server, change):
        self._server, self._change = server, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = []

    def poll(self):
        if not self._ends:
            with contextlib.suppress(BlockingIOError):
                near, _ = self._listener.accept()
                host, port = self._server.address.rsplit(":", 1)
                far = socket.create_connection((host, int(port)))
                self._ends = [near, far]
                for end in self._ends:
                    end.setblocking(False)
        for source, target, change in [(*self._ends, self._change), (*self._ends[::-1], bytes)] if self._ends else []:
            with contextlib.suppress(OSError):
                data = source.recv(65536)
                if data:
                    target.sendall(change(data))
                else:
                    target.shutdown(socket.SHUT_WR)
        return []

    def flush(self):
        pass

    def close_all(self):
        for end in (self._listener, *self._ends):
            end.close()


FRAME = framed(payload(5))
HARMS = {
    "a byte of the frame": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "a byte of its length": lambda data: bytes([data[0] ^ 2]) + data[1:] + bytes(64),
    "a byte of its digest": lambda data: data[:-1] + bytes([data[-1] ^ 0x80]),
    "the frame twice": lambda data: data * 2,
    "a frame of its own": lambda data: framed(payload(6)) + data,
    "a frame with a digest of its own": lambda data: framed(payload(6)) + bytes(TAG_LENGTH) + data,
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_a_relay_does_ends_its_connection_and_no_other(server, harm):
    check = undisturbed(server)
    armed = []
    relay = Relay(server, lambda data: HARMS[harm](data) if armed else data)
    with channels(relay, dialling()) as (_, client):
        near = client.dial(relay.address)
        opened = pump(lambda a, b, _: of(Opened, a) and of(Opened, b), client, server, relay)[1]
        armed.append(1)
        client.send(near, FRAME)
        seen = pump(lambda e, *_: of(Closed, e), server, client, relay)[0]
        (closed,) = of(Closed, seen)
        assert closed[:2] == (of(Opened, opened)[0].connection, CloseCause.BAD_FRAME)
        assert frames(seen) in ([], [payload(5)] if harm == "the frame twice" else [])
        server.close(closed.connection)
    check()


def test_a_relay_that_replays_a_whole_connection_is_not_let_in(server):
    heard = []
    relay = Relay(server, lambda data: heard.append(data) or data)
    with channels(relay, dialling()) as (_, client):
        near = client.dial(relay.address)
        pump(lambda a, b, _: of(Opened, a) and of(Opened, b), client, server, relay)
        client.send(near, FRAME)
        pump(lambda e, *_: frames(e), server, client, relay)
    with plain(server) as stranger:
        stranger.sendall(b"".join(heard))
        seen = pump(lambda _: server.counters().get(REFUSED), server)
        assert not of(Opened, seen)
        assert not frames(seen)


# -- other addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
        ("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("fe80::1%eth0", False), ("example.org", False),
        ("::ffff:10.0.0.1", False), ("", False),
    ],
)  # fmt: skip
def test_which_addresses_are_of_this_machine(host, here):
    assert is_here(host) is here


def test_without_a_secret_only_this_machine_is_dialled_unless_that_was_waived():
    with channels(dialling(None, anywhere=False)) as client:
        near = client.dial("192.0.2.1:9")
        (closed,) = client.poll()
        assert closed[:2] == (near, CloseCause.UNREACHABLE)
        assert "KVROOMS_SECRET" in closed.detail
    for door in (Door(None), Door(SECRET, anywhere=False)):
        assert not door.forbidden((socket.AF_INET, ("192.0.2.1", 9)))
    with channels(TcpChannel(("127.0.0.1", 0)), dialling(None, anywhere=False)) as (server, client):
        client.dial(server.address)
        pump(lambda e, _: of(Opened, e), client, server)


def test_what_is_turned_away_is_logged_ever_more_seldom(server, caplog):
    caplog.set_level("WARNING", logger="kvrooms.tcp")
    for number in range(1, 9):
        with plain(server) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            pump(lambda _, n=number: server.counters().get(REFUSED) == n, server)
    assert [record.args[-1] for record in caplog.records] == [1, 2, 4, 8]
    assert tcp_door.log.name == "kvrooms.tcp"
