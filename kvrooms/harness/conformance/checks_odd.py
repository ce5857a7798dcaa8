"""A1 where the ranks of one side disagree: the caller of one of them is given something else. One generated check."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .check import Check
from .draws import ALWAYS, INDEXED, plans, rooms, shape_of
from .plan import Odd, Plan, RoomPlan
from .play import end, must_end, play, release
from .stage import Broken, Live, Stage
from .subject import SIDES, Shape, Subject, Traits

_UNEQUAL = ((1, 0), (0, 1), (1, 2), (2, 1))


def _shapes(traits: Traits) -> list[Shape]:
    """The fewest ranks with which both sides can have an odd one; else the fewest with which one of them can."""
    state = (INDEXED,) if traits.when_indexed else (ALWAYS,)
    shape = shape_of(*(state if traits.components else ()))
    able = {ranks: _sides(traits, shape._replace(ranks=ranks)) for ranks in traits.ranks}
    fit = sorted((ranks for ranks in able if able[ranks]), key=lambda ranks: (-len(able[ranks]), sum(ranks), ranks))
    return [shape._replace(ranks=ranks) for ranks in fit[:1]]


def _sides(traits: Traits, shape: Shape) -> list[Any]:
    return [side for side in SIDES if side in traits.odd_ranks and shape.ranks_of(side) > 1]


@st.composite
def _one_is_odd(draw: Any, subject: Subject, shape: Shape) -> Plan:
    """An ordinary room in which one rank is given more or fewer pages, other state, or holds more or less of them."""
    traits = subject.traits
    room: RoomPlan = draw(rooms(traits, shape))
    side = draw(st.sampled_from(_sides(traits, shape)))
    rank = draw(st.integers(0, shape.ranks_of(side) - 1))
    least = 0 if traits.zero_pages else 1
    if traits.prefixes:
        room = room._replace(held=draw(st.integers(0, room.pages - least)))
    ways = ["pages"]
    ways += ["held"] if side == "decode" and traits.prefixes and room.pages > least else []
    ways += ["state"] if any(one.owed == "when_indexed" for one in shape.state) else []
    way, odd = draw(st.sampled_from(ways)), Odd(side, rank, room.pages, room.held, room.state)
    match way:
        case "pages":
            pages = draw(st.integers(1, room.pages + 2).filter(lambda count: count != room.pages))
            odd = odd._replace(pages=pages, held=min(odd.held, pages - least))
        case "held":
            held = st.integers(0, room.pages - least).filter(lambda count: count != room.held)
            odd = odd._replace(held=draw(held))
        case "state":
            number = next(number for number, one in enumerate(shape.state) if one.owed == "when_indexed")
            ours, theirs = draw(st.sampled_from(_UNEQUAL))
            room = room._replace(state=_with(room.state, number, ours))
            odd = odd._replace(state=_with(room.state, number, theirs))
    if side == "prefill":
        odd = odd._replace(held=0)  # it knows nothing of it
    plan: Plan = draw(plans(traits, st.just(room._replace(odd=odd)), held=True))
    return plan


def _with(counts: tuple[int, ...], number: int, count: int) -> tuple[int, ...]:
    return (*counts[:number], count, *counts[number + 1 :])


def _is_odd(plan: Plan) -> bool:
    """Whether one rank is still given something else."""
    [room] = plan.rooms
    return room.odd is not None and (not room.even or (room.odd.side == "decode" and room.odd.held != room.held))


def _one_outcome(stage: Stage, plan: Plan) -> bool:
    [live] = play(stage, plan)
    odd = live.plan.odd
    assert odd is not None
    why = f"rank {odd.rank} of {odd.side} was given something else than the other ranks"
    if plan.held:
        stage.rest()
        release(stage)
    if live.said_at_refusal:
        end(stage, [live], close=False)
    must_end(stage, [live], why)
    _judge(stage, live, why, whole=live.plan.even)
    if stage.subject.traits.failures:
        for side in SIDES:
            if live.state[side] == "failed" and not stage.failure(live, side):
                raise Broken(f"{why}: the room failed on {side}, and nothing says why", live)
    return True


def _judge(stage: Stage, live: Live, why: str, *, whole: bool) -> None:
    """whole: all ranks want the same in the end: then the room may be done, on both sides and with all its bytes."""
    done = [side for side in SIDES if live.state[side] == "done"]
    if done and not whole:
        raise Broken(f"{why}, and {' and '.join(done)} says done", live)
    if len(done) == 1 and not live.said_at_refusal:
        raise Broken(f"{why}: {done[0]} says done, the other side does not", live)
    if done and live.wrong_at_done is not None:
        raise Broken(f"{why}: decode says done, but {live.wrong_at_done}", live)
    if (strayed := stage.strayed(live)) is not None:
        raise Broken(f"{why}: {strayed}", live)


FURTHER = (
    Check("A1", _shapes, _one_is_odd, _one_outcome, ("odd_ranks",), share=0.5, fits=_is_odd,
          also="ranks of a side that disagree"),
)  # fmt: skip
