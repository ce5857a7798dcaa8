"""SMOKE and the liveness properties: one generated check each. They see callers, statuses and memory, nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .check import Check
from .draws import cuts, disagreeing, plans, rich, rooms, seeds, shapes
from .plan import Cut, Plan, RoomPlan
from .play import end, hung, must_be_done, must_end, perform, play, release, weave
from .stage import Broken, Live, Stage
from .subject import SIDES, Shape, Side, Subject

_ABANDONED_MAX = 3
_TOGETHER_MAX = 4


# -- SMOKE: an ordinary room works ---------------------------------------------------------------------------------


def _smoke(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    must_end(stage, lives, "an ordinary room")
    for live in lives:
        must_be_done(stage, live, "an ordinary room", whole=True)
    return True


def _one_ordinary(subject: Subject, shape: Shape) -> st.SearchStrategy[Plan]:
    return plans(subject.traits, rooms(subject.traits, shape))


# -- L1: every state has exits -------------------------------------------------------------------------------------


@st.composite
def _abandoned(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Rooms that their callers, or the other side's, leave alone half-way; then a deadline or an abort."""
    traits = subject.traits
    found = []
    for _ in range(draw(st.integers(1, _ABANDONED_MAX))):
        room: RoomPlan = draw(rooms(traits, shape))
        only = draw(st.sampled_from((None, *(SIDES if traits.decode_first else ("prefill",)))))
        room = room._replace(only=only)
        calls = len(room.acts())
        # A side that is alone may do all that it can do; of two, the last send is missing.
        room = room._replace(acts_max=draw(st.integers(1, calls if only else calls - 1)))
        found.append(room)
    ways = [way for way, sides in ((False, traits.aborts), (True, traits.deadlines)) if sides]
    rests = draw(st.lists(st.integers(0, 6), max_size=6))
    return Plan(tuple(found), rests=tuple(rests), deadline=draw(st.sampled_from(ways)), seed=seeds(draw, traits))


def _exits(stage: Stage, plan: Plan) -> bool:
    lives, traits = play(stage, plan), stage.subject.traits
    stage.rest()
    ways = traits.deadlines if plan.deadline else traits.aborts
    if not plan.deadline:
        for live in lives:
            for side in SIDES:
                if side in ways and live.state[side] == "open":
                    stage.abort(live, side)

    def waiting() -> list[Live]:
        return [live for live in lives if any(side in ways for side in live.open_sides)]

    patience = 2 * (stage.deadline_s or 0.0) + stage.patience_s
    if not stage.settle(lambda: not waiting(), timers=plan.deadline, patience_s=patience if plan.deadline else None):
        live = waiting()[0]
        what = f"its deadline ({stage.deadline_s:g} s) is over" if plan.deadline else "its caller has aborted it"
        sides = " and ".join(side for side in live.open_sides if side in ways)
        raise Broken(f"a room was left alone and {what}: {sides} does not end", live)
    return any(live.handles for live in lives)


# -- L2: agreement ends by itself ----------------------------------------------------------------------------------


