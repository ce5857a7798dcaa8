"""Exceptions carry what they say in words as values too, and their words are bounded."""

from __future__ import annotations

from kvrooms.protocol.errors import HandshakeRefused, InvalidArgument, RoomFailed, WireError
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
