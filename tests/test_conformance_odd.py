"""A rank whose caller is given something else than the others: what is drawn, what each rank gets, what is found."""

from __future__ import annotations

import pytest
from conformance_toy import Toy
from hypothesis import Phase, find, settings

from kvrooms.harness.conformance.checks_odd import FURTHER
from kvrooms.harness.conformance.draws import INDEXED, shape_of
from kvrooms.harness.conformance.own_nixl import KvroomsNixl
from kvrooms.harness.conformance.own_ranks import OwnRanks
from kvrooms.harness.conformance.own_sim import KvroomsSim
from kvrooms.harness.conformance.plan import Odd, Plan, RoomPlan
from kvrooms.harness.conformance.play import play
from kvrooms.harness.conformance.reduce import smaller
from kvrooms.harness.conformance.stage import Stage
from kvrooms.harness.conformance.subject import ABSENT, OddRank, Request
from kvrooms.harness.conformance.suite import Session, default_effort, judge_check, run
from kvrooms.harness.mutants.catalogue import BY_NAME
from kvrooms.harness.mutants.plant import _function

SHAPE = shape_of(INDEXED)._replace(ranks=(2, 2))
[CHECK] = FURTHER


def judged(subject, examples=100):
    return judge_check(
        Session(subject, default_effort(subject, examples=examples, seconds=600.0, shrink_s=600.0)), CHECK
    )


# -- what is drawn -----------------------------------------------------------------------------------------------------


def drawn(wanted):
    """A room of this kind for which something is true; the first that comes."""
    plans = CHECK.draws(KvroomsSim(), SHAPE)
    kept = settings(max_examples=500, database=None, derandomize=True, phases=(Phase.generate,))
    return find(plans, lambda plan: wanted(plan.rooms[0]), settings=kept).rooms[0]


def test_one_rank_has_other_pages_other_state_or_another_prefix():
    assert drawn(lambda room: room.odd.pages > room.pages and room.odd.side == "decode").odd.rank in {0, 1}
    assert drawn(lambda room: room.odd.state != room.state).odd.state in {(0,), (1,), (2,)}
    other = drawn(lambda room: room.even)
    assert (other.odd.side, other.odd.pages, other.odd.state) == ("decode", other.pages, other.state)
    assert other.odd.held != other.held
    assert drawn(lambda room: room.odd.rank == 1).odd.rank == 1


def test_what_is_made_smaller_is_still_odd_or_does_not_fit():
    for odd in (Odd("decode", 1, 4, 2, (1,)), Odd("prefill", 1, 2, 0, (1,)), Odd("decode", 0, 3, 0, (1,))):
        plan = Plan((RoomPlan((2, 1), (1,), held=1, odd=odd),))
        assert CHECK.fits(plan)
        steps = [less.rooms[0] for less in smaller(plan, KvroomsSim.traits) if less.size < plan.size]
        fitting = [room for room in steps if CHECK.fits(Plan((room,)))]
        assert fitting
        for room in fitting:
            assert room.odd.pages >= 1
            assert room.odd.held <= room.odd.pages
            assert room.held <= room.pages
        assert any(room.odd.rank == 0 for room in fitting)
        assert any(len(room.chunks) == 1 for room in fitting)


# -- what each rank gets -----------------------------------------------------------------------------------------------


