"""Every refusal of a frame, word for word: what an operator reads of a peer that speaks nonsense."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from kvrooms.protocol import wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.wire import FRAME_MAX, HEADER_LENGTH, PREFIX_LENGTH, unpack_indices

PING = wire.encode(wire.Ping(5), 7, 9)[PREFIX_LENGTH:]
HEAD = struct.Struct("<BBHQQQ")


def frame(version: int = wire.VERSION, kind: int = wire.Ping.KIND, reserved: int = 0) -> bytes:
    """The frame of a Ping with some of its header changed."""
    return HEAD.pack(version, kind, reserved, 7, 9, 0) + PING[HEADER_LENGTH:]


def packed(*indices: int) -> bytes:
    return struct.pack(f"<{len(indices)}i", *indices)


REFUSALS: dict[str, Callable[[], object]] = {
    f"length: {HEADER_LENGTH} is not between {HEADER_LENGTH + 1} and {FRAME_MAX}": lambda: wire.frame_length(
        struct.pack("<I", HEADER_LENGTH)
    ),
    f"length: 101 is not between {HEADER_LENGTH + 1} and 100": lambda: wire.frame_length(struct.pack("<I", 101), 100),
    f"length: {HEADER_LENGTH} bytes cannot hold a header and a body": lambda: wire.decode(PING[:HEADER_LENGTH]),
    "version: the peer speaks version 9, we speak version 1": lambda: wire.decode(frame(version=9)),
    "kind: 64 is no frame of version 1": lambda: wire.decode(frame(kind=64)),
    "reserved: 3 must be 0": lambda: wire.decode(frame(reserved=3)),
    "pages: 8 bytes, 12 are needed for 3 indices": lambda: unpack_indices("pages", packed(0, 1), 3, 9),
    "pages: index -1 is not between 0 and 8": lambda: unpack_indices("pages", packed(0, -1, 9), 3, 9),
    "pages: index 9 is not between 0 and 8": lambda: unpack_indices("pages", packed(0, 9), 2, 9),
    "pages: index 12 is not between 0 and 8": lambda: unpack_indices("pages", packed(1, 12, 9), 3, 9),
}


@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=words) for words, call in REFUSALS.items()])
def test_what_is_refused_and_in_which_words(call: Callable[[], object], words: str) -> None:
    with pytest.raises(WireError) as caught:
        call()
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("Expected `array` of at least length 2, got 1", "hold.attempt"),
        ("Expected `array` of at least length 2, got 0", "hold.room"),
        ("Expected `array` of at least length 2", "hold.room"),
        ("Expected `array` of at most length 2, got 2", "hold[2]"),
        ("Expected `array` of at most length 2, got 3", "hold[2]"),
        ("Expected `int` - at `$[1]`", "hold.attempt"),
        ("Expected `int` - at `$[1][7][...]`", "hold.attempt[7][...]"),
        ("Expected `int` - at `$[2]`", "hold"),
    ],
)
def test_the_field_that_a_decoding_error_speaks_of(message: str, field: str) -> None:
    assert wire._field(wire.Hold, message) == field


def test_who_speaks_to_whom() -> None:
    assert wire.decode(PING) == wire.Received(7, 9, 0, wire.Ping(5))
    assert wire.decode(wire.encode(wire.Ping(5), 7, 9, 3)[PREFIX_LENGTH:]).floor == 3
    longest = struct.pack("<I", FRAME_MAX)
    assert (wire.frame_length(longest), wire.frame_length(struct.pack("<I", 100), 100)) == (FRAME_MAX, 100)


def test_a_dialect_knows_its_frames_and_no_others() -> None:
    dialect = wire.Dialect((wire.Ping, wire.Pong))
    assert dialect.classes == {wire.Ping.KIND: wire.Ping, wire.Pong.KIND: wire.Pong}
    assert wire.decode(PING, dialect).body == wire.Ping(5)
    with pytest.raises(WireError, match=r"^kind: "):
        wire.decode(wire.encode(wire.Ack(1), 7, 9)[PREFIX_LENGTH:], dialect)
