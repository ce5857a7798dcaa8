"""What can go wrong, each fault by its name: what it does to a global state, and how it makes itself known.

Harmless faults (severity 1) must change nothing for anybody; announced ones (2) must end every room that they concern
without a timer; silent ones (3) may need one. A process that stands still comes back or never does (`world`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ...protocol import notify, wire
from ...protocol.failure import Reason
from ...protocol.notify import Part, PartKind
from ...protocol.events import RoomEvent as On
from .carriers import BAD, IN_FLIGHT, Label, Wire, may_land, taken, with_flight, with_stray
from .glue import CUT, DEAD, EOF, STALLED, UP, Broken, Sent
from .prefill_side import PARKED, start
from .scenario import TOKEN
from .system import Budget, State, System

HARMLESS, ANNOUNCED, SILENT = 1, 2, 3
STRANGE = 9
"""A use, and a grant number, that nobody here has."""


class Faulty(NamedTuple):
    """One fault that can happen now. use: the one use that it concerns, else None. mute: whose caller falls silent."""

    label: Label
    state: State
    severity: int
    use: int | None = None
    broken: Broken | None = None
    mute: tuple[str, ...] = ()


class World(NamedTuple):
    """Something that the world does after a fault, free of charge."""

    label: Label
    state: State
    broken: Broken | None = None


Fault = Callable[[System, State, Budget], Iterator[Faulty]]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Make a function a fault, by its name."""
    FAULTS[function.__name__] = function
    return function


