"""A group of two decode ranks on the real ports, one of which dies: the outcome of its rooms, and their memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from group_rank_process import Apart, instance, part
from rank_support import LIMIT_S, Part, over, prefills, until

from kvrooms import DecodeEngine, RoomGroup, Status
from kvrooms.protocol.failure import Reason
from kvrooms.soak.procs import Processes

PROCESSES_RUN = "group_rank_process"
pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]
DONE, FAILED = Status.DONE, Status.FAILED


class Two:
    """A prefill rank that sends to two decode ranks, one of which is a process of its own; `here` is the other."""

    def __init__(self, stack: ExitStack, registry: str, processes: Processes, apart: int) -> None:
        self.registry, here = registry, 1 - apart
        (self.prefill,) = prefills(stack, registry, [Part(0, 4)])
        self.receives = part(here)
        if apart:
            self.group = stack.enter_context(RoomGroup(0, 2, "127.0.0.1:0"))
            self.apart = Apart(processes, 1, self.group.address, registry)
        else:
            self.apart = Apart(processes, 0, "", registry)
            self.group = stack.enter_context(RoomGroup(1, 2, self.apart.address))
        self.group.join(LIMIT_S)
        self.decode = stack.enter_context(
            DecodeEngine(self.receives.memory, name=f"decode-{here}", ranks=instance(), rank=here, group=self.group)
        )
        assert self.apart.answer() == "ready"

    def open(self, number: int) -> tuple[Any, Any]:
        """A room on every rank, bound everywhere: decode's here, and prefill's."""
        room = self.decode.open(number, bootstrap=self.registry, pages=[5, 6], aux_index=1)
        self.apart.tell("open", number)
        sender = self.prefill.open(number, aux_index=0)
        until(lambda: all(one.phase != "METADATA" for one in (room, sender)))
        until(lambda: self.apart.ask("phase", number) != "METADATA")
        return room, sender

    def lost(self, number: int, words: str) -> None:
        """The other rank has died: a room that is open fails here and on prefill, and so does the next one at once."""
        room, sender = self.open(number)
        self.apart.kill()
        assert room.wait_outcome(LIMIT_S) is FAILED
        assert room.outcome_failure.reason is Reason.PEER_LOST
        over(FAILED, room, sender)  # whoever was first: the group, or prefill, which has lost the same process
        after = self.decode.open(number + 1, bootstrap=self.registry, pages=[5, 6], aux_index=1)
        assert after.wait_outcome(LIMIT_S) is FAILED
        assert words in after.outcome_failure.detail
        over(FAILED, after)
        assert words in self.decode.health().problems[0]


def check_lost(stack: ExitStack, registry: str, processes: Processes, apart: int, words: str) -> None:
    """An ordinary room is DONE on both; then one rank is killed while a room is open."""
    two = Two(stack, registry, processes, apart)
    room, sender = two.open(1)
    sender.send([2, 3], last=True)
    assert room.wait_outcome(LIMIT_S) is two.apart.ask("outcome", 1) is DONE
    over(DONE, room, sender)
    two.receives.landed([5, 6], [2, 3])
    two.lost(2, words)


def test_on_nixl_a_rank_of_a_group_is_killed(stack: ExitStack, registry: str, processes: Processes) -> None:
    check_lost(stack, registry, processes, 1, "rank 1")


def test_on_nixl_the_leader_of_a_group_is_killed(stack: ExitStack, registry: str, processes: Processes) -> None:
    check_lost(stack, registry, processes, 0, "the leader is lost")
