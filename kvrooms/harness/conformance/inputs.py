"""What was put into an example that is broken, by name and as text, and what was seen."""

from __future__ import annotations

from typing import NamedTuple

from ..evidence import Step
from .plan import Plan
from .play import GUEST_WORDS
from .spelling import fitted, spelled
from .stage import Broken, Live, Stage
from .subject import Shape


class Found(NamedTuple):
    """A broken example: what was played, in which shape, what was seen."""

    plan: Plan
    shape: Shape
    summary: str
    input: dict[str, str]
    timeline: tuple[Step, ...]


def found_in(stage: Stage, plan: Plan, broken: Broken) -> Found:
    """The example that a stage has just played, as it was seen."""
    live = broken.room or (stage.rooms[-1] if stage.rooms else None)
    try:
        timeline = stage.timeline(live, broken.summary)
    except Exception as error:  # noqa: BLE001 - a subject that is broken may not be able to say so
        timeline = (*stage.steps, Step(0.0, "suite", "state", f"{broken.summary} (then: {error!r})"))
    return Found(plan, stage.shape, broken.summary, said(stage, plan, live), timeline)


def said(stage: Stage, plan: Plan, live: Live | None) -> dict[str, str]:
    """What was put in, by name, as text: the room that shows it, and what else there was."""
    found: dict[str, str] = {}
    if live is not None:
        found = _said_of(stage, live)
    others = [other for other in stage.rooms if other is not live]
    for number, other in enumerate(others, start=1):
        found[f"other_room_{number}"] = ", ".join(f"{key} {value}" for key, value in _said_of(stage, other).items())
    components = [f"{one.name} ({one.owed})" for one in stage.shape.state]
    found["state_components"] = ", ".join(components) or "none"
    if stage.shape.ranks != (1, 1):
        found["ranks"] = "{} prefill, {} decode".format(*stage.shape.ranks)
    if stage.shape.split > 1:
        found["page_sizes"] = f"a page of prefill is {stage.shape.split} of decode's"
    if plan.held:
        found["writes"] = "held back until all calls were made"
    if plan.lost is not None:
        found["lost"] = f"what {plan.lost} says on the control channel"
    for number, (channel, side, parts) in enumerate(plan.noise, start=1):
        found[f"stranger_{number}"] = f"to {side}, {channel}: {list(parts)!r}"
    for number, (saying, at) in enumerate(plan.guests, start=1):
        found[f"guest_{number}"] = f"{GUEST_WORDS[saying]}, after {at} calls"
    if plan.seed:
        found["seed"] = str(plan.seed)
    return found


def _said_of(stage: Stage, live: Live) -> dict[str, str]:
    plan = live.plan
    ours, theirs = live.given["prefill"].state, live.given["decode"].state
    found = {
        "prefill_state_indices": spelled(fitted(plan.prefill_form, ours), ours, stage.names),
        "decode_state_indices": spelled(fitted(plan.decode_form, theirs), theirs, stage.names),
        "prefill_pages": str(list(live.given["prefill"].pages)),
        "decode_pages": str(list(live.given["decode"].pages)),
        "chunks": str(list(plan.chunks)),
        **_carried(live),
        "calls": ", ".join(f"{act.side} {act.verb}" + (f" {act.index}" if act.verb == "send" else "")
                           for act in plan.acts()),
    }  # fmt: skip
    if live.attempt:
        found["attempt"] = str(live.attempt)
    return found


def _carried(live: Live) -> dict[str, str]:
    """A prefix, layers that are sent apart, a rank that is given something else, where there are any."""
    plan, found = live.plan, {}
    if live.given["decode"].held:
        found["decode_holds"] = str(list(live.given["decode"].held))
    if plan.sends:
        found["sends"] = ", ".join(
            f"{number}: chunk {part.chunk}" + (f" layers {list(part.layers)}" if part.layers else "")
            for number, part in enumerate(plan.sends)
        )
    if plan.odd is not None and (odd := live.given[plan.odd.side].odd) is not None:
        holds = f", holds {list(odd.held)}" if plan.odd.side == "decode" else ""
        state = [list(some) for some in odd.state]
        found["odd_rank"] = f"rank {plan.odd.rank} of {plan.odd.side}: pages {list(odd.pages)}{holds}, state {state}"
    return found
