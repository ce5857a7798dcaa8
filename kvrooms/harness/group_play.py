"""A group in a simulated world, whose ranks do what a plan says: the product's own `RoomGroup`s, and their callers.

group = PlayedGroup(plan, random.Random(3))
group.play()
for room in group.rooms:
    print(room.reports, room.outcomes)
"""

from __future__ import annotations

import random

from ..engine.group import RoomGroup
from ..engine.settings import EngineSettings
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RoomKey
from ..protocol.status import Status
from ..transport.ports import CloseCause
from .group_plans import GroupPlan, GroupRoom, Part, Trouble
from .groups import gather
from .world import World

SETTINGS = EngineSettings(decision_timeout_s=40.0)
LIMIT_S = 300.0
"""After so long with nothing wrong every open room has long had its outcome."""
_TALK_MAX = 100_000
_CUTS = {"timed out": CloseCause.TIMED_OUT, "reset": CloseCause.RESET, "closed": CloseCause.PEER_CLOSED}
_WHY = {
    "failed": Failure(Reason.SEND_ERROR, "the cable is cut"),
    "aborted": Failure(Reason.ABORTED, "nobody wants it any more"),
}
_LATE = Failure(Reason.DEADLINE_CAP, "its deadline has passed")


class PlayedRoom:
    """What a room's ranks have said of it, and what they were told. `told_at`: when, on the world's clock."""

    def __init__(self, number: int, plan: GroupRoom) -> None:
        self.key = RoomKey(number, 0)
        self.plan = plan
        self.opened: set[int] = set()
        """The ranks that have opened it."""
        self.reports: list[Status | None] = [None] * len(plan.parts)
        """How it has ended on each rank; None where it did not: that rank has never opened it, or has died."""
        self.outcomes: dict[int, Status] = {}
        """The outcome, by the ranks that were told it."""
        self.causes: dict[int, Failure | None] = {}
        self.told_at: dict[int, float] = {}


class _Caller:
    """What one rank's caller does and sees."""

    def __init__(self, rank: int, group: RoomGroup, world: World, rooms: dict[RoomKey, PlayedRoom]) -> None:
        self.open: dict[RoomKey, float] = {}
        """The rooms that are open here, and their deadlines on this rank's clock."""
        self._rank, self._group, self._world, self._rooms = rank, group, world, rooms
        self._clock = world.runner(f"rank {rank}").clock
        group.attach(self)

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """See `GroupUser.on_outcome`."""
        room, rank = self._rooms[key], self._rank
        assert rank not in room.outcomes, f"rank {rank} is told the outcome of {key} twice"
        assert (failure is None) == (status is Status.DONE), f"rank {rank}: {key} is {status} because of {failure}"
        room.outcomes[rank], room.causes[rank], room.told_at[rank] = status, failure, self._world.now
        if failure is not None:
            self.end(key, failure)

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        """See `GroupUser.on_abort`."""
        self.end(key, failure)

    def enter(self, room: PlayedRoom) -> None:
        """Open a room."""
        room.opened.add(self._rank)
        self.open[room.key] = self._clock.now() + room.plan.deadline_s
        self._group.enter(room.key)

    def end(self, key: RoomKey, failure: Failure | None) -> None:
        """It has ended here, if it was open."""
        if self.open.pop(key, None) is None:
            return
        room, status = self._rooms[key], Status.FAILED if failure else Status.DONE
        room.reports[self._rank] = status
        if self._rank not in room.outcomes:
            self._group.report(key, status, failure)

    def expire(self) -> None:
        """End what is open for too long."""
        now = self._clock.now()
        for key in [key for key, deadline in self.open.items() if deadline <= now]:
            self.end(key, _LATE)

    def wait_s(self) -> float:
        """How long it is until the next deadline."""
        return min(self.open.values(), default=float("inf")) - self._clock.now()


