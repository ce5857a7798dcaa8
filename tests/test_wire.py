"""The native wire format: every frame comes back as it went, and everything else is refused with its field named."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, named
from samples import (
    all_regions,
    attempts,
    details,
    grants,
    layouts,
    manifests,
    names,
    pages,
    rooms,
    staging_slots,
    u64,
)
from wire_types import Wrong, sample, wrongs

from kvrooms.protocol import wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.staging import SLOTS_MAX
from kvrooms.protocol.wire import FRAMES, HEADER_LENGTH, PREFIX_LENGTH

packed = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(lambda some: struct.pack(f"<{len(some)}i", *some))
reasons = st.sampled_from(Reason)
BODIES: dict[type[wire.Body], st.SearchStrategy[Any]] = {
    wire.Hello: st.builds(
        wire.Hello, names, names, layouts, all_regions, st.binary(min_size=1, max_size=40), st.none(),
        st.none() | staging_slots,
    ),
    wire.Welcome: st.builds(wire.Welcome, names, names, layouts),
    wire.Refuse: st.builds(wire.Refuse, st.lists(details, min_size=1, max_size=3).map(tuple)),
    wire.Metadata: st.builds(
        wire.Metadata, rooms, attempts, grants, u64, manifests, packed, st.integers(-1, 2**31 - 1),
        st.lists(packed, max_size=3).map(tuple), st.text(max_size=16), st.booleans(),
        pages, packed,
    ),
    wire.Accept: st.builds(wire.Accept, grants),
    wire.Reject: st.builds(wire.Reject, grants, reasons, details),
    wire.Failed: st.builds(wire.Failed, grants, reasons, details),
    wire.Abort: st.builds(wire.Abort, grants, reasons, details),
    wire.Ack: st.builds(wire.Ack, grants),
    wire.Ping: st.builds(wire.Ping, u64),
    wire.Pong: st.builds(wire.Pong, u64),
    wire.Goodbye: st.builds(wire.Goodbye, st.lists(grants, max_size=4).map(tuple)),
    wire.Hold: st.builds(wire.Hold, rooms, attempts),
    wire.HoldLost: st.builds(wire.HoldLost, rooms, attempts, reasons, details),
    wire.Emptied: st.builds(
        wire.Emptied, grants, st.lists(st.integers(0, SLOTS_MAX - 1), min_size=1, max_size=4).map(tuple)
    ),
}  # fmt: skip
bodies = st.one_of(*BODIES.values())
KINDS = pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.__name__)


def header(
    version: int = 1, kind: int = 9, reserved: int = 0, source: int = 1, target: int = 2, floor: int = 3
) -> bytes:
    return struct.pack("<BBHQQQ", version, kind, reserved, source, target, floor)


def frame_of(kind: type[wire.Body], fields: object) -> bytes:
    """A frame whose body is any MessagePack value."""
    return header(kind=kind.KIND) + msgspec.msgpack.encode(fields)


def refused(frame: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        wire.decode(frame)
    return caught.value


def outcome(frame: bytes) -> wire.Received | WireError:
    """What decoding gives; anything but these two fails the test."""
    try:
        return wire.decode(frame)
    except WireError as error:
        return error


def test_every_frame_kind_is_here() -> None:
    assert tuple(BODIES) == FRAMES
    assert [kind.KIND for kind in FRAMES] == list(range(1, 16))


@KINDS
@given(st.data(), u64, u64, u64)
def test_round_trip(kind: type[wire.Body], data: st.DataObject, source: int, target: int, floor: int) -> None:
    body = data.draw(BODIES[kind])
    frame = wire.encode(body, source, target, floor)
    assert wire.frame_length(frame[:PREFIX_LENGTH]) == len(frame) - PREFIX_LENGTH
    received = wire.decode(frame[PREFIX_LENGTH:])
    assert received == wire.Received(source, target, floor, body)
    assert type(received.body) is kind
    assert wire.encode(received.body, source, target, floor) == frame


def test_the_bytes_of_version_1() -> None:
    """A change of these bytes is a change of the version."""
    accept = wire.encode(wire.Accept(300), source=1, target=2, floor=3)
    numbers = "".join(f"{n:02x}" + 7 * "00" for n in (1, 2, 3))
    assert accept.hex() == "20000000" + "01050000" + numbers + "91cd012c"
    assert accept[PREFIX_LENGTH:] == header(kind=5) + b"\x91\xcd\x01\x2c"


# -- malformed frames ------------------------------------------------------------------------------------------------


@KINDS
def test_truncation_at_every_length(kind: type[wire.Body]) -> None:
    whole = frame_of(kind, sample(kind))
    wire.decode(whole)
    for length in range(len(whole)):
        error = refused(whole[:length])
        assert (
            error.field == "length" if length <= HEADER_LENGTH else error.field.split(".")[0] == kind.__name__.lower()
        )


@KINDS
def test_trailing_bytes(kind: type[wire.Body]) -> None:
    assert refused(frame_of(kind, sample(kind)) + b"\0").field == kind.__name__.lower()


@KINDS
def test_extra_and_missing_fields(kind: type[wire.Body]) -> None:
    fields, name = sample(kind), kind.__name__.lower()
    assert refused(frame_of(kind, [*fields, 1])).field == f"{name}[{len(fields)}]"
    needed = sum(field.required for field in msgspec.structs.fields(kind))
    for length in range(needed):
        error = refused(frame_of(kind, fields[:length]))
        assert error.field == f"{name}.{kind.__struct_fields__[length]}"
    for length in range(needed, len(fields)):
        wire.decode(frame_of(kind, fields[:length]))


ALL_WRONG = [(kind, wrong) for kind in FRAMES for wrong in wrongs(kind)]


def check_wrong_fields() -> None:
    for kind, wrong in ALL_WRONG:
        error = refused(frame_of(kind, wrong.fields))
        assert error.field == wrong.field, (kind, wrong, error)


def test_every_field_wrong_in_type_range_or_length_is_named() -> None:
    check_wrong_fields()


def test_how_many_ways_to_be_wrong() -> None:
    named_fields = {wrong.field.split("[")[0] for _, wrong in ALL_WRONG}
    assert named_fields == {f"{kind.__name__.lower()}.{field}" for kind in FRAMES for field in kind.__struct_fields__}
    assert len(ALL_WRONG) > 1000
    assert {wrong.how for _, wrong in ALL_WRONG} == {"type", "low", "high", "short", "long", "choice", "fields"}


def check_header() -> None:
    good = msgspec.msgpack.encode([5])
    wire.decode(header() + good)
    for change, field in [
        ({"version": 0}, "version"),
        ({"version": 2}, "version"),
        ({"kind": 0}, "kind"),
        ({"kind": 16}, "kind"),
        ({"kind": 255}, "kind"),
        ({"reserved": 1}, "reserved"),
        ({"reserved": 256}, "reserved"),
    ]:
        assert refused(header(**change) + good).field == field
    assert "version 2, we speak version 1" in refused(header(version=2) + good).why
    for length in range(HEADER_LENGTH + 1):
        assert refused(header()[:length]).field == "length"


def test_wrong_headers_are_named() -> None:
    check_header()


def check_lengths() -> None:
    for length in (HEADER_LENGTH + 1, 1000, wire.FRAME_MAX):
        assert wire.frame_length(struct.pack("<I", length)) == length
        assert wire.frame_length(memoryview(struct.pack("<I", length))) == length
    for length in (0, 1, HEADER_LENGTH, wire.FRAME_MAX + 1, 2**32 - 1, int.from_bytes(b"GET ", "little")):
        with pytest.raises(WireError) as caught:
            wire.frame_length(struct.pack("<I", length))
        assert caught.value.field == "length"
    with pytest.raises(WireError):
        wire.frame_length(struct.pack("<I", 101), limit=100)
    assert wire.frame_length(struct.pack("<I", 100), limit=100) == 100


def test_lengths_out_of_bounds() -> None:
    check_lengths()


RAW = [
    b"\xc1",  # no MessagePack at all
    b"\xc0",
    b"\x80",
    b"\x90",
    b"\xa1\xff",
    b"\x91" * 200_000,  # deep nesting
    b"\x99" + b"\x91" * 200_000,
    b"\x81" * 200_000,
    b"\xdd\xff\xff\xff\xff",  # an array of four thousand million items
    b"\x91\xdd\xff\xff\xff\xff",
    b"\x91\xdb\xff\xff\xff\xff",
    b"\x91\xc6\xff\xff\xff\xff",
    b"\x91\xd9\x02\xc3\x28",  # a string that is not UTF-8
    b"\x91\xd3" + b"\xff" * 8,
    b"\x91\xd3\x80" + b"\0" * 7,
    b"\x91\xcb\x7f\xf8" + b"\0" * 6,  # not a number
    b"\x91\xc7\x00\x01",  # an extension type
]


@KINDS
def test_bytes_that_are_no_body(kind: type[wire.Body]) -> None:
    for raw in RAW:
        found = outcome(header(kind=kind.KIND) + raw)
        if isinstance(found, WireError):
            assert found.field.startswith(kind.__name__.lower())
        else:  # an empty array is a whole GOODBYE
            assert (raw, found.body) == (b"\x90", wire.Goodbye())


def test_a_field_of_bad_utf8_is_refused() -> None:
    assert refused(header(kind=6) + b"\x93\x05\xa7refused\xa2\xc3\x28").field.startswith("reject")
    assert refused(header(kind=1) + b"\x95\xa1\xff").field.startswith("hello")


@given(bodies, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255), st.sampled_from("sdi")), max_size=5))
def test_mutated_bytes_give_nothing_but_wire_errors(body: wire.Body, changes: list[tuple[int, int, str]]) -> None:
    frame = bytearray(wire.encode(body, 1, 2, 3)[PREFIX_LENGTH:])
    for at, value, how in changes:
        at %= len(frame)
        frame[at : at + (how != "i")] = b"" if how == "d" else bytes([value])
    found = outcome(bytes(frame))
    if isinstance(found, WireError):
        assert found.field
    else:
        again = wire.encode(found.body, found.source, found.target, found.floor)
        assert wire.decode(again[PREFIX_LENGTH:]) == found


@given(st.sampled_from(FRAMES), st.binary(max_size=60))
def test_any_body_gives_nothing_but_wire_errors(kind: type[wire.Body], body: bytes) -> None:
    found = outcome(header(kind=kind.KIND) + body)
    assert not isinstance(found, WireError) or found.field


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4),
        st.binary(max_size=9),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)  # fmt: skip


@given(st.sampled_from(FRAMES), st.data())
def test_any_value_in_any_field_gives_nothing_but_wire_errors(kind: type[wire.Body], data: st.DataObject) -> None:
    fields = sample(kind)
    at = data.draw(st.integers(0, len(fields) - 1))
    fields[at] = data.draw(values)
    found = outcome(frame_of(kind, fields))
    if isinstance(found, WireError):
        assert found.field.split("[")[0] == f"{kind.__name__.lower()}.{kind.__struct_fields__[at]}"


@pytest.mark.parametrize("message", ["?", "odd - at `$`", "odd - at `$[...]`", "odd - at `$[9]`", "odd - at `$.a`"])
def test_a_message_of_another_form_names_the_frame(message: str) -> None:
    """What a later msgspec may say must not break the decoder."""
    assert wire._field(wire.Ack, message) == "ack"


# -- packed indices --------------------------------------------------------------------------------------------------


def check_packed() -> None:
    some = np.array([0, 3, 9], np.int32)
    raw = wire.pack_indices(some)
    assert raw == struct.pack("<3i", 0, 3, 9)
    assert wire.pack_indices(some.astype(">i4")) == raw
    found = wire.unpack_indices("metadata.pages", raw, 3, 10)
    assert found.dtype == np.int32
    assert found.tolist() == [0, 3, 9]
    assert wire.unpack_indices("metadata.pages", b"", 0, 0).tolist() == []
    for bad, count, items in [
        (raw, 2, 10), (raw, 4, 10), (raw[:-1], 3, 10), (b"", 1, 10), (b"\0", 0, 10),
        (raw, 3, 9), (raw, 3, 0), (struct.pack("<2i", 4, -1), 2, 10), (struct.pack("<I", 2**31), 1, 2**31 - 1),
    ]:  # fmt: skip
        with pytest.raises(WireError) as caught:
            wire.unpack_indices("metadata.pages", bad, count, items)
        assert caught.value.field == "metadata.pages"


def test_packed_indices() -> None:
    check_packed()


# -- mutants ---------------------------------------------------------------------------------------------------------


@named(
    [
        Mutant(wire, "unpack_indices", "high >= items", "high > items"),
        Mutant(wire, "unpack_indices", "low < 0 or", "low < -1 or"),
        Mutant(wire, "unpack_indices", "len(packed) != 4 * count", "len(packed) < 4 * count"),
    ]
)
def test_mutants_of_packed_indices_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_packed)


@named(
    [
        Mutant(wire, "decode", "if version != VERSION", "if version > VERSION"),
        Mutant(wire, "decode", "if reserved:", "if reserved & 255:"),
        Mutant(wire, "decode", "len(frame) <= HEADER_LENGTH", "len(frame) < HEADER_LENGTH"),
    ]
)
def test_mutants_of_the_header_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_header)


@named(
    [
        Mutant(wire, "frame_length", "HEADER_LENGTH < length", "HEADER_LENGTH <= length"),
        Mutant(wire, "frame_length", "length <= limit", "length <= FRAME_MAX"),
    ]
)
def test_mutants_of_the_length_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_lengths)


@named(
    [
        Mutant(wire, "_field", "for i in indices[1:]", "for i in indices[2:]"),
        Mutant(wire, "_field", "fields[int(indices[0])]", "fields[0]"),
    ]
)
def test_mutants_of_the_names_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_wrong_fields)


def test_wrongs_are_made_from_the_types() -> None:
    assert Wrong([0], "ack.grant", "low") in list(wrongs(wire.Ack))
