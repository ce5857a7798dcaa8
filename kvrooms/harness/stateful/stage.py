"""The bench as the machine of engines needs it: complaints that name a property, faults, and cells counted."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

from ...engine import handle
from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import WireError
from ...transport.ports import CloseCause
from ..channel import SimChannel
from ..simulate.bench import Bench
from ..simulate.memory import Held, Shape, Side
from ..world import Stuck, World
from .base import Broken, Machine

_IN_USE = ("rooms", "grants", "parked", "posted", "keys", "claims", "tickets", "in_flight")
_QUIET = (wire.Ping, wire.Pong, wire.Hello, wire.Welcome)
SHORT = EngineSettings(
    piece_bytes=40,
    bootstrap_timeout_s=12,
    waiting_timeout_s=20,
    queued_timeout_s=20,
    moving_timeout_s=15,
    cap_timeout_s=60,
    parked_ttl_s=8,
)
"""Deadlines that come soon, and pieces of a page or two."""
_ENOUGH = 5
STEPS_MAX = 20_000
OURS = (NameError, TypeError, AttributeError, ImportError, SyntaxError)
"""Exceptions that say nothing of a property: a fault in the harness, or code that cannot run at all."""


class Stage(Bench):
    """Engines, their memory, and what has been done to them."""

    def __init__(self, machine: Machine, shape: Shape, **options: Any) -> None:
        self.machine = machine
        self.stalled: set[str] = set()
        self.dead: list[str] = []
        self.every_room = True
        super().__init__(0, shape, **options)

    def complain(self, property_id: str, words: str, *held: Held) -> None:
        """See `Bench.complain`."""
        self.machine.fail(property_id, words)

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.sent`."""
        try:
            body = wire.decode(frame).body
        except WireError as error:
            self.machine.note(channel.name, "message", f"unreadable: {error}", "wire")
            return
        if not isinstance(body, _QUIET):
            grant = getattr(body, "grant", None)
            self.machine.note(
                channel.name, "message", type(body).__name__.upper() + (f" of grant {grant}" if grant else ""), "wire"
            )

    # -- engines ---------------------------------------------------------------------------------------------------

    @property
    def sides(self) -> list[Side]:
        """All of them."""
        return [*self.decodes, *self.prefills]

    def tables(self) -> list[dict[str, int]]:
        """Of every engine."""
        return [side.engine.tables() for side in self.sides]

    def fits_another(self, decode: int) -> bool:
        """Whether there is memory for one more room."""
        sides = (self.prefills[0], self.decodes[decode])
        return all(len(free) >= _ENOUGH for side in sides for free in side.free.values())

    def at_rest(self) -> bool:
        """Whether only connections are left."""
        return not any(tables.get(name) for tables in self.tables() for name in _IN_USE)

    # -- faults ----------------------------------------------------------------------------------------------------

    def stop_or_go(self, name: str, *, stalled: bool) -> None:
        """SIGSTOP or SIGCONT."""
        (self.stalled.add if stalled else self.stalled.discard)(name)
        self.world.stall(name, stalled=stalled)

    def time_out(self, side: Side) -> None:
        """Its connections time out."""
        self.world.runner(side.name).channel.cut(CloseCause.TIMED_OUT)

    def refuse_posts(self, error: str) -> None:
        """Writes cannot be posted, or ("") can again."""
        for side in self.prefills:
            self.world.runner(side.name).transport.post_error = error

    @property
    def refuses_posts(self) -> bool:
        """Whether a write that is posted now fails: also one of a room that is opened only now."""
        return any(self.world.runner(side.name).transport.post_error for side in self.prefills)

    def kill_and_replace(self, side: Side) -> None:
        """kill -9, and another comes in its place."""
        self.stalled.discard(side.name)
        self.dead.append(side.name)
        self.crash(side)

    def recover(self) -> None:
        """Nothing goes wrong any more."""
        self.refuse_posts("")
        self.stalled.clear()
        self.world.heal()

    def fence_the_dead(self) -> None:
        """The orchestrator's word for the dead, which is true."""
        for side in self.decodes:
            for name in dict.fromkeys(self.dead):
                side.engine.peer_fenced(name)


@contextmanager
def waiting_turns(world: World) -> Iterator[None]:
    """Let whoever blocks (`wait`, `failure_exception`) run the world meanwhile: nothing else would."""

    class Gate:
        def __init__(self) -> None:
            self.opened = False

        def open(self) -> None:
            self.opened = True

        def wait(self, _timeout: float | None) -> bool:
            while not self.opened and world.step():
                pass
            return self.opened

    with mock.patch.object(handle, "_Gate", Gate):
        yield


def settle(machine: Machine, world: World) -> None:
    """Let everything happen that needs no timer; it must come to an end."""
    for _ in range(STEPS_MAX):
        if not world.step():
            return
    machine.fail("L2", f"without a timer, a fault or a caller the engines go on for ever: {world.state()}")


@contextmanager
def running(machine: Machine) -> Iterator[None]:
    """The world runs, cells are counted. An engine must not break down, whatever happens to it."""
    try:
        with cells_of_engines(machine):
            yield
    except (Broken, Stuck, *OURS):
        raise
    except Exception as error:  # noqa: BLE001 - it would have ended the engine's thread, and all rooms with it
        machine.fail("L4", f"an engine breaks down: {error!r}")


_STEPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "step_decode": ("decode room", lambda room: room.phase),
    "step_prefill": ("prefill room", lambda room: room.phase),
    "step_lease": ("lease", lambda lease: lease),
    "step_drain": ("drain", lambda drain: drain.state),
}


class Visitor(Protocol):
    """Who is told of the cells that engines visit."""

    def visit(self, table: str, state: enum.Enum, event: enum.Enum) -> None:
        """A cell of a table was visited."""


@contextmanager
def cells_of_engines(machine: Visitor) -> Iterator[None]:
    """Count the cells that the engines visit meanwhile."""
    patched: list[tuple[Any, str, Any]] = []
    try:
        for module in [module for name, module in sys.modules.items() if name.startswith("kvrooms.engine.")]:
            for name, (table, state_of) in _STEPS.items():
                step = module.__dict__.get(name)
                if step is not None:
                    patched.append((module, name, step))
                    setattr(module, name, _counting(machine, table, state_of, step))
        yield
    finally:
        for module, name, step in patched:
            setattr(module, name, step)


def _counting(machine: Visitor, table: str, state_of: Callable[[Any], Any], step: Any) -> Any:
    def counted(value: Any, event: Any) -> Any:
        machine.visit(table, state_of(value), getattr(event, "KIND", event))
        return step(value, event)

    return counted
