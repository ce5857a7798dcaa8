"""The prefill side as frozen values, and the engine's own questions about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from ...engine import prefill_grants, prefill_posting
from ...protocol.events import Timer
from ...protocol.intervals import Intervals
from ...statemachine import memory
from .glue import UP, Ended
from .scenario import Plan, Write

PARKED = -1


class Writer(NamedTuple):
    """One grant. use: whose. record: the room that it is bound to, or PARKED. taken: pieces taken to be posted."""

    use: int
    number: int
    record: int = PARKED
    drain: memory.DrainValue = memory.DrainValue()
    taken: int = 0
    accepted: bool = False


class Record(NamedTuple):
    """A room. sends: handed over so far. freed: its source ranges are the caller's again. See `decode_side.Record`."""

    room: Any
    last: Ended
    timer: Timer | None = None
    cap: bool = False
    sends: int = 0
    freed: bool = False
    closed: bool = False


class PrefillSide(NamedTuple):
    """A prefill engine with one decode engine. link: connected. life: counts its starts. floor, over: its grant book.

    doubtful: grants of which a write has failed. kept: decode is not to see the end of the old connection yet. gone: it
    is proven that decode's process is gone.
    """

    run: str
    life: int
    link: bool
    records: tuple[Record | None, ...]
    writers: tuple[Writer, ...] = ()
    floor: int = 1
    over: Intervals = ()
    doubtful: tuple[int, ...] = ()
    kept: bool = False
    gone: bool = False
    goodbye: bool = False


def start(plans: tuple[Plan, ...], life: int = 0) -> PrefillSide:
    """Before anything is opened."""
    return PrefillSide(UP, life, link=False, records=(None,) * len(plans))


def following(plans: tuple[Plan, ...], writer: Writer, record: Record) -> Write | None:
    """The next piece of what the caller of a bound grant's room has handed over."""
    writes = plans[writer.use].writes(record.sends)
    return writes[writer.taken] if writer.taken < len(writes) else None


def unposted(plans: tuple[Plan, ...], writer: Writer, record: Record) -> int:
    """How many positions of a bound grant are not posted."""
    taken = plans[writer.use].writes(record.sends)[: writer.taken]
    return plans[writer.use].owed_items - sum(part.size for write in taken for part in write.piece.parts)


def _as_engine(plans: tuple[Plan, ...], writer: Writer, record: Record) -> Any:
    """What the engine's own questions look at: how many positions are not posted, and the room."""
    return SimpleNamespace(unposted=unposted(plans, writer, record), record=record)


def postable(plans: tuple[Plan, ...], writer: Writer, record: Record) -> bool:
    """Whether the next piece of a bound grant can be posted once the room is bound and the link is up."""
    write = following(plans, writer, record)
    if write is None:
        return False
    early = prefill_posting._completes_too_early  # noqa: SLF001 - the running code
    return not early(_as_engine(plans, writer, record), write.piece)


def armed(record: Record) -> tuple[Timer, ...]:
    """The deadlines of a room."""
    cap = (Timer.CAP,) if record.cap else ()
    return cap if record.timer is None else (*cap, record.timer)


def all_posted(plans: tuple[Plan, ...], writer: Writer, record: Record) -> bool:
    """Whether a grant only has to settle."""
    return prefill_grants._all_posted(_as_engine(plans, writer, record))  # noqa: SLF001 - the running code
