"""Probes of callers that block: in `wait`, `wait_any`, `await`, and the same for memory and for outcomes.

In a world there is no thread beside the caller. So where it would sleep, the world goes on instead, without timers.
Where nothing can happen any more and nobody has woken the caller, it would sleep for ever, or until its own timeout:
that is a hang, whatever the room has come to meanwhile.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...engine import group as grouping
from ...engine import handle
from ...engine.decode import DecodeEngine
from ...engine.handle import wait_any
from ...protocol.identity import RoomKey
from ...protocol.status import Status
from ..groups import gather
from .probe import Play, probe
from .probes_memory import in_flight, land
from .stage import Broken, Hang, Room, Side, Stage

T = TypeVar("T")
_PATIENCE = 1e6
_RACES = ("the room ends while the caller sleeps", "the room ends just before the caller goes to sleep")


class _Sleep:
    """Where callers of one scene sleep. early: all that can happen happens before a caller has said that it waits.

    at_rest: called once, when nothing can happen any more.
    """

    def __init__(self, stage: Stage, *, early: bool, at_rest: Callable[[], None] | None) -> None:
        self.stage, self.early, self.at_rest = stage, early, at_rest

    def begins(self) -> None:
        """A caller is about to say that it waits."""
        if self.early:
            self.stage.settle()

    def until(self, woken: Callable[[], bool]) -> None:
        """Sleep. Raises Hang where nobody wakes the caller."""
        while not woken():
            self.stage.look()
            if self.stage.world.step():
                continue
            self.stage.look()
            if self.at_rest is None:
                raise Hang("a caller waits, nothing can happen any more, and nobody has woken it")
            call, self.at_rest = self.at_rest, None
            call()


class _Gate:
    """What `handle._Gate` is, and `threading.Event`, for a caller in a world."""

    def __init__(self, sleep: _Sleep) -> None:
        self._sleep, self._open = sleep, False
        sleep.begins()

    def open(self) -> None:
        """See `_Gate.open`."""
        self._open = True

    def set(self) -> None:
        """See `threading.Event.set`."""
        self._open = True

    def is_set(self) -> bool:
        """See `threading.Event.is_set`."""
        return self._open

    def wait(self, timeout: float | None = None) -> bool:
        """See `_Gate.wait`. How long it may take is not looked at, but whether it may take time at all."""
        if timeout is None or timeout > 0:
            self._sleep.until(lambda: self._open)
        return self._open


class _Selector(selectors.SelectSelector):
    """An event loop that has nothing to do sleeps in here, and only what wakes it ends that."""

    def __init__(self, sleep: _Sleep) -> None:
        super().__init__()
        self._sleep = sleep

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `BaseSelector.select`."""
        found = super().select(0)
        if found or timeout == 0:
            return found
        self._sleep.until(lambda: bool(super(_Selector, self).select(0)))
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose callers may be late to say that they wait."""

    def __init__(self, sleep: _Sleep) -> None:
        super().__init__(_Selector(sleep))
        self._kvrooms_sleep = sleep

    def create_future(self) -> asyncio.Future[Any]:
        """See `AbstractEventLoop.create_future`."""
        self._kvrooms_sleep.begins()
        return super().create_future()


@contextmanager
def _asleep(stage: Stage, *, early: bool = False, at_rest: Callable[[], None] | None = None) -> Iterator[_Sleep]:
    """Let callers that block in this scene sleep in its world."""
    sleep = _Sleep(stage, early=early, at_rest=at_rest)
    gate, waiter = handle._Gate, grouping._Waiter  # noqa: SLF001

    class Waiter(waiter):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.told = _Gate(sleep)

    handle._Gate, grouping._Waiter = lambda: _Gate(sleep), Waiter  # type: ignore[assignment, misc, return-value] # noqa: SLF001
    try:
        yield sleep
    finally:
        handle._Gate, grouping._Waiter = gate, waiter  # type: ignore[misc] # noqa: SLF001


def _awaited(sleep: _Sleep, what: Callable[[], Awaitable[T]]) -> T:
    """Run an `await` in a loop of its own."""

    async def main() -> T:
        return await what()

    loop = _Loop(sleep)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def _any(room: Room, timeout: float | None) -> Status:
    (ended,) = wait_any([room], timeout)
    return ended.poll()


def _ways(room: Room, sleep: _Sleep, timeout: float | None) -> dict[str, Callable[[], Status]]:
    """All ways to wait for a room."""
    return {
        "wait": lambda: room.wait(timeout),
        "wait_any": lambda: _any(room, timeout),
        "await": lambda: _awaited(sleep, lambda: room),
        "wait_outcome": lambda: room.wait_outcome(timeout),
        "decided": lambda: _awaited(sleep, room.decided),
    }


_WAYS = ("wait", "wait_any", "await", "wait_outcome", "decided")


# -- rooms -------------------------------------------------------------------------------------------------------------


@probe("L2", seeds=1)
def whoever_waits_for_a_room_is_woken(play: Play) -> None:
    """In each way to wait, on both sides, with a timeout and without; however late the caller says that it waits."""
    for way in _WAYS:
        for race in _RACES:
            for timeout in (None, _PATIENCE):
                stage = play.scene()
                receiver, sender = stage.pair()
                for room in (receiver, sender):
                    who = "decode" if room is receiver else "prefill"
                    stage.note(f"{who} caller", "call", f"{way}, timeout {timeout}; {race}", who)
                    with _asleep(stage, early=race is _RACES[1]) as sleep:
                        said = _ways(room, sleep, timeout)[way]()
                    if said is not room.poll() or not said.terminal:
                        raise Broken(f"{way} has returned {said.value}, and it is {room!r}")


@probe("L2", seeds=1)
def whoever_waits_for_several_rooms_is_woken_by_any(play: Play) -> None:
    """One of three rooms ends, whichever place it has; nobody sends for the others."""
    for which in range(3):
        for race in _RACES:
            stage = play.scene()
            rooms = [stage.receive(n, pages=[10 + n], aux_index=n) for n in range(3)]
            sender = stage.offer(which)
            stage.send(sender, [3], last=True)
            stage.note("decode caller", "call", f"wait_any of rooms 0 to 2; {race}", "decode")
            with _asleep(stage, early=race is _RACES[1]):
                ended = wait_any(rooms)
            if ended != [rooms[which]]:
                raise Broken(f"wait_any has returned {ended}, and room {which} is {rooms[which].poll().value}")


# -- memory ------------------------------------------------------------------------------------------------------------


@probe("S3", seeds=1)
def whoever_waits_for_memory_is_not_woken_before_it_is_free(play: Play) -> None:
    """The room has ended, and its writes are in flight; they land once nothing else happens any more."""
    for side in ("decode", "prefill"):
        for way in ("wait_memory_free", "memory_freed", "abort"):
            stage, receiver, sender = in_flight(play)
            room = receiver if side == "decode" else sender
            if way != "abort":
                stage.abort(receiver)
                stage.settle()
            stage.note(f"{side} caller", "call", way, side)
            with _asleep(stage, at_rest=lambda stage=stage: land(stage)) as sleep:  # type: ignore[misc]
                if way == "memory_freed":
                    _awaited(sleep, room.memory_freed)
                    said = True
                elif way == "abort":
                    said = bool(room.abort(timeout=_PATIENCE).free)
                else:
                    said = room.wait_memory_free(_PATIENCE)
            if said and stage.world.writes_held:
                raise Broken(f"{way} has said that the memory of {room!r} is free, and a write is in flight")


@probe("L5", seeds=1)
def whoever_waits_for_memory_is_woken(play: Play) -> None:
    """The room ends as it should, and its memory is free without a timer: each way to wait for that returns."""
    for way in ("wait_memory_free", "memory_freed"):
        for race in _RACES:
            stage = play.scene()
            for room in stage.pair():
                stage.note("caller", "call", f"{way}; {race}")
                with _asleep(stage, early=race is _RACES[1]) as sleep:
                    if way == "memory_freed":
                        _awaited(sleep, room.memory_freed)
                    else:
                        room.wait_memory_free()
                if not room.memory_free:
                    raise Broken(f"{way} has returned, and the memory of {room!r} is not free")


# -- groups ------------------------------------------------------------------------------------------------------------


def _grouped(play: Play) -> tuple[Stage, Room, list[Any]]:
    """A room whose decode engine is rank 0 of two; rank 1 is a group alone, and has said nothing."""
    stage = play.scene()
    groups = gather(stage.world, 2)
    pool = stage.decodes[0].pool
    assembly = stage.world.assemble("decode in a group", pool.memory, stage.settings)
    engine = DecodeEngine(pool.memory, settings=stage.settings, assembly=assembly, group=groups[0])
    stage.decodes[0] = Side(engine, pool, assembly.ports)
    groups[1].enter(RoomKey(7, 0))
    receiver, _ = stage.pair()
    return stage, receiver, groups


@probe("A1", seeds=1)
def whoever_waits_for_an_outcome_gets_one(play: Play) -> None:
    """The room is DONE here long before the other rank says anything: what a caller is told is the group's word."""
    for way in ("wait_outcome", "decided", "the group's wait_outcome"):
        stage, room, groups = _grouped(play)
        stage.note("decode caller", "call", way, "decode")

        def tells(stage: Stage = stage, groups: list[Any] = groups) -> None:
            stage.note("rank 1", "call", "report DONE")
            groups[1].report(RoomKey(7, 0), Status.DONE)

        with _asleep(stage, at_rest=tells) as sleep:
            if way == "decided":
                said = _awaited(sleep, room.decided)
            elif way == "wait_outcome":
                said = room.wait_outcome()
            else:
                said = groups[0].wait_outcome(RoomKey(7, 0))
        if said is not Status.DONE or sleep.at_rest is not None:
            raise Broken(f"{way} has returned {said.value}, and rank 1 has {'not ' if sleep.at_rest else ''}reported")


@probe("L2", seeds=1)
def whoever_waits_for_an_outcome_is_woken(play: Play) -> None:
    """Both ranks agree: each way to wait for the group's word returns."""
    for way in ("wait_outcome", "decided", "the group's wait_outcome"):
        stage, room, groups = _grouped(play)
        groups[1].report(RoomKey(7, 0), Status.DONE)
        stage.note("decode caller", "call", way, "decode")
        with _asleep(stage) as sleep:
            if way == "decided":
                _awaited(sleep, room.decided)
            elif way == "wait_outcome":
                room.wait_outcome()
            else:
                groups[0].wait_outcome(RoomKey(7, 0))
