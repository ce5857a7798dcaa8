"""What matters of each part, found out once per value: its own moves, what it may and may not do, and what is wrong.

The sets of grants are bit sets (`bit`), so that a property that spans parts is one operation per state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from ...protocol.events import RoomEvent as On
from ...protocol.events import Timer
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration, Manifest
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory
from . import decode_side, prefill_values
from .carriers import IN_FLIGHT, Flights, complete, may_land, piece_words
from .glue import DEAD, UP, Broken
from .scenario import Plan

Event: TypeAlias = tuple[Any, ...]


def bit(use: int) -> int:
    """The bit of one use's grant on a lane."""
    return 1 << use


class Own(NamedTuple):
    """A move that a part makes by itself: who, what (for people), and the event. obligation: what a timer closes."""

    kind: str
    text: str
    event: Event
    obligation: str = ""


class DecodeFacts(NamedTuple):
    """up, wants: per lane, connected, and in need of it. done, freed, released: bits per lane. ended: phase per use."""

    running: bool
    up: tuple[bool, ...]
    wants: tuple[bool, ...]
    moves: tuple[Own, ...]
    timers: tuple[Own, ...]
    retries: tuple[tuple[int, Own], ...]
    endings: tuple[Own, ...]
    done: int
    freed: tuple[int, ...]
    released: tuple[int, ...]
    broken: Broken | None


class PrefillFacts(NamedTuple):
    """posts: numbers of grants with a piece to post. may_post, bound, holds: bits of grants."""

    running: bool
    alive: bool
    link: bool
    moves: tuple[Own, ...]
    posts: tuple[tuple[int, Own], ...]
    timers: tuple[Own, ...]
    endings: tuple[Own, ...]
    may_post: int
    bound: int
    holds: int
    broken: Broken | None


class FlightFacts(NamedTuple):
    """complete: all that is owed has landed. flying: bytes may still land. reading: not settled yet."""

    complete: int
    flying: int
    reading: int


def flight_facts(flights: Flights, plans: tuple[Plan, ...]) -> FlightFacts:
    """The facts about the writes of a lane."""
    whole = flying = reading = 0
    for use, row in enumerate(flights):
        sizes = [len(write.fills) for write in plans[use].all_writes]
        whole |= bit(use) if complete(plans[use], row) else 0
        flying |= bit(use) if any(map(may_land, row, sizes)) else 0
        reading |= bit(use) if any(flight.state == IN_FLIGHT for flight in row) else 0
    return FlightFacts(whole, flying, reading)


# -- decode ----------------------------------------------------------------------------------------------------------


def decode_facts(side: decode_side.DecodeSide, *, in_turn: bool, hold: bool) -> DecodeFacts:
    """The facts about a decode side."""
    lanes, records = range(len(side.links)), side.records
    holding = hold and not side.held and records[0] is None
    found = _Rooms()
    if holding and side.links[0].up:
        found.moves.append(Own("call", "hold the room", ("hold",)))
    for use, record in enumerate(records):
        if record is None:
            if _may_open(records, use, in_turn=in_turn):
                found.moves.append(Own("call", f"open{_nth(use, records)}", ("open", use)))
        elif record.room is not None:
            _decode_room(found, use, record, _nth(use, records))
    ours = [(use, record) for use, record in enumerate(records) if record is not None]
    asks = [holding or any(not record.grants[lane].freed for _, record in ours) for lane in lanes]
    return DecodeFacts(
        running=side.run == UP,
        up=tuple(link.up for link in side.links),
        wants=tuple(asks[lane] and not side.links[lane].up for lane in lanes),
        moves=tuple(found.moves),
        timers=tuple(found.timers),
        retries=tuple(found.retries),
        endings=tuple(found.endings),
        done=sum(bit(use) for use, record in ours if record.last.phase is Phase.DONE),
        freed=tuple(sum(bit(use) for use, record in ours if record.grants[lane].freed) for lane in lanes),
        released=tuple(sum(bit(use) for use, record in ours if record.grants[lane].released) for lane in lanes),
        broken=found.broken,
    )


class _Rooms:
    """What the rooms of a side add to its facts."""

    def __init__(self) -> None:
        self.moves: list[Own] = []
        self.timers: list[Own] = []
        self.retries: list[tuple[int, Own]] = []
        self.endings: list[Own] = []
        self.broken: Broken | None = None


