"""The six tables: every cell, the reference run against the lookup that the engine uses, and L1 with its deadlines."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from mutants import Mutant, dies, named
from samples import manifest
from tables import (
    ROOMS,
    TABLES,
    AnyTable,
    Small,
    decode_events,
    explore,
    phase_timer,
    prefill_events,
    right,
)

from kvrooms.protocol.events import ENDINGS, Command, Do, DrainEvent, LeaseEvent, RoomEvent, Timer
from kvrooms.protocol.manifest import Declaration
from kvrooms.protocol.status import TERMINAL, Phase
from kvrooms.statemachine import group, memory, rooms
from kvrooms.statemachine.memory import Always, Drain, Lease
from kvrooms.statemachine.reference import Reference
from kvrooms.statemachine.rooms import Guard
from kvrooms.statemachine.table import Kind, Row, Table, fail, go, ignore

EVERY = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
BOTH_ROOMS = pytest.mark.parametrize("table", ROOMS, ids=lambda table: table.name)
CELLS = {
    "decode room": 60, "prefill room": 78, "lease": 45, "drain": 12, "group decision": 18, "group member": 48,
}  # fmt: skip


@EVERY
def test_every_cell(table: AnyTable) -> None:
    assert len(table.cells) == CELLS[table.name]
    for state in table.states:
        for event in table.events:
            rows = table.cells[state, event]
            assert rows[-1].guard is None
            guards = [row.guard for row in rows[:-1]]
            assert None not in guards
            assert len(set(guards)) == len(guards)
            for row in rows:
                if row.kind is Kind.IGNORE:
                    assert (row.to, row.commands) == (None, ())
                elif row.kind is Kind.FAIL:
                    assert row.to.name == "FAILED"
                else:
                    assert row.to in table.states
                if state in table.terminal:
                    assert row.to in (None, state)
                    assert row.kind is not Kind.FAIL
                for command in row.commands:
                    assert (command.timer is not None) == (command.do is Do.ARM)


def test_how_many_cells_and_rows() -> None:
    assert sum(len(table.cells) for table in TABLES) == sum(CELLS.values()) == 261
    assert {t.name: sum(map(len, t.cells.values())) for t in TABLES} == {
        "decode room": 80, "prefill room": 107, "lease": 45, "drain": 15,
        "group decision": 39, "group member": 48,
    }  # fmt: skip


@EVERY
def test_names_tell_states_events_and_guards_apart(table: AnyTable) -> None:
    for symbols in (table.states, table.events, table.guards):
        assert len({symbol.name for symbol in symbols}) == len({symbol.value for symbol in symbols}) == len(symbols)


def test_nothing_is_declared_and_never_used() -> None:
    rows = [row for table in TABLES for some in table.cells.values() for row in some]
    commands = {command for row in rows for command in row.commands}
    commands |= {command for table in TABLES for command in table.initial_commands}
    assert {command.do for command in commands} == set(Do)
    assert {command.timer for command in commands} - {None} == set(Timer)
    assert {row.guard for row in rows if isinstance(row.guard, Guard)} == set(Guard) - {Guard.METADATA_OPEN}
    assert {event for table in ROOMS for event in table.events} == set(RoomEvent)
    assert set(memory.LEASE.events) == set(LeaseEvent)
    assert set(memory.DRAIN.events) == set(DrainEvent)
    for table in TABLES:
        reached = {row.to for some in table.cells.values() for row in some} | {table.initial}
        assert reached - {None} == set(table.states)


@EVERY
def test_terminal_absorbs(table: AnyTable) -> None:
    """What is left to do in a terminal state, in full: everything else is ignored there."""
    left = {
        (state.name, event.name): [str(command) for command in row.commands]
        for state in table.terminal
        for event in table.events
        for row in table.cells[state, event]
        if row.kind is not Kind.IGNORE
    }
    told = ["SEND_FAILED", "DRAIN_VOIDED"]
    assert left == {
        "decode room": {("DONE", "CLOSE"): ["LEASE_CLOSED", "FORGET"], ("FAILED", "CLOSE"): ["FORGET"]},
        "prefill room": {
            ("DONE", "BOUND"): told, ("FAILED", "BOUND"): told,
            ("DONE", "CLOSE"): ["FORGET"], ("FAILED", "CLOSE"): ["FORGET"],
        },
        "lease": {},
        "drain": {("DRAINED", "VOIDED"): ["SEND_ACK"]},
        "group decision": {
            (state, event): rows
            for state in ("DONE", "FAILED")
            for event, rows in {
                "DONE": ["KEEP_REPORT"], "FAILED": ["KEEP_REPORT"], "LOST": ["KEEP_OUTCOME"],
                "ACKED": [], "BACK": ["TELL_RANK"],
            }.items()
        },
        "group member": {},
    }[table.name]  # fmt: skip


# -- the reference run -----------------------------------------------------------------------------------------------


def check_reference(table: AnyTable, compiled: dict[Any, Row[Any, Any]]) -> None:
    reference, runs = Reference(table), 0
    for state, event, guard in itertools.product(table.states, table.events, table.guards):
        row = compiled[state, event, guard]
        to, taken = reference.run(state, event, guard)
        assert taken is row, (state, event, guard)
        assert to is (state if row.to is None else row.to)
        runs += 1
    assert runs == len(compiled) == len(table.cells) * len(table.guards)


@EVERY
def test_the_lookup_is_the_reference_run(table: AnyTable) -> None:
    check_reference(table, table.compile())


def test_the_engines_lookups_are_the_tables() -> None:
    lookups = [
        rooms._DECODE, rooms._PREFILL, memory._LEASE, memory._DRAIN, group._DECISION, group._STANDING
    ]  # fmt: skip
    assert [table.compile() for table in TABLES] == lookups


@EVERY
def test_the_reference_has_no_transition_outside_the_table(table: AnyTable) -> None:
    machine = Reference(table).machine
    assert set(machine.events) == {event.name for event in table.events}
    assert set(machine.states) == {state.name for state in table.states}
    found = sum(len(some) for event in machine.events.values() for some in event.transitions.values())
    assert found == sum(map(len, table.cells.values()))


@named(
    [
        Mutant(Table, "compile", "next(row for row in rows", "next(row for row in reversed(rows)"),  # order of guards
        Mutant(Table, "compile", "in (None, guard)", "in (None,)"),
        Mutant(Table, "compile", "in (None, guard)", "is None or row.guard is not guard"),
    ]
)
@BOTH_ROOMS
def test_mutants_of_the_lookup_die(table: AnyTable, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: check_reference(table, table.compile()))


# -- a table that is not well formed is refused ----------------------------------------------------------------------


def table_with(**changes: Any) -> Table[Lease, DrainEvent, Always]:
    cells: dict[Any, Any] = {(state, event): (ignore(),) for state in Lease for event in DrainEvent}
    cells.update(changes.pop("cells", {}))
    for cell in changes.pop("without", ()):
        del cells[cell]
    return Table(
        "t", "T", Lease, tuple(DrainEvent), Always, Lease.HELD, frozenset({Lease.RELEASED}), cells, **changes
    )  # fmt: skip


CELL, GUARD, END = (Lease.HELD, DrainEvent.POSTED), Always.ALWAYS, (Lease.RELEASED, DrainEvent.POSTED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without": [CELL]}, "missing"),
        ({"cells": {(Lease.HELD, LeaseEvent.RETRY): (ignore(),)}}, "unknown"),
        ({"cells": {CELL: ()}}, "HELD x POSTED: the last row must have no guard"),
        ({"cells": {CELL: (ignore(GUARD),)}}, "the last row must have no guard"),
        ({"cells": {CELL: (ignore(), ignore())}}, "distinct guards"),
        ({"cells": {CELL: (ignore(GUARD), go(Lease.HELD, guard=GUARD), ignore())}}, "distinct guards"),
        ({"cells": {END: (go(Lease.HELD),)}}, "RELEASED x POSTED: a terminal state cannot be left"),
        ({"cells": {END: (fail(Lease.HELD, guard=GUARD), ignore())}}, "a terminal state cannot be left"),
    ],
)
def test_tables_that_are_not_well_formed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table_with(**changes)


def test_rows_take_commands_in_either_form() -> None:
    row: Row[Lease, Always] = go(Lease.GRANTED, Do.FREE, Command(Do.ARM, Timer.CAP))
    assert [str(command) for command in row.commands] == ["FREE", "ARM(CAP)"]
    assert table_with(cells={END: (go(Lease.RELEASED),)}).cells[END][0].to is Lease.RELEASED


# -- L1, and a deadline in every state -------------------------------------------------------------------------------


def check_exits(table: AnyTable) -> None:
    """L1: from every room state that is not terminal, a deadline, an abort and a peer loss lead to FAILED, always."""
    for phase in set(Phase) - TERMINAL:
        for event in (*ENDINGS, RoomEvent.CLOSE):
            (row,) = table.cells[phase, event]
            assert (row.guard, row.kind, row.to) == (None, Kind.FAIL, Phase.FAILED)
            done = Counter(command.do for command in row.commands)
            assert done[Do.DISARM] == done[Do.REPORT] == 1
            assert done[Do.FORGET] == (event is RoomEvent.CLOSE)


@BOTH_ROOMS
def test_every_room_state_has_its_exits(table: AnyTable) -> None:
    check_exits(table)


@pytest.mark.parametrize("event", [RoomEvent.DEADLINE, RoomEvent.ABORT, RoomEvent.PEER_LOST], ids=lambda e: e.name)
@pytest.mark.parametrize("phase", [Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE], ids=lambda p: p.name)
@BOTH_ROOMS
def test_a_room_without_one_exit_dies(table: AnyTable, phase: Phase, event: RoomEvent) -> None:
    cells: Any = {**table.cells, (phase, event): (ignore(),)}
    mutant: AnyTable = Table(
        table.name, table.title, Phase, table.events, Guard, table.initial, table.terminal, cells
    )  # fmt: skip
    dies(lambda: check_exits(mutant))


SMALL = [Small((manifest(2, True, (1,)),)), Small((manifest(0, False), manifest(1, False, (1,))))]
DECLARATIONS = (Declaration(pages=2), Declaration(aux=()), Declaration(state=()))


def after(armed: frozenset[Timer], commands: tuple[Command, ...]) -> frozenset[Timer]:
    for command in commands:
        if command.timer is not None:
            armed = phase_timer(armed, command.timer) if command.timer is not Timer.CAP else armed | {Timer.CAP}
        elif command.do is Do.DISARM:
            armed = frozenset()
    return armed


def check_deadlines() -> None:
    """Every state that is not terminal has the cap and the deadline of its phase armed; a terminal one has none."""
    phases: set[tuple[str, Phase]] = set()
    for small in SMALL:
        for start, table, step, events in (
            (rooms.decode_room(small.manifests), rooms.DECODE_ROOM, rooms.step_decode, decode_events(small)),
            (
                rooms.prefill_room(len(small.manifests)), rooms.PREFILL_ROOM, rooms.step_prefill,
                prefill_events(small, (right(small), *DECLARATIONS)),
            ),
        ):  # fmt: skip

            def advance(value: Any, event: Any, step: Any = step) -> Any:
                room, armed = value
                new, row = step(room, event)
                return new, after(armed, row.commands)

            reached = explore((start, after(frozenset(), table.initial_commands)), events, advance)
            assert len(reached) > 50
            for room, armed in reached:
                expected = {
                    Phase.METADATA: {frozenset({Timer.CAP, Timer.BOOTSTRAP})},
                    Phase.DONE: {frozenset[Timer]()},
                    Phase.FAILED: {frozenset[Timer]()},
                }.get(room.phase, {frozenset({Timer.CAP, Timer.WAITING}), frozenset({Timer.CAP, Timer.MOVING})})
                assert armed in expected, (table.name, room.phase, armed)
            phases |= {(table.name, room.phase) for room, _ in reached}
    assert len(phases) == 2 * len(Phase)


def test_a_deadline_is_armed_in_every_state_that_is_not_terminal() -> None:
    check_deadlines()


def rebuild(patch: pytest.MonkeyPatch) -> None:
    """Make the room tables and the engine's lookups again, from functions that hold a mutant."""
    for name, make in (("DECODE", rooms._decode_table), ("PREFILL", rooms._prefill_table)):
        table: AnyTable = make()
        patch.setattr(rooms, f"{name}_ROOM", table)
        patch.setattr(rooms, f"_{name}", table.compile())


