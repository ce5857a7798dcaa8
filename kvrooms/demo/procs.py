"""The parent's side of its children: starting them, hearing them, and seeing to it that none outlives the demo."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from .messages import DRAIN
from .ranks import SIDES, Topology

_HERE = Path(__file__).parent
_STDERR_LINES = 12
_GRACE_S = 5.0
# One thread per process: two cores are shared by three models' processes, and the order of sums stays the same.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONUNBUFFERED": "1",
}


def commands(topology: Topology) -> dict[str, list[str]]:
    """The command line of each child by name.

    `-P` keeps the working directory off the path: in a checkout, its folder `kvrooms` is not the whole package.
    """
    python = sys.executable
    guard = [python, "-P", str(_HERE / "guard.py"), str(os.getpid())]
    return {
        "registry": [*guard, python, "-P", "-m", "kvrooms", "bootstrap", "--port", "0"],
        "reference": [python, "-P", str(_HERE / "reference.py")],
        **{child: [python, "-P", "-m", f"kvrooms.demo.{side}"] for side in SIDES for child in topology.children(side)},
    }


@dataclass(frozen=True)
class Line:
    """One line that a child wrote."""

    child: str
    data: bytes


@dataclass(frozen=True)
class Exit:
    """A child has ended, and all it wrote has been heard; negative `status` is a signal's number."""

    child: str
    status: int


class Children:
    """The demo's child processes by name. Use as a context manager: leaving it ends them all."""

    def __init__(self, instead: dict[str, list[str]] | None = None, topology: Topology | None = None) -> None:
        """`instead` gives other command lines for some of the children (tests)."""
        self._commands = {**commands(topology or Topology()), **(instead or {})}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._errors: dict[str, deque[str]] = {}
        self._heard: queue.Queue[Line | Exit] = queue.Queue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start a child. Raises OSError if it cannot be started."""
        process = subprocess.Popen(
            self._commands[name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        self._running[name] = process
        self._errors[name] = deque(maxlen=_STDERR_LINES)
        for target in (self._hear, self._keep_errors):
            label = f"{name}{target.__name__}"
            thread = threading.Thread(target=target, args=(name, process), name=label, daemon=True)
            thread.start()
            self._threads.append(thread)

    def tell(self, name: str, value: msgspec.Struct) -> None:
        """Send one instruction. A child that is gone hears nothing: its exit is reported by `hear`."""
        self._write(name, msgspec.json.encode(value))

    def drain(self, name: str) -> None:
        """Ask a child to drain its engines and end. One that is gone hears nothing."""
        self._write(name, DRAIN)

    def hear(self, timeout: float) -> Line | Exit | None:
        """The next line or exit of any child; None after `timeout` seconds."""
        try:
            return self._heard.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None

    def last_words(self, name: str) -> str:
        """The last lines of the standard error of a child that has ended; they may come a moment after its end."""
        for thread in self._threads:
            if thread.name == f"{name}{self._keep_errors.__name__}":
                thread.join(_GRACE_S)
        return "\n".join(self._errors.get(name, ()))

    def pids(self) -> dict[str, int]:
        """The process id of each child that runs."""
        return {name: process.pid for name, process in self._running.items() if process.poll() is None}

    def _write(self, name: str, line: bytes) -> None:
        pipe = self._running[name].stdin
        assert pipe is not None
        try:
            pipe.write(line + b"\n")
            pipe.flush()
        except (BrokenPipeError, ValueError):
            pass

    def kill(self) -> None:
        """Kill every child that runs. Does not wait; safe in a signal handler."""
        for process in list(self._running.values()):
            process.kill()

    def stop(self) -> None:
        """End every child: its input closes, then SIGTERM, then SIGKILL. Returns when all are gone."""
        for process in self._running.values():
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        ends = time.monotonic() + _GRACE_S
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                if process.poll() is None:
                    process.send_signal(sign)
            for process in self._running.values():
                try:
                    process.wait(max(0.1, ends - time.monotonic()) if sign is signal.SIGTERM else None)
                except subprocess.TimeoutExpired:
                    continue
        for thread in self._threads:
            thread.join(_GRACE_S)

    def _hear(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            for line in pipe:
                self._heard.put(Line(name, line))
        self._heard.put(Exit(name, process.wait()))

    def _keep_errors(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as pipe:
            for line in pipe:
                self._errors[name].append(line.decode(errors="replace").rstrip())
