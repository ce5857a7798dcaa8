"""Two NIXL agents in processes of their own, driven in lockstep, and one trace of all that was done and seen."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from trace_process import ITEM, ITEMS

from kvrooms.harness.simulate.traces import Kind, Seen, Trace

PROGRAM = Path(__file__).with_name("trace_process.py")
EXCHANGES = 2000
"""How often both sides are driven until something must have come; in practice, five times."""


class Far:
    """An agent in another process, and a view of its memory, which outlives it."""

    def __init__(self, name: str, path: Path, trace: Trace, *, filled: bool, tls: str) -> None:
        self.name = name
        self._trace = trace
        what = np.random.default_rng(9).integers(1, 256, ITEMS * ITEM, np.uint8) if filled else bytes(ITEMS * ITEM)
        path.write_bytes(what if isinstance(what, bytes) else what.tobytes())
        with path.open("r+b") as file:
            self.memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8).reshape(ITEMS, ITEM)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), name, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "UCX_TLS": tls},
        )  # fmt: skip

    def introduced(self) -> tuple[str, str, int]:
        """Its name, blob and address, once it has started."""
        blob, address = self._heard()
        return self.name, blob, address

    def _heard(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended"
        return json.loads(line)

    def __call__(self, what: str, *arguments: Any) -> list[Seen]:
        """Tell it one thing. Returns what passed its transport meanwhile, which is in the trace by then."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self.process.stdin.flush()
        steps = [Seen(*step) for step in self._heard()]
        steps = [step._replace(data=bytes.fromhex(step.data)) for step in steps]  # type: ignore[arg-type]
        self._trace.steps.extend(steps)
        return steps

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.process.wait(20)
        self._trace.add(self.name, "died")

    def close(self) -> None:
        """The end of the test."""
        self.process.kill()
        self.process.wait(20)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Story:
    """A writer and its target, with one trace. Writes take two items each; the target does nothing unless told."""

    def __init__(self, folder: Path, tls: str) -> None:
        self.tls = tls
        self.trace = Trace()
        self.writer = Far("writer", folder / "writer", self.trace, filled=True, tls=tls)
        self.target = Far("target", folder / "target", self.trace, filled=False, tls=tls)
        self.messages: dict[str, range] = {}
        ours, theirs = self.writer.introduced(), self.target.introduced()
        self.writer("meet", *theirs)
        self.target("meet", *ours)
        self.post("first")
        self.exchange("arrived", 1)  # the two are connected

    def post(self, message: str, *, unregistered: bool = False) -> Seen:
        """Write the next two items; to a place that nobody has registered, if so wished."""
        items = range(2 * len(self.messages), 2 * len(self.messages) + 2)
        self.messages[message] = items
        return self.writer("post", self.target.name, items[0], len(items), message, *([4096] if unregistered else []))[
            0
        ]

    def exchange(self, kind: Kind, count: int) -> list[Seen]:
        """Drive both until so many more steps of a kind were seen, and everything posted so far is over."""
        seen: list[Seen] = []
        for _ in range(EXCHANGES):
            seen += [*self.target("turn"), *self.writer("turn")]
            if sum(step.kind == kind for step in seen) >= count and not self.in_flight:
                return seen
        raise AssertionError(f"{count} times {kind} in vain: {seen}")

    def drain(self) -> list[Seen]:
        """Drive the writer alone until everything posted is over. How it was over."""
        over: list[Seen] = []
        for _ in range(EXCHANGES):
            if not self.in_flight:
                return over
            over += [step for step in self.writer("turn") if step.kind == "settled"]
        raise AssertionError(f"{self.in_flight} writes never settled")

    @property
    def in_flight(self) -> int:
        """How many writes are posted and not settled."""
        steps = self.trace.steps
        posted = sum(step.kind == "posted" and step.number > 0 for step in steps)
        return posted - sum(step.kind == "settled" for step in steps)

    def look(self) -> dict[str, int]:
        """How many items of each write are whole at the target now."""
        there: dict[str, int] = {}
        for message, items in self.messages.items():
            rows = sum(bool((self.target.memory[item] == self.writer.memory[item]).all()) for item in items)
            there[message] = rows
            self.trace.add(self.target.name, "looked", peer=self.writer.name, data=message.encode(), rows=rows)
        return there

    def close(self) -> None:
        """The end of the test."""
        self.writer.close()
        self.target.close()
