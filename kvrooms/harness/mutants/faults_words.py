"""Mistakes in what operators read: who held a room up, and how much is held."""

from __future__ import annotations

from .mutant import Mutant
from .plant import Text

WORDS = (
    Mutant(
        "all-senders-are-blamed",
        "a room that is in METADATA waits for those that it asked",
        Text(
            "engine.overdue:_owed_to",
            "for grant, sender in senders if not sender.accepted]",
            "for grant, _ in senders]",
        ),
        ("L3",),
        only=True,
    ),
    Mutant(
        "those-that-asked-are-blamed",
        "prefill can only name the decode ranks that it knows",
        Text("engine.overdue:_owed_by", "if absent:", "if absent and not record.writers:"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "reached-and-blamed",
        "a transfer that stands still is waited for by all that take part",
        Text("engine.overdue:_owed_by", "if _busy(writer)]", "]"),
        ("L3",),
        only=True,
    ),
    Mutant(
        "held-once-per-writer",
        "what may still be written is counted by who may write it",
        Text("engine.decode_core:DecodeCore.held", "rooms.setdefault(grant.record, [])", "rooms.setdefault(grant, [])"),
        ("L5",),
        only=True,
    ),
)
