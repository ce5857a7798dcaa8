"""The manifest: what a room must receive, derived by one function, carried on the wire, and compared.

This is the only module that looks inside `state_indices`. Every spelling of "nothing" (absent, None, [], [[]], [None],
[[], []], tuples, empty arrays, generators) is one value from here on, so that no two parts of a room can disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument, WireError
from .identity import AUX_MAX, COMPONENTS_MAX, ITEMS_MAX, PAGES_MAX, check_int
from .intervals import span, well_formed
from .layout import Layout, Name, Owed
from .shares import Covers

Indices = npt.NDArray[np.int32]
_EMPTY: Indices = np.empty(0, dtype=np.int32)
_EMPTY.flags.writeable = False
_FEW = 32

Count = Annotated[int, msgspec.Meta(ge=1, le=ITEMS_MAX)]
Position = Annotated[int, msgspec.Meta(ge=0, le=PAGES_MAX)]


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one sending rank owes one receiving rank for one room. Chunks are not part of it: decode cannot know them.

    pages: number of page positions of the whole prompt. kv: the positions owed (those that decode does not hold yet).
    aux: names of the aux buffers owed. state: (component, number of indices) for the components that are owed,
    in the order of the layout; a component without indices does not appear.
    """

    pages: Position
    kv: Annotated[tuple[tuple[Position, Position], ...], msgspec.Meta(max_length=1024)]
    aux: Annotated[tuple[Name, ...], msgspec.Meta(max_length=AUX_MAX)]
    state: Annotated[tuple[tuple[Name, Count], ...], msgspec.Meta(max_length=COMPONENTS_MAX)]


