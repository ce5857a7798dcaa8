"""The tables run by the `transitions` library: the definition that the engine's compiled lookup must agree with."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from transitions import Machine

from .table import Row, Table

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
G = TypeVar("G", bound=enum.Enum)


class _Model:
    """What `transitions` drives: it only holds the state and the row that was taken last."""

    def __init__(self) -> None:
        self.taken: Any = None


def _holds(guard: enum.Enum) -> Callable[[enum.Enum], bool]:
    return lambda given: given is guard


def _record(model: _Model, row: object) -> Callable[[enum.Enum], None]:
    def record(_given: enum.Enum) -> None:
        model.taken = row

    return record


class Reference(Generic[S, E, G]):
    """A `transitions.Machine` made from a table: a trigger per event, a transition per row, in the table's order."""

    def __init__(self, table: Table[S, E, G]) -> None:
        self._model = _Model()
        self._states = {state.name: state for state in table.states}
        transitions = [
            {
                "trigger": event.name,
                "source": state.name,
                "dest": None if row.to is None else row.to.name,
                "conditions": [] if row.guard is None else [_holds(row.guard)],
                "after": _record(self._model, row),
            }
            for (state, event), rows in table.cells.items()
            for row in rows
        ]
        self.machine = Machine(
            model=self._model,
            states=list(self._states),
            transitions=transitions,
            initial=table.initial.name,
            auto_transitions=False,
        )

    def run(self, state: S, event: E, guard: G) -> tuple[S, Row[S, G]]:
        """Put the machine in `state`, trigger `event` while `guard` holds; the state it is in then, and the row."""
        self.machine.set_state(state.name, self._model)
        self._model.taken = None
        self.machine.events[event.name].trigger(self._model, guard)
        row: Row[S, G] = self._model.taken
        return self._states[self.machine.get_model_state(self._model).name], row
