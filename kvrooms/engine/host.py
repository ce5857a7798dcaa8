"""What `PrefillEngine` and `DecodeEngine` share: assembly from ports, lock, open keys, closing, tables, counters.

Thread model, in full: one thread per engine owns core, transport agent and control channel, and alone touches them. A
public method checks its arguments in the caller's thread, takes the engine's lock only for keys, claims and callbacks,
and hands a call to the thread's inbox. The thread calls back into rooms (`Watcher`) without holding the lock. A second
thread serves the registry. Nothing is shared between processes; a fork of an engine is refused.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ..protocol.arguments import check_limit
from ..protocol.errors import EngineClosed, Overloaded
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RoomKey
from ..protocol.layout import Rank
from ..protocol.memory import Memory
from ..protocol.plan import DescriptorTable
from ..protocol.status import Phase, Status
from .claims import Claims
from .core import CONTEXT_MAX, EngineCore, Ports
from .forks import watch
from .handle import Room, check_process
from .health import Health
from .settings import EngineSettings

if TYPE_CHECKING:
    from .group import RoomGroup

CLOSE_TIMEOUT_S = 10.0
_ACKNOWLEDGE_S = 1.0
E = TypeVar("E", bound="Engine")


class Runner(Protocol):
    """What turns a core: a thread, or a simulated world."""

    def start(self) -> None:
        """Begin to turn the core."""

    def wake(self) -> None:
        """The core has input. Any thread."""

    def stop(self, timeout_s: float) -> bool:
        """Shut the core down, wait until it has drained, and end. False if it did not end in time."""


def _nothing() -> None:
    pass


class Place(NamedTuple):
    """Which one of an instance's ranks a prefill engine is, of how many, and what it has."""

    rank: int
    ranks: int
    member: Rank


class Assembly(NamedTuple):
    """An engine's parts. address: of its control channel ("" if it does not listen). bootstrap: its registry's URL.

    refused: how many connections were not let in, by reason. abandon: in a fork, close copies of sockets.
    """

    ports: Ports
    source: DescriptorTable
    runner: Callable[[EngineCore, Callable[[], None]], Runner]
    release: Callable[[], None]
    address: str = ""
    bootstrap: str = ""
    refused: Callable[[], dict[str, int]] = dict
    abandon: Callable[[], None] = _nothing


class Drained(NamedTuple):
    """How a drain went: rooms DONE and FAILED, those that had to be aborted, how many whose memory is not free.

    aborted: oldest first.
    """

    done: int
    failed: int
    aborted: tuple[str, ...]
    held: int


_HERE: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()


def engines() -> list[Engine]:
    """The engines of this process that are not closed. Any thread."""
    here = [ref() for ref in _HERE.valuerefs()]  # copied in one step, whoever makes an engine meanwhile
    return [one for one in here if one is not None and one.pid == os.getpid() and not one._closed]  # noqa: SLF001


