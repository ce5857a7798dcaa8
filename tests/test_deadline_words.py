"""A passed deadline names the ranks that hold a room up, and no others; on both sides, in each phase."""

from __future__ import annotations

from typing import Any

import pytest
from mutants import Mutant, dies, named
from test_engine_ranks import BY_KIND, HYBRID, OneName, held, pass_time, ranks_of, writes_of

from kvrooms.engine import overdue, prefill_core
from kvrooms.engine.core import Record
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probes_ranks import STAGES
from kvrooms.harness.mutants.probes_shapes import FOUR, HEADS, ONE, TWO, shape
from kvrooms.harness.ranks import Ranks
from kvrooms.protocol.failure import DETAIL_MAX, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Phase


def one_name(prefill: Any, decode: Any, **settings: float) -> Ranks:
    """All prefill ranks have one name, as in a deployment."""
    return OneName(shape(HEADS, prefill, decode, prompts=(5, 4)), settings=EngineSettings(**settings))


def said(room: Any, reason: Reason) -> str:
    """Why a room has failed by its own deadline."""
    assert (room.failure.reason, room.failure.origin) == (reason, "local"), room.failure
    return str(room.failure.detail)


def awaited(words: str) -> str:
    """Whom it waited for, and what was open."""
    return words.partition("waiting for ")[2].partition("; no progress")[0]


# -- decode ------------------------------------------------------------------------------------------------------------


def check_one_does_not_answer() -> None:
    ranks = one_name(FOUR, ONE, bootstrap_timeout_s=5.0)
    receiver = ranks.receive(0, 0)
    for rank in (0, 1, 3):
        ranks.offer(0, rank)
    ranks.world.settle()
    pass_time(ranks, 6.0)
    assert awaited(said(receiver, Reason.DEADLINE_BOOTSTRAP)) == "prefill-0 rank 2; open: the answer to METADATA"


def check_two_do_not_answer() -> None:
    """One of them cannot even be reached: why, stands beside its name, and beside no other."""
    ranks = one_name(FOUR, ONE, bootstrap_timeout_s=5.0)
    for runner in ranks.world._runners:
        if runner.transport is ranks.prefills[0, 3].transport:
            runner.core.name = "stands still"
    ranks.world.stall("stands still")
    receiver = ranks.receive(0, 0)
    for rank in (0, 2):
        ranks.offer(0, rank)
    ranks.world.settle()
    pass_time(ranks, 6.0)
    words = awaited(said(receiver, Reason.DEADLINE_BOOTSTRAP))
    assert words == "prefill-0 rank 1, prefill-0 rank 3 (world:4 does not answer); open: the answer to METADATA"


def check_one_does_not_send() -> None:
    """Of two stages one has sent all; the other owes its pages, and then the state that it alone has."""
    for sent in (False, True):
        ranks = ranks_of(BY_KIND, ONE, HYBRID, settings=EngineSettings(waiting_timeout_s=4.0, moving_timeout_s=4.0))
        held(ranks, 0)
        first, second = (ranks.prefills[0, rank] for rank in (0, 1))
        done, late = (first, second) if sent else (second, first)
        for write in writes_of(ranks, done):
            ranks.world.finish(write)
        ranks.world.settle()
        pass_time(ranks, 5.0)
        words = awaited(said(ranks.decodes[0].rooms[0], Reason.DEADLINE_MOVING))
        assert words.startswith(f"{late.name} rank {late.key[2]}; open: "), words
        assert ("'window'" in words) is sent, words


def check_who_is_not_registered() -> None:
    ranks = Ranks(shape(HEADS, FOUR, ONE, prompts=(5,)), settings=EngineSettings(bootstrap_timeout_s=4.0), start=False)
    for member in (*ranks.decodes.values(), ranks.prefills[0, 0], ranks.prefills[0, 2]):
        ranks.start(member)
    receiver = ranks.receive(0, 0)
    pass_time(ranks, 5.0)
    words = awaited(said(receiver, Reason.DEADLINE_BOOTSTRAP))
    assert words.startswith("prefill-0 rank 1 (0 engines fit"), words
    assert "prefill-0 rank 3 (0 engines fit" in words
    assert "rank 0 " not in words.replace("rank 0,", "")
    assert "which ranks send" in words


# -- prefill -----------------------------------------------------------------------------------------------------------


def check_one_does_not_ask() -> None:
    ranks = ranks_of(ONE, FOUR, settings=EngineSettings(queued_timeout_s=5.0))
    sender = ranks.offer(0, 0)
    for rank in (0, 1, 3):
        ranks.receive(0, rank)
    ranks.send(0, 0)
    ranks.world.settle()
    pass_time(ranks, 6.0)
    words = said(sender, Reason.DEADLINE_BOOTSTRAP)
    assert awaited(words).startswith("receiver 2 of 4; open: its METADATA; handed over"), words
    assert "counted from 0, decode-0 0 (receiver 0 of 4), decode-0 1 (receiver 1 of 4), decode-0 3" in words


