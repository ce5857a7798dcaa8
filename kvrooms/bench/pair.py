"""The parent's side of the two child processes: starting them, asking them, and ending them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any

from .figures import Run
from .shapes import Shape

START_LIMIT_S = 120.0
RUN_LIMIT_S = 120.0
_GRACE_S = 5.0
_REST_S = 0.2


class BenchError(Exception):
    """A child failed or did not answer; the text says which, and how."""


class _Child:
    """One child process."""

    def __init__(self, role: str) -> None:
        self.role = role
        ours, theirs = Pipe()
        with theirs:
            # -P: in a checkout, the working directory's folder kvrooms is not the whole package.
            command = [sys.executable, "-P", "-m", "kvrooms.bench.worker", role, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.pipe: Connection[Any, Any] = ours

    def ask(self, method: str, *arguments: Any) -> None:
        """Call a method of the child; `gather` has the answer."""
        try:
            self.pipe.send((method, arguments))
        except OSError:
            raise self._gone() from None

    def answer(self) -> Any:
        """The answer, once there is one to read."""
        try:
            good, value = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if not good:
            raise BenchError(f"in the {self.role} process:\n{value}")
        return value

    def _gone(self) -> BenchError:
        """What to say of a process that has closed its end of the pipe."""
        self.end()
        return BenchError(f"the {self.role} process has ended with status {self.process.returncode}")

    def end(self) -> None:
        """End the process, gently if it goes by itself."""
        self.pipe.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def gather(children: Sequence[_Child], limit_s: float) -> list[Any]:
    """An answer of each child, in order. Raises BenchError for the first that fails, and after `limit_s`."""
    end = time.monotonic() + limit_s
    answers: dict[str, Any] = {}
    while len(answers) < len(children):
        missing = [child for child in children if child.role not in answers]
        ready = wait([child.pipe for child in missing], max(0.0, end - time.monotonic()))
        if not ready:
            raise BenchError(f"no answer within {limit_s:g} s from {' and '.join(child.role for child in missing)}")
        for child in missing:
            if child.pipe in ready:
                answers[child.role] = child.answer()
    return [answers[child.role] for child in children]


class Pair:
    """A prefill and a decode process with a pool of `shape` each, engines connected; with the floor where wanted."""

    def __init__(self, shape: Shape, *, floor: bool) -> None:
        self.shape = shape
        self._with_floor = floor
        self._rooms = 0

    def __enter__(self) -> Pair:
        self.prefill = _Child("prefill")
        self.decode = _Child("decode")
        try:
            self._connect()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self.both("close", limit_s=START_LIMIT_S)
        finally:
            self._end()

    def _end(self) -> None:
        for child in (self.prefill, self.decode):
            child.end()

    def _connect(self) -> None:
        self.prefill.ask("start", self.shape)
        (bootstrap,) = gather([self.prefill], START_LIMIT_S)
        self.decode.ask("start", self.shape, bootstrap)
        gather([self.decode], START_LIMIT_S)
        if self._with_floor:
            of_prefill, of_decode = self.both("start_floor", limit_s=START_LIMIT_S)
            self.prefill.ask("floor.connect", *of_decode)
            self.decode.ask("floor.connect", *of_prefill)
            gather([self.prefill, self.decode], START_LIMIT_S)

    def both(self, method: str, *arguments: Any, limit_s: float = RUN_LIMIT_S) -> tuple[Any, Any]:
        """Ask both the same thing, at the same time. Returns prefill's answer and decode's."""
        children = (self.prefill, self.decode)
        for child in children:
            child.ask(method, *arguments)
        of_prefill, of_decode = gather(children, limit_s)
        return of_prefill, of_decode

    def pids(self) -> tuple[int, int]:
        """The process ids of both."""
        return self.prefill.process.pid, self.decode.process.pid

    def floor_run(self, rooms: int, in_flight: int) -> Run:
        """One run of the floor, once the engines have gone to sleep: they look around for a while after a run."""
        time.sleep(_REST_S)
        self.prefill.ask("floor.serve", RUN_LIMIT_S)
        self.decode.ask("floor_run", rooms, in_flight, RUN_LIMIT_S)
        _, run = gather([self.prefill, self.decode], 2 * RUN_LIMIT_S)
        assert isinstance(run, Run)
        return run

    def run(self, rooms: int, in_flight: int) -> tuple[Run, float]:
        """One run of the engines: what decode measured, and the processor seconds of prefill."""
        first = self._number(rooms)
        self.prefill.ask("engines.offer", first, rooms)
        gather([self.prefill], RUN_LIMIT_S)
        self.prefill.ask("engines.carry", RUN_LIMIT_S)
        self.decode.ask("run", first, rooms, in_flight, RUN_LIMIT_S)
        cpu_s, run = gather([self.prefill, self.decode], 2 * RUN_LIMIT_S)
        assert isinstance(run, Run)
        return run, float(cpu_s)

    def idle(self, rooms: int, seconds: float) -> float:
        """Per cent of a core that the busier side uses while `rooms` rooms wait. They all arrive afterwards."""
        first = self._number(rooms)
        self.prefill.ask("engines.hold", first, rooms)
        gather([self.prefill], RUN_LIMIT_S)
        self.decode.ask("engines.hold", first, rooms, RUN_LIMIT_S)
        gather([self.decode], 2 * RUN_LIMIT_S)
        used = self.both("engines.idle", seconds, limit_s=seconds + RUN_LIMIT_S)
        self.both("engines.let_go", RUN_LIMIT_S, limit_s=2 * RUN_LIMIT_S)
        return float(max(used))

    def _number(self, rooms: int) -> int:
        """The first of so many room numbers that were not used before."""
        first, self._rooms = self._rooms, self._rooms + rooms
        return first
