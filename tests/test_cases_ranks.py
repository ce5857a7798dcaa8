"""Faults seen in other engines that need several ranks, by their numbers in docs/faults.md, on the real ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from kvrooms import Buffer, Component, DecodeEngine, Instance, Memory, PrefillEngine, Rank, RoomGroup, Status, split
from kvrooms.protocol.failure import Reason
from kvrooms.transport.registry import RegistryServer

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]
PAGES, TOKENS, HEAD, LIMIT_S = 8, 4, 16, 40.0
HEADS = 4
GROUPS = ((8, 8), (2, 2), (2, 2))
"""Of the conv state of a Mamba layer: channels of x, B and C, each numbered by itself: (here, in all)."""


class Part:
    """What one rank has: some heads of the cache, beginning at `first`, and aux; with `conv`, a share of that too."""

    def __init__(self, first: int, heads: int, *, of: int = HEADS, conv: tuple[int, int] | None = None) -> None:
        self.k = np.zeros((PAGES, TOKENS, heads, HEAD), np.uint8)
        self.aux = np.zeros((4, 8), np.uint8)
        self.heads = range(first, first + heads)
        state = []
        if conv is not None:
            share, shares = conv
            groups = [(total // shares, share * (total // shares), total) for _, total in GROUPS]
            self.channels = [range(low, low + here) for here, low, _ in groups]
            self.conv = np.zeros((4, sum(here for here, _, _ in groups), 2), np.uint8)
            shards = split(self.conv, 1, groups=groups)
            state = [Component("conv", "mamba", "always", [Buffer(1, "conv", self.conv, shards)])]
        kv = [Buffer(0, "k", self.k, split(self.k, 2, first, of, rows=1))]
        self.memory = Memory(TOKENS, kv=kv, aux={"token": self.aux}, state=state)

    def fill(self) -> None:
        """What a model would compute: a byte tells position, token, head and where in it."""
        for head, mine in zip(self.heads, range(len(self.heads)), strict=True):
            for page in range(PAGES):
                for token in range(TOKENS):
                    self.k[page, token, mine] = _key(page, token, head)
        if hasattr(self, "conv"):
            numbered = [(kind, channel) for kind, mine in enumerate(self.channels) for channel in mine]
            for at, (kind, channel) in enumerate(numbered):
                self.conv[:, at] = _channel(kind, channel)

    def landed(self, pages: Sequence[int], source: Sequence[int], slot: int | None = None) -> None:
        """Every byte of it is that of its own head, token and page; every channel that of its own group."""
        for page, came in zip(pages, source, strict=True):
            for token in range(TOKENS):
                for mine, head in enumerate(self.heads):
                    assert np.array_equal(self.k[page, token, mine], _key(came, token, head)), (page, token, head)
        if slot is not None:
            numbered = [(kind, channel) for kind, mine in enumerate(self.channels) for channel in mine]
            for at, (kind, channel) in enumerate(numbered):
                assert (self.conv[slot, at] == _channel(kind, channel)).all(), (kind, channel)


def _key(page: int, token: int, head: int) -> Any:
    return (np.arange(HEAD) + 1 + 31 * page + 7 * token + 101 * head) % 251


def _channel(kind: int, channel: int) -> int:
    return 1 + 40 * kind + channel


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def registry(stack: ExitStack) -> str:
    return stack.enter_context(RegistryServer()).url


def prefills(stack: ExitStack, registry: str, parts: Sequence[Part], name: str = "prefill") -> list[PrefillEngine]:
    """An instance: an engine for each part."""
    for part in parts:
        part.fill()
    return [
        stack.enter_context(PrefillEngine(part.memory, name=name, registry=registry, rank=i, ranks=len(parts)))
        for i, part in enumerate(parts)
    ]


def decodes(stack: ExitStack, parts: Sequence[Part], groups: Sequence[Any] = (), **options: Any) -> list[DecodeEngine]:
    """An instance: an engine for each part."""
    ranks = Instance(tuple(Rank(part.memory.layout) for part in parts), id=7)
    own = [{"group": group} for group in groups] or [{}] * len(parts)
    return [
        stack.enter_context(DecodeEngine(part.memory, name=f"decode-{i}", ranks=ranks, rank=i, **mine, **options))
        for i, (part, mine) in enumerate(zip(parts, own, strict=True))
    ]


def until(what: Any, words: Any = str) -> None:
    """Wait for something that an engine's thread does."""
    gate = threading.Event()
    for _ in range(4000):
        if what():
            return
        gate.wait(0.005)
    raise AssertionError(words())


def over(status: Status, *rooms: Any) -> None:
    """The rooms end so, and their memory comes back."""
    for room in rooms:
        assert room.wait(LIMIT_S) is status, (room, room.failure)
        room.close()
        assert room.wait_memory_free(LIMIT_S), room.memory_status


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
