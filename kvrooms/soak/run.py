"""`kvrooms soak`: options, signals, progress, and the report."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from ..engine.ending import CutOff, Ending, status_of
from ..engine.settings import load_settings
from .conductor import Conductor
from .plan import Config
from .procs import ProcessError, Processes
from .progress import Progress
from .seats import Seats
from .tally import Tally

MEMORY_GROWTH = 1.05
MEMORY_ROOMS = 2000
"""From how many rooms on the growth of memory is judged; a shorter run says little about it."""


@dataclass(frozen=True)
class SoakOptions:
    """What `kvrooms soak` was asked for.

    rooms: how many. fault_rate: the share of rooms that get a fault of their own; 0 also leaves the kills out. seconds:
    after which no new rooms begin. seed: of all choices. json: plain progress even on a terminal. in_flight: rooms at
    a time. kill_every: one kill in so many rooms. freezes: whether processes are stopped for longer than the others
    wait. settings: of all engines (none: the defaults).
    """

    rooms: int = 3000
    fault_rate: float = 0.1
    seconds: float | None = None
    seed: int = 0
    json: bool = False
    prefills: int = 2
    decodes: int = 2
    in_flight: int = 32
    kill_every: int = 300
    freezes: bool = True
    settings: dict[str, int | float] = field(default_factory=dict)


def main(options: SoakOptions) -> int:
    """Run, and print the report as the last line of standard output.

    Returns the exit status: 0 if everything held, also when a signal ended the run in order; see `engine.ending`.
    """
    with Ending() as ending:
        with Progress(sys.stderr, options.rooms, plain=options.json) as progress:
            report, tally = soak(options, progress, ending)
            for line in [*tally.table(), *tally.complaints()]:
                progress.say(line)
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    if tally.cut_off is not None:
        return status_of(tally.cut_off)
    return 0 if report["ok"] else 1


def soak(options: SoakOptions, progress: Progress, ending: Ending | None = None) -> tuple[dict[str, Any], Tally]:
    """One run: the report, and the books behind it. Raises InvalidArgument for settings that are none."""
    ending = ending or Ending()
    began = time.monotonic()
    load_settings(**options.settings)
    config = Config(options.seed, options.fault_rate, options.prefills, options.decodes, options.freezes)
    tally, conductor = Tally(), None
    try:
        with Processes() as processes:
            ending.at_once.append(processes.kill)
            seats = Seats(processes, config, options.settings)
            conductor = _conductor(seats, config, options, ending)
            seats.start_registry()
            for tally in conductor.run():
                progress.show(tally)
    except ProcessError as error:
        tally.wrong(str(error))
    except CutOff as error:
        tally.cut_off = error.sign
        tally.wrong(str(error))
    if conductor is not None:
        tally = conductor.tally
        for words in conductor.told:
            progress.say(words)
        for name, figures in conductor.figures().items():
            progress.detail(f"{name}: " + ", ".join(f"{key} {n}" for key, n in sorted(figures.counters.items())))
    return _report(tally, conductor, time.monotonic() - began), tally


def _conductor(seats: Seats, config: Config, options: SoakOptions, ending: Ending) -> Conductor:
    return Conductor(
        seats,
        config,
        rooms=options.rooms,
        seconds=options.seconds,
        in_flight=options.in_flight,
        kill_every=options.kill_every,
        heartbeat_s=_silence_s(options.settings),
        ending=ending,
    )


def _silence_s(settings: dict[str, int | float]) -> float:
    """How long a peer may be silent before it is given up: found out at the next heartbeat."""
    loaded = load_settings(**settings)
    return loaded.heartbeat_timeout_s + loaded.heartbeat_s


def _report(tally: Tally, conductor: Conductor | None, seconds: float) -> dict[str, Any]:
    """The one JSON object. Memory is that of the largest engine process that was never killed, in bytes."""
    start, end = (0, 0) if conductor is None else conductor.memory()
    grown = tally.rooms >= MEMORY_ROOMS and end >= MEMORY_GROWTH * start
    if grown:
        tally.wrong(f"memory has grown from {start} to {end} bytes")
    p99 = tally.kill_p99_s
    return {
        "ok": tally.ok() and tally.rooms > 0,
        "rooms": tally.rooms,
        "done": tally.done,
        "failed": tally.failed,
        "failed_injected": tally.injected,
        "failed_collateral": tally.collateral,
        "hung": tally.hung,
        "corrupt": tally.corrupt,
        "canaries_hit": tally.canaries,
        "leaks": tally.leaks,
        "kills": tally.kills,
        "stalls": tally.stalls,
        "kill_to_failed_p99_s": None if p99 is None else round(p99, 4),
        "rss_start": start,
        "rss_end": end,
        "seconds": round(seconds, 1),
    }
