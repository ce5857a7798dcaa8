"""`kvrooms verify`: the properties of the rooms, shown on the code that runs."""

from __future__ import annotations

import json as json_module
import sys
import time

from rich.console import Console
from rich.table import Table

from ..engine.ending import CutOff, GivingUp, kill_workers, status_of
from ..harness.simulate.run import replay
from ..protocol.invariants import INVARIANTS

try:
    from ..harness.verify import Report, Scope, verify
except ModuleNotFoundError as error:
    if error.name not in ("hypothesis", "pytest"):
        raise
    print(f"kvrooms verify needs {error.name}: pip install 'kvrooms[harness]'", file=sys.stderr)
    raise SystemExit(1) from None

_MARK = {True: "holds", False: "BROKEN", None: "not shown"}


def main(*, scope: Scope, minutes: float | None, json: bool, workers: int) -> int:
    """Verify and print. Exit status: 0 when everything holds, 1 when something is broken, 2 when one is not shown.

    `status_of` a signal that cut it short: then nothing was shown, whatever was found until then.
    """
    started = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {line}", file=sys.stderr, flush=True)

    with GivingUp(at_first=kill_workers):
        try:
            report = verify(scope, minutes=minutes, workers=workers, progress=progress)
        except CutOff as error:
            progress(f"given up after {error.sign.name}: nothing was shown")
            if json:
                print(json_module.dumps({"ok": False, "interrupted": error.sign.name}), flush=True)
            return status_of(error.sign)
    for found in (*report.tally.counterexamples(), *report.mutants.baseline):
        print(found.text(), file=sys.stderr)
    if json:
        print(json_module.dumps(report.json()), flush=True)
    else:
        _show(report)
    if report.ok:
        return 0
    return 1 if report.tally.broken or report.mutants.survivors or report.canary is None else 2


def main_seed(seed: int, *, json: bool) -> int:
    """Replay one simulated run, with its timeline. The exit status is 1 when a property is broken in it."""
    run = replay(seed)
    found = run.tally.counterexamples()
    if json:
        steps = [
            {"at": step.at, "who": step.who, "to": step.to, "kind": step.kind, "text": step.text}
            for step in run.timeline
        ]
        print(json_module.dumps({"ok": not found, "seed": seed, "broken": sorted(run.tally.broken), "timeline": steps}))
    else:
        print(run.text())
        for counterexample in found:
            print(counterexample.text())
    return 1 if found else 0


def _show(report: Report) -> None:
    console = Console()
    table = Table(title="Properties", title_justify="left")
    for column in ("", "what it says", "", "examples"):
        table.add_column(column, justify="right" if column == "examples" else "left")
    for one in INVARIANTS:
        verdict = report.tally.verdict(one.id)
        table.add_row(one.id, one.text, _MARK[verdict.ok], f"{verdict.examples:,}")
    console.print(table)
    explored, simulated, mutants = report.explored, report.simulated, report.mutants
    configs = ", ".join(f"{config.name} {config.states:,}" for config in explored.configs)
    console.print(f"explored   {explored.states:,} states, {explored.transitions:,} transitions ({configs})")
    if explored.unreached:
        console.print(
            "           not reached, or not as said:", *explored.unreached, sep="\n             ", soft_wrap=True
        )
    console.print(
        f"simulated  {simulated.rooms:,} rooms with {simulated.faults:,} faults in {simulated.hours:,.0f} virtual hours"
    )
    console.print(f"hypothesis {', '.join(report.hunted.summary())}")
    console.print("timers     what a timer closed, and how often:")
    for name, count in report.timers.items():
        console.print(f"             {name}: {count:,}", soft_wrap=True)
    console.print(f"mutants    {mutants.killed} of {mutants.total} killed", *mutants.survivors)
    console.print(f"canary     {'killed' if report.canary else 'ALIVE'}")
    console.print(f"{'all of it holds' if report.ok else 'NOT ALL OF IT HOLDS'}; {report.seconds:.0f} s")