class Rank:
    """A rank that takes down its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, method, *arguments):
        self.calls.append((method, *arguments))
        return 7


def test_each_rank_opens_and_sends_what_it_was_given():
    ranks = [Rank(), Rank()]
    side = OwnRanks(ranks)
    odd = OddRank(1, Request(3, 0, (0, 1, 8), 2), [[5, 6]])
    keys = side.open(Request(3, 0, (0, 1), 2, odd=odd))
    side.send(keys, (0,), ABSENT, last=False)
    side.send(keys, (1,), [[5]], last=True)
    assert [call[1] for call in (ranks[0].calls[0], ranks[1].calls[0])] == [Request(3, 0, (0, 1), 2), odd.request]
    assert [call[2:4] for call in ranks[0].calls[1:]] == [((0,), ABSENT), ((1,), [[5]])]
    assert [call[2:4] for call in ranks[1].calls[1:]] == [((0,), ABSENT), ((1, 8), [[5, 6]])]


def staged(subject, room):
    stage = Stage(subject, SHAPE, patience_s=20.0, deadline_s=None, seed=0)
    [live] = play(stage, Plan((room,)))
    return stage, live


def test_pages_that_only_some_ranks_hold_lie_there_from_the_start_and_the_others_must_stay():
    room = RoomPlan((3,), (1,), held=2, odd=Odd("decode", 1, 3, 1, (1,)))
    stage, live = staged(KvroomsSim(), room)
    given = live.given["decode"]
    assert given.odd.held == given.held[:1]
    assert given.odd.pages == (*given.held[1:], *given.pages)
    assert [item.index for item, _ in live.must.kept][:1] == list(given.held[:1])
    assert given.held[1] in [item.index for item, _ in live.must.expected]
    assert stage.settle(lambda: live.ended)
    assert live.state == {"prefill": "done", "decode": "done"}
    assert (live.wrong_at_done, stage.strayed(live)) == (None, None)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_rank_that_has_more_than_the_others_has_items_that_they_have_not(side):
    stage, live = staged(KvroomsSim(), RoomPlan((2,), (1,), odd=Odd(side, 0, 3, 0, (2,))))
    mine = live.given[side]
    assert mine.odd.pages[:2] == mine.pages
    assert [item.kind for item in mine.more()] == ["kv", "state"]
    assert stage.settle(lambda: live.ended)
    assert set(live.state.values()) == {"failed"}
    assert "rank 0: 3 pages" in "\n".join(step.text for step in stage.timeline(live, "the end"))


# -- what is found -----------------------------------------------------------------------------------------------------


def test_kvrooms_ends_such_rooms_and_says_why():
    outcome = judged(KvroomsSim(), examples=50)
    assert (outcome.ok, outcome.reason) == (True, "")
    assert outcome.examples >= 25


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pages-compared-one-way", "prefill and decode says done"),
        ("one-rank-speaks-for-all", "nothing but a timer can end it"),
        ("shared-state-not-counted", "nothing but a timer can end it"),
    ],
)
def test_mistakes_in_kvrooms_are_found_and_the_rank_is_named(name, words, monkeypatch):
    function = _function(BY_NAME[name].fault.place)
    monkeypatch.setattr(function, "__code__", function.__code__)
    BY_NAME[name].fault.plant()
    outcome = judged(KvroomsSim())
    assert outcome.ok is False
    assert words in outcome.reason
    said = outcome.counterexample.input
    assert said["odd_rank"].startswith("rank ")
    assert said["odd_rank"].split(":")[0] in outcome.reason
    assert len(eval(said["chunks"])) == 1
    assert ": 2 pages" in outcome.counterexample.text() or ": 1 pages" in outcome.counterexample.text()


class Silent(KvroomsSim):
    """A rank's failure is kept from its caller."""

    def failure(self, room):
        super().failure(room)


class Backwards(KvroomsSim):
    """Decode's second rank takes the pages of a room the other way round."""

    def _rank(self, side, rank, group):
        own = super()._rank(side, rank, group)
        if (side, rank) == ("decode", 1):
            opened = own.open
            own.open = lambda request: opened(request._replace(pages=request.pages[::-1]))
        return own


@pytest.mark.parametrize(
    ("subject", "words"), [(Silent, "and nothing says why"), (Backwards, "decode says done, but kv")]
)
def test_wrong_subjects_are_found(subject, words):
    outcome = judged(subject())
    assert outcome.ok is False
    assert words in outcome.reason


def test_it_is_put_to_whoever_can_do_it():
    [outcome] = run(Toy(), default_effort(Toy(), examples=5), ("A1",))
    assert "ranks of a side that disagree" in outcome.not_offered

    class Decode(KvroomsSim):
        traits = KvroomsSim.traits._replace(odd_ranks=frozenset({"decode"}), prefixes=False, zero_pages=False)

    [shape] = CHECK.shapes(Decode.traits)
    assert shape.ranks == (1, 2)
    find(CHECK.draws(Decode(), shape), lambda plan: plan.rooms[0].odd.side == "decode" and not plan.rooms[0].held)
    assert judged(Decode(), examples=10).ok is True


@pytest.mark.nixl
def test_on_real_nixl_a_rank_with_other_pages_fails_the_room_on_both_sides_in_words():
    stage, live = staged(KvroomsNixl(), RoomPlan((2, 1), (1,), held=1, odd=Odd("decode", 1, 2, 1, (1,))))
    try:
        assert stage.settle(lambda: live.ended)
        assert live.state == {"prefill": "failed", "decode": "failed"}
        assert "pages" in stage.failure(live, "prefill")
        assert stage.failure(live, "decode")
        assert stage.strayed(live) is None
    finally:
        stage.stop()
