"""What a person sees: progress on standard error, tables on standard output."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

_WIDTH = 100  # columns where there is no terminal to ask


class Progress:
    """A bar on a terminal, otherwise one line per figure. Drawn between the runs only: it costs them nothing."""

    def __init__(self, stream: TextIO, steps: int, *, plain: bool) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        if self._console.is_terminal and not plain:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, what: str) -> None:
        """The next step begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=what, advance=1, refresh=True)

    def say(self, text: str) -> None:
        """A figure is known."""
        self._console.print(text, markup=False)


def show(measured: dict[str, Any], runs: int) -> None:
    """Tables of a finished measurement, on standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    versions = ", ".join(f"{name} {version(name)}" for name in ("kvrooms", "nixl"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    console.print(f"{versions}; {machine}; medians of {runs} runs", markup=False)
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII)
    for name in ("room", "in flight", "rooms/s", "floor", "share", "p50 ms", "floor", "p99 ms", "GB/s", "CPU µs/room"):
        table.add_column(name, justify="left" if name == "room" else "right")
    for row in measured["results"]:
        table.add_row(*_cells(row))
    console.print(table)
    memory = measured["memory"]
    grown = f"{memory['rooms_100'] / 2**20:.1f} MiB after 100 rooms, {memory['rooms_5000'] / 2**20:.1f} after 5,000"
    for line in (
        f"100 rooms that wait: {measured['idle_cpu_percent']:.2f} % of a core",
        f"import kvrooms: {1e3 * measured['import_s']:.0f} ms",
        f"memory of both processes: {grown}; tables {'as they were' if memory['tables_equal'] else 'NOT as they were'}",
    ):
        console.print(line, markup=False)
    for row in measured.get("tp_rows", ()):
        console.print(
            f"TP {row['way']}, slices of {row['slice']:,} bytes: {row['goodput_gb_s']:.2f} GB/s,"
            f" {row['ratio']:.2f} of equal TP's",
            markup=False,
        )
    if "plan_share" in measured:
        console.print(f"planning: at most {100 * measured['plan_share']:.1f} % of the time to move", markup=False)
    sys.stdout.flush()


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["room"],
        str(row["in_flight"]),
        f"{row['rooms_per_s']:,.0f}",
        f"{row['floor_rooms_per_s']:,.0f}",
        f"{row['ratio']:.2f}",
        f"{row['p50_ms']:.3f}",
        f"{row['floor_p50_ms']:.3f}",
        f"{row['p99_ms']:.3f}",
        f"{row['goodput_gb_s']:.2f}",
        f"{1e6 * row['cpu_s_per_room']:,.0f}",
    )