class Engine:
    """Base of both engines. Any method may be called from any thread of the process that made the engine."""

    def __init__(
        self, memory: Memory, settings: EngineSettings, assembly: Assembly, group: RoomGroup | None = None
    ) -> None:
        self.memory = memory
        self.settings = settings
        self.name = assembly.ports.name
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self._assembly = assembly
        self._claims = Claims(memory.layout, memory.regions)
        self._open_rooms: dict[Room, None] = {}
        self._unfree: dict[Room, None] = {}
        self._undecided: dict[RoomKey, Room] = {}
        self.group = group
        self._closed = False
        self._draining = False
        self._core = self._make_core(assembly)
        if group is not None:
            group.attach(self)
        self._runner = assembly.runner(self._core, self._finish)
        self._runner.start()
        watch(self)
        _HERE[id(self)] = self

    def forked(self) -> None:
        """See `forks`. Public methods refuse to be called here, before they take a lock: its holder may be gone."""
        self._assembly.abandon()

    def _make_core(self, assembly: Assembly) -> EngineCore:
        raise NotImplementedError

    # -- for users -----------------------------------------------------------------------------------------------

    @property
    def transport(self) -> str:
        """What carries the bytes: "nixl/UCX"."""
        return self._assembly.ports.transport.backend

    def tables(self) -> dict[str, int]:
        """The number of entries of every table. Nothing in it grows with the number of finished rooms."""
        check_process(self)
        with self.lock:
            claims = {"keys": len(self._open_rooms), "claims": len(self._claims), "unfree": len(self._unfree)}
            if self.group is not None:
                claims["undecided"] = len(self._undecided)
        return {**self._core.tables(), **claims}

    def health(self) -> Health:
        """How the engine is, with figures: what is held for ended rooms, since when, and whether anything moves.

        Nothing is freed because of it; see `DecodeEngine.peer_fenced` for what an orchestrator can do.
        """
        check_process(self)
        health = self._core.health()
        if self.group is not None and self.group.problems:
            health = health._replace(ok=False, problems=(*health.problems, *self.group.problems))
        if self._closed:
            return health._replace(ok=False, problems=(*health.problems, "the engine has ended"))
        return health

    def counters(self) -> dict[str, int]:
        """How often something was ignored, refused or malformed, by kind."""
        refused = {reason: count for reason, count in self._assembly.refused().items() if count}
        return {**self._core.counters, **refused}

    def drain(self, timeout: float | None = None) -> Drained:
        """Take no new rooms and let the open ones end, at most `timeout` s; what has not ended then is aborted.

        In a group, a room has ended when it has its outcome. Then wait for the rooms' memory, within the same limit or
        a second more. The engine stays as it is, to be closed.
        timeout: None for the setting `drain_timeout_s`. Raises EngineClosed; InvalidArgument, and nothing has changed.
        """
        self._check_open()
        limit = self.settings.drain_timeout_s if timeout is None else check_limit("timeout", timeout)
        with self.lock:
            self._draining = True
            rooms = list(self._open_rooms)
        self._submit(self._core.drain)
        end = time.monotonic() + limit
        late: list[str] = []
        for room in rooms:
            try:
                room.wait_outcome(max(0.0, end - time.monotonic()))
            except TimeoutError:
                late.append(repr(room))
                room.abort("the engine was drained", again=True)
        for room in rooms:
            room.wait(CLOSE_TIMEOUT_S)
        end = max(end, time.monotonic() + _ACKNOWLEDGE_S)
        held = sum(not room.wait_memory_free(max(0.0, end - time.monotonic())) for room in rooms)
        done = sum(room.outcome is Status.DONE for room in rooms)
        return Drained(done, len(rooms) - done, tuple(late), held)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End the engine: open rooms fail, writes settle or are acknowledged (at most `timeout` s), peers are told.

        Deregisters, joins the thread. Idempotent. Raises InvalidArgument, and the engine goes on then.
        """
        check_process(self)
        limit = check_limit("timeout", timeout)
        with self.lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._runner.stop(limit)
        self._assembly.release()

    def __enter__(self: E) -> E:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for rooms (Desk) ----------------------------------------------------------------------------------------

    def abort_room(self, room: Room, failure: Failure) -> None:
        """See `Room.abort`."""
        record = room.record
        with self.lock:
            room.aborts += 1
            if record is not None and room.aborts <= 1 + CONTEXT_MAX:  # the first ends the room, no more are remembered
                self._submit(self._core.abort, record, failure)  # type: ignore[attr-defined]

    def close_room(self, room: Room) -> None:
        """See `Room.close`."""
        with self.lock:  # whoever opens the same room again from here on comes after this in the inbox
            record, room.closing = None if room.closing else room.record, True
            if record is not None:
                self._give_key_back(room)
                self._submit(self._core.close_room, record)  # type: ignore[attr-defined]

    def room_freed(self, room: Room) -> None:
        """See `Desk.room_freed`."""
        with self.lock:
            self._free_claims(room)
            self._unfree.pop(room, None)

    def _free_claims(self, room: Room) -> None:
        """The lock is held."""

    def room_forgotten(self, room: Room) -> None:
        """See `Desk.room_forgotten`."""
        with self.lock:
            self._give_key_back(room)
            self._open_rooms.pop(room, None)
            if not room._free.happened:  # noqa: SLF001
                self._unfree[room] = None

    def _give_key_back(self, room: Room) -> None:
        """Let the room's key be used again, once: a second time it may be another room's. The lock is held.

        A room whose group has not decided it keeps its key until then, so that its next life is not taken for this one.
        """
        if self._undecided.get(room._key) is room:  # noqa: SLF001
            room.left = True
            return
        if not room.key_free:
            room.key_free = True
            self._claims.drop_key(room._key)  # noqa: SLF001

    def _check_room(self) -> None:
        """Raises EngineClosed, Overloaded. The lock is held."""
        self._check_open()
        if self._draining:
            raise EngineClosed(f"{self.name} is being drained: it takes no new rooms")
        self._check_calls()
        opened, unfree = len(self._open_rooms), len(self._unfree)
        if opened + unfree >= self.settings.rooms_max:
            closed = f" and {unfree} closed ones whose memory is held" if unfree else ""
            raise Overloaded(
                f"{self.name} has {opened} rooms that are not closed{closed}; rooms_max is {self.settings.rooms_max}"
            )
        if len(self._undecided) >= self.settings.rooms_max:
            raise Overloaded(f"{len(self._undecided)} rooms of {self.name} wait for their group, and rooms_max is that")
        if self.group is not None and self.group.closed:
            raise EngineClosed(f"{self.name} takes no new rooms: its group is closed")

    def _check_calls(self) -> None:
        """Raises Overloaded while too many calls wait for the engine's thread. The lock is held."""
        waiting = len(self._core._inbox)  # noqa: SLF001
        if waiting >= self.settings.calls_max:
            raise Overloaded(f"{waiting} calls wait for the thread of {self.name}, and calls_max is that")

    # -- for the group (GroupUser) ---------------------------------------------------------------------------------

    def _begin(self, room: Room, call: Callable[..., None], *arguments: Any) -> None:
        """Open a room on the engine's thread, and in the group."""
        with self.lock:
            self._submit(call, *arguments)
            self._enter(room)

    def _enter(self, room: Room) -> None:
        """The room is open, and its group will give it an outcome. The lock is held, so that no end overtakes this."""
        if self.group is not None:
            key = room._key  # noqa: SLF001
            self._undecided[key] = room
            self.group.enter(key)

    def room_ended(self, room: Room) -> None:
        """See `Desk.room_ended`."""
        assert self.group is not None
        key = room._key  # noqa: SLF001
        with self.lock:  # whoever opens the same room again comes after this in the group's inbox
            if self._undecided.get(key) is not room:
                return
            told = self.group.report(key, room.poll(), room.failure)
        if not told:
            words = "the engine's group was closed while the room was open"
            self.on_outcome(key, Status.FAILED, Failure(Reason.SHUTDOWN, words))

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """See `GroupUser.on_outcome`."""
        with self.lock:
            room = self._undecided.pop(key, None)
            if room is not None and room.left:
                self._give_key_back(room)
        if room is not None:  # if it was still open, `on_abort` came before
            room.decide(status, failure)

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        """See `GroupUser.on_abort`."""
        with self.lock:
            room = self._undecided.get(key)
        record = None if room is None else room.record
        if room is not None and record is not None and not room.poll().terminal:
            here = Failure(failure.reason, failure.detail, again=failure.again)
            self._submit(self._core.abort, record, here)  # type: ignore[attr-defined]

    # -- inside --------------------------------------------------------------------------------------------------

    def _submit(self, call: Callable[..., None], *arguments: Any) -> None:
        self._core.submit(call, *arguments)
        self._runner.wake()

    def _check_open(self) -> None:
        """Raises EngineClosed. Under the lock, no room can slip in between this and `_finish`."""
        check_process(self)
        if self._closed:
            raise EngineClosed(f"{self.name} is closed")

    def _finish(self) -> None:
        """On the engine's thread, at its end: whatever is still open ends now, so that nobody waits for ever."""
        ports = self._assembly.ports
        try:
            ports.transport.close()
            self._core.farewell()
        finally:
            with self.lock:
                self._closed = True
                left = list(self._open_rooms)
            for room in left:
                if not room.poll().terminal:
                    room.ended(Phase.FAILED, Failure(Reason.SHUTDOWN, "the engine's thread has ended"), [])
                room.forgotten()
