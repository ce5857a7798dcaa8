"""Faults of callers, deadlines, frames and connections."""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol import wire
from .carriers import Label, Wire, taken, with_stray
from .faults import ANNOUNCED, HARMLESS, SILENT, Faulty, fault, replaced, step_decode, step_prefill
from .glue import CUT, Sent
from .system import State, System


@fault
def decode_aborts(system: System, state: State) -> Iterator[Faulty]:
    """Decode's caller aborts or closes an open room, or its engine shuts down."""
    facts = system.decode(state[0])
    for one in facts.endings if facts.running else ():
        who = "decode caller" if one.kind == "call" else "decode"
        yield step_decode(system, state, Label(who, "call", one.text, "decode"), one.event, ANNOUNCED, one.event[1])


@fault
def prefill_aborts(system: System, state: State) -> Iterator[Faulty]:
    """Prefill's caller aborts or closes an open room, or its engine shuts down."""
    for lane in range(system.lanes):
        facts = system.prefill(state[2 + 3 * lane])
        for one in facts.endings if facts.running else ():
            label = Label("prefill caller", "call", one.text, "prefill")
            yield step_prefill(system, state, lane, label, one.event, ANNOUNCED, one.event[1])


@fault
def caller_vanishes(system: System, state: State) -> Iterator[Faulty]:
    """A caller does nothing any more: it never opens, never sends, never closes."""
    for side in ("decode", "prefill"):
        if side not in system.budgets.values[state[1]].mute:
            label = Label(f"{side} caller", "fault", "does nothing any more")
            yield Faulty(label, state, SILENT, mute=(side,))


@fault
def deadline(system: System, state: State) -> Iterator[Faulty]:
    """A deadline passes while things still move."""
    facts = system.decode(state[0])
    for one in facts.timers if facts.running else ():
        yield step_decode(
            system, state, Label("decode", "timer", f"{one.text} early"), one.event, ANNOUNCED, one.event[1]
        )
    for _, one in facts.retries if facts.running else ():
        yield step_decode(
            system, state, Label("decode", "timer", f"{one.text} early"), one.event, ANNOUNCED, one.event[1]
        )
    for lane in range(system.lanes):
        prefill = system.prefill(state[2 + 3 * lane])
        for one in prefill.timers if prefill.running else ():
            use = one.event[1] if one.event[0] == "deadline" else None
            yield step_prefill(
                system, state, lane, Label("prefill", "timer", f"{one.text} early"), one.event, ANNOUNCED, use
            )


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
def frame_lost(system: System, state: State) -> Iterator[Faulty]:
    """A frame does not arrive."""
    for at, _, sent, _, _, after in _frames(system, state):
        label = Label("wire", "fault", f"{sent.text} is lost")
        yield Faulty(label, replaced(state, at, system.wires.number(after)), SILENT)


@fault
def frame_repeated(system: System, state: State) -> Iterator[Faulty]:
    """A frame will arrive once more, at any time. A METADATA that comes again when its grant is over is refused."""
    for at, to_prefill, sent, _, value, _ in _frames(system, state):
        label = Label("wire", "fault", f"{sent.text} will arrive once more")
        twice = system.wires.number(_stray(value, sent, to_prefill=to_prefill))
        severity = ANNOUNCED if isinstance(sent.body, wire.Metadata) else HARMLESS
        yield Faulty(label, replaced(state, at, twice), severity)


@fault
def frame_overtaken(system: System, state: State) -> Iterator[Faulty]:
    """A frame is overtaken by those behind it."""
    for at, to_prefill, sent, stray, _, after in _frames(system, state):
        if not stray:
            label = Label("wire", "fault", f"{sent.text} is overtaken")
            late = system.wires.number(_stray(after, sent, to_prefill=to_prefill))
            yield Faulty(label, replaced(state, at, late), HARMLESS)


@fault
def connection_cut(system: System, state: State) -> Iterator[Faulty]:
    """The network gives a connection up: what was on its way is lost, both ends hear of it, nobody is proven dead."""
    for lane in range(system.lanes):
        at = 3 + 3 * lane
        value, up = system.wires.values[state[at]], system.decode(state[0]).up[lane]
        link = system.prefill(state[at - 1]).link
        if not (up and link):
            continue
        end = (Sent(None, end=CUT),)
        cut = system.wires.number(value._replace(to_prefill=end, to_decode=end))
        yield Faulty(Label("wire", "fault", "the network cuts the connection"), replaced(state, at, cut), ANNOUNCED)


@fault
def refused(system: System, state: State) -> Iterator[Faulty]:
    """Prefill has no room for one more METADATA, or refuses the handshake."""
    for lane in range(system.lanes):
        at = 2 + 3 * lane
        decode, prefill = system.decode(state[0]), system.prefill(state[at])
        if decode.running and prefill.running and decode.wants[lane]:
            label = Label("prefill", "fault", "refuses the handshake", "decode")
            yield step_decode(system, state, label, ("refused", lane), ANNOUNCED)
        if not (prefill.running and prefill.link):
            continue
        for sent, _, after in taken(system.wires.values[state[at + 1]], to_prefill=True):
            if isinstance(sent.body, wire.Metadata):
                label = Label("prefill", "fault", f"has no room for {sent.text}")
                less = replaced(state, at + 1, system.wires.number(after))
                yield step_prefill(system, less, lane, label, ("full", sent), ANNOUNCED)
