"""Tables: total, timeless descriptions of a machine, from which everything else is made.

A table gives for every (state, event) cell an ordered list of rows; the first row whose guard holds is taken, and the
last row of a cell has no guard. A row says *go* (possibly to the same state, with commands), *ignore* (count it), or
*fail* (go to the failure state). There is no transition outside the table. The engine runs `Table.compile()`; the
reference run, the diagrams, the specification and the coverage are made from the same object.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from ..protocol.events import Command, Do, Timer

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
G = TypeVar("G", bound=enum.Enum)


class Kind(enum.Enum):
    """What a row does."""

    GO = "go"
    IGNORE = "ignore"
    FAIL = "fail"


class Row(NamedTuple, Generic[S, G]):
    """One row of a cell. `guard` None: always. `to` None: the state stays."""

    guard: G | None
    kind: Kind
    to: S | None
    commands: tuple[Command, ...]


def go(to: S, *commands: Command | Do, guard: G | None = None) -> Row[S, G]:
    """A row that moves to `to` (or stays there) and gives commands."""
    return Row(guard, Kind.GO, to, _commands(commands))


def ignore(guard: G | None = None) -> Row[S, G]:
    """A row that changes nothing and gives no command; the engine counts it."""
    return Row(guard, Kind.IGNORE, None, ())


def fail(to: S, *commands: Command | Do, guard: G | None = None) -> Row[S, G]:
    """A row that moves to the failure state `to`."""
    return Row(guard, Kind.FAIL, to, _commands(commands))


def arm(timer: Timer) -> Command:
    """The command to arm a deadline."""
    return Command(Do.ARM, timer)


def _commands(commands: tuple[Command | Do, ...]) -> tuple[Command, ...]:
    return tuple(command if isinstance(command, Command) else Command(command) for command in commands)


class Table(Generic[S, E, G]):
    """A machine's table. Raises ValueError at once when it is not total or a cell is not well formed."""

    def __init__(
        self,
        name: str,
        title: str,
        states: type[S],
        events: tuple[E, ...],
        guards: type[G],
        initial: S,
        terminal: frozenset[S],
        cells: Mapping[tuple[S, E], tuple[Row[S, G], ...]],
        initial_commands: tuple[Command, ...] = (),
    ) -> None:
        self.name = name
        self.title = title
        self.states = tuple(states)
        self.events = events
        self.guards = tuple(guards)
        self.initial = initial
        self.terminal = terminal
        self.cells = dict(cells)
        self.initial_commands = initial_commands
        self._check()

    def _check(self) -> None:
        wanted = {(state, event) for state in self.states for event in self.events}
        if set(self.cells) != wanted:
            raise ValueError(f"{self.name}: missing {wanted - set(self.cells)}, unknown {set(self.cells) - wanted}")
        for (state, event), rows in self.cells.items():
            where = f"{self.name}: {state.name} x {event.name}"
            if not rows or rows[-1].guard is not None:
                raise ValueError(f"{where}: the last row must have no guard")
            guards = [row.guard for row in rows[:-1]]
            if None in guards or len(set(guards)) != len(guards):
                raise ValueError(f"{where}: rows before the last must have distinct guards")
            if state in self.terminal and any(row.to not in (None, state) for row in rows):
                raise ValueError(f"{where}: a terminal state cannot be left")

    def compile(self) -> dict[tuple[S, E, G], Row[S, G]]:
        """The row for every (state, event, guard that holds): what the engine runs, one lookup a step."""
        compiled: dict[tuple[S, E, G], Row[S, G]] = {}
        for (state, event), rows in self.cells.items():
            for guard in self.guards:
                compiled[state, event, guard] = next(row for row in rows if row.guard in (None, guard))
        return compiled
