"""The two room tables: decode (receives) and prefill (sends). Who sees what, and how ties are broken:

- A room's phase is the first obligation still open in its ledger: METADATA, KV, AUX, STATE; then DONE. An event first
  changes the ledger, then the guards read it, so one event is one row, and a last late chunk goes from KV to DONE.
- Arrivals come in any order and any number of times: one that says nothing new takes the `repeated` row and is counted.
- Whatever ends a room ends it in one step, with the reason of the event; DONE and FAILED absorb everything.
- Prefill compares what its caller declares with what decode expects at the step that makes both known.
"""

from __future__ import annotations

import msgspec

from ..protocol.events import (
    ENDINGS,
    Bound,
    Close,
    Declared,
    DecodeEvent,
    Do,
    Fail,
    PrefillEvent,
    RoomEvent,
    Settled,
    Symbol,
    Timer,
)
from ..protocol.failure import Reason
from ..protocol.manifest import Manifest
from ..protocol.status import TERMINAL, Phase
from .ledger import DecodeLedger, PrefillLedger, decode_ledger, prefill_ledger
from .table import Kind, Row, Table, arm, fail, go, ignore


class Guard(Symbol):
    """What holds of the ledger after an event; exactly one does."""

    REPEATED = "the event says nothing new"
    MISMATCHED = "what prefill declares is not what decode expects"
    METADATA_OPEN = "a rank has not accepted, or sent, its METADATA"
    KV_OPEN = "pages are open"
    AUX_OPEN = "no page is open, aux is"
    STATE_OPEN = "neither page nor aux is open, a state component is"
    ALL_MET = "every obligation is met"


_OPEN = {
    Phase.METADATA: Guard.METADATA_OPEN,
    Phase.KV: Guard.KV_OPEN,
    Phase.AUX: Guard.AUX_OPEN,
    Phase.STATE: Guard.STATE_OPEN,
    Phase.DONE: Guard.ALL_MET,
}
_PHASES = (Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE)
RoomRow = Row[Phase, Guard]
Cells = dict[tuple[Phase, RoomEvent], tuple[RoomRow, ...]]


def _advance(start: Phase, timer: Timer | None, done: tuple[Do, ...], first: tuple[Do, ...] = ()) -> list[RoomRow]:
    """Rows from `start` to whatever later phase the ledger shows. The unguarded one stays: DONE has to be shown."""

    def row(phase: Phase, guard: Guard | None) -> RoomRow:
        arming = (arm(timer),) if timer and phase is not Phase.METADATA else ()
        return go(phase, *first, *arming, guard=guard)

    later = _PHASES[_PHASES.index(start) + 1 :]
    met = go(Phase.DONE, *first, Do.DISARM, *done, guard=Guard.ALL_MET)
    return [*(row(phase, _OPEN[phase]) for phase in later), met, row(start, None)]


def _endings(cells: Cells, failed: tuple[Do, ...]) -> None:
    """The cells that end a room, in every phase; and the terminal phases, which absorb."""
    for phase in _PHASES:
        for event in ENDINGS:
            cells[phase, event] = (fail(Phase.FAILED, Do.DISARM, Do.REPORT, *failed),)
        cells[phase, RoomEvent.CLOSE] = (fail(Phase.FAILED, Do.DISARM, Do.REPORT, *failed, Do.FORGET),)


