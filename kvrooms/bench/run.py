"""`kvrooms bench`: rooms of three sizes beside a floor without any protocol; idle engines; import; memory; unequal TP.

One pair of processes per size holds the pools, and floor and engines take turns in it, so that what else the machine
does hits both alike. Figures are medians over the runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..engine.draining import words
from ..engine.ending import CutOff, Ending, status_of
from .figures import result
from .load import Others
from .pair import BenchError, Interrupted, Pair
from .report import Progress, show
from .shapes import IN_FLIGHT, SMALL, Shape, shapes
from .tp import SLICES, WAYS, by_way, plan_shares, ratios

_WARM_UP = 100
_QUICK_RUNS = 2
_QUICK_SHARE = 8
_FEWEST_SHARE = 8
_IDLE_ROOMS = 100
_IDLE_S = 10.0
_QUICK_IDLE_S = 2.0
_IMPORTS = 7
_QUICK_IMPORTS = 3
_QUIET_LIMIT_S = 5.0
_RUN_S = 2.0
"""About the longest run: on a busy machine rooms are fewer, so that the benchmark ends in minutes all the same."""
_TP_ROOM = "64MiB"
_BUSY = 0.2
"""Cores in use by others from which the figures come with a warning."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    json: print one JSON object as the last line of standard output instead of tables. rooms: names of sizes, none for
    all. runs: runs per figure, of which the median is shown. quick: fewer rooms and runs, for a look. Sides of unequal
    TP are measured with rooms of 64 MiB, where these are among the sizes.
    """

    json: bool = False
    rooms: tuple[str, ...] = ()
    runs: int = 5
    quick: bool = False


def main(options: BenchOptions) -> int:
    """Measure and print. Raises InvalidArgument.

    Returns the exit status: 1 when a child process failed, `status_of` a signal that cut it short (`engine.ending`).
    """
    chosen = shapes(options.rooms)
    if options.quick:
        chosen = tuple(replace(shape, rooms=max(5, shape.rooms // _QUICK_SHARE)) for shape in chosen)
    runs = min(options.runs, _QUICK_RUNS) if options.quick else options.runs
    steps = len(chosen) * len(IN_FLIGHT) * runs * 2 + 3 + len(SLICES) * len(WAYS) + 1
    measured: dict[str, Any] = {"results": []}
    with Ending() as ending:
        try:
            with Progress(sys.stderr, steps, plain=options.json) as progress:
                for shape in chosen:
                    for row in _rooms(shape, runs, progress, ending):
                        measured["results"].append(row)
                measured.update(_rest(progress, ending, quick=options.quick))
                if any(shape.name == _TP_ROOM for shape in chosen):
                    measured.update(_tp(runs, progress, ending, quick=options.quick))
        except (BenchError, CutOff) as error:
            return _ended_early(measured, ending, error, json_wanted=options.json)
        if options.json:
            print(json.dumps(measured), flush=True)
        else:
            show(measured, runs)
    return 0


def _ended_early(measured: dict[str, Any], ending: Ending, error: BaseException, *, json_wanted: bool) -> int:
    """Say why, what became of the rooms that were open, and, where it was a signal, what was measured before it."""
    if ending.asked is None:
        print(f"kvrooms bench: {error}", file=sys.stderr)
        return 1
    sign = error.sign if isinstance(error, CutOff) else ending.asked
    drained = error.drained if isinstance(error, Interrupted) else {}
    print(f"kvrooms bench: interrupted by {sign.name}", *words(drained), sep="\n", file=sys.stderr)
    if json_wanted:
        measured["interrupted"] = sign.name
        measured["drained"] = {name: one._asdict() for name, one in drained.items()}
        print(json.dumps(measured), flush=True)
    return status_of(sign)


def _rooms(shape: Shape, runs: int, progress: Progress, ending: Ending) -> Iterator[dict[str, Any]]:
    """The results of one size, as they are known."""
    with Pair(shape, floor=True, ending=ending) as pair:
        for in_flight in IN_FLIGHT:
            what = f"{shape.name}, {in_flight} in flight"
            rooms = _rooms_per_run(pair, in_flight)
            floors, engines = [], []
            others = Others(pair.pids())
            for number in range(1, runs + 1):
                progress.step(f"{what}: floor, run {number} of {runs}")
                floors.append(pair.floor_run(rooms, in_flight))
                progress.step(f"{what}: kvrooms, run {number} of {runs}")
                engines.append(pair.run(rooms, in_flight))
            row = result(shape, in_flight, engines, floors)
            progress.say(_line(what, row, others.cores()))
            yield row


def _rooms_per_run(pair: Pair, in_flight: int) -> int:
    """How many rooms a run has, from a first run that also warms both up."""
    most = pair.shape.rooms
    warm_up = min(_WARM_UP, most)
    floor, (engines, _) = pair.floor_run(warm_up, in_flight), pair.run(warm_up, in_flight)
    wanted = int(_RUN_S * min(floor.rooms_per_s, engines.rooms_per_s))
    return min(most, max(wanted, most // _FEWEST_SHARE, 2 * in_flight))


def _line(what: str, row: dict[str, Any], others: float) -> str:
    """What is said of a result when it is known."""
    line = f"{what}: {row['rooms_per_s']:,.0f} rooms/s, floor {row['floor_rooms_per_s']:,.0f}"
    return f"{line}; other processes used {others:.1f} cores: do not quote" if others > _BUSY else line


def _rest(progress: Progress, ending: Ending, *, quick: bool) -> dict[str, Any]:
    """What does not depend on the size of rooms."""
    with Pair(SMALL, floor=False, ending=ending) as pair:
        progress.step("5,000 rooms one after another")
        memory = _memory(pair, in_flight=16 if quick else 1)
        progress.step(f"{_IDLE_ROOMS} rooms that wait")
        idle = pair.idle(_IDLE_ROOMS, _QUICK_IDLE_S if quick else _IDLE_S)
    progress.step("importing kvrooms")
    imported = _import_s(_QUICK_IMPORTS if quick else _IMPORTS, ending)
    return {"idle_cpu_percent": round(idle, 3), "import_s": round(imported, 4), "memory": memory}


def _tp(runs: int, progress: Progress, ending: Ending, *, quick: bool) -> dict[str, Any]:
    """Unequal TP as a share of equal, by way and length of slice; and the largest share that planning has."""
    rows = []
    for row in ratios(runs, ending, progress.step, quick=quick):
        rows.append(row)
        progress.say(
            f"TP {row['way']}, slices of {row['slice']} bytes: {row['goodput_gb_s']:.2f} GB/s,"
            f" equal {row['equal_goodput_gb_s']:.2f}"
        )
    progress.step("planning")
    shares = dict(plan_shares(ending))
    return {"tp": by_way(rows), "tp_rows": rows, "plan_share": max(shares.values()), "plan_shares": shares}


def _memory(pair: Pair, *, in_flight: int) -> dict[str, Any]:
    """Resident bytes of both processes after 100 rooms and after 5,000, and whether every table is as it was."""
    pair.run(100, in_flight)
    tables = _quiet_tables(pair, None)
    early = sum(pair.both("memory"))
    pair.run(4900, in_flight)
    equal = _quiet_tables(pair, tables) == tables
    return {"rooms_100": early, "rooms_5000": sum(pair.both("memory")), "tables_equal": equal}


def _quiet_tables(pair: Pair, wanted: object) -> object:
    """Both engines' tables once they have come to rest, or are as `wanted`: what was closed last takes its time."""
    end = time.monotonic() + _QUIET_LIMIT_S
    seen = pair.both("engines.engine.tables")
    while time.monotonic() < end and seen != wanted:
        time.sleep(0.2)
        before, seen = seen, pair.both("engines.engine.tables")
        if wanted is None and seen == before:
            break
    return seen


def _import_s(times: int, ending: Ending) -> float:
    """Seconds that `import kvrooms` adds to the start of an interpreter."""
    with_it, without = [], []
    for _ in range(times):
        if ending.asked is not None:
            raise Interrupted
        without.append(_start_s("pass"))
        with_it.append(_start_s("import kvrooms"))
    return max(0.0, median(with_it) - median(without))


def _start_s(code: str) -> float:
    began = time.perf_counter()
    try:
        # -P: in a checkout, the working directory's folder kvrooms is not the whole package.
        subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60, stdin=subprocess.DEVNULL)
    except subprocess.SubprocessError as error:
        raise BenchError(f"{code!r} in a fresh interpreter: {error}") from None
    return time.perf_counter() - began