def _decode_room(found: _Rooms, use: int, record: decode_side.Record, nth: str) -> None:
    phase = record.room.phase
    for lane, grant in enumerate(record.grants):
        if grant.retry:
            words = f"the abort of grant {grant.number} is due again"
            found.retries.append((lane, Own("timer", words, ("retry", use, lane))))
    if phase in TERMINAL:
        if not record.closed:
            found.moves.append(Own("call", f"close{nth}", ("close", use)))
        return
    found.endings += _endings(use, nth)
    found.timers += _timers("decode", use, record, phase)
    found.broken = found.broken or _decode_is_wrong(record)


def _may_open(records: tuple[Any, ...], use: int, *, in_turn: bool) -> bool:
    """Whether the caller gets to this use: those before it are closed, or they run beside each other."""
    before = records[use - 1] if use else None
    return not in_turn or not use or (before is not None and before.closed)


def _nth(use: int, records: tuple[Any, ...]) -> str:
    return f" use {use + 1} of the room" if len(records) > 1 else " the room"


def _endings(use: int, what: str) -> list[Own]:
    return [
        Own("call", f"abort{what}", ("fail", use, On.ABORT, Reason.ABORTED)),
        Own("call", f"close{what} early", ("close", use)),
        Own("call", "shut the engine down", ("fail", use, On.ABORT, Reason.SHUTDOWN)),
    ]


def _timers(who: str, use: int, record: Any, phase: Phase) -> list[Own]:
    armed = ([record.timer] if record.timer else []) + ([Timer.CAP] if record.cap else [])
    return [
        Own("timer", f"the {timer.value} deadline passes", ("deadline", use, timer), f"{who} {phase.value}")
        for timer in armed
    ]


def _decode_is_wrong(record: decode_side.Record) -> Broken | None:
    """L1 for a state: the deadline of its kind is armed. And the stored phase is the first open obligation."""
    room = record.room
    senders = room.ledger.senders
    missing = [sender.missing for sender in senders]
    if not all(sender.accepted for sender in senders):
        first = Phase.METADATA
    else:
        first = _first_open(missing)
    wrong = _phase_is_wrong("decode", room.phase, first)
    if wrong:
        return wrong
    if not record.cap:
        return Broken("L1", f"the room on decode is in {room.phase.value} and its cap is not armed")
    if room.phase is Phase.METADATA:
        fitting: tuple[Timer, ...] = (Timer.BOOTSTRAP,)
    else:
        fitting = (Timer.WAITING, Timer.MOVING)
    if record.timer not in fitting:
        armed = record.timer.value if record.timer else "none"
        return Broken("L1", f"the room on decode is in {room.phase.value}; its phase deadline is {armed}")
    return None


def _first_open(missing: list[Any]) -> Phase:
    if any(one.kv for one in missing):
        return Phase.KV
    if any(one.aux for one in missing):
        return Phase.AUX
    if any(any(one.state) for one in missing):
        return Phase.STATE
    return Phase.DONE


_ORDER = (Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE, Phase.DONE)


def _phase_is_wrong(who: str, stored: Phase, first: Phase) -> Broken | None:
    if stored is first:
        return None
    later = _ORDER.index(stored) > _ORDER.index(first)
    words = f"the room on {who} is in {stored.value}, and its first open obligation is {first.value}"
    return Broken("S1" if later else "L2", words)


# -- prefill ---------------------------------------------------------------------------------------------------------


def prefill_facts(side: prefill_values.PrefillSide, plans: tuple[Plan, ...], *, in_turn: bool) -> PrefillFacts:
    """The facts about a prefill side."""
    records, found = side.records, _Rooms()
    for at, record in enumerate(records):
        if record is None:
            if _may_open(records, at, in_turn=in_turn):
                found.moves.append(Own("call", f"open{_nth(at, records)}", ("open", at)))
        elif record.room is not None and not record.closed:
            _prefill_room(found, at, record, plans[at], _nth(at, records))
    grants = _grants(side, plans)
    return PrefillFacts(
        running=side.run == UP,
        alive=side.run != DEAD,
        link=side.link,
        moves=tuple(found.moves),
        posts=tuple(grants.posts),
        timers=(*found.timers, *grants.timers),
        endings=tuple(found.endings),
        may_post=grants.may_post,
        bound=grants.bound,
        holds=grants.holds,
        broken=found.broken,
    )