class PlayedGroup:
    """See the module. order: what happens first of all that can; the same plan and order play the same every time."""

    def __init__(
        self, plan: GroupPlan, order: random.Random | None = None, settings: EngineSettings = SETTINGS
    ) -> None:
        self.plan = plan
        self.world = World()
        self.groups = gather(self.world, plan.ranks, settings)
        self.rooms = [PlayedRoom(number, room) for number, room in enumerate(plan.rooms, 1)]
        self.dead: set[int] = set()
        by_key = {room.key: room for room in self.rooms}
        self._callers = [_Caller(rank, group, self.world, by_key) for rank, group in enumerate(self.groups)]
        self._stalled: dict[int, float] = {}
        self._by_key = by_key
        if order is not None:
            self.world.random = order
        self.world.faults = plan.faults

    # -- what a property asks ------------------------------------------------------------------------------------

    @property
    def living(self) -> list[int]:
        """The ranks that have not died."""
        return [rank for rank in range(self.plan.ranks) if rank not in self.dead]

    @property
    def together(self) -> list[int]:
        """The ranks that live and have a leader, as far as they know. What the others were not told has failed."""
        return [
            rank for rank in self.living if not any("the leader is lost" in one for one in self.groups[rank].problems)
        ]

    def untold(self, room: PlayedRoom) -> list[int]:
        """The living ranks that have opened a room and know no outcome of it."""
        return [rank for rank in self.living if rank in room.opened and rank not in room.outcomes]

    # -- playing -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """All of the plan; then nothing goes wrong any more, and time passes until every open room has its outcome.

        It ends in any case: where a rank is not told, `untold` names it.
        """
        for moment in range(self.plan.moments):
            self._moment(moment)
            if moment < len(self.plan.pauses):
                steps, seconds = self.plan.pauses[moment]
                for _ in range(steps):
                    self.world.step()
                self.pass_time(seconds)
        self.world.heal()
        self._stalled.clear()
        end = self.world.now + LIMIT_S
        while self.world.now < end and any(self.untold(room) for room in self.rooms):
            self.pass_time(1.0)
        self.world.settle()

    def serve(self) -> PlayedRoom:
        """One room more, which ends well on every rank that lives."""
        room = PlayedRoom(len(self.rooms) + 1, GroupRoom((Part(),) * self.plan.ranks))
        self.rooms.append(room)
        self._by_key[room.key] = room
        for rank in self.living:
            self._callers[rank].enter(room)
            self._callers[rank].end(room.key, None)
        self.pass_time(10.0)
        return room

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that comes with it."""
        world = self.world
        end, steps = world.now + seconds, world.steps
        while world.now < end:
            waits = [until - world.now for until in self._stalled.values()]
            waits += [self._callers[rank].wait_s() for rank in self.living]
            if not world.step(timers=True):  # nobody has a timer
                world.now = min(end, world.now + max(0.0, min(waits, default=seconds)))
            assert world.steps < steps + _TALK_MAX, "they talk and talk, and no time passes"
            self._wake()

    def _wake(self) -> None:
        """What the time has brought."""
        for rank, until in list(self._stalled.items()):
            if self.world.now >= until:
                del self._stalled[rank]
                self.world.stall(f"rank {rank}", stalled=False)
        for rank in self.living:
            self._callers[rank].expire()

    def _moment(self, moment: int) -> None:
        for room in self.rooms:
            for rank, part in enumerate(room.plan.parts):
                opens = room.plan.at + part.late
                if part.end == "never opened" or rank in self.dead:
                    continue
                if opens == moment:
                    self._callers[rank].enter(room)
                if opens + part.takes == moment and part.end != "stuck":
                    self._callers[rank].end(room.key, _WHY.get(part.end))
        for trouble in self.plan.troubles:
            if trouble.at == moment and trouble.rank not in self.dead:
                self._go_wrong(trouble)

    def _go_wrong(self, trouble: Trouble) -> None:
        rank, name = trouble.rank, f"rank {trouble.rank}"
        channel = self.world.runner(name).channel
        match trouble.kind:
            case "stall":
                self._stalled[rank] = max(self._stalled.get(rank, 0.0), self.world.now + trouble.seconds)
                self.world.stall(name)
            case "jump":
                self.world.jump(name, trouble.seconds)
            case "kill":
                self.dead.add(rank)
                self._stalled.pop(rank, None)
                self.world.kill(name)
            case "jam":
                for connection in channel.connections[:1]:
                    channel.jam(connection)
            case _:
                channel.cut(_CUTS[trouble.kind])
