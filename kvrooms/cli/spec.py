"""`kvrooms spec`: the protocol reference, made from the tables, types and words that the engine runs with.

`build` collects it as plain data (what `--json` prints); `render` writes that data as Markdown. Nothing is said twice:
a cell, a field or a reason stands in the specification because it stands in the code.
"""

from __future__ import annotations

import enum
import json as json_format
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from .. import __version__
from ..engine.settings import EngineSettings
from ..protocol import identity, manifest
from ..protocol.errors import InvalidArgument
from ..protocol.events import (
    DEADLINE_REASON,
    ENDINGS,
    Accepted,
    Bound,
    Close,
    Command,
    Declared,
    Do,
    Fail,
    Held,
    Idle,
    Landed,
    Queued,
    RoomEvent,
    Settled,
    Timer,
)
from ..protocol.failure import Reason
from ..protocol.group import (
    Acknowledged,
    Back,
    DecisionEvent,
    Ended,
    LeaderGone,
    Lost,
    MemberEvent,
    Overdue,
    RankGone,
    Reported,
    Told,
    Withdraw,
)
from ..protocol.invariants import INVARIANTS, LEASE_RULES
from ..protocol.layout import BufferSpec, ComponentSpec, Layout, Owed
from ..protocol.status import Phase, Status, status_of
from ..statemachine import group, memory, rooms, table
from . import spec_words as words
from .spec_render import markdown
from .spec_wire import Data, notification_data, unwrap, wire_data

AnyTable = table.Table[Any, Any, Any]
TABLES: tuple[AnyTable, ...] = (
    rooms.DECODE_ROOM, rooms.PREFILL_ROOM, memory.LEASE, memory.DRAIN, group.DECISION, group.STANDING,
)  # fmt: skip
_SIDE = {"decode room": "decode", "prefill room": "prefill", "lease": "decode", "drain": "prefill",
         "group decision": "the leader of a group", "group member": "every rank of a group"}  # fmt: skip
_CARRIED: dict[enum.Enum, type[msgspec.Struct]] = {
    **{event.KIND: event for event in (Accepted, Landed, Held, Bound, Declared, Queued, Settled, Idle, Close)},
    **{event.KIND: event for event in (Lost, Overdue, Acknowledged, Back, RankGone, Withdraw, LeaderGone)},
    DecisionEvent.DONE: Reported,
    DecisionEvent.FAILED: Reported,
    MemberEvent.ENDED_DONE: Ended,
    MemberEvent.ENDED_FAILED: Ended,
    MemberEvent.TOLD_FAILED: Told,
}

# Which setting gives a deadline its seconds; tests compare it with what the engine arms.
DEADLINE_SETTINGS: dict[tuple[str, Timer], str] = {
    ("decode room", Timer.CAP): "cap_timeout_s",
    ("decode room", Timer.BOOTSTRAP): "bootstrap_timeout_s",
    ("decode room", Timer.WAITING): "waiting_timeout_s",
    ("decode room", Timer.MOVING): "moving_timeout_s",
    ("prefill room", Timer.CAP): "cap_timeout_s",
    ("prefill room", Timer.BOOTSTRAP): "queued_timeout_s",
    ("prefill room", Timer.WAITING): "queued_timeout_s",
    ("prefill room", Timer.MOVING): "moving_timeout_s",
    ("lease", Timer.ABORT_RETRY): "abort_retry_s",
    ("group decision", Timer.DECISION): "decision_timeout_s",
}

_SPELLINGS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("absent", lambda: None),
    ("`None`", lambda: None),
    ("`[]`", list),
    ("`()`", tuple),
    ("`[[]]`", lambda: [[]]),
    ("`[None]`", lambda: [None]),
    ("`[[], []]`", lambda: [[], []]),
    ("`[None, []]`", lambda: [None, []]),
    ("`{}`", dict),
    ('`{"name": []}`', lambda: {"name": []}),
    ('`{"name": [[]]}`', lambda: {"name": [[]]}),
    ("an empty integer array", lambda: np.empty(0, np.int64)),
    ("an array of shape (1, 0)", lambda: np.empty((1, 0), np.int64)),
    ("a generator that gives nothing", lambda: iter(())),
    ("`[5]`", lambda: [5]),
    ("`[[5]]`", lambda: [[5]]),
    ('`{"name": [5]}`', lambda: {"name": [5]}),
    ("`[[5, None]]`", lambda: [[5, None]]),
    ("`[[5], [6]]`", lambda: [[5], [6]]),
)


