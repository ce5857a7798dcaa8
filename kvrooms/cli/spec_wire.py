"""The wire's part of the specification, told from the types that decode it."""

from __future__ import annotations

import enum
import inspect as source
import struct
from typing import Any

from msgspec import inspect

from ..protocol import group, notify, wire
from ..protocol.identity import U64_MAX

Data = dict[str, Any]
_SIZES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "2s": "2 bytes"}


def unwrap(text: str | None) -> list[str]:
    """The paragraphs of a docstring, each on one line; lines of a table stay lines, joined by newlines."""
    paragraphs = []
    for block in source.cleandoc(text or "").split("\n\n"):
        lines = block.split("\n")
        paragraphs.append("\n".join(lines) if lines[0].startswith("|") else " ".join(lines))
    return [paragraph for paragraph in paragraphs if paragraph]


def number(value: int) -> str:
    """A limit as people write it: powers of two from 2^15 on as such."""
    for base, suffix in ((value, ""), (value + 1, "-1")):
        if base >= 2**15 and base & (base - 1) == 0:
            return f"2^{base.bit_length() - 1}{suffix}"
    return str(value)


def type_words(spec: inspect.Type, structs: dict[str, Data]) -> str:
    """A type in words. Structs are named here and described, once each, in `structs`."""
    match spec:
        case inspect.IntType(ge=low, le=high):
            return f"integer, {number(low or 0)} to {number(U64_MAX if high is None else high)}"
        case inspect.BoolType():
            return "boolean"
        case inspect.StrType(min_length=low, max_length=high):
            return f"string of {_length(low, high)} characters"
        case inspect.BytesType(min_length=low, max_length=high):
            return f"{_length(low, high)} bytes"
        case inspect.VarTupleType(item_type=item, min_length=low, max_length=high):
            return f"array of {_length(low, high)}: {type_words(item, structs)}"
        case inspect.TupleType(item_types=items):
            return "pair (" + "; ".join(type_words(item, structs) for item in items) + ")"
        case inspect.EnumType(cls=cls):
            return f"one of {_choices(cls)}"
        case inspect.UnionType(types=types):
            one, *_ = [some for some in types if not isinstance(some, inspect.NoneType)]
            return f"{type_words(one, structs)} or nil"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(f'"{value}"' for value in values)
        case inspect.StructType(cls=cls):
            if cls.__name__ not in structs:
                structs[cls.__name__] = {}  # its place, before those inside it
                structs[cls.__name__] = {"meaning": unwrap(cls.__doc__), "fields": fields(spec, structs)}
            return cls.__name__
    raise NotImplementedError(spec)


def _choices(cls: type[enum.Enum]) -> str:
    """What may stand for an enumeration on the wire."""
    if issubclass(cls, enum.IntEnum):
        return ", ".join(f"{member.value} {member.name}" for member in cls)
    return ", ".join(f'"{member.value}"' for member in cls) if len(cls) < 5 else f"the values of {cls.__name__}"


def _length(low: int | None, high: int | None) -> str:
    assert high is not None, "every length on the wire has a limit"
    return f"{low or 0} to {number(high)}"


def fields(spec: inspect.StructType, structs: dict[str, Data]) -> list[Data]:
    """The fields of a struct, in the order of the wire."""
    found = []
    for field in spec.fields:
        row: Data = {"name": field.name, "type": type_words(field.type, structs)}
        if not field.required:
            row["default"] = {(): [], b"": ""}.get(field.default, field.default)
        found.append(row)
    return found


def _layout(form: struct.Struct, names: dict[str, str]) -> list[Data]:
    """The fields of a fixed-size header: name, width, meaning."""
    codes = form.format.removeprefix("<").replace("2s", "s")
    widths = [_SIZES["2s" if code == "s" else code] for code in codes]
    return [{"name": n, "type": w, "meaning": m} for (n, m), w in zip(names.items(), widths, strict=True)]


def _frame(cls: type[wire.Body], structs: dict[str, Data]) -> Data:
    """A frame, told from its class: the docstring begins "from -> to: meaning"."""
    spec = inspect.type_info(cls)
    assert isinstance(spec, inspect.StructType)
    direction, _, meaning = unwrap(cls.__doc__)[0].partition(": ")
    if ", " in direction:  # "decode -> prefill, first frame of a connection"
        direction, _, when = direction.partition(", ")
        meaning = f"{when}: {meaning}"
    return {
        "number": cls.KIND,
        "name": cls.__name__,
        "direction": direction.replace("->", "→").lower(),
        "meaning": [meaning[0].upper() + meaning[1:], *unwrap(cls.__doc__)[1:]],
        "fields": fields(spec, structs),
    }


def wire_data() -> Data:
    """Frames, the structs inside them, and the header."""
    structs: dict[str, Data] = {}
    frames = [_frame(cls, structs) for cls in wire.FRAMES]
    among_ranks = [_frame(cls, structs) for cls in group.FRAMES]
    return {
        "version": wire.VERSION,
        "meaning": unwrap(wire.__doc__)[1:],
        "length_max": wire.FRAME_MAX,
        "prefix": [{"name": "length", "type": "u32", "meaning": "bytes of header and body that follow"}],
        "header": _layout(
            wire._HEADER,  # noqa: SLF001 (one place says how the header is made)
            {
                "version": f"{wire.VERSION}; anything else is refused",
                "kind": "the frame's number",
                "reserved": "0",
                "source": "the sender's incarnation",
                "target": "the incarnation it is meant for; 0 while that is not known",
                "floor": "from decode: its lowest grant that is not released; from anybody else: 0",
            },
        ),
        "frames": frames,
        "group": {"meaning": unwrap(group.__doc__), "frames": among_ranks},
        "structs": [{"name": name, **structs[name]} for name in structs],
    }


def notification_data() -> Data:
    """The notification that travels with a write."""
    return {
        "versions": [notify.NOTIFY_VERSION, notify.DIGEST_VERSION, notify.STAGED_VERSION],
        "meaning": unwrap(notify.__doc__),
        "head": _layout(
            notify._HEAD,  # noqa: SLF001
            {
                "magic": '"KR"',
                "version": f"{notify.NOTIFY_VERSION}; {notify.DIGEST_VERSION} where a digest of "
                f"{notify.DIGEST_LENGTH} bytes per part follows the parts; {notify.STAGED_VERSION} where a staging "
                "slot follows the one part",
                "parts": f"number of parts, 1 to {notify.PARTS_MAX}; 1 in version {notify.STAGED_VERSION}",
                "grant": "the grant",
                "token": "the grant's token",
            },
        ),
        "part": _layout(
            notify._PART,  # noqa: SLF001
            {
                "kind": ", ".join(f"{kind.value} {kind.name}" for kind in notify.PartKind),
                "component": "position in the manifest's list of components; 0 unless the kind is STATE",
                "reserved": "0",
                "first": "first position that has landed",
                "count": "number of positions, at least 1",
            },
        ),
        "slot": _layout(
            notify._SLOT,  # noqa: SLF001
            {
                "slot": "number of the staging slot that the part lies in",
                "first": "the first of its buffers that does, counted in those that the two ranks exchange",
                "stop": "the buffer behind the last, greater than `first`",
            },
        ),
    }
