"""From the times of single rooms to the figures of a run, and from runs to a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .shapes import Shape


@dataclass(frozen=True)
class Run:
    """One run: rooms, seconds from the first request to the last completion, each room's latency in seconds.

    `cpu_s` is the processor time of this process in the run, in seconds.
    """

    rooms: int
    seconds: float
    latencies: Sequence[float]
    cpu_s: float

    @property
    def rooms_per_s(self) -> float:
        """Rooms per second."""
        return self.rooms / self.seconds

    def quantile_ms(self, share: float) -> float:
        """The latency that this share of the rooms does not exceed, in milliseconds."""
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def goodput_gb_s(self, size: int) -> float:
        """10**9 bytes of pages per second, for rooms of `size` bytes."""
        return self.rooms * size / self.seconds / 1e9


def result(shape: Shape, in_flight: int, engines: Sequence[tuple[Run, float]], floors: Sequence[Run]) -> dict[str, Any]:
    """One row of the results: medians over runs. `engines`: decode's run, and the processor seconds of prefill."""
    runs = [run for run, _ in engines]
    goodput = median(run.goodput_gb_s(shape.size) for run in runs)
    floor = median(run.goodput_gb_s(shape.size) for run in floors)
    return {
        "room": shape.name,
        "in_flight": in_flight,
        "rooms_per_s": round(median(run.rooms_per_s for run in runs), 1),
        "p50_ms": round(median(run.quantile_ms(0.50) for run in runs), 4),
        "p99_ms": round(median(run.quantile_ms(0.99) for run in runs), 4),
        "goodput_gb_s": round(goodput, 4),
        "cpu_s_per_room": round(median((run.cpu_s + cpu_s) / run.rooms for run, cpu_s in engines), 7),
        "floor_rooms_per_s": round(median(run.rooms_per_s for run in floors), 1),
        "floor_p50_ms": round(median(run.quantile_ms(0.50) for run in floors), 4),
        "floor_goodput_gb_s": round(floor, 4),
        "ratio": round(goodput / floor, 3),
    }
