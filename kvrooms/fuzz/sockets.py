"""The attacker's sockets: nobody it talks to can make it wait for long."""

from __future__ import annotations

import socket
from collections import deque

from ..protocol.registration import parse_address

_PATIENCE_S = 0.5
_KEPT = 40


def connect(address: str) -> socket.socket | None:
    """A connection to "host:port", or None."""
    host, port = parse_address(address)
    try:
        made = socket.create_connection((host, port), _PATIENCE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return None
    return made


def send(to: socket.socket, data: bytes) -> bool:
    """Send all of it; False if the other side has hung up or does not read."""
    try:
        to.settimeout(_PATIENCE_S)
        to.sendall(data)
    except OSError:
        return False
    return True


def drain(of: socket.socket) -> bytes | None:
    """What has arrived; None when the other side has hung up."""
    taken = bytearray()
    of.settimeout(0)
    try:
        while len(taken) < 2**20:
            data = of.recv(65536)
            if not data:
                return None
            taken += data
    except BlockingIOError:
        pass
    except OSError:
        return None
    return bytes(taken)


class Kept:
    """Connections that are left open without a word, the oldest of which is closed when there are too many."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._open: deque[socket.socket] = deque()

    def add(self, one: socket.socket) -> None:
        """Leave one open."""
        self._open.append(one)
        if len(self._open) > self._most:
            self._open.popleft().close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popleft().close()
