"""The processes of a live attack: prefill, decode and the attacker; started, asked and ended by their parent.

`python -m kvrooms.fuzz.child ROLE FD` answers calls (method, arguments) with (True, result) or (False, traceback) on
the pipe at FD, until `close`. The process ends with its parent: a thread sits on the pipe, and its end is the end.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from ..engine.draining import Drainer
from ..engine.host import Drained
from ..engine.settings import ELSEWHERE
from ..protocol.errors import KvroomsError

ROLES = {
    "prefill": (".honest_prefill", "HonestPrefill"),
    "decode": (".honest_decode", "HonestDecode"),
    "attacker": (".attacker", "Attacker"),
    "group": (".group_siege", "GroupSiege"),
}
_DRAIN = "drain"
_DRAIN_S = 5.0  # honest prefill keeps rooms open ahead that decode asks for no more
_DRAIN_LIMIT_S = 15.0
_GRACE_S = 5.0
_PARENT_GONE = 3


class ChildError(KvroomsError):
    """A process failed or did not answer; the text says which, and how."""


class Child:
    """One process, as its parent sees it."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._drained: dict[str, Drained] = {}
        ours, theirs = Pipe()
        with theirs:
            # -P: in a checkout, the working directory's folder kvrooms is not the whole package.
            command = [sys.executable, "-P", "-m", "kvrooms.fuzz.child", role, str(theirs.fileno())]
            environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}  # no secret
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self._pipe: Connection[Any, Any] = ours

    def ask(self, method: str, *arguments: Any) -> None:
        """Call a method there; `answer` has what it returns. Raises ChildError."""
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._gone() from None

    def answer(self, limit_s: float) -> Any:
        """What the method returned. Raises ChildError."""
        try:
            if not self._pipe.poll(limit_s):
                raise ChildError(f"no answer within {limit_s:g} s from the {self.role} process")
            good, value = self._pipe.recv()
            if good is None:  # it was told to end by somebody else
                self._drained = value
                good, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if not good:
            raise ChildError(f"in the {self.role} process:\n{value}")
        return value

    def call(self, method: str, *arguments: Any, limit_s: float = 60.0) -> Any:
        """Ask, and wait for the answer. Raises ChildError."""
        self.ask(method, *arguments)
        return self.answer(limit_s)

    def drain(self) -> dict[str, Drained]:
        """Have it let its open rooms end, and end itself: what became of them, by engine."""
        end = time.monotonic() + _DRAIN_LIMIT_S
        try:
            self._pipe.send((_DRAIN, ()))
        except OSError:
            pass  # it is gone; it may have been told by somebody else, and have left a report
        try:
            while self._pipe.poll(max(0.0, end - time.monotonic())):
                good, value = self._pipe.recv()
                self._drained = value if good is None else self._drained
        except (EOFError, OSError):
            pass
        return self._drained

    def cpu_s(self) -> float:
        """Processor seconds that it has used; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _gone(self) -> ChildError:
        self.end()
        return ChildError(f"the {self.role} process has ended with status {self.process.returncode}")

    def end(self) -> None:
        """End the process, gently if it goes by itself."""
        self._pipe.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Faults(logging.Handler):
    """Keeps what is logged as an error: a thread that died, a task that failed, a request answered with 500."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0
        self.first: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        self.count += 1
        if len(self.first) < 5:
            text = logging.Formatter("%(name)s: %(message)s").format(record)
            self.first.append(text[-2000:])


FAULTS = Faults()


def listen_for_faults() -> None:
    """Let nothing but errors through in this process, and those to `FAULTS`."""
    logging.basicConfig(level=logging.ERROR, handlers=[FAULTS])


def _listen(
    pipe: Connection[Any, Any], calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]], drainer: Drainer
) -> None:
    try:
        while True:
            call = pipe.recv()
            if call[0] == _DRAIN:
                drainer.ask()
            else:
                calls.put(call)
    except (EOFError, OSError):
        os._exit(_PARENT_GONE)


def main(role: str, descriptor: int) -> None:
    """Answer calls until `close`, or until it is told to end: then drain (`Drainer`), and send (None, report)."""
    listen_for_faults()
    module, name = ROLES[role]
    side: Any = getattr(importlib.import_module(module, __package__), name)()
    pipe: Connection[Any, Any] = Connection(descriptor)
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    speaking = threading.Lock()

    def say(what: tuple[bool | None, Any]) -> None:
        with speaking:
            pipe.send(what)

    drainer = Drainer(lambda found: say((None, found)), _DRAIN_S)
    threading.Thread(target=_listen, args=(pipe, calls, drainer), name="parent", daemon=True).start()
    method = ""
    while method != "close":
        method, arguments = calls.get()
        try:
            say((True, getattr(side, method)(*arguments)))
        except Exception:  # noqa: BLE001 - whatever it is, the parent shows it
            say((False, traceback.format_exc()))
    drainer.finish()


if __name__ == "__main__":
    # Not as __main__: the sides import this module, and there must be one FAULTS.
    importlib.import_module("kvrooms.fuzz.child").main(sys.argv[1], int(sys.argv[2]))
