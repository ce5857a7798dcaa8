"""Names, limits, and the errors that say which argument was wrong."""

from __future__ import annotations

import numpy as np
import pytest

from kvrooms.protocol import identity
from kvrooms.protocol.errors import (
    EngineClosed,
    HandshakeRefused,
    InvalidArgument,
    KvroomsError,
    PeerGone,
    RoomClosed,
    RoomFailed,
    TransportError,
    WireError,
)
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import ATTEMPT_MAX, ROOM_MAX, RoomKey, check_int, room_key


@pytest.mark.parametrize("value", [0, 5, 9, np.int8(5), np.uint64(9), np.array(3)])
def test_integers_of_any_kind_are_integers(value: object) -> None:
    number = check_int("field", value, 0, 9)
    assert type(number) is int
    assert number == value


@pytest.mark.parametrize("value", [-1, 10, 2**70, True, False, 1.0, "1", None, [1], np.bool_(True), np.float32(1)])
def test_what_is_no_integer_in_range_is_named(value: object) -> None:
    with pytest.raises(InvalidArgument, match="field: must be") as caught:
        check_int("field", value, 0, 9)
    assert caught.value.field == "field"
    assert caught.value.value is value


def test_room_keys() -> None:
    assert room_key(0) == RoomKey(0, 0)
    assert room_key(ROOM_MAX, ATTEMPT_MAX) == RoomKey(2**63 - 1, 2**32 - 1)
    assert str(room_key(7)) == "room 7"
    assert str(room_key(7, 2)) == "room 7 attempt 2"
    for room, attempt, field in [(-1, 0, "room"), (2**63, 0, "room"), (0, -1, "attempt"), (0, 2**32, "attempt")]:
        with pytest.raises(InvalidArgument) as caught:
            room_key(room, attempt)
        assert caught.value.field == field


def test_agent_names_hold_the_whole_incarnation() -> None:
    names = {identity.agent_name(n) for n in (1, 2, 2**63, 2**64 - 1)}
    assert len(names) == 4
    assert {len(name) for name in names} == {len("kvrooms-") + 16}


def test_errors_say_what_they_know() -> None:
    long = InvalidArgument("pages", "x" * 500, "must be short")
    assert len(str(long)) < 160
    assert str(long).endswith("...)")
    assert str(InvalidArgument("pages", 3, "must be 4")) == "pages: must be 4 (got 3)"
    assert str(WireError("hello.blob", "too long")) == "hello.blob: too long"
    assert str(HandshakeRefused(("a", "b"))) == "a; b"
    failed = RoomFailed("room 3", Failure(Reason.ABORTED), (Failure(Reason.SHUTDOWN),))
    assert str(failed) == f"room 3: aborted (local): {Reason.ABORTED.meaning}"
    assert failed.failure.reason is Reason.ABORTED
    assert [cause.reason for cause in failed.context] == [Reason.SHUTDOWN]
    kinds = (
        InvalidArgument,
        WireError,
        HandshakeRefused,
        TransportError,
        PeerGone,
        RoomFailed,
        RoomClosed,
        EngineClosed,
    )
    assert all(issubclass(kind, KvroomsError) for kind in kinds)
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(PeerGone, TransportError)
