"""The explorer's graphs are pinned: unique states, transitions, and the length of the longest of the shortest paths.

Whoever changes a table, the engine's answers, or the explorer sees here what that does to the space of states.
"""

from __future__ import annotations

from typing import Any

import pytest
from explore_support import searched

from kvrooms.harness.explore.configs import ABORTS, ALL, SHARED, Job, jobs
from kvrooms.harness.explore.run import search
from kvrooms.harness.explore.scenario import Request
from kvrooms.harness.explore.search import Search

Counts = tuple[int, int, int]


def request(
    *chunks: int, aux: bool = True, state: tuple[int, ...] = (), prefix: int = 0, total: bool = False
) -> Request:
    """Two callers who want the same."""
    return Request(sum(chunks), chunks, prefix, aux, state, gives_aux=aux, gives_state=state, total=total)


BARE = {"aux": False}
NO_FAULT: list[tuple[str, Job, Counts]] = [
    ("nothing is owed", Job("dense-1", request(0, **BARE)), (17, 24, 8)),
    ("aux only", Job("dense-1", request(0)), (34, 58, 12)),
    ("1 chunk", Job("dense-1", request(1, **BARE)), (36, 61, 13)),
    ("1 chunk, aux", Job("dense-1", request(1)), (104, 247, 17)),
    ("2 chunks", Job("dense-1", request(1, 1, **BARE)), (133, 318, 19)),
    ("2 chunks, aux", Job("dense-1", request(1, 1)), (509, 1706, 23)),
    ("2 chunks, total said first", Job("dense-1", request(1, 1, total=True)), (509, 1706, 23)),
    ("2 chunks, the first is held already", Job("dense-1", request(1, 1, prefix=1)), (109, 256, 18)),
    ("a component without indices", Job("state-1", request(1, state=(0,)), 1), (104, 247, 17)),
    ("a component", Job("state-1", request(1, state=(1,)), 1), (420, 1413, 21)),
    ("a component of two pieces", Job("state-1", request(1, state=(2,)), 1), (208, 567, 24)),
    ("one write for all", Job("state-1", request(1, state=(1,)), 1, SHARED), (40, 67, 15)),
    ("two components", Job("state-2", request(1, state=(1, 1)), 2), (1952, 8591, 25)),
    ("one of two components", Job("state-2", request(1, state=(0, 1)), 2), (420, 1413, 21)),
    ("two components, one write", Job("state-2", request(1, 1, state=(1, 1)), 2, SHARED), (169, 408, 22)),
    ("held before it is opened", Job("hold", request(1, state=(1,)), 1, unordered=True, hold=True), (1257, 4657, 23)),
]
FAULTS: list[tuple[str, Job, Counts]] = [
    (
        "aborts, any order",
        Job("abort", request(1, **BARE), budget=2, faults=ABORTS, unordered=True),
        (10469, 31618, 20),
    ),
    ("one fault of any kind", Job("fault-1", request(1, **BARE), budget=1, faults=ALL), (6253, 14956, 21)),
    ("two faults of any kind", Job("fault-2", request(0, **BARE), budget=2, faults=ALL), (39261, 110854, 18)),
]


@pytest.mark.parametrize(
    ("job", "counts"), [row[1:] for row in NO_FAULT + FAULTS], ids=[r[0] for r in NO_FAULT + FAULTS]
)
def test_counts_are_pinned(job: Job, counts: Counts) -> None:
    found = searched(job)
    assert found.complete
    assert not found.broken
    assert (found.states, found.transitions, found.depth) == counts


def test_every_disagreement_is_counted() -> None:
    found = [searched(job) for job in jobs("disagree", "quick")]
    assert (len(found), sum(one.states for one in found)) == (56, 5166)
    assert not any(one.broken for one in found)


@pytest.mark.parametrize(("symmetric", "counts"), [(True, (447, 1391, 24)), (False, (858, 2669, 24))])
def test_equal_senders_are_not_told_apart(symmetric: bool, counts: Counts) -> None:
    found = searched(Job("two-senders", request(1, **BARE), lanes=2, symmetric=symmetric))
    assert (found.states, found.transitions, found.depth) == counts


@pytest.mark.parametrize(("lazy", "counts"), [(True, (5435, 12745, 19)), (False, (6253, 14956, 21))])
def test_landing_as_late_as_it_can_is_enough(lazy: bool, counts: Counts) -> None:
    job = Job("fault-1", request(1, **BARE), budget=1, faults=ALL, lazy=lazy)
    found = searched(job)
    assert (found.states, found.transitions, found.depth) == counts
    assert found.outcomes == searched(job._replace(lazy=not lazy)).outcomes, "what the callers can see is the same"


def shortest(job: Job, wanted: Any) -> list[str]:
    """The moves of a shortest path to a state in which `wanted` holds of the two sides."""
    one = Search(job.system(), job.config)
    one.run()
    for at in range(len(one._order)):
        state = one._pack.unpack(one._order[at])
        if wanted(one.system.decodes.values[state[0]], one.system.prefills.values[state[2]]):
            return [step.text for step in one.timeline(at)]
    raise AssertionError("no such state")


def test_the_shortest_way_to_done_is_pinned() -> None:
    def both_done(decode: Any, prefill: Any) -> bool:
        records = (decode.records[0], prefill.records[0])
        return all(record is not None and record.last.phase.value == "DONE" for record in records)

    assert shortest(Job("dense-1", request(1, **BARE)), both_done) == [
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
    ]


DEFAULT = {
    "dense-1": 11_036,
    "state-1": 5_719,
    "state-2": 23_515,
    "two-senders": 175_662,
    "disagree": 42_227,
    "abort": 665_577,
    "fault-1": 306_019,
    "fault-2": 1_653_868,
    "reuse": 377_306,
    "beside": 1_900_883,
    "hold": 6_218,
    "ranks": 1_309_697,
    "group": 484_369,
    "alone": 4_686,
}


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_counts_of_the_default_run_are_pinned() -> None:
    from kvrooms.harness.explore.run import explore

    found = explore(workers=2)
    assert {config.name: config.states for config in found.configs} == DEFAULT
    assert found.complete, found.unreached
    assert found.states >= 1_000_000


def test_a_job_is_searched_from_the_beginning_each_time() -> None:
    job = Job("fault-1", request(0, **BARE), budget=1, faults=ALL)
    assert search(job)[1] == search(job)[1]
