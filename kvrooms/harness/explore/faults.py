"""What can go wrong, each fault by its name: what it does to a global state, and how it makes itself known.

Harmless faults (severity 1) must change nothing for anybody; announced ones (2) must end every room that they concern
without a timer; silent ones (3) may need one. The faults are in the modules `faults_...`; this one keeps their list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from .carriers import Label
from .glue import Broken
from .system import State, System

HARMLESS, ANNOUNCED, SILENT = 1, 2, 3


class Faulty(NamedTuple):
    """One fault that can happen now. use: the one use that it concerns, else None. mute: whose caller falls silent."""

    label: Label
    state: State
    severity: int
    use: int | None = None
    broken: Broken | None = None
    mute: tuple[str, ...] = ()


Fault: TypeAlias = Callable[[System, State], Iterator[Faulty]]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Make a function a fault, by its name."""
    FAULTS[function.__name__] = function
    return function


def faults(system: System, state: State) -> Iterator[Faulty]:
    """Every fault that can happen now."""
    for name, found in FAULTS.items():
        if name in system.setup.faults:
            yield from found(system, state)


def step_decode(
    system: System, state: State, label: Label, event: tuple[Any, ...], severity: int, use: int | None = None
) -> Faulty:
    """A fault that is an event of the decode side."""
    result = system.step_decode(state[0], system.events.number(event))
    return Faulty(label, system.decoded(state, result), severity, use, result.broken)


def step_prefill(
    system: System,
    state: State,
    lane: int,
    label: Label,
    event: tuple[Any, ...],
    severity: int,
    use: int | None = None,
) -> Faulty:
    """A fault that is an event of a prefill side."""
    result = system.step_prefill(state[2 + 3 * lane], system.events.number(event))
    return Faulty(label, system.prefilled(state, result, lane), severity, use, result.broken)


def replaced(state: State, at: int, number: int) -> State:
    """The state with another number for one part."""
    return (*state[:at], number, *state[at + 1 :])
