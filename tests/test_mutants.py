"""The mutants: that there are enough of each kind, that each can be planted, and that what is planted is noticed."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import inspect
import types
from pathlib import Path
from typing import Any

import pytest

import kvrooms
from kvrooms.harness.evidence import PROPERTY_IDS
from kvrooms.harness.mutants import plant, probe
from kvrooms.harness.mutants.catalogue import BY_NAME, MUTANTS, QUICK
from kvrooms.harness.mutants.mutant import Mutant
from kvrooms.harness.mutants.plant import Cell, Constant, Opening, Swapped, Text, Without
from kvrooms.harness.mutants.probe import PROBES, play_probes
from kvrooms.harness.mutants.run import MutantReport, _result, _run_all, run_mutants
from kvrooms.harness.mutants.stage import Aside, Broken, Hang
from kvrooms.harness.mutants.table import BEGIN, _row, markdown
from kvrooms.harness.mutants.zygote import Job, Outcome
from kvrooms.protocol.events import Do, RoomEvent
from kvrooms.protocol.invariants import INVARIANTS
from kvrooms.protocol.status import Phase
from kvrooms.statemachine import rooms
from kvrooms.statemachine.rooms import Guard

IDS = [invariant.id for invariant in INVARIANTS]
ROOT = Path(__file__).parents[1]


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_there_are_enough_mutants() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 60
    engine = [mutant for mutant in MUTANTS if mutant.fault.where.startswith("engine")]
    assert len(engine) >= 20
    assert {mutant.fault.where.split(".")[0] for mutant in MUTANTS} == {
        "engine",
        "protocol",
        "statemachine",
        "transport",
    }
    for mutant in MUTANTS:
        assert mutant.expected
        assert set(mutant.expected) <= set(PROPERTY_IDS)
        assert len(mutant.expected) == 1 or not mutant.only
        assert mutant.mistake
        assert mutant.fault.what


@pytest.mark.parametrize("property_id", IDS)
def test_each_property_has_two_mutants_that_only_it_kills(property_id: str) -> None:
    assert sum(mutant.only for mutant in MUTANTS if mutant.expected == (property_id,)) >= 2


def test_a_quick_look_has_one_mutant_of_each_property() -> None:
    assert sorted(BY_NAME[name].expected[0] for name in QUICK) == sorted(IDS)


def test_each_property_has_probes() -> None:
    play_probes(())
    assert {one.property for one in PROBES} == set(IDS)
    assert len({one.name for one in PROBES}) == len(PROBES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_can_be_planted(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = mutant.fault
    match fault:
        case Text():
            function = plant._function(fault.place)
            before = function.__code__
            monkeypatch.setattr(function, "__code__", before)
            fault.plant()
            assert function.__code__ is not before
            assert function is plant._function(fault.place)
        case Cell() | Without() | Swapped() | Opening():
            table = plant._found(fault.table)
            before = (dict(table.cells), table.initial_commands)
            monkeypatch.setattr(table, "cells", dict(table.cells))
            monkeypatch.setattr(table, "initial_commands", table.initial_commands)
            if not isinstance(fault, Opening):
                module = importlib.import_module(f"kvrooms.{fault.table.partition(':')[0]}")
                monkeypatch.setattr(module, fault.compiled, dict(getattr(module, fault.compiled)))
            fault.plant()
            assert (table.cells, table.initial_commands) != before
        case Constant():
            path, _, name = fault.place.partition(":")
            module = importlib.import_module(f"kvrooms.{path}")
            monkeypatch.setattr(module, name, getattr(module, name))
            fault.plant()
            assert getattr(module, name) == fault.value
        case _:
            pytest.fail(f"no way to take {fault} out again")


# -- planting ----------------------------------------------------------------------------------------------------------


class Sample:
    """Something to change."""

    def outer(self) -> int:
        word = 3

        def inner() -> int:
            return word + self.three

        return inner()

    @property
    def three(self) -> int:
        return 3

    @staticmethod
    def four() -> int:
        return 4


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plant, "_found", lambda place: inspect.getattr_static(Sample, place))
    for name in ("outer", "three", "four"):
        function = plant._function(name)
        monkeypatch.setattr(function, "__code__", function.__code__)


@pytest.mark.usefixtures("sample")
def test_a_text_is_changed_in_the_same_function() -> None:
    copies: list[Any] = [Sample.outer, Sample.four]
    Text("outer", "word = 3", "word = 30").plant()
    Text("three", "return 3", "return 7").plant()
    Text("four", "return 4", "return 5").plant()
    assert Sample().outer() == copies[0](Sample()) == 37
    assert Sample.four() == copies[1]() == 5


def test_a_function_that_keeps_answers_runs_the_fault_for_what_it_was_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeps = functools.lru_cache(Sample.four)
    monkeypatch.setattr(plant, "_found", lambda _: keeps)
    monkeypatch.setattr(Sample.four, "__code__", Sample.four.__code__)
    Text("four", "return 4", "return 5").plant()
    assert keeps() == 5


def test_two_commands_change_places_in_rows_of_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFILL_ROOM", "_PREFILL"):
        monkeypatch.setattr(rooms, name, copy.copy(getattr(rooms, name)))
    monkeypatch.setattr(rooms.PREFILL_ROOM, "cells", dict(rooms.PREFILL_ROOM.cells))
    swap = ("statemachine.rooms:PREFILL_ROOM", "_PREFILL", "MISMATCHED", Do.SEND_FAILED, Do.DRAIN_VOIDED)
    Swapped(*swap).plant()
    key = (Phase.KV, RoomEvent.DECLARED, Guard.MISMATCHED)
    assert [command.do for command in rooms._PREFILL[key].commands][-2:] == [Do.DRAIN_VOIDED, Do.SEND_FAILED]
    untouched = rooms._PREFILL[Phase.KV, RoomEvent.ABORT, Guard.MISMATCHED]
    assert [command.do for command in untouched.commands][-2:] == [Do.SEND_FAILED, Do.DRAIN_VOIDED]
    with pytest.raises(LookupError, match="none has SEND_FAILED and then DRAIN_VOIDED"):
        Swapped(*swap).plant()


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("old", ["nowhere", "word"])
def test_a_text_must_occur_once(old: str) -> None:
    with pytest.raises(LookupError, match=r"occurs \d times"):
        Text("outer", old, "x").plant()


def test_free_variables_stay_those_of_the_function() -> None:
    def made() -> types.FunctionType:
        secret = 5

        def reads() -> int:
            return secret + 1

        return reads

    function = made()
    source = "def reads():\n    return secret + 2\n"
    function.__code__ = plant._recompiled(function, source)
    assert function() == 7


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("property_id", IDS)
def test_the_probes_hold(property_id: str) -> None:
    tally = play_probes((property_id,))
    assert not tally.broken, tally.counterexamples()[0].text()
    assert tally.verdict(property_id).examples > 0


def played(monkeypatch: pytest.MonkeyPatch, property_id: str, error: Exception) -> Any:
    def play(one: probe.Play) -> None:
        one.scene()
        raise error

    monkeypatch.setattr(probe, "PROBES", [probe.Probe("made up", property_id, play, 1)])
    return play_probes((property_id,))


def test_what_a_probe_finds_is_a_counterexample_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = played(monkeypatch, "S1", Broken("it is broken", pages=[1])).counterexamples()
    assert (found.property, found.summary, found.input) == ("S1", "it is broken", {"pages": "[1]"})
    assert "made up" in found.source


def test_a_hang_breaks_liveness_and_shows_nothing_of_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, "L2", Hang("it hangs")).broken == {"L2"}
    tally = played(monkeypatch, "S1", Hang("it hangs"))
    assert tally.verdict("S1").ok is None
    assert played(monkeypatch, "L2", Aside()).verdict("L2").ok is None


def test_an_exception_of_the_code_is_no_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        played(monkeypatch, "S1", KeyError("a fault of kvrooms"))
    assert not play_probes(("S1",), tolerant=True).broken


# -- running -----------------------------------------------------------------------------------------------------------


def digest() -> str:
    """All source of the package."""
    folders = [Path(kvrooms.__file__).parent, *(ROOT / name for name in ("protocol", "statemachine", "transport"))]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_a_quick_look_kills_one_mutant_of_each_property() -> None:
    before = digest()
    report = run_mutants(scope="quick")
    assert not report.baseline, report.baseline[0].text()
    assert not report.survivors, [(one.name, one.error) for one in report.results if one.counterexample is None]
    assert (report.total, report.killed) == (len(QUICK), len(QUICK))
    for one in report.results:
        assert one.counterexample is not None
        assert one.counterexample.property in one.expected
        assert one.counterexample.summary
    assert digest() == before
    assert not play_probes(("L2", "C1")).broken, "nothing is planted in this process"


def test_a_timeout_and_an_exception_are_no_kills() -> None:
    mutant = BY_NAME[QUICK[0]]
    (late,) = _run_all([Job(mutant.name, (), 0.0)], 1, lambda _: None)
    assert "not over" in late.error
    assert _result(mutant, late).counterexample is None
    failed = Outcome(mutant.name, error="probes: TypeError: no")
    assert _result(mutant, failed).counterexample is None


def test_a_kill_by_another_property_is_none() -> None:
    mutant = BY_NAME["token-stays"]
    (found,) = _run_all([Job("aux-guarded-by-state", (), 30.0)], 1, lambda _: None)
    result = _result(mutant, found)
    assert result.counterexample is None
    assert (result.missed, result.more) == (("C1",), ("L2",))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        run_mutants(names=["no such mutant"])


@pytest.mark.timeout(900)
def test_the_probes_kill_every_mutant() -> None:
    """Those of the properties that it must break. `kvrooms verify` has more to look, at those that name them."""
    report = run_mutants(names=tuple(BY_NAME), scope="quick")
    assert not report.baseline, report.baseline[0].text()
    alive = [(one.name, one.error) for one in report.results if one.counterexample is None]
    assert not alive
    assert report.total == len(MUTANTS)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_every_mutant_is_killed_by_whoever_must_notice_it() -> None:
    report = run_mutants()
    assert not report.baseline
    assert not report.survivors


# -- what is written about them ----------------------------------------------------------------------------------------


def test_the_table_has_one_row_for_each_mutant_and_counts_them_right() -> None:
    """What the rows say of who notices is printed by `kvrooms.harness.mutants.table`; here only that they are all."""
    written = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8").partition(BEGIN)[2]
    report = MutantReport(0, 0, [], [], ())
    for line in markdown(report).removeprefix(BEGIN).strip().splitlines():
        assert f"\n{line}\n" in written, line
    rows = [tuple(cell.strip() for cell in line.split(" | ")[:3]) for line in written.splitlines() if " | `" in line]
    wanted = [_row(_result(one, Outcome(one.name))) for one in MUTANTS]
    assert sorted(rows) == sorted(tuple(cell.strip() for cell in row.split(" | ")[:3]) for row in wanted)


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_every_mutant_breaks_what_it_must_and_where_it_says_so_nothing_else() -> None:
    report = run_mutants(scope="full")
    assert not report.baseline
    wrong = [(one.name, one.missed, one.more, one.error) for one in report.results if one.missed or one.more]
    assert not wrong
