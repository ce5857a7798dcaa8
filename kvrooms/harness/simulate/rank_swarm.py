"""What a simulated run of several ranks is made of: a topology, which sides are groups, rates of faults, habits.

Swarm testing as in `swarm`: most kinds of fault are switched off in any one run.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ...engine.settings import EngineSettings
from ...shapes.build import Model, Side
from ...shapes.table import Case
from ..faults import Faults
from .swarm import BOOTSTRAP_S, CAP_S, MOVING_S, PACES, PARKED_S, WAITING_S, rate

_EVERY, _AT = 8, 6
_MODELS = (
    Model(attention=(0, 1), kv_heads=4, head_bytes=2),
    Model(attention=(0,), kv_heads=2, head_bytes=2, mamba=(1,), mamba_heads=2, conv_bytes=2, ssm_bytes=3, window=(2,)),
)
_ONE, _TWO = Side(page_size=2), Side(tp=2, page_size=2)
_PREFILLS = (_ONE, _ONE, _TWO, _TWO, Side(page_size=2, cp=2), Side(page_size=2, tp=4))
_DECODES = (_TWO, _TWO, _TWO, _ONE, Side(page_size=2, tp=4), Side(page_size=2, tp=2, head_major=True))

MISCHIEF = {
    "stall": 1.0, "cut": 1.0, "cut group": 1.0, "jam": 0.5, "jam group": 0.5, "jump": 1.0, "kill prefill": 0.3,
    "kill decode": 0.3, "leave decode": 0.2, "leave prefill": 0.2,
}  # fmt: skip
"""What may happen to ranks and connections, and how much of it at most."""
_HABITS = {"abort": 0.25, "vanish": 0.2, "hasty": 0.5, "again": 0.5}


class RankSwarm(NamedTuple):
    """One run. case: the topology, with a prompt for each room and one more.

    grouped: the sides whose ranks give each room one outcome. pace: how often time may pass between two acts. callers:
    the share of ranks whose callers abort; vanish (never open, or stop on the way); close without waiting for the
    outcome (hasty); the share of rooms whose number was used before. mischief: weights of what happens to ranks and
    connections; trouble: the share of acts that are such.
    """

    case: Case
    grouped: tuple[str, ...]
    rooms: int
    settings: EngineSettings
    faults: Faults
    pace: float
    callers: dict[str, float]
    mischief: dict[str, float]
    trouble: float


def is_ranked(seed: int) -> bool:
    """Whether the run of a seed is one of several ranks."""
    return seed % _EVERY == _AT


def draw_ranks(draw: random.Random) -> RankSwarm:
    """The run that a seed's random numbers make."""
    calm = draw.random() < 0.12
    rooms = draw.randrange(6, 16)
    case = _case(draw, rooms)
    sides = {"prefill": len(case.prefill[0].ranks), "decode": len(case.decode.ranks)}
    grouped = tuple(side for side, ranks in sides.items() if ranks > 1 and (side == "decode" or draw.random() < 0.4))
    if not grouped:
        grouped = ("prefill",)
    callers = {habit: 0.0 if calm else rate(draw, 0.5, 0.02, most) for habit, most in _HABITS.items()}
    mischief = {kind: draw.random() * most for kind, most in MISCHIEF.items() if draw.random() < 0.25}
    if calm:
        mischief = {}
    return RankSwarm(
        case=case,
        grouped=grouped,
        rooms=rooms,
        settings=_settings(draw),
        faults=Faults() if calm else _faults(draw),
        pace=0.0 if calm else draw.choice(PACES),
        callers=callers,
        mischief=mischief,
        trouble=rate(draw, 1.0, 0.005, 0.06) if mischief else 0.0,
    )


def _case(draw: random.Random, rooms: int) -> Case:
    """A small topology of which at least one side has several ranks."""
    prefill, decode = draw.choice(_PREFILLS), draw.choice(_DECODES)
    if prefill is _ONE and decode is _ONE:
        prefill = _TWO
    return Case(
        name="drawn",
        shows="",
        model=draw.choice(_MODELS),
        prefill_side=prefill,
        decode_side=decode,
        prompts=tuple(draw.choice((1, 2, 3, 5)) for _ in range(rooms + 1)),
        prefix_tokens=draw.choice((0, 0, 0, 2)),
        chunk=draw.choice((1, 9)),
        layerwise=draw.random() < 0.2,
    )


def _settings(draw: random.Random) -> EngineSettings:
    """Deadlines that come soon; the group's may come before, among or after those of its ranks."""
    return EngineSettings(
        bootstrap_timeout_s=BOOTSTRAP_S,
        waiting_timeout_s=WAITING_S,
        queued_timeout_s=WAITING_S,
        moving_timeout_s=MOVING_S,
        cap_timeout_s=CAP_S,
        parked_ttl_s=PARKED_S,
        decision_timeout_s=draw.choice((10.0, 12.0, 20.0, 60.0)),
    )


def _faults(draw: random.Random) -> Faults:
    """What goes wrong by itself."""
    return Faults(
        corrupt=rate(draw, 0.15, 0.004, 0.1),
        truncate=rate(draw, 0.15, 0.004, 0.1),
        late=rate(draw, 0.15, 0.004, 0.2),
        late_s=draw.choice((1.0, 10.0)),
        post_fails=rate(draw, 0.15, 0.005, 0.1),
        write_slow=rate(draw, 0.15, 0.005, 0.2),
        write_stuck=rate(draw, 0.15, 0.005, 0.1),
        delay=rate(draw, 0.08, 0.001, 0.02),
    )
