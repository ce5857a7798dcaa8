"""Walks the types of the wire: a valid value of each frame, and every way in which one of its fields can be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import inspect

from kvrooms.protocol.wire import Body


class Wrong(NamedTuple):
    """A frame's fields with one thing wrong, the field that must be named, and what is wrong with it."""

    fields: list[Any]
    field: str
    how: str


def sample(kind: type[Body]) -> list[Any]:
    """A valid body of this kind, as the plain values that MessagePack knows, every list with at least one member."""
    made = valid(inspect.type_info(kind))
    assert isinstance(made, list)
    return made


def valid(spec: inspect.Type) -> Any:
    """A valid plain value of a type."""
    match spec:
        case inspect.StructType():
            return [valid(field.type) for field in spec.fields]
        case inspect.IntType():
            return spec.ge or 0
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return "x" * (spec.min_length or 1)
        case inspect.BytesType():
            return b"x" * (spec.min_length or 1)
        case inspect.VarTupleType():
            return [valid(spec.item_type)] * (spec.min_length or 1)
        case inspect.TupleType():
            return [valid(item) for item in spec.item_types]
        case inspect.EnumType():
            return next(iter(spec.cls)).value
        case inspect.LiteralType():
            return spec.values[0]
        case inspect.UnionType():  # a value or nil: the value shows more
            return valid(_value(spec))
    raise NotImplementedError(spec)


def _value(spec: inspect.UnionType) -> inspect.Type:
    (one,) = [kind for kind in spec.types if not isinstance(kind, inspect.NoneType)]
    return one


def wrongs(kind: type[Body]) -> Iterator[Wrong]:
    """Every way to be wrong in exactly one place."""
    spec, fields = inspect.type_info(kind), sample(kind)
    assert isinstance(spec, inspect.StructType)
    for i, field in enumerate(spec.fields):
        path = f"{kind.__name__.lower()}.{field.name}"
        for value, where, how in _wrong_values(field.type, fields[i], path):
            yield Wrong([*fields[:i], value, *fields[i + 1 :]], where, how)


def _wrong_values(spec: inspect.Type, good: Any, path: str) -> Iterator[tuple[Any, str, str]]:
    if isinstance(spec, inspect.UnionType):
        yield from (
            (value, where, how) for value, where, how in _wrong_values(_value(spec), good, path) if value is not None
        )
        return
    others: tuple[Any, ...] = (
        None,
        True,
        1.5,
        -1.0,
        "?" * 3,
        b"?" * 3,
        [],
        {},
        {"a": 1},
        [[[[]]]],
        2**64 - 1,
        -(2**63),
    )
    for other in others:
        if not _may_be(spec, other):
            yield other, path, "type"
    match spec:
        case inspect.StructType():
            yield from _inside(path, good, [field.type for field in spec.fields])
            yield [*good, 1], path, "fields"
            needed = sum(field.required for field in spec.fields)
            yield from ((good[:length], path, "fields") for length in range(needed))
        case inspect.TupleType():
            yield from _inside(path, good, list(spec.item_types))
            yield [*good, 1], path, "fields"
            yield good[:-1], path, "fields"
        case inspect.VarTupleType():
            yield from _inside(path, good, [spec.item_type])
            yield from _bounds(spec.min_length, spec.max_length, lambda n: good[:1] * n, path)
        case inspect.StrType() | inspect.BytesType():
            yield from _bounds(spec.min_length, spec.max_length, lambda n: good[:1] * n, path)
        case inspect.IntType():
            assert spec.ge is not None
            yield spec.ge - 1, path, "low"
            if spec.le is not None:
                yield spec.le + 1, path, "high"
        case inspect.EnumType() | inspect.LiteralType():
            yield "no such choice", path, "choice"
            yield "", path, "choice"


def _inside(path: str, good: list[Any], types: list[inspect.Type]) -> Iterator[tuple[Any, str, str]]:
    for i, spec in enumerate(types):
        for value, where, how in _wrong_values(spec, good[i], f"{path}[{i}]"):
            yield [*good[:i], value, *good[i + 1 :]], where, how


def _bounds(low: int | None, high: int | None, make: Any, path: str) -> Iterator[tuple[Any, str, str]]:
    if low:
        yield make(low - 1), path, "short"
    if high is not None and high <= 2**17:  # longer ones cost memory and show nothing new
        yield make(high + 1), path, "long"


def _may_be(spec: inspect.Type, value: Any) -> bool:
    """Whether a plain value has the right type, whatever its range, length or members."""
    match spec:
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.StrType() | inspect.EnumType() | inspect.LiteralType():
            return isinstance(value, str)
        case inspect.BytesType():
            return isinstance(value, bytes)
    return isinstance(value, list)
