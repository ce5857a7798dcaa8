"""The guard against vacuity: what a complete exploration must have reached."""

from __future__ import annotations

from collections.abc import Mapping

from ...statemachine import memory, rooms

TABLES = (rooms.DECODE_ROOM, rooms.PREFILL_ROOM, memory.LEASE, memory.DRAIN)


def cells() -> tuple[str, ...]:
    """The name of every cell of the four tables, as `glue.Cells` counts them."""
    return tuple(
        f"{table.name}: {state.name} x {event.name}"
        for table in TABLES
        for state, event in table.cells  # type: ignore[attr-defined]
    )


def unreached(visited: Mapping[str, int], outcomes: set[tuple[str, str, str]]) -> tuple[str, ...]:
    """What should have been reached and was not."""
    return tuple(cell for cell in cells() if not visited.get(cell))
