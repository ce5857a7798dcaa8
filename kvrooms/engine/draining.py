"""The end of a process that has engines: it drains them when it is told to, by a signal or by its parent.

Whatever the process is busy with goes on meanwhile, so that rooms that need its work can end; `open` is refused.
"""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from ..protocol.arguments import check_limit
from ..protocol.errors import EngineClosed
from .ending import SIGNALS, leave, status_of
from .host import Drained, Engine, engines

log = logging.getLogger("kvrooms.engine")
_SHOWN = 8


def drain_all(some: Iterable[Engine], limit_s: float | None = None) -> dict[str, Drained]:
    """Drain engines beside each other, each within `limit_s` or its own setting; leave out those closed meanwhile.

    Raises InvalidArgument, and none is drained then.
    """
    if limit_s is not None:
        check_limit("limit_s", limit_s)
    found: dict[str, Drained] = {}

    def drain(engine: Engine) -> None:
        try:
            found[engine.name] = engine.drain(limit_s)
        except EngineClosed:
            pass

    threads = [threading.Thread(target=drain, args=(engine,), name=f"drain-{engine.name}") for engine in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def words(found: Mapping[str, Drained]) -> list[str]:
    """What became of the rooms, a line per engine."""
    lines = []
    for name, drained in sorted(found.items()):
        line = f"{name} has drained: {drained.done} rooms done, {drained.failed} failed"
        if drained.aborted:
            line += f", {len(drained.aborted)} of them aborted when time was up: {', '.join(drained.aborted[:_SHOWN])}"
            line += ", ..." if len(drained.aborted) > _SHOWN else ""
        if drained.held:
            line += f"; the memory of {drained.held} may still be written by a peer"
        lines.append(line)
    return lines


class Drainer:
    """Makes this process drain its engines, report, close them and end: 0 if its parent asked, else `status_of`.

    The engines' groups are closed with them. report: called on the drainer's thread with what became of each engine's
    rooms. limit_s: how long rooms may go on, if not as the engines' settings say. A second signal ends the process at
    once. Made in the main thread.
    """

    def __init__(self, report: Callable[[dict[str, Drained]], None], limit_s: float | None = None) -> None:
        self._report = report
        self._limit_s = None if limit_s is None else check_limit("limit_s", limit_s)
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._signals = 0
        self.asked = False
        """Whether the process was told to end."""
        self._thread = threading.Thread(target=self._run, name="drainer", daemon=True)
        self._thread.start()
        for sign in SIGNALS:
            signal.signal(sign, self._heard)

    def ask(self) -> None:
        """Drain and end with status 0. Idempotent. Any thread."""
        self._tell(0)

    def finish(self) -> None:
        """The process has nothing more to do: return, or if it was told to end, leave that to the drainer."""
        if self.asked:
            self._thread.join()

    def _heard(self, number: int, _frame: object) -> None:
        sign = signal.Signals(number)
        self._signals += 1
        if self._signals > 1:
            leave(status_of(sign))
        self._tell(status_of(sign))

    def _tell(self, status: int) -> None:
        self.asked = True
        self._told.put(status)

    def _run(self) -> NoReturn:
        status = self._told.get()
        try:
            self._report(drain_all(engines(), self._limit_s))
            ending = engines()
            for engine in ending:
                engine.close()
            for group in [engine.group for engine in ending if engine.group is not None]:
                group.close()
        except OSError:
            pass  # there is nobody left to report to
        except Exception:
            log.exception("while draining")
            status = 1
        finally:
            sys.stderr.flush()
            leave(status)
