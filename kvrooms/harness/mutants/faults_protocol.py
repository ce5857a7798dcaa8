"""Mistakes in what is said: manifests, intervals, plans, the wire."""

from __future__ import annotations

from .mutant import Mutant
from .plant import Text

_MANIFEST = "protocol.manifest"
PROTOCOL = (
    Mutant(
        "expects-state-is-not-none",
        "decode expects state for a component that was named, though without indices",
        Text(
            f"{_MANIFEST}:derive",
            "counts_of(layout.component_names, tuple(map(len, indices))) if indices else ()",
            "tuple(zip(layout.component_names, map(len, indices))) if indices is not None else ()",
        ),
        ("A1", "L2"),
    ),
    Mutant(
        "counts-nothing-as-something",
        "a component without indices is counted, with 0",
        Text(f"{_MANIFEST}:counts_of", "if total)", "if total is not None)"),
        ("L2",),
    ),
    Mutant(
        "none-inside-a-list",
        "only an empty list is nothing; [None] is an index",
        Text(f"{_MANIFEST}:_spelled", "[] if all(map(_says_nothing, listed)) else listed", "listed"),
        ("L2",),
        only=True,
    ),
    Mutant(
        "generator-read-twice",
        "indices are looked at before they are copied: a generator is empty the second time",
        Text(f"{_MANIFEST}:_listed", "else list(value)", "else (list(value), list(value))[1]"),
        ("L2",),
    ),
    Mutant(
        "owes-what-decode-has",
        "the manifest owes all pages, also those that decode holds already",
        Text(f"{_MANIFEST}:derive", "span(prefix_pages, pages)", "span(0, pages)"),
        ("L2",),
    ),
    Mutant(
        "pages-compared-one-way",
        "to have fewer pages than decode expects is wrong, to have more is thought harmless",
        Text(
            f"{_MANIFEST}:differences",
            "is not None and declared.pages != wanted.pages:",
            "is not None and declared.pages < wanted.pages:",
        ),
        ("A1", "L2"),
        also=("simulate",),
    ),
    Mutant(
        "aux-not-compared",
        "the aux buffers are always all or none, so why compare them",
        Text(f"{_MANIFEST}:differences", "declared.aux is not None and declared.aux != wanted.aux:", "False:"),
        ("A1", "L2"),
    ),
    Mutant(
        "compares-own-components",
        "only the components that prefill sends are compared, not those that only decode expects",
        Text(f"{_MANIFEST}:differences", "dict.fromkeys((*ours, *theirs))", "ours"),
        ("A1", "L2"),
    ),
    Mutant(
        "difference-told-the-wrong-way-round",
        "what prefill sends and what decode expects change places in the words",
        Text(
            f"{_MANIFEST}:differences",
            "ours, theirs = dict(declared.state), dict(wanted.state)",
            "theirs, ours = dict(declared.state), dict(wanted.state)",
        ),
        ("A1",),
        only=True,
    ),
    Mutant(
        "always-owed-may-be-empty",
        "a component that every room owes is checked for None, not for nothing",
        Text(f"{_MANIFEST}:owed_always", "and not total:", "and total is None:"),
        ("S1",),
        only=True,
    ),
    Mutant(
        "skip-state-forgets-its-word",
        "indices that are given although state is skipped are taken",
        Text(f"{_MANIFEST}:state_indices", "if any(len(indices) for indices in found):", "if False:"),
        ("A1",),
    ),
    Mutant(
        "chunks-come-in-order",
        "a chunk that landed takes all before it for landed",
        Text(
            "statemachine.ledger:Missing.without", "kv = remove(self.kv, start, stop)", "kv = remove(self.kv, 0, stop)"
        ),
        ("S1",),
    ),
    Mutant(
        "hole-swallows-the-rest",
        "a range that lands in the middle takes what is behind it along",
        Text(
            "protocol.intervals:remove",
            "return ((a, start), (stop, b)) if stop < b else ((a, start),)",
            "return ((a, start),)",
        ),
        ("S1",),
    ),
    Mutant(
        "one-component-is-all",
        "a rank counts as complete when one of its state components has landed",
        Text("statemachine.ledger:_earlier", "if any(missing.state):", "if missing.state and all(missing.state):"),
        ("S1",),
        also=("hunt",),
    ),
    Mutant(
        "aux-comes-with-the-pages",
        "once the pages are there the aux buffers must be, too",
        Text("statemachine.ledger:_earlier", "if missing.aux:", "if missing.aux and phase is Phase.METADATA:"),
        ("S1",),
    ),
    Mutant(
        "runs-on-one-side",
        "positions are merged where they are neighbours on one side only",
        Text("protocol.plan:_runs", "(np.diff(part.source) != 1) |", "(np.diff(part.source) != 1) &"),
        ("S1",),
        only=True,
    ),
    Mutant(
        "report-overtakes-its-pieces",
        "a piece that reports others is posted beside them: writes land in order, do they not",
        Text("protocol.plan:_large", "ordered=reports and at > since", "ordered=False"),
        ("S1",),
    ),
    Mutant(
        "report-overtakes-its-buffers",
        "the last piece of a position that is split by buffers is posted beside the others",
        Text("protocol.plan:_split", "ordered=last and len(cuts) > 1", "ordered=False"),
        ("S1",),
    ),
    Mutant(
        "negative-page",
        "an index from the wire is compared with the upper bound only",
        Text("protocol.wire:unpack_indices", "if low < 0 or high >= items:", "if high >= items:"),
        ("S5",),
    ),
    Mutant(
        "manifest-and-pages-differ",
        "a METADATA with more pages than its manifest owes is taken: the rest is ignored anyway",
        Text("protocol.wire:unpack_indices", "if len(packed) != 4 * count:", "if len(packed) < 4 * count:"),
        ("S5",),
    ),
    Mutant(
        "aux-slot-not-bounded",
        "the aux slot of a METADATA is not compared with the number of slots",
        Text("engine.sends:wanted_of", " or body.aux_index >= max(regions.aux_slots, 1):", ":"),
        ("S5",),
    ),
)
