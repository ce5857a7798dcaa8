"""Sides of several ranks under the suite: whole items, one outcome, what is put to them, and a rank that is wrong."""

from __future__ import annotations

import pytest

from kvrooms.harness.conformance.checks_ranks import FURTHER
from kvrooms.harness.conformance.own_nixl import KvroomsNixl
from kvrooms.harness.conformance.own_pool import blank, whole
from kvrooms.harness.conformance.own_ranks import OwnRanks
from kvrooms.harness.conformance.own_sim import KvroomsSim
from kvrooms.harness.conformance.plan import Plan, RoomPlan
from kvrooms.harness.conformance.play import play
from kvrooms.harness.conformance.stage import Stage
from kvrooms.harness.conformance.subject import ABSENT, ComponentShape, Item, Refused, Request, Shape, Unsupported
from kvrooms.harness.conformance.suite import default_effort, run

SHAPE = Shape(1024, 8, 8, 16, 4, 4, (ComponentShape("window", "when_indexed", 64, 8, 8),), (2, 4))
ITEMS = [(Item("kv", 2), 1024), (Item("aux", 1), 16), (Item("state", 3, 0), 64)]


def painted(length):
    return bytes(number * 7 % 251 for number in range(length))


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_ranks_have_an_item_in_parts_and_all_of_it_together(side):
    pools = [blank(SHAPE, side, rank) for rank in range(SHAPE.ranks_of(side))]
    for item, length in ITEMS:
        for pool in pools:
            pool.fill(item, painted(length))
        assert whole(pools, item) == painted(length)
        parts = [len(pool.read(item)) for pool in pools]
        assert parts == [length if item.kind == "aux" else length // len(pools)] * len(pools)


def test_what_one_rank_has_not_got_is_seen():
    pools = [blank(SHAPE, "decode", rank) for rank in range(4)]
    for item, length in ITEMS:
        for pool in pools:
            pool.fill(item, painted(length))
        pools[2].fill(item, bytes(length))
        assert whole(pools, item) != painted(length)


def test_a_page_that_cannot_be_split_is_not_possible():
    with pytest.raises(Unsupported, match="cells for 3 ranks"):
        blank(SHAPE._replace(ranks=(3, 1)), "prefill")


class Rank:
    """A rank that answers as it is told."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __call__(self, method, *arguments):
        self.calls.append((method, *arguments))
        answer = self.answers.get(method, 1)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_side_is_open_until_every_rank_has_ended_and_all_must_say_the_same():
    def said(*statuses):
        return OwnRanks([Rank(poll=status) for status in statuses]).poll((1,) * len(statuses))

    assert said("done", "open") == "open"
    assert said("done", "done") == "done"
    assert said("failed", "failed") == "failed"
    with pytest.raises(AssertionError, match="different outcomes: done, failed"):
        said("done", "failed")


def test_what_one_rank_refuses_the_others_give_up():
    first, second = Rank(open=7), Rank(open=Refused("no"))
    with pytest.raises(Refused, match="no"):
        OwnRanks([first, second]).open(Request(1, 0, (0,), 0))
    assert first.calls[-1] == ("close", 7)


def test_each_rank_reads_an_iterator_of_its_own():
    ranks = [Rank(), Rank()]
    OwnRanks(ranks).open(Request(1, 0, (0,), 0, iter([[3]])))
    OwnRanks(ranks).each((1, 1), "send", (0,), iter([[3]]), True)
    assert [list(rank.calls[0][1].state_indices) for rank in ranks] == [[[3]], [[3]]]
    assert [list(rank.calls[1][3]) for rank in ranks] == [[[3]], [[3]]]
    assert OwnRanks(ranks).each((1, 1), "send", (0,), ABSENT, True) == [1, 1]
    assert ranks[0].calls[-1][3] is ABSENT


def test_several_ranks_are_put_to_these_properties():
    assert [check.id for check in FURTHER] == ["L2", "L3", "S1", "A1"]
    [outcome] = run(KvroomsSim(), default_effort(KvroomsSim(), examples=6), ("S1",))
    assert outcome.not_offered == ()

    class Alone(KvroomsSim):
        traits = KvroomsSim.traits._replace(ranks=frozenset())

    [outcome] = run(Alone(), default_effort(Alone(), examples=6), ("S1",))
    assert (outcome.ok, outcome.not_offered) == (True, ("sides of several ranks",))


class Forgetful(KvroomsSim):
    """Decode's second rank is not told of state."""

    def _rank(self, side, rank, group):
        own = super()._rank(side, rank, group)
        if (side, rank) == ("decode", 1):
            opened = own.open
            own.open = lambda request: opened(request._replace(state_indices=ABSENT))
        return own


def test_a_rank_that_is_not_told_of_state_is_found_and_the_ranks_are_named():
    subject = Forgetful()
    [outcome] = run(subject, default_effort(subject, examples=40), ("L2",))
    assert outcome.ok is False
    said = outcome.counterexample.input
    assert said["ranks"] == "1 prefill, 2 decode"
    assert "rank 1" in outcome.counterexample.text()


def test_a_dead_rank_ends_the_rooms_of_all_of_them():
    subject = KvroomsSim()
    stage = Stage(subject, SHAPE._replace(ranks=(2, 2)), patience_s=1.0, deadline_s=None, seed=0)
    subject.hold_writes(held=True)
    [live] = play(stage, Plan((RoomPlan(state=(1,)),)))
    stage.rest()
    stage.kill("prefill")
    assert stage.settle(lambda: live.ended)
    assert live.state == {"prefill": "gone", "decode": "failed"}
    with pytest.raises(Unsupported, match="several ranks"):
        stage.restart("prefill")


@pytest.mark.nixl
def test_on_real_nixl_two_ranks_send_to_two():
    stage = Stage(KvroomsNixl(), SHAPE._replace(ranks=(2, 2)), patience_s=20.0, deadline_s=None, seed=0)
    try:
        [live] = play(stage, Plan((RoomPlan((2, 1), (1,)),)))
        assert stage.settle(lambda: live.ended)
        assert live.state == {"prefill": "done", "decode": "done"}
        assert live.wrong_at_done is None
        assert not stage.subject.ailments("decode")
    finally:
        stage.stop()