def faults(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Every fault that can happen now."""
    for name in FAULTS:
        if name in system.setup.faults:
            yield from FAULTS[name](system, state, budget)


def _step_decode(
    system: System, state: State, label: Label, event: tuple[object, ...], severity: int, use: int | None = None
) -> Faulty:
    result = system.step_decode(state[0], system.events.number(event))
    return Faulty(label, system.decoded(state, result), severity, use, result.broken)


def _step_prefill(
    system: System,
    state: State,
    lane: int,
    label: Label,
    event: tuple[object, ...],
    severity: int,
    use: int | None = None,
) -> Faulty:
    result = system.step_prefill(state[2 + 3 * lane], system.events.number(event))
    return Faulty(label, system.prefilled(state, result, lane), severity, use, result.broken)


def _with(state: State, at: int, number: int) -> State:
    return (*state[:at], number, *state[at + 1 :])


# -- callers ---------------------------------------------------------------------------------------------------------


@fault
def decode_aborts(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Decode's caller aborts or closes an open room, or its engine shuts down."""
    facts = system.decode(state[0])
    for one in facts.endings if facts.running else ():
        who = "decode caller" if one.kind == "call" else "decode"
        yield _step_decode(system, state, Label(who, "call", one.text, "decode"), one.event, ANNOUNCED, one.event[1])


@fault
def prefill_aborts(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Prefill's caller aborts or closes an open room, or its engine shuts down."""
    for lane in range(system.lanes):
        facts = system.prefill(state[2 + 3 * lane])
        for one in facts.endings if facts.running else ():
            label = Label("prefill caller", "call", one.text, "prefill")
            yield _step_prefill(system, state, lane, label, one.event, ANNOUNCED, one.event[1])


@fault
def caller_vanishes(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A caller does nothing any more: it never opens, never sends, never closes."""
    for side in ("decode", "prefill"):
        if side not in budget.mute:
            label = Label(f"{side} caller", "fault", "does nothing any more")
            yield Faulty(label, state, SILENT, mute=(side,))


@fault
def deadline(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A deadline passes while things still move."""
    facts = system.decode(state[0])
    for one in facts.timers if facts.running else ():
        yield _step_decode(
            system, state, Label("decode", "timer", f"{one.text} early"), one.event, ANNOUNCED, one.event[1]
        )
    for _, one in facts.retries if facts.running else ():
        yield _step_decode(
            system, state, Label("decode", "timer", f"{one.text} early"), one.event, ANNOUNCED, one.event[1]
        )
    for lane in range(system.lanes):
        prefill = system.prefill(state[2 + 3 * lane])
        for one in prefill.timers if prefill.running else ():
            use = one.event[1] if one.event[0] == "deadline" else None
            yield _step_prefill(
                system, state, lane, Label("prefill", "timer", f"{one.text} early"), one.event, ANNOUNCED, use
            )


# -- frames ----------------------------------------------------------------------------------------------------------


def _frames(system: System, state: State) -> Iterator[tuple[int, bool, Sent, bool, Wire, Wire]]:
    """(place of the wire, to prefill, frame, is it a stray, wire, wire without it)."""
    for lane in range(system.lanes):
        at = 3 + 3 * lane
        value = system.wires.values[state[at]]
        for to_prefill in (True, False):
            for sent, stray, after in taken(value, to_prefill=to_prefill):
                if not sent.end:
                    yield at, to_prefill, sent, stray, value, after


def _stray(value: Wire, sent: Sent, *, to_prefill: bool) -> Wire:
    if to_prefill:
        return value._replace(stray_to_prefill=with_stray(value.stray_to_prefill, sent))
    return value._replace(stray_to_decode=with_stray(value.stray_to_decode, sent))


@fault
def frame_lost(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A frame does not arrive."""
    for at, to_prefill, sent, _, _, after in _frames(system, state):
        label = Label("wire", "fault", f"{sent.text} is lost")
        yield Faulty(label, _with(state, at, system.wires.number(after)), SILENT)


@fault
def frame_repeated(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A frame will arrive once more, at any time. A METADATA that comes again when its grant is over is refused."""
    for at, to_prefill, sent, _, value, _ in _frames(system, state):
        label = Label("wire", "fault", f"{sent.text} will arrive once more")
        twice = system.wires.number(_stray(value, sent, to_prefill=to_prefill))
        severity = ANNOUNCED if isinstance(sent.body, wire.Metadata) else HARMLESS
        yield Faulty(label, _with(state, at, twice), severity)


@fault
def frame_overtaken(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A frame is overtaken by those behind it."""
    for at, to_prefill, sent, stray, _, after in _frames(system, state):
        if not stray:
            label = Label("wire", "fault", f"{sent.text} is overtaken")
            late = system.wires.number(_stray(after, sent, to_prefill=to_prefill))
            yield Faulty(label, _with(state, at, late), HARMLESS)


@fault
def connection_cut(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """The network gives a connection up: what was on its way is lost, both ends hear of it, nobody is proven dead."""
    for lane in range(system.lanes):
        at = 3 + 3 * lane
        value, up = system.wires.values[state[at]], system.decode(state[0]).up[lane]
        link = system.prefill(state[at - 1]).link
        if not (up and link):
            continue
        end = (Sent(None, end=CUT),)
        cut = system.wires.number(value._replace(to_prefill=end, to_decode=end))
        yield Faulty(Label("wire", "fault", "the network cuts the connection"), _with(state, at, cut), ANNOUNCED)


@fault
def refused(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Prefill has no room for one more METADATA, or refuses the handshake."""
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        decode, prefill = system.decode(state[0]), system.prefill(state[at])
        if decode.running and prefill.running and decode.wants[lane]:
            label = Label("prefill", "fault", "refuses the handshake", "decode")
            yield _step_decode(system, state, label, ("refused", lane), ANNOUNCED)
        if not (prefill.running and prefill.link):
            continue
        for sent, _, after in taken(system.wires.values[state[at + 1]], to_prefill=True):
            if isinstance(sent.body, wire.Metadata):
                label = Label("prefill", "fault", f"has no room for {sent.text}")
                less = _with(state, at + 1, system.wires.number(after))
                yield _step_prefill(system, less, lane, label, ("full", sent), ANNOUNCED)


# -- writes ----------------------------------------------------------------------------------------------------------


@fault
def post_error(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A write cannot be posted, or nobody knows whether some of it was."""
    for lane in range(system.lanes):
        prefill = system.prefill(state[2 + 3 * lane])
        for number, one in prefill.posts if prefill.running else ():
            for uncertain in (False, True):
                words = f"{one.text}: it fails" + (", some of it may be under way" if uncertain else "")
                label = Label("prefill", "fault", words)
                after = _step_prefill(system, state, lane, label, ("post_error", number, uncertain), ANNOUNCED)
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
    return _with(state, at, system.flights.number(value))


@fault
def write_failed(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
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
                    yield _step_prefill(system, _with(state, at, bad), lane, label, event, ANNOUNCED)


@fault
def notification_lost(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A notification does not arrive."""
    for lane in range(system.lanes):
        for what, label, _, _, _, after in system.flying(state[4 + 3 * lane]):
            if what == "note":
                lost = Label("wire", "fault", f"the notification of {label.text} is lost")
                yield Faulty(lost, _with(state, 4 + 3 * lane, after), SILENT)


@fault
def notification_repeated(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A notification arrives, and will arrive once more."""
    if not system.decode(state[0]).running:
        return
    for lane in range(system.lanes):
        for what, label, _, use, piece, after in system.flying(state[4 + 3 * lane]):
            if what == "note":
                value = system.flights.values[after]
                again = with_flight(value, use, piece, value[use][piece]._replace(noted=False))
                result = system.step_decode(state[0], system.note(state[0], lane, use, piece))
                landed = system.decoded(state, result, lane, -1, system.flights.number(again))
                yield Faulty(
                    label._replace(text=f"{label.text}, not for the last time"), landed, HARMLESS, broken=result.broken
                )


# -- processes -------------------------------------------------------------------------------------------------------


@fault
def prefill_dies(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
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
    new[at : at + 3] = [system.prefills.number(dead), system.wires.number(value), _stopped(system, state[at + 2])]
    return tuple(new)


def _stopped(system: System, flights: int) -> int:
    """No byte lands any more."""
    value = system.flights.values[flights]
    for use, row in enumerate(value):
        sizes = [len(write.fills) for write in system.plans[use].all_writes]
        for piece, flight in enumerate(row):
            if may_land(flight, sizes[piece]):
                value = with_flight(value, use, piece, flight._replace(stopped=True))
    return system.flights.number(value)


@fault
def decode_dies(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Decode's process is killed: its memory is gone, its kernel closes its connections."""
    if system.decodes.values[state[0]].run == DEAD:
        return
    after = _step_decode(system, state, Label("decode", "fault", "is killed"), ("run", DEAD), ANNOUNCED)
    new = list(after.state)
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        value = system.wires.values[new[at + 1]]._replace(to_decode=(), stray_to_decode=())
        if system.prefill(new[at]).link and not any(sent.end for sent in value.to_prefill):
            value = value._replace(to_prefill=(*value.to_prefill, Sent(None, end=EOF)))
        new[at + 1], new[at + 2] = system.wires.number(value), _stopped(system, new[at + 2])
    yield after._replace(state=tuple(new))


@fault
def stands_still(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A process stands still, without a word."""
    if system.decode(state[0]).running:
        yield _step_decode(system, state, Label("decode", "fault", "stands still"), ("run", STALLED), SILENT)
    for lane in range(system.lanes):
        if system.prefill(state[2 + 3 * lane]).running:
            label = Label("prefill", "fault", "stands still")
            yield _step_prefill(system, state, lane, label, ("run", STALLED), SILENT)


def world(system: System, state: State, budget: Budget) -> Iterator[World]:
    """What may follow a fault: a stalled process goes on, or is fenced by the orchestrator; a dead one is started again."""
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
    return _with(state, at, system.prefills.number(fresh._replace(records=over)))


# -- strangers -------------------------------------------------------------------------------------------------------


@fault
def strange_notification(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A notification that nobody of ours sent, or that claims what is not owed."""
    decode = system.decodes.values[state[0]]
    if decode.run != UP:
        return
    for use, record in enumerate(decode.records):
        if record is None or not record.grants[0].number:
            continue
        number, manifest = record.grants[0].number, system.plans[use].manifest
        first = Part(PartKind.KV, 0, 0, max(manifest.pages, 1))
        forged = (
            ("of a stranger's agent", False, number, TOKEN + use, (first,)),
            ("with a token that was guessed", True, number, TOKEN + STRANGE, (first,)),
            ("of another grant", True, number + STRANGE, TOKEN + use, (first,)),
        )
        for words, agent, grant, token, parts in forged:
            event = ("note", 0, agent, notify.encode(grant, token, parts))
            after = _step_decode(
                system, state, Label("stranger", "notification", words, "decode"), event, HARMLESS, use
            )
            believed = after.state != state and after.broken is None
            broken = Broken("S5", f"a notification {words} was believed") if believed else after.broken
            yield after._replace(broken=broken)
        beyond = (
            Part(PartKind.KV, 0, manifest.pages, 1),
            Part(PartKind.STATE, len(manifest.state), 0, 1),
        )
        for part in beyond:
            event = ("note", 0, True, notify.encode(number, TOKEN + use, (part,)))
            label = Label("prefill", "notification", f"{part.kind.name} {part.first}, which is not owed", "decode")
            yield _step_decode(system, state, label, event, ANNOUNCED, use)


@fault
def strange_metadata(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """A METADATA for a room that nobody opens, and one that is malformed."""
    prefill = system.prefill(state[2])
    if not (prefill.running and prefill.link):
        return
    side = system.prefills.values[state[2]]
    if any(writer.number == STRANGE and writer.record == PARKED for writer in side.writers):
        return
    body = system.plans[0].metadata(STRANGE)
    nobody = msgspec.structs.replace(body, room=STRANGE, token=TOKEN + STRANGE)
    bad = msgspec.structs.replace(body, pages=body.pages + b"\0", token=TOKEN + STRANGE)
    for words, strange in (("for a room that nobody opens", nobody), ("that is malformed", bad)):
        label = Label("decode", "message", f"METADATA, grant {STRANGE}, {words}", "prefill")
        yield _step_prefill(system, state, 0, label, ("frame", Sent(strange)), HARMLESS)


@fault
def violates(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Something that the protocol does not allow is noticed on prefill."""
    facts = system.prefill(state[2])
    side = system.prefills.values[state[2]]
    for at, record in enumerate(side.records):
        if facts.running and record is not None and record.room is not None and not record.closed:
            label = Label("decode", "message", "what the protocol does not allow", "prefill")
            event = ("fail", at, On.VIOLATION, Reason.PROTOCOL)
            yield _step_prefill(system, state, 0, label, event, ANNOUNCED, at)


@fault
def sends_too_much(system: System, state: State, budget: Budget) -> Iterator[Faulty]:
    """Prefill's caller hands over one page more than decode wants, and says that this is all."""
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        facts = system.prefill(state[at])
        for one in facts.moves if facts.running and "prefill" not in budget.mute else ():
            if one.event[0] == "send":
                label = Label("prefill caller", "call", "send one page too many", "prefill")
                yield _step_prefill(
                    system, state, lane, label, ("send_too_much", one.event[1]), ANNOUNCED, one.event[1]
                )
