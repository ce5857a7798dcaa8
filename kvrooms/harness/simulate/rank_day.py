"""The day of a simulated run of several ranks: rooms are opened and sent rank by rank while things go wrong."""

from __future__ import annotations

import random

from ...protocol.status import Status
from ...transport.ports import CloseCause
from ..channel import SimChannel
from ..ranks import Member
from .lives import Trouble
from .rank_judge import Process, RankJudge
from .rank_lives import Seat, Shared
from .rank_swarm import draw_ranks
from .record import Record

OPEN_MAX = 4
_ACTS_MAX = 4000
_ENDS = (CloseCause.TIMED_OUT, CloseCause.RESET, CloseCause.PEER_CLOSED)
"""What an end of a group's connection may look like although both processes live. An engine takes the last two for a
proof of death, which a kernel does not give falsely."""


class RankDay:
    """One run's day. `live` lets it pass; see `RankEvening` for what comes after it."""

    def __init__(self, seed: int, record: Record | None = None) -> None:
        self.swarm = draw_ranks(random.Random(seed))  # noqa: S311 - a simulation, to be replayed
        self.judge = RankJudge(seed, self.swarm, record)
        self.world = self.judge.world
        self.draw = self.world.random
        self.serials = 0
        self.left = self.swarm.rooms
        self.numbers = list(range(self.swarm.rooms))
        self.stalled: set[Process] = set()

    def live(self) -> None:
        """Everything that happens on that day."""
        draw, swarm = self.draw, self.swarm
        self.world.faults = swarm.faults
        for _ in range(_ACTS_MAX):
            if self.judge.found or (not self.left and draw.random() < 0.03):
                return
            if draw.random() < swarm.trouble:
                self.mischief()
            elif not self.go_on() and not self.wait():
                return
            dice = draw.random()
            self.steps(int(dice * dice * 24), timers=draw.random() < swarm.pace)

    def steps(self, count: int, *, timers: bool = False) -> bool:
        """Let so many things happen. False: nothing can happen any more."""
        return all(not self.judge.found and self.world.step(timers=timers) for _ in range(count))

    # -- rooms -----------------------------------------------------------------------------------------------------

    def ready(self) -> list[tuple[Shared, Seat]]:
        """The callers who can do now what they intend next."""
        return [(life, seat) for life in self.judge.lives for seat in life.seats if self._may(seat)]

    @staticmethod
    def _may(seat: Seat) -> bool:
        if seat.gone or not seat.intends:
            return False
        act = seat.intends[0]
        return act == "open" or (
            seat.room is not None and (act != "close" or (seat.end is not None and (seat.hasty or not seat.untold)))
        )

    def go_on(self) -> bool:
        """Let a caller do what it intends next, or begin a room. False: nobody can do anything now."""
        draw, ready = self.draw, self.ready()
        under_way = sum(not life.over for life in self.judge.lives)
        if self.left and under_way < OPEN_MAX and (not ready or draw.random() < 0.1):
            self.begin()
            return True
        if not ready:
            return False
        self.act(*ready[int(draw.random() * len(ready))])
        return True

    def wait(self) -> bool:
        """Nobody can do anything before something has happened. False: nothing will."""
        if self.world.busy:
            self.steps(10)
            return True
        return bool(self.swarm.pace or self.stalled) and self.steps(20, timers=True)

    def begin(self) -> Shared:
        """Make a room that its ranks' callers will open."""
        draw, judge = self.draw, self.judge
        self.left -= 1
        again = [life for life in judge.lives if self._may_come_again(life)]
        if again and (not self.numbers or draw.random() < self.swarm.callers["again"]):
            old = draw.choice(again)
            same = all(seat.room is not None for seat in old.seats) and draw.random() < 0.5
            return self._make(old.number, old.attempt if same else old.attempt + 1)
        return self._make(self.numbers.pop(0), 0)

    def _may_come_again(self, life: Shared) -> bool:
        """Whether it was the last with its number, and nothing of it is left."""
        last = max(one.serial for one in self.judge.lives if one.number == life.number)
        return last == life.serial and life.over and not any(seat.gone or seat.untold for seat in life.seats)

    def make_last(self) -> Shared:
        """A room whose number was never used."""
        return self._make(self.swarm.rooms, 0)

    def _make(self, number: int, attempt: int) -> Shared:
        judge, draw, habits = self.judge, self.draw, self.swarm.callers
        self.serials += 1
        seats = []
        for member in judge.members():
            sends = list(judge.sends(number, member.key[2])) if member.key[0] == "prefill" else []
            seat = Seat(member, sends)
            seat.gone = member.key[2] in judge.dead[member.key[0]]
            if draw.random() < habits["abort"] / 2:
                seat.intends.insert(draw.randrange(1, len(seat.intends)), "abort")
            if draw.random() < habits["vanish"] / 2:
                kept = draw.randrange(len(seat.intends))
                while len(seat.intends) > kept:
                    seat.intends.pop()
            seat.hasty = draw.random() < habits["hasty"]
            seats.append(seat)
        life = Shared(self.serials, number, attempt, seats)
        judge.lives.append(life)
        judge.paint(life)
        if judge.worst:
            life.touch(judge.worst, "what has happened before")
        return life

    def act(self, life: Shared, seat: Seat) -> None:
        """Do the next thing that a caller intends."""
        judge, what = self.judge, seat.intends.popleft()
        judge.note(f"{seat.name} caller", "call", what, life)
        match what:
            case "open":
                make = judge.receive if seat.side == "decode" else judge.offer
                seat.room = make(life.number, seat.rank, attempt=life.attempt)
                judge.watch(life, seat)
            case "send":
                arguments = seat.sends.popleft()
                if seat.room.poll() is not Status.FAILED:
                    seat.room.send(**arguments)
            case "abort":
                if seat.open:
                    judge.touch(Trouble.ANNOUNCED, f"{seat.name} aborts", life)
                    seat.room.abort(f"<{life.serial}>")
            case _:
                judge.absorbs(life, seat)
                seat.closed = True
                seat.room.close()

    # -- mischief --------------------------------------------------------------------------------------------------

    def mischief(self) -> None:
        """Something happens to a rank or a connection."""
        draw, judge, world = self.draw, self.judge, self.world
        if self.stalled and draw.random() < 0.5:
            process = draw.choice(sorted(self.stalled))
            self.stalled.discard(process)
            self._stall(process, stalled=False)
            return
        kinds = list(self.swarm.mischief)
        kind = draw.choices(kinds, [self.swarm.mischief[one] for one in kinds])[0]
        what, _, where = kind.partition(" ")
        member = draw.choice([one for side in ("decode", "prefill") for one in judge.living(side)])
        process = judge.process_of(member)
        match what, where:
            case "stall", _:
                self.stalled.add(process)
                self._stall(process)
            case "jump", _:
                seconds = draw.choice((0.3, 3.0, 30.0, 300.0))
                for name in filter(None, process):
                    world.jump(name, seconds)
            case (("cut" | "jam"), _):
                self._connection(what, process.group if where else process.engine)
            case _:
                living = list(judge.living(where))
                if living:
                    self.end(draw.choice(living), leave=what == "leave")

    def _stall(self, process: Process, *, stalled: bool = True) -> None:
        for name in filter(None, process):
            self.world.stall(name, stalled=stalled)

    def _connection(self, what: str, name: str) -> None:
        if not name:
            return
        channel: SimChannel = self.world.runner(name).channel
        if what == "cut":
            channel.cut(self.draw.choice(_ENDS) if " group " in name else CloseCause.TIMED_OUT)
        elif channel.connections:
            channel.jam(self.draw.choice(channel.connections))

    def end(self, member: Member, *, leave: bool = False) -> None:
        """A rank's process dies, or leaves; one that is in no group is replaced, one that is ends its instance."""
        judge, world, process = self.judge, self.world, self.judge.process_of(member)
        self.stalled.discard(process)
        side, _, rank = member.key
        for life in judge.lives:
            for seat in life.seats:
                if seat.member is member and not seat.done_with:
                    seat.gone = True
        judge.touch(Trouble.SILENT, f"{member.name} is gone")
        if side == "prefill":
            judge.ended.add(rank)
        if leave:
            self._stall(process, stalled=False)
            judge.injected["engine closed"] += 1
            judge.note(member.name, "fault", "leaves")
            member.engine.close(self.draw.choice((0.5, 20.0)))
            if process.group:
                judge.groups[side][rank].close(self.draw.choice((0.5, 20.0)))
        for name in filter(None, process) if not leave else ():
            world.kill(name)
        if process.group:
            judge.dead[side].add(rank)
            self.left = min(self.left, 2)
        else:
            member.rooms.clear()
            judge.start(member)