@named(
    [
        Mutant(rooms, "_advance", "timer and phase is not Phase.METADATA", "timer and False"),
        Mutant(rooms, "_advance", "timer and phase is not Phase.METADATA", "timer"),
        Mutant(rooms, "_advance", "*first, Do.DISARM, *done, guard", "*first, *done, guard"),
        Mutant(rooms, "_endings", "Do.DISARM, Do.REPORT, *failed),)", "Do.REPORT, *failed),)"),
        Mutant(rooms, "_endings", "Do.DISARM, Do.REPORT, *failed, Do.FORGET", "Do.REPORT, *failed, Do.FORGET"),
        Mutant(rooms, "_decode_table", "arm(Timer.CAP), ", ""),
        Mutant(rooms, "_decode_table", ", arm(Timer.BOOTSTRAP)", ""),
        Mutant(rooms, "_prefill_table", "(arm(Timer.CAP), arm(Timer.BOOTSTRAP))", "(arm(Timer.BOOTSTRAP),)"),
        Mutant(rooms, "_prefill_table", "(arm(Timer.CAP), arm(Timer.BOOTSTRAP))", "(arm(Timer.CAP),)"),
        Mutant(rooms, "_prefill_table", "Phase.METADATA, Timer.WAITING, ended", "Phase.METADATA, None, ended"),
        Mutant(rooms, "_prefill_table", "(go(Phase.METADATA),)", "(go(Phase.METADATA, arm(Timer.MOVING)),)"),
    ]
)
def test_mutants_of_the_deadlines_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    rebuild(monkeypatch)
    dies(check_deadlines)


def test_states_say_what_they_mean() -> None:
    assert all(state.value for state in (*Lease, *Drain))
    assert Lease.HELD is memory.LEASE.initial
    assert Drain.OPEN is memory.DRAIN.initial
