"""`python -m kvrooms.harness.mutants.table`: every checker looks at every mutant; the table of docs/mutants.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from ...protocol.invariants import INVARIANTS
from .catalogue import BY_NAME, MUTANTS
from .run import MutantReport, MutantResult, run_mutants

BEGIN = "<!-- the table below is written by `python -m kvrooms.harness.mutants.table` -->"


def markdown(report: MutantReport) -> str:
    """Per property how many mutants break it, and per mutant what was changed and who noticed."""
    lines = [
        BEGIN,
        "",
        "| property | mutants that must break it | of these, that break nothing else |",
        "|---|---|---|",
    ]
    for one in INVARIANTS:
        those = [mutant for mutant in MUTANTS if one.id in mutant.expected]
        only = sum(mutant.only for mutant in those)
        lines.append(f"| {one.id} {one.name} | {len(those)} | {only} |")
    lines += ["", "| mutant | the mistake | where | noticed by |", "|---|---|---|---|"]
    lines += [_row(result) for result in report.results]
    return "\n".join([*lines, ""])


def _row(result: MutantResult) -> str:
    cells = (result.name, result.mistake, f"`{result.where}`", "; ".join(_noticed(result.killed_by)) or "nobody")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _noticed(killed_by: Iterable[str]) -> list[str]:
    found: dict[str, list[str]] = {}
    for kill in killed_by:
        checker, _, property_id = kill.partition(" ")
        found.setdefault(checker, []).append(property_id)
    return [f"{checker}: {', '.join(properties)}" for checker, properties in found.items()]


def _main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvrooms.harness.mutants.table", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to look at (default: all of them)")
    names = parser.parse_args(argv).names
    if unknown := [name for name in names if name not in BY_NAME]:
        parser.error(f"no mutant is called {', '.join(unknown)}")
    report = run_mutants(names=names or None, scope="full", progress=lambda line: print(line, file=sys.stderr))  # noqa: T201 - a command
    print(markdown(report))  # noqa: T201
    wrong = [one for one in report.results if one.missed or one.more or one.counterexample is None]
    for one in wrong:
        text = f"{one.name}: not broken: {one.missed}; broken too: {one.more}; {one.error}"
        print(text, file=sys.stderr)  # noqa: T201
    return 1 if wrong or report.baseline else 0


if __name__ == "__main__":
    sys.exit(_main())
