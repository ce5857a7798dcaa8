"""An engine's health, with figures. It tells; it never frees anything.

Memory that a dead or silent peer may still write cannot be handed back by waiting longer (see the lease). What an
engine can do is say how much of it there is and for how long, so that an orchestrator fences the peer or replaces the
process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..protocol.layout import Layout, Regions
from ..protocol.manifest import Indices
from .account import listed
from .settings import EngineSettings


class Health(NamedTuple):
    """What an engine says of itself. ok: nothing in `problems`, each of which is one sentence with its figures.

    rooms: open. quarantined: ended rooms whose memory some rank may still write (decode), or whose posted writes have
    not settled (prefill). quarantined_bytes: their ranges, each once, for they come back together; on prefill what the
    writes in flight carry. quarantined_s: since when the oldest. still_s: for how long rooms have been open past
    METADATA while none made progress.
    """

    ok: bool
    problems: tuple[str, ...]
    rooms: int
    quarantined: int
    quarantined_bytes: int
    quarantined_s: float
    still_s: float


class Held(NamedTuple):
    """A room that is over and whose memory is not free: bytes, since when, and because of whom."""

    bytes: int
    since: float
    peers: tuple[str, ...]


def judge(
    settings: EngineSettings, *, registered: int, now: float, rooms: int, still_s: float, held: Iterable[Held]
) -> Health:
    """The health that figures amount to. registered: bytes of all pools."""
    kept = list(held)
    total = sum(room.bytes for room in kept)
    oldest = min(kept, key=lambda room: room.since, default=None)
    longest_s = now - oldest.since if oldest is not None else 0.0
    problems = []
    if oldest is not None and longest_s > settings.quarantine_warn_s:
        problems.append(
            f"memory of {len(kept)} ended rooms ({total} bytes) is held, the oldest for {longest_s:.1f} s by "
            f"{listed(oldest.peers)}: no acknowledgement has come, and no proof that the process is gone"
        )
    budget = settings.quarantine_share * registered
    if total > budget:
        problems.append(
            f"{total} bytes of ended rooms are held, of {registered} registered: over the {budget:.0f} allowed"
        )
    if still_s > settings.no_progress_s:
        problems.append(f"none of the open rooms has made progress for {still_s:.1f} s")
    return Health(not problems, tuple(problems), rooms, len(kept), total, longest_s, still_s)


def registered_bytes(layout: Layout, regions: Regions) -> int:
    """Bytes of all registered buffers."""
    lengths = [buffer.item_length for buffer in layout.kv] + [aux.item_length for aux in layout.aux]
    lengths += [buffer.item_length for component in layout.state for buffer in component.buffers]
    return sum(length * region.items for length, region in zip(lengths, regions.in_order(), strict=True))


def range_bytes(layout: Layout, names: Iterable[str], pages: Indices, aux_index: int, state: Iterable[Indices]) -> int:
    """Bytes of the ranges of one room; `names`: the components of `state`, in order."""
    per_item = {component.name: sum(b.item_length for b in component.buffers) for component in layout.state}
    total = len(pages) * sum(buffer.item_length for buffer in layout.kv)
    total += sum(aux.item_length for aux in layout.aux) if aux_index >= 0 else 0
    return total + sum(len(indices) * per_item[name] for name, indices in zip(names, state, strict=True))
