"""A group: the ranks of one engine instance, each a process, which give each room one outcome. Rank 0 leads.

    group = RoomGroup(rank, 4, "10.0.0.1:7000", member=description).join()
    engine = DecodeEngine(memory, group=group, ...)
    room = engine.open(...)
    room.wait()            # how the room ended on this rank
    room.wait_outcome()    # how it ended on all of them: DONE only if it is DONE on every rank
    ...
    engine.close()
    group.close()

`statemachine.group` says what holds. Thread model: as an engine's. One thread owns the core and the control channel;
public methods may be called from any thread and hand their calls to its inbox. Callbacks come on that thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from ..protocol.arguments import check_left, check_limit, check_text
from ..protocol.errors import EngineClosed, GroupIncomplete, HandshakeRefused, InvalidArgument
from ..protocol.failure import Failure, Reason
from ..protocol.group import MEMBER_MAX
from ..protocol.identity import RANKS_MAX, RoomKey, check_int
from ..protocol.registration import check_instance
from ..protocol.status import Status
from .forks import watch
from .group_core import GroupCore, GroupPorts
from .group_hub import HubCore
from .group_real import GroupAssembly, assemble
from .group_spoke import SpokeCore
from .security import Security
from .settings import EngineSettings, load_settings

CLOSE_TIMEOUT_S = 10.0
RECENT = 1024
"""How many outcomes `outcome` remembers."""
_ROOM_MASK = 2**63 - 1


class GroupUser(Protocol):
    """Whoever's rooms are in a group: an engine. Called on the group's thread, or on the one that reports too late."""

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """The outcome of a room, once for each that was entered. failure: why it is FAILED, None for DONE."""

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        """The room, if it is still open here, cannot become DONE in the group: end it."""


class _Waiter:
    """Somebody who waits for an outcome."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.status: Status | None = None


