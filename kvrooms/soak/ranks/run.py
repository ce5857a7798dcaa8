"""`kvrooms soak --shape`: options, signals, progress, and the report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...engine.ending import CutOff, Ending, status_of
from ...protocol.errors import InvalidArgument
from ...shapes.table import CASES, Case
from ..procs import ProcessError, Processes
from .conductor import Conductor, Outcome

_MODULE = "kvrooms.soak.ranks.worker"
_SHOWN = 8


@dataclass(frozen=True)
class ShapeOptions:
    """What `kvrooms soak --shape` was asked for.

    shapes: names, or "all". seed: of pages, slots and indices. corrupt: have one rank of each shape change one byte of
    its memory after its rooms are DONE: the comparison must find it.
    """

    shapes: tuple[str, ...] = ("all",)
    seed: int = 0
    corrupt: bool = False


def main(options: ShapeOptions) -> int:
    """Run, and print the report as the last line of standard output.

    Returns the exit status: 0 if every byte of every shape was as it must be, 1 if not. A first signal lets the shape
    that runs end and begins no more, a second ends at once: `status_of` it, if shapes that were asked for have not run;
    see `engine.ending`.
    """
    with Ending() as ending:
        report = soak(options, _say, ending)
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    if ending.asked is not None and report["not_run"]:
        return status_of(ending.asked)
    return 0 if report["ok"] else 1


def soak(options: ShapeOptions, say: Callable[[str], None], ending: Ending | None = None) -> dict[str, Any]:
    """One run: the report. Raises InvalidArgument for a shape that is none."""
    cases = chosen(options.shapes)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    trouble: list[str] = []
    try:
        _run(cases, options, outcomes, say, ending or Ending())
    except (ProcessError, CutOff) as error:
        trouble.append(str(error))
        say(str(error))
    return {
        "ok": len(outcomes) == len(cases) and all(one.identical for one in outcomes) and not trouble,
        "shapes": [
            {
                "name": one.name,
                "ranks": one.ranks,
                "bytes": one.bytes,
                "identical": one.identical,
                "seconds": round(one.seconds, 2),
                "gathered": one.gathered,
                "scattered": one.scattered,
            }
            for one in outcomes
        ],
        "not_run": [case.name for case in cases[len(outcomes) :]],
        "wrong": [*trouble, *(words for one in outcomes for words in one.wrong)],
        "seconds": round(time.monotonic() - began, 1),
    }


def chosen(names: tuple[str, ...]) -> list[Case]:
    """The shapes of some names, each once, in the order of the table. Raises InvalidArgument."""
    for name in names:
        if name != "all" and name not in CASES:
            raise InvalidArgument("shape", name, f"must be all or one of {' '.join(CASES)}")
    return [case for name, case in CASES.items() if "all" in names or name in names]


def _run(
    cases: list[Case], options: ShapeOptions, outcomes: list[Outcome], say: Callable[[str], None], ending: Ending
) -> None:
    """One shape after another."""
    from ...transport.registry import RegistryServer

    told: list[str] = []

    def stop(words: str) -> None:
        told.append(words)
        say(f"{words}: no more shapes begin")

    with Processes(_MODULE) as processes, RegistryServer(port=0) as registry:
        ending.at_once.append(processes.kill)
        conductor = Conductor(processes, registry.url, seed=options.seed, corrupt=options.corrupt, told=stop)
        for case in cases:
            if ending.asked is not None or told:
                return
            outcome = conductor.play(case)
            outcomes.append(outcome)
            verdict = "identical" if outcome.identical else "NOT IDENTICAL"
            say(f"{case.name:20} {outcome.ranks} ranks, {outcome.bytes:9,} bytes, {verdict}, {outcome.seconds:.2f} s")
            for words in outcome.wrong[:_SHOWN]:
                say(f"  {words}")


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()
