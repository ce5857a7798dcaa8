"""Notifications: what goes in comes out, and anything else is refused with the field named."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, hunt, named
from samples import u64

from kvrooms.protocol import notify
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.identity import COMPONENTS_MAX, ITEMS_MAX
from kvrooms.protocol.notify import PARTS_MAX, Part, PartKind

HEAD, PART = 20, 12


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from(PartKind))
    component = draw(st.integers(0, COMPONENTS_MAX - 1)) if kind is PartKind.STATE else 0
    first = draw(st.integers(0, ITEMS_MAX - 1))
    return Part(kind, component, first, draw(st.integers(1, ITEMS_MAX - first)))


lists_of_parts = st.lists(parts(), min_size=1, max_size=6).map(tuple)


def check_round_trip(grant: int, token: int, some: tuple[Part, ...], digest: bool) -> None:
    digests = tuple(bytes([i]) * notify.DIGEST_LENGTH for i in range(len(some))) if digest else ()
    message = notify.encode(grant, token, some, digests)
    assert len(message) == HEAD + (PART + 16 * digest) * len(some)
    decoded = notify.decode(message)
    assert decoded == (grant, token, some, digests)
    assert all(type(part.kind) is PartKind for part in decoded.parts)


test_round_trip = given(grant=u64, token=u64, some=lists_of_parts, digest=st.booleans())(check_round_trip)


def test_the_most_parts() -> None:
    some = tuple(Part(PartKind.STATE, i % COMPONENTS_MAX, i, 1) for i in range(PARTS_MAX))
    assert notify.decode(notify.encode(1, 2, some)).parts == some


def message(**changes: int) -> bytes:
    """A message of one part with some fields changed."""
    values = {"version": 1, "parts": 1, "grant": 5, "token": 6, "kind": 3, "component": 2, "reserved": 0, "first": 4}
    values |= {"count": 1} | changes
    head = struct.pack("<2sBBQQ", b"KR", *(values[name] for name in ("version", "parts", "grant", "token")))
    fields = ("kind", "component", "reserved", "first", "count")
    return head + struct.pack("<BBHII", *(values[name] for name in fields))


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "length"),
    (b"x" + message()[1:], "magic"),
    (b"", "length"),
    (message(version=0), "version"),
    (message(version=3), "version"),
    (message(version=2), "length"),
    (message(parts=0), "parts"),
    (message(parts=PARTS_MAX + 1), "parts"),
    (message(parts=2), "length"),
    (message() + b"\0", "length"),
    (message() + message()[HEAD:], "length"),
    (message(kind=0), "part.kind"),
    (message(kind=4), "part.kind"),
    (message(component=COMPONENTS_MAX), "part.component"),
    (message(component=255), "part.component"),
    (message(kind=1, component=1), "part.component"),
    (message(kind=2, component=1), "part.component"),
    (message(reserved=1), "part.reserved"),
    (message(count=0), "part.count"),
    (message(first=0, count=ITEMS_MAX + 1), "part.count"),
    (message(first=ITEMS_MAX, count=1), "part.count"),
    (message(first=2**32 - 1, count=2**32 - 1), "part.count"),
    (b"12345:prefill_rank_0:kv", "magic"),  # a tag of another dialect
]


def check_malformed() -> None:
    assert notify.decode(message()).parts == (Part(PartKind.STATE, 2, 4, 1),)
    edge = message(first=ITEMS_MAX - 1, component=COMPONENTS_MAX - 1)
    assert notify.decode(edge).parts == (Part(PartKind.STATE, COMPONENTS_MAX - 1, ITEMS_MAX - 1, 1),)
    for bad, field in MALFORMED:
        with pytest.raises(WireError) as caught:
            notify.decode(bad)
        assert caught.value.field == field, bad
    whole = message()
    for length in range(len(whole)):
        with pytest.raises(WireError) as caught:
            notify.decode(whole[:length])
        assert caught.value.field == "length"


def test_every_malformed_kind_is_named() -> None:
    check_malformed()


@given(lists_of_parts, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_give_nothing_but_wire_errors(some: tuple[Part, ...], changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(notify.encode(9, 8, some))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    try:
        decoded = notify.decode(bytes(mutated))
    except WireError:
        return
    assert notify.encode(*decoded) == mutated


@given(st.binary(max_size=80))
def test_any_bytes_give_nothing_but_wire_errors(some: bytes) -> None:
    try:
        decoded = notify.decode(some)
    except WireError:
        return
    assert notify.encode(*decoded) == some


@named(
    [
        Mutant(notify, "decode", "if reserved:", "if False:"),
        Mutant(notify, "decode", "first + count > ITEMS_MAX", "first > ITEMS_MAX"),
        Mutant(notify, "decode", "first + count > ITEMS_MAX", "first + count >= ITEMS_MAX"),
        Mutant(notify, "decode", "not 1 <= count", "not 0 <= count"),
        Mutant(notify, "decode", "not 1 <= number", "not 0 <= number"),
        Mutant(notify, "decode", "component >= COMPONENTS_MAX", "component > COMPONENTS_MAX"),
        Mutant(notify, "decode", "component and known is not PartKind.STATE", "False"),
        Mutant(notify, "decode", "len(message) != ", "len(message) < "),
        Mutant(notify, "decode", "version not in (NOTIFY_VERSION, DIGEST_VERSION)", "version > DIGEST_VERSION"),
    ]
)
def test_mutants_of_the_decoder_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_malformed)


def test_a_mutant_of_the_encoder_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(notify, "encode", "0, first, count", "0, first + 1, count").plant(monkeypatch)
    dies(lambda: hunt(check_round_trip, grant=u64, token=u64, some=lists_of_parts, digest=st.booleans()))
