"""What peers and strangers say that they should not, and a caller that hands over too much."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...protocol import notify
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Reason
from ...protocol.notify import Part, PartKind
from .carriers import Label
from .faults import ANNOUNCED, HARMLESS, Faulty, fault, step_decode, step_prefill
from .glue import UP, Broken, Sent
from .prefill_values import PARKED
from .scenario import TOKEN
from .system import State, System

STRANGE = 9
"""A use, and a grant number, that nobody here has."""


@fault
def strange_notification(system: System, state: State) -> Iterator[Faulty]:
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
            system.strange.add(system.events.number(event))
            after = step_decode(system, state, Label("stranger", "notification", words, "decode"), event, HARMLESS, use)
            believed = after.state != state and after.broken is None
            broken = Broken("S5", f"a notification {words} was believed") if believed else after.broken
            yield after._replace(broken=broken)
        beyond = (
            Part(PartKind.KV, 0, manifest.pages, 1),
            Part(PartKind.STATE, len(manifest.state), 0, 1),
        )
        for part in beyond:
            event = ("note", 0, True, notify.encode(number, TOKEN + use, (part,)))
            system.strange.add(system.events.number(event))
            label = Label("prefill", "notification", f"{part.kind.name} {part.first}, which is not owed", "decode")
            yield step_decode(system, state, label, event, ANNOUNCED, use)


@fault
def strange_metadata(system: System, state: State) -> Iterator[Faulty]:
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
        event = ("frame", Sent(strange))
        system.strange.add(system.events.number(event))
        yield step_prefill(system, state, 0, label, event, HARMLESS)


@fault
def violates(system: System, state: State) -> Iterator[Faulty]:
    """Something that the protocol does not allow is noticed on prefill."""
    facts = system.prefill(state[2])
    side = system.prefills.values[state[2]]
    for at, record in enumerate(side.records):
        if facts.running and record is not None and record.room is not None and not record.closed:
            label = Label("decode", "message", "what the protocol does not allow", "prefill")
            event = ("fail", at, On.VIOLATION, Reason.PROTOCOL)
            yield step_prefill(system, state, 0, label, event, ANNOUNCED, at)


@fault
def sends_too_much(system: System, state: State) -> Iterator[Faulty]:
    """Prefill's caller hands over one page more than decode wants, and says that this is all."""
    mute = system.budgets.values[state[1]].mute
    for lane in range(system.lanes):
        facts = system.prefill(state[2 + 3 * lane])
        for one in facts.moves if facts.running and "prefill" not in mute else ():
            if one.event[0] == "send":
                label = Label("prefill caller", "call", "send one page too many", "prefill")
                yield step_prefill(system, state, lane, label, ("send_too_much", one.event[1]), ANNOUNCED, one.event[1])
