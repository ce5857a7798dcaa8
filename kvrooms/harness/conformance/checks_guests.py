"""S5 where somebody who was let in lies about the rooms of others: one generated check."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .check import Check
from .draws import plans, rich, rooms
from .plan import Plan
from .play import end, lie, must_be_done, must_end, perform, weave
from .stage import Broken, Live, Stage
from .subject import SIDES, Shape, Subject

_SAYINGS_MAX = 3
_WHY = "a peer that has no part in the room lied about it"


def _told(plan: Plan) -> bool:
    """Whether there is a room, and a lie about it."""
    return bool(plan.guests) and bool(plan.rooms)


@st.composite
def _lies(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """One or two ordinary rooms, and what a guest says of the first of them between its calls."""
    traits = subject.traits
    plan: Plan = draw(plans(traits, *[rooms(traits, shape)] * draw(st.sampled_from((1, 2)))))
    at = st.integers(0, len(plan.rooms[0].acts()))
    sayings = st.tuples(st.sampled_from(sorted(traits.guests)), at)
    said = draw(st.lists(sayings, min_size=1, max_size=_SAYINGS_MAX))
    return plan._replace(guests=tuple(sorted(said, key=lambda one: one[1])))


def _unmoved(stage: Stage, plan: Plan) -> bool:
    victim, first = stage.room(plan.rooms[0]), False
    acts = victim.plan.acts()
    for number in range(len(acts) + 1):
        for saying, at in plan.guests:
            if min(at, len(acts)) == number:
                first |= _speak(stage, victim, saying)
        if number < len(acts):
            perform(stage, victim, acts[number])
    others = [stage.room(room) for room in plan.rooms[1:]]
    weave(stage, plan, others)
    if first:
        _may_lose(stage, victim)
    must_end(stage, [*others, *([] if first else [victim])], _WHY)
    for live in [*others, *([] if first else [victim])]:
        must_be_done(stage, live, _WHY, whole=True)
    later = stage.room(plan.rooms[0])
    weave(stage, Plan(()), [later])
    must_end(stage, [later], f"a room after this: {_WHY}")
    must_be_done(stage, later, f"a room after this: {_WHY}", whole=True)
    return True


def _speak(stage: Stage, victim: Live, saying: Any) -> bool:
    """Say it. Whether the guest has asked for the room before both its sides had heard of each other."""
    known = all(side in victim.handles for side in SIDES)
    if known:
        stage.rest(long=True)
    lie(stage, victim, saying)
    stage.rest(1)
    return saying == "claim" and not known


def _may_lose(stage: Stage, victim: Live) -> None:
    """Who asks first for a number that he has guessed may get the room, and its true decode side comes too late, as if
    prefill had never opened it. But it never says done without its bytes."""
    stage.settle(lambda: victim.ended, patience_s=stage.brief_s)
    end(stage, [victim], close=False)
    stage.settle(lambda: victim.ended)
    if victim.wrong_at_done is not None:
        raise Broken(f"{_WHY}, and decode says done, but {victim.wrong_at_done}", victim)


FURTHER = (
    Check("S5", rich, _lies, _unmoved, ("guests",), fits=_told, also="peers that were let in and lie"),
)  # fmt: skip
