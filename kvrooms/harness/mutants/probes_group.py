"""Probes of groups of ranks: every interleaving of small ones, and real groups over simulated connections."""

from __future__ import annotations

from ...engine.group import RoomGroup
from ...engine.settings import EngineSettings
from ...protocol.failure import Failure, Reason
from ...protocol.identity import RoomKey
from ...protocol.status import Status
from ...transport.ports import CloseCause
from ..evidence import Tally
from ..explore.group_search import SMALLEST, GroupSearch
from ..groups import gather
from ..world import World
from .probe import Play, probe
from .stage import Broken, Hang

_LIMIT = 20_000
KEY = RoomKey(7, 0)
_SETTINGS = EngineSettings(decision_timeout_s=60.0)


def _explored() -> Tally:
    """What the smallest groups show. Never kept: a mutant is planted in a process that has looked before."""
    tally = Tally()
    for setup in SMALLEST:
        tally.add(GroupSearch(setup, _LIMIT).run().tally)
    return tally


def _holds(play: Play, property_id: str) -> None:
    play.scenes = len(SMALLEST)
    found = _explored().verdict(property_id).counterexample
    if found is not None:
        steps = "; ".join(f"{step.who}: {step.text}" for step in found.timeline)
        raise Broken(found.summary, group=found.source, steps=steps)


@probe("A1", seeds=1)
def ranks_of_small_groups_agree(play: Play) -> None:
    """No two ranks see different outcomes, and DONE is said only if every rank's room is."""
    _holds(play, "A1")


@probe("L1", seeds=1)
def an_undecided_room_has_a_deadline(play: Play) -> None:
    """As long as the leader has not decided a room, its deadline is armed."""
    _holds(play, "L1")


@probe("L2", seeds=1)
def small_groups_decide_by_themselves(play: Play) -> None:
    """Where every rank opens the room, it is decided without a timer."""
    _holds(play, "L2")


@probe("L3", seeds=1)
def small_groups_decide_after_faults(play: Play) -> None:
    """After connections broke and ranks were lost, too, every rank knows an outcome."""
    _holds(play, "L3")


@probe("S2", seeds=1)
def outcomes_are_told_once(play: Play) -> None:
    """A rank's caller is told one outcome of a room."""
    _holds(play, "S2")


@probe("C1", seeds=1)
def small_groups_forget(play: Play) -> None:
    """What every rank has acknowledged is forgotten."""
    _holds(play, "C1")


def _settled(world: World, groups: list[RoomGroup], *ranks: int, timers: bool = False, limit_s: float = 200.0) -> None:
    """Let things happen until ranks know the outcome. Raises Hang."""
    end, most = world.now + limit_s, world.steps + _LIMIT
    while not all(groups[rank].outcome(KEY) for rank in ranks):
        if world.now > end or world.steps > most or not world.step(timers=timers):
            raise Hang(f"ranks {ranks} know no outcome; {world.state()}")


@probe("L3", seeds=2)
def the_death_of_a_rank_needs_no_timer(play: Play) -> None:
    """The kernel says that a rank's process has ended: its rooms have failed before any time has passed."""
    for victim in (0, 2):
        world = World(play.seed)
        groups = gather(world, 3, _SETTINGS)
        play.scenes += 1
        living = [rank for rank in range(3) if rank != victim]
        for rank, group in enumerate(groups):
            group.enter(KEY)
            if rank != victim:
                group.report(KEY, Status.DONE)
        world.settle()
        world.kill(f"rank {victim}")
        _settled(world, groups, *living)


@probe("A1", seeds=2)
def a_leader_that_stood_still_for_too_long_counts_nobody(play: Play) -> None:
    """All reports lie in its sockets. The ranks have given it up, so it must not find that the room is DONE."""
    world = World(play.seed)
    groups = gather(world, 3, _SETTINGS)
    play.scenes += 1
    for group in groups:
        group.enter(KEY)
    world.stall("rank 0")
    for group in groups:
        group.report(KEY, Status.DONE)
    _settled(world, groups, 1, 2, timers=True)
    world.stall("rank 0", stalled=False)
    _settled(world, groups, 0, timers=True)
    told = [group.outcome(KEY) for group in groups]
    if len(set(told)) > 1:
        raise Broken(f"the outcomes are {told}")


@probe("A1", seeds=6)
def a_reset_of_the_network_is_no_death(play: Play) -> None:
    """Both ends see a reset, and both processes live: what the leader decides holds for the rank."""
    world = World(play.seed)
    groups = gather(world, 3, _SETTINGS)
    play.scenes += 1
    for group in groups:
        group.enter(KEY)
    for group in groups[1:]:
        group.report(KEY, Status.DONE)
    world.settle()
    groups[0].report(KEY, Status.DONE)
    _settled(world, groups, 0)
    world.runner("rank 2").channel.cut(CloseCause.RESET)
    _settled(world, groups, 0, 1, 2, timers=True)
    told = [group.outcome(KEY) for group in groups]
    if len(set(told)) > 1:
        raise Broken(f"the outcomes are {told}")


@probe("L3", seeds=1)
def a_rank_that_comes_back_hears_first_what_it_has_missed(play: Play) -> None:
    """A room is decided while a rank is away, another just as it comes back: it is told both, without a timer."""
    other = RoomKey(8, 0)
    for steps in range(20):
        world = World(play.seed)
        groups = gather(world, 3, _SETTINGS)
        play.scenes += 1
        for group in groups:
            group.enter(KEY)
        world.settle()
        for rank in (1, 2):
            world.runner(f"rank {rank}").channel.cut(CloseCause.PEER_CLOSED)  # the leader takes them for dead
        for _ in range(steps):
            world.step()
        groups[0].enter(other)
        groups[0].report(other, Status.DONE)
        for group in groups:
            group.report(KEY, Status.DONE)
        _settled(world, groups, 0, 1, 2)


@probe("S3", seeds=1)
def a_failed_outcome_says_so_with_its_rank(play: Play) -> None:
    """A room that failed on one rank is no reason to use its memory on another as if it were DONE there."""
    world = World(play.seed)
    groups = gather(world, 2, _SETTINGS)
    play.scenes += 1
    for group in groups:
        group.enter(KEY)
    groups[0].report(KEY, Status.DONE)
    groups[1].report(KEY, Status.FAILED, Failure(Reason.SEND_ERROR, "the cable is cut"))
    world.settle()
    if groups[0].outcome(KEY) is Status.DONE:
        raise Broken("rank 0 takes the room for DONE, which rank 1 has not")
