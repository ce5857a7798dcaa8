"""Planting a fault: another text in one function, another row in a table, another constant, in the loaded package.

The source on disk stays as it is. A function gets new code and stays the same object, so whoever imported it runs the
fault too. Nothing is taken out again: a mutant is planted in a process that ends with it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol

from ...protocol.events import Command, Do
from ...statemachine.table import Row, Table

_ANNOTATIONS = annotations.compiler_flag
_PACKAGE = "kvrooms"


class Fault(Protocol):
    """Something that can be planted."""

    @property
    def where(self) -> str:
        """The place, for people: "engine.core: EngineCore._frame_in"."""

    @property
    def what(self) -> str:
        """The change, for people."""

    def plant(self) -> None:
        """Plant it, for good. Raises LookupError if the place is not as the fault expects it."""


class Text(NamedTuple):
    """In a function, `old` (which occurs once) becomes `new`. place: "engine.core:EngineCore._frame_in"."""

    place: str
    old: str
    new: str

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return self.place.replace(":", ": ")

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        before, after = _differ(_line(self.old), _line(self.new))
        return f"`{before}` becomes `{after}`" if after else f"without `{before}`"

    def plant(self) -> None:
        """See `Fault.plant`."""
        function = _function(self.place)
        source = textwrap.dedent(inspect.getsource(function))
        times = source.count(self.old)
        if times != 1:
            raise LookupError(f"{self.place}: {self.old!r} occurs {times} times")
        function.__code__ = _recompiled(function, source.replace(self.old, self.new))


class Cell(NamedTuple):
    """A cell of a table becomes other rows. table: "statemachine.rooms:DECODE_ROOM"; compiled: what the engine runs."""

    table: str
    compiled: str
    state: str
    event: str
    rows: tuple[Row[Any, Any], ...]

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return f"{self.table.replace(':', ': ')}, {self.state} x {self.event}"

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        return "the cell is: " + "; ".join(_row(row) for row in self.rows)

    def plant(self) -> None:
        """See `Fault.plant`. Every row of the compiled table that came from the cell is put right, in place."""
        table = _found(self.table)
        module = importlib.import_module(f"{_PACKAGE}.{self.table.partition(':')[0]}")
        _change(table, getattr(module, self.compiled), self.state, self.event, self.rows)


class Without(NamedTuple):
    """A command is left out of every row of a cell of a table."""

    table: str
    compiled: str
    state: str
    event: str
    command: Do

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return f"{self.table.replace(':', ': ')}, {self.state} x {self.event}"

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        return f"without {self.command.name}"

    def plant(self) -> None:
        """See `Fault.plant`."""
        table: Table[Any, Any, Any] = _found(self.table)
        module = importlib.import_module(f"{_PACKAGE}.{self.table.partition(':')[0]}")
        cell = _cell(table, self.state, self.event)
        rows = tuple(row._replace(commands=_left(row.commands, self.command)) for row in table.cells[cell])
        if rows == table.cells[cell]:
            raise LookupError(f"{self.where}: no {self.command.name} there")
        _change(table, getattr(module, self.compiled), self.state, self.event, rows)


class Swapped(NamedTuple):
    """Two commands change places in every row of a table that has a guard and both of them."""

    table: str
    compiled: str
    guard: str
    first: Do
    second: Do

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return f"{self.table.replace(':', ': ')}, rows of {self.guard}"

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        return f"{self.second.name} before {self.first.name}"

    def plant(self) -> None:
        """See `Fault.plant`."""
        table: Table[Any, Any, Any] = _found(self.table)
        module = importlib.import_module(f"{_PACKAGE}.{self.table.partition(':')[0]}")
        changed = {cell: tuple(map(self._swapped, rows)) for cell, rows in table.cells.items()}
        changed = {cell: rows for cell, rows in changed.items() if rows != table.cells[cell]}
        if not changed:
            raise LookupError(f"{self.where}: none has {self.first.name} and then {self.second.name}")
        for cell, rows in changed.items():
            _change(table, getattr(module, self.compiled), cell[0].name, cell[1].name, rows)

    def _swapped(self, row: Row[Any, Any]) -> Row[Any, Any]:
        places = {command.do: place for place, command in enumerate(row.commands)}
        first, second = places.get(self.first), places.get(self.second)
        if row.guard is None or row.guard.name != self.guard or first is None or second is None or second < first:
            return row
        commands = list(row.commands)
        commands[first], commands[second] = commands[second], commands[first]
        return row._replace(commands=tuple(commands))


class Opening(NamedTuple):
    """A command is left out of those that a table gives when a machine begins. `command` as it prints: "ARM(CAP)"."""

    table: str
    command: str

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return f"{self.table.replace(':', ': ')}, at the beginning"

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        return f"without {self.command}"

    def plant(self) -> None:
        """See `Fault.plant`."""
        table: Table[Any, Any, Any] = _found(self.table)
        left = tuple(command for command in table.initial_commands if str(command) != self.command)
        if len(left) == len(table.initial_commands):
            raise LookupError(f"{self.where}: no {self.command} there")
        table.initial_commands = left


class Constant(NamedTuple):
    """A name of a module is bound to another value."""

    place: str
    value: Any

    @property
    def where(self) -> str:
        """See `Fault.where`."""
        return self.place.replace(":", ": ")

    @property
    def what(self) -> str:
        """See `Fault.what`."""
        return f"is {self.value}"

    def plant(self) -> None:
        """See `Fault.plant`."""
        path, _, name = self.place.partition(":")
        module = importlib.import_module(f"{_PACKAGE}.{path}")
        if getattr(module, name) == self.value:
            raise LookupError(f"{self.place} is {self.value} already")
        setattr(module, name, self.value)


def _found(place: str) -> Any:
    path, _, names = place.partition(":")
    found: Any = importlib.import_module(f"{_PACKAGE}.{path}")
    for name in names.split("."):
        found = inspect.getattr_static(found, name)
    return found


def _function(place: str) -> FunctionType:
    found = _found(place)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    found = inspect.unwrap(found)  # of what keeps answers: those that it has already stay as they are
    if not isinstance(found, FunctionType):
        raise LookupError(f"{place} is no function")
    return found


def _recompiled(function: FunctionType, source: str) -> CodeType:
    """The code of a function made from another source, with the free variables that the function object has."""
    old = function.__code__
    if old.co_freevars:  # an outer function gives them names; what they hold is the function object's
        outer = "\n".join(f"    {name} = None" for name in old.co_freevars)
        source = f"def _outer():\n{outer}\n{textwrap.indent(source, '    ')}"
    module = compile(source, old.co_filename, "exec", _ANNOTATIONS, dont_inherit=True)
    new = _nested(module, function.__name__)
    if new is None or new.co_freevars != old.co_freevars:
        raise LookupError(f"{function.__qualname__} cannot be compiled by itself")
    return new.replace(co_qualname=old.co_qualname, co_firstlineno=old.co_firstlineno)


def _nested(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = constant if constant.co_name == name else _nested(constant, name)
            if found is not None:
                return found
    return None


def _cell(table: Table[Any, Any, Any], state: str, event: str) -> tuple[Any, Any]:
    for cell in table.cells:
        if (cell[0].name, cell[1].name) == (state, event):
            return cell
    raise LookupError(f"{table.name} has no cell {state} x {event}")


def _change(
    table: Table[Any, Any, Any], compiled: Any, state: str, event: str, rows: tuple[Row[Any, Any], ...]
) -> None:
    cell = _cell(table, state, event)
    if table.cells[cell] == rows:
        raise LookupError(f"{table.name}, {state} x {event}: the rows are these already")
    table.cells[cell] = rows
    for guard in table.guards:
        compiled[(*cell, guard)] = next(row for row in rows if row.guard in (None, guard))


def _left(commands: tuple[Command, ...], left_out: Do) -> tuple[Command, ...]:
    return tuple(command for command in commands if command.do is not left_out)


def _row(row: Row[Any, Any]) -> str:
    guard = f"{row.guard.name}: " if row.guard is not None else ""
    to = f" {row.to.name}" if row.to is not None else ""
    return " ".join((f"{guard}{row.kind.value}{to}", *map(str, row.commands)))


def _line(text: str) -> str:
    return " ".join(text.split())


def _differ(old: str, new: str) -> tuple[str, str]:
    """The two texts, cut down to words around what differs if they are long."""
    if len(old) + len(new) < 160:
        return old, new
    a, b = old.split(), new.split()
    while a and b and a[0] == b[0]:
        del a[0], b[0]
    while a and b and a[-1] == b[-1]:
        del a[-1], b[-1]
    return " ".join(a), " ".join(b)
