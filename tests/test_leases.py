"""The lease and the drain over every sequence of events: memory goes back once, and only when nobody can touch it.

Both sides are followed by a history that is told from the events alone. Every sequence of up to six events is run, and
then, because the machines are finite, every sequence whatsoever: all that differs is the state and a bounded history.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import pytest
from mutants import Mutant, dies, named
from tables import explore

from kvrooms.protocol.events import Command, Do, DrainEvent, LeaseEvent, Timer
from kvrooms.statemachine import memory
from kvrooms.statemachine.memory import Always, Drain, DrainValue, InFlight, Lease
from kvrooms.statemachine.table import Kind, Row, go, ignore

PROOFS = {LeaseEvent.ACKED, LeaseEvent.WRITER_GONE, LeaseEvent.FENCED}
DEPTH = 6


# -- the lease -------------------------------------------------------------------------------------------------------


class LeaseRun(NamedTuple):
    """A lease after some events: could anybody ever write, has the room failed, has the memory gone back."""

    state: Lease = Lease.HELD
    advertised: bool = False
    failed: bool = False
    freed: bool = False
    armed: bool = False


def lease_step(run: LeaseRun, event: LeaseEvent) -> LeaseRun:
    """One event; what must hold of it is asserted here."""
    state, row = memory.step_lease(run.state, event)
    done = Counter(command.do for command in row.commands)
    freed_now = done[Do.FREE] == 1
    alive = not run.freed
    failed = run.failed or (alive and event is LeaseEvent.FAILED)
    advertised = run.advertised or (alive and event is LeaseEvent.ADVERTISED and not failed)
    if freed_now:  # S3
        assert not run.freed, "handed back twice"
        if run.advertised:
            assert event in PROOFS or (event is LeaseEvent.LANDED and not run.failed), f"handed back by {event.name}"
        else:
            assert event is LeaseEvent.FAILED
    else:  # L5: nothing else is waited for
        proof = run.advertised and (event in PROOFS or (event is LeaseEvent.LANDED and not run.failed))
        assert run.freed or not proof, f"{event.name} did not hand back"
    if event in (LeaseEvent.RETRY, LeaseEvent.LINK_UP):  # repeats the ABORT and nothing else
        assert state is run.state
        waiting = run.advertised and run.failed and not run.freed
        assert list(row.commands) == ([Command(Do.SEND_ABORT), Command(Do.ARM, Timer.ABORT_RETRY)] if waiting else [])
    armed = (run.armed or done[Do.ARM] > 0) and not done[Do.DISARM]
    freed = run.freed or freed_now
    assert armed == (advertised and failed and not freed)  # the ABORT is repeated exactly in quarantine
    assert done[Do.SEND_ABORT] == done[Do.ARM]
    assert (state is Lease.QUARANTINED) == armed
    assert (state in (Lease.LANDED, Lease.RELEASED)) == freed
    assert (state is Lease.HELD) == (not advertised and not freed)
    if row.kind is Kind.IGNORE:
        assert state is run.state
    return LeaseRun(state, advertised, failed, freed, armed)


def check_every_lease() -> None:
    reached = explore(LeaseRun(), LeaseEvent, lease_step)
    assert {run.state for run in reached} == set(Lease)


def test_every_sequence_of_lease_events() -> None:
    frontier = Counter([LeaseRun()])
    for depth in range(DEPTH):
        following: Counter[LeaseRun] = Counter()
        for (run, ways), event in itertools.product(frontier.items(), LeaseEvent):
            following[lease_step(run, event)] += ways
        frontier = following
        assert frontier.total() == len(LeaseEvent) ** (depth + 1)


def test_lease_events_of_any_number() -> None:
    check_every_lease()


def test_the_ways_out_of_each_lease_state() -> None:
    out = {
        state: {event.name for event in LeaseEvent if memory.step_lease(state, event)[0] is not state}
        for state in Lease
    }  # fmt: skip
    proofs = {"ACKED", "WRITER_GONE", "FENCED"}
    assert out == {
        Lease.HELD: {"ADVERTISED", "FAILED"},
        Lease.GRANTED: {"LANDED", "FAILED", *proofs},
        Lease.LANDED: {"CLOSED"},
        Lease.QUARANTINED: proofs,
        Lease.RELEASED: set(),
    }


FREE_ON_RETRY: Row[Lease, Always] = go(Lease.RELEASED, Do.DISARM, Do.FREE)
FREE_AGAIN: Row[Lease, Always] = go(Lease.RELEASED, Do.FREE)
SILENT: Row[Lease, Always] = go(Lease.QUARANTINED)


@pytest.mark.parametrize(
    ("state", "event", "row"),
    [
        (Lease.QUARANTINED, LeaseEvent.RETRY, FREE_ON_RETRY),  # a timer that releases memory
        (Lease.QUARANTINED, LeaseEvent.LINK_UP, FREE_ON_RETRY),
        (Lease.QUARANTINED, LeaseEvent.CLOSED, FREE_ON_RETRY),
        (Lease.QUARANTINED, LeaseEvent.LANDED, FREE_ON_RETRY),  # all has landed: other writes may still come
        (Lease.QUARANTINED, LeaseEvent.RETRY, SILENT),
        (Lease.QUARANTINED, LeaseEvent.ACKED, FREE_AGAIN),  # leaves the retry armed
        (Lease.QUARANTINED, LeaseEvent.FENCED, ignore()),
        (Lease.GRANTED, LeaseEvent.FAILED, FREE_AGAIN),  # what everybody does
        (Lease.GRANTED, LeaseEvent.FAILED, SILENT),
        (Lease.GRANTED, LeaseEvent.CLOSED, FREE_AGAIN),
        (Lease.GRANTED, LeaseEvent.WRITER_GONE, ignore()),
        (Lease.HELD, LeaseEvent.WRITER_GONE, FREE_AGAIN),
        (Lease.HELD, LeaseEvent.ADVERTISED, ignore()),
        (Lease.LANDED, LeaseEvent.CLOSED, FREE_AGAIN),
        (Lease.LANDED, LeaseEvent.FAILED, SILENT),
        (Lease.RELEASED, LeaseEvent.ACKED, FREE_AGAIN),
        (Lease.RELEASED, LeaseEvent.RETRY, go(Lease.RELEASED, Do.SEND_ABORT)),
    ],
    ids=lambda value: value.name if isinstance(value, (Lease, LeaseEvent)) else "",
)
def test_lease_mutants_die(
    state: Lease, event: LeaseEvent, row: Row[Lease, Always], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory._LEASE, (state, event, Always.ALWAYS), row)
    dies(check_every_lease)


# -- the drain -------------------------------------------------------------------------------------------------------


class DrainRun(NamedTuple):
    """A drain after some events: how many writes are in flight, may more be posted, has the memory gone back."""

    value: DrainValue = DrainValue()
    flying: int = 0
    void: bool = False
    freed: bool = False
    finished: bool = False


def drain_step(run: DrainRun, event: DrainEvent) -> DrainRun | None:
    """One event; None where it is not possible: nothing settles that does not fly, nothing is posted when void."""
    if event is DrainEvent.SETTLED and not run.flying:
        return None
    if event is DrainEvent.POSTED and (run.void or run.flying == 3):
        assert memory.step_drain(run.value, event)[0] is run.value or not run.void
        return None
    value, row = memory.step_drain(run.value, event)
    done = Counter(command.do for command in row.commands)
    flying = run.flying + (event is DrainEvent.POSTED) - (event is DrainEvent.SETTLED)
    void = run.void or event in (DrainEvent.VOIDED, DrainEvent.FINISHED)
    finished = run.finished or event is DrainEvent.FINISHED
    freed = run.freed or done[Do.FREE] == 1
    drained = void and flying == 0
    assert value.posted == flying
    assert (value.state is Drain.DRAINED) == drained == freed
    assert (value.state is Drain.OPEN) == (not void)
    if done[Do.FREE]:
        assert not run.freed, "handed back twice"
    if done[Do.SEND_ACK]:
        assert drained, "a promise while a write flies"
    if event is DrainEvent.VOIDED and drained:
        assert done[Do.SEND_ACK] == 1, "an ABORT is acknowledged however often it comes"
    if drained and not run.freed and not finished:
        assert done[Do.SEND_ACK] == 1, "the acknowledgement follows the last write"
    assert set(done) <= {Do.FREE, Do.SEND_ACK}
    return DrainRun(value, flying, void, freed, finished)


def check_every_drain() -> None:
    reached = explore(DrainRun(), DrainEvent, drain_step)
    assert {run.value.state for run in reached} == set(Drain)
    assert max(run.flying for run in reached) == 3


def test_every_sequence_of_drain_events() -> None:
    runs = 0
    for events in itertools.product(DrainEvent, repeat=DEPTH):
        run: DrainRun | None = DrainRun()
        for event in events:
            run = drain_step(run, event) if run else None
        runs += run is not None
    assert runs > 200
    check_every_drain()


def test_what_cannot_happen_changes_nothing() -> None:
    """A write reported settled twice, or posted after the end, is a fault of ours: it is counted, and harms nothing."""
    opened = DrainValue()
    assert memory.step_drain(opened, DrainEvent.SETTLED)[0] == opened
    drained, _ = memory.step_drain(opened, DrainEvent.VOIDED)
    for event in (DrainEvent.SETTLED, DrainEvent.POSTED, DrainEvent.FINISHED):
        after, row = memory.step_drain(drained, event)
        assert after is drained
        assert row.kind is Kind.IGNORE


@pytest.mark.parametrize(
    ("state", "event", "guard", "row"),
    [
        (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT, go(Drain.DRAINED, Do.SEND_ACK, Do.FREE)),  # acks too early
        (Drain.OPEN, DrainEvent.VOIDED, InFlight.IN_FLIGHT, go(Drain.VOID, Do.SEND_ACK)),
        (Drain.OPEN, DrainEvent.VOIDED, InFlight.IDLE, go(Drain.DRAINED, Do.FREE)),  # never acknowledges
        (Drain.OPEN, DrainEvent.FINISHED, InFlight.IN_FLIGHT, go(Drain.DRAINED, Do.FREE)),
        (Drain.OPEN, DrainEvent.POSTED, InFlight.IN_FLIGHT, ignore()),
        (Drain.VOID, DrainEvent.SETTLED, InFlight.IN_FLIGHT, go(Drain.DRAINED, Do.SEND_ACK, Do.FREE)),
        (Drain.VOID, DrainEvent.SETTLED, InFlight.IDLE, ignore()),
        (Drain.VOID, DrainEvent.VOIDED, InFlight.IN_FLIGHT, go(Drain.VOID, Do.SEND_ACK)),
        (Drain.DRAINED, DrainEvent.VOIDED, InFlight.IDLE, ignore()),  # acknowledges only once
        (Drain.DRAINED, DrainEvent.VOIDED, InFlight.IDLE, go(Drain.DRAINED, Do.SEND_ACK, Do.FREE)),
        (Drain.DRAINED, DrainEvent.POSTED, InFlight.IDLE, go(Drain.OPEN)),
    ],
)
def test_drain_mutants_die(
    state: Drain, event: DrainEvent, guard: InFlight, row: Row[Drain, InFlight], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory._DRAIN, (state, event, guard), row)
    dies(check_every_drain)


@named(
    [
        Mutant(memory, "step_drain", "posted -= 1", "posted -= 2"),
        Mutant(memory, "step_drain", "posted += 1", "posted = 1"),
        Mutant(memory, "step_drain", "_IN_FLIGHT if posted else", "_IN_FLIGHT if drain.posted else"),
    ]
)
def test_mutants_of_the_count_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_every_drain)
