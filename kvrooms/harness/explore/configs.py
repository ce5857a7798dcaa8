"""The configurations: what is explored, in which scope, as jobs that a worker can take by themselves.

A job is one system: one manifest (or one pair that differs), one set of faults. Spellings that mean the same make one
job, as long as the running code agrees that they do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from ...protocol.identity import RoomKey
from . import faults_ports, faults_strange, faults_talk
from .faults import FAULTS
from .group_search import QUICK, SETUPS, SMALLEST
from .group_world import Setup as GroupSetup
from .grouped import GROUPED, LARGER
from .ranks import FAULTS as RANK_FAULTS
from .ranks import Shape
from .scenario import NOTHINGS, Plan, Request
from .system import Setup, System

Scope: TypeAlias = Literal["mutant", "quick", "default", "deep"]
SEPARATE, SHARED = 128, 1024
"""Bytes of a piece: each part its own write; or all parts of one send in one write, as the engine does by default."""
ALL = frozenset(FAULTS)
assert all((faults_talk, faults_ports, faults_strange))  # they register their faults
ENDINGS = frozenset({"decode_aborts", "sends_too_much"})
FEW = frozenset({"decode_aborts", "connection_cut", "frame_lost", "frame_repeated", "stands_still", "refused"})
ABORTS = frozenset({"decode_aborts", "prefill_aborts", "frame_repeated"})


class Job(NamedTuple):
    """One system to explore. keys: the room of each use. See `system.Setup` for the rest.

    shape: of several ranks. group: of ranks that have one outcome; by themselves, or with a shape those of decode.
    """

    config: str
    request: Request
    components: int = 0
    piece_bytes: int = SEPARATE
    keys: tuple[tuple[int, int], ...] = ((7, 0),)
    lanes: int = 1
    budget: int = 0
    faults: frozenset[str] = frozenset()
    unordered: bool = False
    lazy: bool = False
    symmetric: bool = False
    in_turn: bool = True
    hold: bool = False
    shape: Shape | None = None
    group: GroupSetup | None = None

    def setup(self) -> Setup:
        """What a `System` is made from."""
        plans = tuple(
            Plan(self.request, i, RoomKey(*key), self.components, self.piece_bytes) for i, key in enumerate(self.keys)
        )
        return Setup(
            plans=plans,
            lanes=self.lanes,
            budget=self.budget,
            faults=self.faults,
            unordered=self.unordered,
            lazy=self.lazy,
            symmetric=self.symmetric,
            in_turn=self.in_turn,
            hold=self.hold,
        )

    def system(self) -> System:
        """The system itself."""
        return System(self.setup())


NAMES = (
    "dense-1",
    "state-1",
    "state-2",
    "two-senders",
    "disagree",
    "abort",
    "fault-1",
    "fault-2",
    "reuse",
    "beside",
    "hold",
    "ranks",
    "group",
    "alone",
)


def jobs(name: str, scope: Scope) -> list[Job]:
    """The jobs of a configuration, each once. Raises ValueError for a name that is not one."""
    if name not in _MAKERS:
        raise ValueError(f"{name!r} is no configuration; they are {', '.join(NAMES)}")
    return list(_distinct(_MAKERS[name](scope)))


def _small(scope: Scope) -> bool:
    return scope in ("mutant", "quick")


def _distinct(made: Iterator[Job]) -> Iterator[Job]:
    """Each job in all spellings of nothing; those that the running code takes for the same are explored once."""
    seen = set()
    for job in made:
        # Spellings are the business of the callers' inputs: where faults are, one of them will do.
        decode = NOTHINGS[:1] if any(job.request.state) or job.budget else NOTHINGS
        prefill = NOTHINGS[:1] if any(job.request.gives_state) or job.budget else NOTHINGS
        for spelled in itertools.product(decode, prefill):
            spelt = job._replace(request=job.request._replace(spelled=spelled))
            signature = (job, _signature(spelt))
            if signature not in seen:
                seen.add(signature)
                yield spelt


def _signature(job: Job) -> object:
    """What the running code makes of a request; what it raises, if it refuses it."""
    try:
        plan = Plan(job.request, 0, RoomKey(7, 0), job.components, job.piece_bytes)
    except Exception as error:  # noqa: BLE001 - a spelling that is refused is a job of its own, which will tell
        return repr(error)
    declared = tuple((send.first_page, len(send.pages), send.aux_index, send.declaration) for send in plan.sends)
    counts = tuple(tuple((at, len(some)) for at, some in send.state) for send in plan.sends)
    return (plan.manifest, plan.opening, declared, counts)


def _asked(
    chunks: tuple[int, ...], *, aux: bool = True, state: tuple[int, ...] = (), prefix: int = 0, total: bool = False
) -> Request:
    """Two callers who want the same."""
    pages = sum(chunks)
    return Request(pages, chunks, prefix, aux, state, gives_aux=aux, gives_state=state, total=total)


def _dense(scope: Scope) -> Iterator[Job]:
    yield Job("dense-1", _asked((0,)))
    yield Job("dense-1", _asked((0,), aux=False))
    for chunks in range(1, 3 if _small(scope) else 4):
        for aux, total, prefix in itertools.product((True, False), (False, True), (0, 1)):
            if prefix < chunks or not _small(scope):
                yield Job("dense-1", _asked((1,) * chunks, aux=aux, total=total, prefix=min(prefix, chunks)))
    yield Job("dense-1", _asked((1, 0), total=True))
    if not _small(scope):
        yield Job("dense-1", _asked((2, 1)))


def _state_1(scope: Scope) -> Iterator[Job]:
    for chunks, count, aux in itertools.product((1, 2), (0, 1, 2), (True, False)):
        if not _small(scope) or (chunks == 1 and aux):
            yield Job("state-1", _asked((1,) * chunks, aux=aux, state=(count,)), 1)
    yield Job("state-1", _asked((1,), state=(1,)), 1, SHARED)
    yield Job("state-1", _asked((0,), state=(1,)), 1)
    yield Job("state-1", _asked((1, 0), aux=False, state=(1,), total=True), 1)


def _state_2(scope: Scope) -> Iterator[Job]:
    counts = ((0, 0), (0, 1), (1, 0), (1, 1)) + (() if _small(scope) else ((2, 1), (2, 2)))
    for chunks, state in itertools.product((1, 2), counts):
        if not _small(scope) or chunks == 1:
            yield Job("state-2", _asked((1,) * chunks, state=state), 2)
    yield Job("state-2", _asked((1, 1), state=(1, 1)), 2, SHARED)


def _two_senders(scope: Scope) -> Iterator[Job]:
    if _small(scope):
        yield Job("two-senders", _asked((1,), aux=False), lanes=2, symmetric=True)
        return
    yield Job("two-senders", _asked((1, 1)), lanes=2, symmetric=True)
    yield Job("two-senders", _asked((1, 1), aux=False), lanes=2, symmetric=True)
    yield Job("two-senders", _asked((1, 1), state=(1,)), 1, SHARED, lanes=2, symmetric=True)
    yield Job("two-senders", _asked((1, 1), state=(0,)), 1, SHARED, lanes=2, symmetric=True)
    if scope == "deep":
        yield Job("two-senders", _asked((1, 1), state=(1,)), 1, lanes=2, symmetric=True, lazy=True)


def _disagree(scope: Scope) -> Iterator[Job]:
    pages = ((1,), (1, 1)) if _small(scope) else ((0,), (1,), (1, 1))
    sides = list(itertools.product(pages, (True, False), ((0,), (1,)) if _small(scope) else ((0,), (1,), (2,))))
    for (chunks, aux, state), (gives, gives_aux, gives_state) in itertools.product(sides, sides):
        for total in (False,) if _small(scope) else (False, True):
            request = Request(sum(chunks), gives, 0, aux, state, gives_aux, gives_state, total)
            if not request.agrees:
                yield Job("disagree", request, 1)


def _abort(scope: Scope) -> Iterator[Job]:
    chunks = (1,) if _small(scope) else (1, 1)
    budget = 3 if scope == "deep" else 2
    yield Job("abort", _asked(chunks, aux=not _small(scope)), budget=budget, faults=ABORTS, unordered=True)
    if not _small(scope):
        yield Job("abort", _asked(chunks, state=(1,)), 1, SHARED, budget=budget, faults=ABORTS, unordered=True)


def _fault_1(scope: Scope) -> Iterator[Job]:
    if _small(scope):
        yield Job("fault-1", _asked((1,), aux=False), budget=1, faults=ALL)
        if scope == "quick":
            yield Job("fault-1", _asked((1,)), budget=1, faults=ALL)
        return
    yield Job("fault-1", _asked((1, 1)), budget=1, faults=ALL, lazy=True)
    yield Job("fault-1", _asked((1, 1), state=(1,)), 1, SHARED, budget=1, faults=ALL)
    yield Job("fault-1", _asked((1, 1), aux=False), budget=1, faults=ALL)
    yield Job("fault-1", _asked((1,), aux=False, state=(1,)), 1, budget=1, faults=ALL)
    if scope == "deep":
        yield Job("fault-1", _asked((1, 1)), budget=1, faults=ALL)
        yield Job("fault-1", _asked((1, 1), state=(1,)), 1, budget=1, faults=ALL)


def _fault_2(scope: Scope) -> Iterator[Job]:
    if _small(scope):
        faults = FEW if scope == "mutant" else ALL
        yield Job("fault-2", _asked((0,), aux=False), budget=2, faults=faults)
        return
    yield Job("fault-2", _asked((1, 1)), 0, SHARED, budget=2, faults=ALL, lazy=True)
    yield Job("fault-2", _asked((1, 1), state=(1,)), 1, SHARED, budget=2, faults=ALL, lazy=True)
    if scope == "deep":
        yield Job("fault-2", _asked((1, 1)), 0, SEPARATE, budget=2, faults=ALL, lazy=True)


def _reuse(scope: Scope) -> Iterator[Job]:
    again, attempts = ((7, 0), (7, 0)), ((7, 0), (7, 1))
    late = frozenset({"decode_aborts", "frame_overtaken"})
    for keys in (again,) if scope == "mutant" else (again, attempts):
        faults = ABORTS | late if _small(scope) else ALL
        yield Job("reuse", _asked((1,), aux=False), keys=keys, budget=1, faults=faults)
    if not _small(scope):  # an abort that the next grant overtakes: the one way to ask twice for a room that is open
        yield Job("reuse", _asked((0,)), keys=again, budget=2, faults=late)


def _beside(scope: Scope) -> Iterator[Job]:
    keys, faults = ((7, 0), (8, 0)), ENDINGS if _small(scope) else ALL
    chunks = (0,) if _small(scope) else (1,)
    yield Job("beside", _asked(chunks, aux=False), keys=keys, budget=1, faults=faults, in_turn=False, lazy=True)


def _hold(_: Scope) -> Iterator[Job]:
    yield Job("hold", _asked((1,), state=(1,)), 1, unordered=True, hold=True)
    yield Job("hold", _asked((1,), aux=False), budget=1, faults=ABORTS, unordered=True, hold=True)


def _ranks(scope: Scope) -> Iterator[Job]:
    each, apart = (True,) * 4, (True, False, False, True)
    shapes = [Shape(p, d, (True, p == 1), fault) for p, d in ((1, 2), (2, 1)) for fault in ("", *RANK_FAULTS)]
    shapes += [Shape(1, 2, (True, True)), Shape(2, 1, (True, True), "decode aborts")]
    if scope != "mutant":
        shapes += [Shape(2, 2, each, in_time=True), Shape(2, 2, apart)]
    if not _small(scope):
        shapes += [Shape(2, 2, apart, fault, in_time=True) for fault in RANK_FAULTS]
    for shape in shapes:
        yield Job("ranks", _asked((1,), aux=False), shape=shape)


def _group(scope: Scope) -> Iterator[Job]:
    request = _asked((1,))  # no request matters to it
    alone = [SETUPS[name] for name in (QUICK if scope == "quick" else SETUPS)]
    for setup in SMALLEST if scope == "mutant" else alone:
        yield Job("group", request, group=setup)
    together = (*GROUPED, *LARGER) if scope == "deep" else GROUPED
    for shape, setup in together[: {"mutant": 1, "quick": 2}.get(scope)]:
        yield Job("group", request, shape=shape, group=setup)


def _alone(_: Scope) -> Iterator[Job]:
    yield Job("alone", _asked((1,)))  # no request matters to a machine by itself


_MAKERS = {
    "dense-1": _dense,
    "state-1": _state_1,
    "state-2": _state_2,
    "two-senders": _two_senders,
    "disagree": _disagree,
    "abort": _abort,
    "fault-1": _fault_1,
    "fault-2": _fault_2,
    "reuse": _reuse,
    "beside": _beside,
    "hold": _hold,
    "ranks": _ranks,
    "group": _group,
    "alone": _alone,
}
