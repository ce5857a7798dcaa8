"""Faults seen in other engines that need several ranks, by their numbers in docs/faults.md, on the real ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from rank_support import LIMIT_S, Part, decodes, over, prefills, until

from kvrooms import PrefillEngine, RoomGroup, Status
from kvrooms.protocol.failure import Reason

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]


def test_case_17_what_one_of_two_senders_says_twice_is_not_taken_for_the_other(stack: ExitStack, registry: str) -> None:
    sent, receives = [Part(0, 2), Part(2, 2)], Part(0, 4)
    senders = prefills(stack, registry, sent)
    (decode,) = decodes(stack, [receives])
    room = decode.open(1, bootstrap=registry, pages=[5, 6], aux_index=1)
    rooms = [engine.open(1, aux_index=0) for engine in senders]
    until(lambda: all(one.phase != "METADATA" for one in rooms))
    rooms[0].send([2, 3], last=True)
    assert rooms[0].wait(LIMIT_S) is Status.DONE, rooms[0].failure
    told = decode.counters().get("room events ignored", 0)
    core: Any = decode._core
    agent, message = senders[0]._core.agent, next(_completions(core, senders[0]._core.agent))
    for _ in range(3):
        core.submit(core._arrival, agent, message)  # the very notification of the first sender, again
    decode._runner.wake()
    until(lambda: decode.counters().get("room events ignored", 0) > told)
    assert room.poll() is Status.TRANSFERRING
    rooms[1].send([2, 3], last=True)
    over(Status.DONE, room, *rooms)
    receives.landed([5, 6], [2, 3])


def _completions(core: Any, agent: str) -> Iterator[bytes]:
    """What the engine of that agent would say if it said again that its pages have landed."""
    from kvrooms.protocol import notify
    from kvrooms.protocol.notify import Part as Said
    from kvrooms.protocol.notify import PartKind

    for grant in core._by_token.values():
        if grant.peer.agent == agent:
            yield notify.encode(grant.number, grant.token, (Said(PartKind.KV, 0, 0, 2),))


def test_case_23_two_heads_over_four_ranks_and_groups_of_a_convolution_each_come_from_their_own(
    stack: ExitStack, registry: str
) -> None:
    """A head that two decode ranks have goes to both; each group of the convolution's state is split by itself."""
    source = Part(0, 2, of=2, conv=(0, 1))
    targets = [Part(i // 2, 1, of=2, conv=(i % 2, 2)) for i in range(4)]
    (prefill,) = prefills(stack, registry, [source])
    engines = decodes(stack, targets)
    for number in range(3):
        rooms = [
            engine.open(number, bootstrap=registry, pages=[1, 4], aux_index=0, state_indices={"conv": [2]})
            for engine in engines
        ]
        sender = prefill.open(number, aux_index=1)
        sender.send([6])
        sender.send([7], {"conv": [3]}, last=True)
        over(Status.DONE, *rooms, sender)
        for target in targets:
            target.landed([1, 4], [6, 7], slot=2)
            target.k[:], target.conv[:] = 0, 0


def test_case_24_the_router_says_which_instance_and_nothing_is_derived_from_the_rooms_number(
    stack: ExitStack, registry: str
) -> None:
    parts = [Part(0, 4), Part(0, 4)]
    instances = [prefills(stack, registry, [part], name=f"dp-{i}")[0] for i, part in enumerate(parts)]
    receives = Part(0, 4)
    (decode,) = decodes(stack, [receives])
    parts[0].k[:] = 0
    for number in (10, 11):  # even and odd
        room = decode.open(number, bootstrap=registry, instance="dp-1", pages=[number % 8], aux_index=0)
        sender = instances[1].open(number, aux_index=0)
        sender.send([3], last=True)
        over(Status.DONE, room, sender)
        receives.landed([number % 8], [3])


def test_case_24_whoever_asks_another_instance_than_the_router_chose_is_told(stack: ExitStack, registry: str) -> None:
    part = Part(0, 4)
    part.fill()
    wrong = stack.enter_context(PrefillEngine(part.memory, name="dp-0", registry=registry, parked_ttl_s=0.2))
    (right,) = prefills(stack, registry, [Part(0, 4)], name="dp-1")
    (decode,) = decodes(stack, [Part(0, 4)])
    sender = right.open(10, pages=1)
    room = decode.open(10, bootstrap=registry, instance="dp-0", pages=[0])
    assert room.wait(LIMIT_S) is Status.FAILED
    assert room.failure.reason is Reason.REFUSED
    assert room.failure.retryable
    over(Status.FAILED, room)
    assert not sender.poll().terminal, "nobody has asked it, and nobody has failed it"
    sender.close()
    until(lambda: not wrong.tables()["parked"])


@pytest.mark.parametrize("who", ["decode 1 aborts", "decode 1 is closed", "prefill 1 aborts"])
def test_case_26_what_fails_one_rank_is_told_to_all_that_take_part(stack: ExitStack, registry: str, who: str) -> None:
    """No group, no timer: each prefill rank tells every decode rank, those that register later too."""
    sends = prefills(stack, registry, [Part(0, 2), Part(2, 2)])
    receives = decodes(stack, [Part(0, 4) for _ in range(3)], parked_ttl_s=LIMIT_S)  # each has to do with both
    rooms = [engine.open(1, bootstrap=registry, pages=[0], aux_index=0) for engine in receives[:2]]
    senders = [engine.open(1, aux_index=0) for engine in sends]
    until(lambda: all(engine.tables()["grants"] == 2 for engine in sends))
    match who:
        case "decode 1 aborts":
            rooms[1].abort("told to all")
        case "decode 1 is closed":
            receives[1].close()
        case "prefill 1 aborts":
            senders[1].abort("told to all")
    for room in (*senders, *rooms):
        assert room.wait(LIMIT_S) is Status.FAILED, room
    late = receives[2].open(1, bootstrap=registry, pages=[0], aux_index=0)
    assert late.wait(LIMIT_S) is Status.FAILED
    assert late.failure.origin == "peer"
    for room in (*rooms, late, *senders):
        room.close()
        assert room.wait_memory_free(LIMIT_S), room.memory_status


@pytest.mark.parametrize("broken", [0, 3])
def test_case_26_a_post_that_fails_to_one_of_four_ranks_fails_all_with_its_reason(
    stack: ExitStack, registry: str, broken: int
) -> None:
    """NIXL itself refuses the write: it has lost what it knew of one decode rank. No timer; new ones are served.

    The first rank or the last: none has been written to before, or all others have.
    """
    sent, parts = Part(0, 4), [Part(head, 1) for head in range(4)]
    (prefill,) = prefills(stack, registry, [sent])
    receives = decodes(stack, parts)
    rooms = [engine.open(1, bootstrap=registry, pages=[5], aux_index=0) for engine in receives]
    sender = prefill.open(1, aux_index=0)
    until(lambda: all(room.phase != "METADATA" for room in (*rooms, sender)))
    core: Any = prefill._core
    core.submit(core.transport._wrapper.remove_remote_agent, receives[broken]._core.agent)
    sender.send([3], last=True)
    for room in (sender, *rooms):
        assert room.wait(LIMIT_S) is Status.FAILED, room
        assert room.failure.reason is Reason.SEND_ERROR, room.failure
        assert receives[broken]._core.agent in room.failure.detail
        assert "NIXL" in room.failure.detail
    assert [room.failure.origin for room in (sender, *rooms)] == ["local", *["peer"] * 4]
    over(Status.FAILED, sender, *rooms)
    for engine in receives:
        engine.close()
    receives = decodes(stack, parts)
    rooms = [engine.open(1, bootstrap=registry, pages=[6], aux_index=0) for engine in receives]
    sender = prefill.open(1, aux_index=0)
    sender.send([4], last=True)
    over(Status.DONE, sender, *rooms)
    for part in parts:
        part.landed([6], [4])


UNSUPPORTED = {
    "4 heads, and 6": ([Part(0, 2), Part(2, 2)], Part(0, 3, of=6), "kv layer 0 k: total is 4 on prefill, 6 on decode"),
    "heads that no rank has": ([Part(0, 2)], Part(0, 4), "kv layer 0 k: no prefill rank has units 2 to 3"),
    "state of channels that no rank has": (
        [Part(0, 2, conv=(0, 2)), Part(2, 2)],
        Part(0, 4, conv=(0, 1)),
        "state component 'conv' layer 1 conv: no prefill rank has units 4 to 7",
    ),
}


@pytest.mark.parametrize("pair", UNSUPPORTED)
def test_case_22_ranks_that_cannot_work_together_are_refused_at_the_handshake(
    stack: ExitStack, registry: str, pair: str
) -> None:
    """In words that name both values; no room is asked for, and ranks that fit are served by the same engines."""
    sent, receives, words = UNSUPPORTED[pair]
    senders = prefills(stack, registry, sent)
    (decode,) = decodes(stack, [receives])
    rooms = [engine.open(1, aux_index=0, skip_state=True) for engine in senders]
    room = decode.open(1, bootstrap=registry, pages=[1], aux_index=0, skip_state=True)
    assert room.wait(LIMIT_S) is Status.FAILED
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED, room.failure
    assert words in room.failure.detail
    over(Status.FAILED, room)
    assert not any(one.poll().terminal for one in rooms)
    assert not any(engine.tables()["grants"] or engine.tables()["parked"] for engine in senders)
    heads = 2 * len(sent)
    (fits,) = decodes(stack, [Part(0, heads)])
    room = fits.open(1, bootstrap=registry, pages=[1], aux_index=0)
    for one in rooms:
        one.send([3], last=True)
    over(Status.DONE, room, *rooms)


@pytest.fixture
def groups(stack: ExitStack) -> list[RoomGroup]:
    """Two ranks that give each room one outcome."""
    leader = stack.enter_context(RoomGroup(0, 2, "127.0.0.1:0"))
    other = stack.enter_context(RoomGroup(1, 2, leader.address))
    joining = threading.Thread(target=other.join)
    joining.start()
    leader.join()
    joining.join(LIMIT_S)
    return [leader, other]


@pytest.mark.parametrize("how", ["deadline", "abort"])
def test_case_31_a_deadline_or_an_abort_of_one_rank_is_the_outcome_of_all(
    stack: ExitStack, registry: str, groups: list[RoomGroup], how: str
) -> None:
    targets = [Part(0, 2), Part(2, 2)]
    (prefill,) = prefills(stack, registry, [Part(0, 4)])
    engines = decodes(stack, targets, groups)
    late = {"waiting_timeout_s": 0.3} if how == "deadline" else {}
    rooms = [
        engine.open(1, bootstrap=registry, pages=[0, 1], aux_index=0, **(late if engine is engines[1] else {}))
        for engine in engines
    ]
    sender = prefill.open(1, aux_index=0)
    until(lambda: all(room.phase != "METADATA" for room in (*rooms, sender)))
    if how == "abort":
        rooms[1].abort("the request was cancelled")
    assert [room.wait_outcome(LIMIT_S) for room in rooms] == [Status.FAILED, Status.FAILED]
    assert len({room.outcome_failure.reason for room in rooms}) == 1, "one cause, decided once"
    over(Status.FAILED, *rooms, sender)
    rooms = [engine.open(2, bootstrap=registry, pages=[2], aux_index=0) for engine in engines]
    sender = prefill.open(2, aux_index=0)
    sender.send([4], last=True)
    assert [room.wait_outcome(LIMIT_S) for room in rooms] == [Status.DONE, Status.DONE]
    over(Status.DONE, *rooms, sender)
    for target in targets:
        target.landed([2], [4])
