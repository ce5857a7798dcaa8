"""State indices as callers spell them: built from a recipe, said as text, and what they mean.

The meaning is the suite's oracle. It is written down here once, from what callers intend, and shares no code with any
implementation: no indices for a component, in whatever spelling, means that nothing is owed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from .subject import ABSENT, Spelling

Outer: TypeAlias = Literal["absent", "None", "list", "tuple", "mapping", "flat", "iterator"]
Entry: TypeAlias = Literal["list", "tuple", "array", "None"]
Indices: TypeAlias = tuple[tuple[int, ...], ...]


class Form(NamedTuple):
    """How a value is spelled, without its indices. entries: one per listed component, and more if they are empty.

    A component beyond the entries has no indices. An entry "None" has none either.
    """

    outer: Outer = "list"
    entries: tuple[Entry, ...] = ()


PLAIN = Form()


def fitted(form: Form, indices: Indices) -> Form:
    """The nearest form that can carry these indices: a list per component that has some, the rest as it is."""
    filled = [i for i, some in enumerate(indices) if some]
    if not filled:
        return form._replace(outer="list") if form.outer == "flat" and form.entries else form
    if form.outer == "flat" and len(indices) == 1:
        return Form("flat")
    outer: Outer = form.outer if form.outer in ("list", "tuple", "mapping", "iterator") else "list"
    entries = list(form.entries) + ["list"] * (filled[-1] + 1 - len(form.entries))
    for i in filled:
        if entries[i] == "None":
            entries[i] = "list"
    return Form(outer, tuple(entries))


def build(form: Form, indices: Indices, names: Sequence[str]) -> Any:
    """The Python value, made anew: an iterator can be read once only."""
    if form.outer == "absent":
        return ABSENT
    if form.outer == "None":
        return None
    if form.outer == "flat":
        return list(indices[0]) if indices else []
    entries = [_entry(kind, indices[i] if i < len(indices) else ()) for i, kind in enumerate(form.entries)]
    if form.outer == "mapping":
        return dict(zip(names, entries, strict=False))
    if form.outer == "tuple":
        return tuple(entries)
    return iter(entries) if form.outer == "iterator" else entries


def _entry(kind: Entry, indices: tuple[int, ...]) -> Any:
    match kind:
        case "None":
            return None
        case "tuple":
            return indices
        case "array":
            return np.array(indices, dtype=np.int32)
    return list(indices)


def spelled(form: Form, indices: Indices, names: Sequence[str]) -> str:
    """The value as text: "absent", "None", "[]", "[[]]", "[[3, 5], None]", "iter([[3]])"."""
    if form.outer == "iterator":
        return f"iter({spelled(form._replace(outer='list'), indices, names)})"
    return text(build(form, indices, names))


def text(value: Any) -> str:
    """A value as a caller would write it, arrays as `array([3, 5])`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {text(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(text, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, np.ndarray):
        return f"array({value.tolist()})"
    return repr(value)


def needs(form: Form) -> frozenset[Spelling]:
    """Which spellings the traits must allow for this form."""
    wanted: set[Spelling] = {form.outer}
    for entry in form.entries:
        if entry == "None":
            wanted.add("none_entry")
        elif entry != "list":
            wanted.add(entry)
    return frozenset(wanted)


def allowed(form: Form, spellings: frozenset[Spelling]) -> bool:
    """Whether the traits allow this form."""
    return needs(form) <= spellings
