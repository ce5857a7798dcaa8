"""The thread that owns a core, its transport and its control channel: turns, and sleep in between."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..transport.ports import Clock
from .settings import EngineSettings

log = logging.getLogger("kvrooms.engine")
_BLINK_S = 50e-6
"""Between two looks shortly after something happened. Waking a thread that sleeps on a socket costs far more: on a busy
machine the kernel likes to wake it on the very core of whoever wrote to the socket, and takes that core away."""
_LONGEST_SLEEP_S = 10.0
_PR_SET_TIMERSLACK = 29
_LONGEST_BLIND_S = 0.02


class Core(Protocol):
    """What a thread can turn: `EngineCore`, or the core of a group."""

    name: str
    settings: EngineSettings
    clock: Clock
    reported: bool
    patient: bool

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the next turn. Any thread."""

    @property
    def has_input(self) -> bool:
        """Whether calls are queued."""

    @property
    def listening(self) -> bool:
        """Whether something has to be polled that wakes nobody."""

    @property
    def undrained(self) -> int:
        """What is left to do after `shutdown`."""

    def turn(self) -> bool:
        """One round. Returns whether anything happened."""

    def next_deadline(self) -> float | None:
        """When the next alarm is due."""

    def shutdown(self) -> None:
        """End what is open."""


class Waiting(Protocol):
    """A control channel that can be slept on."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until a socket is ready or `wake` is called, at most `timeout_s` seconds."""

    def wake(self) -> None:
        """End the sleep. Any thread."""


class EngineThread:
    """Runs a core until it is stopped. `finish` is called on the thread at the end, whatever ended it."""

    def __init__(self, core: Core, channel: Waiting, finish: Callable[[], None]) -> None:
        self._core = core
        self._channel = channel
        self._finish = finish
        self._deadline: float | None = None
        self._fault: BaseException | None = None
        self._blinking = False
        self._nudge = threading.Lock()
        self._nudge.acquire()
        self._thread = threading.Thread(target=self._run, name=f"kvrooms-{core.name}", daemon=True)

    def start(self) -> None:
        """Begin to turn the core."""
        self._thread.start()

    def wake(self) -> None:
        """The core has input. Any thread."""
        if self._blinking:
            try:
                self._nudge.release()
            except RuntimeError:  # somebody else has just done it; at worst one blink too many ends at once
                pass
        self._channel.wake()

    @property
    def alive(self) -> bool:
        """Whether the thread turns. A thread that ended by itself ended by a fault of kvrooms."""
        return self._thread.is_alive()

    @property
    def fault(self) -> BaseException | None:
        """What ended the thread, if it was not `stop`."""
        return self._fault

    def stop(self, timeout_s: float) -> bool:
        """Shut the core down, wait for what is undrained (at most `timeout_s`), and join. False if it did not end."""
        self._core.submit(self._shutdown, timeout_s)
        self._channel.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s + 10.0)
        return not self._thread.is_alive()

    def _shutdown(self, timeout_s: float) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + timeout_s
            self._core.shutdown()

    def _run(self) -> None:
        _sleep_precisely()
        try:
            self._turn()
        except BaseException as error:
            self._fault = error
            log.critical("%s: the engine's thread died of a fault of kvrooms", self._core.name, exc_info=error)
        finally:
            self._finish()

    def _turn(self) -> None:
        core, channel, settings = self._core, self._channel, self._core.settings
        active = time.monotonic()
        while True:
            busy = core.turn()
            now = time.monotonic()
            if self._deadline is not None and (core.undrained == 0 or now > self._deadline):
                return
            if busy:
                active = now
                if core.reported:  # a caller was woken: let it have the core and the interpreter
                    core.reported = False
                    os.sched_yield()
            elif now - active > settings.linger_s and not core.has_input:
                channel.wait(self._nap(now - active))
            elif core.patient or now - active > settings.spin_s:
                self._blink()

    def _blink(self) -> None:
        """Sleep for a moment, or until `wake`."""
        self._blinking = True
        if not self._core.has_input:
            self._nudge.acquire(timeout=_BLINK_S)
        self._blinking = False

    def _nap(self, idle_s: float) -> float:
        """How long to sleep: until the next alarm, and not past the next look at a transport that wakes nobody.

        The longer nothing happened, the longer the sleep: a peer that starts to write rings over the control channel.
        """
        core = self._core
        due = core.next_deadline()
        nap = _LONGEST_SLEEP_S if due is None else max(due - core.clock.now(), 0.0)
        if core.listening or self._deadline is not None:
            nap = min(nap, core.settings.idle_poll_s + idle_s / 8, _LONGEST_BLIND_S)
        return nap


def _sleep_precisely() -> None:
    """Linux lets a thread's short sleeps last 50 us longer, to save wake-ups; a blink would last twice as long."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds, this thread only
    except (OSError, AttributeError):
        pass
