"""Mistakes in the tables and in how they are stepped."""

from __future__ import annotations

from ...protocol.events import Do
from ...protocol.status import Phase
from ...statemachine.memory import Drain, Lease
from ...statemachine.table import fail, go, ignore
from .mutant import Mutant
from .plant import Cell, Opening, Text, Without

_DECODE = ("statemachine.rooms:DECODE_ROOM", "_DECODE")
_PREFILL = ("statemachine.rooms:PREFILL_ROOM", "_PREFILL")
_LEASE = ("statemachine.memory:LEASE", "_LEASE")
_DRAIN = ("statemachine.memory:DRAIN", "_DRAIN")

TABLES = (
    Mutant(
        "decode-has-no-cap",
        "a deadline left off: a room that always makes progress needs none",
        Opening(_DECODE[0], "ARM(CAP)"),
        ("L1",),
        only=True,
        also=("hunt",),
    ),
    Mutant(
        "prefill-has-no-cap",
        "a deadline left off: a room that always makes progress needs none",
        Opening(_PREFILL[0], "ARM(CAP)"),
        ("L1",),
    ),
    Mutant(
        "unbound-room-has-no-peer-to-lose",
        "a prefill room that waits for METADATA has no peer whose loss could end it",
        Cell(*_PREFILL, "METADATA", "PEER_LOST", (ignore(),)),
        ("L1",),
        only=True,
    ),
    Mutant(
        "state-phase-without-deadline",
        "only state is missing: that comes in a moment",
        Cell(*_DECODE, "STATE", "DEADLINE", (ignore(),)),
        ("L1",),
        only=True,
    ),
    Mutant(
        "decode-waits-for-prefill-for-ever",
        "a deadline left off: until the grant is accepted no deadline but the cap runs",
        Opening(_DECODE[0], "ARM(BOOTSTRAP)"),
        ("L3",),
    ),
    Mutant(
        "failed-write-is-not-told",
        "after a failed post decode is not told: it will find out",
        Without(*_PREFILL, "KV", "POST_ERROR", Do.SEND_FAILED),
        ("L3",),
    ),
    Mutant(
        "grant-for-a-failed-room-is-ignored",
        "a METADATA for a room that has failed is dropped",
        Cell(*_PREFILL, "FAILED", "BOUND", (ignore(),)),
        ("L3",),
        also=("hunt",),
    ),
    Mutant(
        "abort-keeps-its-lease",
        "an aborted room ends on decode, and its lease is not told",
        Without(*_DECODE, "KV", "ABORT", Do.LEASE_FAILED),
        ("L3", "L5"),
    ),
    Mutant(
        "done-may-still-fail-on-decode",
        "an abort that comes when the room is DONE makes it FAILED",
        Cell(*_DECODE, "DONE", "ABORT", (fail(Phase.FAILED, Do.REPORT),)),
        ("S2",),
        only=True,
        also=("hunt",),
    ),
    Mutant(
        "done-may-still-fail-on-prefill",
        "an abort that comes when the room is DONE makes it FAILED",
        Cell(*_PREFILL, "DONE", "ABORT", (fail(Phase.FAILED, Do.REPORT),)),
        ("S2",),
        only=True,
    ),
    Mutant(
        "cause-overwritten",
        "a failed room that is aborted fails again, with the later cause",
        Cell(*_DECODE, "FAILED", "ABORT", (fail(Phase.FAILED, Do.REPORT),)),
        ("S2", "C2"),
    ),
    Mutant(
        "cause-overwritten-on-prefill",
        "a failed room that is aborted fails again, with the later cause",
        Cell(*_PREFILL, "FAILED", "ABORT", (fail(Phase.FAILED, Do.REPORT),)),
        ("S2", "C2"),
    ),
    Mutant(
        "close-forgets-to-forget",
        "a room that is DONE and closed stays in its table",
        Without(*_PREFILL, "DONE", "CLOSE", Do.FORGET),
        ("C1",),
        also=("simulate",),
    ),
    Mutant(
        "done-keeps-its-drain",
        "a room that is DONE does not finish its drain",
        Cell(*_PREFILL, "AUX", "SETTLED", (go(Phase.DONE, Do.DISARM, Do.REPORT),)),
        ("C1",),
    ),
    Mutant(
        "failed-is-free",
        "the room has failed, so its pages are free",
        Cell(*_LEASE, "GRANTED", "FAILED", (go(Lease.RELEASED, Do.SEND_ABORT, Do.FREE),)),
        ("S3",),
        also=("simulate",),
    ),
    Mutant(
        "freed-by-a-timer",
        "whoever has not acknowledged when the ABORT is to be repeated never will",
        Text("engine.decode_core:DecodeCore._own_alarm", "LeaseEvent.RETRY", "LeaseEvent.WRITER_GONE"),
        ("S3",),
    ),
    Mutant(
        "reconnect-says-nothing",
        "an ABORT that was lost with its connection is not said again when that is up",
        Cell(*_LEASE, "QUARANTINED", "LINK_UP", (ignore(),)),
        ("L5",),
        only=True,
    ),
    Mutant(
        "abort-is-said-once",
        "TCP loses nothing: an ABORT needs no repetition",
        Cell(*_LEASE, "GRANTED", "FAILED", (go(Lease.QUARANTINED, Do.SEND_ABORT),)),
        ("L5",),
        only=True,
    ),
    Mutant(
        "death-frees-nothing",
        "what is quarantined waits for an acknowledgement, also of a dead process",
        Cell(*_LEASE, "QUARANTINED", "WRITER_GONE", (ignore(),)),
        ("L5",),
    ),
    Mutant(
        "fenced-frees-nothing",
        "the orchestrator's word is for the log",
        Cell(*_LEASE, "QUARANTINED", "FENCED", (ignore(),)),
        ("L5",),
    ),
    Mutant(
        "drained-without-a-word",
        "an ABORT is acknowledged when it comes, not when the last write has settled",
        Without(*_DRAIN, "VOID", "SETTLED", Do.SEND_ACK),
        ("L5",),
        also=("hunt",),
    ),
    Mutant(
        "acknowledged-before-drained",
        "an ABORT is acknowledged at once: nothing more will be posted",
        Cell(*_DRAIN, "OPEN", "VOIDED", (go(Drain.DRAINED, Do.SEND_ACK, Do.FREE),)),
        ("S3",),
        also=("simulate",),
    ),
    Mutant(
        "void-still-settles-at-once",
        "the first write that settles drains a void grant",
        Cell(*_DRAIN, "VOID", "SETTLED", (go(Drain.DRAINED, Do.SEND_ACK, Do.FREE),)),
        ("S3",),
    ),
    Mutant(
        "grant-not-compared",
        "what decode expects is compared when prefill declares, not when a METADATA comes",
        Text(
            "statemachine.rooms:step_prefill",
            "type(event) is not Settled and ledger.disagreement",
            "type(event) is Declared and ledger.disagreement",
        ),
        ("A1", "L2"),
        also=("hunt",),
    ),
    Mutant(
        "late-declaration-not-compared",
        "what prefill declares is compared when a METADATA comes, not when it is declared later",
        Text(
            "statemachine.rooms:step_prefill",
            "type(event) is not Settled and ledger.disagreement",
            "type(event) is Bound and ledger.disagreement",
        ),
        ("A1", "L2"),
    ),
    Mutant(
        "settled-counts-twice",
        "a write that settles is taken off twice from what is posted",
        Text("statemachine.memory:step_drain", "posted -= 1", "posted = max(0, posted - 2)"),
        ("S3",),
    ),
)
