"""The core of a group: what the leader's and the other ranks' cores share. No thread, clock, socket or randomness.

`turn()` takes in calls and what the channel has, fires alarms, and flushes, as `EngineCore.turn` does; the same thread
runs both. A core tells what happens through a `GroupWatcher`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..protocol import group, wire
from ..protocol.errors import WireError
from ..protocol.failure import Failure
from ..protocol.identity import RoomKey
from ..protocol.status import Status
from ..transport.ports import Clock, CloseCause, Closed, ControlChannel, FrameIn, Opened
from .group_member import Member
from .settings import EngineSettings
from .timers import Alarm, Timers

log = logging.getLogger("kvrooms.group")
PROOF = (CloseCause.PEER_CLOSED, CloseCause.RESET)
"""How a connection ends when the process at its other end has: its kernel says so."""


class GroupPorts(NamedTuple):
    """What a group's core is made of: which rank of how many, what it says of itself, and its ports.

    leader: where the leader is, "host:port". group: the name that a leader gives to its group.
    """

    name: str
    rank: int
    size: int
    member: bytes
    leader: str
    incarnation: int
    group: int
    settings: EngineSettings
    channel: ControlChannel
    clock: Clock


class GroupWatcher(Protocol):
    """Whom a core tells. Called on the thread that turns the core."""

    def joined(self, group: int, members: tuple[bytes, ...]) -> None:
        """Every rank has joined. Once."""

    def waiting(self, why: str, missing: tuple[int, ...]) -> None:
        """Why not every rank has joined yet, and which have not, as far as this rank knows."""

    def refused(self, words: str) -> None:
        """This rank is no member of the group. Nothing follows."""

    def outcome_is(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """The outcome of a room: once for each that was entered."""

    def abort(self, key: RoomKey, failure: Failure) -> None:
        """A room that is open here cannot become DONE any more."""

    def trouble(self, problems: tuple[str, ...]) -> None:
        """What keeps rooms of the group from becoming DONE now; nothing does: ()."""


class GroupCore:
    """The shared half. Only the owning thread calls it, except `submit`, which any thread may call."""

    def __init__(self, ports: GroupPorts, watcher: GroupWatcher) -> None:
        self.name = ports.name
        self.settings = ports.settings
        self.clock = ports.clock
        self.reported = False
        self.patient = False
        self.closing = False
        self.counters: Counter[str] = Counter()
        self.now = self.clock.now()
        self._ports = ports
        self._channel = ports.channel
        self._watcher = watcher
        self._complaints: Counter[str] = Counter()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timers = Timers()
        self._member = Member(ports.rank, self, ports.settings.parked_total)

    # -- the loop ------------------------------------------------------------------------------------------------

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the next turn. Any thread."""
        self._inbox.append((call, arguments))

    @property
    def has_input(self) -> bool:
        """Whether calls are queued."""
        return bool(self._inbox)

    @property
    def listening(self) -> bool:
        """Whether anything has to be polled that wakes nobody: nothing."""
        return False

    def turn(self) -> bool:
        """One round. Returns whether anything happened."""
        self.now = self.clock.now()
        self._look()
        busy = self.take_calls()
        for event in self._channel.poll():
            busy = True
            match event:
                case FrameIn(connection, frame):
                    self._frame_in(connection, frame)
                case Opened():
                    self._opened(event)
                case Closed():
                    self._closed(event)
            self._talk()
        for owner, alarm in self._timers.due(self.now):
            busy = True
            self._alarm(owner, alarm)
        self._talk()
        self._channel.flush()
        return busy

    def take_calls(self) -> bool:
        """Make the calls that are queued. Returns whether there were any."""
        busy = False
        for _ in range(len(self._inbox)):
            call, arguments = self._inbox.popleft()
            call(*arguments)
            busy = True
        self._talk()
        return busy

    def next_deadline(self) -> float | None:
        """When the next alarm is due, on the clock's scale; None when none is set."""
        return self._timers.next_deadline()

    def tables(self) -> dict[str, int]:
        """The number of entries of every table: equal before and after any number of decided rooms."""
        return {"timers": len(self._timers), **self._member.tables()}

    def all_counters(self) -> dict[str, int]:
        """How often something was ignored, refused or malformed, by kind."""
        return dict(self.counters + self._member.counters)

    def _look(self) -> None:
        """Before anything that has arrived is taken in."""

    def _talk(self) -> None:
        """Let leader and member of the same core hear each other."""

    # -- what callers ask (through `submit`) -----------------------------------------------------------------------

    def begin(self) -> None:
        """Join."""
        raise NotImplementedError

    def enter(self, key: RoomKey) -> None:
        """See `Member.enter`."""
        self._member.enter(key)

    def report(self, key: RoomKey, failure: Failure | None) -> None:
        """See `Member.ended`."""
        self._member.ended(key, failure)

    # -- for the member (MemberPort) -------------------------------------------------------------------------------

    def say(self, body: wire.Body) -> None:
        """See `MemberPort.say`."""
        raise NotImplementedError

    def decided(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """See `MemberPort.decided`."""
        self.reported = True
        log.info("%s: %s: the outcome is %s%s", self.name, key, status.name, f": {failure}" if failure else "")
        self._watcher.outcome_is(key, status, failure)

    def abort(self, key: RoomKey, failure: Failure) -> None:
        """See `MemberPort.abort`."""
        self._watcher.abort(key, failure)

    def park(self, key: RoomKey) -> None:
        """See `MemberPort.park`."""
        self._timers.arm(key, Alarm.PARKED, self.now + self.settings.parked_ttl_s)

    def unpark(self, key: RoomKey) -> None:
        """See `MemberPort.unpark`."""
        self._timers.disarm(key, Alarm.PARKED)

    # -- connections ---------------------------------------------------------------------------------------------

    def _decoded(self, frame: bytes) -> group.Received | None:
        """A frame; None, counted and told, when it is malformed."""
        try:
            return group.decode(frame)
        except WireError as error:
            self.counters["frames malformed"] += 1
            self._complain("a malformed frame", error)
            return None

    def _unexpected(self, body: wire.Body) -> None:
        self.counters["frames unexpected"] += 1
        self._complain("a frame that is out of place", type(body).__name__)

    def _complain(self, what: str, detail: object) -> None:
        """Log what a peer did wrong: the first time, the second, the fourth, ... of its kind."""
        self._complaints[what] += 1
        times = self._complaints[what]
        if times & (times - 1) == 0:
            log.warning("%s: %s: %s (%d so far)", self.name, what, detail, times)

    def _opened(self, event: Opened) -> None:
        raise NotImplementedError

    def _frame_in(self, connection: int, frame: bytes) -> None:
        raise NotImplementedError

    def _closed(self, event: Closed) -> None:
        raise NotImplementedError

    def _alarm(self, owner: object, alarm: Alarm) -> None:
        """An alarm has fired."""
        if alarm is Alarm.PARKED:
            assert isinstance(owner, RoomKey)
            self._member.expired(owner)
        else:
            self._own_alarm(owner, alarm)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        raise NotImplementedError

    # -- the end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Take back what is not decided; `undrained` tells when the outcomes of all rooms are known everywhere."""
        raise NotImplementedError

    @property
    def undrained(self) -> int:
        """How many rooms have no outcome yet, or one that some rank has not acknowledged."""
        raise NotImplementedError

    def farewell(self) -> None:
        """Say that we leave, and close. What is not decided by now has failed."""
        raise NotImplementedError
