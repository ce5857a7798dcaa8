"""The ranks of a side as a group per model: they learn of each other what each has, and give each room one outcome."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import msgspec

from kvrooms import Instance, Memory, Rank, RoomGroup

from .child import Limit, Parent
from .jobs import Job
from .messages import Leads


def form(
    parent: Parent, job: Job, memories: Mapping[str, Memory], stack: ExitStack, limit: Limit
) -> dict[str, RoomGroup | None]:
    """A group per model, which every rank of this side has joined; None for a side of one rank.

    Rank 0 leads: it tells the parent where, and the parent tells the others. `stack` closes the groups: enter engines
    after them.
    """
    seat = job.seat
    if seat.ranks == 1:
        return dict.fromkeys(memories)
    keys = {name: f"group/{name}" for name in memories}
    leaders = dict.fromkeys(keys.values(), "127.0.0.1:0")
    if seat.rank > 0:
        leaders = parent.addresses(keys.values(), limit.left)
    groups = {
        name: stack.enter_context(
            RoomGroup(
                seat.rank,
                seat.ranks,
                leaders[keys[name]],
                member=msgspec.msgpack.encode(Rank(memory.layout)),
                name=f"{seat.side}-{job.model(name).kind}-{seat.rank}",
            )
        )
        for name, memory in memories.items()
    }
    if seat.rank == 0:
        parent.tell(Leads({keys[name]: group.address for name, group in groups.items()}))
    return {name: group.join(limit.left) for name, group in groups.items()}


def instance_of(group: RoomGroup | None) -> Instance | None:
    """All ranks of this side, as a decode engine wants to know them; None for a rank that is alone."""
    if group is None:
        return None
    return Instance(tuple(msgspec.msgpack.decode(member, type=Rank) for member in group.members), group.id)
