"""Faults of writes, notifications and processes; and what the world does after them, free of charge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .carriers import BAD, IN_FLIGHT, ORPHAN, Label, may_land, with_flight
from .faults import ANNOUNCED, HARMLESS, SILENT, Faulty, fault, replaced, step_decode, step_prefill
from .glue import DEAD, EOF, STALLED, UP, Broken, Sent
from .prefill_values import start
from .system import State, System


class World(NamedTuple):
    """Something that the world does after a fault."""

    label: Label
    state: State
    broken: Broken | None = None


@fault
def post_error(system: System, state: State) -> Iterator[Faulty]:
    """A write cannot be posted, or nobody knows whether some of it was."""
    for lane in range(system.lanes):
        prefill = system.prefill(state[2 + 3 * lane])
        for number, one in prefill.posts if prefill.running else ():
            for uncertain in (False, True):
                words = f"{one.text}: it fails" + (", some of it may be under way" if uncertain else "")
                label = Label("prefill", "fault", words)
                after = step_prefill(system, state, lane, label, ("post_error", number, uncertain), ANNOUNCED)
                yield after._replace(
                    state=_settled_badly(system, after.state, lane, state) if uncertain else after.state
                )


def _settled_badly(system: System, state: State, lane: int, before: State) -> State:
    """A write that failed when it was posted has nothing to settle; its bytes may land."""
    at = 4 + 3 * lane
    value, old = system.flights.values[state[at]], system.flights.values[before[at]]
    for use, row in enumerate(value):
        for piece, flight in enumerate(row):
            if flight != old[use][piece]:
                value = with_flight(value, use, piece, flight._replace(state=BAD))
    return replaced(state, at, system.flights.number(value))


@fault
def write_failed(system: System, state: State) -> Iterator[Faulty]:
    """A posted write ends with an error; what was under way may still land."""
    for lane in range(system.lanes):
        at = 4 + 3 * lane
        value = system.flights.values[state[at]]
        for use, row in enumerate(value):
            for piece, flight in enumerate(row):
                if flight.state == IN_FLIGHT and system.prefill(state[at - 2]).running:
                    bad = system.flights.number(with_flight(value, use, piece, flight._replace(state=BAD)))
                    label = Label("prefill", "fault", f"write {piece} ends with an error")
                    event = ("settled", use, piece, False)
                    yield step_prefill(system, replaced(state, at, bad), lane, label, event, ANNOUNCED)


@fault
def notification_lost(system: System, state: State) -> Iterator[Faulty]:
    """A notification does not arrive."""
    for lane in range(system.lanes):
        for what, _, label, _, _, _, after in system.flying(state[4 + 3 * lane]):
            if what == "note":
                lost = Label("wire", "fault", f"the notification of {label.text} is lost")
                yield Faulty(lost, replaced(state, 4 + 3 * lane, after), SILENT)


@fault
def notification_repeated(system: System, state: State) -> Iterator[Faulty]:
    """A notification arrives, and will arrive once more."""
    if not system.decode(state[0]).running:
        return
    for lane in range(system.lanes):
        for what, _, label, _, use, piece, after in system.flying(state[4 + 3 * lane]):
            if what == "note":
                value = system.flights.values[after]
                again = with_flight(value, use, piece, value[use][piece]._replace(noted=False))
                result = system.step_decode(state[0], system.note(state[0], lane, use, piece))
                landed = system.decoded(state, result, lane, -1, system.flights.number(again))
                yield Faulty(
                    label._replace(text=f"{label.text}, not for the last time"), landed, HARMLESS, broken=result.broken
                )


@fault
def prefill_dies(system: System, state: State) -> Iterator[Faulty]:
    """Prefill's process is killed: what it had posted lands no more, its kernel closes its connections."""
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        if system.prefill(state[at]).alive:
            yield Faulty(Label("prefill", "fault", "is killed"), _dead_prefill(system, state, lane), ANNOUNCED)


