"""The kinds of faults that take several ranks, on the real ports; those that need a process to die have one."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from rank_process import Far
from rank_support import LIMIT_S, Part, decodes, over, prefills, until

from kvrooms import Status
from kvrooms.protocol.failure import Reason
from kvrooms.soak.procs import Processes

PROCESSES_RUN = "rank_process"
pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]


class Four:
    """Four prefill ranks with a head each, of which rank 2 is a process of its own; a decode rank with all."""

    def __init__(self, stack: ExitStack, registry: str, processes: Processes, **settings: float) -> None:
        self.registry, self.processes = registry, processes
        self.prefills = prefills(stack, registry, [Part(0, 1), Part(1, 1), None, Part(3, 1)])
        self.far = self.another()
        self.receives = Part(0, 4)
        (self.decode,) = decodes(stack, [self.receives], **settings)

    def another(self) -> Far:
        """A process in the place of rank 2."""
        return Far(self.processes, self.registry, 2, 4, first=2, heads=1)

    def open(self, number: int) -> tuple[Any, list[Any]]:
        """A room on every rank, bound everywhere: decode's, and those of ranks 0, 1 and 3."""
        room = self.decode.open(number, bootstrap=self.registry, pages=[5, 6], aux_index=1)
        senders = [engine.open(number, aux_index=0) for engine in self.prefills]
        self.far.tell("open", number)
        until(lambda: all(one.phase != "METADATA" for one in (room, *senders)))
        until(lambda: self.far.ask("phase", number) != "METADATA")
        return room, senders

    def serves(self, number: int) -> None:
        """A room is DONE on all ranks, and every byte is in its place."""
        self.receives.k[:] = 0
        room, senders = self.open(number)
        for one in senders:
            one.send([2, 3], last=True)
        self.far.tell("send", number, [2, 3])
        over(Status.DONE, room, *senders)
        assert self.far.ask("end", number) == (Status.DONE, True)
        self.receives.landed([5, 6], [2, 3])


def test_on_nixl_one_of_four_prefill_ranks_is_killed(stack: ExitStack, registry: str, processes: Processes) -> None:
    """Some ranks have sent all, others nothing; then the process in its place serves the next room."""
    four = Four(stack, registry, processes)
    four.serves(1)
    room, senders = four.open(2)
    senders[0].send([2, 3], last=True)
    assert senders[0].wait(LIMIT_S) is Status.DONE, senders[0].failure
    four.far.kill()
    over(Status.FAILED, room, *senders[1:])
    assert room.failure.reason is Reason.PEER_LOST
    assert "rank 2" in room.failure.detail, room.failure
    assert [(one.failure.reason, one.failure.origin) for one in senders[1:]] == [(Reason.PEER_LOST, "peer")] * 2
    over(Status.DONE, senders[0])
    four.far = four.another()
    four.serves(3)


@pytest.mark.parametrize("end", ["it goes on", "it dies"])
def test_on_nixl_an_abort_that_three_of_four_have_acknowledged(
    stack: ExitStack, registry: str, processes: Processes, end: str
) -> None:
    """The fourth stands still: as long as it may still write, memory of the room is not free."""
    four = Four(stack, registry, processes)
    room, senders = four.open(1)
    four.far.stop()
    room.abort("changed its mind")
    over(Status.FAILED, *senders)
    until(lambda: four.decode.tables()["grants"] == 1)
    assert not room.wait_memory_free(0.3), "rank 2 has promised nothing"
    if end == "it dies":
        four.far.kill()
    else:
        four.far.go_on()
    over(Status.FAILED, room)
    if end == "it dies":
        four.far = four.another()
    else:
        assert four.far.ask("end", 1) == (Status.FAILED, True)
    four.serves(2)


def test_on_nixl_the_orchestrator_fences_one_rank(stack: ExitStack, registry: str, processes: Processes) -> None:
    """All four have one name; the word is about rank 2, which is silent and cannot be heard of."""
    four = Four(stack, registry, processes, heartbeat_s=0.4, heartbeat_timeout_s=2.0)
    room, _ = four.open(1)
    four.far.stop()
    room.abort("changed its mind")
    until(lambda: four.decode.tables()["grants"] == 1)
    four.decode.peer_fenced("prefill rank 1")
    assert not room.wait_memory_free(0.3), "that was another one"
    four.decode.peer_fenced("prefill rank 2")
    over(Status.FAILED, room)
    four.far.kill()


