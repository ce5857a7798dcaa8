"""Probes of doors and processes, on real sockets where they are about sockets: who is let in, and what a fork may do.

Time is real here, and only waited for where something is missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...engine import forks
from ...engine.security import Security
from ...engine.settings import EngineSettings
from ...protocol.errors import EngineClosed, InvalidArgument, WireError
from ...protocol.notify import Part, PartKind
from ...protocol.status import Status
from ...protocol.wire import HEADER_LENGTH
from ...transport.ports import CloseCause, Closed, FrameIn, Opened
from ...transport.tcp import TcpChannel
from ...transport.tcp_auth import Proof, Session
from ...transport.tcp_door import Door
from .hand import HandPrefill
from .probe import Play, probe
from .stage import Aside, Broken

_SECRET = b"a secret of sixteen bytes or more"
_SOON_S = 10.0
"""By then what should happen at once has happened on any machine; it is waited for in full only where it does not."""


# -- proof of a secret -------------------------------------------------------------------------------------------------


def _ends(ours: bytes = _SECRET, theirs: bytes = _SECRET) -> tuple[Proof, Proof]:
    return Proof(ours, b"d" * 32, inbound=False), Proof(theirs, b"l" * 32, inbound=True)


def _sessions() -> tuple[Session, Session]:
    dialler, listener = _ends()
    said = dialler.take(listener.take(dialler.first))
    dialler.take(listener.take(said))
    if dialler.session is None or listener.session is None:
        raise Aside
    return dialler.session, listener.session


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except WireError:
        return True
    return False


@probe("S5", seeds=1)
def who_does_not_know_the_secret_is_not_let_in(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """Another secret at either end; our own proof sent back to us; a proof of nothing."""
    dialler, listener = _ends(theirs=b"another secret, just as long")
    if not _refused(lambda: listener.take(dialler.take(listener.take(dialler.first)))):
        raise Broken("a dialler with another secret was let in")
    dialler, _ = _ends()
    dialler.take(listener.first or b"KRA1" + b"l" * 32)
    if not _refused(lambda: dialler.take(bytes(32))):
        raise Broken("a listener that knows no secret was believed")
    dialler, _ = _ends()
    proof = dialler.take(b"KRA1" + b"d" * 32)
    if not _refused(lambda: dialler.take(proof)):
        raise Broken("a listener was believed that sent back what the dialler had said")


@probe("S5", seeds=1)
def a_frame_is_believed_once_and_in_its_place(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """Changed, repeated, left out, before its time, or our own: whoever carries the frames cannot do that."""
    for how in ("changed", "repeated", "left out", "our own"):
        near, far = _sessions()
        first, second = b"the first frame", b"the second frame"
        tags = [near.seal(first), near.seal(second)]
        harm: dict[str, Sequence[tuple[bytes, bytes]]] = {
            "changed": [(b"another  frame!", tags[0])],
            "repeated": [(first, tags[0]), (first, tags[0])],
            "left out": [(second, tags[1])],
            "our own": [(first, far.seal(first))],
        }
        *good, last = harm[how]
        for frame, tag in good:
            far.check(frame, tag)
        if not _refused(lambda last=last, far=far: far.check(*last)):  # type: ignore[misc]
            raise Broken(f"a frame that was {how} was taken for the next one of the peer")


@probe("S5", seeds=1)
def engines_that_others_reach_need_a_secret(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """Addresses of other machines, private ones and "all of them": without a secret nothing listens there."""
    for host in ("0.0.0.0", "10.1.2.3", "192.168.0.7", "169.254.1.1", "::", "fe80::1", "8.8.8.8", "::ffff:10.0.0.1"):  # noqa: S104
        try:
            Security().check((host, 0), None)
        except InvalidArgument:
            continue
        raise Broken(f"an engine without a secret may listen on {host}, where other machines reach it")


# -- the door ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _channels(*made: TcpChannel) -> Iterator[None]:
    try:
        yield
    finally:
        for channel in made:
            channel.close_all()


def _until(holds: Callable[[], bool], *channels: TcpChannel) -> bool:
    """Poll channels until something holds; False if it does not for long."""
    end = time.monotonic() + _SOON_S
    while not holds():
        if time.monotonic() > end:
            return False
        for channel in channels:
            channel.flush()
        time.sleep(0.001)
    return True


class _Seen:
    """A channel, and the events that it had so far."""

    def __init__(self, channel: TcpChannel) -> None:
        self.channel = channel
        self.events: list[Any] = []

    def of(self, *kinds: type) -> list[Any]:
        """The events of some kinds up to now."""
        self.events += self.channel.poll()
        return [event for event in self.events if isinstance(event, kinds)]


@probe("L4", seeds=1)
def strangers_that_say_nothing_keep_nobody_out(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """Many connect and prove nothing; one that knows the secret gets in, and is heard."""
    server = TcpChannel(("127.0.0.1", 0), max_connections=6, door=Door(_SECRET, seconds=60.0, most=2))
    client = TcpChannel(None, door=Door(_SECRET))
    with _channels(server, client), contextlib.ExitStack() as stack:
        there, here = _Seen(server), _Seen(client)
        host, _, port = server.address.rpartition(":")
        for _ in range(12):
            stack.enter_context(socket.create_connection((host, int(port))))
            there.of(Opened)
        number = client.dial(server.address)
        frame = (HEADER_LENGTH + 1).to_bytes(4, "little") + bytes(HEADER_LENGTH + 1)
        client.send(number, frame)
        if not _until(lambda: bool(there.of(FrameIn) or here.of(Closed)), client) or not there.of(FrameIn):
            raise Broken(f"strangers that prove nothing keep a peer out: {here.of(Opened, Closed)}")


@probe("C1", seeds=1)
def nothing_is_left_of_who_proves_nothing(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """A stranger that says nothing is shown the door when its time is over."""
    server = TcpChannel(("127.0.0.1", 0), door=Door(_SECRET, seconds=0.01))
    with _channels(server):
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.setblocking(False)  # noqa: FBT003

            def gone() -> bool:
                server.poll()
                try:
                    return not stranger.recv(100)
                except BlockingIOError:
                    return False
                except OSError:
                    return True

            if not _until(gone):
                raise Broken("a connection that proves nothing within its time stays")


# -- forks -------------------------------------------------------------------------------------------------------------


@probe("L1", seeds=1)
def a_fork_of_an_engine_takes_nothing_in(play: Play) -> None:
    """In a fork there is no thread that could end anything: every call is refused, and none waits."""
    stage = play.scene()
    receiver, sender = stage.receive(), stage.offer()
    stage.settle()
    calls: dict[str, Callable[[], object]] = {
        "open on decode": lambda: stage.receive(8, pages=[10], aux_index=4),
        "open on prefill": lambda: stage.offer(8),
        "hold": lambda: stage.hold(9),
        "abort": receiver.abort,
        "send": lambda: sender.send([3]),
        "poll": sender.poll,
    }
    for side in (*stage.decodes, *stage.prefills):
        side.engine.pid += 1  # as a fork sees it: the engine is another process's
    for what, call in calls.items():
        try:
            call()
        except EngineClosed:
            continue
        raise Broken(f"{what} was taken in by a fork of the engine's process, where nothing will ever end it")


class _Engine:
    """A process that has a connection, and a fork of it."""

    def __init__(self, channel: TcpChannel) -> None:
        self.channel = channel

    def forked(self) -> None:
        """See `forks.Forked`."""
        self.channel.abandon()


@probe("L5", seeds=1)
def the_death_of_a_process_is_seen_although_a_fork_of_it_lives(play: Play) -> None:  # noqa: ARG001 - it needs no stage
    """Its kernel closes its connection when it dies, and that is the proof; a copy of the socket would hold it open."""
    server = TcpChannel(("127.0.0.1", 0))
    with _channels(server):
        there = _Seen(server)
        told, tell = os.pipe()
        victim = os.fork()
        if victim == 0:
            _die_and_leave_a_fork(server, tell)
        os.close(tell)
        with os.fdopen(told, "rb") as pipe:
            fork = int(pipe.readline() or b"0")
        os.waitpid(victim, 0)
        try:
            seen = _until(lambda: bool(there.of(Closed)))
        finally:
            if fork:
                os.kill(fork, signal.SIGKILL)
        if not there.of(Opened):
            raise Aside
        if not seen or there.of(Closed)[0].cause not in (CloseCause.PEER_CLOSED, CloseCause.RESET):
            raise Broken("a process is dead, and as long as a fork of it lives nobody is told", seen=there.of(Closed))


def _die_and_leave_a_fork(server: TcpChannel, tell: int) -> None:
    """In a process of its own: connect, fork, and die. Never returns."""
    with contextlib.suppress(BaseException):
        channel = TcpChannel(None)
        engine = _Engine(channel)
        forks.watch(engine)
        seen = _Seen(channel)
        channel.dial(server.address)
        _until(lambda: bool(seen.of(Opened)))
        fork = os.fork()
        if fork == 0:
            os.close(tell)
            time.sleep(4 * _SOON_S)
            os._exit(0)
        os.write(tell, b"%d\n" % fork)
    os.kill(os.getpid(), signal.SIGKILL)


# -- what a peer leaves out --------------------------------------------------------------------------------------------


@probe("S5", seeds=1)
def a_digest_that_is_left_out_is_not_believed(play: Play) -> None:
    """Decode has asked for digests; a peer reports everything, without one."""
    stage = play.scene(settings=EngineSettings(digest=1))
    hand = HandPrefill(stage)
    receiver = stage.receive(instance=hand.name)
    hand.welcome()
    hand.notify(Part(PartKind.KV, 0, 0, 3), Part(PartKind.AUX, 0, 0, 1))
    if receiver.poll() is Status.DONE:
        raise Broken("a room with digests is DONE on the word of a peer that gave none")