class RoomGroup:
    """One rank's part in a group. Any method may be called from any thread of the process that made it.

    rank, size: which rank this is, of how many. leader: "host:port" of rank 0; on rank 0, where it listens (port 0: any
    free one; see `address`). member: what the other ranks are to know of this one, at most 1 MiB. timeout: of `join`.
    name: for logs. settings, single settings and security as for engines; of the settings those count: `heartbeat_s`,
    `heartbeat_timeout_s`, `decision_timeout_s`, `handshake_timeout_s`, `parked_ttl_s`, `parked_total`, `rooms_max`,
    `max_connections`. Raises InvalidArgument, and OSError where rank 0 cannot listen.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        leader: str,
        member: bytes = b"",
        *,
        timeout: float = 60.0,
        name: str | None = None,
        settings: EngineSettings | None = None,
        security: Security | None = None,
        assembly: GroupAssembly | None = None,
        **overrides: float,
    ) -> None:
        self.size = check_int("size", size, 1, RANKS_MAX)
        self.rank = check_int("rank", rank, 0, self.size - 1)
        self.settings = _checked(settings or load_settings(**overrides))
        self.name = check_instance(name or f"group-{os.getpid()}-rank-{self.rank}")
        said: object = member
        if not isinstance(said, bytes) or len(said) > MEMBER_MAX:
            raise InvalidArgument("member", type(said).__name__, f"must be at most {MEMBER_MAX} bytes")
        self.id = 0
        """A random number that names the group, the same on every rank; 0 before `join`."""
        self.members: tuple[bytes, ...] = ()
        """What each rank has said of itself; () before `join`."""
        self.pid = os.getpid()
        self._timeout = check_limit("timeout", timeout)
        self._lock = threading.Lock()
        self._entered: set[RoomKey] = set()
        self._recent: dict[RoomKey, Status] = {}
        self._waiters: dict[RoomKey, list[_Waiter]] = {}
        self._user: GroupUser | None = None
        self._joined = threading.Event()
        self._why = ""
        self._missing: tuple[int, ...] = ()
        self._words = ""
        self._problems: tuple[str, ...] = ()
        self._begun = self._closing = self._closed = False
        made = assemble(self.rank, leader, self.settings, security) if assembly is None else assembly
        self._assembly = made
        ports = GroupPorts(
            self.name, self.rank, self.size, member, made.address or leader, made.ids.incarnation(),
            made.ids.token() & _ROOM_MASK or 1, self.settings, made.channel, made.clock,
        )  # fmt: skip
        self._core: GroupCore = HubCore(ports, self) if self.rank == 0 else SpokeCore(ports, self)
        self._runner = made.runner(self._core, self._finish)
        self._runner.start()
        watch(self)

    def __repr__(self) -> str:
        return f"<RoomGroup {self.id:x} rank {self.rank} of {self.size}>"

    # -- joining -------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """On rank 0 "host:port" where it listens: what the other ranks are told; "" elsewhere."""
        return self._assembly.address

    def join(self, timeout: float | None = None) -> Self:
        """Block until every rank has joined, at most `timeout` seconds (None: as the group was made), and return self.

        Raises GroupIncomplete, which names the missing ranks as far as this rank knows them (joining goes on, and
        `join` may be called again); HandshakeRefused if the leader will not have this rank; EngineClosed.
        """
        self._check_open()
        seconds = self._timeout if timeout is None else check_limit("timeout", timeout)
        if not self._begun:
            self._begun = True
            self._submit(self._core.begin)
        joined = self._joined.wait(seconds)
        if self._words:
            raise HandshakeRefused((self._words,))
        self._check_open()
        if not joined:
            raise GroupIncomplete(self.name, seconds, self._why, self._missing)
        return self

    def attach(self, user: GroupUser) -> None:
        """Tell `user` of outcomes; there can be one. Raises as `check_free` does."""
        with self._lock:
            self.check_free()
            self._user = user

    def check_free(self) -> None:
        """Raise InvalidArgument if not every rank has joined, or an engine has this group; EngineClosed."""
        self._check_open()
        if not self.members:
            raise InvalidArgument("group", self.name, "join() it first")
        if self._user is not None:
            raise InvalidArgument("group", self.name, "it belongs to an engine already; each engine has its own")

    # -- rooms ---------------------------------------------------------------------------------------------------

    def enter(self, key: RoomKey) -> None:
        """A room is open on this rank; its outcome will be told, once. An engine does this for its rooms.

        Raises InvalidArgument if the last room with this key is not decided. Never blocks.
        """
        self._check_process()
        if not isinstance(key, RoomKey):
            raise InvalidArgument("key", key, "must be a RoomKey")
        with self._lock:
            if key in self._entered:
                raise InvalidArgument("room", key.room, f"{key} is not decided by its group yet; use another attempt")
            self._entered.add(key)
            self._recent.pop(key, None)
        self._submit(self._core.enter, key)

    def report(self, key: RoomKey, status: Status, failure: Failure | None = None) -> bool:
        """How an entered room ended on this rank: DONE, or FAILED because of `failure`. The first report counts.

        It is ignored once the outcome is known. False: the group is closed, so the outcome is FAILED. Never blocks.
        """
        self._check_process()
        if status not in (Status.DONE, Status.FAILED):
            raise InvalidArgument("status", status, "must be DONE or FAILED")
        if failure is not None:
            check_text("failure", failure.detail)
        why = None if status is Status.DONE else failure or Failure(Reason.ABORTED, "it failed")
        with self._lock:
            if self._closed:
                self._settle(key, Status.FAILED)
                return False
            self._core.submit(self._core.report, key, why)  # in here, so that `_finish` does not miss it
        self._runner.wake()
        return True

    def outcome(self, key: RoomKey) -> Status | None:
        """DONE or FAILED; None while it is not decided, and for a room that was not entered, or not lately."""
        return self._recent.get(key)

    def wait_outcome(self, key: RoomKey, timeout: float | None = None) -> Status:
        """Block until a room is decided; TimeoutError after `timeout` seconds."""
        self._check_process()
        left = check_left("timeout", timeout)
        waiter = _Waiter()
        with self._lock:
            known = self._recent.get(key)
            if known is not None:
                return known
            if self._closed and key not in self._entered:
                waiter.told.set()
            else:
                self._waiters.setdefault(key, []).append(waiter)
        if not waiter.told.wait(left):
            with self._lock:
                others = [one for one in self._waiters.pop(key, []) if one is not waiter]
                if others:
                    self._waiters[key] = others
            if not waiter.told.is_set():
                raise TimeoutError(f"{key} is not decided after {timeout} s")
        if waiter.status is None:
            raise EngineClosed(f"{self.name} is closed, and {key} was not entered, or not lately")
        return waiter.status

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it decides nothing any more."""
        return self._closed

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps rooms from becoming DONE now: lost ranks, or a lost leader; () while all is well."""
        return self._problems

    def tables(self) -> dict[str, int]:
        """The number of entries of every table. Nothing in it grows with the number of decided rooms."""
        with self._lock:
            mine = {"entered": len(self._entered), "waiters": sum(map(len, self._waiters.values()))}
        return {**self._core.tables(), **mine}

    def counters(self) -> dict[str, int]:
        """How often something was ignored, refused or malformed, by kind."""
        refused = {reason: count for reason, count in self._assembly.refused().items() if count}
        return {**self._core.all_counters(), **refused}

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Leave. Idempotent. Rooms that are not decided fail, by the leader's word if that comes within `timeout` s.

        The other ranks' rooms fail from then on: close the engine before, on every rank.
        """
        self._check_process()
        limit = check_limit("timeout", timeout)
        with self._lock:
            closing, self._closing = self._closing, True
        if closing:
            return
        self._runner.stop(limit)
        self._assembly.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forked(self) -> None:
        """See `forks`."""
        self._assembly.abandon()

    # -- what the core tells (GroupWatcher) ------------------------------------------------------------------------

    def joined(self, group: int, members: tuple[bytes, ...]) -> None:
        """See `GroupWatcher.joined`."""
        self.id, self.members = group, members
        self._joined.set()

    def waiting(self, why: str, missing: tuple[int, ...]) -> None:
        """See `GroupWatcher.waiting`."""
        self._why, self._missing = why, missing

    def refused(self, words: str) -> None:
        """See `GroupWatcher.refused`."""
        self._words = words
        self._joined.set()

    def outcome_is(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """See `GroupWatcher.outcome_is`."""
        with self._lock:
            self._settle(key, status)
        if self._user is not None:
            self._user.on_outcome(key, status, failure)

    def abort(self, key: RoomKey, failure: Failure) -> None:
        """See `GroupWatcher.abort`."""
        if self._user is not None:
            self._user.on_abort(key, failure)

    def trouble(self, problems: tuple[str, ...]) -> None:
        """See `GroupWatcher.trouble`."""
        self._problems = problems

    # -- inside --------------------------------------------------------------------------------------------------

    def _settle(self, key: RoomKey, status: Status) -> None:
        """A room has its outcome. The lock is held."""
        self._entered.discard(key)
        self._recent[key] = status
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        for waiter in self._waiters.pop(key, ()):
            waiter.status = status
            waiter.told.set()

    def _submit(self, call: Callable[..., None], *arguments: object) -> None:
        self._core.submit(call, *arguments)
        self._runner.wake()

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise EngineClosed(f"{self.name} is closed")

    def _check_process(self) -> None:
        if os.getpid() != self.pid:
            raise EngineClosed(f"{self.name} belongs to process {self.pid}; this is a fork of it")

    def _finish(self) -> None:
        """On the group's thread, at its end: whatever is not decided fails now, so that nobody waits for ever."""
        with self._lock:
            self._closed = True
        try:
            self._core.take_calls()
            self._core.farewell()
        finally:
            self._problems = ("the group was closed",)
            self._joined.set()
            with self._lock:
                left = list(self._entered)
            for key in left:
                self.outcome_is(key, Status.FAILED, Failure(Reason.SHUTDOWN, "the group's thread has ended"))
            with self._lock:
                waiters, self._waiters = self._waiters, {}
            for waiter in (one for some in waiters.values() for one in some):
                waiter.told.set()


def _checked(settings: EngineSettings) -> EngineSettings:
    """Settings for a group: its thread sleeps as soon as nothing is to be done. Raises InvalidArgument."""
    if settings.decision_timeout_s < 2 * settings.heartbeat_timeout_s:
        why = f"a group needs at least twice heartbeat_timeout_s, which is {settings.heartbeat_timeout_s:g}"
        raise InvalidArgument("decision_timeout_s", settings.decision_timeout_s, why)
    return msgspec.structs.replace(settings, spin_s=0.0, linger_s=0.0)
