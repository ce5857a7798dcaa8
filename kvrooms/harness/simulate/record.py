"""The timeline of a simulated run: kept only where a run is replayed, and cut down to what concerns a room."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...protocol import notify, wire
from ...protocol.errors import WireError
from ..evidence import Step
from ..ports import Write

STEPS_MAX = 80


class Numbered(Protocol):
    """A room of a run."""

    serial: int


class _Line(NamedTuple):
    step: Step
    lives: tuple[int, ...]


class Record:
    """Every step of a run, each with the lives that it concerns."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []

    def add(self, at: float, who: str, kind: str, text: str, to: str, lives: tuple[Numbered, ...]) -> None:
        """One line."""
        self._lines.append(_Line(Step(round(at, 3), who, kind, text, to), tuple(life.serial for life in lives)))

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of it."""
        return tuple(line.step for line in self._lines)

    def about(self, serial: int | None) -> tuple[Step, ...]:
        """What concerns one life, and what happened to engines and connections meanwhile; the last of it."""
        if serial is None:
            return self.steps[-STEPS_MAX:]
        own = [i for i, line in enumerate(self._lines) if serial in line.lives]
        if not own:
            return ()
        first, last = own[0], own[-1]
        shown = [
            line.step
            for i, line in enumerate(self._lines)
            if serial in line.lives or (first <= i <= last and not line.lives and line.step.kind in ("fault", "timer"))
        ]
        return tuple(shown[-STEPS_MAX:])


def words_of(what: wire.Body | bytes) -> str:
    """A frame's body or a notification's bytes, for people."""
    if isinstance(what, wire.Metadata):
        return f"METADATA grant {what.grant}: room {what.room} attempt {what.attempt}"
    if isinstance(what, wire.Body):
        shown = {n: getattr(what, n) for n in what.__struct_fields__ if n not in ("layout", "regions", "blob")}
        fields = ", ".join(f"{n} {getattr(v, 'value', v)}" for n, v in shown.items())
        return f"{type(what).__name__.upper()} {fields}"
    try:
        grant, _, parts, _, staged = notify.decode(what)
    except WireError as error:
        return f"malformed: {error}"
    where = "" if staged is None else f"in slot {staged.slot}: "
    return f"grant {grant}: {where}" + ", ".join(
        f"{p.kind.name} {p.component} [{p.first}, {p.first + p.size})" for p in parts
    )


def words_of_write(write: Write) -> str:
    """A post, for people."""
    said = f"; tells {words_of(write.message)}" if write.message else ""
    return f"write {write.handle} of {sum(row[1] for row in write.rows)} bytes is posted{said}"
