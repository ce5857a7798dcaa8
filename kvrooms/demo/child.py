"""The child's end of the line to the parent: events out, instructions in, and no life without the parent."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from ..engine.draining import Drainer
from ..protocol.errors import EngineClosed
from .jobs import Job
from .messages import DRAIN, Addresses, Drained, Event, Gather, Trouble

T = TypeVar("T")


class Parent:
    """Standard input and output of a child. What libraries print goes to standard error instead."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._output = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._known: dict[str, str] = {}

    def follow(self, drain: Callable[[], None]) -> None:
        """Begin to listen. drain: called when the parent wants this process to drain its engines and end."""
        threading.Thread(target=self._follow, args=(drain,), name="kvrooms-demo-parent", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Send one event. A parent that is gone ends this process."""
        line = msgspec.json.encode(event) + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._output, line) :]
            except BrokenPipeError:
                os._exit(3)

    def receive(self, kind: type[T], timeout: float) -> T:
        """The next instruction. Raises TimeoutError after `timeout` seconds."""
        try:
            line = self._lines.get(timeout=max(0.0, timeout))
        except queue.Empty:
            raise TimeoutError(f"the parent sent no {kind.__name__} within {timeout:.0f} s") from None
        return msgspec.json.decode(line, type=kind)

    def addresses(self, keys: Iterable[str], timeout: float) -> dict[str, str]:
        """The addresses under `keys`, as soon as the parent has told them all. Raises TimeoutError."""
        wanted = set(keys)
        limit = Limit(timeout)
        while not self._known.keys() >= wanted:
            self._known |= self.receive(Addresses, limit.left).urls
        return {key: self._known[key] for key in wanted}

    def gather(self) -> Gather | None:
        """The next request to generate, if the parent has named one. Once all addresses are known; never blocks."""
        return None if self._lines.empty() else self.receive(Gather, 0.0)

    def _follow(self, drain: Callable[[], None]) -> None:
        pending = b""
        while data := os.read(0, 1 << 16):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line == DRAIN:
                    drain()
                else:
                    self._lines.put(line)
        os._exit(3)  # the parent has gone or wants no more of us


class Limit:
    """How long this child may still take, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())


def serve(work: Callable[[Parent, Job, Limit], None]) -> None:
    """The whole life of a child: take the job, do `work`, and say why if it fails (exit status 1).

    Told to end, by a signal or its parent, it drains its engines beside that work (`Drainer`).
    """
    started = time.monotonic()
    parent = Parent()
    drainer = Drainer(lambda found: parent.tell(Drained(found)))
    parent.follow(drainer.ask)
    try:
        job = parent.receive(Job, 60.0)
        import torch

        torch.set_num_threads(1)  # the same sums in the same order as in the reference process
        work(parent, job, Limit(job.limit_s - (time.monotonic() - started)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        if not (drainer.asked and isinstance(error, EngineClosed)):
            traceback.print_exc()
            parent.tell(Trouble(text=f"{type(error).__name__}: {error}"))
        drainer.finish()
        sys.exit(1)
    drainer.finish()
