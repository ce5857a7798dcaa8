"""A group of ranks as values, and every move that is possible in it: one room's key, used once or twice.

The halves of the product step themselves (`engine.group_leader`, `engine.group_member`); here are what lies between
them, their callers, and what goes wrong. Between two processes lie two queues: frames arrive in order, and a connection
that breaks loses what has not arrived. The judgement needs what no part of the product knows: which lives of the ranks'
rooms were counted for one decision.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from ...engine.group_leader import Deciding, Leader
from ...engine.group_member import Member
from ...protocol.failure import Failure, Reason
from ...protocol.group import Acknowledge, LeaderInput, MemberInput, ReportDone, ReportFailed
from ...protocol.identity import RoomKey
from ...protocol.status import Status
from ...protocol.wire import Body
from ...statemachine.group import DECISION, STANDING, Decision
from .glue import Broken, Cells

KEY = RoomKey(7, 0)
BAD = Failure(Reason.SEND_ERROR, "it broke here")
GONE = Failure(Reason.PEER_LOST, "it is gone")
LIMIT = 64
Frozen: TypeAlias = tuple[Any, ...]


class Setup(NamedTuple):
    """What is explored. lives: how often each rank opens the room. never: ranks that do not. ends: how rooms may end.

    faults: kinds, of "break", "lose", "kill", "kill leader", "withdraw"; budget: so many of them. opened: the room is
    open on every rank in the beginning. kept: so many failures are kept for a lost rank.
    """

    name: str
    size: int
    lives: int = 1
    never: tuple[int, ...] = ()
    ends: tuple[str, ...] = ("done", "failed")
    faults: tuple[str, ...] = ()
    budget: int = 0
    opened: bool = False
    kept: int = LIMIT


class Seen:
    """What a search has seen: cells that were taken, and outcomes with their causes, as `search.Found` has them."""

    def __init__(self) -> None:
        self.cells = Cells()
        self.outcomes: set[tuple[str, str, str]] = set()


class _Leader(Leader):
    """The running one, watched."""

    def __init__(self, world: World, setup: Setup) -> None:
        super().__init__(setup.size, world, LIMIT, setup.kept)
        self._seen_by = world.seen

    def _step(self, room: Deciding, event: LeaderInput) -> None:
        self._seen_by.cells.visit(DECISION, room.value.state, event.KIND)
        super()._step(room, event)


class _Member(Member):
    """The running one, watched."""

    def __init__(self, rank: int, caller: _Caller, world: World) -> None:
        super().__init__(rank, caller, LIMIT)
        self._seen_by = world.seen

    def _step(self, key: RoomKey, event: MemberInput) -> None:
        self._seen_by.cells.visit(STANDING, self._rooms[key].state, event.KIND)
        super()._step(key, event)


class Life(NamedTuple):
    """One life of a rank's room. local: "open", "done" or "failed". shown: the outcome, once it was told."""

    number: int = 0
    local: str = "open"
    shown: str = ""
    aborted: bool = False


