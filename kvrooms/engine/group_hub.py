"""The leader's core: rank 0, to which every other rank has one connection.

A rank is lost when its process has ended (its kernel says so), when it has been silent for `heartbeat_timeout_s`, or
when it leaves. A connection that breaks in any other way can be made again within that time, and nothing is lost.

The leader fences itself: it counts a rank as present only if that rank has answered something that was asked at most
half a `decision_timeout_s` ago. A rank takes a leader for lost that it has not heard for a whole one. So a leader that
was stopped, and goes on, loses ranks that may have given it up before it can decide anything with them.
"""

from __future__ import annotations

from collections import deque

from ..protocol import group, wire
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..protocol.identity import RoomKey
from ..transport.ports import Closed, Opened
from .group_core import PROOF, GroupCore, GroupPorts, GroupWatcher, log
from .group_leader import Deciding, Leader
from .group_seats import Seat, Visit, unfit
from .timers import Alarm


class HubCore(GroupCore):
    """Rank 0."""

    def __init__(self, ports: GroupPorts, watcher: GroupWatcher) -> None:
        super().__init__(ports, watcher)
        settings = ports.settings
        self.leader = Leader(ports.size, self, ports.size * settings.rooms_max, settings.parked_total)
        self.complete = False
        self._seats = [Seat(rank) for rank in range(1, ports.size)]
        self._visits: dict[int, Visit] = {}
        self._to_member: deque[wire.Body] = deque()
        self._to_leader: deque[wire.Body] = deque()

    # -- the ranks gather ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be there. The other ranks may have come before."""
        self._gather()

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not joined."""
        return tuple(seat.rank for seat in self._seats if not seat.incarnation)

    def _gather(self) -> None:
        """See whether every rank is there; tell those that are who is missing."""
        missing = self.missing
        self._watcher.waiting("", missing)
        if missing:
            for seat in self._seats:
                self._tell(seat, group.Gathering(missing))
            return
        if self.complete:
            return
        self.complete = True
        self._member.linked = True
        for seat in self._seats:
            seat.confirmed = self.now
            self._introduce(seat)
            self.leader.back(seat.rank)
        self._watcher.joined(self._ports.group, (self._ports.member, *(seat.member for seat in self._seats)))

    def _introduce(self, seat: Seat) -> None:
        for rank, member in enumerate((self._ports.member, *(other.member for other in self._seats))):
            self._tell(seat, group.Present(rank, member))
        self._tell(seat, group.Ready(self._ports.group))

    def _join(self, visit: Visit, source: int, body: group.Join) -> None:
        words = unfit(self._seats, self.complete, source, body)
        if words:
            self._refuse(visit, words)
            return
        seat = self._seats[body.rank - 1]
        self._take(seat, visit, source)
        if self.complete:
            self._introduce(seat)
            self._return(seat)
        else:
            seat.member = body.member
            self._gather()

    def _resume(self, visit: Visit, source: int, body: group.Resume) -> None:
        seat = self._seats[body.rank - 1] if 0 < body.rank < self._ports.size else None
        if seat is None or not self.complete or seat.incarnation != source or seat.gone:
            self._refuse(visit, f"no process like you is rank {body.rank} of this group")
            return
        self._take(seat, visit, source)
        self._return(seat)

    def _take(self, seat: Seat, visit: Visit, source: int) -> None:
        """A rank's connection is this one now; an earlier one is over, whatever may still arrive on it."""
        if seat.connection is not None:
            self._visits.pop(seat.connection, None)
            seat.over.append(seat.connection)
        for connection in seat.over:
            self._channel.close(connection)
        seat.over.clear()
        visit.seat = seat
        seat.connection, seat.incarnation, seat.where = visit.connection, source, visit.where
        seat.last_heard, seat.answered, seat.returning = self.now, True, False
        self._timers.disarm(visit, Alarm.HANDSHAKE)
        self._timers.arm(seat, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _return(self, seat: Seat) -> None:
        """A rank is back. What it answers shows that it has heard of us just now, and will not give us up so soon."""
        seat.returning = True
        self._ask(seat)

    def _refuse(self, visit: Visit, words: str) -> None:
        self.counters["ranks refused"] += 1
        log.warning("%s: %s was refused: %s", self.name, visit.where, words)
        frame = wire.encode(group.Refuse(words[:DETAIL_MAX]), self._ports.incarnation, 0)
        self._channel.send(visit.connection, frame)
        self._part(visit)

    # -- connections ---------------------------------------------------------------------------------------------

    def _opened(self, event: Opened) -> None:
        visit = self._visits[event.connection] = Visit(event.connection, event.address)
        self._timers.arm(visit, Alarm.HANDSHAKE, self.now + self.settings.handshake_timeout_s)

    def _part(self, visit: Visit) -> None:
        """Close a connection that we are finished with; what still arrives on it is not heard."""
        self._visits.pop(visit.connection, None)
        self._timers.disarm(visit, Alarm.HANDSHAKE)
        self._channel.close(visit.connection)

    def _closed(self, event: Closed) -> None:
        visit = self._visits.pop(event.connection, None)
        if visit is None:
            return
        self._timers.disarm(visit, Alarm.HANDSHAKE)
        seat = visit.seat
        if seat is None:
            self._channel.close(event.connection)
            return
        seat.connection = None
        seat.over.append(event.connection)
        if not self.complete:
            self._vacate(seat)
        elif event.cause in PROOF and not visit.left:
            self._lose(seat, f"its process has ended: {event.detail or event.cause.value}")

    def _vacate(self, seat: Seat) -> None:
        """A rank that had joined is gone before all were there: another process may take its place."""
        self._timers.disarm(seat, Alarm.HEARTBEAT)
        for connection in seat.over:
            self._channel.close(connection)
        seat.over.clear()
        seat.incarnation, seat.member = 0, b""
        self._gather()

    def _frame_in(self, connection: int, frame: bytes) -> None:
        visit = self._visits.get(connection)
        if visit is None:
            return  # it is over, and this was on its way
        received = self._decoded(frame)
        seat = visit.seat
        if received is None or (seat is not None and not self._between(received, seat)):
            # Nothing can be made of what it said; on a new connection it is said again.
            if seat is None:
                self._part(visit)
            else:
                self._hang_up(seat, "a malformed frame")
                if not self.complete:
                    self._vacate(seat)
            return
        body = received.body
        if seat is None:
            match body:
                case group.Join():
                    self._join(visit, received.source, body)
                case group.Resume():
                    self._resume(visit, received.source, body)
                case _:
                    self._unexpected(body)
                    self._part(visit)
            return
        seat.last_heard = self.now
        self._heard(visit, seat, body)

    def _between(self, received: group.Received, seat: Seat) -> bool:
        """Whether a frame is from this rank to us."""
        return received.source == seat.incarnation and received.target == self._ports.incarnation

    def _heard(self, visit: Visit, seat: Seat, body: group.Frame) -> None:
        """A frame of a rank."""
        match body:
            case group.Ask(sequence):
                self._tell(seat, group.Answer(sequence))
            case group.Answer(sequence):
                self._answer(seat, sequence)
            case group.Leave(final, detail):
                visit.left = True
                if final and self.complete:
                    seat.gone = True
                    self._lose(seat, f"it has left the group: {detail}")
            case group.ReportDone() | group.ReportFailed() | group.Acknowledge() if self.complete:
                if seat.returning or seat.rank in self.leader.absent:
                    self.counters["frames of a rank that is lost"] += 1
                    return
                if not self._count(seat.rank, body):
                    self._lose(seat, "it reports on more rooms than this leader keeps")
            case _:
                self._unexpected(body)

    def _count(self, rank: int, body: wire.Body) -> bool:
        """Let the leader hear a rank. False: it says too much."""
        match body:
            case group.ReportDone(room, attempt, number):
                return self.leader.report(rank, RoomKey(room, attempt), number, None)
            case group.ReportFailed(room, attempt, number, reason, detail, retryable):
                failure = Failure.heard(reason, detail, retryable, "local")
                return self.leader.report(rank, RoomKey(room, attempt), number, failure)
            case group.Acknowledge(room, attempt, serial):
                self.leader.acknowledge(rank, RoomKey(room, attempt), serial)
        return True

    # -- who is there --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See the module: whoever has not answered for too long is lost, before anything is decided with it."""
        if not self.complete:
            return
        limit = self.now - self.settings.decision_timeout_s / 2
        for seat in self._seats:
            if seat.confirmed < limit and seat.rank not in self.leader.absent:
                self._lose(seat, f"it has not answered for {self.now - seat.confirmed:.1f} s")

    def _ask(self, seat: Seat) -> None:
        """Ask, with a new number if the last one was answered; what counts is when a number was first sent."""
        if seat.answered:
            seat.answered = False
            seat.asked += 1
            seat.asked_at = self.clock.now()
        self._tell(seat, group.Ask(seat.asked))

    def _answer(self, seat: Seat, sequence: int) -> None:
        if sequence != seat.asked or seat.answered:
            return
        seat.answered, seat.confirmed = True, seat.asked_at
        if seat.returning:
            seat.returning = False
            log.info("%s: rank %d is back", self.name, seat.rank)
            self.leader.back(seat.rank)
            self._trouble()

    def _beat(self, seat: Seat) -> None:
        """A heartbeat is due: give up a rank that is silent, connected or not; ask the others."""
        silent_s = self.now - seat.last_heard
        if silent_s > self.settings.heartbeat_timeout_s and seat.connection is not None and not self.complete:
            self._hang_up(seat, f"silent for {silent_s:.1f} s")
            self._vacate(seat)
            return
        if silent_s > self.settings.heartbeat_timeout_s and (seat.returning or seat.rank not in self.leader.absent):
            self._lose(seat, f"it has been silent for {silent_s:.1f} s")
        if seat.connection is not None:
            self._ask(seat)
        if not seat.gone:
            self._timers.arm(seat, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _lose(self, seat: Seat, why: str) -> None:
        """A rank is lost. If it lives it finds out, and may come back."""
        log.warning("%s: rank %d is lost: %s", self.name, seat.rank, why)
        self._hang_up(seat, why)
        self.leader.lose(seat.rank, Failure(Reason.PEER_LOST, why[:DETAIL_MAX]))
        self._trouble()

    def _hang_up(self, seat: Seat, why: str) -> None:
        """Close a rank's connection, and say so before, so that it does not take that for our death."""
        seat.returning = False
        if seat.connection is not None:
            self._tell(seat, group.Leave(final=False, detail=why[:DETAIL_MAX]))
            visit = self._visits[seat.connection]
            seat.connection = None
            self._part(visit)

    def _trouble(self) -> None:
        absent = self.leader.absent
        self._watcher.trouble(tuple(f"rank {rank} is lost: {absent[rank].failure.detail}" for rank in sorted(absent)))

    # -- frames --------------------------------------------------------------------------------------------------

    def _tell(self, seat: Seat, body: wire.Body) -> None:
        if seat.connection is not None:
            self._channel.send(seat.connection, wire.encode(body, self._ports.incarnation, seat.incarnation))

    def tell(self, rank: int, body: wire.Body) -> None:
        """See `LeaderPort.tell`."""
        if rank:
            seat = self._seats[rank - 1]
            if not seat.returning:  # else `Leader.back` tells it this and all that it has missed before, in order
                self._tell(seat, body)
        else:
            self._to_member.append(body)

    def say(self, body: wire.Body) -> None:
        """See `MemberPort.say`."""
        self._to_leader.append(body)

    def _talk(self) -> None:
        while self._to_leader or self._to_member:
            if self._to_leader:
                self._count(0, self._to_leader.popleft())
            else:
                self._member.hear(self._to_member.popleft())

    # -- time, and the end ---------------------------------------------------------------------------------------

    def arm(self, room: Deciding) -> None:
        """See `LeaderPort.arm`."""
        self._timers.arm(room, Alarm.DECISION, self.now + self.settings.decision_timeout_s)

    def disarm(self, room: Deciding) -> None:
        """See `LeaderPort.disarm`."""
        self._timers.disarm(room, Alarm.DECISION)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        match alarm, owner:
            case Alarm.DECISION, Deciding() as room:
                self.leader.overdue(room, self.settings.decision_timeout_s)
            case Alarm.HEARTBEAT, Seat() as seat:
                self._beat(seat)
            case Alarm.HANDSHAKE, Visit() as visit:
                self.counters["connections dropped: no handshake"] += 1
                self._part(visit)
            case _:
                raise AssertionError(f"{alarm} of {owner!r}")

    def shutdown(self) -> None:
        """See `GroupCore.shutdown`."""
        self.closing = True
        failure = Failure(Reason.SHUTDOWN, "the group was closed on its leader")
        self._member.withdraw(failure)
        self._talk()
        self.leader.finish(failure)
        self._talk()

    @property
    def undrained(self) -> int:
        """See `GroupCore.undrained`."""
        return self._member.undecided + self.leader.undrained

    def farewell(self) -> None:
        """See `GroupCore.farewell`."""
        words = "the group was closed on its leader"
        self._member.leader_lost(Failure(Reason.SHUTDOWN, words))
        for seat in self._seats:
            self._tell(seat, group.Leave(final=True, detail=words))
        for visit in list(self._visits.values()):
            self._part(visit)
        self._channel.flush()

    def tables(self) -> dict[str, int]:
        """See `GroupCore.tables`."""
        return {**super().tables(), **self.leader.tables(), "connections": len(self._visits)}

    def all_counters(self) -> dict[str, int]:
        """See `GroupCore.all_counters`."""
        return dict(self.counters + self._member.counters + self.leader.counters)
