"""What a person sees: a live table of rooms on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .messages import Control, Generated, Held, Message, Phase, Reference, Sent
from .ranks import SIDES
from .session import Row, Session

_FRAME_S = 0.1
_WIDE = 100  # columns
_STYLES = {"METADATA": "yellow", "DONE": "green", "FAILED": "bold red"}


class View(ABC):
    """Shows a session as it goes. Used as a context manager around it."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the output as it was."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show one line about the demo as a whole."""

    @abstractmethod
    def show(self, row: Row | None, child: str, message: Message) -> None:
        """Show what `message` of `child` changed."""

    @abstractmethod
    def tick(self, session: Session) -> None:
        """Called several times a second."""

    @abstractmethod
    def summary(self, session: Session, texts: dict[str, str]) -> None:
        """Show how it ended; `texts` gives generated text by request, where there is a tokenizer."""


def pick_view(output: TextIO, *, plain: bool) -> View:
    """A live table if `output` is a terminal and nobody asked for plain lines."""
    if plain or not output.isatty():
        return PlainView(output)
    return LiveView(output)


class PlainView(View):
    """Lines without any control character."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._began_s = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._output.flush()

    def note(self, text: str) -> None:
        """One line, with the seconds since the start."""
        for line in text.splitlines():
            self._output.write(f"[{time.monotonic() - self._began_s:5.1f} s] {line}\n")
        self._output.flush()

    def show(self, row: Row | None, child: str, message: Message) -> None:
        """A line for each change of a row."""
        text = describe(message, child)
        if row is not None and text:
            self.note(f"{row.request.id:<10} {text}")

    def tick(self, session: Session) -> None:
        """Nothing moves in plain lines."""

    def summary(self, session: Session, texts: dict[str, str]) -> None:
        """One line per request, then what did not hold."""
        for name, row in session.rows.items():
            self.note(f"{name:<10} {verdict(row)}")
            if name in texts:
                self.note(f"{name:<10} {texts[name]!r}")
        for complaint in session.complaints():
            self.note(f"error: {complaint}")


class LiveView(View):
    """A table that moves, and a summary below it."""

    def __init__(self, output: TextIO) -> None:
        self._console = Console(file=output, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._note = ""
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """The line above the table."""
        self._note = text.splitlines()[0] if text else ""

    def show(self, row: Row | None, child: str, message: Message) -> None:
        """The next frame shows it."""

    def tick(self, session: Session) -> None:
        """Redraw, if the last frame is old enough."""
        if time.monotonic() >= self._next_s:
            self._live.update(rooms(session.rows.values(), self._note, width=self._console.width), refresh=True)
            self._next_s = time.monotonic() + _FRAME_S

    def summary(self, session: Session, texts: dict[str, str]) -> None:
        """The table once more, as it stays, and what did not hold."""
        self._live.stop()
        self._console.print(rooms(session.rows.values(), "", width=self._console.width))
        for name, text in texts.items():
            self._console.print(f"{name}: {text}", markup=False)
        good = sum(row.good for row in session.rows.values())
        self._console.print(
            f"{good} of {len(session.rows)} requests: every byte, every token and every control as it must be.",
            style="green" if session.ok else "red",
        )
        for complaint in session.complaints():
            self._console.print(f"error: {complaint}", style="red", markup=False)


def describe(message: Message, child: str) -> str:
    """One event in words; empty for what is not worth a line."""
    match message:
        case Phase():
            return f"{child}: {message.phase}"
        case Sent():
            return f"{child}: chunk {message.chunks} of {message.total} sent, {message.pages} pages so far"
        case Held():
            return f"{child}: {message.bytes} bytes {'landed' if child.startswith('decode') else 'held'}"
        case Generated():
            return f"{child}: {len(message.tokens)} tokens generated"
        case Reference():
            return f"reference: {len(message.tokens)} tokens"
        case Control():
            return f"control: {message.name}"
        case _:
            return ""


def verdict(row: Row) -> str:
    """One row's outcome in words."""
    controls = ", ".join(f"{name} {'noticed' if seen else 'NOT NOTICED'}" for name, seen in row.controls.items())
    return (
        f"{row.request.model}: bytes {word(row.same_bytes)}{_by_rank(row)}, "
        f"tokens {word(row.identical)}; {controls or 'no control was run'}"
    )


def _by_rank(row: Row) -> str:
    """What each rank holds, where there are several."""
    if not row.topology.split:
        return ""
    sides = []
    for side in SIDES:
        held = [row.held.get(child) for child in row.topology.children(side)]
        sides.append(" + ".join(str(one.bytes) if one else "?" for one in held) + f" on {side}")
    return f" ({', '.join(sides)})"


def word(identical: bool | None) -> str:
    """Whether something equals the reference, in a word."""
    return {True: "identical", False: "DIFFERENT", None: "unknown"}[identical]


def rooms(rows: Iterable[Row], caption: str, *, width: int) -> Table:
    """The table of all rooms, for a terminal of `width` columns."""
    table = Table(title=caption or None, title_justify="left", title_style="dim", box=box.SIMPLE_HEAD, padding=0)
    wide = width >= _WIDE
    table.add_column("room", justify="right")
    table.add_column("request")
    if wide:
        table.add_column("model")
    table.add_column("prompt\ntokens", justify="right")
    for name in ("prefill", "decode"):
        table.add_column(name, min_width=8)
    for name in ("chunks", "pages", "bytes") if wide else ("chunks", "bytes"):
        table.add_column(name, justify="right")
    for name in ("same\nbytes", "same\ntokens", "controls\nnoticed"):
        table.add_column(name, justify="center")
    for row in rows:
        table.add_row(*_cells(row, wide=wide))
    return table


def _cells(row: Row, *, wide: bool) -> list[str]:
    sent = row.sent
    seen = sum(row.controls.values())
    controls = f"[{'green' if seen == len(row.controls) else 'bold red'}]{seen}/{len(row.controls)}[/]"
    return [
        str(row.request.room),
        row.request.id,
        *([row.request.model] if wide else []),
        str(len(row.request.prompt)),
        _styled(row.phase("prefill")),
        _styled(row.phase("decode")),
        f"{sent.chunks}/{sent.total}" if sent else "",
        *([str(sent.pages) if sent else ""] if wide else []),
        str(row.bytes("decode")) if row.landed else "",
        _mark(row.same_bytes),
        _mark(row.identical),
        controls if row.controls else "",
    ]


def _styled(phase: str) -> str:
    return f"[{_STYLES.get(phase, 'cyan')}]{phase}[/]" if phase else ""


def _mark(value: bool | None) -> str:
    return "" if value is None else "[green]yes[/]" if value else "[bold red]NO[/]"