def test_on_nixl_aux_of_one_rank_arrives_before_the_pages_of_another(stack: ExitStack, registry: str) -> None:
    sent, receives = [Part(0, 2, aux=False), Part(2, 2)], Part(0, 4)
    senders = prefills(stack, registry, sent)
    (decode,) = decodes(stack, [receives])
    room = decode.open(1, bootstrap=registry, pages=[5, 6], aux_index=1)
    rooms = [engine.open(1, aux_index=0 if engine is senders[1] else None) for engine in senders]
    rooms[1].send([2, 3], last=True)
    assert rooms[1].wait(LIMIT_S) is Status.DONE, rooms[1].failure
    until(lambda: room.poll() is Status.TRANSFERRING)
    assert np.array_equal(receives.aux[1], sent[1].aux[0])
    assert room.phase == "KV"
    rooms[0].send([2], last=False)
    rooms[0].send([3], last=True)
    over(Status.DONE, room, *rooms)
    receives.landed([5, 6], [2, 3])


def test_on_nixl_one_component_of_two_is_late(stack: ExitStack, registry: str) -> None:
    """All pages are there, and the state of one rank; the window of the other one is not."""
    sent = [Part(0, 2, conv=(0, 1)), Part(2, 2, window=True)]
    receives = Part(0, 4, conv=(0, 1), window=True)
    senders = prefills(stack, registry, sent)
    (decode,) = decodes(stack, [receives])
    room = decode.open(1, bootstrap=registry, pages=[5, 6], aux_index=1, state_indices={"conv": [3], "window": [0, 7]})
    rooms = [engine.open(1, aux_index=0) for engine in senders]
    rooms[0].send([2, 3], {"conv": [1]}, last=True)
    rooms[1].send([2, 3], {"window": [4]})
    assert rooms[0].wait(LIMIT_S) is Status.DONE, rooms[0].failure
    until(lambda: room.phase == "STATE")
    until(lambda: np.array_equal(receives.window[0], sent[1].window[4]))
    assert not room.poll().terminal
    rooms[1].send([], {"window": [2]}, last=True)
    over(Status.DONE, room, *rooms)
    receives.landed([5, 6], [2, 3], slot=3)
    assert np.array_equal(receives.window[[0, 7]], sent[1].window[[4, 2]])


def test_on_nixl_two_decode_ranks_abort_one_room_at_once(stack: ExitStack, registry: str) -> None:
    """Each of two prefill ranks sends to both; before anything is sent, or when a part is under way."""
    sent, receive = [Part(0, 2), Part(2, 2)], [Part(0, 4), Part(0, 4)]
    senders, receivers = prefills(stack, registry, sent), decodes(stack, receive)
    for number in range(12):
        rooms = [engine.open(number, bootstrap=registry, pages=[5, 6], aux_index=1) for engine in receivers]
        sending = [engine.open(number, aux_index=0) for engine in senders]
        until(lambda: all(engine.tables()["grants"] == 2 for engine in senders))
        together = threading.Barrier(3)

        def abort(room: Any, barrier: threading.Barrier = together) -> None:
            barrier.wait(LIMIT_S)
            room.abort("this rank has had enough")

        threads = [threading.Thread(target=abort, args=(room,)) for room in rooms]
        for thread in threads:
            thread.start()
        if number % 2:
            for one in sending:
                one.send([2])
        together.wait(LIMIT_S)
        for thread in threads:
            thread.join(LIMIT_S)
        over(Status.FAILED, *rooms, *sending)
        reasons = {one.failure.reason for one in rooms}  # each its own, unless it was told before
        assert Reason.ABORTED in reasons <= {Reason.ABORTED, Reason.PEER_ABORTED}
        assert {one.failure.reason for one in sending} == {Reason.PEER_ABORTED}
    rooms = [engine.open(99, bootstrap=registry, pages=[0, 7], aux_index=0) for engine in receivers]
    sending = [engine.open(99, aux_index=0) for engine in senders]
    for one in sending:
        one.send([2, 3], last=True)
    over(Status.DONE, *rooms, *sending)
    for part in receive:
        part.landed([0, 7], [2, 3])
