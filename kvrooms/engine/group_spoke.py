"""The core of every rank but the leader's: one connection to the leader, made again whenever it breaks.

While the leader lives, a room that was reported is decided by its word alone, however long the connection is down. The
leader is lost when it leaves, when its process has ended, or when nothing was heard of it for `decision_timeout_s`.

Its process has ended when its kernel says that nobody listens any more where it did; or when the connection has ended
without a word before that and no new one can be made within `heartbeat_timeout_s`. A reset alone may be the network's,
and whoever took that for the leader's death would contradict it.
"""

from __future__ import annotations

from ..protocol import group, wire
from ..protocol.failure import DETAIL_MAX, Failure, Reason
from ..transport.ports import CloseCause, Closed, Opened
from .group_core import PROOF, GroupCore, GroupPorts, GroupWatcher, log
from .timers import Alarm

_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class SpokeCore(GroupCore):
    """Rank 1 and higher."""

    def __init__(self, ports: GroupPorts, watcher: GroupWatcher) -> None:
        super().__init__(ports, watcher)
        self.complete = False
        self._ended = False
        """It belongs to no group any more, or never did."""
        self._connection: int | None = None
        self._known = False
        """Something was heard of the leader on this connection."""
        self._left = False
        self._leader = 0
        self._over: list[int] = []
        self._members: list[bytes] = []
        self._missing: tuple[int, ...] = ()
        self._last_heard = self.now
        self._pause_s = _PAUSE_S
        self._dead_since: float | None = None
        """Since when its kernel has said that the leader's process has ended."""

    # -- connections ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Look for the leader. It need not be there yet."""
        self._last_heard = self.now
        self._dial()
        self._timers.arm(self, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _dial(self) -> None:
        self._known = self._left = False
        self._connection = self._channel.dial(self._ports.leader)
        self._timers.arm(self, Alarm.HANDSHAKE, self.now + self.settings.handshake_timeout_s)

    def _opened(self, event: Opened) -> None:
        if event.connection != self._connection:
            self._channel.close(event.connection)
            return
        self._dead_since = None  # somebody listens there
        if self.complete:
            self.say(group.Resume(self._ports.rank))
        else:
            self._members.clear()
            self.say(group.Join(self._ports.rank, self._ports.size, self._ports.member))

    def _closed(self, event: Closed) -> None:
        if event.connection != self._connection:
            return
        self._connection = None
        self._over.append(event.connection)
        self._timers.disarm(self, Alarm.HANDSHAKE)
        self._member.link_down()
        if self._ended:
            return
        where, why = self._ports.leader, event.detail or event.cause.value
        if not self.complete:
            self._watcher.waiting(f"the leader, rank 0, cannot be reached at {where}: {why}", self._missing)
        elif event.cause is CloseCause.NOBODY:
            self._lose(f"its process has ended: {why}")
            return
        elif event.cause in PROOF and self._known and not self._left:
            self._dead_since = self.now
            self._dial()  # and see whether that is true
            return
        self._redial_later()

    def _redial_later(self) -> None:
        """Make another connection after a pause that grows until one is good."""
        self._timers.arm(self, Alarm.REDIAL, self.now + self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _hang_up(self, why: str, *, final: bool = False) -> None:
        """Close the connection, and say so before, so that the leader does not take that for our death."""
        connection = self._connection
        if connection is not None:
            self.say(group.Leave(final, why[:DETAIL_MAX]))
            self._connection = None
            self._channel.close(connection)
            self._timers.disarm(self, Alarm.HANDSHAKE)
            self._member.link_down()

    # -- frames --------------------------------------------------------------------------------------------------

    def say(self, body: wire.Body) -> None:
        """See `MemberPort.say`."""
        if self._connection is not None:
            frame = wire.encode(body, self._ports.incarnation, self._leader)
            self._channel.send(self._connection, frame)

    def _frame_in(self, connection: int, frame: bytes) -> None:
        if connection != self._connection:
            return  # it is over, and this was on its way
        received = self._decoded(frame)
        if received is not None and isinstance(received.body, group.Refuse) and not self._known:
            self._refused(received.body.words)  # its first word: else it is nobody's who could say that
            return
        if received is None or not self._between(received):
            # On a new connection it is said again; not at once, lest it be malformed for ever.
            self._hang_up("a malformed frame")
            self._redial_later()
            return
        self._leader = received.source
        self._last_heard = self.now
        self._known = True
        self._heard(received.body)

    def _between(self, received: group.Received) -> bool:
        """Whether a frame is from our leader to us."""
        from_leader = received.source == self._leader or not self.complete
        return from_leader and received.target == self._ports.incarnation

    def _heard(self, body: group.Frame) -> None:
        match body:
            case group.Ask(sequence):
                self.say(group.Answer(sequence))
            case group.Answer():
                pass
            case group.Leave(final, detail):
                self._left = True
                if final:
                    self._lose(f"it has left: {detail}")
            case _:
                if not (self._decided(body) if self.complete else self._gathered(body)):
                    self._unexpected(body)

    def _gathered(self, body: group.Frame) -> bool:
        """A frame that comes before the group is complete; False: it does not."""
        match body:
            case group.Gathering(missing):
                self._missing = missing
                self._greeted()
                self._watcher.waiting("", missing)
            case group.Present(rank, member) if rank == len(self._members):
                self._members.append(member)
            case group.Ready(number) if len(self._members) == self._ports.size:
                self.complete = True
                self._watcher.joined(number, tuple(self._members))
            case _:
                return False
        return True

    def _decided(self, body: group.Frame) -> bool:
        """A frame that comes once the group is complete; False: it does not."""
        if not self._member.hear(body):
            return False
        if isinstance(body, group.Welcome):
            self._greeted()
        if isinstance(body, (group.Welcome, group.RankLost, group.RankBack)):
            self._trouble()
        return True

    def _greeted(self) -> None:
        """The connection is good; earlier ones that broke here can be closed: the leader looks at them no more."""
        self._timers.disarm(self, Alarm.HANDSHAKE)
        self._pause_s = _PAUSE_S
        for connection in self._over:
            self._channel.close(connection)
        self._over.clear()

    def _refused(self, words: str) -> None:
        if self.complete:
            self._lose(f"the process at {self._ports.leader} knows nothing of us: {words}")
            return
        self._end(words)
        self._watcher.refused(words)

    # -- the leader is lost ----------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        """Nobody decides any more."""
        if self._ended:
            return
        words = f"the leader is lost: {why}"
        log.warning("%s: %s", self.name, words)
        self._end(words)
        self._member.leader_lost(Failure(Reason.PEER_LOST, words[:DETAIL_MAX]))
        self._trouble()

    def _end(self, words: str) -> None:
        """This rank belongs to no group any more."""
        self._ended = True
        self._hang_up(words, final=True)
        for alarm in (Alarm.HANDSHAKE, Alarm.HEARTBEAT, Alarm.REDIAL):
            self._timers.disarm(self, alarm)

    def _trouble(self) -> None:
        over, lost = self._member.over, self._member.lost
        if over is not None:
            self._watcher.trouble((over.failure.detail,))
        else:
            self._watcher.trouble(tuple(f"rank {rank} is lost: {lost[rank].detail}" for rank in sorted(lost)))

    # -- time, and the end ---------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """A heartbeat is due: give up a leader that was silent for too long, or else a connection that is."""
        silent_s = self.now - self._last_heard
        if self.complete and silent_s > self.settings.decision_timeout_s:
            self._lose(f"nothing was heard of it for {silent_s:.1f} s")
            return
        if self._dead_since is not None and self.now - self._dead_since > self.settings.heartbeat_timeout_s:
            self._lose(f"its process at {self._ports.leader} has ended, and it cannot be reached any more")
            return
        if self._known and silent_s > self.settings.heartbeat_timeout_s / 2:
            # It may have ended the connection without being able to say so. Sooner than it takes us for lost.
            self._redial(f"silent for {silent_s:.1f} s")
        elif self._known:
            self.say(group.Ask(0))
        self._timers.arm(self, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _redial(self, why: str) -> None:
        if self._connection is not None:
            self.counters["connections dropped: no answer"] += 1
            self._hang_up(why)
            self._dial()

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        match alarm:
            case Alarm.HEARTBEAT:
                self._beat()
            case Alarm.REDIAL:
                self._dial()
            case Alarm.HANDSHAKE:
                self._redial("no answer")
            case _:
                raise AssertionError(f"{alarm} of {owner!r}")

    def shutdown(self) -> None:
        """See `GroupCore.shutdown`."""
        self.closing = True
        self._member.withdraw(Failure(Reason.SHUTDOWN, f"rank {self._ports.rank} has closed its group"))

    @property
    def undrained(self) -> int:
        """See `GroupCore.undrained`."""
        return self._member.undecided

    def farewell(self) -> None:
        """See `GroupCore.farewell`."""
        words = f"rank {self._ports.rank} has closed its group"
        self._member.leader_lost(Failure(Reason.SHUTDOWN, f"{words} before the leader's word came"))
        self._end(words)
        for connection in self._over:
            self._channel.close(connection)
        self._channel.flush()

    def tables(self) -> dict[str, int]:
        """See `GroupCore.tables`."""
        return {**super().tables(), "connections": int(self._connection is not None)}
