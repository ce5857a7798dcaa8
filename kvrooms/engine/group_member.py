"""A rank's half of a group: its rooms whose outcome is not known, and outcomes of rooms that it has not opened yet.

It steps the standings of `statemachine.group` and carries out what they command. Every rank has one, the leader too. No
thread, clock or connection. Nothing in it grows with decided rooms.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ..protocol.events import Do
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.group import (
    Acknowledge,
    Cause,
    Ended,
    LeaderGone,
    LinkUp,
    MemberInput,
    OutcomeDone,
    OutcomeFailed,
    RankBack,
    RankGone,
    RankLost,
    ReportDone,
    ReportFailed,
    Told,
    Welcome,
    Withdraw,
)
from ..protocol.identity import RoomKey
from ..protocol.status import Status
from ..protocol.wire import Body
from ..statemachine.group import Standing, StandingValue, step_standing


class MemberPort(Protocol):
    """What a rank's half needs of whoever holds it."""

    def say(self, body: Body) -> None:
        """Send a frame to the leader, in order; it is lost if there is no connection. Never calls back at once."""

    def decided(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """The room's outcome, DONE or FAILED. Once for each room that was entered."""

    def abort(self, key: RoomKey, failure: Failure) -> None:
        """The room that is open here cannot become DONE any more: end it."""

    def park(self, key: RoomKey) -> None:
        """Call `expired` after a while."""

    def unpark(self, key: RoomKey) -> None:
        """That is not needed any more."""


class Member:
    """Reports, and waits. park_limit: of outcomes of rooms that are not open here."""

    def __init__(self, rank: int, port: MemberPort, park_limit: int) -> None:
        self.rank = rank
        self.over: Cause | None = None
        """Why nothing can become DONE any more; None while there is a leader."""
        self.lost: dict[int, Failure] = {}
        """The other ranks that are lost, and why."""
        self.counters: Counter[str] = Counter()
        self.linked = False
        self._port = port
        self._park_limit = park_limit
        self._rooms: dict[RoomKey, StandingValue] = {}
        self._parked: dict[RoomKey, Cause] = {}
        self._next = 1
        self._seen = 0
        self._dropped = 0

    @property
    def undecided(self) -> int:
        """How many rooms have no outcome."""
        return len(self._rooms)

    def tables(self) -> dict[str, int]:
        """The number of entries of every table."""
        return {"undecided": len(self._rooms), "parked outcomes": len(self._parked)}

    # -- rooms here ----------------------------------------------------------------------------------------------

    def enter(self, key: RoomKey) -> None:
        """A room is open here; its outcome will be told once. Nothing happens if it is entered already."""
        if key in self._rooms:
            return
        self._rooms[key] = StandingValue()
        parked = self._parked.pop(key, None)
        if parked is not None:
            self._port.unpark(key)
        if self.over is not None:
            self._step(key, LeaderGone(self.over))
        elif parked is not None:
            self._step(key, Told(parked))
        else:
            for rank, failure in list(self.lost.items())[:1]:
                self._step(key, RankGone(self._next, Cause(rank, failure).for_rank(self.rank)))

    def ended(self, key: RoomKey, failure: Failure | None) -> None:
        """A room here has ended: report it. Nothing happens if its outcome is known."""
        if key in self._rooms:
            self._step(key, Ended(self._next, failure))
        else:
            self.counters["rooms that ended after their outcome"] += 1

    def withdraw(self, failure: Failure) -> None:
        """Report every room whose outcome is not known as failed."""
        for key in list(self._rooms):
            self._step(key, Withdraw(self._next, failure))

    # -- what the leader says ------------------------------------------------------------------------------------

    def hear(self, body: Body) -> bool:
        """A frame of the leader. False: it is none that says anything of rooms."""
        match body:
            case OutcomeDone(room, attempt, serial, number):
                self.told(RoomKey(room, attempt), serial, number, None)
            case OutcomeFailed(room, attempt, serial, number, rank, reason, detail, retryable):
                failure = Failure.heard(reason, detail, retryable, "local")
                self.told(RoomKey(room, attempt), serial, number, Cause(rank, failure))
            case RankLost(rank, reason, detail, retryable):
                self.rank_lost(rank, Failure.heard(reason, detail, retryable, "local"))
            case RankBack(rank):
                self.rank_back(rank)
            case Welcome(dropped, lost):
                self.link_up(dropped, lost)
            case _:
                return False
        return True

    def told(self, key: RoomKey, serial: int, number: int, cause: Cause | None) -> None:
        """An outcome. number: of the report that it answers, 0 if the leader knew of none. cause: None for DONE."""
        known = serial <= self._seen
        self._seen = max(serial, self._seen)
        room = self._rooms.get(key)
        if number:
            if room is not None and room.number == number:
                self._step(key, Told(cause))
            else:
                self.counters["outcomes that were known"] += 1
        elif known or cause is None:
            self.counters["outcomes that were known"] += 1
        elif room is not None:
            self._step(key, Told(cause))
        else:
            self._park(key, cause)
        self._port.say(Acknowledge(key.room, key.attempt, serial))

    def rank_lost(self, rank: int, failure: Failure) -> None:
        """Another rank is lost: rooms that are open here fail at once, and so do new ones until it is back."""
        if rank == self.rank or rank in self.lost:
            return
        self.lost[rank] = failure
        for key in list(self._rooms):
            self._step(key, RankGone(self._next, Cause(rank, failure).for_rank(self.rank)))

    def rank_back(self, rank: int) -> None:
        """A rank that was lost is back."""
        self.lost.pop(rank, None)

    # -- the connection ------------------------------------------------------------------------------------------

    def link_down(self) -> None:
        """The connection to the leader is over. Reports wait for the next one; nothing is decided here."""
        self.linked = False

    def link_up(self, dropped: int, lost: tuple[int, ...]) -> None:
        """The leader has welcomed us on a connection, after telling us what we may not have heard.

        dropped: of how many failures it can tell us no more. Those rooms would wait for nobody: so all are taken back.
        """
        for rank in [rank for rank in self.lost if rank not in lost]:
            self.rank_back(rank)
        for rank in lost:
            self.rank_lost(rank, Failure(Reason.PEER_LOST, "it was lost while this rank had no connection"))
        if dropped > self._dropped:
            self._dropped = dropped
            words = "this rank was lost to its group, and so much failed meanwhile that it cannot be told what"
            self.withdraw(Failure(Reason.PEER_LOST, words))
        self.linked = True
        for key in list(self._rooms):
            self._step(key, LinkUp())

    def leader_lost(self, failure: Failure) -> None:
        """Nobody decides any more: what is not known has failed, and so has every further room."""
        if self.over is None:
            self.over = Cause(0, failure)
        self.linked = False
        for key in list(self._rooms):
            self._step(key, LeaderGone(self.over))
        for key in list(self._parked):
            self._port.unpark(key)
            self.expired(key)

    # -- outcomes of rooms that are not open here ------------------------------------------------------------------

    def _park(self, key: RoomKey, cause: Cause) -> None:
        """Keep a failure for whoever opens the room late, so that it need not wait for the others' reports in vain."""
        self._parked[key] = cause
        self._port.park(key)
        if len(self._parked) > self._park_limit:
            oldest = next(iter(self._parked))
            self._port.unpark(oldest)
            self.expired(oldest)

    def expired(self, key: RoomKey) -> None:
        """Nobody has opened the room here."""
        self._parked.pop(key, None)

    # -- inside --------------------------------------------------------------------------------------------------

    def _step(self, key: RoomKey, event: MemberInput) -> None:
        room, row = step_standing(self._rooms[key], event)
        self._rooms[key] = room
        for do, _timer in row.commands:
            match do:
                case Do.SEND_REPORT:
                    self._report(key, room)
                case Do.ABORT_ROOM:
                    self._port.abort(key, self._why(room))
                case Do.SHOW_OUTCOME:
                    if room.state is Standing.DONE:
                        self._port.decided(key, Status.DONE, None)
                    else:
                        self._port.decided(key, Status.FAILED, self._why(room))
                case Do.FORGET:
                    del self._rooms[key]
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _why(self, room: StandingValue) -> Failure:
        failure = room.cause.for_rank(self.rank) if room.cause is not None else room.failure
        assert failure is not None
        return failure

    def _report(self, key: RoomKey, room: StandingValue) -> None:
        self._next = max(self._next, room.number + 1)
        if not self.linked:
            return  # the next connection brings a LINK_UP
        if room.failure is None:
            self._port.say(ReportDone(key.room, key.attempt, room.number))
        else:
            failure = room.failure
            self._port.say(
                ReportFailed(
                    key.room,
                    key.attempt,
                    room.number,
                    failure.reason,
                    failure.detail[:DETAIL_MAX],
                    failure.retryable,
                )
            )
