"""The two memory tables: the lease (what decode exposes for one grant) and the drain (what prefill has posted for it).

A room and its memory have different lifetimes. A failed room ends at once; its destination ranges stay quarantined
until the writer has promised that nothing is posted any more, or is proven to be gone, or the orchestrator says that it
was fenced. No timer releases memory: the only deadline here repeats the ABORT.
"""

from __future__ import annotations

import msgspec

from ..protocol.events import Do, DrainEvent, LeaseEvent, Symbol, Timer
from .table import Kind, Row, Table, arm, go, ignore


class Lease(Symbol):
    """The states of one grant's destination ranges, on decode."""

    HELD = "not advertised yet: nobody can write"
    GRANTED = "advertised: the writer may write"
    LANDED = "every byte has landed: the contents are the caller's"
    QUARANTINED = "the room failed: a write may still land"
    RELEASED = "nobody can write any more"


class Drain(Symbol):
    """The states of what prefill has posted for one grant."""

    OPEN = "writes may be posted"
    VOID = "nothing more is posted; posted writes have not all settled"
    DRAINED = "nothing is posted and nothing will be"


class Always(Symbol):
    """The lease has no guards."""

    ALWAYS = "always"


class InFlight(Symbol):
    """What holds of a drain after an event."""

    IN_FLIGHT = "a posted write has not settled"
    IDLE = "every posted write has settled"


LeaseRow = Row[Lease, Always]
DrainRow = Row[Drain, InFlight]


def _lease_table() -> Table[Lease, LeaseEvent, Always]:
    cells: dict[tuple[Lease, LeaseEvent], tuple[LeaseRow, ...]] = {
        (state, event): (ignore(),) for state in Lease for event in LeaseEvent
    }
    cells[Lease.HELD, LeaseEvent.ADVERTISED] = (go(Lease.GRANTED),)
    cells[Lease.HELD, LeaseEvent.FAILED] = (go(Lease.RELEASED, Do.FREE),)
    cells[Lease.GRANTED, LeaseEvent.LANDED] = (go(Lease.LANDED, Do.FREE),)
    abort = (Do.SEND_ABORT, arm(Timer.ABORT_RETRY))
    cells[Lease.GRANTED, LeaseEvent.FAILED] = (go(Lease.QUARANTINED, *abort),)
    cells[Lease.QUARANTINED, LeaseEvent.RETRY] = (go(Lease.QUARANTINED, *abort),)
    cells[Lease.QUARANTINED, LeaseEvent.LINK_UP] = (go(Lease.QUARANTINED, *abort),)
    for proof in (LeaseEvent.ACKED, LeaseEvent.WRITER_GONE, LeaseEvent.FENCED):
        cells[Lease.GRANTED, proof] = (go(Lease.RELEASED, Do.FREE),)
        cells[Lease.QUARANTINED, proof] = (go(Lease.RELEASED, Do.DISARM, Do.FREE),)
    cells[Lease.LANDED, LeaseEvent.CLOSED] = (go(Lease.RELEASED),)
    return Table(
        name="lease",
        title="The lease: destination ranges of one grant, on decode",
        states=Lease,
        events=tuple(LeaseEvent),
        guards=Always,
        initial=Lease.HELD,
        terminal=frozenset({Lease.RELEASED}),
        cells=cells,
    )


def _drain_table() -> Table[Drain, DrainEvent, InFlight]:
    cells: dict[tuple[Drain, DrainEvent], tuple[DrainRow, ...]] = {
        (state, event): (ignore(),) for state in Drain for event in DrainEvent
    }
    cells[Drain.OPEN, DrainEvent.POSTED] = (go(Drain.OPEN),)
    cells[Drain.OPEN, DrainEvent.SETTLED] = (go(Drain.OPEN),)
    cells[Drain.OPEN, DrainEvent.FINISHED] = (go(Drain.VOID, guard=InFlight.IN_FLIGHT), go(Drain.DRAINED, Do.FREE))
    cells[Drain.OPEN, DrainEvent.VOIDED] = (
        go(Drain.VOID, guard=InFlight.IN_FLIGHT),
        go(Drain.DRAINED, Do.SEND_ACK, Do.FREE),
    )
    cells[Drain.VOID, DrainEvent.SETTLED] = (
        go(Drain.VOID, guard=InFlight.IN_FLIGHT),
        go(Drain.DRAINED, Do.SEND_ACK, Do.FREE),
    )
    cells[Drain.DRAINED, DrainEvent.VOIDED] = (go(Drain.DRAINED, Do.SEND_ACK),)  # acknowledging is idempotent
    return Table(
        name="drain",
        title="The drain: what prefill has posted for one grant",
        states=Drain,
        events=tuple(DrainEvent),
        guards=InFlight,
        initial=Drain.OPEN,
        terminal=frozenset({Drain.DRAINED}),
        cells=cells,
    )


LEASE = _lease_table()
DRAIN = _drain_table()
_LEASE = LEASE.compile()
_DRAIN = DRAIN.compile()
# Every step asks for these; see `ledger`.
_POSTED, _SETTLED, _OPEN = DrainEvent.POSTED, DrainEvent.SETTLED, Drain.OPEN
_ALWAYS, _IN_FLIGHT, _IDLE, _IGNORE = Always.ALWAYS, InFlight.IN_FLIGHT, InFlight.IDLE, Kind.IGNORE


def step_lease(lease: Lease, event: LeaseEvent) -> tuple[Lease, LeaseRow]:
    """One step of a lease: the next state and the row taken."""
    row = _LEASE[lease, event, _ALWAYS]
    return (lease if row.to is None else row.to), row


class DrainValue(msgspec.Struct, frozen=True):
    """A drain: its state and how many writes are posted and not settled."""

    state: Drain = DRAIN.initial
    posted: int = 0


def step_drain(drain: DrainValue, event: DrainEvent) -> tuple[DrainValue, DrainRow]:
    """One step of a drain: the next value and the row taken."""
    posted = drain.posted
    if event is _POSTED and drain.state is _OPEN:
        posted += 1
    elif event is _SETTLED and posted:
        posted -= 1
    row = _DRAIN[drain.state, event, _IN_FLIGHT if posted else _IDLE]
    if row.kind is _IGNORE:
        return drain, row
    assert row.to is not None
    return DrainValue(row.to, posted), row