def build() -> Data:
    """The whole specification as plain data: strings, numbers, lists and dictionaries in a fixed order."""
    return {
        "name": "kvrooms protocol",
        "kvrooms": __version__,
        "purpose": unwrap(words.PURPOSE),
        "identity": {"meaning": unwrap(identity.__doc__), "limits": _limits()},
        "manifest": _manifest(),
        "machines": [_machine(one) for one in TABLES],
        "statuses": _statuses(),
        "deadlines": _deadlines(),
        "commands": [{"name": do.name, "meaning": do.value} for do in Do],
        "reasons": [{"name": r.name, "value": r.value, "retryable": r.retryable, "meaning": r.meaning} for r in Reason],
        "wire": wire_data(),
        "notification": notification_data(),
        "lease_rules": [rule._asdict() for rule in LEASE_RULES],
        "invariants": [invariant._asdict() for invariant in INVARIANTS],
    }


def _limits() -> list[Data]:
    return [
        {"name": name, "value": getattr(identity, name), "meaning": meaning} for name, meaning in words.LIMITS.items()
    ]


def _manifest() -> Data:
    return {
        "meaning": [*unwrap(manifest.__doc__)[:1], *unwrap(manifest.Manifest.__doc__)],
        "obligations": [{"kind": kind, "owed": owed, "counted": counted} for kind, owed, counted in words.OBLIGATIONS],
        "spellings": [
            {"spelling": label, **{owed.value: _said(owed, spell()) for owed in Owed}} for label, spell in _SPELLINGS
        ],
    }


def _said(owed: Owed, value: object) -> str:
    """What a spelling means for a layout of one component, by asking the function that decides it."""
    buffers = (BufferSpec(0, "role", 1, "uint8"),)
    layout = Layout(1, (), (), (ComponentSpec("name", "kind", owed, buffers),))
    try:
        (indices,) = manifest.state_indices(layout, value, (100,))
    except InvalidArgument as error:
        return f"refused: {error.why}"
    return f"indices {indices.tolist()}" if len(indices) else "nothing is owed"


def _machine(one: AnyTable) -> Data:
    return {
        "name": one.name,
        "title": one.title,
        "side": _SIDE[one.name],
        "initial": one.initial.name,
        "terminal": [state.name for state in one.states if state in one.terminal],
        "initial_commands": [str(command) for command in one.initial_commands],
        "states": [{"name": state.name, "meaning": _meaning(state)} for state in one.states],
        "events": [_event(event) for event in one.events],
        "guards": [{"name": g.name, "meaning": g.value} for g in one.guards if _is_used(one, g)],
        "endings": [event.name for event in (*ENDINGS, RoomEvent.CLOSE) if event in one.events],
        "cells": [
            {
                "state": state.name,
                "event": event.name,
                "rows": [
                    {
                        "guard": row.guard and row.guard.name,
                        "kind": row.kind.value,
                        "to": row.to and row.to.name,
                        "commands": [str(command) for command in row.commands],
                    }
                    for row in one.cells[state, event]
                ],
            }
            for state in one.states
            for event in one.events
        ],
    }


def _is_used(one: AnyTable, guard: enum.Enum) -> bool:
    """Whether any row asks for the guard. The rest hold when none of the others does."""
    return any(row.guard is guard for rows in one.cells.values() for row in rows)


def _meaning(state: enum.Enum) -> str:
    return state.meaning if isinstance(state, Phase) else str(state.value)


def _event(event: enum.Enum) -> Data:
    data: Data = {"name": event.name, "meaning": event.value}
    carried = _CARRIED.get(event)
    if carried is not None and carried.__struct_fields__:
        data["carries"] = list(carried.__struct_fields__)
    elif event in ENDINGS:
        data["carries"] = [name for name in Fail.__struct_fields__ if name.islower()]
    return data


def _statuses() -> list[Data]:
    found: dict[Status, dict[str, bool]] = {}
    for phase in Phase:
        for moved in (False, True):
            found.setdefault(status_of(phase, moved), {})[phase.name] = moved
    return [
        {
            "name": status.name,
            "value": status.value,
            "phases": list(found[status]),
            "moved": any(found[status].values()) if status in (Status.WAITING, Status.TRANSFERRING) else None,
        }
        for status in Status
    ]


def _deadlines() -> list[Data]:
    defaults = EngineSettings()
    found = []
    for (name, timer), setting in DEADLINE_SETTINGS.items():
        one = next(candidate for candidate in TABLES if candidate.name == name)
        command = Command(Do.ARM, timer)
        where = ["initially"] if command in one.initial_commands else []
        where += [
            f"{state.name} × {event.name}"
            for (state, event), rows in one.cells.items()
            if any(command in row.commands for row in rows)
        ]
        reason = DEADLINE_REASON.get(timer)
        found.append(
            {
                "timer": timer.name,
                "machine": name,
                "armed": where,
                "setting": setting,
                "default_s": getattr(defaults, setting),
                "reason": reason.value if reason else None,
            }
        )
    return found


def render() -> str:
    """The specification as Markdown; `docs/spec.md` is exactly this."""
    return markdown(build())


def main(json: bool) -> int:
    """Print the specification: Markdown, or (`json`) one line of JSON. Returns the exit status, 0."""
    sys.stdout.write(json_format.dumps(build(), ensure_ascii=False) + "\n" if json else render())
    return 0