def _decode_table() -> Table[Phase, RoomEvent, Guard]:
    cells: Cells = {}
    done = (Do.REPORT, Do.LEASE_LANDED)  # first the contents are the caller's to read, then the ranges to use again
    for phase in _PHASES:
        cells[phase, RoomEvent.LANDED] = (ignore(Guard.REPEATED), *_advance(phase, Timer.MOVING, done))
        cells[phase, RoomEvent.ACCEPTED] = cells[phase, RoomEvent.LOCATED] = (ignore(),)
    accepted = _advance(Phase.METADATA, Timer.WAITING, done)
    cells[Phase.METADATA, RoomEvent.ACCEPTED] = (ignore(Guard.REPEATED), *accepted)
    cells[Phase.METADATA, RoomEvent.LOCATED] = (ignore(Guard.REPEATED), go(Phase.METADATA, Do.SEND_METADATA))
    _endings(cells, (Do.LEASE_FAILED,))
    events = (RoomEvent.LOCATED, RoomEvent.ACCEPTED, RoomEvent.LANDED, *ENDINGS, RoomEvent.CLOSE)
    for event in events:
        cells[Phase.DONE, event] = cells[Phase.FAILED, event] = (ignore(),)
    cells[Phase.DONE, RoomEvent.CLOSE] = (go(Phase.DONE, Do.LEASE_CLOSED, Do.FORGET),)
    cells[Phase.FAILED, RoomEvent.CLOSE] = (go(Phase.FAILED, Do.FORGET),)
    return Table(
        name="decode room",
        title="The room on the decode side",
        states=Phase,
        events=events,
        guards=Guard,
        initial=Phase.METADATA,
        terminal=TERMINAL,
        cells=cells,
        initial_commands=(arm(Timer.CAP), arm(Timer.BOOTSTRAP)),
    )


def _prefill_table() -> Table[Phase, RoomEvent, Guard]:
    cells: Cells = {}
    ended = (Do.REPORT, Do.DRAIN_FINISHED)
    done = (Do.SEND_ACCEPT, *ended)  # decode that is owed nothing is DONE by its ACCEPT: not before the totals agree
    mismatched: RoomRow = fail(
        Phase.FAILED, Do.DISARM, Do.REPORT, Do.SEND_FAILED, Do.DRAIN_VOIDED, guard=Guard.MISMATCHED
    )
    for phase in _PHASES:
        cells[phase, RoomEvent.HELD] = cells[phase, RoomEvent.BOUND] = (ignore(),)
        cells[phase, RoomEvent.QUEUED] = (go(phase, arm(Timer.MOVING)),)
        cells[phase, RoomEvent.IDLE] = (go(phase, arm(Timer.WAITING)),)  # a caller that computes is no stuck transfer
        cells[phase, RoomEvent.DECLARED] = (ignore(Guard.REPEATED), mismatched, *_advance(phase, None, done))
        cells[phase, RoomEvent.SETTLED] = (ignore(Guard.REPEATED), *_advance(phase, Timer.MOVING, done))
    cells[Phase.METADATA, RoomEvent.HELD] = (go(Phase.METADATA, arm(Timer.BOOTSTRAP)),)
    bound = _advance(Phase.METADATA, Timer.WAITING, ended, first=(Do.SEND_ACCEPT,))
    cells[Phase.METADATA, RoomEvent.BOUND] = (ignore(Guard.REPEATED), mismatched, *bound)
    cells[Phase.METADATA, RoomEvent.DECLARED] = (ignore(Guard.REPEATED), mismatched, go(Phase.METADATA))
    cells[Phase.METADATA, RoomEvent.QUEUED] = (go(Phase.METADATA),)  # no deadline of ours runs while decode queues
    for event in (RoomEvent.SETTLED, RoomEvent.IDLE):  # nothing is posted before every rank is bound
        cells[Phase.METADATA, event] = (ignore(),)
    _endings(cells, (Do.SEND_FAILED, Do.DRAIN_VOIDED))
    progress = (
        RoomEvent.HELD, RoomEvent.BOUND, RoomEvent.DECLARED, RoomEvent.QUEUED, RoomEvent.SETTLED, RoomEvent.IDLE,
    )  # fmt: skip
    events = (*progress, *ENDINGS, RoomEvent.CLOSE)
    for event in events:
        cells[Phase.DONE, event] = cells[Phase.FAILED, event] = (ignore(),)
    for phase in TERMINAL:
        # A grant that comes for a room that has ended: its rank is told, and its memory given back.
        cells[phase, RoomEvent.BOUND] = (go(phase, Do.SEND_FAILED, Do.DRAIN_VOIDED),)
        cells[phase, RoomEvent.CLOSE] = (go(phase, Do.FORGET),)
    return Table(
        name="prefill room",
        title="The room on the prefill side",
        states=Phase,
        events=events,
        guards=Guard,
        initial=Phase.METADATA,
        terminal=TERMINAL,
        cells=cells,
        initial_commands=(arm(Timer.CAP), arm(Timer.BOOTSTRAP)),
    )


