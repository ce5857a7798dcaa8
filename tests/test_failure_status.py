"""Reasons are a closed set with words; the first cause wins; a status only moves forward."""

from __future__ import annotations

import itertools

import pytest
from mutants import Mutant, dies, named

from kvrooms.protocol import events, failure, status, wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.events import DEADLINE_REASON, Timer
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.status import Phase, Status


def test_every_reason_has_its_own_words() -> None:
    assert len(Reason) == 18
    assert len({reason.meaning for reason in Reason}) == len(Reason)
    assert all(reason.meaning.endswith(".") and reason.value == reason.name.lower() for reason in Reason)


def test_what_may_be_tried_again() -> None:
    final = {reason for reason in Reason if not reason.retryable}
    assert final == {
        Reason.MISMATCH,
        Reason.HANDSHAKE_REFUSED,
        Reason.PROTOCOL,
        Reason.ABORTED,
        Reason.PEER_ABORTED,
    }
    assert Failure(Reason.SHUTDOWN).retryable
    assert not Failure(Reason.MISMATCH, "pages: 3 and 4").retryable


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("again", [None, True, False])
def test_the_other_side_goes_by_the_word_of_whoever_failed_the_room(reason: Reason, again: bool | None) -> None:
    mine = Failure(reason, "words", again=again)
    theirs = Failure.heard(*mine.told)
    assert theirs.retryable is mine.retryable is (reason.retryable if again is None else again)
    assert (theirs.reason, theirs.detail, theirs.origin) == (reason.mirrored, "words", "peer")
    assert Failure.heard(*theirs.told) == theirs, "it can be passed on"
    assert theirs.again is None or theirs.again is not theirs.reason.retryable, "one value for what is the same"


def test_the_peer_sees_my_abort_as_the_peers() -> None:
    assert Reason.ABORTED.mirrored is Reason.PEER_ABORTED
    assert all(reason.mirrored is reason for reason in Reason if reason is not Reason.ABORTED)
    assert all(reason.mirrored.retryable == reason.retryable for reason in Reason)


def test_a_failure_speaks() -> None:
    assert str(Failure(Reason.MISMATCH, "pages: 3 and 4", "peer")) == "mismatch (peer): pages: 3 and 4"
    assert str(Failure(Reason.SHUTDOWN)) == f"shutdown (local): {Reason.SHUTDOWN.meaning}"


def check_first_cause() -> None:
    def rank(cause: Failure) -> int:
        ours = {Reason.SEND_ERROR: 0, Reason.TRANSPORT_ERROR: 1} if cause.origin == "local" else {}
        return 3 if cause.reason is Reason.PEER_FAILED else ours.get(cause.reason, 2)

    every = [Failure(reason, origin=origin) for reason in Reason for origin in ("local", "peer")]
    for causes in itertools.permutations(every, 2):
        expected = min(causes, key=rank)  # among equals the one delivered first
        assert failure.first_cause(list(causes)) is expected
    only = Failure(Reason.PEER_FAILED)
    assert failure.first_cause([only]) is only


def test_the_first_cause() -> None:
    check_first_cause()


@named(
    [
        Mutant(failure, "first_cause", "min(", "max("),
        Mutant(failure, "_rank", "return 3", "return 2"),
        Mutant(failure, "_rank", "return 3", "return 0"),
        Mutant(failure, "_rank", 'cause.origin == "peer"', "False"),
    ]
)
def test_mutants_of_the_first_cause_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_first_cause)


def test_status_of_every_phase() -> None:
    found = {(phase, moved): status.status_of(phase, moved) for phase in Phase for moved in (False, True)}
    for moved in (False, True):
        assert found[Phase.METADATA, moved] is Status.BOOTSTRAPPING
        assert found[Phase.DONE, moved] is Status.DONE
        assert found[Phase.FAILED, moved] is Status.FAILED
        for phase in (Phase.KV, Phase.AUX, Phase.STATE):
            assert found[phase, moved] is (Status.TRANSFERRING if moved else Status.WAITING)
    assert {one for one in Status if one.terminal} == {Status.DONE, Status.FAILED}


def test_every_room_deadline_has_its_reason() -> None:
    assert set(DEADLINE_REASON) == set(Timer) - {Timer.ABORT_RETRY}
    assert {reason.value for reason in DEADLINE_REASON.values()} == {f"deadline_{t.value}" for t in DEADLINE_REASON}
    assert all(reason.retryable for reason in DEADLINE_REASON.values())


def test_commands_speak() -> None:
    assert str(events.Command(events.Do.ARM, Timer.CAP)) == "ARM(CAP)"
    assert str(events.Command(events.Do.FREE)) == "FREE"


def test_a_reason_of_a_later_version_is_a_malformed_frame_and_not_taken_for_another() -> None:
    """None is made up for it, whatever the frame says of another attempt."""
    frame = wire.encode(wire.Failed(3, Reason.SEND_ERROR, "x", True), 1, 2, 0)[wire.PREFIX_LENGTH :]
    assert wire.decode(frame).body == wire.Failed(3, Reason.SEND_ERROR, "x", True)
    strange = frame.replace(b"send_error", b"lend_error")
    assert strange != frame
    with pytest.raises(WireError, match="lend_error"):
        wire.decode(strange)
