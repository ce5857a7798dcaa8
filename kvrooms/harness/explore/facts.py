"""What matters of each part, found out once per value: its own moves, what it may and may not do, and what is wrong.

The sets of grants are bit sets (`bit`), so that a property that spans parts is one operation per state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from ...protocol.events import Timer
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration, Manifest
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory
from . import decode_side, prefill_side
from .carriers import IN_FLIGHT, Flights, complete, may_land, piece_words
from .glue import UP, Broken
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
    """posts: numbers of grants with a piece to post. may_post, bound, holds: bits of grants. known: any writer's bits."""

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
    moves: list[Own] = []
    timers: list[Own] = []
    retries: list[tuple[int, Own]] = []
    endings: list[Own] = []
    broken: Broken | None = None
    holding = hold and not side.held and records[0] is None
    if holding and side.links[0].up:
        moves.append(Own("call", "hold the room", ("hold",)))
    for use, record in enumerate(records):
        if record is None:
            before = records[use - 1] if use else None
            if not in_turn or not use or (before is not None and before.closed):
                moves.append(Own("call", f"open{_nth(use, records)}", ("open", use)))
            continue
        if record.room is None:
            continue
        phase = record.room.phase
        for lane, grant in enumerate(record.grants):
            if grant.retry:
                retries.append(
                    (lane, Own("timer", f"the abort of grant {grant.number} is due again", ("retry", use, lane)))
                )
        if phase in TERMINAL:
            if not record.closed:
                moves.append(Own("call", f"close{_nth(use, records)}", ("close", use)))
            continue
        endings += _endings(use, _nth(use, records))
        timers += _timers("decode", use, record, phase)
        broken = broken or _decode_is_wrong(record)
    wants = tuple(
        (holding or any(r is not None and not r.grants[lane].freed for r in records)) and not side.links[lane].up
        for lane in lanes
    )
    ours = [(use, record) for use, record in enumerate(records) if record is not None]
    return DecodeFacts(
        running=side.run == UP,
        up=tuple(link.up for link in side.links),
        wants=wants,
        moves=tuple(moves),
        timers=tuple(timers),
        retries=tuple(retries),
        endings=tuple(endings),
        done=sum(bit(use) for use, record in ours if record.last.phase is Phase.DONE),
        freed=tuple(sum(bit(use) for use, record in ours if record.grants[lane].freed) for lane in lanes),
        released=tuple(sum(bit(use) for use, record in ours if record.grants[lane].released) for lane in lanes),
        broken=broken,
    )


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


def prefill_facts(side: prefill_side.PrefillSide, plans: tuple[Plan, ...], *, in_turn: bool) -> PrefillFacts:
    """The facts about a prefill side."""
    records = side.records
    moves: list[Own] = []
    timers: list[Own] = []
    endings: list[Own] = []
    broken: Broken | None = None
    for at, record in enumerate(records):
        if record is None:
            before = records[at - 1] if at else None
            if not in_turn or not at or (before is not None and before.closed):
                moves.append(Own("call", f"open{_nth(at, records)}", ("open", at)))
            continue
        if record.room is None or record.closed:
            continue
        phase = record.room.phase
        if phase in TERMINAL:
            moves.append(Own("call", f"close{_nth(at, records)}", ("close", at)))
            continue
        if record.sends < len(plans[at].sends):
            moves.append(Own("call", _send_words(plans[at], record.sends), ("send", at)))
        endings += _endings(at, _nth(at, records))
        timers += _timers("prefill", at, record, phase)
        broken = broken or _prefill_is_wrong(record)
    posts: list[tuple[int, Own]] = []
    may_post = bound = holds = 0
    for writer in side.writers:
        known = writer.use < len(plans)
        mine = bit(writer.use) if known else 0
        if writer.record == prefill_side.PARKED:
            timers.append(
                Own("timer", f"grant {writer.number} has waited long enough", ("expired", writer.number), "parked")
            )
            may_post |= mine
            holds |= mine
            continue
        record = records[writer.record]
        assert record is not None
        holds |= 0 if record.freed else mine
        is_open = writer.drain.state is memory.Drain.OPEN and record.room is not None
        if not is_open or record.room.phase in TERMINAL:
            continue
        bound |= mine
        writes = plans[writer.use].all_writes
        may_post |= mine if writer.taken < len(writes) else 0
        handed = len(plans[writer.use].writes(record.sends)) if writes else 0
        if writer.taken < handed and record.room.phase is not Phase.METADATA and side.link:
            ordered = writes[writer.taken].piece.ordered and writer.drain.posted
            if not ordered:
                posts.append(
                    (
                        writer.number,
                        Own("write", f"posts {piece_words(plans[writer.use], writer.taken)}", ("post", writer.number)),
                    )
                )
    return PrefillFacts(
        running=side.run == UP,
        alive=side.run != "dead",
        link=side.link,
        moves=tuple(moves),
        posts=tuple(posts),
        timers=tuple(timers),
        endings=tuple(endings),
        may_post=may_post,
        bound=bound,
        holds=holds,
        broken=broken,
    )


def _send_words(plan: Plan, at: int) -> str:
    send, last = plan.sends[at], at == len(plan.sends) - 1
    words = f"send {len(send.pages)} page{'' if len(send.pages) == 1 else 's'}"
    if last:
        words += ", the last" + (", with aux" if send.aux_index is not None else "")
        counts = [len(indices) for _, indices in send.state]
        words += f", with {counts} state indices" if any(counts) else ""
    return words


def _prefill_is_wrong(record: prefill_side.Record) -> Broken | None:
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
