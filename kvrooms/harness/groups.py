"""Groups of ranks in a simulated world: the product's own `RoomGroup`s over simulated connections and clocks.

world = World(seed=1)
groups = gather(world, 3)
groups[1].enter(key)
...
world.kill("rank 2")
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..engine.group import RoomGroup
from ..engine.group_core import GroupCore
from ..engine.group_real import GroupAssembly
from ..engine.host import Runner
from ..engine.settings import EngineSettings
from ..protocol.errors import GroupIncomplete
from .channel import SimChannel, nobody
from .ports import SimClock, SimIds
from .world import World


class _Nothing:
    """A process of which nothing else dies."""

    post_error = ""

    def kill(self) -> None:
        """See `Killed.kill`."""


def rank_in(
    world: World, rank: int, size: int, leader: str = "", member: bytes = b"", settings: EngineSettings | None = None,
    called: str = "rank",
) -> RoomGroup:  # fmt: skip
    """One rank, named "rank N" in the world, or otherwise `called`. leader: the `address` of rank 0's group.

    It has begun to join.
    """
    name = f"{called} {rank}"
    channel, clock = SimChannel(world, name), SimClock(world)

    def runner(core: GroupCore, finish: Callable[[], None]) -> Runner:
        core.name = name
        return world.turns(core, channel, _Nothing(), clock, finish)

    parts = GroupAssembly(
        channel=channel,
        clock=clock,
        ids=SimIds(world.random),
        runner=runner,
        release=channel.kill,
        abandon=nobody,
        refused=dict,
        address="" if rank else channel.listen(),
    )
    made = RoomGroup(rank, size, leader, member, settings=settings or EngineSettings(), assembly=parts)
    with contextlib.suppress(GroupIncomplete):
        made.join(0)
    return made


def gather(world: World, size: int, settings: EngineSettings | None = None, called: str = "rank") -> list[RoomGroup]:
    """A group whose ranks have all joined. called: what their names begin with, where there are several groups."""
    first = rank_in(world, 0, size, "", b"rank 0", settings, called)
    others = [rank_in(world, rank, size, first.address, b"rank %d" % rank, settings, called) for rank in range(1, size)]
    world.run(lambda: all(one.members for one in (first, *others)))
    world.settle()
    return [first, *others]