def _prefill_room(found: _Rooms, at: int, record: prefill_values.Record, plan: Plan, nth: str) -> None:
    phase = record.room.phase
    if phase in TERMINAL:
        found.moves.append(Own("call", f"close{nth}", ("close", at)))
        return
    if record.sends < len(plan.sends):
        found.moves.append(Own("call", _send_words(plan, record.sends), ("send", at)))
    found.endings += _endings(at, nth)
    found.timers += _timers("prefill", at, record, phase)
    found.broken = found.broken or _prefill_is_wrong(record)


class _Grants:
    """What the grants of a prefill side add to its facts."""

    def __init__(self) -> None:
        self.posts: list[tuple[int, Own]] = []
        self.timers: list[Own] = []
        self.may_post = self.bound = self.holds = 0


def _grants(side: prefill_values.PrefillSide, plans: tuple[Plan, ...]) -> _Grants:
    found = _Grants()
    for writer in side.writers:
        mine = bit(writer.use) if writer.use < len(plans) else 0
        if writer.record == prefill_values.PARKED:
            words = f"grant {writer.number} has waited for its room long enough"
            found.timers.append(Own("timer", words, ("expired", writer.number), "a grant without a room"))
            found.may_post |= mine
            found.holds |= mine
            continue
        record = side.records[writer.record]
        assert record is not None
        found.holds |= 0 if record.freed else mine
        room = record.room
        if room is None or room.phase in TERMINAL or writer.drain.state is not memory.Drain.OPEN:
            continue
        found.bound |= mine
        writes = plans[writer.use].all_writes
        found.may_post |= mine if writer.taken < len(writes) else 0
        ready = side.link and room.phase is not Phase.METADATA and writes
        if not ready or not prefill_values.postable(plans, writer, record):
            continue
        if not (writes[writer.taken].piece.ordered and writer.drain.posted):
            words = f"posts {piece_words(plans[writer.use], writer.taken)}"
            found.posts.append((writer.number, Own("write", words, ("post", writer.number))))
    return found


def _send_words(plan: Plan, at: int) -> str:
    send, last = plan.sends[at], at == len(plan.sends) - 1
    words = f"send {len(send.pages)} page{'' if len(send.pages) == 1 else 's'}"
    if last:
        words += ", the last" + (", with aux" if send.aux_index is not None else "")
        counts = [len(indices) for _, indices in send.state]
        words += f", with {counts} state indices" if any(counts) else ""
    return words


def _prefill_is_wrong(record: prefill_values.Record) -> Broken | None:
    """L1 and A1 for a state, and that the stored phase is the first open obligation."""
    room = record.room
    receiver = room.ledger.receivers[0]
    declared: Declaration = room.ledger.declared
    if receiver is None:
        first = Phase.METADATA
    else:
        unlike = _unlike(declared, receiver.wanted)
        if unlike:
            return Broken("A1", f"prefill goes on in {room.phase.value} although {unlike}")
        undeclared = [
            phase
            for phase, item in ((Phase.KV, declared.pages), (Phase.AUX, declared.aux), (Phase.STATE, declared.state))
            if item is None
        ]
        first = min([*undeclared, _first_open([receiver.missing])], key=_ORDER.index)
    wrong = _phase_is_wrong("prefill", room.phase, first)
    if wrong:
        return wrong
    if not record.cap:
        return Broken("L1", f"the room on prefill is in {room.phase.value} and its cap is not armed")
    if record.timer is None or (room.phase is Phase.METADATA) != (record.timer is Timer.BOOTSTRAP):
        armed = record.timer.value if record.timer else "none"
        return Broken("L1", f"the room on prefill is in {room.phase.value}; its phase deadline is {armed}")
    return None


def _unlike(declared: Declaration, wanted: Manifest) -> str:
    """What is declared otherwise than wanted, told without the product's comparison."""
    if declared.pages is not None and declared.pages != wanted.pages:
        return f"it has {declared.pages} pages and decode wants {wanted.pages}"
    if declared.aux is not None and set(declared.aux) != set(wanted.aux):
        return f"it has aux {list(declared.aux)} and decode wants {list(wanted.aux)}"
    if declared.state is not None and set(declared.state) != set(wanted.state):
        return f"it has state {list(declared.state)} and decode wants {list(wanted.state)}"
    return ""
