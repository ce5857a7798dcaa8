"""The control channel on plain TCP: length-prefixed frames, every socket nonblocking in one selector.

One thread owns a channel; `wake` alone may be called by any. What ended a connection is told apart with care, because
others conclude from PEER_CLOSED and RESET that a process is gone: only the peer's kernel can cause those two.
"""

from __future__ import annotations

import errno
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

from ..protocol.errors import WireError
from ..protocol.registration import parse_address
from ..protocol.wire import FRAME_MAX
from .ports import ChannelEvent, CloseCause, Closed, Opened
from .tcp_door import Door
from .tcp_link import CHUNK, FIRST_FRAME_MAX, NOBODY, Link, Target, connect_failure, connecting, look_up, verdict
from .tcp_listen import Listener

__all__ = ["FIRST_FRAME_MAX", "TcpChannel"]

log = logging.getLogger("kvrooms.tcp")
_BACKLOG_LIMIT = 2 * FRAME_MAX
_READS_PER_POLL = 16  # of one chunk each, so that one talkative peer does not starve the others
_ACCEPTS_PER_POLL = 64
_LINGER_S = 2.0
_OURS = (CloseCause.OVERFLOW, CloseCause.BAD_FRAME)
"""Ends that we decide while both processes live: the socket stays until its owner calls `close`."""
_CLOSE_ALL_S = 0.5
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class TcpChannel:
    """Ordered frames over TCP. `listen` is (host, port) or None; port 0 lets the system choose.

    max_connections: further ones are closed on arrival. backlog_limit: with more bytes than that queued to a peer that
    does not read, its connection is given up. door: what both ends must prove before the first frame. Raises OSError
    when it cannot listen.
    """

    def __init__(
        self,
        listen: tuple[str, int] | None,
        *,
        max_connections: int = 1024,
        backlog_limit: int = _BACKLOG_LIMIT,
        door: Door | None = None,
    ) -> None:
        self._listener = Listener(*listen) if listen is not None else None
        self._door = door or Door()
        self._max_connections = max_connections
        self._backlog_limit = backlog_limit
        self.refused = 0
        """How many connections were closed on arrival because there were too many."""
        self._numbers = itertools.count(1)
        self._links: dict[int, Link] = {}
        self._lingering: set[Link] = set()
        self._held: dict[int, Link] = {}
        self._dirty: dict[Link, None] = {}
        self._events: list[ChannelEvent] = []
        self._resolved: deque[tuple[int, list[Target], str]] = deque()
        self._sleeping = self._woken = self._closed = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._hammer = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._selector.register(self._bell, _READ)
        if self._listener is not None:
            self._selector.register(self._listener.socket, _READ)

    @property
    def address(self) -> str:
        """The "host:port" that it listens on; "" if it does not listen."""
        return self._listener.address if self._listener is not None else ""

    def counters(self) -> dict[str, int]:
        """How many connections were not let in, by reason."""
        return {"connections refused: too many": self.refused, **self._door.counts}

    # -- the port ----------------------------------------------------------------------------------------------------

    def dial(self, address: str) -> int:
        """Start to open a connection to "host:port". Returns its number; Opened or Closed follows."""
        link = Link(next(self._numbers), address, inbound=False)
        self._links[link.number] = link
        try:
            host, port = parse_address(address)
        except WireError as error:
            self._end(link, CloseCause.UNREACHABLE, str(error))
            return link.number
        link.targets, words = look_up(host, port, socket.AI_NUMERICHOST)
        if words:
            # A name: its server may take seconds to answer, and every other peer waits for this thread.
            threading.Thread(target=self._look_up, args=(link.number, host, port), daemon=True).start()
        else:
            self._connect(link, "")
        return link.number

    def send(self, connection: int, frame: bytes) -> None:
        """Queue a frame (length prefix included). Unknown or closed connections are ignored: Closed tells."""
        link = self._links.get(connection)
        if link is None:
            return
        link.push(frame)
        if link.queued > self._backlog_limit:
            self._end(link, CloseCause.OVERFLOW, f"{link.queued} bytes are queued to {link.address}")
        elif link.opened:
            self._dirty[link] = None

    def flush(self) -> None:
        """Hand everything that is queued to the network, as far as it takes it."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for link in dirty:
                if not link.watched & _WRITE:  # otherwise the network was full, and will say when it is not
                    self._write(link)

    def close(self, connection: int) -> None:
        """Close a connection after what is queued was handed over. Idempotent.

        Closed(LOCAL) is reported at once. The socket lives on for some seconds at most; what arrives is ignored.
        """
        held = self._held.pop(connection, None)
        if held is not None:
            self._forget(held)
        link = self._links.get(connection)
        if link is None:
            return
        words = f"closed the connection to {link.address}"
        if link.opened:
            link.until = time.monotonic() + _LINGER_S
            self._lingering.add(link)
            del self._links[connection]
            self._events.append(Closed(connection, CloseCause.LOCAL, words))
            self._write(link)
        else:
            self._door.forget(link)
            self._end(link, CloseCause.LOCAL, words)

    def poll(self) -> Sequence[ChannelEvent]:
        """What happened since the last call."""
        for key, mask in self._selector.select(0):
            link = key.data
            if link is None:
                self._bell_or_listener(key.fileobj)
                continue
            if mask & _READ:
                self._read(link)
            if mask & _WRITE and link.socket is not None:
                self._writable(link)
        while self._resolved:
            number, targets, words = self._resolved.popleft()
            if (waiting := self._links.get(number)) is not None:
                waiting.targets = targets
                self._connect(waiting, words)
        for late in self._door.late():
            self._end(late, CloseCause.TIMED_OUT, "it has not proven itself in time")
        if self._lingering:
            now = time.monotonic()
            # One with words that the peer has not taken keeps its socket: without them its end would be misread.
            for late in [link for link in self._lingering if now > link.until and not link.queued]:
                self._forget(late)
        events = self._events
        if events:
            self._events = []
        return events

    def close_all(self) -> None:
        """Hand over what is queued, as far as half a second allows, and close every socket. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._selector.unregister(self._listener.socket)
            self._listener.close()
        for number in list(self._links):
            self.close(number)
        end = time.monotonic() + _CLOSE_ALL_S
        while self._lingering and (left := end - time.monotonic()) > 0:
            self._selector.select(left)
            self.poll()
        for link in [*self._lingering, *self._held.values()]:
            self._forget(link)
        self._held.clear()
        self._events = []
        self._selector.close()
        self._bell.close()
        self._hammer.close()

    def abandon(self) -> None:
        """In a fork: close its copies of all sockets, and unregister nothing: the selector is that of both."""
        links = [*self._links.values(), *self._lingering, *self._held.values()]
        for one in (self._listener, self._bell, self._hammer, self._selector, *(link.socket for link in links)):
            if one is not None:
                one.close()

    # -- sleep and wake ----------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Sleep until a socket is ready or `wake` was called since the last `wait`, at most `timeout_s` seconds."""
        if self._events or self._resolved:
            return
        if self._lingering:
            timeout_s = min(timeout_s, _LINGER_S)
        timeout_s = self._door.patience_s(timeout_s)
        # The order matters. We announce the sleep, then look for a wake; `wake` leaves its mark, then looks for a
        # sleep. So at least one of the two sees the other. What a wake is about was queued before it, and our caller
        # looks at its queues after this method: a mark that is wiped below is never a wake lost.
        self._sleeping = True
        if not self._woken:
            self._selector.select(max(timeout_s, 0.0))
        self._sleeping = False
        self._woken = False

    def wake(self) -> None:
        """End the sleep, or keep the next one from beginning. Any thread; cheap unless the owner really sleeps."""
        if self._woken:
            return
        self._woken = True
        if self._sleeping:
            try:
                self._hammer.send(b"\0")
            except OSError:
                pass  # full: it rings already; closed: nobody sleeps any more

    # -- opening -----------------------------------------------------------------------------------------------------

    def _look_up(self, number: int, host: str, port: int) -> None:
        """On a thread of its own: resolve a name."""
        self._resolved.append((number, *look_up(host, port)))
        self.wake()

    def _connect(self, link: Link, words: str) -> None:
        """Try the next address of a connection that is being dialled; `words`: how the last one failed."""
        while link.targets:
            target = link.targets.pop(0)
            if words := self._door.forbidden(target):
                continue
            link.socket, words = connecting(target)
            if link.socket is not None:
                link.watch(self._selector, _WRITE)
                return
        cause = CloseCause.NOBODY if words == NOBODY else CloseCause.UNREACHABLE
        self._end(link, cause, f"cannot connect to {link.address}: {words}")

    def _open(self, link: Link, made: socket.socket) -> None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket = made
        link.watch(self._selector, _READ)
        for late in self._door.receive(link):
            self._end(late, CloseCause.TIMED_OUT, "others came after it, and it has not proven itself")
        if link.proof is None:
            self._let_in(link)

    def _let_in(self, link: Link) -> None:
        link.opened = True
        self._events.append(Opened(link.number, link.inbound, link.address))
        if link.queued:
            self._dirty[link] = None

    def _bell_or_listener(self, which: object) -> None:
        if which is self._bell:
            try:
                self._bell.recv(4096)
            except BlockingIOError:
                pass
        else:
            for _ in range(_ACCEPTS_PER_POLL):
                if not self._accept():
                    return

    def _accept(self) -> bool:
        """Accept one connection. Whether there may be more."""
        assert self._listener is not None
        try:
            accepted = self._listener.accept()
        except OSError as error:
            self.refused += error.errno in {errno.EMFILE, errno.ENFILE}
            return False
        if accepted is None:
            return False
        made, address = accepted
        if len(self._links) + len(self._lingering) + len(self._held) >= self._max_connections:
            self.refused += 1
            made.close()
            return True
        link = Link(next(self._numbers), address, inbound=True)
        self._links[link.number] = link
        self._open(link, made)
        return True

    # -- reading and writing -----------------------------------------------------------------------------------------

    def _read(self, link: Link, known: tuple[CloseCause, str] | None = None, *, last: bool = False) -> None:
        """Take what has arrived: frames, then how the connection ended, if it has and is not `known` better.

        last: read to the end; there will be no other time.
        """
        ended: tuple[CloseCause, str] | None = None
        reads, made = 0, link.socket
        while made is not None and (reads < _READS_PER_POLL or last):
            reads += 1
            try:
                data = made.recv(CHUNK)
            except BlockingIOError:
                break
            except OSError as error:
                ended = known or verdict(error, link.address)
                break
            if not data:
                ended = known or (CloseCause.PEER_CLOSED, f"{link.address} closed the connection")
                break
            if link.until:
                continue
            try:
                if link.proof is not None:
                    rest = self._door.hear(link, data)
                    if rest is None:
                        continue
                    self._let_in(link)
                    data = rest
                link.split(data, self._events)
            except WireError as error:
                ended = (CloseCause.BAD_FRAME, f"{link.address}: {error}")
                break
            if len(data) < CHUNK and not last:
                break
        if ended is not None:
            self._end(link, *ended)

    def _writable(self, link: Link) -> None:
        made = link.socket
        if link.opened or made is None:
            self._write(link)
        elif words := connect_failure(made):
            link.watch(self._selector, 0)
            made.close()
            link.socket = None
            self._connect(link, words)
        else:
            self._open(link, made)

    def _write(self, link: Link) -> None:
        if link.socket is None:
            return
        try:
            link.transmit()
            if link.until and not link.queued:
                # Closing at once, with bytes unread, might destroy what was just handed over: wait for the peer's end.
                link.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._broken(link, error)
        else:
            if link.queued or link.watched != _READ:
                link.watch(self._selector, _READ | _WRITE if link.queued else _READ)

    def _broken(self, link: Link, error: OSError) -> None:
        """A send failed. What arrived before that is still delivered.

        The failed call has taken the socket's error with it, so that recv may return 0 although nobody closed: the
        send's error decides. Only EPIPE by itself proves nothing; then recv knows whether a FIN or a reset came.
        """
        link.discard()
        known = None if error.errno == errno.EPIPE else verdict(error, link.address)
        self._read(link, known, last=True)
        if link.socket is not None:
            self._end(link, *(known or (CloseCause.TIMED_OUT, f"{link.address}: it broke, and nobody knows how")))

    def _end(self, link: Link, cause: CloseCause, detail: str) -> None:
        if link.proof is not None:  # whoever that was: its end proves nothing about a peer
            cause, detail = CloseCause.UNREACHABLE, self._door.turn_away(link, detail)
        if self._links.pop(link.number, None) is not None:
            if link.opened or not link.inbound:
                self._events.append(Closed(link.number, cause, detail))
            if cause in _OURS and link.opened and link.socket is not None:
                self._hold(link)
                return
        self._forget(link)

    def _hold(self, link: Link) -> None:
        """Keep the socket without looking at it: the peer would take its end for the end of our process."""
        self._dirty.pop(link, None)
        link.discard()
        link.watch(self._selector, 0)
        self._held[link.number] = link

    def _forget(self, link: Link) -> None:
        self._lingering.discard(link)
        self._dirty.pop(link, None)
        if link.socket is not None:
            link.watch(self._selector, 0)
            link.socket.close()
            link.socket = None
