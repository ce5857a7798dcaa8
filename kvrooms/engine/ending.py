"""What SIGTERM and SIGINT mean to a command: the one place where that is decided. Nothing here knows an engine.

The first signal asks for an orderly end: nothing new begins, what is open ends within a limit, the rest is reported.
The second ends at once. A process that has engines and a parent uses `draining` on top of this. A command without
anything to drain gives up at the first (`GivingUp`).

Exit status: `status_of(signal)`, 143 or 130, for whatever was cut short by a signal, in order or not. A command whose
work is never finished by itself, or may end at any time (a server, a soak), was not cut short by the first signal: its
status is that of what it did.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

_PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def status_of(sign: signal.Signals) -> int:
    """The exit status of what was cut short by a signal: that which a shell shows for a death by it."""
    return 128 + sign


class CutOff(KeyboardInterrupt):
    """Give up what is under way: a second signal, or the first of `GivingUp`. Raised in the main thread."""

    def __init__(self, sign: signal.Signals, words: str = "ended at once by a second signal") -> None:
        super().__init__(f"{words}, {sign.name}")
        self.sign = sign


class Ending:
    """Listens for the signals while it is entered, in the main thread; elsewhere nothing is listened to.

    The first signal is answered by a line on standard error, unless `quiet`. A second calls what is in `at_once` and
    raises CutOff; a third ends the process where it stands.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.at_once: list[Callable[[], None]] = []
        """To be called in the signal handler at the second signal: kill what would hold up those who clean up."""
        self._asked: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()  # its put may interrupt its own get
        self._before: dict[signal.Signals, Any] = {}
        self._count = 0
        self.asked: signal.Signals | None = None
        """The first signal, once it has come."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for sign in SIGNALS:
                self._before[sign] = signal.signal(sign, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def wait(self) -> signal.Signals:
        """Block until the process is asked to end."""
        return self._asked.get()

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        sign = signal.Signals(number)
        self._count += 1
        if self._count == 1:
            self.asked = sign
            self._asked.put(sign)
            if not self._quiet:
                _say(f"{sign.name}: nothing new begins, what is open may end within limits; a second one ends at once")
        elif self._count == 2:
            for call in list(self.at_once):
                call()
            raise CutOff(sign)
        else:
            leave(status_of(sign))


class GivingUp(Ending):
    """For a command that has nothing to drain: the first signal raises CutOff too.

    Whoever it passes ends what belongs to him, in order. A second calls what is in `at_once` and is raised again, a
    third ends the process where it stands. at_first: what the first one calls before it raises.
    """

    def __init__(self, at_first: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._at_first = at_first

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._count:
            super()._heard(number, frame)
            return
        self._count, self.asked = 1, signal.Signals(number)
        _say(f"{self.asked.name}: what is under way is given up; a second one ends at once")
        if self._at_first is not None:
            self._at_first()
        raise CutOff(self.asked, "given up")


def belong_to_parent() -> None:
    """In a worker: no ears for signals, which are the parent's to hear, and no life without it."""
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)
    end_with_parent()


@contextmanager
def undisturbed(*deaf: signal.Signals) -> Iterator[None]:
    """Answer no signal until this is over: a worker that is just being started is not known yet to those who end it.

    deaf: what the workers that are started meanwhile never hear (default: both signals), not even in the moment
    before they have said so themselves. Those that start other than by fork run the resource tracker beforehand: its
    start unblocks both signals.
    """
    late, handlers = list[int](), dict[signal.Signals, Any]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf or SIGNALS)
    if threading.current_thread() is threading.main_thread():  # another thread may be told; this one is to answer
        handlers = {sign: signal.signal(sign, lambda number, _: late.append(number)) for sign in SIGNALS}
    try:
        yield
    finally:
        try:
            for sign, handler in handlers.items():
                signal.signal(sign, handler)
            for number in late:
                signal.raise_signal(number)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_workers() -> None:
    """End the worker processes of this one at once. Whoever waits for them finds out."""
    for process in multiprocessing.active_children():
        process.kill()


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, whatever that dies of (Linux; elsewhere nothing happens).

    For a worker that would otherwise wait for its next task for ever. The parent is the thread that started it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _say(words: str) -> None:
    """A line on standard error, from within a signal handler: past whatever buffer that interrupted."""
    try:
        os.write(2, f"kvrooms: {words}\n".encode())
    except OSError:
        pass


def leave(status: int) -> NoReturn:
    """End the process here and now: nothing that is under way in it is waited for."""
    os._exit(status)
