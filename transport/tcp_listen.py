"""The listening end of the control channel: letting connections in, however many there are and want to be."""

from __future__ import annotations

import errno
import logging
import os
import socket

from ..protocol.registration import format_address
from .tcp_link import resolve

log = logging.getLogger("kvrooms.tcp")


class Listener:
    """A listening socket. Raises OSError when it cannot listen."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = _listening(host, port)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def address(self) -> str:
        """The "host:port" that it listens on."""
        return format_address(*self.socket.getsockname()[:2])

    def accept(self) -> tuple[socket.socket, str] | None:
        """One connection, nonblocking, and where it is from. None when there is none. Raises OSError.

        EMFILE means that one was turned away.
        """
        try:
            made, address = self.socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._turn_away()
            raise
        made.settimeout(0)
        return made, format_address(*address[:2])

    def _turn_away(self) -> None:
        """Out of file descriptors. Left in the queue, the stranger would wake us for ever: let him in and close."""
        log.warning("out of file descriptors: a connection is refused")
        os.close(self._spare)
        try:
            self.socket.accept()[0].close()
        except OSError:
            pass
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()
        os.close(self._spare)


def _listening(host: str, port: int) -> socket.socket:
    """A nonblocking listening socket. Raises OSError."""
    family, target = resolve(host, port, socket.AI_PASSIVE)[0]
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made
