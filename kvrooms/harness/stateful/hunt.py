"""Runs the machines outside a test runner, and turns what they find into counterexamples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from ..evidence import Tally
from .base import Account, Broken, Machine, accounting, coverage
from .decode_alone import DecodeAlone
from .decode_side import DecodeSide
from .engines import Engines
from .memory_side import DrainAlone, LeaseAlone
from .prefill_alone import PrefillAlone
from .prefill_side import PrefillSide

STEPS = 40
_ROUND = 200
MACHINES: dict[str, type[Machine]] = {
    machine.NAME: machine
    for machine in (DecodeSide, PrefillSide, LeaseAlone, DrainAlone, DecodeAlone, PrefillAlone, Engines)
}


class Hunt(NamedTuple):
    """What a hunt has found. cells: how often each cell of the tables was visited, by name."""

    tally: Tally
    cells: Counter[str]

    def coverage(self) -> dict[str, tuple[int, int]]:
        """Per table how many of its cells were visited, and how many there are."""
        return coverage(self.cells)

    def summary(self) -> list[str]:
        """The cells visited, a line per table: "decode room: 61 of 66 cells"."""
        return [f"{name}: {seen} of {total} cells" for name, (seen, total) in self.coverage().items()]


def hunt(
    *,
    examples: int,
    seed: int | None,
    minutes: float | None = None,
    which: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    shrink: bool = True,
) -> Hunt:
    """Run the machines and gather what they show.

    examples: runs per machine. seed: from which they are drawn; None for the same every time. minutes: go on for so
    long instead, in rounds of other seeds. which: names of `MACHINES` (default: all). progress: called with a line
    after each round. shrink: look for the shortest counterexample; without it a hunt ends sooner once something is
    found. Raises ValueError for a name that is none.
    """
    unknown = set(which or ()) - set(MACHINES)
    if unknown:
        raise ValueError(f"no such machine: {', '.join(sorted(unknown))}; they are {', '.join(MACHINES)}")
    account, started, rounds = Account(), time.monotonic(), 0
    hunted = Hunt(account.tally, account.cells)
    each = examples if minutes is None else min(examples, _ROUND)
    while True:
        draw = seed if minutes is None else (seed or 0) + rounds
        for name in which or MACHINES:
            with accounting(account):
                _run(MACHINES[name], each, draw, account, shrink=shrink)
        rounds += 1
        if progress is not None:
            progress(f"{rounds * each} runs of each machine; {', '.join(hunted.summary())}")
        if minutes is None or time.monotonic() - started > minutes * 60 or account.tally.broken:
            return hunted


def _run(machine: type[Machine], examples: int, draw: int | None, account: Account, *, shrink: bool) -> None:
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=draw is None,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    subject: type[Machine] = type(machine.__name__, (machine,), {})
    if draw is not None:
        subject = seeded(draw)(subject)
    try:
        run_state_machine_as_test(subject, settings=chosen)
    except Broken as broken:
        account.tally.broke(broken.counterexample(f"hypothesis, {machine.NAME}, seed {draw}"))
    except BaseExceptionGroup as group:  # what was found does not come again in the same way: found all the same
        found, others = group.split(Broken)
        if found is None or others is not None:
            raise
        for leaf in _leaves(found):
            account.tally.broke(leaf.counterexample(f"hypothesis, {machine.NAME}, seed {draw}, not every time"))


def _leaves(group: BaseExceptionGroup[Broken]) -> Iterator[Broken]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
