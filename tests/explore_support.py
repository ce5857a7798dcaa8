"""What the tests of the explorer share: small jobs, and faults planted in the tables that run."""

from __future__ import annotations

from typing import Any

import pytest

from kvrooms.harness.explore.configs import Job, jobs
from kvrooms.harness.explore.search import Found, Search
from kvrooms.protocol.events import Do
from kvrooms.statemachine.table import Row


def searched(job: Job) -> Found:
    """Search one job."""
    return Search(job.system(), job.config).run()


def broken(*names: str) -> dict[str, Any]:
    """The first counterexample of each property over the smallest jobs of some configurations."""
    found: dict[str, Any] = {}
    for name in names:
        for job in jobs(name, "mutant"):
            for property_id, counterexample in searched(job).broken.items():
                found.setdefault(property_id, counterexample)
    return found


def rows_of(compiled: dict[Any, Row[Any, Any]], state: Any, event: Any) -> list[Any]:
    """The keys of a cell in a compiled table."""
    return [key for key in compiled if key[0] is state and key[1] is event]


def without(patch: pytest.MonkeyPatch, compiled: dict[Any, Row[Any, Any]], state: Any, event: Any, command: Do) -> None:
    """Leave a command out of a cell of the table that runs."""
    for key in rows_of(compiled, state, event):
        row = compiled[key]
        patch.setitem(compiled, key, row._replace(commands=tuple(c for c in row.commands if c.do is not command)))


def becomes(patch: pytest.MonkeyPatch, compiled: dict[Any, Row[Any, Any]], state: Any, event: Any, row: Any) -> None:
    """Let a cell of the table that runs be one row."""
    for key in rows_of(compiled, state, event):
        patch.setitem(compiled, key, row)
