"""Unequal tensor parallelism beside equal: the same bytes between the same processes, cut by heads and by layers.

Three processes, one rank on one side and two on the other. Cut by heads, each token of a page is sliced (TP 2 to 1, or
1 to 2). Cut by layers, whole pages travel, as between equal sides. The two take turns in the same processes, on the
same pools, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from ..engine.ending import Ending
from .figures import Run
from .pair import RUN_LIMIT_S, START_LIMIT_S, Children
from .split import CUTS, Split, split_of

SLICES = (1024, 128)
WAYS = ((2, 1), (1, 2))
_IN_FLIGHT = 4
_ROOMS = 24
_QUICK_ROOMS = 8
_REST_S = 0.1
_PLAN_PAGES = 2048
_PLAN_BUFFERS = 128  # K and V of 64 layers
_PLAN_SLICE = 128
_PLAN_RUNS = 3


class Ranks(Children):
    """The processes of one way: so many ranks on either side. They have engines from `start` to `stop`."""

    def __init__(self, prefill: int, decode: int, ending: Ending | None = None) -> None:
        super().__init__(ending)
        self._numbers = (prefill, decode)
        self._rooms = 0

    def _begin(self) -> None:
        prefill, decode = self._numbers
        self.senders = [self._child(f"sender-{rank}") for rank in range(prefill)]
        self.receivers = [self._child(f"receiver-{rank}") for rank in range(decode)]

    def start(self, split: Split) -> None:
        """Give every rank a pool and engines."""
        registries: dict[str, str] = {}
        for rank, child in enumerate(self.senders):
            child.ask("start", split, rank, registries)
            (registries,) = self._gather([child], START_LIMIT_S)
        for rank, child in enumerate(self.receivers):
            child.ask("start", split, rank, registries)
        self._gather(self.receivers, START_LIMIT_S)

    def stop(self) -> None:
        """Close the engines."""
        self.all("stop", limit_s=START_LIMIT_S)

    def run(self, cut: str, rooms: int, in_flight: int) -> float:
        """So many rooms. Returns the seconds that the slowest decode rank took."""
        time.sleep(_REST_S)  # the other cut's engines look around for a while after a run
        first, self._rooms = self._rooms, self._rooms + rooms
        for child in self.senders:
            child.ask("offer", cut, first, rooms)
        self._gather(self.senders, RUN_LIMIT_S)
        for child in self.senders:
            child.ask("carry", cut, RUN_LIMIT_S)
        for child in self.receivers:
            child.ask("run", cut, first, rooms, in_flight, RUN_LIMIT_S)
        answers = self._gather([*self.senders, *self.receivers], 2 * RUN_LIMIT_S)
        return max(run.seconds for run in answers if isinstance(run, Run))

    def plan_s(self) -> float:
        """Seconds of planning a room by the first prefill rank: see `Sender.plan_s`."""
        self.senders[0].ask("plan_s", "heads")
        (seconds,) = self._gather(self.senders[:1], RUN_LIMIT_S)
        return float(seconds)


def ratios(runs: int, ending: Ending, step: Callable[[str], None], *, quick: bool) -> Iterator[dict[str, Any]]:
    """A row per way and length of slice, as it is known: goodput of both cuts and their ratio. `step` tells of it."""
    rooms = _QUICK_ROOMS if quick else _ROOMS
    for prefill, decode in WAYS:
        with Ranks(prefill, decode, ending) as ranks:
            for size in SLICES:
                step(f"TP {prefill}:{decode}, slices of {size} bytes")
                row = measure(ranks, split_of(prefill, decode, size), rooms, runs)
                yield {"way": f"{prefill}:{decode}", "slice": size, **row}


def measure(ranks: Ranks, split: Split, rooms: int, runs: int) -> dict[str, float]:
    """The medians of so many runs of each cut, taking turns."""
    ranks.start(split)
    seconds: dict[str, list[float]] = {cut: [] for cut in CUTS}
    for cut in CUTS:
        ranks.run(cut, min(rooms, split.groups), _IN_FLIGHT)  # both sides touch everything once
    for _ in range(runs):
        for cut in CUTS:
            seconds[cut].append(ranks.run(cut, rooms, _IN_FLIGHT))
    ranks.stop()
    heads, layers = (rooms * split.size / median(seconds[cut]) / 1e9 for cut in CUTS)
    return {"goodput_gb_s": round(heads, 3), "equal_goodput_gb_s": round(layers, 3), "ratio": round(heads / layers, 3)}


def plan_shares(ending: Ending) -> Iterator[tuple[str, float]]:
    """Per way: planning a chunk of 2,048 pages of 64 layers, as a share of the time that it takes to move it."""
    for prefill, decode in ((1, 1), *WAYS):
        with Ranks(prefill, decode, ending) as ranks:
            split = Split(prefill, decode, _PLAN_SLICE, _PLAN_PAGES, chunks=1, groups=1, buffers=_PLAN_BUFFERS)
            ranks.start(split)
            planning = ranks.plan_s()
            moving = min(ranks.run("heads", 1, 1) for _ in range(_PLAN_RUNS))
            ranks.stop()
        yield f"{prefill}:{decode}", round(planning / moving, 4)


def by_way(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The ratios of some rows by way and length of slice."""
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        table.setdefault(row["way"], {})[str(row["slice"])] = row["ratio"]
    return table
