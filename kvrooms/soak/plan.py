"""What each room of a soak does, and what is done to it: drawn from the seed and the room's number, and nothing else.

So the conductor and both sides of a room know its plan without telling one another.
"""

from __future__ import annotations

import enum
import random
from typing import Literal, TypeAlias

import msgspec

Side: TypeAlias = Literal["prefill", "decode"]
ROOMS = 512
"""Room numbers are used again and again, each time as the next attempt."""
PLAIN_FROM = 2**30
"""Numbers from here on are rooms of the frame: nothing is done to them, and they are not counted."""


class Fault(enum.Enum):
    """What may be done to a room. The value is what progress and tables call it."""

    ABORT = "abort"
    CLOSE = "close"
    LOSE = "message lost"
    REPEAT = "message repeated"
    STRANGER = "hostile stranger"
    HOSTILE = "hostile frames"
    POISON = "hostile METADATA"
    CORRUPT = "corrupted byte"
    STALL = "short stall"
    FREEZE = "stall"


_SHARES: tuple[tuple[Fault, float], ...] = (
    (Fault.ABORT, 0.26),
    (Fault.CLOSE, 0.08),
    (Fault.LOSE, 0.20),
    (Fault.REPEAT, 0.14),
    (Fault.STRANGER, 0.08),
    (Fault.HOSTILE, 0.09),
    (Fault.POISON, 0.04),
    (Fault.CORRUPT, 0.06),
    (Fault.STALL, 0.03),
    (Fault.FREEZE, 0.02),
)
HARMLESS = frozenset({Fault.STRANGER, Fault.HOSTILE, Fault.STALL})
"""A room that suffers one of these must not fail of it."""
# Which frames are lost or repeated, who sends them, and which side aborts so that they are sent at all.
_FRAMES: tuple[tuple[str, Side, Side | None], ...] = (
    ("metadata", "decode", None),
    ("accept", "prefill", None),
    ("failed", "prefill", "prefill"),
    ("abort", "decode", "decode"),
    ("ack", "prefill", "decode"),
)


class Config(msgspec.Struct, frozen=True):
    """What all plans of a run are drawn from."""

    seed: int
    fault_rate: float
    prefills: int = 2
    decodes: int = 2
    freezes: bool = True

    @property
    def digesting(self) -> int:
        """The index of the decode process that asks for digests: the others show that it goes without."""
        return self.decodes - 1


class Injury(msgspec.Struct, frozen=True):
    """A fault of one room.

    side: where it happens. step: before which send of prefill it happens, or how many tenths of the delay decode
    waits. delay_s: from the order to the stop of a process, or from opening to the abort. frame: which message is lost
    or repeated, `times` times. abort: which side also aborts the room.
    """

    fault: Fault
    side: Side
    step: int
    delay_s: float
    frame: str = ""
    times: int = 1
    abort: Side | None = None


class Plan(msgspec.Struct, frozen=True):
    """One room.

    prefill, decode: which processes, by index. chunks: how many pages each send carries, those of the prefix included.
    declared: whether prefill tells the number of pages when it opens. waits_s: before prefill opens, before decode
    opens. gaps_s: before each send. conv, window: how many indices of the two state components. spelling: how an empty
    window is written. shuffled: whether the pages are in no order.
    """

    number: int
    prefill: int
    decode: int
    prefix: int
    chunks: tuple[int, ...]
    declared: bool
    aux: bool
    conv: bool
    window: int
    spelling: int
    shuffled: bool
    waits_s: tuple[float, float]
    gaps_s: tuple[float, ...]
    injury: Injury | None

    @property
    def room(self) -> int:
        """The room's number on the wire."""
        return self.number % ROOMS

    @property
    def attempt(self) -> int:
        """The attempt on the wire."""
        return self.number // ROOMS

    @property
    def total(self) -> int:
        """Pages of the prompt, those that decode holds already included."""
        return sum(self.chunks)

    @property
    def silent(self) -> bool:
        """Whether a deadline may be all that ends a side of the room: then it has short ones."""
        return not self.harmless and self.injury is not None and self.injury.fault is not Fault.FREEZE

    @property
    def harmless(self) -> bool:
        """Whether the room must not fail of what is done to it."""
        injury = self.injury
        if injury is None or injury.fault in HARMLESS:
            return True
        return injury.fault is Fault.REPEAT and injury.abort is None


def plan_of(config: Config, number: int) -> Plan:
    """The plan of room `number`."""
    # A string seeds the same on every machine; a tuple's hash does not.
    draw = random.Random(f"kvrooms soak {config.seed} room {number}")
    pages = draw.choice((0, 1, 1, 2, 3, 4, 5, 8, 8, 12, 16, 16, 24, 64))
    prefix = draw.choice((0, 0, 0, 1, 5))
    chunks = _split(draw, prefix + pages)
    slow = draw.random() < 0.4
    decode = draw.randrange(config.decodes)
    injury = _injury(draw, config, len(chunks)) if number < PLAIN_FROM else None
    if injury is not None and injury.fault is Fault.CORRUPT:
        decode = config.digesting
    return Plan(
        number=number,
        prefill=draw.randrange(config.prefills),
        decode=decode,
        prefix=prefix,
        chunks=chunks,
        declared=draw.random() < 0.5,
        aux=draw.random() < 0.9,
        conv=draw.random() < 0.8,
        window=draw.choice((0, 0, 1, 3, 6)),
        spelling=draw.randrange(6),
        shuffled=draw.random() < 0.5,
        waits_s=(_wait(draw, 0.02), _wait(draw, 0.02)),
        gaps_s=tuple(_wait(draw, 0.02) if slow else 0.0 for _ in chunks),
        injury=injury,
    )


def _split(draw: random.Random, pages: int) -> tuple[int, ...]:
    """The sizes of up to five sends."""
    cuts = sorted(draw.randint(0, pages) for _ in range(draw.choice((0, 0, 1, 2, 4))))
    return tuple(high - low for low, high in zip([0, *cuts], [*cuts, pages], strict=True))


def _wait(draw: random.Random, most_s: float) -> float:
    return draw.uniform(0, most_s) if draw.random() < 0.5 else 0.0


def _injury(draw: random.Random, config: Config, sends: int) -> Injury | None:
    if draw.random() >= config.fault_rate:
        return None
    faults, shares = zip(*_SHARES, strict=True)
    fault = draw.choices(faults, shares)[0]
    if fault is Fault.FREEZE and not config.freezes:
        fault = Fault.STALL
    side: Side = draw.choice(("prefill", "decode"))
    frame, abort, times = "", None, draw.choice((1, 1, 2))
    if fault in {Fault.LOSE, Fault.REPEAT}:
        frame, side, abort = draw.choice(_FRAMES)
    elif fault in {Fault.STRANGER, Fault.POISON, Fault.CORRUPT}:
        side = "decode"
    return Injury(fault, side, draw.randint(0, sends), draw.uniform(0, 0.05), frame, times, abort)


def kill_numbers(config: Config, rooms: int, every: int) -> dict[int, Side]:
    """Rooms at which a process is killed, with its side: one in each full `every` rooms, while rooms are left."""
    draw = random.Random(f"kvrooms soak {config.seed} kills")
    kills: dict[int, Side] = {}
    for first in range(0, rooms - every + 1, every):
        kills[first + draw.randrange(every // 4, every - every // 4)] = draw.choice(("prefill", "decode"))
    return kills
