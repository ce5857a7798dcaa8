"""The leader's half of a group: the rooms that ranks have reported on, which ranks are lost, and what is kept for them.

It steps the decisions of `statemachine.group` and carries out what they command. No thread, clock or connection: it is
told what happens, and tells ranks through its port. Nothing in it grows with decided rooms: a room is forgotten once
every rank that is not lost has acknowledged its outcome. For a lost rank outcomes are kept until it has come back and
acknowledged them: of all rooms that were DONE when it was lost, and of so many that have failed.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ..protocol.events import Command, Do
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.group import (
    Acknowledged,
    Back,
    Cause,
    LeaderInput,
    Lost,
    OutcomeDone,
    OutcomeFailed,
    Overdue,
    RankBack,
    RankLost,
    Reported,
    Welcome,
)
from ..protocol.identity import RoomKey
from ..protocol.wire import Body
from ..statemachine.group import DECISION, Decision, DecisionValue, decision, step_decision


class Deciding:
    """A room on the leader, and the serial number of its outcome once there is one."""

    def __init__(self, key: RoomKey, size: int) -> None:
        self.key = key
        self.value: DecisionValue = decision(size)
        self.serial = 0


class LeaderPort(Protocol):
    """What the leader needs of whoever holds it."""

    def tell(self, rank: int, body: Body) -> None:
        """Send a frame to a rank, in order; it is lost if that has no connection. Never calls back at once."""

    def arm(self, room: Deciding) -> None:
        """Call `overdue` when the deadline of decisions has passed."""

    def disarm(self, room: Deciding) -> None:
        """The room is decided."""


class Leader:
    """Decides. limit: of rooms at a time. kept_limit: of failures that are kept for one lost rank."""

    def __init__(self, size: int, port: LeaderPort, limit: int, kept_limit: int) -> None:
        self.size = size
        self.absent: dict[int, Cause] = {}
        """The ranks that are lost, and why."""
        self.counters: Counter[str] = Counter()
        self._port = port
        self._limit = limit
        self._kept_limit = kept_limit
        self._rooms: dict[RoomKey, Deciding] = {}
        self._kept: dict[int, dict[int, OutcomeDone | OutcomeFailed]] = {rank: {} for rank in range(size)}
        self._dropped = [0] * size
        self._serial = 0
        self._ending: Cause | None = None

    # -- what ranks say ------------------------------------------------------------------------------------------

    def report(self, rank: int, key: RoomKey, number: int, failure: Failure | None) -> bool:
        """How a rank's room has ended. False: that rank reports on more rooms than are kept."""
        room = self._rooms.get(key)
        if room is None:
            if len(self._rooms) >= self._limit:
                self.counters["reports that are too many"] += 1
                return False
            room = self._begin(key)
        self._step(room, Reported(rank, number, failure))
        return True

    def acknowledge(self, rank: int, key: RoomKey, serial: int) -> None:
        """A rank has an outcome."""
        self._kept[rank].pop(serial, None)
        room = self._rooms.get(key)
        if room is not None and room.serial == serial:
            self._step(room, Acknowledged(rank))

    # -- what happens to ranks -----------------------------------------------------------------------------------

    def lose(self, rank: int, failure: Failure) -> None:
        """A rank is lost: undecided rooms have failed, and so has every room that is reported before it is back."""
        if rank in self.absent:
            return
        cause = self.absent[rank] = Cause(rank, failure)
        for room in list(self._rooms.values()):
            self._step(room, Lost(cause))
        for other in range(self.size):
            if other not in self.absent:
                self._port.tell(other, RankLost(rank, failure.reason, failure.detail[:DETAIL_MAX], failure.retryable))

    def back(self, rank: int) -> None:
        """A rank has a new connection: it is told all that it may not have heard, in the order in which it happened."""
        was_lost = self.absent.pop(rank, None) is not None
        for _, body in sorted(self._kept[rank].items()):
            self._port.tell(rank, body)
        for room in sorted(self._rooms.values(), key=lambda one: one.serial):
            self._step(room, Back(rank))
        self._port.tell(rank, Welcome(self._dropped[rank], tuple(sorted(self.absent))))
        if was_lost:
            for other in range(self.size):
                if other != rank and other not in self.absent:
                    self._port.tell(other, RankBack(rank))

    # -- time, and the end ---------------------------------------------------------------------------------------

    def overdue(self, room: Deciding, seconds: float) -> None:
        """The deadline of a room's decision has passed: `seconds` after its first report."""
        if room.value.state is not Decision.OPEN:
            return  # it was decided by what else happened at the same time
        missing = room.value.missing
        who = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} have"
        words = f"{who} not reported on {room.key} within {seconds:g} s of the first report; is it open there at all?"
        self._step(room, Overdue(Cause(missing[0], Failure(Reason.DEADLINE_DECISION, words[:DETAIL_MAX]))))

    def finish(self, failure: Failure) -> None:
        """The leader is about to leave: whatever is undecided, or will be reported, has failed."""
        self._ending = Cause(0, failure)
        for room in list(self._rooms.values()):
            self._step(room, Overdue(self._ending))

    @property
    def undrained(self) -> int:
        """How many rooms are not acknowledged by every rank that is not lost."""
        return len(self._rooms)

    def tables(self) -> dict[str, int]:
        """The number of entries of every table."""
        return {"decisions": len(self._rooms), "kept outcomes": sum(map(len, list(self._kept.values())))}

    # -- inside --------------------------------------------------------------------------------------------------

    def _begin(self, key: RoomKey) -> Deciding:
        room = self._rooms[key] = Deciding(key, self.size)
        self._carry_out(room, DECISION.initial_commands, None)
        for cause in self.absent.values():
            self._step(room, Lost(cause))
        if self._ending is not None:
            self._step(room, Overdue(self._ending))
        return room

    def _step(self, room: Deciding, event: LeaderInput) -> None:
        room.value, row = step_decision(room.value, event)
        self._carry_out(room, row.commands, event)

    def _carry_out(self, room: Deciding, commands: tuple[Command, ...], event: LeaderInput | None) -> None:
        for do, _timer in commands:
            match do:
                case Do.ARM:
                    self._port.arm(room)
                case Do.DISARM:
                    self._port.disarm(room)
                case Do.TELL_OUTCOME:
                    self._serial += 1
                    room.serial = self._serial
                    for rank in sorted(room.value.owed):
                        self._port.tell(rank, self._outcome(room, rank))
                case Do.TELL_RANK:
                    assert isinstance(event, Back | Reported)
                    self._port.tell(event.rank, self._outcome(room, event.rank))
                case Do.KEEP_OUTCOME:
                    assert isinstance(event, Lost)
                    self._keep(event.rank, room)
                case Do.KEEP_REPORT:
                    self.counters["reports of a room's next life"] += 1  # the value has it
                case Do.FORGET:
                    self._forget(room)
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _keep(self, rank: int, room: Deciding) -> None:
        """Keep an outcome for a rank that is lost. Failures are dropped when there are too many: it will find out."""
        kept = self._kept[rank]
        kept[room.serial] = self._outcome(room, rank)
        if len(kept) > self._kept_limit:
            oldest = next((serial for serial, body in kept.items() if isinstance(body, OutcomeFailed)), None)
            if oldest is not None:
                del kept[oldest]
                self._dropped[rank] += 1

    def _forget(self, room: Deciding) -> None:
        del self._rooms[room.key]
        for report in room.value.later:
            if report.rank in self.absent:
                continue  # when it is back it reports what it does not know by then
            self.report(report.rank, room.key, report.number, report.failure)

    @staticmethod
    def _outcome(room: Deciding, rank: int) -> OutcomeDone | OutcomeFailed:
        key, value, number = room.key, room.value, room.value.numbers[rank]
        if value.state is Decision.DONE:
            return OutcomeDone(key.room, key.attempt, room.serial, number)
        assert value.cause is not None
        failure = value.cause.failure
        return OutcomeFailed(
            key.room,
            key.attempt,
            room.serial,
            number,
            value.cause.rank,
            failure.reason,
            failure.detail[:DETAIL_MAX],
            failure.retryable,
        )
