"""The explorer's graphs are pinned: unique states, transitions, and the length of the longest of the shortest paths.

Whoever changes a table, the engine's answers, or the explorer sees here what that does to the space of states.
"""

from __future__ import annotations

import pytest
from explore_support import searched

from kvrooms.harness.explore.configs import ABORTS, ALL, ENDINGS, SHARED, Job, jobs
from kvrooms.harness.explore.run import explore, search
from kvrooms.harness.explore.scenario import Request

Counts = tuple[int, int, int]


def request(
    *chunks: int, aux: bool = True, state: tuple[int, ...] = (), prefix: int = 0, total: bool = False
) -> Request:
    """Two callers who want the same."""
    return Request(sum(chunks), chunks, prefix, aux, state, gives_aux=aux, gives_state=state, total=total)


BARE = {"aux": False}
AGAIN, ATTEMPTS, BESIDE = ((7, 0), (7, 0)), ((7, 0), (7, 1)), ((7, 0), (8, 0))
LATE = ABORTS | {"decode_aborts", "frame_overtaken"}
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
    ("3 chunks, aux", Job("dense-1", request(1, 1, 1)), (2862, 12543, 29)),
    ("2 chunks, a component", Job("state-1", request(1, 1, state=(1,)), 1), (2341, 10294, 27)),
    ("held before it is opened", Job("hold", request(1, state=(1,)), 1, unordered=True, hold=True), (1257, 4657, 23)),
]
FAULTS: list[tuple[str, Job, Counts]] = [
    (
        "aborts, any order",
        Job("abort", request(1, **BARE), budget=2, faults=ABORTS, unordered=True),
        (10469, 31618, 20),
    ),
    ("one fault of any kind", Job("fault-1", request(1, **BARE), budget=1, faults=ALL), (6253, 14956, 21)),
    (
        "aborts, any order, a component",
        Job("abort", request(1, **BARE, state=(1,)), 1, SHARED, budget=2, faults=ABORTS, unordered=True),
        (11073, 33701, 21),
    ),
    (
        "one fault of any kind, a component",
        Job("fault-1", request(1, **BARE, state=(1,)), 1, SHARED, budget=1, faults=ALL, lazy=True),
        (5435, 12745, 19),
    ),
    (
        "one fault of any kind, frames in any order",
        Job("fault-1", request(1, **BARE), budget=1, faults=ALL, unordered=True),
        (10976, 27857, 22),
    ),
    (
        "used again, nothing is owed",
        Job("reuse", request(0, **BARE), keys=AGAIN, budget=1, faults=ALL),
        (14929, 31085, 25),
    ),
    (
        "used again, aborts, late frames",
        Job("reuse", request(1, **BARE), keys=AGAIN, budget=1, faults=LATE),
        (12908, 34746, 30),
    ),
    (
        "used again as another attempt",
        Job("reuse", request(1, **BARE), keys=ATTEMPTS, budget=1, faults=LATE),
        (11386, 28064, 30),
    ),
    (
        "two rooms at once",
        Job("beside", request(0, **BARE), keys=BESIDE, budget=1, faults=ENDINGS, in_turn=False, lazy=True),
        (9440, 28633, 18),
    ),
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


@pytest.mark.parametrize(
    ("chunks", "symmetric", "counts"),
    [
        ((1,), True, (447, 1391, 24)),
        ((1,), False, (858, 2669, 24)),
        ((1, 1), True, (8717, 41239, 36)),
        ((1, 1), False, (17301, 81856, 36)),
    ],
)
def test_equal_senders_are_not_told_apart(chunks: tuple[int, ...], symmetric: bool, counts: Counts) -> None:
    found = searched(Job("two-senders", request(*chunks, **BARE), lanes=2, symmetric=symmetric))
    assert not found.broken
    assert (found.states, found.transitions, found.depth) == counts


FAULTLESS = ("dense-1", "state-1", "state-2", "two-senders", "disagree")


def test_without_faults_there_is_no_order_of_frames_to_give_up() -> None:
    for job in (job for name in FAULTLESS for job in jobs(name, "quick")):
        ordered, multiset = searched(job), searched(job._replace(unordered=True))
        assert multiset._replace(timers=ordered.timers) == ordered, job


@pytest.mark.parametrize(("lazy", "counts"), [(True, (5435, 12745, 19)), (False, (6253, 14956, 21))])
def test_landing_as_late_as_it_can_is_enough(lazy: bool, counts: Counts) -> None:
    job = Job("fault-1", request(1, **BARE), budget=1, faults=ALL, lazy=lazy)
    found = searched(job)
    assert (found.states, found.transitions, found.depth) == counts
    assert found.outcomes == searched(job._replace(lazy=not lazy)).outcomes, "what the callers can see is the same"


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


SMALL = ("dense-1", "state-1", "state-2", "two-senders", "disagree", "hold", "alone")


def test_counts_of_the_small_configurations_are_pinned() -> None:
    found = explore(SMALL, workers=0)
    assert {config.name: config.states for config in found.configs} == {name: DEFAULT[name] for name in SMALL}
    assert found.complete
    assert not found.tally.broken


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_counts_of_the_default_run_are_pinned() -> None:
    found = explore(workers=2)
    assert {config.name: config.states for config in found.configs} == DEFAULT
    assert found.complete, found.unreached
    assert found.states >= 1_000_000


def test_a_job_is_searched_from_the_beginning_each_time() -> None:
    job = Job("fault-1", request(0, **BARE), budget=1, faults=ALL)
    assert search(job)[1] == search(job)[1]
