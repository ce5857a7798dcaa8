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
from kvrooms.protocol.notify import PARTS_MAX, InSlot, Part, PartKind

HEAD, PART, SLOT = 20, 12, 12


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
    assert decoded == (grant, token, some, digests, None)
    assert all(type(part.kind) is PartKind for part in decoded.parts)


test_round_trip = given(grant=u64, token=u64, some=lists_of_parts, digest=st.booleans())(check_round_trip)


@st.composite
def in_slots(draw: st.DrawFn) -> InSlot:
    first = draw(st.integers(0, 2**32 - 2))
    return InSlot(draw(st.integers(0, 2**32 - 1)), first, draw(st.integers(first + 1, 2**32 - 1)))


def check_staged(grant: int, token: int, part: Part, staged: InSlot) -> None:
    message = notify.encode(grant, token, (part,), (), staged)
    assert len(message) == HEAD + PART + SLOT
    assert message[HEAD + PART :] == struct.pack("<III", *staged)
    decoded = notify.decode(message)
    assert decoded == (grant, token, (part,), (), staged)
    assert type(decoded.staged) is InSlot


test_what_lies_in_a_slot = given(grant=u64, token=u64, part=parts(), staged=in_slots())(check_staged)


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


def in_slot(slot: int = 7, first: int = 0, stop: int = 1, **changes: int) -> bytes:
    """A message of a part in a staging slot with some fields changed."""
    return message(version=3, **changes) + struct.pack("<III", slot, first, stop)


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "length"),
    (b"x" + message()[1:], "magic"),
    (b"", "length"),
    (message(version=0), "version"),
    (message(version=4), "version"),
    (message(version=255), "version"),
    (message(version=2), "length"),
    (message(version=3), "length"),
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
    (message(version=2, parts=2) + message()[HEAD:] + bytes(16), "length"),
    (in_slot()[:-1], "length"),
    (in_slot() + b"\0", "length"),
    (in_slot() + bytes(SLOT), "length"),
    (in_slot(parts=0), "parts"),
    (in_slot(parts=2), "parts"),
    (message(version=3, parts=2) + message()[HEAD:] + 2 * in_slot()[-SLOT:], "parts"),
    (in_slot(kind=0), "part.kind"),
    (in_slot(count=0), "part.count"),
    (in_slot(first=1, stop=1), "buffers"),
    (in_slot(first=2, stop=1), "buffers"),
    (in_slot(first=2**32 - 1, stop=0), "buffers"),
    (in_slot(first=0, stop=0), "buffers"),
    (b"12345:prefill_rank_0:kv", "magic"),  # a tag of another dialect
]


def check_malformed() -> None:
    assert notify.decode(message()).parts == (Part(PartKind.STATE, 2, 4, 1),)
    edge = message(first=ITEMS_MAX - 1, component=COMPONENTS_MAX - 1)
    assert notify.decode(edge).parts == (Part(PartKind.STATE, COMPONENTS_MAX - 1, ITEMS_MAX - 1, 1),)
    assert notify.decode(in_slot()).staged == InSlot(7, 0, 1)
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


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (message()[:5], f"length: 5 bytes cannot hold a notification's head of {HEAD}"),
        (message(parts=0)[:HEAD], f"parts: 0 is not between 1 and {PARTS_MAX}"),
        (b"xR" + message()[2:], "magic: b'xR' is not b'KR'"),
        (message(version=4), "version: 4 is none of 1, 2 and 3"),
        (in_slot(parts=2), "parts: 2 is not between 1 and 1"),
        (message(parts=2), f"length: {len(message())} bytes for 2 parts of version 1"),
        (in_slot(first=2, stop=1), "buffers: 2 to 1 is not a range"),
        (message(kind=4), "part.kind: 4 is no kind of part"),
        (message(kind=1, component=1), "part.component: 1 is no component of a KV part"),
        (message(reserved=9), "part.reserved: 9 must be 0"),
        (message(first=2, count=ITEMS_MAX), f"part.count: positions 2 to {ITEMS_MAX + 2} are not a range"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_said_in_words(bad: bytes, words: str) -> None:
    with pytest.raises(WireError) as caught:
        notify.decode(bad)
    assert str(caught.value) == words


@given(lists_of_parts, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_give_nothing_but_wire_errors(some: tuple[Part, ...], changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(notify.encode(9, 8, some))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    comes_back_or_is_refused(bytes(mutated))


@given(parts(), in_slots(), st.lists(st.tuples(st.integers(0, 43), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_of_what_lies_in_a_slot(part: Part, staged: InSlot, changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(notify.encode(9, 8, (part,), (), staged))
    for at, value in changes:
        mutated[at] = value
    comes_back_or_is_refused(bytes(mutated))


def comes_back_or_is_refused(some: bytes) -> None:
    try:
        decoded = notify.decode(some)
    except WireError:
        return
    assert notify.encode(*decoded) == some


@given(st.binary(max_size=80))
def test_any_bytes_give_nothing_but_wire_errors(some: bytes) -> None:
    comes_back_or_is_refused(some)


@named(
    [
        Mutant(notify, "_part", "if reserved:", "if False:"),
        Mutant(notify, "_part", "first + count > ITEMS_MAX", "first > ITEMS_MAX"),
        Mutant(notify, "_part", "first + count > ITEMS_MAX", "first + count >= ITEMS_MAX"),
        Mutant(notify, "_part", "not 1 <= count", "not 0 <= count"),
        Mutant(notify, "decode", "not 1 <= number", "not 0 <= number"),
        Mutant(notify, "_part", "component >= COMPONENTS_MAX", "component > COMPONENTS_MAX"),
        Mutant(notify, "_part", "component and known is not PartKind.STATE", "False"),
        Mutant(notify, "decode", "len(message) != ", "len(message) < "),
        Mutant(notify, "decode", "version not in _FURTHER", "version > STAGED_VERSION"),
        Mutant(notify, "decode", "1 if version == STAGED_VERSION else PARTS_MAX", "PARTS_MAX"),
        Mutant(notify, "decode", "staged.first >= staged.stop", "staged.first > staged.stop"),
        Mutant(notify, "decode", "number * _FURTHER[version]", "_FURTHER[version]"),
    ]
)
def test_mutants_of_the_decoder_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_malformed)


def test_a_mutant_of_the_encoder_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(notify, "encode", "0, first, count", "0, first + 1, count").plant(monkeypatch)
    dies(lambda: hunt(check_round_trip, grant=u64, token=u64, some=lists_of_parts, digest=st.booleans()))


def test_a_mutant_that_forgets_the_slot_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(notify, "encode", 'b"" if staged is None else _SLOT.pack(*staged)', 'b""').plant(monkeypatch)
    dies(lambda: hunt(check_staged, grant=u64, token=u64, part=parts(), staged=in_slots()))