def _dead_prefill(system: System, state: State, lane: int, *, seen: bool = True) -> State:
    at = 2 + 3 * lane
    side = system.prefills.values[state[at]]
    dead = start(system.plans, side.life)._replace(run=DEAD)
    value = system.wires.values[state[at + 1]]._replace(to_prefill=(), stray_to_prefill=())
    if seen and system.decode(state[0]).up[lane] and not any(sent.end for sent in value.to_decode):
        value = value._replace(to_decode=(*value.to_decode, Sent(None, end=EOF)))
    new = list(state)
    new[at : at + 3] = [
        system.prefills.number(dead),
        system.wires.number(value),
        _stopped(system, state[at + 2], ORPHAN),
    ]
    return tuple(new)


def _stopped(system: System, flights: int, left: str = IN_FLIGHT) -> int:
    """No byte lands any more. left: what becomes of what was in flight."""
    value = system.flights.values[flights]
    for use, row in enumerate(value):
        sizes = [len(write.fills) for write in system.plans[use].all_writes]
        for piece, flight in enumerate(row):
            stopped = flight.stopped or may_land(flight, sizes[piece])
            now = left if flight.state == IN_FLIGHT else flight.state
            value = with_flight(value, use, piece, flight._replace(state=now, stopped=stopped))
    return system.flights.number(value)


@fault
def decode_dies(system: System, state: State) -> Iterator[Faulty]:
    """Decode's process is killed: its memory is gone, its kernel closes its connections."""
    if system.decodes.values[state[0]].run == DEAD:
        return
    after = step_decode(system, state, Label("decode", "fault", "is killed"), ("run", DEAD), ANNOUNCED)
    new = list(after.state)
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        value = system.wires.values[new[at + 1]]._replace(to_decode=(), stray_to_decode=())
        if system.prefill(new[at]).link and not any(sent.end for sent in value.to_prefill):
            value = value._replace(to_prefill=(*value.to_prefill, Sent(None, end=EOF)))
        new[at + 1], new[at + 2] = system.wires.number(value), _stopped(system, new[at + 2])
    yield after._replace(state=tuple(new))


@fault
def stands_still(system: System, state: State) -> Iterator[Faulty]:
    """A process stands still, without a word."""
    if system.decode(state[0]).running:
        yield step_decode(system, state, Label("decode", "fault", "stands still"), ("run", STALLED), SILENT)
    for lane in range(system.lanes):
        if system.prefill(state[2 + 3 * lane]).running:
            label = Label("prefill", "fault", "stands still")
            yield step_prefill(system, state, lane, label, ("run", STALLED), SILENT)


def world(system: System, state: State) -> Iterator[World]:
    """What may follow a fault: a stalled process goes on, or is fenced; a dead one is started again."""
    decode = system.decodes.values[state[0]]
    if decode.run == STALLED:
        result = system.step_decode(state[0], system.events.number(("run", UP)))
        yield World(Label("decode", "state", "goes on"), system.decoded(state, result))
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        side = system.prefills.values[state[at]]
        if side.run == STALLED:
            result = system.step_prefill(state[at], system.events.number(("run", UP)))
            yield World(Label("prefill", "state", "goes on"), system.prefilled(state, result, lane))
            if decode.run == UP and not decode.links[lane].up:
                fenced = _dead_prefill(system, state, lane, seen=False)
                told = system.step_decode(fenced[0], system.events.number(("fenced", lane)))
                label = Label("decode caller", "call", "prefill was fenced", "decode")
                yield World(label, system.decoded(fenced, told, lane), told.broken)
        elif side.run == DEAD and len(system.plans) > 1 and decode.records[-1] is None and system.setup.in_turn:
            yield World(Label("prefill", "state", "is started again"), _restarted(system, state, lane))


def _restarted(system: System, state: State, lane: int) -> State:
    at = 2 + 3 * lane
    fresh = start(system.plans, system.prefills.values[state[at]].life + 1)
    last = len(system.plans) - 1
    over = tuple(None if use == last else system.closed_record() for use in range(len(system.plans)))
    return replaced(state, at, system.prefills.number(fresh._replace(records=over)))
