"""What `kvrooms verify` makes of its evidence: the verdict, the JSON, and what people read."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kvrooms.cli.verify import _show
from kvrooms.harness.evidence import Counterexample, Tally
from kvrooms.harness.explore.run import Exploration
from kvrooms.harness.stateful.hunt import Hunt
from kvrooms.harness.verify import Report
from kvrooms.protocol.invariants import INVARIANTS

CELL = "decode room: KV x CLOSE"


def report(*, without: str = "", unreached: tuple[str, ...] = ()) -> Report:
    """A report in which everything holds, but for what is named."""
    tally = Tally()
    for one in INVARIANTS:
        if one.id != without:
            tally.held(one.id)
    explored = Exploration(tally, [], 1, 1, not unreached, 1.0, {}, {"waiting: decode KV": 2}, unreached)
    simulated: Any = SimpleNamespace(rooms=1, faults=1, hours=1.0, seconds=1.0, timers={"heartbeat: heartbeat": 3})
    mutants: Any = SimpleNamespace(total=1, killed=1, survivors=())
    hunted = Hunt(tally, Counter({CELL: 1}))
    return Report(tally, explored, simulated, hunted, mutants, Counterexample("L2", "the canary"), 1.0)


def test_a_property_without_an_example_is_no_property_shown() -> None:
    assert report().ok
    for one in INVARIANTS:
        found = report(without=one.id)
        assert not found.ok
        shown = {row["id"]: (row["ok"], row["examples"]) for row in found.json()["properties"]}
        assert shown[one.id] == (None, 0)


def test_people_are_told_which_cell_was_not_reached(capsys: pytest.CaptureFixture[str]) -> None:
    _show(report())
    assert CELL not in capsys.readouterr().out
    found = report(unreached=(CELL, "FAILED: superseded"))
    _show(found)
    words = capsys.readouterr().out
    assert CELL in words
    assert "FAILED: superseded" in words
    assert not found.ok
    assert found.json()["explored"]["unreached"] == [CELL, "FAILED: superseded"]


def test_timers_and_visited_cells_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    _show(report())
    words = capsys.readouterr().out
    assert "waiting: decode KV: 2" in words
    assert "heartbeat: heartbeat: 3" in words
    assert "decode room: 1 of " in words
    assert report().json()["timers"] == {"heartbeat: heartbeat": 3, "waiting: decode KV": 2}
    assert report().json()["hypothesis"]["cells"]["decode room"]["visited"] == 1
