"""One process of the pool: takes a role, is that rank until it is told to close, and is free for another role."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from ...engine.ending import SIGNALS, leave, status_of
from .memory import attach
from .messages import Close, FromWorker, Idle, Over, Role, Told, encode, to_worker
from .rank import DecodeRank, PrefillRank, Rank

CONDUCTOR_GONE = 3


def main(descriptor: int) -> int:
    """Take roles from the pipe until it closes. Returns the exit status.

    A first signal goes on to the conductor, which ends all processes in order; a second ends this one at once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_DFL)
    pipe: Connection[Any, Any] = Connection(descriptor)
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s", stream=sys.stderr, force=True)
    worker = Worker(pipe)
    threading.Thread(target=worker.listen, name="shapes-signals", daemon=True).start()
    worker.run()
    return 0


class Worker:
    """Everything but the engine's own threads, and the one that waits for signals, runs on the main thread."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Wait for signals."""
        self._say(Told(signal.Signals(signal.sigwait(SIGNALS)).name))
        leave(status_of(signal.Signals(signal.sigwait(SIGNALS))))

    def run(self) -> None:
        """Take one role after another."""
        try:
            while True:
                role = to_worker(self._pipe.recv_bytes())
                assert isinstance(role, Role)
                self._be(role)
        except (EOFError, OSError):  # the conductor has ended, or wants us to
            return

    def _be(self, role: Role) -> None:
        rank: Rank | None = None
        try:
            memory = attach(self._descriptor(), role.size)
            rank = (PrefillRank if role.side == "prefill" else DecodeRank)(role, memory)
            wrong = rank.carry()
        except Exception as error:  # noqa: BLE001 - whatever it is, the conductor has to know
            wrong = (f"{type(error).__name__}: {error}",)
        staged = (0, 0) if rank is None else rank.staged()
        self._say(Over(tuple(wrong)))
        assert isinstance(to_worker(self._pipe.recv_bytes()), Close)
        left = () if rank is None else rank.close()
        del rank
        gc.collect()  # the memory goes with the last array that shows it
        self._say(Idle(left, staged))

    def _descriptor(self) -> int:
        """The descriptor that follows a role."""
        with socket.fromfd(self._pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
            _, (descriptor,), _, _ = socket.recv_fds(pipe, 1, 1)
        return descriptor

    def _say(self, message: FromWorker) -> None:
        try:
            with self._lock:
                self._pipe.send_bytes(encode(message))
        except OSError:
            os._exit(CONDUCTOR_GONE)
