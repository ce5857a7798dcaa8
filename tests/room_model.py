"""A model of rooms made of facts: what was accepted, declared, bound, landed, settled. It shares nothing with ledgers.

`explore_decode` and `explore_prefill` walk every reachable room of a small one and check each step against the model.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, NamedTuple

from tables import Item, Small, decode_events, prefill_events

from kvrooms.protocol.events import Accepted, Bound, Declared, Do, Fail, Held, Idle, Landed, Queued, Settled
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Declaration, Manifest
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.status import TERMINAL, Phase
from kvrooms.statemachine import rooms
from kvrooms.statemachine.rooms import DecodeRoom, PrefillRoom
from kvrooms.statemachine.table import Kind, Row

PART_PHASE = {PartKind.KV: Phase.KV, PartKind.AUX: Phase.AUX, PartKind.STATE: Phase.STATE}
ORDER = [Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE, Phase.DONE]
AnyRow = Row[Any, Any]
FOLLOWED = (None, Reason.SEND_ERROR, Reason.MISMATCH)
"""Failed rooms that are followed further: rooms that failed for other reasons differ in nothing but the cause."""


class Facts(NamedTuple):
    """What is known: ranks that take part, positions that arrived, what is declared, and how the room ended."""

    ranks: frozenset[int] = frozenset()
    items: frozenset[Item] = frozenset()
    declared: tuple[Any, Any, Any] = (None, None, None)
    ended: Reason | None = None


def open_items(small: Small, facts: Facts) -> Phase:
    """The first phase of which an item has not arrived."""
    return min((PART_PHASE[part] for _, part, _, _ in small.items - facts.items), key=ORDER.index, default=Phase.DONE)


def check_edge(before: Any, after: Any, row: AnyRow, expected: Phase, news: bool) -> None:
    """What must hold of every step of either room."""
    assert after.phase is expected
    assert expected is Phase.FAILED or after.ledger.open_phase is expected
    assert (after.cause is not None) == (expected is Phase.FAILED)
    done = Counter(command.do for command in row.commands)
    if before.phase in TERMINAL:  # S2: terminal states absorb
        assert after is before
        assert row.kind is not Kind.FAIL
        assert not set(done) & {Do.REPORT, Do.ARM, Do.LEASE_LANDED, Do.LEASE_FAILED, Do.DRAIN_FINISHED, Do.SEND_ACCEPT}
        return
    assert (after is before) == (not news)
    assert done[Do.REPORT] == done[Do.DISARM] == (expected in TERMINAL)
    assert (row.kind is Kind.FAIL) == (expected is Phase.FAILED)
    if expected is not Phase.FAILED:
        assert ORDER.index(expected) >= ORDER.index(before.phase)


# -- decode ----------------------------------------------------------------------------------------------------------


def decode_model(small: Small, facts: Facts, event: Any) -> Facts:
    """The facts after an event; the same ones when it says nothing new."""
    if facts.ended or decode_phase(small, facts) is Phase.DONE:
        return facts
    match event:
        case Accepted(sender=rank):
            return facts._replace(ranks=facts.ranks | {rank})
        case Landed():
            chunk = frozenset((event.sender, event.part, event.component, p) for p in range(event.start, event.stop))
            return facts._replace(ranks=facts.ranks | {event.sender}, items=facts.items | chunk)
        case Fail(reason=reason):
            return facts._replace(ended=reason)
    return facts._replace(ended=Reason.ABORTED)


def decode_phase(small: Small, facts: Facts) -> Phase:
    """The phase that follows from the facts."""
    if facts.ended:
        return Phase.FAILED
    return Phase.METADATA if len(facts.ranks) < len(small.manifests) else open_items(small, facts)


def explore_decode(small: Small) -> set[DecodeRoom]:
    """Every reachable room of a small decode side, each step checked against the model."""
    start = (rooms.decode_room(small.manifests), Facts())
    assert start[0].phase is Phase.METADATA
    room_of = {start[1]: start[0]}
    queue, events = deque([start]), decode_events(small)
    while queue:
        room, facts = queue.popleft()
        for event in events:
            known = decode_model(small, facts, event)
            after, row = rooms.step_decode(room, event)
            check_edge(room, after, row, decode_phase(small, known), known != facts)
            assert after.cause is known.ended
            done = Counter(command.do for command in row.commands)
            if room.phase not in TERMINAL:
                assert done[Do.LEASE_LANDED] == (after.phase is Phase.DONE)  # S1: only when everything has landed
                assert done[Do.LEASE_FAILED] == (after.phase is Phase.FAILED)
                assert (row.kind is Kind.IGNORE) == (known == facts)
            if known not in room_of:
                room_of[known] = after
                if known.ended in FOLLOWED:
                    queue.append((after, known))
            assert room_of[known] == after  # the order of arrivals leaves no trace
    return set(room_of.values())


# -- prefill ---------------------------------------------------------------------------------------------------------


def disagrees(small: Small, facts: Facts) -> bool:
    """Whether a declared item is not what a bound rank expects."""
    return any(
        ours is not None and ours != theirs
        for rank in facts.ranks
        for ours, theirs in zip(facts.declared, wanted_of(small.manifests[rank]), strict=True)
    )


def wanted_of(wanted: Manifest) -> tuple[Any, Any, Any]:
    return (wanted.pages, wanted.aux, wanted.state)


def prefill_model(small: Small, facts: Facts, event: Any) -> Facts:
    """The facts after an event; the same ones when it says nothing new."""
    if facts.ended or prefill_phase(small, facts) is Phase.DONE:
        return facts
    match event:
        case Bound(receiver=rank):
            after = facts._replace(ranks=facts.ranks | {rank})
        case Declared(declaration=new):
            said = (new.pages, new.aux, new.state)
            merged: Any = tuple(old if item is None else item for old, item in zip(facts.declared, said, strict=True))
            after = facts._replace(declared=merged)
        case Settled():
            if len(facts.ranks) < len(small.manifests):
                return facts  # nothing can have been posted
            chunk = frozenset((event.receiver, event.part, event.component, p) for p in range(event.start, event.stop))
            return facts._replace(items=facts.items | chunk)
        case Held() | Queued() | Idle():
            return facts
        case Fail(reason=reason):
            return facts._replace(ended=reason)
        case _:
            return facts._replace(ended=Reason.ABORTED)
    return after._replace(ended=Reason.MISMATCH) if disagrees(small, after) else after


def prefill_phase(small: Small, facts: Facts) -> Phase:
    """The phase that follows from the facts: what is not declared is open."""
    if facts.ended:
        return Phase.FAILED
    if len(facts.ranks) < len(small.manifests):
        return Phase.METADATA
    undeclared = [phase for phase, said in zip(ORDER[1:4], facts.declared, strict=True) if said is None]
    return min([*undeclared, open_items(small, facts)], key=ORDER.index)


def explore_prefill(small: Small, declarations: list[Declaration]) -> set[PrefillRoom]:
    """Every reachable room of a small prefill side, each step checked against the model."""
    start = (rooms.prefill_room(len(small.manifests)), Facts())
    assert start[0].phase is Phase.METADATA
    room_of = {start[1]: start[0]}
    queue, events = deque([start]), prefill_events(small, declarations)
    while queue:
        room, facts = queue.popleft()
        for event in events:
            known = prefill_model(small, facts, event)
            after, row = rooms.step_prefill(room, event)
            check_edge(room, after, row, prefill_phase(small, known), known != facts)
            assert after.cause is known.ended
            done = Counter(command.do for command in row.commands)
            if room.phase not in TERMINAL:
                assert done[Do.DRAIN_FINISHED] == (after.phase is Phase.DONE)
                assert done[Do.DRAIN_VOIDED] == done[Do.SEND_FAILED] == (after.phase is Phase.FAILED)
                bound = isinstance(event, Bound) and known != facts and after.phase is not Phase.FAILED
                accepts = bound or after.phase is Phase.DONE  # one that is owed nothing gets it with the totals
                assert done[Do.SEND_ACCEPT] == accepts
            if known not in room_of:
                room_of[known] = after
                if known.ended in FOLLOWED:
                    queue.append((after, known))
            assert room_of[known] == after
    return set(room_of.values())