class Rank:
    """One process: its half of the group, and its caller. link: "up", "down", "closing" (it will find out), "dead"."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.member: Member | None = _Member(number, _Caller(self, world), world)
        self.lives: list[Life] = []
        self.link = "up"
        self.down: list[Body] = []
        self.up: list[Body] = []

    def change(self, **fields: Any) -> None:
        """The current life is otherwise now."""
        self.lives[-1] = self.lives[-1]._replace(**fields)

    @property
    def waits(self) -> bool:
        """Whether a room of it has not ended, or has no outcome."""
        return bool(self.lives) and (self.lives[-1].local == "open" or not self.lives[-1].shown)


class _Caller:
    """A rank's port: what its member says, and what its caller sees."""

    def __init__(self, rank: Rank, world: World) -> None:
        self._rank, self._world = rank, world

    def say(self, body: Body) -> None:
        rank = self._rank
        if rank.link == "up" and rank.member is not None and self._world.leader is not None:
            rank.up.append(body)

    def decided(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        self._world.shown(self._rank, status)
        self._world.seen.outcomes.add(("group", status.name, failure.reason.value if failure is not None else ""))

    def abort(self, key: RoomKey, failure: Failure) -> None:
        self._rank.change(aborted=True)

    def park(self, key: RoomKey) -> None:
        """The expiry is a move."""

    def unpark(self, key: RoomKey) -> None:
        """It has expired, or was taken."""


class World:
    """A state that can be moved. `freeze` and `thaw` make it a value and back."""

    def __init__(self, setup: Setup, seen: Seen | None = None) -> None:
        self.setup = setup
        self.seen = seen or Seen()
        self.left = setup.budget
        self.leader: Leader | None = _Leader(self, setup)
        self.ranks = [Rank(number, self) for number in range(setup.size)]
        for rank in self.ranks:
            if rank.member is not None:
                rank.member.linked = True
        self.armed = self.timed = False
        self.counted: frozenset[tuple[int, ...]] = frozenset()
        """The numbers of the reports that each DONE was decided on."""
        self.broken: list[Broken] = []

    # -- the leader's port -----------------------------------------------------------------------------------------

    def tell(self, rank: int, body: Body) -> None:
        """See `LeaderPort.tell`."""
        if self.ranks[rank].link == "up":
            self.ranks[rank].down.append(body)

    def arm(self, room: Deciding) -> None:
        """See `LeaderPort.arm`."""
        self.armed = True

    def disarm(self, room: Deciding) -> None:
        """See `LeaderPort.disarm`: the room is decided."""
        self.armed = False
        value = room.value
        if value.state is Decision.OPEN:
            self._breaks("L1", "a room that is not decided has no deadline")
        if value.state is not Decision.DONE:
            return
        self.counted |= {value.numbers}
        self._note()
        for rank, number in zip(self.ranks, value.numbers, strict=True):
            life = next((one for one in rank.lives if one.number == number and number), None)
            if life is None or life.local != "done":
                self._breaks("A1", f"the outcome is DONE, and the room of rank {rank.number} is not")
            elif life.shown == "failed":
                self._breaks("A1", f"the outcome is DONE, and rank {rank.number} was told that it is FAILED")

    # -- what callers see ------------------------------------------------------------------------------------------

    def shown(self, rank: Rank, status: Status) -> None:
        """An outcome reaches a rank's caller."""
        life = rank.lives[-1]
        number = self._number(rank)
        counted = any(numbers[rank.number] == number for numbers in self.counted if number)
        if life.shown:
            self._breaks("S2", f"rank {rank.number} is told an outcome for the second time")
        if status is Status.DONE and not (counted and life.local == "done"):
            self._breaks("A1", f"rank {rank.number} is told DONE, which was not decided for this life of its room")
        if status is Status.FAILED and counted and self.leader is not None:
            self._breaks("A1", f"rank {rank.number} is told FAILED, and the outcome is DONE for the others")
        if status is Status.FAILED and life.local == "open" and not life.aborted:
            self._breaks("L3", f"the outcome is FAILED, and the room of rank {rank.number} goes on")
        rank.change(shown=status.value, number=number)

    @staticmethod
    def _number(rank: Rank) -> int:
        rooms: dict[RoomKey, Any] = vars(rank.member)["_rooms"]
        return rooms[KEY].number if KEY in rooms else rank.lives[-1].number

    def _note(self) -> None:
        """Note which number the report of each rank's current life has."""
        for rank in self.ranks:
            if rank.lives and rank.member is not None:
                number = self._number(rank)
                if number != rank.lives[-1].number:
                    rank.change(number=number)

    def _breaks(self, property_id: str, summary: str) -> None:
        self.broken.append(Broken(property_id, summary))

    # -- what the moves need ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let the leader and the member of its own process hear each other; note numbers; look at what must hold."""
        own = self.ranks[0]
        while self.leader is not None and own.member is not None and (own.up or own.down):
            if own.up:
                self.hear(own)
            else:
                own.member.hear(own.down.pop(0))
        self._note()
        if self.leader is not None:
            rooms: dict[RoomKey, Deciding] = vars(self.leader)["_rooms"]
            undecided = any(room.value.state is Decision.OPEN for room in rooms.values())
            if undecided != self.armed:
                self._breaks("L1", "a room that is not decided has no deadline, or one that is decided has one")

    def hear(self, rank: Rank) -> None:
        """The next frame of a rank arrives at the leader."""
        body, leader = rank.up.pop(0), self.leader
        assert leader is not None
        if rank.number in leader.absent:
            return
        match body:
            case ReportDone(_, _, number):
                leader.report(rank.number, KEY, number, None)
            case ReportFailed(_, _, number, reason, detail):
                leader.report(rank.number, KEY, number, Failure(reason, detail))
            case Acknowledge(_, _, serial):
                leader.acknowledge(rank.number, KEY, serial)


# -- states as values --------------------------------------------------------------------------------------------------

_APART = ("_port", "counters", "size", "_limit", "_kept_limit", "rank", "_park_limit", "_seen_by")


def _frozen(value: Any) -> Any:
    match value:
        case dict():
            return tuple((key, _frozen(one)) for key, one in value.items())
        case list():
            return tuple(map(_frozen, value))
        case Deciding():
            return value.value, value.serial
        case _:
            return value


def _state(half: Leader | Member | None) -> Any:
    """What of a half can differ between two states."""
    if half is None:
        return None
    return tuple(_frozen(value) for name, value in vars(half).items() if name not in _APART)


def freeze(world: World) -> Frozen:
    """A world as a value."""
    ranks = tuple(
        (_state(rank.member), tuple(rank.lives), rank.link, tuple(rank.down), tuple(rank.up)) for rank in world.ranks
    )
    return world.left, world.armed, world.timed, world.counted, _state(world.leader), ranks


def thaw(setup: Setup, state: Frozen, seen: Seen | None = None) -> World:
    """The world that a value stands for."""
    world = World(setup, seen)
    world.left, world.armed, world.timed, world.counted, leader, ranks = state
    if leader is None:
        world.leader = None
    else:
        assert world.leader is not None
        _restore(world.leader, leader)
    for rank, (member, lives, link, down, up) in zip(world.ranks, ranks, strict=True):
        rank.lives, rank.link, rank.down, rank.up = list(lives), link, list(down), list(up)
        if member is None:
            rank.member = None
        else:
            assert rank.member is not None
            _restore(rank.member, member)
    return world


def _restore(half: Leader | Member, state: Any) -> None:
    names = [name for name in vars(half) if name not in _APART]
    for name, value in zip(names, state, strict=True):
        setattr(half, name, _thawed(half, name, vars(half)[name], value))


def _thawed(half: Leader | Member, name: str, sample: Any, value: Any) -> Any:
    if isinstance(half, Leader) and name == "_rooms":
        rooms = {}
        for key, (decided, serial) in value:
            room = rooms[key] = Deciding(key, half.size)
            room.value, room.serial = decided, serial
        return rooms
    if isinstance(sample, dict):
        return {key: dict(one) if name == "_kept" else one for key, one in value}
    return list(value) if isinstance(sample, list) else value
