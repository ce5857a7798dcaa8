"""Each machine alone, against every event in every value that it can take: also what no peer and no engine would do.

The two-sided exploration reaches the cells that the engine can reach. Here every cell of the tables is taken, and
what must hold of a machine whatever happens to it is judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from ...protocol.events import (
    ENDINGS,
    Accepted,
    Bound,
    Close,
    Command,
    Declared,
    Do,
    DrainEvent,
    Fail,
    Held,
    Idle,
    Landed,
    LeaseEvent,
    Located,
    Queued,
    RoomEvent,
    Settled,
)
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration, Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ..evidence import Counterexample, Step
from .alone_group import Deciding, Standing
from .glue import Broken, Cells
from .premises import AGREES, FAILS, LATE, MEMORY, WAITS, steps_of
from .search import Found

V = TypeVar("V", bound=Hashable)
_POSTED_MAX = 2
_WANTED = Manifest(2, ((0, 2),), ("token",), (("swa", 1), ("index", 1)))
_OTHER = Manifest(1, ((0, 1),), ("token",), (("swa", 1), ("index", 2)))
_PARTS = (
    (PartKind.KV, 0, 0),
    (PartKind.KV, 0, 1),
    (PartKind.AUX, 0, 0),
    (PartKind.STATE, 0, 0),
    (PartKind.STATE, 1, 0),
)
_EXITS = (RoomEvent.DEADLINE, RoomEvent.ABORT, RoomEvent.PEER_LOST)
_REASONS = dict(zip(ENDINGS, (Reason.SEND_ERROR, Reason.PEER_LOST, Reason.PEER_FAILED, Reason.PROTOCOL), strict=False))
_FAILS = tuple(Fail(event, _REASONS.get(event, Reason.ABORTED)) for event in ENDINGS)
_PROOFS = (LeaseEvent.ACKED, LeaseEvent.WRITER_GONE, LeaseEvent.FENCED)
_MAY_BE_WRITTEN = (memory.Lease.GRANTED, memory.Lease.QUARANTINED)


class Alone:
    """The search of all machines. `run` gives what it has found."""

    def __init__(self) -> None:
        self._cells = Cells()
        self._broken: dict[str, Counterexample] = {}
        self._states = 0
        self._steps = 0

    def run(self) -> Found:
        """Explore them."""
        one, two = (_WANTED,), (_OTHER, _OTHER)
        self._walk("decode room alone", rooms.decode_room(), _decode_events(one, _PARTS), self._decode)
        self._walk(
            "decode room of two senders alone", rooms.decode_room(), _decode_events(two, _PARTS[::2]), self._decode
        )
        self._walk("prefill room alone", rooms.prefill_room(), _prefill_events(), self._prefill)
        self._walk("prefill room of two receivers alone", rooms.prefill_room(), _two_receivers(), self._prefill)
        self._walk("lease alone", memory.LEASE.initial, list(LeaseEvent), self._lease)
        self._walk("drain alone", memory.DrainValue(), list(DrainEvent), self._drain)
        for group in (Deciding(), Standing()):
            self._walk(group.name, group.start, group.events, partial(group.step, self._cells))
        cells = dict(self._cells.visits)
        by_steps = {"A1": AGREES, "L1": f"{FAILS}|{WAITS}", "S2": LATE, "S3": MEMORY, "C2": FAILS}
        checked = {name: steps_of(cells, which) for name, which in by_steps.items()}
        return Found(self._states, self._steps, complete=True, checked=checked, broken=self._broken, cells=cells)

    def _walk(
        self, name: str, start: V, events: Iterable[Any], step: Callable[[V, Any], tuple[V, list[Broken]] | None]
    ) -> None:
        """Every value that can be reached. Shortest paths come by themselves: breadth first."""
        paths: dict[V, tuple[Any, ...]] = {start: ()}
        queue, events = deque([start]), list(events)
        while queue:
            value = queue.popleft()
            for event in events:
                self._steps += 1
                found = step(value, event)
                if found is None:
                    continue
                after, broken = found
                for one in broken:
                    self._breaks(one, name, (*paths[value], event))
                if after not in paths:
                    paths[after] = (*paths[value], event)
                    queue.append(after)
        self._states += len(paths)

    def _breaks(self, broken: Broken, name: str, path: tuple[Any, ...]) -> None:
        steps = tuple(Step(float(i), name, "state", _words(event)) for i, event in enumerate(path, 1))
        found = Counterexample(broken.property, broken.summary, f"explore alone: {name}", {}, steps)
        self._broken.setdefault(broken.property, found)

    # -- the machines --------------------------------------------------------------------------------------------

    def _decode(self, room: rooms.DecodeRoom, event: Any) -> tuple[rooms.DecodeRoom, list[Broken]]:
        after, row = rooms.step_decode(room, event)
        self._cells.visit(rooms.DECODE_ROOM, room.phase, event.KIND)
        broken = list(_room("the room on decode", room, after, event, row.commands))
        freed = any(command.do is Do.LEASE_LANDED for command in row.commands)
        if freed != (after.phase is Phase.DONE and room.phase is not Phase.DONE):
            broken.append(Broken("S3", f"{_words(event)} in {room.phase.value} gives LEASE_LANDED: {freed}"))
        return after, broken

    def _prefill(self, room: rooms.PrefillRoom, event: Any) -> tuple[rooms.PrefillRoom, list[Broken]]:
        after, row = rooms.step_prefill(room, event)
        self._cells.visit(rooms.PREFILL_ROOM, room.phase, event.KIND)
        return after, list(_room("the room on prefill", room, after, event, row.commands))

    def _lease(self, lease: memory.Lease, event: LeaseEvent) -> tuple[memory.Lease, list[Broken]]:
        after, row = memory.step_lease(lease, event)
        self._cells.visit(memory.LEASE, lease, event)
        free = any(command.do is Do.FREE for command in row.commands)
        leaves = lease in _MAY_BE_WRITTEN and after not in _MAY_BE_WRITTEN
        landed = event is LeaseEvent.LANDED and lease is memory.Lease.GRANTED
        broken = []
        if (free or leaves) and lease in _MAY_BE_WRITTEN and event not in _PROOFS and not landed:
            words = f"a lease that is {lease.name} is {after.name} after {event.name}, which proves nothing"
            broken.append(Broken("S3", words))
        return after, broken

    def _drain(self, drain: memory.DrainValue, event: DrainEvent) -> tuple[memory.DrainValue, list[Broken]] | None:
        if event is DrainEvent.POSTED and drain.posted == _POSTED_MAX:
            return None
        if event is DrainEvent.SETTLED and not drain.posted and drain.state is not memory.Drain.DRAINED:
            return None  # nothing is posted that could settle
        after, row = memory.step_drain(drain, event)
        self._cells.visit(memory.DRAIN, drain.state, event)
        given = {command.do for command in row.commands}
        broken = []
        if given & {Do.FREE, Do.SEND_ACK} and (after.posted or after.state is not memory.Drain.DRAINED):
            words = (
                f"{event.name} of a drain that is {drain.state.name} frees or acknowledges: {after.posted} in flight"
            )
            broken.append(Broken("S3", words))
        if drain.state is memory.Drain.VOID and after.posted > drain.posted:
            broken.append(Broken("S3", "a write is posted for a grant that is void"))
        return after, broken


def _room(who: str, before: Any, after: Any, event: Any, commands: tuple[Command, ...]) -> Iterator[Broken]:
    """What holds of every step of a room."""
    given = [command.do for command in commands]
    if before.phase in TERMINAL:
        if (after.phase, after.cause) != (before.phase, before.cause) or Do.REPORT in given:
            yield Broken("S2", f"{who} was {before.phase.value}, and {_words(event)} changed it")
        return
    if isinstance(event, Fail) and event.KIND in _EXITS and after.phase is not Phase.FAILED:
        yield Broken("L1", f"{who} is in {before.phase.value}, and {event.KIND.name} does not end it")
    if isinstance(event, Fail) and after.phase is Phase.FAILED and after.cause is not event.reason:
        yield Broken("C2", f"{who} failed by {_words(event)}, and its cause is {after.cause}")
    ended = after.phase in TERMINAL
    if given.count(Do.REPORT) != ended:
        yield Broken(
            "C2", f"{who} is {after.phase.value} after {_words(event)} and is reported {given.count(Do.REPORT)} times"
        )
    elif ended and Do.DISARM not in given[: given.index(Do.REPORT)]:
        yield Broken("C2", f"{who} is reported before its deadlines are disarmed ({_words(event)})")


def _decode_events(senders: tuple[Manifest, ...], parts: tuple[tuple[PartKind, int, int], ...]) -> list[Any]:
    ranks = range(len(senders))
    landed = [Landed(rank, part, component, at, at + 1) for rank in ranks for part, component, at in parts]
    return [Located(senders), *(Accepted(rank) for rank in ranks), *landed, *_FAILS, Close()]


def _two_receivers() -> list[Any]:
    settled = [Settled(rank, part, component, at, at + 1) for rank in (0, 1) for part, component, at in _PARTS[::2]]
    declared = [Declared(Declaration(_OTHER.pages, _OTHER.aux, state)) for state in (_OTHER.state, _WANTED.state)]
    bound = [Bound(rank, _OTHER, 2) for rank in (0, 1)]
    return [*bound, *declared, Queued(), Idle(), *settled, *_FAILS, Close()]


def _prefill_events() -> list[Any]:
    settled = [Settled(0, part, component, at, at + 1) for part, component, at in _PARTS]
    declared = [Declaration(2, None, None), Declaration(None, ("token",), None), Declaration(None, None, _WANTED.state)]
    return [
        Bound(0, _WANTED),
        Bound(0, _OTHER),
        *(Declared(one) for one in declared),
        Queued(),
        Held(),
        Idle(),
        *settled,
        *_FAILS,
        Close(),
    ]


def _words(event: Any) -> str:
    if isinstance(event, (LeaseEvent, DrainEvent)):
        return event.name
    if isinstance(event, (Landed, Settled)):
        return f"{event.KIND.name} {event.part.name} {event.start}"
    return str(event.KIND.name)
