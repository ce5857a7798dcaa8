"""What must always hold, by the names that specification, tests and counterexamples use; and the rules of the lease.

Data only: the specification prints it, and the tests that show an invariant carry its name.
"""

from __future__ import annotations

from typing import NamedTuple


class Invariant(NamedTuple):
    """One property: its short name in texts and tests, what it is called, and what it says."""

    id: str
    name: str
    text: str


class Rule(NamedTuple):
    """One rule of leases and drains."""

    name: str
    text: str


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "L1",
        "every state has exits",
        "From every room state that is not terminal, a passed deadline, an abort and the loss of the peer each "
        "lead to FAILED, whatever the ledger holds.",
    ),
    Invariant(
        "L2",
        "agreement ends by itself",
        "With no timer, abort or fault, every order of events runs into one end: DONE on both sides if the two "
        "callers asked for the same, FAILED as a mismatch on both sides if they did not. Nothing circles but "
        "repetition.",
    ),
    Invariant(
        "L3",
        "faults end rooms",
        "A fault that announces itself (abort, failed write, closed connection, refusal) ends the room on both "
        "sides without any timer. A silent one (a lost message, a peer that stands still) ends it within its "
        "deadline, and the failure says which obligation was open.",
    ),
    Invariant(
        "L4",
        "rooms do not touch each other",
        "A room that fails neither delays nor fails nor marks another. After any number of failures the engine "
        "serves the next room as if it were the first.",
    ),
    Invariant(
        "L5",
        "leases end",
        "Without silent faults every lease ends with no timer. With them it ends exactly when an "
        "acknowledgement or a proof comes.",
    ),
    Invariant(
        "S1",
        "done means landed",
        "When a room is DONE on decode, every byte of every obligation of its manifest is in place.",
    ),
    Invariant(
        "S2",
        "terminal states absorb",
        "After DONE or FAILED nothing that arrives changes the room or its cause, or is reported to the caller.",
    ),
    Invariant(
        "S3",
        "memory goes back last",
        "No range returns to its owner while a write to it, or a read of it, may still happen.",
    ),
    Invariant(
        "S4",
        "generations do not mix",
        "What belongs to an earlier attempt, grant or incarnation never reaches a room of a later one.",
    ),
    Invariant(
        "S5",
        "peers are not believed",
        "Nothing a peer says makes an engine write outside registered ranges, act on a room that the peer has "
        "no part in, or call a room complete that is not. (Whoever holds an agent's metadata blob can write the "
        "memory registered with it; the transport cannot prevent that.)",
    ),
    Invariant(
        "C1",
        "nothing stays behind",
        "Of a closed room only its leases and drains remain, and of those nothing once they end: no entry, "
        "handle or timer. Memory after many rooms is memory after one.",
    ),
    Invariant(
        "C2",
        "one failure, once",
        "A failure reaches the caller once, with its first cause, and the room is clean before it does.",
    ),
    Invariant(
        "A1",
        "manifests agree",
        "What prefill declares equals what decode expects, or both sides fail in the step that makes the "
        "difference known. The ranks of a group are told one outcome of a room, and DONE only if it is DONE on each.",
    ),
)

LEASE_RULES: tuple[Rule, ...] = (
    Rule(
        "two lives",
        "A room and its memory end separately. A failed room is over at once; its destination ranges are "
        "quarantined, and its source ranges stay pinned until every posted write has settled.",
    ),
    Rule(
        "what ends quarantine",
        "Quarantine ends by an acknowledgement, by proof that the writer's process is gone, or by the "
        "orchestrator's word that the writer was fenced. No timer ends it: the lease's only deadline repeats "
        "the ABORT.",
    ),
    Rule(
        "a promise",
        "An acknowledgement (Ack, Reject, or a Goodbye from prefill that does not list the grant) is a promise: "
        "nothing of the grant is posted, and nothing will be.",
    ),
    Rule(
        "what prefill remembers",
        "Prefill remembers of each decode incarnation which grants are over: those below the floor that every "
        "frame of decode carries, and the few above it. It acknowledges a grant that it has never seen only "
        "after it has voided it, so that a METADATA which its own ABORT has overtaken finds the grant void.",
    ),
    Rule(
        "insistence",
        "ABORT is repeated, with growing pauses and after every reconnect, until it is acknowledged; "
        "acknowledging twice says nothing new.",
    ),
    Rule(
        "proof of death",
        "Proof of death is an end of file or a reset from the peer's kernel without a GOODBYE before it. A "
        "time-out, a missed heartbeat or a connection that we closed proves nothing.",
    ),
    Rule(
        "self-fencing",
        "Prefill fences itself: before each piece it checks that decode has answered lately, and a piece is "
        "bounded, so that at most one piece can follow the last look. No range is freed because of this.",
    ),
)
