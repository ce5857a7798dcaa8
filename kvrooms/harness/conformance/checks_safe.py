"""The safety properties, cleanup and agreement: one generated check each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from .check import Check
from .draws import cuts, disagreeing, noise, plans, rich, rooms, shapes
from .plan import Plan, RoomPlan
from .play import end, must_be_done, must_end, play, release, weave
from .stage import Broken, Live, Stage
from .subject import SIDES, Shape, Side, Subject, Traits

_BIG_PAGE = 256 << 10
_ENDED = ("failed", "done", "refused")


# -- S1: done means landed -----------------------------------------------------------------------------------------


@st.composite
def _any_rooms(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Rooms that agree or do not, some aborted; writes held back in some."""
    traits = subject.traits
    found = []
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        if draw(st.integers(0, 3)) == 3:
            found.append(draw(disagreeing(traits, shape)))
            continue
        room: RoomPlan = draw(rooms(traits, shape))
        if traits.aborts and draw(st.integers(0, 4)) == 4:
            room = room._replace(cut=draw(cuts(traits, ("abort",), room, first=1)))
        found.append(room)
    plan: Plan = draw(plans(traits, *map(st.just, found), held=True))
    return plan


def _landed(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    if plan.held:
        stage.rest()
        release(stage)
    stage.settle(lambda: all(live.ended for live in lives), patience_s=stage.brief_s)
    for live in lives:
        if live.wrong_at_done is not None:
            raise Broken(f"decode said done, but {live.wrong_at_done}", live)
        if (strayed := stage.strayed(live)) is not None:
            raise Broken(strayed, live)
    return any(live.state["decode"] == "done" for live in lives)


# -- S2: terminal states absorb ------------------------------------------------------------------------------------


@st.composite
def _late(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A room that ends, well or not, after which its callers go on as if nothing had happened."""
    traits = subject.traits
    room: RoomPlan = draw(rooms(traits, shape))
    if draw(st.integers(0, 2)):
        cut = draw(cuts(traits, ("abort",), room, first=1))
        room = room._replace(cut=cut._replace(then=True))
    plan: Plan = draw(plans(traits, st.just(room), held=True))
    return plan


def _absorbed(stage: Stage, plan: Plan) -> bool:
    [live] = play(stage, plan)
    stage.settle(lambda: live.ended, patience_s=stage.brief_s)
    first = {side: state for side, state in live.state.items() if state in _ENDED}
    if plan.held:
        release(stage)
    for _ in range(2):
        for side in SIDES:
            stage.abort(live, side)
        stage.rest()
        stage.look()
        for side, state in first.items():
            if live.state[side] != state:
                raise Broken(f"{side} said {state}, and later {live.state[side]}", live)
    if first.get("decode") == "done" and (wrong := stage.wrong_bytes(live)):
        raise Broken(f"decode was done, and later {wrong}", live)
    return bool(first)


# -- S3: memory goes back last -------------------------------------------------------------------------------------


@st.composite
def _reclaims(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Rooms aborted at any step, whose memory is used for something else as soon as it is said to be free."""
    traits = subject.traits
    found = []
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        room: RoomPlan = draw(rooms(traits, shape))
        if traits.aborts and draw(st.integers(0, 3)):
            room = room._replace(cut=draw(cuts(traits, ("abort",), room, first=1)))
        found.append(room)
    plan: Plan = draw(plans(traits, *map(st.just, found), held=True))
    return plan


def _reclaimed(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    spent: list[tuple[Live, Side]] = []

    def reclaim() -> bool:
        stage.look()
        for live in lives:
            for side in SIDES:
                if (live, side) not in spent and live.state[side] in _ENDED and stage.free(live, side):
                    stage.spend(live, side)
                    spent.append((live, side))
        return len(spent) == 2 * len(lives)

    stage.settle(reclaim, patience_s=stage.brief_s / 5)
    if plan.held:
        release(stage)
    end(stage, lives, close=False)
    stage.settle(reclaim, patience_s=stage.brief_s)
    stage.rest()
    for live, side in spent:
        if side == "decode" and (wrong := stage.unspent(live, side)):
            raise Broken(f"decode said that the room's memory is free, and later {wrong}", live)
    for live in lives:
        if (strayed := stage.strayed(live)) is not None:
            raise Broken(strayed, live)
        if live.wrong_at_done is not None:
            raise Broken(
                f"prefill said that its memory is free, and then decode was done, but {live.wrong_at_done}", live
            )
    return bool(spent)


# -- S4: generations do not mix ------------------------------------------------------------------------------------


@st.composite
def _twice(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A room that ends or is given up, and another with the same number."""
    traits = subject.traits
    first: RoomPlan = draw(rooms(traits, shape))
    if traits.aborts and draw(st.integers(0, 3)):
        first = first._replace(cut=draw(cuts(traits, ("abort",), first, first=1)))
    attempt = traits.attempts and draw(st.booleans())
    plan: Plan = draw(plans(traits, st.just(first), held=attempt))
    return plan._replace(rooms=(first, draw(rooms(traits, shape))), attempt=attempt)


def _generations(stage: Stage, plan: Plan) -> bool:
    first, second = plan.rooms
    [before] = play(stage, plan, rooms=(first,))
    if not plan.attempt:
        # The same number and the same attempt: only when the first life is over on both sides.
        stage.settle(lambda: before.ended, patience_s=stage.brief_s)
        end(stage, [before])
        stage.settle(lambda: all(stage.free(before, side) for side in SIDES) and before.ended)
        stage.rest()
    else:
        end(stage, [before])
    after = stage.room(second, again=before, attempt=plan.attempt)
    weave(stage, plan._replace(held=False), [after])
    if plan.held:
        stage.rest()
        release(stage)
    must_end(stage, [after], "a room number was used again")
    must_be_done(stage, after, "a room number was used again", whole=True)
    return True


# -- S5: peers are not believed ------------------------------------------------------------------------------------


@st.composite
def _strangers(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Ordinary rooms while strangers speak."""
    plan: Plan = draw(plans(subject.traits, *[rooms(subject.traits, shape)] * draw(st.sampled_from((1, 2)))))
    said = draw(st.lists(noise(subject), min_size=1, max_size=4))
    return plan._replace(noise=tuple(said))


def _disbelieved(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    must_end(stage, lives, "a stranger spoke")
    for live in lives:
        must_be_done(stage, live, "a stranger spoke", whole=True)
    later = stage.room(plan.rooms[0])
    weave(stage, Plan(()), [later])
    must_end(stage, [later], "a room after a stranger spoke")
    must_be_done(stage, later, "a room after a stranger spoke", whole=True)
    return True


# -- C1: nothing stays behind --------------------------------------------------------------------------------------


@st.composite
def _lives(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """Some rooms that end in every way, or never begin on one side."""
    traits = subject.traits
    found = []
    for _ in range(draw(st.integers(1, 3))):
        room: RoomPlan = draw(st.one_of(rooms(traits, shape), disagreeing(traits, shape)))
        if traits.aborts and draw(st.booleans()):
            room = room._replace(cut=draw(cuts(traits, ("abort", "close"), room, first=1)))
            if traits.decode_first:
                room = room._replace(only=draw(st.sampled_from((None, None, *SIDES))))
        found.append(room)
    plan: Plan = draw(plans(traits, *map(st.just, found)))
    return plan


def _nothing_left(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    stage.settle(lambda: all(live.ended for live in lives), patience_s=stage.brief_s)
    end(stage, lives)
    must_be_clean(stage, lives[0] if len(lives) == 1 else None, "all rooms were closed on both sides")
    return True


def must_be_clean(stage: Stage, live: Live | None, why: str) -> None:
    """Raise Broken unless both sides come to hold what they held after the first room."""

    def left() -> dict[Side, Mapping[str, int]]:
        return {side: found for side in SIDES if (found := more_held(stage, side))}

    if not stage.settle(lambda: not left()):
        words = "; ".join(
            f"{side} still holds " + ", ".join(f"{name} {count:+d}" for name, count in some.items())
            for side, some in left().items()
        )
        raise Broken(f"{why}, and {words}", live)


def more_held(stage: Stage, side: Side) -> dict[str, int]:
    """What a side holds more of than after the first room; nothing where that was not counted."""
    if not stage.baseline:
        return {}
    base, now = stage.baseline[side], stage.subject.held(side)
    return {name: count - base.get(name, 0) for name, count in now.items() if count > base.get(name, 0)}


# -- C2: one failure, once -----------------------------------------------------------------------------------------


@st.composite
def _failing(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A room that fails on at least one side."""
    traits = subject.traits
    if not traits.aborts or draw(st.integers(0, 2)) == 2:
        room: RoomPlan = draw(disagreeing(traits, shape))
    else:
        room = draw(rooms(traits, shape))
        room = room._replace(cut=draw(cuts(traits, ("abort",), room, first=1)))
    plan: Plan = draw(plans(traits, st.just(room)))
    return plan


def _told_once(stage: Stage, plan: Plan) -> bool:
    [live] = play(stage, plan)
    stage.settle(lambda: live.ended, patience_s=stage.brief_s)
    failed = [side for side in SIDES if live.state[side] == "failed"]
    for side in failed:
        first = stage.failure(live, side)
        if not first:
            raise Broken(f"the room failed on {side}, and nothing says why", live)
        again = stage.failure(live, side)
        if again not in (None, first):
            raise Broken(f"{side} said {first!r}, and when asked again {again!r}", live)
    for side in SIDES:
        if side not in failed:
            if live.state[side] == "open" and side in stage.subject.traits.aborts:
                stage.abort(live, side)
            stage.close(live, side)
    if failed and stage.subject.traits.counts:
        must_be_clean(stage, live, f"the failure of the room was read on {' and '.join(failed)}")
    return bool(failed)


# -- A1: manifests agree -------------------------------------------------------------------------------------------


@st.composite
def _disagreements(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """A room whose callers disagree, in any spelling; beside some whose callers agree, now and then."""
    traits = subject.traits
    room = disagreeing(traits, shape, ordinary=False)
    others = [rooms(traits, shape, ordinary=False)] * draw(st.sampled_from((0, 0, 0, 1, 2)))
    plan: Plan = draw(plans(traits, room, *others))
    return plan


def _both_fail(stage: Stage, plan: Plan) -> bool:
    lives = play(stage, plan)
    why = "the callers ask for different things"
    unlike = [live for live in lives if not live.plan.agrees]
    for live in unlike:
        if live.said_at_refusal:  # a caller that is told at once gives the room up, and its router tells the other
            end(stage, [live], close=False)
    must_end(stage, unlike, why)
    for live in unlike:
        for side, state in live.state.items():
            if state == "done":
                raise Broken(f"{why}, and {side} says done", live)
    return True


def _one(plan: Plan) -> bool:
    return len(plan.rooms) == 1


def _some_disagree(plan: Plan) -> bool:
    return not all(room.agrees for room in plan.rooms)


def _two_lives(plan: Plan) -> bool:
    return len(plan.rooms) == 2 and plan.rooms[1].cut is None


def _big(traits: Traits) -> list[Shape]:
    """Pages so large that a write takes a while, where time is real."""
    return rich(traits) if traits.simulated else rich(traits, _BIG_PAGE)


CHECKS = (
    Check("S1", lambda traits: shapes(traits)[-1:], _any_rooms, _landed),
    Check("S2", rich, _late, _absorbed, ("aborts",), fits=_one),
    Check("S3", _big, _reclaims, _reclaimed, ("aborts",)),
    Check("S4", rich, _twice, _generations, ("room_numbers",), fits=_two_lives),
    Check("S5", rich, _strangers, _disbelieved, ("injects",)),
    Check("C1", rich, _lives, _nothing_left, ("counts",), warm=True),
    Check("C2", rich, _failing, _told_once, ("failures",), warm=True, fits=_one),
    Check("A1", shapes, _disagreements, _both_fail, share=2.0, fits=_some_disagree),
)
