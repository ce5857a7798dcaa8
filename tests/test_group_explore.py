"""Every interleaving of small groups of ranks, and that the search notices what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from mutants import Mutant, named

from kvrooms.engine import group_leader, group_member
from kvrooms.harness.explore.group_search import PROPERTIES, QUICK, SETUPS, SMALLEST, GroupSearch, explore_groups
from kvrooms.harness.explore.group_world import Setup, World, freeze, thaw
from kvrooms.harness.explore.grouped import GROUPED, Grouped
from kvrooms.statemachine import group
from kvrooms.statemachine.group import DECISION, STANDING

OUT_OF_REACH = {
    "OPEN x ACKED": "nobody acknowledges what is not decided",
    "OPEN x TOLD_DONE": "a leader that counts says DONE to ranks that have reported it",
    "FAILING x TOLD_DONE": "as above",
    "FAILED x DEADLINE": "a room that is decided has no deadline",
    "DONE x DEADLINE": "as above",
    "REPORTED x ENDED_DONE": "a room ends once",
    "REPORTED x ENDED_FAILED": "as above",
    "WITHDRAWN x ENDED_DONE": "as above",
    "WITHDRAWN x ENDED_FAILED": "as above",
}
LOOK = (*QUICK, "group-2-forgets", "group-3-fail", "group-3-lose")
AGAIN = {"DONE x FAILED", "DONE x DONE", "FAILED x DONE"}
"""Reached where keys are used again."""
DEEP = {"WITHDRAWN x RANK_LOST"}
"""Takes two faults of three ranks."""


def visited(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the cells of both tables that are stepped from here on."""
    cells: Counter[str] = Counter()

    def counted(step: Any) -> Any:
        def run(room: Any, event: Any) -> Any:
            cells[f"{room.state.name} x {event.KIND.name}"] += 1
            return step(room, event)

        return run

    monkeypatch.setattr(group_leader, "step_decision", counted(group.step_decision))
    monkeypatch.setattr(group_member, "step_standing", counted(group.step_standing))
    return cells


def test_small_groups_keep_every_property(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = visited(monkeypatch)
    results = explore_groups(LOOK)
    for found in results:
        assert not found.tally.broken, found.tally.counterexamples()[0].text()
        assert found.complete
        assert all(found.tally.verdict(one).examples for one in PROPERTIES if one not in ("L2", "L3")), found.name
    assert all(any(found.tally.verdict(one).examples for found in results) for one in PROPERTIES)
    assert sum(found.states for found in results) > 20_000
    assert sum(sum(found.timers.values()) for found in results) > 1_000, "deadlines act, too"
    # Terminal standings are forgotten at once, so nothing is stepped there.
    every = {f"{state.name} x {event.name}" for state in DECISION.states for event in DECISION.events}
    every |= {
        f"{state.name} x {event.name}"
        for state in STANDING.states
        if state not in STANDING.terminal
        for event in STANDING.events
    }
    assert every - set(cells) - AGAIN - DEEP == set(OUT_OF_REACH)


def test_a_key_that_is_used_again_is_not_mixed_with_its_last_life(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = visited(monkeypatch)
    found = GroupSearch(Setup("again", 2, lives=2, ends=("done",), faults=("lose",), budget=1)).run()
    assert not found.tally.broken, found.tally.counterexamples()[0].text()
    assert found.complete
    assert set(cells) >= {"DONE x DONE", "FAILED x DONE", "FAILED x FAILED"}


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in SETUPS if name not in LOOK])
def test_larger_groups(name: str) -> None:
    (found,) = explore_groups([name])
    assert not found.tally.broken, found.tally.counterexamples()[0].text()
    assert found.complete


def test_a_state_is_the_same_after_a_round_trip() -> None:
    setup = SMALLEST[1]
    search = GroupSearch(setup)
    search.run()
    for state in search._order[::50]:
        assert freeze(thaw(setup, state)) == state
    assert freeze(World(setup)) == freeze(thaw(setup, freeze(World(setup))))


def test_a_search_that_is_stopped_is_not_complete() -> None:
    assert not GroupSearch(SETUPS["group-2"], limit=20).run().complete


@named(
    [
        Mutant(group_leader.Leader, "back", "self._kept[rank].items()", "{}.items()"),
        Mutant(group_leader.Leader, "_forget", "for report in room.value.later", "for report in ()"),
        Mutant(group_leader.Leader, "_begin", "for cause in self.absent.values():", "for cause in ():"),
        Mutant(group_leader.Leader, "_keep", "self._dropped[rank] += 1", "pass"),
        Mutant(group_member.Member, "told", "if room is not None and room.number == number:", "if room is not None:"),
        Mutant(group_member.Member, "link_up", "if dropped > self._dropped:", "if False:"),
        Mutant(group_member.Member, "link_up", "self._step(key, LinkUp())", "pass"),
        Mutant(group_member.Member, "told", "self._park(key, cause)", "pass"),
        Mutant(group_member.Member, "_report", "if not self.linked:", "if False:"),
    ]
)
def test_mutants_of_the_halves_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    setups = (*SMALLEST, Setup("again", 2, lives=2, ends=("done",), faults=("lose",), budget=1))
    assert any(GroupSearch(setup, limit=20_000).run().tally.broken for setup in setups)


ROOMS_AND_GROUP = ((6665, 23942), (10650, 48107))


@pytest.mark.parametrize("at", [0, 1])
def test_ranks_of_a_room_and_their_group_are_explored_together(at: int) -> None:
    found = Grouped(*GROUPED[at]).run()
    assert not found.broken, found.broken
    assert found.complete
    assert (found.states, found.transitions) == ROOMS_AND_GROUP[at]
    assert ("group", "FAILED", "deadline_decision") in found.outcomes
    assert found.timers["decision: outcome of a group"] > 0


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at", range(2, len(GROUPED)))
def test_ranks_of_a_room_and_their_group_with_faults(at: int) -> None:
    found = Grouped(*GROUPED[at]).run()
    assert not found.broken, found.broken
    assert found.complete


@named(
    [
        Mutant(group, "_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),
        Mutant(group_member.Member, "_step", "self._port.abort(key, self._why(room))", "pass"),
        Mutant(group_leader.Leader, "_carry_out", "self._port.tell(rank, self._outcome(room, rank))", "pass"),
    ]
)
def test_mutants_of_rooms_and_group_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    assert Grouped(*GROUPED[0]).run().broken
