"""What the tests of the tables share: the six of them, the reasons, and small worlds of rooms to explore."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

from samples import manifest

from kvrooms.protocol.events import (
    ENDINGS,
    Accepted,
    Bound,
    Close,
    Declared,
    Fail,
    Held,
    Idle,
    Landed,
    Queued,
    RoomEvent,
    Settled,
    Timer,
)
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Declaration, Manifest
from kvrooms.protocol.notify import PartKind
from kvrooms.statemachine import group, memory, rooms
from kvrooms.statemachine.table import Table

AnyTable = Table[Any, Any, Any]
ROOMS: list[AnyTable] = [rooms.DECODE_ROOM, rooms.PREFILL_ROOM]
GROUP: list[AnyTable] = [group.DECISION, group.STANDING]
TABLES: list[AnyTable] = [*ROOMS, memory.LEASE, memory.DRAIN, *GROUP]

REASONS = {
    RoomEvent.POST_ERROR: Reason.SEND_ERROR,
    RoomEvent.PEER_LOST: Reason.PEER_LOST,
    RoomEvent.PEER_FAILED: Reason.PEER_FAILED,
    RoomEvent.VIOLATION: Reason.PROTOCOL,
    RoomEvent.ABORT: Reason.ABORTED,
    RoomEvent.DEADLINE: Reason.DEADLINE_MOVING,
}
FAILS = tuple(Fail(event, REASONS[event]) for event in ENDINGS)

Item = tuple[int, PartKind, int, int]
"""One position owed by, or to, one rank: rank, part, component, position."""

V = TypeVar("V", bound=Hashable)
E = TypeVar("E")


def items_of(rank: int, wanted: Manifest) -> list[Item]:
    """Every position of a manifest, told from its fields and not by the ledger."""
    found: list[Item] = [(rank, PartKind.KV, 0, p) for a, b in wanted.kv for p in range(a, b)]
    found += [(rank, PartKind.AUX, 0, 0)] if wanted.aux else []
    found += [(rank, PartKind.STATE, c, p) for c, (_, n) in enumerate(wanted.state) for p in range(n)]
    return found


class Small(NamedTuple):
    """A small room: the manifest of each rank of the other side."""

    manifests: tuple[Manifest, ...]

    @property
    def items(self) -> frozenset[Item]:
        """All positions of all ranks."""
        return frozenset(item for rank, wanted in enumerate(self.manifests) for item in items_of(rank, wanted))


def one_rank() -> list[Manifest]:
    """0 to 2 pages, each its own chunk; aux or none; 0 to 2 components of 1 or 2 indices."""
    states = ((), (1,), (2,), (1, 1), (0, 1))
    return [manifest(pages, aux, state) for pages in range(3) for aux in (False, True) for state in states]


def small_rooms() -> list[Small]:
    """Every manifest from one rank; and from two ranks, alike or different."""
    whole, half, late = manifest(1, True, (1,)), manifest(2, False, (0, 1)), manifest(2, True, (), first=1)
    empty, aux = manifest(0, False), manifest(0, True)
    pairs = [(whole, whole), (half, half), (whole, half), (late, empty), (empty, aux), (empty, empty), (aux, late)]
    return [Small((wanted,)) for wanted in one_rank()] + [Small(pair) for pair in pairs]


def chunks(small: Small) -> list[tuple[Item, int]]:
    """Arrivals: each position by itself, and the first two pages of a rank in one chunk; (first item, count)."""
    found = [(item, 1) for item in sorted(small.items)]
    for rank, wanted in enumerate(small.manifests):
        found += [((rank, PartKind.KV, 0, 0), 2)] if wanted.kv == ((0, 2),) else []
        found += [((rank, PartKind.STATE, c, 0), 2) for c, (_, n) in enumerate(wanted.state) if n == 2]
    return found


def items_in(chunk: tuple[Item, int]) -> frozenset[Item]:
    """The positions of a chunk."""
    (rank, part, component, first), count = chunk
    return frozenset((rank, part, component, first + i) for i in range(count))


def landed(chunk: tuple[Item, int]) -> Landed:
    """The decode event of a chunk."""
    (rank, part, component, first), count = chunk
    return Landed(rank, part, component, first, first + count)


def settled(chunk: tuple[Item, int]) -> Settled:
    """The prefill event of a chunk."""
    (rank, part, component, first), count = chunk
    return Settled(rank, part, component, first, first + count)


def decode_events(small: Small) -> list[Accepted | Landed | Fail | Close]:
    """Everything that can happen to a small room on decode."""
    accepted = [Accepted(rank) for rank in range(len(small.manifests))]
    return [*accepted, *map(landed, chunks(small)), *FAILS, Close()]


def right(small: Small) -> Declaration:
    """What prefill must declare so that a small room's first rank agrees."""
    wanted = small.manifests[0]
    return Declaration(wanted.pages, wanted.aux, wanted.state)


def prefill_events(small: Small, declarations: Iterable[Declaration]) -> list[Any]:
    """Everything that can happen to a small room on prefill, with these declarations of its caller."""
    bound = [Bound(rank, wanted) for rank, wanted in enumerate(small.manifests)]
    return [
        *bound,
        *map(Declared, declarations),
        Held(),
        Queued(),
        Idle(),
        *map(settled, chunks(small)),
        *FAILS,
        Close(),
    ]


def explore(start: V, events: Iterable[E], step: Callable[[V, E], V | None]) -> set[V]:
    """Every value reachable from `start`, breadth first; `step` gives None where an event is not possible."""
    seen, queue, events = {start}, deque([start]), list(events)
    while queue:
        value = queue.popleft()
        for event in events:
            after = step(value, event)
            if after is not None and after not in seen:
                seen.add(after)
                queue.append(after)
    return seen


def phase_timer(armed: frozenset[Timer], timer: Timer) -> frozenset[Timer]:
    """The deadlines after ARM(timer): a room has its cap and at most one phase deadline."""
    return (armed & {Timer.CAP}) | {timer}
