"""Three ways to wait, without an engine: `poll`, `wait`, `await`; and the same for memory."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from engine_bench import Bench

from kvrooms import EngineClosed, InvalidArgument, Status, wait_any
from kvrooms.engine.handle import Room
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Phase


class Desk:
    """The engine as a room sees it, without one."""

    def __init__(self) -> None:
        self.name, self.pid, self.lock = "desk", os.getpid(), threading.Lock()
        self.group = None
        self.calls: list[str] = []

    def abort_room(self, room: Room, failure: Failure) -> None:
        self.calls.append(f"abort {failure.detail}")

    def close_room(self, room: Room) -> None:
        self.calls.append("close")

    def room_freed(self, room: Room) -> None:
        self.calls.append("freed")

    def room_forgotten(self, room: Room) -> None:
        self.calls.append("forgotten")


def handle(number: int = 7) -> Room:
    """A room at a desk of its own."""
    return Room(Desk(), RoomKey(number, 0))


def done(room: Room) -> None:
    """As the engine's thread tells it."""
    room.ended(Phase.DONE, None, [])


def soon(*calls: Callable[[], None]) -> threading.Thread:
    """Make calls from another thread, in a moment."""

    def run() -> None:
        for call in calls:
            time.sleep(0.005)
            call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("timeout", [None, 5, 1e12, float("inf")])
def test_wait_returns_when_the_room_ends_in_another_thread(timeout: float | None) -> None:
    room = handle()
    thread = soon(lambda: room.moved(Phase.KV, progressed=True), lambda: done(room), lambda: room.freed("x"))
    assert room.wait(timeout) is Status.DONE
    assert room.wait_memory_free(timeout) is True
    thread.join()
    assert room.wait(0) is Status.DONE
    assert room.wait_memory_free(0) is True


@pytest.mark.parametrize("timeout", [0, 0.01, -1])
def test_wait_says_after_how_long_it_gave_up(timeout: float) -> None:
    room = handle()
    with pytest.raises(TimeoutError, match=f"room 7 is in METADATA after {timeout} s"):
        room.wait(timeout)
    assert room.wait_memory_free(timeout) is False
    with pytest.raises(TimeoutError, match="none of 2 rooms has ended"):
        wait_any([room, handle()], timeout)
    assert not room._end._calls, "a wait that was given up leaves nothing"
    assert not room._free._calls
    done(room)
    assert room.wait(timeout) is Status.DONE


def test_many_threads_wait_for_one_room() -> None:
    room = handle()
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(room.wait(5))) for _ in range(8)]
    threads += [threading.Thread(target=lambda: seen.append(room.wait_memory_free(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    soon(lambda: done(room), lambda: room.freed("x")).join()
    for thread in threads:
        thread.join(5)
    assert seen.count(Status.DONE) == seen.count(True) == 8


@pytest.mark.timeout(30)
@pytest.mark.parametrize("which", range(4))
def test_wait_any_returns_all_that_have_ended_in_the_given_order(which: int) -> None:
    """It has no timeout: one that is only woken by that would be taken for one that was told."""
    rooms = [handle(n) for n in range(4)]
    thread = soon(lambda: done(rooms[which]))
    assert wait_any(iter(rooms)) == [rooms[which]]
    thread.join()
    assert not any(room._end._calls for room in rooms)
    other = rooms[(which + 2) % 4]
    other.ended(Phase.FAILED, Failure(Reason.ABORTED), [])
    assert wait_any(rooms) == sorted([rooms[which], other], key=rooms.index)
    with pytest.raises(InvalidArgument, match=r"^rooms: "):
        wait_any([])


def test_await_is_wait_for_asyncio() -> None:
    room, late = handle(), handle(8)

    async def main() -> list[Any]:
        thread = soon(lambda: done(room), lambda: room.freed("x"))
        ended = await asyncio.gather(room, room, room.memory_freed())
        thread.join()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late.memory_freed(), 0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(late), 0.01)
        return [*ended, await room, await room.memory_freed()]

    assert asyncio.run(main()) == [Status.DONE, Status.DONE, None, Status.DONE, None]
    assert not late._end._calls, "a cancelled await leaves nothing"
    assert not late._free._calls
    done(late)  # the loop is closed: nobody is called


async def _awaited(room: Room) -> Status:
    return await room


def test_a_loop_that_was_closed_while_it_waited_disturbs_nobody() -> None:
    room = handle()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_awaited(room))
    loop.run_until_complete(asyncio.sleep(0))
    calls = list(room._end._calls or ())
    assert calls
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    room._end._calls = calls
    loop.close()
    done(room)
    assert room.poll() is Status.DONE


def test_a_fork_of_the_engine_is_refused_in_words() -> None:
    room = handle()
    room._desk.pid += 1
    for call in (lambda: room.wait(0), room.close, room.abort, lambda: room.wait_memory_free(0)):
        with pytest.raises(EngineClosed, match="this is a fork of it"):
            call()
    with pytest.raises(EngineClosed, match="this is a fork of it"):
        wait_any([room])
    bench = Bench(9)
    bench.decode.pid += 1
    with pytest.raises(EngineClosed, match="decode-0 belongs to process"):
        bench.decode.open(7, bootstrap=bench.prefill.bootstrap)
    with pytest.raises(EngineClosed):
        bench.decode.close()


def test_the_engine_that_does_not_let_go_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.engine.handle._FORGET_TIMEOUT_S", 0.01)
    room = handle()
    room.ended(Phase.FAILED, Failure(Reason.ABORTED, "x"), [])
    with pytest.raises(EngineClosed, match="desk did not let go of room 7"):
        room.failure_exception()
