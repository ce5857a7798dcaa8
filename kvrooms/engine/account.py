"""What of a room's obligations has been met and what is open: for callers that retry, and in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from ..protocol.intervals import Intervals, add, remove, size, span
from ..protocol.manifest import Manifest
from ..statemachine.ledger import Missing, owed

_SHOWN = 4


class Met(NamedTuple):
    """The obligations of a failed room that were met: each of these positions is whole, nothing is known of the others.

    pages: positions [start, stop) of the prompt whose pages have landed (decode) or were written (prefill). aux:
    whether the aux slot was. state: per component of the manifest the positions of its indices.
    """

    pages: Intervals
    aux: bool
    state: dict[str, Intervals]


NOTHING_MET = Met((), False, {})  # noqa: FBT003 - the fields are named above


def met(manifest: Manifest, missing: Missing) -> Met:
    """What of a manifest is not missing."""
    whole = owed(manifest)
    names = [name for name, _ in manifest.state]
    state = map(_without, whole.state, missing.state)
    return Met(
        _without(whole.kv, missing.kv), bool(whole.aux) and not missing.aux, dict(zip(names, state, strict=True))
    )


def met_by_all(parts: list[tuple[Manifest, Missing]]) -> Met:
    """What of a room is whole, that several ranks send: what none of them still owes."""
    if not parts:
        return NOTHING_MET
    if len(parts) == 1:
        return met(*parts[0])
    pages: Intervals = ()
    for manifest, _ in parts:
        for start, stop in manifest.kv:
            pages = add(pages, start, stop)
    aux = any(manifest.aux for manifest, _ in parts) and not any(missing.aux for _, missing in parts)
    state: dict[str, Intervals] = {name: span(0, count) for manifest, _ in parts for name, count in manifest.state}
    for manifest, missing in parts:
        pages = _without(pages, missing.kv)
        for (name, _), gaps in zip(manifest.state, missing.state, strict=True):
            state[name] = _without(state[name], gaps)
    return Met(pages, aux, state)


def owes(missing: Missing) -> bool:
    """Whether anything is missing."""
    return bool(missing.kv or missing.aux or any(missing.state))


def _without(whole: Intervals, missing: Intervals) -> Intervals:
    return reduce(lambda left, gap: remove(left, *gap), missing, whole)


def open_words(manifest: Manifest, missing: Missing) -> str:
    """What is open: "pages 3 to 7 of 8, aux, 2 of 3 indices of 'swa'"."""
    words = []
    if missing.kv:
        ranges = [f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in missing.kv]
        shown = ", ".join(ranges[:_SHOWN]) + (", ..." if len(ranges) > _SHOWN else "")
        words.append(f"{'page' if size(missing.kv) == 1 else 'pages'} {shown} of {manifest.pages}")
    if missing.aux:
        words.append("aux")
    for (name, count), gaps in zip(manifest.state, missing.state, strict=True):
        if gaps:
            words.append(f"{size(gaps)} of {count} indices of {name!r}")
    return ", ".join(words) or "nothing but the other side's word"


def listed(names: Sequence[str], shown: int = _SHOWN) -> str:
    """Some names, not more than so many of them, and how many others there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