class Declaration(msgspec.Struct, frozen=True):
    """What prefill's caller has declared so far; None is "not yet". Each item is compared once both sides know it."""

    pages: int | None = None
    aux: tuple[str, ...] | None = None
    state: tuple[tuple[str, int], ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether every item is known."""
        return self.pages is not None and self.aux is not None and self.state is not None


def counts_of(names: tuple[str, ...], totals: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    """(component, number of indices) for the components that have any, in the order of the layout."""
    return tuple((name, total) for name, total in zip(names, totals, strict=True) if total)


def derive(
    layout: Layout,
    pages: int,
    prefix_pages: int,
    indices: tuple[Indices, ...],
    aux: bool,
    covers: Covers | None = None,
) -> Manifest:
    """The manifest of a room for one sending rank: THE answer to what must arrive from it.

    pages: page positions of the whole prompt; prefix_pages: how many of them decode already holds (both in pages of the
    sending side). indices: from `state_indices`; aux: whether the room has an aux slot. covers: what this sending rank
    is for; None: everything.
    """
    state = counts_of(layout.component_names, tuple(map(len, indices))) if indices else ()
    if covers is None:
        kv = span(prefix_pages, pages) if layout.kv else ()
        return Manifest(pages, kv, layout.aux_names if aux else (), state)
    state = tuple((name, count) for name, count in state if name in covers.state)
    return Manifest(pages, covers.positions(pages, prefix_pages), covers.aux if aux else (), state)


def check_manifest(layout: Layout, manifest: Manifest, covers: Covers | None = None) -> None:
    """Raise WireError, naming the field, unless a peer's manifest is well formed and fits the layout, or the share."""
    if not well_formed(manifest.kv):
        raise WireError("manifest.kv", "intervals must be sorted, disjoint, non-adjacent and not empty")
    if manifest.kv and manifest.kv[-1][1] > manifest.pages:
        raise WireError("manifest.kv", f"position {manifest.kv[-1][1] - 1} of a prompt of {manifest.pages} pages")
    if manifest.kv and not layout.kv:
        raise WireError("manifest.kv", "pages are owed, but the layout has no KV buffers")
    aux, known = (layout.aux_names, layout.component_names) if covers is None else (covers.aux, covers.state)
    if covers is not None and manifest.kv and manifest.kv != covers.positions(manifest.pages, manifest.kv[0][0]):
        raise WireError("manifest.kv", f"{manifest.kv} is not this rank's part of {manifest.pages} pages")
    if manifest.aux and manifest.aux != aux:
        raise WireError("manifest.aux", f"{list(manifest.aux)} is not the layout's {list(aux)}")
    names = [name for name, _ in manifest.state]
    if names and names != [name for name in known if name in names]:
        raise WireError("manifest.state", f"{names} is not in the layout's order {list(known)}")


def differences(declared: Declaration, wanted: Manifest, covers: Covers | None = None) -> tuple[str, ...]:
    """What prefill declares and decode expects otherwise, in words; items that are not declared yet are left out.

    covers: what the sending rank is for; of what it declares only that is compared. None: everything.
    """
    if covers is not None:
        declared = _restricted(declared, covers)
    if declared.state == wanted.state and declared.pages == wanted.pages and declared.aux == wanted.aux:
        return ()
    words: list[str] = []
    if declared.pages is not None and declared.pages != wanted.pages:
        words.append(f"pages: prefill has {declared.pages}, decode expects {wanted.pages}")
    if declared.aux is not None and declared.aux != wanted.aux:
        words.append(f"aux: prefill sends {list(declared.aux)}, decode expects {list(wanted.aux)}")
    if declared.state is not None and declared.state != wanted.state:
        ours, theirs = dict(declared.state), dict(wanted.state)
        for name in dict.fromkeys((*ours, *theirs)):
            if ours.get(name, 0) != theirs.get(name, 0):
                sends, expects = ours.get(name, 0), theirs.get(name, 0)
                words.append(f"state component {name!r}: prefill sends {sends} indices, decode expects {expects}")
    return tuple(words)


def _restricted(declared: Declaration, covers: Covers) -> Declaration:
    """The part of a declaration that is about what one pair of ranks is for."""
    aux, state = declared.aux, declared.state
    return Declaration(
        declared.pages,
        None if aux is None else tuple(name for name in covers.aux if name in aux),
        None if state is None else tuple((name, count) for name, count in state if name in covers.state),
    )


def extent(indices: npt.NDArray[np.integer[Any]]) -> tuple[int, int]:
    """The lowest and the highest of some indices; there is at least one."""
    if len(indices) > _FEW:
        return int(indices.min()), int(indices.max())
    listed = indices.tolist()  # of a handful, numpy takes ten times as long
    return min(listed), max(listed)


def page_indices(field: str, value: object, items: int) -> Indices:
    """`value` (any iterable of integers) as checked page indices, each in [0, items). Raises InvalidArgument."""
    return _EMPTY if value is None else _integers(field, value, items)


def state_indices(
    layout: Layout, value: object, items: tuple[int, ...], *, skip_state: bool = False, complete: bool = True
) -> tuple[Indices, ...]:
    """One array of checked indices per component of the layout, from any accepted spelling.

    Accepted: None; a mapping from component name to indices; an iterable with one entry (indices or None) per
    component; for a layout of one component, a flat iterable of integers. `items` bounds each component's indices.
    complete: these are all indices of the room, so a component owed `always` must have some (unless skip_state).
    Raises InvalidArgument, naming the component.
    """
    if value is None and not layout.state:
        return ()
    entries = _entries(layout, value)
    found = tuple(
        _integers(f"state_indices[{spec.name}]", entry, bound) if entry else _EMPTY
        for spec, entry, bound in zip(layout.state, entries, items, strict=True)
    )
    if skip_state:
        if any(len(indices) for indices in found):
            raise InvalidArgument("state_indices", value, "indices were given although skip_state is set")
    elif complete:
        owed_always(layout, tuple(len(indices) for indices in found))
    return found


def owed_always(layout: Layout, totals: tuple[int, ...]) -> None:
    """Raise InvalidArgument, naming the component, if one that is owed `always` has no indices."""
    for spec, total in zip(layout.state, totals, strict=True):
        if spec.owed is Owed.ALWAYS and not total:
            raise InvalidArgument(
                "state_indices", None, f"component {spec.name!r} is owed always and has no indices (skip_state unset)"
            )


def _entries(layout: Layout, value: object) -> list[list[Any]]:
    """What was given for each component of the layout."""
    names = layout.component_names
    if value is None:
        return [[] for _ in names]
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise InvalidArgument("state_indices", name, f"no such component; the layout has {list(names)}")
        return [_spelled(f"state_indices[{name}]", value.get(name)) for name in names]
    entries = _listed("state_indices", value)
    if entries and all(_is_integer(entry) for entry in entries):
        if len(names) != 1:
            raise InvalidArgument(
                "state_indices", entries, f"flat indices need exactly one component, not {len(names)}"
            )
        return [entries]
    spelled = [_spelled(f"state_indices[{i}]", entry) for i, entry in enumerate(entries)]
    for i, entry in enumerate(spelled[len(names) :], start=len(names)):
        if entry:
            raise InvalidArgument(f"state_indices[{i}]", entry, f"the layout has {len(names)} state components")
    return [*spelled[: len(names)], *([] for _ in names[len(spelled) :])]


def _spelled(field: str, entry: object) -> list[Any]:
    """One component's indices as a list; [None], [[]] and the like are []. Members are never dropped from among others:
    that would move the positions of those after them."""
    listed = [] if entry is None else _listed(field, entry)
    return [] if all(map(_says_nothing, listed)) else listed


def _is_integer(value: object) -> bool:
    """Whether `value` stands for one number; an array without dimensions does."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        return False
    return not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0


def _listed(field: str, value: object) -> list[Any]:
    """An iterable as a list; a generator is consumed here and nowhere else."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidArgument(field, value, "must be indices: an iterable of integers or None")
    to_list = getattr(value, "tolist", None)
    entries = to_list() if to_list is not None else list(value)
    if not isinstance(entries, list):
        raise InvalidArgument(field, value, "must have at least one dimension")
    return entries


def _says_nothing(entry: object) -> bool:
    if isinstance(entry, (list, tuple)):
        return all(map(_says_nothing, entry))
    return entry is None or 0 in getattr(entry, "shape", ())


def _integers(field: str, value: object, items: int) -> Indices:
    """A flat iterable of integers as int32, each in [0, items)."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu" and len(value):
        low, high = extent(value)
        if low < 0 or high >= items:
            raise InvalidArgument(field, low if low < 0 else high, f"must be between 0 and {items - 1}")
        return value.astype(np.int32)  # a copy: the caller may reuse its array
    entries = _listed(field, value)
    if not entries:
        return _EMPTY
    if set(map(type, entries)) != {int}:  # numpy integers, bools, floats, nested lists
        entries = [check_int(field, entry, 0, items - 1) for entry in entries]
    low, high = min(entries), max(entries)
    if low < 0 or high >= items:
        bad = low if low < 0 else high
        raise InvalidArgument(field, bad, f"must be between 0 and {items - 1}" if items else "there are no items")
    return np.array(entries, dtype=np.int32)
