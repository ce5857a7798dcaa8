"""What a person sees of a soak: a bar on a terminal, otherwise a line every few seconds. Always on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from .tally import Tally

_EVERY_S = 5.0
_REDRAW_S = 0.2


class Progress:
    """Shows a tally now and then."""

    def __init__(self, stream: TextIO, rooms: int, *, plain: bool) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        self._rooms = rooms
        self._began = time.monotonic()
        self._shown = 0.0
        self._every_s = _EVERY_S
        if self._console.is_terminal and not plain:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("starting", total=rooms)
            self._every_s = _REDRAW_S

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, tally: Tally) -> None:
        """The tally as it stands, if it is time to show it."""
        now = time.monotonic()
        if not tally.rooms or now - self._shown < self._every_s:
            return
        self._shown = now
        words = (
            f"{tally.done} done, {tally.injected} failed of their faults, {tally.collateral} with a process; "
            f"{tally.kills} kills, {tally.stalls} stalls; {len(tally.wrongs)} wrong"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=tally.rooms, description=words, refresh=True)
        else:
            self.say(f"{now - self._began:5.0f} s: {tally.rooms} of {self._rooms} rooms: {words}")

    def say(self, text: str) -> None:
        """A line for people."""
        self._console.print(text, markup=False)

    def detail(self, text: str) -> None:
        """A line for people who look closely."""
        self.say(text)