DECODE_ROOM = _decode_table()
PREFILL_ROOM = _prefill_table()
_DECODE = DECODE_ROOM.compile()
_PREFILL = PREFILL_ROOM.compile()
_REPEATED, _FAIL = Guard.REPEATED, Kind.FAIL  # every step asks for them; see `ledger`


class DecodeRoom(msgspec.Struct, frozen=True):
    """A room on the decode side: phase, ledger, and the reason once it has failed."""

    phase: Phase
    ledger: DecodeLedger
    cause: Reason | None = None


class PrefillRoom(msgspec.Struct, frozen=True):
    """A room on the prefill side: phase, ledger, and the reason once it has failed."""

    phase: Phase
    ledger: PrefillLedger
    cause: Reason | None = None


def decode_room(manifests: tuple[Manifest, ...] = ()) -> DecodeRoom:
    """A new room on decode: one manifest per sending rank; none: `Located` will tell."""
    return DecodeRoom(DECODE_ROOM.initial, decode_ledger(manifests))


def prefill_room(receivers: int = 1) -> PrefillRoom:
    """A new room on prefill that waits for so many receiving ranks."""
    return PrefillRoom(PREFILL_ROOM.initial, prefill_ledger(receivers))


def step_decode(room: DecodeRoom, event: DecodeEvent) -> tuple[DecodeRoom, RoomRow]:
    """One step: the next room (the very same object if nothing changed) and the row taken."""
    phase, ledger = room.phase, room.ledger
    if phase in TERMINAL or type(event) is Fail or type(event) is Close:
        guard = _REPEATED
    else:
        ledger = ledger.apply(event)
        guard = _REPEATED if ledger is room.ledger else _OPEN[ledger.open_phase]
    row = _DECODE[phase, event.KIND, guard]
    to = row.to
    if row.kind is _FAIL:
        assert to is not None
        return DecodeRoom(to, ledger, event.reason if isinstance(event, Fail) else Reason.ABORTED), row
    if to is None or (to is phase and ledger is room.ledger):
        return room, row
    return DecodeRoom(to, ledger, room.cause), row


def step_prefill(room: PrefillRoom, event: PrefillEvent) -> tuple[PrefillRoom, RoomRow]:
    """One step: the next room (the very same object if nothing changed) and the row taken."""
    phase, ledger = room.phase, room.ledger
    guard = _REPEATED  # also of what says nothing of obligations
    if phase not in TERMINAL and (type(event) is Settled or type(event) is Declared or type(event) is Bound):
        ledger = ledger.apply(event)
        if ledger is not room.ledger:
            mismatched = type(event) is not Settled and ledger.disagreement
            guard = Guard.MISMATCHED if mismatched else _OPEN[ledger.open_phase]
    row = _PREFILL[phase, event.KIND, guard]
    to = row.to
    if row.kind is _FAIL:
        assert to is not None
        return PrefillRoom(to, ledger, _reason(event)), row
    if to is None or (to is phase and ledger is room.ledger):
        return room, row
    return PrefillRoom(to, ledger, room.cause), row


def _reason(event: PrefillEvent) -> Reason:
    match event:
        case Fail(reason=reason):
            return reason
        case Bound() | Declared():
            return Reason.MISMATCH
        case _:
            return Reason.ABORTED
