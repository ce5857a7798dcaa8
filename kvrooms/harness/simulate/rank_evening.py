"""The evening of a simulated run of several ranks: nothing goes wrong any more, and everything must end.

1. No timer runs. Callers do what they still intend. Where a room has ended on all ranks of a group, or failed on one,
   each rank is told, and where it has failed it is over there, too; rooms that nothing silent has touched have ended,
   and their memory is free (L2, L3, L5). Connections are given time to be made again.
2. Timers run: every room ends on every rank, every rank is told, all memory comes back (L1, L3, L5).
3. Each room's outcome was one (A1). Everything is closed; the next room is served on all ranks, or, where a group has
   lost a rank, has failed at once on those that are left (L4). Nothing is left in any table (C1), no byte was touched
   (S3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...protocol.status import Status
from .bench import left_over
from .evening import RECONNECT_S, SLACK_S
from .lives import Trouble
from .rank_day import RankDay
from .rank_lives import Seat, Shared
from .swarm import PARKED_S, PHASES_S

_ROUNDS_MAX = 2000
_KEPT = ("timers", "connections", "kept outcomes")
"""Tables of a group that rightly hold something when no room is left."""


class RankEvening:
    """What comes after a day."""

    def __init__(self, day: RankDay) -> None:
        self.day = day
        self.judge = day.judge
        self.world = day.world

    def live(self) -> None:
        """All of it, as long as nothing is broken."""
        self.world.heal()
        self.day.stalled.clear()
        for stage in (self.by_itself, self.by_deadline, self.give_back, self.as_new, self.nothing_left):
            if self.judge.found:
                return
            stage()

    # -- without a timer -------------------------------------------------------------------------------------------

    def by_itself(self) -> None:
        """Callers do the rest, and what can end without a timer does."""
        self._callers_go_on()
        self.world.settle()
        self._must_have_ended(Trouble.ANNOUNCED)
        self._wait(RECONNECT_S)
        self.world.settle()
        self._must_have_ended(Trouble.RECONNECTING)

    def _callers_go_on(self) -> None:
        for _ in range(_ROUNDS_MAX):
            ready = [(life, seat) for life, seat in self.day.ready() if seat.intends[0] != "close"]
            if not ready:
                return
            self.day.act(*self.day.draw.choice(ready))
            self.day.steps(self.day.draw.randrange(6))

    def _must_have_ended(self, worst: Trouble) -> None:
        judge = self.judge
        for life in judge.lives:
            if judge.worst_of_groups <= worst:
                self._must_know(life)
            if life.trouble > worst or not life.complete or any(seat.gone for seat in life.seats):
                continue
            for seat in life.seats:
                if seat.open and not self._waits(life, seat):
                    words = f"{_words(life, seat)}, and without a timer nothing will end it"
                    judge.accuse("L2" if life.trouble is Trouble.NONE else "L3", words, life)
                elif seat.end is not None and not seat.freed:
                    judge.accuse("L5", f"memory of {_words(life, seat)} is not free without a timer", life)
            if life.trouble is Trouble.NONE and any(one.end and one.end.failure for one in life.seats):
                seat = next(one for one in life.seats if one.end and one.end.failure)
                judge.accuse("L2", f"nothing has touched {life}, and {seat.name} failed: {seat.room.failure}", life)

    def _must_know(self, life: Shared) -> None:
        """Where the ranks of a group have all ended, or one has failed or is dead, each of them knows the outcome."""
        judge = self.judge
        for side in judge.groups:
            seats = life.of(side)
            ends = [seat.end for seat in seats]
            known = all(ends) or any(end is not None and end.failure for end in ends) or bool(judge.dead[side])
            for seat in seats if known else ():
                if seat.untold:
                    property_id = "L2" if life.trouble is Trouble.NONE else "L3"
                    judge.accuse(property_id, f"{_words(life, seat)}, and is not told the outcome", life)
                elif seat.open and seat.told is not None and seat.told.status is Status.FAILED:
                    judge.accuse("L3", f"{_words(life, seat)}, although the outcome is FAILED", life)

    @staticmethod
    def _waits(life: Shared, seat: Seat) -> bool:
        """Whether a rank waits for one that has given up before it asked or was asked."""
        others = life.of("prefill" if seat.side == "decode" else "decode")
        gone = any(one.end is not None and one.end.failure is not None for one in others)
        return gone and seat.room.poll() in (Status.BOOTSTRAPPING, Status.WAITING)

    # -- with timers -----------------------------------------------------------------------------------------------

    def by_deadline(self) -> None:
        """Every room ends on every rank, everybody is told, and all memory comes back."""
        judge = self.judge
        left = [(life, seat) for life in judge.lives for seat in life.seats if seat.open or seat.untold]
        limit = PHASES_S + SLACK_S + judge.settings.decision_timeout_s
        self._wait(limit, lambda: not any(seat.open or seat.untold for _, seat in left))
        for life, seat in left:
            judge.examples["L1"] += 1
            if seat.open:
                judge.accuse("L1", f"{_words(life, seat)}, and no deadline has ended it", life)
            elif seat.untold:
                judge.accuse("L3", f"{_words(life, seat)}, and nobody ever tells it the outcome", life)
        for decode in judge.living("decode"):
            for rank in sorted(judge.ended):
                decode.engine.peer_fenced(judge.prefills[0, rank].name)
        held = [(life, seat) for life, seat in self._seats() if seat.end is not None and not seat.freed]
        judge.timers["lease of several ranks: ABORT is repeated until it is acknowledged"] += len(held)
        self._wait(PHASES_S, lambda: all(seat.freed for _, seat in held))
        for life, seat in held:
            if not seat.freed:
                judge.accuse("L5", f"memory of {_words(life, seat)} is not free: {seat.room.memory_status}", life)

    def _seats(self) -> Iterator[tuple[Shared, Seat]]:
        """Every rank's part of every room, whose process lives."""
        return ((life, seat) for life in self.judge.lives for seat in life.seats if not seat.gone)

    # -- afterwards ------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """One outcome of each room; then rooms are closed."""
        judge = self.judge
        for life in judge.lives:
            judge.agreed(life)
            judge.examples["L2" if life.trouble is Trouble.NONE else "L3"] += 1
            judge.examples["L5"] += 1
        for life, seat in self._seats():
            if seat.room is not None and not seat.closed:
                judge.absorbs(life, seat)
                seat.closed = True
                seat.room.close()
            seat.intends.clear()
        self.world.settle()

    def as_new(self) -> None:
        """The next room is DONE on all ranks; in a group that has lost one it has failed at once on all others."""
        judge, lost = self.judge, [side for side in self.judge.groups if self.judge.is_lost(side)]
        self._wait(RECONNECT_S)
        self.world.settle()
        judge.worst = Trouble.NONE
        self.day.swarm = self.day.swarm._replace(callers=dict.fromkeys(self.day.swarm.callers, 0.0))
        life = self.day.make_last()
        for seat in life.seats:
            while not seat.gone and seat.intends[0] != "close" and (not lost or seat.side in lost):
                self.day.act(life, seat)
        self.world.settle()
        judge.examples["L4"] += 1
        for seat in life.seats:
            if seat.room is None:
                continue
            wanted = Status.FAILED if lost else Status.DONE
            if seat.room.outcome is not wanted or not seat.room.poll().terminal:
                why = seat.room.failure or "no failure"
                words = f"the next room is {_words(life, seat)}, its outcome {seat.room.outcome.name}: {why}"
                judge.accuse("L4", f"{words}, and must be {wanted.name}", life)
            seat.closed = True
            seat.room.close()
        self.world.settle()
        judge.agreed(life)

    def nothing_left(self) -> None:
        """No table holds anything of any room, and nobody has written what was free."""
        judge = self.judge
        self._wait(PARKED_S + RECONNECT_S)
        self.world.settle()
        for side in ("decode", "prefill"):
            for member in judge.living(side):
                judge.examples["C1"] += 1
                left = left_over(member.name, member.engine.tables())
                if left:
                    judge.accuse("C1", left)
                group = member.engine.group
                held = (
                    {} if group is None else {name: n for name, n in group.tables().items() if name not in _KEPT and n}
                )
                if held:
                    judge.accuse("C1", f"the group of {member.name} still holds {held}")
        judge.untouched()

    def _wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let so much time pass, or less, if something has come, or is broken."""
        self.world.wait(seconds, lambda: until() or bool(self.judge.found))


def _words(life: Shared, seat: Seat) -> str:
    return f"{seat.name} of {life} is {seat.room.poll().name} in {seat.room.phase}"
