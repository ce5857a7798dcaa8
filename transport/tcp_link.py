"""One TCP connection of the control channel: framing, the queue of what is to be sent, and what errors mean."""

from __future__ import annotations

import errno
import itertools
import selectors
import socket
from collections import deque

from ..protocol.errors import WireError
from ..protocol.wire import FRAME_MAX, PREFIX_LENGTH, frame_length
from .ports import ChannelEvent, CloseCause, FrameIn
from .tcp_auth import MAGIC, TAG_LENGTH, WANTED, Proof, Session

FIRST_FRAME_MAX = 4 * 2**20
"""The longest first frame of a connection, in bytes: nobody has introduced himself yet."""
CHUNK = 64 * 2**10
_WRITES = 64  # per call, so that a peer that reads fast does not hold up the others
_BUFFERS = 64  # per write
NOBODY = "nobody listens there"
_WORDS = {errno.ECONNREFUSED: NOBODY}

Target = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class Link:
    """A connection. `socket` is None before it is dialled and after its end.

    targets: addresses still to be tried. watched: what the selector looks for. until: when a lingering one is given up,
    or one that has not proven itself. proof: the exchange that comes before the first frame, where there is a secret.
    """

    __slots__ = (
        "_limit",
        "_need",
        "_out",
        "_partial",
        "_session",
        "address",
        "inbound",
        "number",
        "opened",
        "proof",
        "queued",
        "socket",
        "targets",
        "until",
        "watched",
    )

    def __init__(self, number: int, address: str, *, inbound: bool) -> None:
        self.number = number
        self.address = address
        self.inbound = inbound
        self.socket: socket.socket | None = None
        self.targets: list[Target] = []
        self.opened = False
        self.watched = 0
        self.until = 0.0
        self.queued = 0
        self._out: deque[bytes | memoryview] = deque()
        self._limit = FIRST_FRAME_MAX
        self._partial = bytearray()
        self._need = 0
        self._session: Session | None = None
        self.proof: Proof | None = None

    def prove(self, session: Session) -> None:
        """Both ends have proven themselves: from now on every frame has its digest, those that wait already too."""
        self._session = session
        waiting = [bytes(frame) for frame in self._out]
        self.discard()
        for frame in waiting:
            self.push(frame)

    def split(self, data: bytes, events: list[ChannelEvent]) -> None:
        """Cut frames off the stream, after what is left of earlier pieces. Raises WireError after the good ones.

        A long frame in many pieces is collected once, and not copied at each of them.
        """
        session, partial = self._session, self._partial
        tail = TAG_LENGTH if session is not None else 0
        if partial:
            partial += data
            if len(partial) < self._need:
                return
            data = bytes(partial)
            self._partial = bytearray()
        at, size = 0, len(data)
        self._need = PREFIX_LENGTH
        while size - at >= PREFIX_LENGTH:
            start = at + PREFIX_LENGTH
            try:
                end = start + frame_length(data[at:start], self._limit)
            except WireError:
                if data[at:start] != MAGIC:
                    raise
                raise WireError("authentication", WANTED) from None
            if end + tail > size:
                self._need = end + tail - at
                break
            if session is not None:
                session.check(data[at:end], data[end : end + tail])
            events.append(FrameIn(self.number, data[start:end]))
            self._limit = FRAME_MAX
            at = end + tail
        if at < size:
            self._partial += data[at:] if at else data

    def push(self, frame: bytes) -> None:
        """Queue a frame."""
        if self._session is not None:
            frame += self._session.seal(frame)
        self._out.append(frame)
        self.queued += len(frame)

    def discard(self) -> None:
        """Forget what is queued."""
        self._out.clear()
        self.queued = 0

    def transmit(self) -> None:
        """Send what is queued, as far as the network takes it: small frames in one call. Raises OSError."""
        made, out = self.socket, self._out
        assert made is not None
        if len(out) == 1:  # the common case, without the bookkeeping of the others
            try:
                sent = made.send(out[0])
            except BlockingIOError:
                return
            if sent == self.queued:
                self.discard()
            else:
                self._sent(sent)
            return
        for _ in range(_WRITES):
            if not out:
                return
            if len(out) > 1 and self.queued <= CHUNK:
                joined = b"".join(out)
                out.clear()
                out.append(joined)
            try:
                sent = made.send(out[0]) if len(out) == 1 else made.sendmsg(itertools.islice(out, _BUFFERS))
            except BlockingIOError:
                return
            if not self._sent(sent):
                return

    def _sent(self, sent: int) -> bool:
        """Drop what was sent from the queue. False if it was less than what was offered."""
        out = self._out
        self.queued -= sent
        for _ in range(min(len(out), _BUFFERS)):
            length = len(out[0])
            if sent < length:
                out[0] = memoryview(out[0])[sent:]
                return False
            out.popleft()
            sent -= length
        return True

    def watch(self, selector: selectors.BaseSelector, mask: int) -> None:
        """Have the selector look for these events; 0: for none."""
        if mask != self.watched:
            assert self.socket is not None
            if not mask:
                selector.unregister(self.socket)
            elif self.watched:
                selector.modify(self.socket, mask, self)
            else:
                selector.register(self.socket, mask, self)
            self.watched = mask


def resolve(host: str, port: int, flags: int = 0) -> list[Target]:
    """The addresses of a host. Blocks, unless flags say that it is a number. Raises OSError or UnicodeError."""
    return [(found[0], found[4]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)]


def look_up(host: str, port: int, flags: int = 0) -> tuple[list[Target], str]:
    """The addresses of a host; or none, and why in words. Blocks as `resolve` does."""
    try:
        return resolve(host, port, flags), ""
    except (OSError, UnicodeError) as error:
        return [], str(error) or type(error).__name__


def connecting(target: Target) -> tuple[socket.socket | None, str]:
    """A nonblocking socket on its way to a target; or None, and why in words."""
    try:
        made = socket.socket(target[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        return None, str(error)
    try:
        code = made.connect_ex(target[1])
    except OSError as error:  # an address that this family does not know
        code = error.errno or errno.EINVAL
    if code in {0, errno.EINPROGRESS}:
        return made, ""
    made.close()
    return None, in_words(code)


def connect_failure(made: socket.socket) -> str:
    """How an attempt to connect has ended: "" if the connection is open."""
    code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return in_words(code)
    try:
        # The port that the system chose for us may be the very one that we dialled, where nobody listens.
        return NOBODY if made.getsockname() == made.getpeername() else ""
    except OSError as error:
        return in_words(error.errno or errno.ENOTCONN)


def in_words(code: int) -> str:
    """An error number for people."""
    return _WORDS.get(code) or errno.errorcode.get(code, f"error {code}")


def verdict(error: OSError, address: str) -> tuple[CloseCause, str]:
    """What an error of a socket says. In doubt it is the network's: that proves nothing about the peer."""
    reset = error.errno in {errno.ECONNRESET, errno.EPIPE}
    return (CloseCause.RESET if reset else CloseCause.TIMED_OUT), f"{address}: {error.strerror or error}"
