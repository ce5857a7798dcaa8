"""The specification says what runs: nothing is missing, nothing is stale, JSON and Markdown say the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import TABLES, AnyTable

from kvrooms.cli.spec import DEADLINE_SETTINGS, build, main, render
from kvrooms.cli.spec_render import diagram, markdown
from kvrooms.cli.spec_wire import number, unwrap
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.group_hub import HubCore
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import group, wire
from kvrooms.protocol.events import Do, LeaseEvent, Timer
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.invariants import INVARIANTS, LEASE_RULES
from kvrooms.statemachine.memory import Lease

ROOT = Path(__file__).parents[1]
TEXT = render()
DATA = build()


def section(title: str) -> str:
    """The text under a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_docs_spec_is_not_stale() -> None:
    assert (ROOT / "docs" / "spec.md").read_text(encoding="utf-8") == TEXT, "run: make docs-spec"


def test_every_run_prints_the_same() -> None:
    command = [sys.executable, "-c", "from kvrooms.cli.spec import main; main(json=False)"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=ROOT / "docs", timeout=60)
    assert printed.stdout.decode() == TEXT


def test_json_and_markdown_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(json=True) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == DATA
    assert markdown(json.loads(printed)) == TEXT
    assert main(json=False) == 0
    assert capsys.readouterr().out == TEXT


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_cell_is_there(table: AnyTable) -> None:
    data = next(machine for machine in DATA["machines"] if machine["name"] == table.name)
    cells = {(cell["state"], cell["event"]): cell["rows"] for cell in data["cells"]}
    assert len(cells) == len(table.cells)
    lines = section(table.title).split("\n")
    for (state, event), rows in table.cells.items():
        shown = cells[state.name, event.name]
        assert [row["kind"] for row in shown] == [row.kind.value for row in rows]
        assert [row["commands"] for row in shown] == [[str(command) for command in row.commands] for row in rows]
        starts = [line for line in lines if line.startswith(f"| {state.name} | {event.name} | ")]
        assert len(starts) == len(rows)
        for line, row in zip(starts, rows, strict=True):
            assert f" | {row.guard.name if row.guard else ''} | " in line
            assert (f"→ {row.to.name} |" in line) if row.to else ("| ignore |" in line)
            assert all(f"`{command}`" in line for command in row.commands)
    for symbol in (*table.states, *table.events):
        assert any(line.startswith(f"| {symbol.name} | ") for line in lines)
    assert all(f"`{command}`" in section(table.title) for command in table.initial_commands)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_diagram_has_the_tables_edges(table: AnyTable) -> None:
    data = next(machine for machine in DATA["machines"] if machine["name"] == table.name)
    lines = diagram(data)
    edges = {tuple(re.findall(r"\w+", line.partition(":")[0])) for line in lines if "-->" in line and "[*]" not in line}
    wanted = {
        (state.name, row.to.name)
        for (state, _), rows in table.cells.items()
        for row in rows
        if row.to is not None and row.to is not state
    }
    assert {edge for edge in edges if edge[0] != edge[1]} == wanted
    assert "\n".join(lines) in section(table.title)


def test_every_frame_and_field_is_there() -> None:
    shown = [*DATA["wire"]["frames"], *DATA["wire"]["group"]["frames"]]
    for cls, data in zip((*wire.FRAMES, *group.FRAMES), shown, strict=True):
        assert (data["number"], data["name"]) == (cls.KIND, cls.__name__)
        ends = ("rank → leader", "leader → rank") if cls in group.FRAMES else ("decode → prefill", "prefill → decode")
        assert data["direction"] in (*ends, "either way")
        assert [field["name"] for field in data["fields"]] == list(cls.__struct_fields__)
        text = section(f"{cls.KIND}: {cls.__name__}")
        assert all(f"| `{field}` |" in text for field in cls.__struct_fields__)
    named = {value["name"]: [field["name"] for field in value["fields"]] for value in DATA["wire"]["structs"]}
    assert set(named) == {
        "Layout", "BufferSpec", "Shard", "AuxSpec", "ComponentSpec", "Regions", "Region", "Manifest", "Share", "Entry",
        "Slots",
    }  # fmt: skip
    for name, names in named.items():
        assert all(f"| `{field}` |" in section(name) for field in names)
    assert [field["name"] for field in DATA["wire"]["header"]] == [
        "version", "kind", "reserved", "source", "target", "floor"
    ]  # fmt: skip


