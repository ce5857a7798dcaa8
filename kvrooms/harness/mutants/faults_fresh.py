"""Mistakes that were written down by somebody who knew what is promised and what runs, and not what looks for mistakes.

So they measure the checkers, and not the other way round: docs/mutants.md says how many of them survived at first.
"""

from __future__ import annotations

from ...protocol.events import Do
from .mutant import Mutant
from .plant import Swapped, Text

_MISMATCH = ("statemachine.rooms:PREFILL_ROOM", "_PREFILL", "MISMATCHED")

FRESH = (
    Mutant(
        "doubt-ends-at-the-floor",
        "a grant in doubt is forgotten when decode's floor reaches it, though the floor is what is not released",
        Text("engine.prefill_core:PrefillCore._reached", "number >= floor", "number > floor"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "callers-array-is-kept",
        "page indices that are int32 already are not copied: the caller may use its array again",
        Text("protocol.manifest:_integers", "value.astype(np.int32)", "value.astype(np.int32, copy=False)"),
        ("S1",),
        also=("simulate",),
    ),
    Mutant(
        "goodbye-outlives-its-connection",
        "a link that dials again still knows the GOODBYE of its last connection",
        Text("engine.decode_links:DecodeLinks._lost", "link.goodbye = False", "pass"),
        ("L5",),
        only=True,
        also=("hunt",),
    ),
    Mutant(
        "numbers-begin-anew",
        "an incarnation that was forgotten and comes back is asked for grants from the first number on",
        Text(
            "engine.decode_links:DecodeLinks._retire",
            "self._first_grant = max(self._first_grant, peer.next_grant)",
            "pass",
        ),
        ("L4",),
        also=("hunt",),
    ),
    Mutant(
        "state-buffers-not-compared",
        "of state components name, kind and when they are owed are compared, not their buffers",
        Text("protocol.layout:differences", "words += _buffers_differ(where, a.buffers, b.buffers)", "pass"),
        ("S5",),
        only=True,
    ),
    Mutant(
        "first-report-overtakes-its-pieces",
        "the first report of a large part has no report before it, so there is nothing to wait for",
        Text("protocol.plan:_large", "ordered=reports and at > since", "ordered=reports and since > 0"),
        ("S1",),
    ),
    Mutant(
        "voided-before-it-is-told",
        "a room that does not agree gives up its grants first and tells decode afterwards, when it has none left",
        Swapped(*_MISMATCH, Do.SEND_FAILED, Do.DRAIN_VOIDED),
        ("L2",),
    ),
    Mutant(
        "refused-send-counts",
        "a send is counted before it is checked to the end: the next goes to other positions",
        Text(
            "engine.prefill:_next",
            "last = (total is not None and reached == total) if last is None else last",
            "last = (total is not None and reached == total) if last is None else last\n"
            "    room._sent_pages, room._sent_state = reached, counted",
        ),
        ("L2",),
        also=("simulate",),
    ),
    Mutant(
        "released-hold-stays-with-its-link",
        "a hold that is released is taken out of its table and not from its link, which renews it when it is up again",
        Text("engine.holds:DecodeHolds.release", "link.holds.pop(hold, None)", "pass"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "lost-peer-stays-parked",
        "the grants of a lost peer are void, and still wait for their rooms",
        Text("engine.prefill_core:PrefillCore._void_all", "self._unpark(writer)", "pass"),
        ("S4",),
    ),
    Mutant(
        "claims-by-the-manifest",
        "indices are claimed in the order of the components that are owed, not of those that there are",
        Text(
            "engine.decode:DecodeEngine.open",
            "(claimed, slot, indices)",
            "(claimed, slot, tuple(some for some in indices if len(some)))",
        ),
        ("S3",),
    ),
    Mutant(
        "bounds-of-another-component",
        "the indices of a METADATA are compared with the size of the component at their place in the manifest",
        Text(
            "engine.sends:wanted_of",
            "regions.component_items(theirs.component_names.index(name))",
            "regions.component_items(len(state))",
        ),
        ("S5",),
        only=True,
    ),
    Mutant(
        "each-name-its-own-connection",
        "an engine that is found under a second name is dialled a second time",
        Text(
            "engine.decode_links:DecodeLinks._reach",
            "if other.connection is not None and not other.dropped and reaches == link.sought:",
            "if False:",
        ),
        ("L4",),
    ),
    Mutant(
        "fenced-while-connected",
        "the orchestrator's word counts at once, also of a process of that name that is connected",
        Text("engine.decode_links:DecodeLinks._fenced", "if peer.link is not None:", "if False:"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "acknowledged-once",
        "an ABORT that comes again was answered the first time",
        Text(
            "engine.prefill_grants:PrefillGrants._aborted",
            "if writer is None:",
            "if writer is None and peer.book.verdict(body.grant) is Verdict.OVER:\n        return\n"
            "    if writer is None:",
        ),
        ("L5",),
        only=True,
    ),
    Mutant(
        "accepted-before-the-totals",
        "a grant that is owed nothing is accepted like any other, and decode is DONE by it",
        Text(
            "engine.prefill_core:PrefillCore._accept",
            "if not writer.accepted and (writer.unposted or record.room.ledger.declared.complete):",
            "if not writer.accepted:",
        ),
        ("A1",),
        only=True,
    ),
    Mutant(
        "whoever-answers",
        "the engine at the address that the registry named is the one that it named",
        Text(
            "engine.decode_links:DecodeLinks._handshake",
            "case wire.Welcome() if source != link.sought:",
            "case wire.Welcome() if False:",
        ),
        ("S5",),
        only=True,
    ),
)
