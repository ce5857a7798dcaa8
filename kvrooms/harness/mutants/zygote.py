"""A process that has everything imported and no thread, and forks one child per mutant: `python -m` runs it.

Jobs come as lines of JSON on standard input, outcomes go as lines to standard output. A child plants its mutant, lets
the checkers look, and ends with what it has changed. One that does not end in time is killed, and has shown nothing.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from ...engine.ending import belong_to_parent, end_with_parent
from ..evidence import Counterexample, Tally
from .catalogue import BY_NAME
from .checkers import CHECKERS, check_quickly

_READ = 1 << 16


class Job(msgspec.Struct):
    """mutant: its name, "" for none. checkers: of `checkers.CHECKERS`, each of which looks to the end.

    Where "probes" is not among them, the probes of the mutant's own properties look first (of all, without a mutant).
    """

    mutant: str
    checkers: tuple[str, ...]
    timeout_s: float


class Outcome(msgspec.Struct):
    """What a child has found. broken: properties by checker. error: why a checker, or the mutant, could not be run."""

    mutant: str
    broken: dict[str, tuple[str, ...]] = {}
    counterexamples: tuple[Counterexample, ...] = ()
    error: str = ""
    seconds: float = 0.0


def main() -> None:
    """Serve until standard input ends, or the thread that started this process."""
    belong_to_parent()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a checker prints is no outcome
    _warm_up()
    for line in sys.stdin:
        job = msgspec.json.decode(line, type=Job)
        out.write(msgspec.json.encode(_run(job)) + b"\n")


def _warm_up() -> None:
    """Import what the checkers need, so that no child does; those that are not installed are found missing there."""
    check_quickly(("L1",))
    logging.disable(logging.CRITICAL)
    import importlib

    for name in ("..explore.run", "..simulate.run", "..stateful"):
        try:
            importlib.import_module(name, __package__)
        except ImportError:
            pass


def _run(job: Job) -> Outcome:
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(job, writing)
    os.close(writing)
    data = _read_all(reading, started + job.timeout_s)
    if data is None:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seconds = time.monotonic() - started
    if not data:
        why = "the child ended without a word" if data is not None else f"not over after {job.timeout_s:g} s"
        return Outcome(job.mutant, error=why, seconds=seconds)
    outcome = msgspec.json.decode(data, type=Outcome)
    outcome.seconds = seconds
    return outcome


def _read_all(fd: int, end: float) -> bytes | None:
    """Everything up to the end of a pipe; None if that does not come in time."""
    data = b""
    with selectors.DefaultSelector() as selector, os.fdopen(fd, "rb", buffering=0) as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, end - time.monotonic())):
            more = pipe.read(_READ)
            if not more:
                return data
            data += more
    return None


def _child(job: Job, fd: int) -> None:
    """Never returns."""
    end_with_parent()
    try:
        outcome = _look(job)
    except BaseException as error:  # noqa: BLE001 - a mutant may raise anything; the child ends
        outcome = Outcome(job.mutant, error=f"{type(error).__name__}: {error}")
    data = msgspec.json.encode(outcome)
    while data:
        data = data[os.write(fd, data) :]
    os._exit(0)


def _look(job: Job) -> Outcome:
    mutant = BY_NAME[job.mutant] if job.mutant else None
    if mutant is not None:
        mutant.fault.plant()
    found = Outcome(job.mutant)
    looks: dict[str, Callable[[], Tally]] = {}
    if "probes" not in job.checkers:
        looks["probes"] = partial(check_quickly, mutant.expected) if mutant else CHECKERS["probes"]
    looks |= {name: CHECKERS[name] for name in job.checkers}
    for name, look in looks.items():
        try:
            tally = look()
        except Exception as error:  # noqa: BLE001 - a mutant may raise anything
            found.error += f"{name}: {type(error).__name__}: {error}; "
            continue
        found.broken[name] = tuple(sorted(tally.broken))
        found.counterexamples += tuple(tally.counterexamples())
    return found


if __name__ == "__main__":
    main()
