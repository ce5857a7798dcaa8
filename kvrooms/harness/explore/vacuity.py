"""The guard against vacuity: what a complete exploration of two sides must have reached, and what it cannot reach.

A cell that the engine cannot reach is named here with the reason. One that is reached although it is named is as much a
finding as one that is not reached although it is not: what is written here would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from ...protocol.failure import Reason
from ...protocol.status import Phase
from ...statemachine import group, memory, rooms
from ...statemachine.table import Table

TABLES: tuple[Table[Any, Any, Any], ...] = (
    rooms.DECODE_ROOM, rooms.PREFILL_ROOM, memory.LEASE, memory.DRAIN, group.DECISION, group.STANDING,
)  # fmt: skip

OUT_OF_REACH: dict[str, str] = {
    r"decode room: \w+ x POST_ERROR": "decode posts no write",
    r"decode room: (?!METADATA)\w+ x LOCATED": "the sending ranks are found once, before anything else can happen",
    r"decode room: DONE x (ACCEPTED|PEER_LOST|PEER_FAILED|LANDED|VIOLATION)":
        "a grant whose room is DONE is free, so no frame finds it, and its token is forgotten",
    r"decode room: FAILED x (LANDED|VIOLATION|PEER_FAILED)":
        "the token of an ended room is forgotten, and frames that fail a room are for open ones",
    r"(decode|prefill) room: (DONE|FAILED) x (DEADLINE|ABORT)":
        "an ended room has no deadline, and its caller is told that it has ended",
    r"prefill room: (DONE|FAILED) x (DECLARED|QUEUED|IDLE)": "an ended room takes nothing more from its caller",
    r"prefill room: (KV|AUX|STATE|DONE) x BOUND": "a second grant ends the room, or waits for its next life",
    r"prefill room: DONE x (POST_ERROR|PEER_LOST|PEER_FAILED|SETTLED)": "the grant of a room that is DONE is over",
    r"prefill room: METADATA x (SETTLED|IDLE|POST_ERROR|PEER_LOST)":
        "nothing is posted before every rank is bound; no connection of a decode rank among several is cut",
    r"lease: HELD x (?!ADVERTISED|FAILED)\w+": "a grant that was not advertised has no number, and nobody knows of it",
    r"lease: GRANTED x (ACKED|WRITER_GONE|FENCED|RETRY|LINK_UP|CLOSED|ADVERTISED)":
        "whatever ends a grant fails its room first",
    r"lease: LANDED x (?!CLOSED)\w+": "a grant that has landed is free, and nobody asks for it but its closing room",
    r"lease: QUARANTINED x (ADVERTISED|LANDED|FAILED|CLOSED)": "its room has failed, and fails once",
    r"lease: RELEASED x \w+": "a grant that is released is forgotten",
    r"drain: DRAINED x \w+": "a grant that is drained is forgotten; the grant book answers for it",
    r"drain: VOID x (POSTED|FINISHED)": "nothing is posted for a void grant, and its room is not DONE",
    r"group decision: OPEN x ACKED": "nobody acknowledges what is not decided",
    r"group decision: (DONE|FAILED) x DEADLINE": "a room that is decided has no deadline",
    r"group member: (OPEN|FAILING) x TOLD_DONE": "a leader that counts says DONE to ranks that have reported it",
    r"group member: (REPORTED|WITHDRAWN) x ENDED_\w+": "a room ends once",
    r"group member: (DONE|FAILED) x \w+": "a room whose outcome is known is forgotten",
}  # fmt: skip
_ENDINGS = "PEER_LOST|VIOLATION|ABORT|DEADLINE|CLOSE"
_NO_TROUBLE_IN_STATE = {
    rf"decode room: STATE x ({_ENDINGS})": "no fault meets a room with state in the small scopes",
    rf"prefill room: STATE x ({_ENDINGS}|POST_ERROR|PEER_FAILED)": "nor there",
}
_SMALL_GROUPS = {
    r"group member: (REPORTED|WITHDRAWN|FAILING) x RANK_LOST": "no rank is lost beside another in a group of two",
}
TOO_SMALL: dict[str, dict[str, str]] = {
    "quick": {**_NO_TROUBLE_IN_STATE, **_SMALL_GROUPS},
    "mutant": {
        **_NO_TROUBLE_IN_STATE,
        **_SMALL_GROUPS,
        rf"decode room: AUX x ({_ENDINGS})": "in the smallest scope no fault meets a room with aux",
        rf"prefill room: AUX x ({_ENDINGS}|POST_ERROR|PEER_FAILED)": "nor there",
        r"prefill room: FAILED x VIOLATION": "it takes two faults after the first of which both sides go on",
        r"group member: WITHDRAWN x (WITHDRAW|LEADER_LOST)": "it takes two faults in one group",
    },
    "default": {},
    "deep": {},
}
"""Cells that a scope does not reach because it is small, and why; by scope."""
WITH_STATE, WITHOUT_STATE = "with state", "without state"
NOT_SUPERSEDED = {Reason.SUPERSEDED: "it takes an abort, and a METADATA that overtakes it"}
SMALL_REASONS: dict[str, dict[Reason, str]] = {"quick": NOT_SUPERSEDED, "mutant": NOT_SUPERSEDED}
"""Reasons that a small scope does not reach, and why."""
REASONS_APART: dict[Reason, str] = {
    Reason.CORRUPTED: "digests are taken from bytes, and no byte is modelled",
}
"""Reasons that the exploration does not reach."""


def cells() -> Iterator[str]:
    """The name of every cell of the tables, as `glue.Cells` counts them."""
    for table in TABLES:
        for state, event in table.cells:
            yield f"{table.name}: {state.name} x {event.name}"


def unreached(
    visited: Mapping[str, int], outcomes: AbstractSet[tuple[str, str, str]], scope: str = "default"
) -> tuple[str, ...]:
    """What should have been reached and was not; and what was reached although it is said to be out of reach.

    visited, outcomes: of everything but `alone`, which takes every cell because it is made to.
    """
    found, beyond = [], {**OUT_OF_REACH, **TOO_SMALL[scope]}
    for cell in cells():
        apart = any(re.fullmatch(pattern, cell) for pattern in beyond)
        if not visited.get(cell) and not apart:
            found.append(cell)
        elif visited.get(cell) and apart:
            found.append(f"{cell} is reached, and is said to be out of reach")
    for side in ("decode", "prefill"):
        asked = [state for state in (WITH_STATE, WITHOUT_STATE) if (side, Phase.DONE.value, state) not in outcomes]
        found += [f"{side} is DONE {state}" for state in asked]
    causes = {cause for _, _, cause in outcomes}
    expected = [reason for reason in Reason if reason not in {**REASONS_APART, **SMALL_REASONS.get(scope, {})}]
    found += [f"FAILED: {reason.value}" for reason in expected if reason.value not in causes]
    return tuple(found)