def check_one_write_does_not_settle() -> None:
    ranks = ranks_of(ONE, TWO, settings=EngineSettings(moving_timeout_s=3.0))
    held(ranks, 0)
    for write in list(ranks.world.writes):
        if write.target is ranks.decodes[0].transport:
            ranks.world.finish(write)
    ranks.world.settle()
    pass_time(ranks, 4.0)
    words = awaited(said(ranks.prefills[0, 0].rooms[0], Reason.DEADLINE_MOVING))
    assert words.startswith("decode-0 1 (receiver 1 of 2); open: pages 0 to 2 of 3, aux; handed"), words


def check_the_caller_is_late() -> None:
    """Two decode ranks have asked, a part has settled at both: it is nobody's turn but the caller's."""
    for sent in (False, True):
        ranks = ranks_of(STAGES, TWO, settings=EngineSettings(queued_timeout_s=5.0))
        for rank in (0, 1):
            ranks.offer(0, rank)
            ranks.receive(0, rank)
        if sent:
            ranks.prefills[0, 0].rooms[0].send([ranks.rooms[0].prefill[0].valid_pages[0]])
        ranks.send(0, 1)
        ranks.world.settle()
        pass_time(ranks, 6.0)
        words = said(ranks.prefills[0, 0].rooms[0], Reason.DEADLINE_WAITING)
        assert awaited(words).startswith("the caller of prefill-0 0; open: its next send, for page"), words
        assert "does whatever computes this request still run" in words
        assert "decode" not in words


def check_the_cap() -> None:
    """Whatever it is that holds a room up at the end of its life."""
    for settings, who in (
        ({"queued_timeout_s": 60.0, "cap_timeout_s": 4.0}, "receiver 1 of 2"),
        ({"moving_timeout_s": 60.0, "cap_timeout_s": 4.0}, "decode-0 1 (receiver 1 of 2)"),
    ):
        ranks = ranks_of(ONE, TWO, settings=EngineSettings(**settings))
        ranks.world.writes_held = True
        ranks.offer(0, 0)
        ranks.receive(0, 0)
        if "moving_timeout_s" in settings:
            ranks.receive(0, 1)
        ranks.send(0, 0)
        ranks.world.settle()
        for write in list(ranks.world.writes):
            if write.target is ranks.decodes[0].transport:
                ranks.world.finish(write)
        pass_time(ranks, 5.0)
        words = said(ranks.prefills[0, 0].rooms[0], Reason.DEADLINE_CAP)
        assert awaited(words).startswith(f"{who}; open: "), words
        assert words.endswith("whatever progress it makes")


CHECKS = (
    check_one_does_not_answer,
    check_two_do_not_answer,
    check_one_does_not_send,
    check_who_is_not_registered,
    check_one_does_not_ask,
    check_one_write_does_not_settle,
    check_the_caller_is_late,
    check_the_cap,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_who_holds_a_room_up_is_named(check: Any) -> None:
    check()


@named([
    Mutant(overdue, "_owed_to", "if not sender.accepted", "if sender.accepted"),
    Mutant(overdue, "_owed_to", "if asked:", "if False:"),
    Mutant(overdue, "_owed_to", "if account.owes(sender.missing)", "if True"),
    Mutant(overdue, "_owed_to", "for rank in unknown]", "for rank in unknown[:0]]"),
    Mutant(overdue, "_from", "link.up", "True"),
    Mutant(overdue, "_from", "if not name:", "if False:"),
    Mutant(overdue, "_owed_by", "if receiver is None]", "if receiver is not None]"),
    Mutant(overdue, "_owed_by", "if _busy(writer)]", "]"),
    Mutant(overdue, "_owed_by", "if busy:", "if False:"),
    Mutant(prefill_core, "late_on_prefill", "if timer is Timer.CAP", "if False"),
])  # fmt: skip
def test_the_checks_of_words_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def all_of_them() -> None:
        for check in CHECKS:
            check()

    dies(all_of_them)


# -- how much is said --------------------------------------------------------------------------------------------------


def overdue_words(those: list[overdue.Open]) -> str:
    record = Record(RoomKey(7, 0), EngineSettings(), 0.0)
    return overdue.overdue(record, 3.0, Phase.KV, those, "look there")


def test_what_differs_between_ranks_is_said_of_each() -> None:
    words = overdue_words(
        [overdue.Open("a", "page 1 of 2"), overdue.Open("b", "aux"), overdue.Open("c", "page 1 of 2")]
    )
    assert awaited(words) == "a, b, c; open: page 1 of 2 from a, c; aux from b"


def test_many_ranks_are_counted_and_not_listed() -> None:
    words = overdue_words([overdue.Open(f"rank {i}", "aux") for i in range(100)])
    assert awaited(words) == "rank 0, rank 1, rank 2, rank 3 and 96 more; open: aux"
    words = overdue_words([overdue.Open(f"rank {i}", f"page {i}") for i in range(100)])
    assert awaited(words).endswith("page 3 from rank 3; ...")


def test_long_names_leave_place_for_where_to_look() -> None:
    words = overdue_words([overdue.Open(f"{i}" * 400, f"page {i}") for i in range(4)])
    assert len(words) == DETAIL_MAX
    assert words.endswith("; no progress for 3.0 s; look there")
