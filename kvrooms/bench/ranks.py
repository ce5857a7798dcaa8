"""One rank of several, in a child process of the benchmark: on one pool an engine for each of its cuts."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

import numpy as np

from kvrooms import DecodeEngine, PrefillEngine

from ..engine.sends import Outbox, Send, Wanted
from ..protocol.grids import Side
from ..protocol.layout import Layout, Region, Regions
from ..protocol.manifest import Declaration, derive
from ..protocol.memory import Memory
from ..protocol.plan import DescriptorTable
from ..protocol.shaped import PairTable
from ..protocol.shares import Share, covers_of, pair_up
from ..protocol.staging import Slots, Staging, slot_bytes
from .engines import EngineDecode, EnginePrefill
from .figures import Run
from .split import CUTS, RankPool, Split

_PLANS = 5
_SOMEWHERE = 2**40
Engines = TypeVar("Engines", EnginePrefill, EngineDecode)


class _Rank(Generic[Engines]):
    """What both sides have: a pool, and engines by cut."""

    pool: RankPool
    engines: dict[str, Engines]

    def stop(self) -> None:
        """Close the engines and let go of the pool."""
        for engines in self.engines.values():
            engines.engine.close()
        del self.engines, self.pool

    def close(self) -> None:
        """Nothing is left after `stop`."""

    def counters(self, cut: str) -> dict[str, int]:
        """What the engine of a cut has counted."""
        return self.engines[cut].engine.counters()


class Sender(_Rank[EnginePrefill]):
    """A prefill rank."""

    def start(self, split: Split, rank: int, registries: dict[str, str]) -> dict[str, str]:
        """Make pool and engines, registered at the first rank's registries. Returns these, by cut."""
        self.pool = RankPool(split, "prefill", rank)
        self.engines = {}
        for cut in CUTS:
            engine = PrefillEngine(
                self.pool.memory(cut),
                name=f"bench-{cut}",
                rank=rank,
                ranks=split.prefill,
                registry=registries.get(cut),
            )
            self.engines[cut] = EnginePrefill(self.pool, engine)
        return {cut: engines.engine.bootstrap for cut, engines in self.engines.items()}

    def offer(self, cut: str, first: int, rooms: int) -> None:
        """See `EnginePrefill.offer`."""
        self.engines[cut].offer(first, rooms)

    def carry(self, cut: str, limit_s: float) -> float:
        """See `EnginePrefill.carry`."""
        return self.engines[cut].carry(limit_s)

    def plan_s(self, cut: str) -> float:
        """Seconds that planning the pieces of a room takes, sent in one chunk to every decode rank.

        They are planned as they are sent, through slots too; where the runs are that are gathered is a part of it.
        """
        return sum(self._plan_s(cut, rank) for rank in range(self.pool.split.decode))

    def _plan_s(self, cut: str, rank: int) -> float:
        memory, split = self.pool.memory(cut), self.pool.split
        prefill, decode = split.instance("prefill", cut), split.instance("decode", cut)
        layout = decode.ranks[rank].layout
        theirs = _elsewhere(memory, layout)
        settings = self.engines[cut].engine.settings
        tables = DescriptorTable(memory.layout, memory.regions), DescriptorTable(layout, theirs)
        pairs = covers = None
        lent = False
        if split.many > 1:
            share = pair_up(prefill, decode).shares[self.pool.rank, rank]
            covers = covers_of(share, prefill.ranks[self.pool.rank])
            pairs, lent = self._pairs(Side(memory.layout, memory.regions), Side(layout, theirs), share)
        pages = self.pool.group(0)
        wanted = Wanted(derive(memory.layout, len(pages), 0, (), aux=True, covers=covers), pages, 0, ())
        seconds = []
        for _ in range(_PLANS):
            outbox = Outbox(memory.layout, *tables, settings.piece_bytes, pairs, lent=lent)
            outbox.put(Send(0, pages, (), 0, Declaration()))
            began = time.perf_counter()
            while (piece := outbox.peek(wanted)) is not None:
                if piece.staged is not None:
                    piece.staged.pack()
                outbox.take()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    def _pairs(self, ours: Side, theirs: Side, share: Share) -> tuple[PairTable, bool]:
        """The plans as the engines of both sides make them out, and whether decode lends slots."""
        settings = self.engines["heads"].engine.settings
        staging = Staging(settings.staging_max_slice_bytes, slot_bytes(settings.staging_bytes))
        parts = PairTable(ours, theirs, share, staging).scattered
        slots = Slots(_SOMEWHERE, 1, staging.slot_bytes, parts) if parts else None
        return PairTable(ours, theirs, share, staging, slots), bool(parts)


def _elsewhere(memory: Memory, layout: Layout) -> Regions:
    """Regions for a layout, as many items as ours, at addresses where nobody writes."""
    items, slots = memory.regions.pages, memory.regions.aux_slots
    at = _SOMEWHERE + np.cumsum([0, *(spec.item_length * items for spec in layout.kv)])
    kv = tuple(Region(int(address), items) for address in at[:-1])
    return Regions(kv, (Region(int(at[-1]), slots),), ())


class Receiver(_Rank[EngineDecode]):
    """A decode rank, which measures."""

    def start(self, split: Split, rank: int, registries: dict[str, str]) -> None:
        """Make pool and engines."""
        self.pool = RankPool(split, "decode", rank)
        self.engines = {}
        for cut in CUTS:
            ranks = split.instance("decode", cut)
            engine = DecodeEngine(self.pool.memory(cut), name=f"bench-{cut}-{rank}", ranks=ranks, rank=rank)
            self.engines[cut] = EngineDecode(self.pool, registries[cut], engine)

    def run(self, cut: str, first: int, rooms: int, in_flight: int, limit_s: float) -> Run:
        """One run of one cut; the bytes of its last room are compared."""
        last = first + rooms - 1
        self.pool.wipe(cut, last)
        run = self.engines[cut].run(first, rooms, in_flight, limit_s)
        if not self.pool.landed(cut, last):
            raise RuntimeError(f"room {last} ({cut}) is DONE, but its memory is not what prefill sent")
        return run
