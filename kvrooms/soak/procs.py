"""The conductor's side of its processes: starting, asking, stopping and killing them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .messages import FromWorker, ToWorker, encode, from_worker

_GRACE_S = 10.0
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class ProcessError(Exception):
    """A process could not be started, or is gone."""


class Process:
    """One process of a soak: its pid, and the pipe to it. A closed pipe is how its end is noticed."""

    def __init__(self, name: str, pid: int, pipe: Connection[Any, Any]) -> None:
        self.name = name
        self.pid = pid
        self.pipe = pipe
        self._handle = os.pidfd_open(pid)  # a pid may become somebody else's, this does not

    def tell(self, message: ToWorker) -> bool:
        """Send a message; False if the process is gone."""
        try:
            self.pipe.send_bytes(encode(message))
        except OSError:
            return False
        return True

    def heard(self) -> FromWorker | None:
        """The next message, once there is one to read; None when the process has ended."""
        try:
            return from_worker(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens to a process that is gone."""
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            pass

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended, after waiting for that so long at most."""
        return bool(select.select([self._handle], [], [], timeout_s)[0])

    def stopped(self) -> bool:
        """Whether the kernel says that it is stopped."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
        except OSError:
            return False

    def close(self) -> None:
        """Let go of it. It should have ended."""
        self.pipe.close()
        os.close(self._handle)

    def rss(self) -> int:
        """Resident bytes; 0 when it is gone."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


class Processes:
    """Processes that all end with this one. A context manager: leaving it kills what is left.

    module: whose `main` they run.
    """

    def __init__(self, module: str = "kvrooms.soak.worker") -> None:
        self._module = module

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: in a checkout, the working directory's folder kvrooms is not the whole package.
            command = [sys.executable, "-P", "-m", "kvrooms.soak.zygote", str(theirs.fileno()), self._module]
            self._zygote = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is the conductor's to handle
            )
        self._asked = ours
        self._all: list[Process] = []
        self._ready = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._asked.close()
        try:
            self._zygote.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
        for process in self._all:
            process.ended(_GRACE_S)
            process.close()

    def kill(self) -> None:
        """Kill all of them. Does not wait; safe in a signal handler."""
        for process in list(self._all):
            process.signal(signal.SIGKILL)

    def start(self, name: str, message: ToWorker) -> Process:
        """A new process, told what it is. Raises ProcessError."""
        process = self.fork(name)
        process.tell(message)
        return process

    def fork(self, name: str) -> Process:
        """A new process. Raises ProcessError."""
        ours, theirs = Pipe()
        with theirs:
            try:
                if not self._ready:
                    self._ready = self._answer() == b"ready"
                socket.send_fds(self._asked, [name.encode()[:64]], [theirs.fileno()])
                pid = int(self._answer())
            except (OSError, ValueError) as error:
                ours.close()
                raise ProcessError(f"{name} could not be started: {error}") from None
        process = Process(name, pid, ours)
        self._all.append(process)
        return process

    def _answer(self) -> bytes:
        answer = self._asked.recv(64)
        if not answer:
            raise ProcessError("the process that starts the others has ended")
        return answer


def _has_descriptor() -> bool:
    """Whether standard error is a file that a child can write to (a test may have replaced it)."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True
