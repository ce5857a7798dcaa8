"""One shortest way through each configuration, as its timeline tells it: to DONE, or to how it ends after a fault.

Whoever changes what two sides say to each other sees here, line by line, what that does.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import pytest

from kvrooms.harness.explore.configs import ABORTS, ALL, ENDINGS, Job
from kvrooms.harness.explore.group_search import SETUPS, GroupSearch
from kvrooms.harness.explore.group_world import thaw
from kvrooms.harness.explore.ranks import Ranks, Shape
from kvrooms.harness.explore.scenario import Request
from kvrooms.harness.explore.search import Search

DONE = ("DONE", "")


class Way(NamedTuple):
    """A job, how its room ends on decode and on every prefill engine, and the moves of a shortest way there.

    before: how the use before it ended on both sides, where there are two.
    """

    job: Job
    decode: tuple[str, str]
    prefill: tuple[str, str]
    moves: list[str]
    before: tuple[tuple[str, str], ...] = ()


def request(*chunks: int, aux: bool = False, state: tuple[int, ...] = ()) -> Request:
    """Two callers who want the same."""
    return Request(sum(chunks), chunks, 0, aux, state, gives_aux=aux, gives_state=state)


def one_fault(name: str, *chunks: int) -> Job:
    """A job in which this one thing may go wrong."""
    return Job("fault-1", request(*chunks), budget=1, faults=frozenset({name}))


AGAIN, BESIDE = ((7, 0), (7, 0)), ((7, 0), (8, 0))
WAYS: dict[str, Way] = {
    "dense-1": Way(
        Job("dense-1", request(1)),
        DONE,
        DONE,
        [
            "open the room",
            "open the room",
            "send 1 page, the last",
            "connects",
            "METADATA, grant 1",
            "posts KV 0",
            "KV 0: bytes land",
            "KV 0: bytes land",
            "KV 0",
            "KV 0 settles",
        ],
    ),
    "state-1, nothing but an index": Way(
        Job("state-1", request(0, state=(1,)), 1),
        DONE,
        DONE,
        [
            "open the room",
            "open the room",
            "send 0 pages, the last, with [1] state indices",
            "connects",
            "METADATA, grant 1",
            "posts STATE 0",
            "STATE 0: bytes land",
            "STATE 0",
            "STATE 0 settles",
        ],
    ),
    "state-2, one of them without indices": Way(
        Job("state-2", request(0, state=(0, 1)), 2),
        DONE,
        DONE,
        [
            "open the room",
            "open the room",
            "send 0 pages, the last, with [0, 1] state indices",
            "connects",
            "METADATA, grant 1",
            "posts STATE 0",
            "STATE 0: bytes land",
            "STATE 0",
            "STATE 0 settles",
        ],
    ),
    "two-senders": Way(
        Job("two-senders", request(1), lanes=2, symmetric=True),
        DONE,
        DONE,
        [
            "open the room",
            "open the room",
            "open the room",
            "send 1 page, the last",
            "send 1 page, the last",
            "connects",
            "METADATA, grant 1",
            "posts KV 0",
            "KV 0: bytes land",
            "KV 0: bytes land",
            "KV 0",
            "KV 0 settles",
            "connects",
            "METADATA, grant 1",
            "posts KV 0",
            "KV 0: bytes land",
            "KV 0: bytes land",
            "KV 0",
            "KV 0 settles",
        ],
    ),
    "disagree": Way(
        Job("disagree", Request(1, (1,), aux=True, gives_aux=False)),
        ("FAILED", "mismatch"),
        ("FAILED", "mismatch"),
        [
            "open the room",
            "open the room",
            "connects",
            "METADATA, grant 1",
            "FAILED, grant 1, mismatch",
        ],
    ),
    "abort by decode": Way(
        Job("abort", request(1), budget=2, faults=ABORTS, unordered=True),
        ("FAILED", "aborted"),
        ("FAILED", "peer_aborted"),
        [
            "open the room",
            "open the room",
            "connects",
            "METADATA, grant 1",
            "abort the room",
            "ABORT, grant 1, peer_aborted",
        ],
    ),
    "abort by prefill": Way(
        Job("abort", request(1), budget=2, faults=ABORTS, unordered=True),
        ("FAILED", "peer_aborted"),
        ("FAILED", "aborted"),
        [
            "open the room",
            "open the room",
            "connects",
            "abort the room",
            "METADATA, grant 1",
            "FAILED, grant 1, peer_aborted",
        ],
    ),
    "fault-1, a write fails": Way(
        one_fault("write_failed", 1),
        ("FAILED", "transport_error"),
        ("FAILED", "transport_error"),
        [
            "open the room",
            "open the room",
            "send 1 page, the last",
            "connects",
            "METADATA, grant 1",
            "posts KV 0",
            "ACCEPT, grant 1",
            "write 0 ends with an error",
            "FAILED, grant 1, transport_error",
        ],
    ),
    "fault-1, METADATA is lost": Way(
        one_fault("frame_lost", 0),
        ("FAILED", "deadline_bootstrap"),
        ("FAILED", "deadline_bootstrap"),
        [
            "open the room",
            "open the room",
            "send 0 pages, the last",
            "connects",
            "METADATA, grant 1 is lost",
            "the bootstrap deadline passes",
            "close the room",
            "the bootstrap deadline passes",
        ],
    ),
    "fault-1, of any kind": Way(
        Job("fault-1", request(1), budget=1, faults=ALL),
        ("FAILED", "peer_lost"),
        ("FAILED", "peer_lost"),
        [
            "open the room",
            "open the room",
            "connects",
            "METADATA, grant 1",
            "the network cuts the connection",
            "the connection was cut",
            "the connection was cut",
        ],
    ),
    "fault-2, a write fails and a side stands still": Way(
        Job("fault-2", request(1), budget=2, faults=frozenset({"stands_still", "write_failed"})),
        ("FAILED", "deadline_waiting"),
        ("FAILED", "transport_error"),
        [
            "open the room",
            "open the room",
            "send 1 page, the last",
            "connects",
            "METADATA, grant 1",
            "ACCEPT, grant 1",
            "stands still",
            "the waiting deadline passes",
            "goes on",
            "posts KV 0",
            "write 0 ends with an error",
        ],
    ),
    "reuse after DONE": Way(
        Job("reuse", request(0), keys=AGAIN, budget=1, faults=frozenset({"decode_aborts"})),
        DONE,
        DONE,
        [
            "open use 1 of the room",
            "open use 1 of the room",
            "send 0 pages, the last",
            "connects",
            "METADATA, grant 1",
            "close use 1 of the room",
            "open use 2 of the room",
            "send 0 pages, the last",
            "ACCEPT, grant 1",
            "close use 1 of the room",
            "open use 2 of the room",
            "METADATA, grant 2, floor 2",
            "ACCEPT, grant 2",
        ],
        (DONE, DONE),
    ),
    "beside a room that is aborted": Way(
        Job("beside", request(0), keys=BESIDE, budget=1, faults=ENDINGS, in_turn=False, lazy=True),
        DONE,
        DONE,
        [
            "open use 1 of the room",
            "open use 2 of the room",
            "open use 1 of the room",
            "open use 2 of the room",
            "send 0 pages, the last",
            "connects",
            "METADATA, grant 1",
            "METADATA, grant 2",
            "ACCEPT, grant 2",
            "abort use 1 of the room",
            "ABORT, grant 1, peer_aborted",
        ],
        (("FAILED", "aborted"), ("FAILED", "peer_aborted")),
    ),
    "hold": Way(
        Job("hold", request(0), unordered=True, hold=True),
        DONE,
        DONE,
        [
            "open the room",
            "open the room",
            "send 0 pages, the last",
            "connects",
            "METADATA, grant 1",
            "ACCEPT, grant 1",
        ],
    ),
}


def shortest(way: Way) -> list[str]:
    """The moves of a shortest path to the end of a way."""
    one = Search(way.job.system(), way.job.config)
    assert not one.run().broken
    for at in range(len(one._order)):
        state = one._pack.unpack(one._order[at])
        sides = [one.system.decodes.values[state[0]]]
        sides += [one.system.prefills.values[state[2 + 3 * lane]] for lane in range(one.system.lanes)]
        ends = [_end(side, -1) for side in sides] == [way.decode] + [way.prefill] * one.system.lanes
        if ends and (not way.before or tuple(_end(side, 0) for side in sides) == way.before):
            return [step.text for step in one.timeline(at)]
    raise AssertionError("no such state")


def _end(side: Any, use: int) -> tuple[str, str]:
    record = side.records[use]
    if record is None:
        return ("", "")
    return (record.last.phase.value, record.last.cause.value if record.last.cause else "")


@pytest.mark.parametrize("name", WAYS)
def test_a_shortest_way_is_pinned(name: str) -> None:
    assert shortest(WAYS[name]) == WAYS[name].moves


def test_the_shortest_way_of_several_ranks_is_pinned() -> None:
    ranks = Ranks(Shape(1, 2, (True, True), in_time=True, bound=True))
    start = ranks.located()
    ways: dict[Any, list[str]] = {start: []}
    queue = deque([start])
    while any(room.phase.value != "DONE" for room in (*queue[0].decodes, queue[0].prefills[0][0])):
        world = queue.popleft()
        for text, after in ranks.moves(world):
            if after not in ways:
                ways[after] = [*ways[world], text]
                queue.append(after)
    assert ways[queue[0]] == RANKS


def test_the_shortest_way_to_an_outcome_of_a_group_is_pinned() -> None:
    one = GroupSearch(SETUPS["group-2"])
    one.run()
    for at, state in enumerate(one._order):
        ranks = thaw(one.setup, state).ranks
        if [life.shown for rank in ranks for life in rank.lives] == ["done", "done"]:
            assert [(step.who, step.text) for step in one._timeline(at)] == GROUP
            return
    raise AssertionError("no such state")


RANKS: list[str] = [
    "prefill 0, decode 0: the write is posted",
    "prefill 0, decode 0: the write lands",
    "prefill 0, decode 0: the notification arrives",
    "prefill 0, decode 0: the write settles",
    "prefill 0, decode 1: the write is posted",
    "prefill 0, decode 1: the write lands",
    "prefill 0, decode 1: the notification arrives",
    "prefill 0, decode 1: the write settles",
]
GROUP: list[tuple[str, str]] = [
    ("rank 0", "opens the room"),
    ("rank 0", "its room is done"),
    ("rank 1", "opens the room"),
    ("rank 1", "its room is done"),
    ("rank 1", "ReportDone arrives at the leader"),
    ("leader", "OutcomeDone arrives at rank 1"),
]
