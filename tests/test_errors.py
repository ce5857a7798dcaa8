"""Exceptions carry what they say in words as values too, and their words are bounded."""

from __future__ import annotations

from kvrooms.protocol.errors import GroupIncomplete, HandshakeRefused, InvalidArgument, RoomFailed, WireError
from kvrooms.protocol.failure import Failure, Reason, first_cause


def test_attributes() -> None:
    argument = InvalidArgument("pages", -1, "must not be negative")
    assert (argument.field, argument.value, argument.why) == ("pages", -1, "must not be negative")
    frame = WireError("length", "too short")
    assert (frame.field, frame.why, str(frame)) == ("length", "too short", "length: too short")
    refused = HandshakeRefused(("one", "two"))
    assert (refused.words, str(refused)) == (("one", "two"), "one; two")


def test_a_failed_room_says_what_was_met() -> None:
    cause, later, met = Failure(Reason.PEER_LOST), Failure(Reason.SHUTDOWN), object()
    failed = RoomFailed("room 7", cause, (later,), met)
    assert (failed.failure, failed.context, failed.met) == (cause, (later,), met)
    assert str(failed) == f"room 7: {cause}"
    assert (RoomFailed("room 7", cause).context, RoomFailed("room 7", cause).met) == ((), None)


def test_a_value_is_shown_in_at_most_120_characters() -> None:
    fits, cut = "x" * 118, "x" * 119  # a repr has two quotes more
    assert str(InvalidArgument("name", fits, "no")) == f"name: no (got '{fits}')"
    assert str(InvalidArgument("name", cut, "no")) == f"name: no (got '{'x' * 116}...)"


def test_what_the_peer_reports_comes_last() -> None:
    peer = Failure(Reason.PEER_FAILED)
    for reason in Reason:
        assert first_cause([peer, Failure(reason)]).reason is reason
        assert first_cause([Failure(reason), peer]).reason is reason


def test_a_group_that_is_incomplete_names_who_is_missing() -> None:
    error = GroupIncomplete("rank 0 of 4", 2.5, "the port is taken", (3,))
    assert (error.missing, error.why) == ((3,), "the port is taken")
    assert str(error) == "rank 0 of 4: after 2.5 s rank 3 had not joined: the port is taken"
    assert str(GroupIncomplete("g", 60.0, "", (1, 3))) == "g: after 60 s ranks 1, 3 had not joined"
    assert str(GroupIncomplete("g", 60.0, "", ())) == "g: after 60 s the leader had not joined"
