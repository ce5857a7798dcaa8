"""The parent's side of the two child processes: starting them, asking them, and ending them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Self

from ..engine.ending import Ending
from ..engine.host import Drained
from .figures import Run
from .shapes import Shape

DRAIN = "drain"
"""A call that is no method: see the rooms through that are open, say what became of them, and end."""
START_LIMIT_S = 120.0
RUN_LIMIT_S = 120.0
_GRACE_S = 5.0
_REST_S = 0.2
_LOOK_S = 0.1
_DRAIN_LIMIT_S = 10.0


class BenchError(Exception):
    """A child failed or did not answer; the text says which, and how."""


class Interrupted(BenchError):
    """A signal asked the benchmark to end. drained: what became of the rooms that were open, by engine."""

    def __init__(self, drained: dict[str, Drained] | None = None) -> None:
        super().__init__("interrupted")
        self.drained = drained or {}


class _Child:
    """One child process. drained: what became of its rooms, once it was told to end and has said so."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.drained: dict[str, Drained] = {}
        ours, theirs = Pipe()
        with theirs:
            # -P: in a checkout, the working directory's folder kvrooms is not the whole package.
            command = [sys.executable, "-P", "-m", "kvrooms.bench.worker", role, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
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
            if good is None:
                self.drained = value
                good, value = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if not good:
            raise BenchError(f"in the {self.role} process:\n{value}")
        return value

    def _gone(self) -> BenchError:
        """What to say of a process that has closed its end of the pipe."""
        self.rest(time.monotonic())
        self.end()
        return BenchError(f"the {self.role} process has ended with status {self.process.returncode}")

    def tell(self, method: str) -> None:
        """Call a method that is not answered; nothing happens if the child is gone."""
        try:
            self.pipe.send((method, ()))
        except OSError:
            pass

    def rest(self, end: float) -> dict[str, Drained]:
        """Hear it out until it has ended, or until `end`, in monotonic seconds: what became of its rooms."""
        try:
            while self.pipe.poll(max(0.0, end - time.monotonic())):
                good, value = self.pipe.recv()
                if good is None:
                    self.drained = value
        except (EOFError, OSError):
            pass
        return self.drained

    def end(self) -> None:
        """End the process, gently if it goes by itself."""
        self.pipe.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def gather(children: Sequence[_Child], limit_s: float, ending: Ending | None = None) -> list[Any]:
    """An answer of each child, in order. Raises BenchError for the first that fails, and after `limit_s`.

    Raises Interrupted once `ending` was asked.
    """
    end = time.monotonic() + limit_s
    answers: dict[str, Any] = {}
    while len(answers) < len(children):
        if ending is not None and ending.asked is not None:
            raise Interrupted
        missing = [child for child in children if child.role not in answers]
        left = end - time.monotonic()
        ready = wait([child.pipe for child in missing], max(0.0, min(left, _LOOK_S)))
        if not ready and left > _LOOK_S:
            continue
        if not ready:
            raise BenchError(f"no answer within {limit_s:g} s from {' and '.join(child.role for child in missing)}")
        for child in missing:
            if child.pipe in ready:
                answers[child.role] = child.answer()
    return [answers[child.role] for child in children]


class Children:
    """Child processes that belong together, from `with` to its end.

    ending: once that was asked, whatever is asked of them raises Interrupted, and leaving them drains them.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending or Ending()
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        self._ending.at_once.append(self.kill)
        try:
            self._begin()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave(error)

    def _begin(self) -> None:
        """Start the children."""
        raise NotImplementedError

    def _child(self, role: str) -> _Child:
        child = _Child(role)
        self._children.append(child)
        return child

    def kill(self) -> None:
        """Kill all of them. Does not wait; safe in a signal handler."""
        for child in self._children:
            child.process.kill()

    def _leave(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self.all("close", limit_s=START_LIMIT_S)
            elif isinstance(error, BenchError):
                raise error
        except BenchError:
            if self._ending.asked is None:
                raise
            # Whoever told us may have told the children as well: their end is no failure then.
            raise Interrupted(self._drain()) from None
        finally:
            for child in self._children:
                child.end()
            self._ending.at_once.remove(self.kill)

    def _drain(self) -> dict[str, Drained]:
        """Let the rooms that are open end, and hear what became of them."""
        end, found = time.monotonic() + _DRAIN_LIMIT_S, {}
        for child in self._children:
            child.tell(DRAIN)
        for child in self._children:
            found.update(child.rest(end))
        return found

    def all(self, method: str, *arguments: Any, limit_s: float = RUN_LIMIT_S) -> list[Any]:
        """Ask all of them the same thing, at the same time. Returns their answers, in order."""
        for child in self._children:
            child.ask(method, *arguments)
        return self._gather(self._children, limit_s)

    def _gather(self, children: Sequence[_Child], limit_s: float) -> list[Any]:
        return gather(children, limit_s, self._ending)

    def pids(self) -> tuple[int, ...]:
        """The process ids of all."""
        return tuple(child.process.pid for child in self._children)


class Pair(Children):
    """A prefill and a decode process with a pool of `shape` each, engines connected; with the floor where wanted.

    ending: once that was asked, whatever is asked of the pair raises Interrupted, and leaving the pair drains it.
    """

    def __init__(self, shape: Shape, *, floor: bool, ending: Ending | None = None) -> None:
        super().__init__(ending)
        self.shape = shape
        self._with_floor = floor
        self._rooms = 0

    def _begin(self) -> None:
        self.prefill = self._child("prefill")
        self.decode = self._child("decode")
        self._connect()

    def _connect(self) -> None:
        self.prefill.ask("start", self.shape)
        (bootstrap,) = self._gather([self.prefill], START_LIMIT_S)
        self.decode.ask("start", self.shape, bootstrap)
        self._gather([self.decode], START_LIMIT_S)
        if self._with_floor:
            of_prefill, of_decode = self.both("start_floor", limit_s=START_LIMIT_S)
            self.prefill.ask("floor.connect", *of_decode)
            self.decode.ask("floor.connect", *of_prefill)
            self._gather([self.prefill, self.decode], START_LIMIT_S)

    def both(self, method: str, *arguments: Any, limit_s: float = RUN_LIMIT_S) -> tuple[Any, Any]:
        """Ask both the same thing, at the same time. Returns prefill's answer and decode's."""
        of_prefill, of_decode = self.all(method, *arguments, limit_s=limit_s)
        return of_prefill, of_decode

    def floor_run(self, rooms: int, in_flight: int) -> Run:
        """One run of the floor, once the engines have gone to sleep: they look around for a while after a run."""
        time.sleep(_REST_S)
        self.prefill.ask("floor.serve", RUN_LIMIT_S)
        self.decode.ask("floor_run", rooms, in_flight, RUN_LIMIT_S)
        _, run = self._gather([self.prefill, self.decode], 2 * RUN_LIMIT_S)
        assert isinstance(run, Run)
        return run

    def run(self, rooms: int, in_flight: int) -> tuple[Run, float]:
        """One run of the engines: what decode measured, and the processor seconds of prefill."""
        first = self._number(rooms)
        self.prefill.ask("engines.offer", first, rooms)
        self._gather([self.prefill], RUN_LIMIT_S)
        self.prefill.ask("engines.carry", RUN_LIMIT_S)
        self.decode.ask("run", first, rooms, in_flight, RUN_LIMIT_S)
        cpu_s, run = self._gather([self.prefill, self.decode], 2 * RUN_LIMIT_S)
        assert isinstance(run, Run)
        return run, float(cpu_s)

    def idle(self, rooms: int, seconds: float) -> float:
        """Per cent of a core that the busier side uses while `rooms` rooms wait. They all arrive afterwards."""
        first = self._number(rooms)
        self.prefill.ask("engines.hold", first, rooms)
        self._gather([self.prefill], RUN_LIMIT_S)
        self.decode.ask("engines.hold", first, rooms, RUN_LIMIT_S)
        self._gather([self.decode], 2 * RUN_LIMIT_S)
        used = self.both("engines.idle", seconds, limit_s=seconds + RUN_LIMIT_S)
        self.both("engines.let_go", RUN_LIMIT_S, limit_s=2 * RUN_LIMIT_S)
        return float(max(used))

    def _number(self, rooms: int) -> int:
        """The first of so many room numbers that were not used before."""
        first, self._rooms = self._rooms, self._rooms + rooms
        return first
