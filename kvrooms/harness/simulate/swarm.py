"""What one simulated run is made of, drawn from its seed: engines, memory, rates of faults, habits of callers.

Swarm testing: most kinds of fault are switched off in any one run, and those that are on have rates that differ by
orders of magnitude. So some runs are calm, some have one thing wrong all the time, and few have everything at once;
what one fault hides from another is found in the run without it.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ...engine.settings import EngineSettings
from ..faults import Faults
from .memory import Shape

_DEATHS = ("kill prefill", "kill decode", "close prefill", "close decode", "drain prefill", "drain decode")
BOOTSTRAP_S, WAITING_S, MOVING_S, PARKED_S, CAP_S = 12.0, 20.0, 15.0, 8.0, 400.0
HOLD_S, WARN_S = 5.0, 25.0
PHASES_S = BOOTSTRAP_S + WAITING_S + MOVING_S
"""The longest that a room lives when nobody does anything: every phase's deadline, one after the other."""

PACES = (0.0, 0.02, 0.1, 0.4)
"""How often time may pass between two acts."""
MISCHIEF = {"stall": 1.0, "cut": 1.0, "jam": 1.0, "jump": 0.6, "fence": 0.6} | dict.fromkeys(_DEATHS, 0.25)
"""What may happen to engines and connections, and how much of it at most."""
_FRAMES = ("drop", "repeat", "corrupt", "truncate", "late")
_WRITES = ("post_fails", "write_fails", "write_slow", "write_stuck")
_HABITS = ("abort", "vanish", "disagree", "hasty", "again", "misuse", "hold")


class Swarm(NamedTuple):
    """One run. rooms: how many. pages, slots: of each engine's memory. pace: how often time may pass between two acts.

    callers: the share of rooms whose callers abort; vanish (never open, never send, or stop on the way); disagree; are
    hasty (close what has not ended); use a number again; misuse the methods (open twice, send after the end); hold on
    decode what they open later.
    mischief: weights of what happens to engines and connections, trouble: the share of acts that are such. strangers:
    the share of acts that are a stranger's. named: the share of rooms whose decode caller names the prefill engine.
    """

    shape: Shape
    prefills: int
    decodes: int
    rooms: int
    pages: int
    slots: int
    settings: EngineSettings
    faults: Faults
    pace: float
    callers: dict[str, float]
    mischief: dict[str, float]
    trouble: float
    strangers: float
    named: float


def draw_swarm(draw: random.Random) -> Swarm:
    """The run that a seed's random numbers make."""
    calm = draw.random() < 0.12
    callers = {habit: rate(draw, 0.5, 0.02, 0.3) for habit in _HABITS}
    mischief = {kind: draw.random() * weight for kind, weight in MISCHIEF.items() if draw.random() < 0.25}
    if "kill prefill" in mischief:
        mischief["fence"] = 0.6
    if calm:
        harmless = ("disagree", "misuse", "hold")
        callers = {**dict.fromkeys(_HABITS, 0.0), **{habit: callers[habit] for habit in harmless}}
        mischief = {}
    settings = _settings(draw, calm=calm)
    return Swarm(
        shape=Shape(
            indexed=draw.randrange(3), always=draw.randrange(2), layers=draw.randrange(1, 3), aux=_is(draw, 0.8)
        ),
        prefills=1 + _is(draw, 0.25),
        decodes=1 + _is(draw, 0.5),
        rooms=draw.randrange(20, 60),
        pages=draw.randrange(20, 40),
        slots=draw.randrange(8, 16),
        settings=settings,
        faults=Faults() if calm else _faults(draw, digest=bool(settings.digest)),
        pace=draw.choice(PACES) if not calm else 0.0,
        callers=callers,
        mischief=mischief,
        trouble=rate(draw, 1.0, 0.002, 0.04) if mischief else 0.0,
        named=draw.choice((0.0, 0.0, 1.0, 0.5)),
        strangers=0.0 if calm else rate(draw, 0.2, 0.02, 0.2),
    )


def _settings(draw: random.Random, *, calm: bool) -> EngineSettings:
    """Deadlines that come soon, a cap that does not; pieces of a page or two, or of everything; limits, or none."""
    piece, few = draw.choice((1, 40, 100, 1 << 20)), not calm and draw.random() < 0.15
    flight = draw.choice((64 << 20, 64 << 20, max(piece, 200)))
    return EngineSettings(
        piece_bytes=piece,
        inflight_per_peer_bytes=flight,
        inflight_bytes=2 * flight,
        parked_per_peer=3 if few else 4096,
        parked_total=5 if few else 65_536,
        rooms_max=draw.choice((4, 8)) if not calm and draw.random() < 0.1 else 65_536,
        hold_renew_s=HOLD_S,
        quarantine_warn_s=WARN_S,
        bootstrap_timeout_s=BOOTSTRAP_S,
        waiting_timeout_s=WAITING_S,
        queued_timeout_s=WAITING_S,
        moving_timeout_s=MOVING_S,
        cap_timeout_s=CAP_S,
        parked_ttl_s=PARKED_S,
        digest=int(draw.random() < 0.15),
    )


def _faults(draw: random.Random, *, digest: bool) -> Faults:
    """What goes wrong by itself. Bytes are damaged where digests are taken: elsewhere nobody can notice."""
    rates = {name: rate(draw, 0.15, 0.004, 0.2) for name in _FRAMES}
    rates |= {name: rate(draw, 0.15, 0.005, 0.2) for name in _WRITES}
    return Faults(
        flips=rate(draw, 0.5, 0.002, 0.1) if digest else 0.0,
        reorder=_is(draw, 0.1),
        delay=rate(draw, 0.08, 0.001, 0.02),
        late_s=draw.choice((1.0, 10.0)),
        **rates,
    )


def rate(draw: random.Random, often: float, low: float, high: float) -> float:
    """0, or with probability `often` a rate between low and high, small ones as likely as large ones."""
    on, share = draw.random() < often, draw.random()
    return float(low * (high / low) ** share) if on else 0.0


def _is(draw: random.Random, probability: float) -> bool:
    return draw.random() < probability