def test_every_reason_command_invariant_and_rule_is_there() -> None:
    reasons, commands = section("Failure reasons"), section("Commands")
    for reason in Reason:
        assert f"| `{reason.value}` | {'yes' if reason.retryable else 'no'} | {reason.meaning} |" in reasons
    for do in Do:
        assert f"| {do.name} | {do.value} |" in commands
    for invariant in INVARIANTS:
        assert f"| {invariant.id} | {invariant.name} | {invariant.text} |" in section("Invariants")
    for rule in LEASE_RULES:
        assert f"- **{rule.name}**: {rule.text}" in section("Lease rules")
    assert [invariant.id for invariant in INVARIANTS] == [
        *(f"L{i}" for i in range(1, 6)),
        *(f"S{i}" for i in range(1, 6)),
        "C1",
        "C2",
        "A1",
    ]


def test_every_spelling_of_nothing_means_the_same() -> None:
    outcomes = [(row["when_indexed"], row["always"]) for row in DATA["manifest"]["spellings"]]
    nothing = [always for when_indexed, always in outcomes if when_indexed == "nothing is owed"]
    assert len(nothing) >= 14
    assert len(set(nothing)) == 1
    assert nothing[0].startswith("refused")


def test_every_deadline_is_the_engines() -> None:
    """What the specification says of a deadline is what the engine's cores arm for it."""
    names = sorted(set(DEADLINE_SETTINGS.values()))
    values: dict[str, Any] = {name: 1.0 + i / 8 for i, name in enumerate(names)}
    settings = EngineSettings(**values)
    armed: list[float] = []
    timers = SimpleNamespace(arm=lambda owner, alarm, deadline: armed.append(deadline), disarm=lambda *_: None)
    core: Any = SimpleNamespace(now=0.0, _timers=timers, settings=settings, _send_abort=lambda _: None)
    for (machine, timer), setting in DEADLINE_SETTINGS.items():
        record: Any = SimpleNamespace(settings=settings, timer=None)
        if machine == "lease":
            grant: Any = SimpleNamespace(lease=Lease.GRANTED, retry_s=0.0)
            DecodeCore._lease(core, grant, LeaseEvent.FAILED)
        elif machine == "group decision":
            HubCore.arm(core, record)
        else:
            (DecodeCore if machine == "decode room" else PrefillCore)._arm(core, record, timer)
        assert armed.pop() == getattr(settings, setting), (machine, timer)
    assert {timer for _, timer in DEADLINE_SETTINGS} == set(Timer)
    assert all(row["armed"] for row in DATA["deadlines"])
    for table in TABLES:
        commands = {c for rows in table.cells.values() for row in rows for c in row.commands}
        used = {command.timer for command in commands | set(table.initial_commands)} - {None}
        assert used == {timer for name, timer in DEADLINE_SETTINGS if name == table.name}


def test_paragraphs_are_not_wrapped() -> None:
    outside = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    for block in outside.split("\n\n"):
        lines = block.strip().split("\n")
        assert len(lines) == 1 or all(line.startswith(("|", "- ")) for line in lines), block
    assert TEXT.endswith((".\n", "|\n"))
    assert not re.search(r" $", TEXT, re.MULTILINE)


def test_numbers_and_paragraphs() -> None:
    assert [number(n) for n in (0, 128, 2**14, 2**15, 2**16 - 1, 2**63 - 1, 2**20, 100_000)] == [
        "0", "128", "16384", "2^15", "2^16-1", "2^63-1", "2^20", "100000"
    ]  # fmt: skip
    assert unwrap("One\ntwo.\n\n| a |\n|---|\n\nthree") == ["One two.", "| a |\n|---|", "three"]
    assert unwrap(None) == []
