"""The frames of a group's ranks: what is written is read, and neither kind of connection takes the other's frames."""

from __future__ import annotations

import pytest

from kvrooms.fuzz import samples
from kvrooms.protocol import group, wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.failure import DETAIL_MAX, Failure, Reason
from kvrooms.protocol.group import Cause, Received

PREFIX = 4


def test_every_frame_is_read_as_it_was_written() -> None:
    bodies = [group.decode(sample.whole).body for sample in samples.group_frames()]
    assert {type(body) for body in bodies} == set(group.FRAMES)
    for body in bodies:
        assert group.decode(wire.encode(body, 7, 9)[PREFIX:]) == Received(7, 9, body)


def test_frames_of_the_other_kind_of_connection_are_refused() -> None:
    for body, decode in ((wire.Ping(1), group.decode), (group.Resume(1), wire.decode)):
        with pytest.raises(WireError, match=f"^kind: {body.KIND} is no frame of version {wire.VERSION}$"):
            decode(wire.encode(body, 7, 9)[PREFIX:])


def test_a_field_that_is_wrong_is_named() -> None:
    with pytest.raises(WireError, match=r"^resume\.rank: Expected `int` >= 0 - at `\$\[0\]`$"):
        group.decode(wire.encode(group.Resume(-1), 7, 9)[PREFIX:])


def test_a_cause_is_told_to_each_rank_as_it_must_see_it() -> None:
    cause = Cause(2, Failure(Reason.SEND_ERROR, "the disk is full", "local", again=False))
    assert cause.for_rank(2) is cause.failure
    words = "rank 2 of the group: send_error: the disk is full"
    assert cause.for_rank(0) == Failure(Reason.SEND_ERROR, words, "peer", again=False)
    said_nothing = Cause(2, Failure(Reason.SEND_ERROR)).for_rank(0)
    assert said_nothing.detail == f"rank 2 of the group: send_error: {Reason.SEND_ERROR.meaning}"
    assert said_nothing.again is None
    wordy = Cause(2, Failure(Reason.SEND_ERROR, "x" * DETAIL_MAX)).for_rank(0)
    assert len(wordy.detail) == DETAIL_MAX
