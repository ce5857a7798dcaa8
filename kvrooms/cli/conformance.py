"""`kvrooms conformance`: the properties of the rooms, of anybody's implementation."""

from __future__ import annotations

import importlib.util
import json as json_module
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ..engine.ending import CutOff, Ending, GivingUp, kill_workers, status_of
from ..protocol.errors import InvalidArgument


class ConformanceOptions(NamedTuple):
    """The command's options, as `kvrooms conformance --help` has them."""

    subject: str
    version: str | None = None
    wheel: str | None = None
    json: bool = False
    markdown: bool = False
    html: Path | None = None
    properties: tuple[str, ...] = ()
    examples: int | None = None
    seconds: float | None = None
    patience_s: float | None = None
    seed: int | None = None
    options: tuple[str, ...] = ()

    def command(self) -> str:
        """What to type to see the same."""
        words = ["kvrooms", "conformance", self.subject]
        for name in ("version", "wheel", "examples", "seconds", "seed"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name}", str(value)]
        if self.patience_s is not None:
            words += ["--patience", f"{self.patience_s:g}"]
        for option in self.options:
            words += ["--option", option]
        for property_id in self.properties:
            words += ["--property", property_id]
        return shlex.join(words)


def main(options: ConformanceOptions) -> int:
    """Judge and print. Exit status 0: every property holds; 1: one is broken; 2: none is, but one is unknown.

    `status_of` a signal that cut it short: what was not judged until then is unknown.
    """
    if importlib.util.find_spec("hypothesis") is None:
        print("kvrooms: the conformance suite needs hypothesis: pip install 'kvrooms[harness]'", file=sys.stderr)
        return 2
    with GivingUp() as ending:
        try:
            return _judge(options, ending)
        except CutOff as error:  # before or after anything was judged
            return status_of(error.sign)


def _judge(options: ConformanceOptions, ending: Ending) -> int:
    from ..harness.conformance.diagram import page
    from ..harness.conformance.find import find, given
    from ..harness.conformance.report import json_of, line_of, markdown_of
    from ..harness.conformance.suite import Outcome, default_effort, no_traces, run, status, unjudged

    ending.at_once.append(kill_workers)
    subject = find(options.subject, version=options.version, wheel=options.wheel, options=given(options.options))
    if options.html is not None and not options.html.absolute().parent.is_dir():
        raise InvalidArgument("html", str(options.html), "must be a file in a folder that is there")
    effort = default_effort(
        subject, examples=options.examples, seconds=options.seconds, patience_s=options.patience_s, seed=options.seed
    )
    started = time.monotonic()
    judged: list[Outcome] = []
    cut_off: CutOff | None = None

    def progress(outcome: Outcome) -> None:
        judged.append(outcome)
        print(f"{time.monotonic() - started:7.1f} s  {line_of(outcome)}", file=sys.stderr, flush=True)
        if outcome.counterexample is not None:
            print(outcome.counterexample.text(), file=sys.stderr, flush=True)

    try:
        with no_traces():
            outcomes = run(subject, effort, options.properties, progress)
    except CutOff as error:
        cut_off, outcomes = error, unjudged(judged, options.properties, f"not judged: {error}")
    if options.html is not None:
        found = [outcome.counterexample for outcome in outcomes if outcome.counterexample is not None]
        options.html.write_text(page(f"{subject.name} {subject.version}".strip(), found), encoding="utf-8")
    if options.markdown:
        print(markdown_of(subject, outcomes, options.command()), flush=True)
    elif not options.json:
        for outcome in outcomes:
            print(line_of(outcome))
    if options.json:
        print(json_module.dumps(json_of(subject, outcomes)), flush=True)
    return status(outcomes) if cut_off is None else status_of(cut_off.sign)
