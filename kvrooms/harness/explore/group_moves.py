"""What can happen in a group of ranks: their callers, the wire between them, faults, and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from ...engine.group_leader import Deciding
from ...protocol.identity import RoomKey
from ...protocol.wire import Body
from .glue import Broken
from .group_world import BAD, GONE, KEY, Frozen, Life, Rank, Seen, Setup, World, freeze, thaw
from .system import Move

Apply: TypeAlias = Callable[[World], None]
Moves: TypeAlias = Iterator[tuple[Move, str, str, Apply]]


class Step(NamedTuple):
    """A move: its kind, what it is in words, and the state after it. broken: what it has shown to be wrong."""

    move: Move
    who: str
    text: str
    state: Frozen
    broken: tuple[Broken, ...]


def moves(world: World, *, callers: bool = True) -> Moves:
    """Everything that can happen now: kind, who, words, and what does it to a copy of this world.

    callers: also what the ranks' callers may do.
    """
    for rank in world.ranks:
        if callers and rank.member is not None:
            yield from _callers(world, rank)
        if rank.number:
            yield from _wire(world, rank)
        if rank.member is not None and vars(rank.member)["_parked"]:
            yield Move.TIMER, f"rank {rank.number}", "a parked outcome expires", _expire(rank.number)
    if world.armed and world.leader is not None:
        yield Move.TIMER, "leader", "the deadline of the decision passes", _overdue
    if world.left:
        yield from _faults(world)


def _callers(world: World, rank: Rank) -> Moves:
    who, number = f"rank {rank.number}", rank.number
    if not rank.waits and len(rank.lives) < world.setup.lives and number not in world.setup.never:
        yield Move.NORMAL, who, "opens the room", _open(number)
    if rank.lives and rank.lives[-1].local == "open":
        for end in world.setup.ends:
            yield Move.NORMAL, who, f"its room is {end}", end_here(number, end)
        if rank.lives[-1].aborted and "failed" not in world.setup.ends:
            yield Move.NORMAL, who, "its room is failed", end_here(number, "failed")


def _wire(world: World, rank: Rank) -> Moves:
    number, who = rank.number, f"rank {rank.number}"
    if rank.up and world.leader is not None:
        yield Move.NORMAL, who, f"{_words(rank.up[0])} arrives at the leader", _arrive_up(number)
    if rank.down and rank.member is not None:
        yield Move.NORMAL, "leader", f"{_words(rank.down[0])} arrives at {who}", _arrive_down(number)
    if rank.link == "dead" and not rank.up and world.leader is not None and number not in world.leader.absent:
        yield Move.NORMAL, "leader", f"sees the end of {who}", _sees_end(number)
    if rank.member is None or rank.down:
        return
    if world.leader is None and rank.member.over is None:
        yield Move.NORMAL, who, "sees the end of the leader", _leader_ended(number)
    elif world.leader is not None and rank.link in ("down", "closing"):
        yield Move.NORMAL, who, "has a new connection", _resume(number)


def _faults(world: World) -> Moves:
    kinds = world.setup.faults
    for rank in world.ranks:
        number, who = rank.number, f"rank {rank.number}"
        if rank.member is None:
            continue
        if number and rank.link == "up" and world.leader is not None:
            for kind in ("break", "lose", "kill"):
                if kind in kinds:
                    yield Move.FAULT, who, _FAULTS[kind], _fault(kind, number)
        if "withdraw" in kinds and vars(rank.member)["_rooms"]:
            yield Move.FAULT, who, _FAULTS["withdraw"], _fault("withdraw", number)
    if "kill leader" in kinds and world.leader is not None:
        yield Move.FAULT, "leader", "is killed", _fault("kill leader", 0)


def start(setup: Setup) -> Frozen:
    """The state in the beginning."""
    world = World(setup)
    if setup.opened:
        for rank in world.ranks:
            _open(rank.number)(world)
    world.settle()
    return freeze(world)


def after(setup: Setup, state: Frozen, seen: Seen | None = None) -> Iterator[Step]:
    """Every state that can follow a state."""
    for move, who, text, apply in moves(thaw(setup, state)):
        world = thaw(setup, state, seen)
        apply(world)
        world.settle()
        yield Step(move, who, text, freeze(world), tuple(world.broken))


_FAULTS = {
    "break": "its connection breaks",
    "lose": "is taken for lost by the leader, and lives",
    "kill": "is killed",
    "withdraw": "takes back what it has reported, to leave",
}


def _words(body: Body) -> str:
    return type(body).__name__


def _open(number: int) -> Apply:
    def apply(world: World) -> None:
        rank = world.ranks[number]
        assert rank.member is not None
        rank.lives.append(Life())
        rank.member.enter(KEY)

    return apply


def end_here(number: int, end: str) -> Apply:
    """The room of a rank ends, and its caller says so."""

    def apply(world: World) -> None:
        rank = world.ranks[number]
        assert rank.member is not None
        rank.change(local=end)
        if not rank.lives[-1].shown:
            rank.member.ended(KEY, None if end == "done" else BAD)

    return apply


def _arrive_up(number: int) -> Apply:
    return lambda world: world.hear(world.ranks[number])


def _arrive_down(number: int) -> Apply:
    def apply(world: World) -> None:
        rank = world.ranks[number]
        assert rank.member is not None
        rank.member.hear(rank.down.pop(0))

    return apply


def _sees_end(number: int) -> Apply:
    def apply(world: World) -> None:
        assert world.leader is not None
        world.leader.lose(number, GONE)

    return apply


def _leader_ended(number: int) -> Apply:
    def apply(world: World) -> None:
        member = world.ranks[number].member
        assert member is not None
        member.leader_lost(GONE)

    return apply


def _resume(number: int) -> Apply:
    def apply(world: World) -> None:
        rank = world.ranks[number]
        assert rank.member is not None
        assert world.leader is not None
        rank.member.link_down()
        rank.link = "up"
        world.leader.back(number)

    return apply


def _expire(number: int) -> Apply:
    def apply(world: World) -> None:
        member = world.ranks[number].member
        assert member is not None
        world.timed = True
        member.expired(KEY)

    return apply


def _overdue(world: World) -> None:
    world.timed = True
    assert world.leader is not None
    rooms: dict[RoomKey, Deciding] = vars(world.leader)["_rooms"]
    world.leader.overdue(rooms[KEY], 300)


def _fault(kind: str, number: int) -> Apply:
    def apply(world: World) -> None:
        world.left -= 1
        rank, leader = world.ranks[number], world.leader
        member = rank.member
        assert member is not None
        match kind:
            case "break":
                rank.up.clear()
                rank.down.clear()
                rank.link = "down"
                member.link_down()
            case "lose":
                assert leader is not None
                rank.up.clear()
                rank.link = "closing"
                leader.lose(number, GONE)
            case "kill":
                rank.member, rank.link = None, "dead"
                rank.down.clear()
            case "withdraw":
                member.withdraw(GONE)
            case "kill leader":
                world.leader = world.ranks[0].member = None
                world.armed = False
                for one in world.ranks:
                    one.up.clear()

    return apply
