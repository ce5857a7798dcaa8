"""How callers write `state_indices`: every spelling of nothing, and of something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


class Absent:
    """The type of `ABSENT`: the argument is not given at all."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()


class Spelling:
    """One way to write `state_indices`. A generator says what it says only once, so every `value()` is a new object.

    text: as a caller writes it: "absent", "None", "[]", "[[3, 5]]", "array([3, 5])", "(i for i in [3, 5])".
    """

    def __init__(self, text: str, make: Callable[[], object]) -> None:
        self.text = text
        self._make = make

    def value(self) -> object:
        """The value; `ABSENT` where the argument is to be left out."""
        return self._make()

    def argument(self, name: str = "state_indices") -> dict[str, Any]:
        """Keyword arguments for a call: `room.send(pages, **spelling.argument())`. None where it is absent."""
        value = self.value()
        return {} if value is ABSENT else {name: value}

    def __repr__(self) -> str:
        return f"Spelling({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spelling) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def spelled(value: object) -> str:
    """The text of a value as a caller writes it.

    >>> spelled([[3, 5]]), spelled(ABSENT), spelled({"swa": None}), spelled(((), ))
    ('[[3, 5]]', 'absent', "{'swa': None}", '((),)')

    A generator cannot be read without using it up: "<generator>". A `Spelling` knows its text.
    """
    if isinstance(value, Spelling):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {spelled(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(spelled, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, deque):
        return f"deque([{', '.join(map(spelled, value))}])"
    if isinstance(value, np.ndarray):
        return f"array({spelled(value.tolist())})" if 0 not in value.shape[:-1] else f"empty({value.shape})"
    if isinstance(value, np.integer):
        return str(int(value))
    if type(value).__module__ == "torch" and hasattr(value, "tolist"):
        return f"tensor({spelled(value.tolist())})"
    if isinstance(value, Iterator):
        return "<generator>"
    return repr(value)


class _Kind(NamedTuple):
    """A kind of collection: how it is made from members, and written with their text."""

    make: Callable[[list[Any]], object]
    text: Callable[[list[str]], str]


def _listing(texts: list[str]) -> str:
    return "[" + ", ".join(texts) + "]"


def _tensor(members: list[Any]) -> object:
    import torch  # only where it is drawn: it costs a second to import

    return torch.tensor(members, dtype=torch.int64)


_LIST = _Kind(list, _listing)
_TUPLE = _Kind(tuple, lambda texts: "(" + ", ".join(texts) + ("," if len(texts) == 1 else "") + ")")
_GENERATOR = _Kind(lambda members: (member for member in members), lambda texts: f"(i for i in {_listing(texts)})")
_DEQUE = _Kind(deque, lambda texts: f"deque({_listing(texts)})")
_INT32 = _Kind(lambda members: np.array(members, np.int32), lambda texts: f"array({_listing(texts)}, int32)")
_INT64 = _Kind(lambda members: np.array(members, np.int64), lambda texts: f"array({_listing(texts)})")
_UINT8 = _Kind(lambda members: np.array(members, np.uint8), lambda texts: f"array({_listing(texts)}, uint8)")
_NUMPY_SCALARS = _Kind(lambda members: list(map(np.int64, members)), _listing)
_TENSOR = _Kind(_tensor, lambda texts: f"tensor({_listing(texts)})")

_CONTAINERS = (_LIST, _TUPLE, _GENERATOR, _DEQUE)
"""What may hold one entry per component, or plain integers."""
_FLAT = (_LIST, _TUPLE, _INT32, _INT64, _UINT8, _GENERATOR, _DEQUE, _NUMPY_SCALARS)
"""What may hold integers only."""


def _of(kind: _Kind, members: Sequence[Spelling]) -> Spelling:
    text = kind.text([member.text for member in members])
    return Spelling(text, lambda: kind.make([member.value() for member in members]))


def _integers(indices: Sequence[int]) -> list[Spelling]:
    return [Spelling(str(i), lambda i=i: i) for i in indices]  # type: ignore[misc]


_NONE = Spelling("None", lambda: None)
_EMPTY = _of(_LIST, [])


def _flat(tensors: bool) -> tuple[_Kind, ...]:
    return (*_FLAT, _TENSOR) if tensors else _FLAT


def _empty_entries(tensors: bool) -> SearchStrategy[Spelling]:
    """Ways to say that one component has no indices."""
    ways = [_EMPTY, _NONE, *(_of(kind, []) for kind in _flat(tensors) if kind is not _NUMPY_SCALARS)]
    ways += [_of(_LIST, [_NONE]), _of(_LIST, [_EMPTY]), _of(_LIST, [_NONE, _NONE]), _of(_TUPLE, [_EMPTY, _NONE])]
    ways += [_of(_LIST, [_of(_INT64, [])]), Spelling("range(0)", lambda: range(0))]
    return st.sampled_from(list(dict.fromkeys(ways)))


def _mappings(
    entries: Mapping[str, SearchStrategy[Spelling] | None], optional: Sequence[str]
) -> SearchStrategy[Spelling]:
    """Dicts with these entries, of which the optional ones may be left out."""

    def spell(chosen: dict[str, Spelling]) -> Spelling:
        text = "{" + ", ".join(f"{name!r}: {entry.text}" for name, entry in chosen.items()) + "}"
        return Spelling(text, lambda: {name: entry.value() for name, entry in chosen.items()})

    needed = {name: entry for name, entry in entries.items() if entry is not None and name not in optional}
    maybe = {name: entry for name, entry in entries.items() if entry is not None and name in optional}
    return st.fixed_dictionaries(needed, optional=maybe).map(spell)


def nothing(components: Sequence[str] = (), *, tensors: bool = True) -> SearchStrategy[Spelling]:
    """Every spelling of "no state": absent, None, [], [[]], [None], [[], []], {}, {"swa": None}, empty arrays, ...

    components: names of the layout's state components, which dicts may name. tensors: torch tensors too (they cost the
    import of torch). Shrinks to "absent".

        @given(spelling=nothing(["swa"]))
        def test_it(spelling):
            room = engine.open(7, bootstrap=url, pages=[1, 2], **spelling.argument())
    """
    entry = _empty_entries(tensors)
    plain = [Spelling("absent", lambda: ABSENT), _NONE, _EMPTY]
    rows = [Spelling(f"empty(({n}, 0))", lambda n=n: np.empty((n, 0), np.int32)) for n in (1, 2)]  # type: ignore[misc]
    lists = st.builds(_of, st.sampled_from(_CONTAINERS), st.lists(entry, max_size=3))
    dicts = _mappings(dict.fromkeys(components, entry), components)
    return st.one_of(st.sampled_from(plain), lists, entry, dicts, st.sampled_from(rows))


def spellings(indices: Mapping[str, Sequence[int]], *, tensors: bool = True) -> SearchStrategy[Spelling]:
    """Every spelling of these indices: by name, in the layout's order, flat where there is one component.

    indices: for each component of the layout, in its order, its indices; one without any is spelled as nothing.
    Shrinks to a list of lists.

        @given(st.data())
        def test_it(data):
            spelling = data.draw(spellings({"swa": [3, 5], "index": []}))
            room.send(pages, **spelling.argument(), last=True)
    """
    if not any(len(some) for some in indices.values()):
        return nothing(tuple(indices), tensors=tensors)
    empty, kinds = _empty_entries(tensors), st.sampled_from(_flat(tensors))
    entries = {
        name: st.builds(_of, kinds, st.just(_integers(some))) if len(some) else empty for name, some in indices.items()
    }
    without = [name for name, some in indices.items() if not len(some)]
    names = list(indices)
    stop = max(i for i, name in enumerate(names) if len(indices[name])) + 1
    ends = st.integers(stop, len(names)).flatmap(lambda n: st.tuples(*(entries[name] for name in names[:n])))
    ways = [st.builds(_of, st.sampled_from(_CONTAINERS), ends), _mappings(entries, without)]
    if len(names) == 1:
        ways.append(entries[names[0]])
    return st.one_of(ways)
