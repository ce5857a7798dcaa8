"""The room as its caller holds it: three ways to wait (`poll`, `wait`, `await`), and the word on its memory.

Thread safety: any thread may call any method. The engine's thread alone writes `_phase`, `_status` and `_failure`;
each is a single assignment, and callbacks are handed over under the engine's lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from ..protocol.arguments import check_bool, check_left, check_limit, check_text
from ..protocol.errors import EngineClosed, InvalidArgument, RoomClosed, RoomFailed
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RoomKey
from ..protocol.status import TERMINAL, Phase, Status, status_of
from .account import Met
from .desk import Desk

_FORGET_TIMEOUT_S = 10.0
H = TypeVar("H", bound="Room")


class _Gate:
    """Something one thread waits for and others open, any number of times. A bare lock: one futex, no allocation."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # open already
            pass

    def wait(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class _Moment:
    """Something that happens once: callbacks before it, immediate calls after it."""

    __slots__ = ("_calls", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._calls: list[Callable[[], None]] | None = None

    def call(self, lock: threading.Lock, function: Callable[[], None]) -> None:
        """Call `function` when it happens, or now."""
        with lock:
            if not self.happened:
                if self._calls is None:
                    self._calls = []
                self._calls.append(function)
                return
        function()

    def cancel(self, lock: threading.Lock, function: Callable[[], None]) -> None:
        """Do not call `function` after all."""
        with lock:
            if self._calls and function in self._calls:
                self._calls.remove(function)

    def happen(self, lock: threading.Lock) -> None:
        with lock:
            self.happened = True
            calls, self._calls = self._calls, None
        for function in calls or ():
            function()

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        if self.happened:
            return True
        gate = _Gate()
        self.call(lock, gate.open)
        if gate.wait(timeout):
            return True
        self.cancel(lock, gate.open)
        return self.happened


class MemoryStatus(NamedTuple):
    """Whether a room's pages and slots may be used for something else, and why."""

    free: bool
    why: str


class Room:
    """A room as its caller holds it. Made by `PrefillEngine.open` and `DecodeEngine.open`."""

    _HELD = ""
    _open_why = "held: the room has not ended"
    _error: Exception | None = None

    def __init__(self, desk: Desk, key: RoomKey) -> None:
        self._desk = desk
        self._key = key
        self._phase = Phase.METADATA
        self._status = Status.BOOTSTRAPPING
        self._failure: Failure | None = None
        self._context: list[Failure] = []
        self._met: Met | None = None
        self._free_why = ""
        self._end = _Moment()
        self._free = _Moment()
        self._gone = _Moment()
        self._surfaced = False
        self._decided = None if desk.group is None else _Moment()
        self._outcome: Status | None = None
        self._outcome_failure: Failure | None = None
        self.record: Any = None
        self.key_free = self.left = self.closing = False
        self.aborts = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key} {self._phase.value}>"

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The room's number."""
        return self._key.room

    @property
    def attempt(self) -> int:
        """Which attempt at the room's request."""
        return self._key.attempt

    @property
    def phase(self) -> str:
        """The first kind of obligation still open: "METADATA", "KV", "AUX", "STATE"; else "DONE" or "FAILED"."""
        return self._phase.value

    @property
    def failure(self) -> Failure | None:
        """The first cause once the room has failed; looking at it changes nothing."""
        return self._failure

    @property
    def met(self) -> Met | None:
        """Which obligations a failed room has met, so that a caller can send or compute only the rest; else None.

        Only what stands there may be used, and on decode only as long as the room's pages and slots are the caller's.
        """
        return self._met

    @property
    def memory_free(self) -> bool:
        """Whether nobody reads or writes the room's pages and slots any more, so that they may be used again.

        A room that failed is not enough: on decode, writes may still land until the writer has acknowledged or died.
        """
        if not self._free.happened:
            self._check_process()
        return self._free.happened

    @property
    def memory_status(self) -> MemoryStatus:
        """`memory_free` with a reason in words."""
        if self.memory_free:
            return MemoryStatus(free=True, why=f"free: {self._free_why}")
        return MemoryStatus(free=False, why=self._HELD if self._status.terminal else self._open_why)

    def poll(self) -> Status:
        """The status now. Never blocks."""
        if not self._status.terminal:
            self._check_process()
        return self._status

    @property
    def outcome(self) -> Status:
        """How the room ended on all ranks of the engine's group: DONE only if it is DONE on each, and the same on each.

        Not DONE or FAILED before the group has decided. Without a group, `poll()`. Never blocks.
        """
        status = self.poll()
        if self._decided is None or self._outcome is not None:
            return self._outcome or status
        return Status.TRANSFERRING if status.terminal else status

    @property
    def outcome_failure(self) -> Failure | None:
        """Why the outcome is FAILED: the first cause, with the rank that had it."""
        return self._failure if self._decided is None else self._outcome_failure

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Status:
        """Block until the room is DONE or FAILED and return that; TimeoutError after `timeout` seconds."""
        self._check_process()
        left = check_left("timeout", timeout)
        if not self._status.terminal and not self._end.wait(self._desk.lock, left):
            raise TimeoutError(f"{self._key} is in {self._phase.value} after {timeout} s")
        return self._status

    def wait_outcome(self, timeout: float | None = None) -> Status:
        """Block until `outcome` is DONE or FAILED and return that; TimeoutError after `timeout` seconds."""
        self._check_process()
        if not (self._decided or self._end).wait(self._desk.lock, check_left("timeout", timeout)):
            raise TimeoutError(f"{self._key} has no outcome after {timeout} s; here it is in {self._phase.value}")
        return self.outcome

    def wait_memory_free(self, timeout: float | None = None) -> bool:
        """Block until `memory_free`; False after `timeout` seconds."""
        self._check_process()
        return self._free.wait(self._desk.lock, check_left("timeout", timeout))

    def __await__(self) -> Generator[Any, None, Status]:
        """`await room` is `wait()` for asyncio."""
        return self._ended().__await__()

    async def _ended(self) -> Status:
        self._check_process()
        if not self._status.terminal:
            await _asynchronously(self._end, self._desk.lock)
        return self._status

    async def decided(self) -> Status:
        """`wait_outcome()` for asyncio."""
        self._check_process()
        moment = self._decided or self._end
        if not moment.happened:
            await _asynchronously(moment, self._desk.lock)
        return self.outcome

    async def memory_freed(self) -> None:
        """`wait_memory_free()` for asyncio."""
        self._check_process()
        if not self._free.happened:
            await _asynchronously(self._free, self._desk.lock)

    # -- ending --------------------------------------------------------------------------------------------------

    def abort(self, detail: str = "aborted by its caller", *, timeout: float = 0, again: bool = False) -> MemoryStatus:
        """End the room as FAILED, tell the other side, and say what may be done with the memory, and why.

        timeout: seconds to wait for the memory; 0 does not block, and `memory_status` tells later. again: tell both
        sides that the request may be tried again (`Failure.retryable`). Idempotent; a room that has ended stays so.
        Raises InvalidArgument, and the room goes on then.
        """
        self._check_process()
        limit, words, retryable = (
            check_limit("timeout", timeout),
            check_text("detail", detail),
            check_bool("again", again),
        )
        if not self._status.terminal:
            self._open_why = "held: the abort is under way; ask memory_status again"
            self._desk.abort_room(self, Failure(Reason.ABORTED, words, again=retryable or None))
        if limit > 0:
            self.wait_memory_free(limit)
        return self.memory_status

    def close(self) -> None:
        """The caller is finished with the room; one that is still open is aborted. Idempotent."""
        self._check_process()
        if self.record is not None:
            self._desk.close_room(self)

    def failure_exception(self) -> None:
        """Raise RoomFailed with the first cause, chained, once, after the engine holds nothing of the room any more.

        Nothing happens if neither the room nor its outcome is FAILED. Raises RoomClosed when it was raised before.
        """
        self._check_process()
        if Status.FAILED not in (self._status, self._outcome):
            return
        with self._desk.lock:
            surfaced, self._surfaced = self._surfaced, True
        if surfaced:
            raise RoomClosed(f"{self._key} is closed: its failure was raised before")
        self.close()
        if not self._gone.wait(self._desk.lock, _FORGET_TIMEOUT_S):
            raise EngineClosed(f"{self._desk.name} did not let go of {self._key}")
        failure = self._failure or self._outcome_failure
        assert failure is not None
        raise RoomFailed(str(self._key), failure, tuple(self._context), self._met) from self._error

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what the core tells (Watcher) ---------------------------------------------------------------------------

    def moved(self, phase: Phase, progressed: bool) -> None:
        """See `Watcher.moved`."""
        self._phase = phase
        self._status = status_of(phase, progressed)

    def ended(self, phase: Phase, failure: Failure | None, context: list[Failure], met: Met | None = None) -> None:
        """See `Watcher.ended`."""
        assert phase in TERMINAL
        self._failure, self._context, self._met = failure, context, met
        self._error = None if self.record is None else self.record.error
        self._phase, self._status = phase, status_of(phase, moved=True)
        self._end.happen(self._desk.lock)
        if self._decided is not None:
            self._desk.room_ended(self)

    def freed(self, why: str) -> None:
        """See `Watcher.freed`."""
        self._free_why = why
        self._desk.room_freed(self)
        self._free.happen(self._desk.lock)

    def forgotten(self) -> None:
        """See `Watcher.forgotten`."""
        self._desk.room_forgotten(self)
        self.record = None
        self._gone.happen(self._desk.lock)

    def decide(self, outcome: Status, failure: Failure | None) -> None:
        """The outcome (the group's thread)."""
        assert self._decided is not None
        self._outcome, self._outcome_failure = outcome, failure
        self._decided.happen(self._desk.lock)

    def _check_process(self) -> None:
        check_process(self._desk)


def check_process(desk: Desk) -> None:
    """Raise EngineClosed in a process that was forked from the engine's: its thread and sockets are not ours."""
    if os.getpid() != desk.pid:
        raise EngineClosed(f"{desk.name} belongs to process {desk.pid}; this is a fork of it")


async def _asynchronously(moment: _Moment, lock: threading.Lock) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def happened() -> None:
        try:
            loop.call_soon_threadsafe(done)
        except RuntimeError:  # the loop was closed: nobody waits there any more
            pass

    moment.call(lock, happened)
    try:
        await future
    finally:
        moment.cancel(lock, happened)


def wait_any(rooms: Iterable[H], timeout: float | None = None) -> list[H]:
    """Block until at least one of the rooms has ended, and return all that have, in the given order.

    Raises TimeoutError after `timeout` seconds, InvalidArgument when there are no rooms.
    """
    rooms, left = list(rooms), check_left("timeout", timeout)
    if not rooms:
        raise InvalidArgument("rooms", rooms, "there must be at least one room to wait for")
    for desk in {room._desk for room in rooms if not room._status.terminal}:  # noqa: SLF001
        check_process(desk)  # once for all of its rooms: here there may be many, and often
    ended = [room for room in rooms if room._status.terminal]  # noqa: SLF001
    if ended:
        return ended
    wake = (gate := _Gate()).open
    for room in rooms:
        room._end.call(room._desk.lock, wake)  # noqa: SLF001
    opened = gate.wait(left)
    ended = [room for room in rooms if room._status.terminal]  # noqa: SLF001
    for room in rooms:
        room._end.cancel(room._desk.lock, wake)  # noqa: SLF001
    if not opened and not ended:
        raise TimeoutError(f"none of {len(rooms)} rooms has ended after {timeout} s")
    return ended