@st.composite
def _agreements(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """One to four rooms at once, in any spelling."""
    count = draw(st.integers(1, _TOGETHER_MAX))
    some = [rooms(subject.traits, shape, ordinary=False) for _ in range(count)]
    plan: Plan = draw(plans(subject.traits, *some))
    return plan


def _agreement(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    must_end(stage, lives, "both callers ask for the same")
    for live in lives:
        must_be_done(stage, live, "both callers ask for the same", whole=False)
    return True


# -- L3: faults end rooms ------------------------------------------------------------------------------------------


@st.composite
def _faults(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A fault after both sides have heard of the room; a silent one where the subject can lose messages."""
    traits = subject.traits
    room: RoomPlan = draw(rooms(traits, shape))
    lost: Side | None = None
    if traits.lost_messages and traits.deadlines == frozenset(SIDES) and draw(st.integers(0, 3)) == 3:
        lost = draw(st.sampled_from(SIDES))
    held = False
    if lost is None or draw(st.booleans()):
        cut = draw(cuts(traits, ("abort", "fail", "kill"), room, first=_known_at(room)))
        # Writes that fail are noticed only if the caller goes on.
        room = room._replace(cut=cut._replace(then=cut.verb == "fail"))
        # Where decode is opened last, all is over before a fault that comes later, unless nothing can move.
        held = traits.held_writes and (not traits.decode_first or draw(st.booleans()))
    return Plan((room,), held=held, lost=lost, deadline=lost is not None, seed=seeds(draw, traits))


def _after_both(plan: Plan) -> bool:
    """Whether the fault comes when both sides have heard of the room; what is not heard of is no announcement."""
    [room] = plan.rooms
    return room.cut is None or room.cut.at >= _known_at(room)


def _known_at(room: RoomPlan) -> int:
    """How many acts there are until both sides are open and at rest."""
    return len(room._replace(cut=None).acts()[: max(1, room.decode_at) + 1]) + 1


def _fault(stage: Stage, plan: Plan) -> bool:
    live, ended = stage.room(plan.rooms[0]), False
    acts, cut = live.plan.acts(barrier=True), live.plan.cut
    if plan.held:
        stage.hold()
    for number, act in enumerate(acts):
        if cut is not None and act == (cut.verb, cut.side, 0):
            stage.look()
            ended = bool(live.handles) and live.ended
        perform(stage, live, act)
        if act.verb == "rest" and plan.lost is not None:
            stage.note("wire", "fault", f"what {plan.lost} says is lost")
            stage.subject.lose(plan.lost, lost=True)
            stage.dirty = True
        if number < len(plan.rests):
            stage.rest(plan.rests[number])
    if plan.held:
        release(stage)
    why = f"after {_named(cut)}" if cut is not None else f"what {plan.lost} says is lost"
    patience = stage.patience_s + 2 * (stage.deadline_s or 0.0)
    must_end(stage, [live], why, timers=plan.deadline, patience_s=patience if plan.deadline else None)
    return not ended or plan.lost is not None  # a fault in a room that has ended says nothing


def _named(cut: Cut) -> str:
    match cut.verb:
        case "kill":
            return f"{cut.side} was killed"
        case "fail":
            return "writes began to fail"
    return f"{cut.side} {'aborted' if cut.verb == 'abort' else 'closed its room'}"


# -- L4: rooms do not touch each other -----------------------------------------------------------------------------


@st.composite
def _failures(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A bystander, one or two rooms that fail, or whose side dies and comes back, and an ordinary room after them."""
    traits = subject.traits
    deadline = "decode" in traits.deadlines and draw(st.integers(0, 5)) == 5
    found = []
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 3:
            found.append(draw(disagreeing(traits, shape)))
            continue
        room: RoomPlan = draw(rooms(traits, shape))
        if deadline:
            room = room._replace(acts_max=draw(st.integers(1, len(room.acts()) - 1)))
        else:
            dies = bool(traits.kills) and draw(st.integers(0, 5)) == 5
            room = room._replace(cut=draw(cuts(traits, ("kill",) if dies else ("abort",), room, first=1)))
        found.append(room)
    bystander, last = draw(rooms(traits, shape)), draw(rooms(traits, shape))
    rests = draw(st.lists(st.integers(0, 6), max_size=6))
    return Plan((bystander, *found, last), rests=tuple(rests), deadline=deadline, seed=seeds(draw, traits))


def _framed(plan: Plan) -> bool:
    """Whether ordinary rooms stand around those that fail."""
    ends = (plan.rooms[0], plan.rooms[-1])
    return len(plan.rooms) > 2 and all(room.agrees and room.cut is None and room.acts_max is None for room in ends)


def _isolated(stage: Stage, plan: Plan) -> bool:
    first, *failing, last = plan.rooms
    bystander = None
    if not plan.deadline and not any(map(_dying, failing)):  # it would meet its own deadline, or die as well
        bystander = stage.room(first)
        for act in bystander.plan.acts()[:-1]:
            perform(stage, bystander, act)
    for room in failing:
        live = stage.room(room)
        weave(stage, plan, [live])
        _fail(stage, live, timers=plan.deadline)
        if (side := _dying(room)) is not None:
            stage.restart(side)
    if bystander is not None:
        perform(stage, bystander, bystander.plan.acts()[-1])
    served = stage.room(last)
    weave(stage, plan, [served])
    lives = [served] if bystander is None else [bystander, served]
    why = {id(served): "a room after rooms that failed", id(bystander): "a room that was open while others failed"}
    if not stage.settle(lambda: all(live.ended for live in lives)):
        stage.look()
        raise hung(stage, lives, why[id(next(live for live in lives if not live.ended))])
    for live in lives:
        must_be_done(stage, live, why[id(live)], whole=True)
    return True


def _dying(room: RoomPlan) -> Side | None:
    return room.cut.side if room.cut is not None and room.cut.verb == "kill" else None


def _fail(stage: Stage, live: Live, *, timers: bool) -> None:
    """Let the room fail as it may; whatever is left of it its callers give up. How it ends is not judged here."""
    patience = 4 * (stage.deadline_s or 0.0) if timers else stage.brief_s
    stage.settle(lambda: live.ended, timers=timers, patience_s=patience)
    end(stage, [live])


# -- L5: leases end ------------------------------------------------------------------------------------------------


@st.composite
def _leases(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Rooms that fail at any step, a side that dies among them."""
    traits = subject.traits
    room: RoomPlan = draw(rooms(traits, shape))
    if draw(st.integers(0, 4)):
        # One in so many ends well.
        room = room._replace(cut=draw(cuts(traits, ("abort", "kill"), room, first=1)))
    plan: Plan = draw(plans(traits, st.just(room), held=True))
    return plan


def _lease(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    if plan.held:
        stage.rest()
        release(stage)
    end(stage, lives, close=False)

    def free() -> bool:
        return all(stage.free(live, side) for live in lives for side in SIDES)

    if stage.settle(lambda: free() and all(live.ended for live in lives)):
        return True
    for live in lives:
        for side in SIDES:
            if not stage.free(live, side):
                raise Broken(f"the room has ended on {side}, but its memory never becomes free without a timer", live)
    return True  # a room that does not end is another property's


CHECKS = (
    Check("SMOKE", rich, _one_ordinary, _smoke, share=0.3),
    Check("L1", rich, _abandoned, _exits, ("aborts|deadlines",)),
    Check("L2", shapes, _agreements, _agreement, share=2.0),
    # Warm, so that the first connection of two engines is not what an announcement has to wait for.
    Check("L3", rich, _faults, _fault, ("aborts|kills|failing_writes",), fits=_after_both, warm=True),
    Check("L4", rich, _failures, _isolated, ("aborts",), fits=_framed),
    Check("L5", rich, _leases, _lease, ("frees", "aborts|kills")),
)
