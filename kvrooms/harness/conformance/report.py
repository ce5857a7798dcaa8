"""What the suite found, as JSON, Markdown and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..evidence import STATEMENTS, Counterexample, Step
from .subject import Subject
from .suite import Outcome, status

MARK = {True: "holds", False: "broken", None: "unknown"}
_SHOWN = ("prefill_state_indices", "decode_state_indices", "decode_holds", "sends", "odd_rank", "calls")


def json_of(subject: Subject, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The object that `kvrooms conformance --json` prints."""
    return {
        "subject": subject.name,
        "version": subject.version,
        "ok": status(outcomes) == 0,
        "properties": [
            {
                "id": outcome.id,
                "ok": outcome.ok,
                "examples": outcome.examples,
                "counterexample": None if outcome.counterexample is None else _json_of(outcome.counterexample),
            }
            for outcome in outcomes
        ],
    }


def _json_of(counterexample: Counterexample) -> dict[str, Any]:
    return {"input": counterexample.input, "timeline": [step_of(step) for step in counterexample.timeline]}


def step_of(step: Step) -> dict[str, Any]:
    """A step of a timeline as JSON."""
    return {"at": step.at, "who": step.who, "to": step.to, "kind": step.kind, "text": step.text}


def markdown_of(subject: Subject, outcomes: Sequence[Outcome], command: str) -> str:
    """A section: the command, a table of verdicts, and each counterexample with its timeline."""
    lines = [f"### {subject.name} {subject.version}".rstrip(), "", f"`{command}`", ""]
    lines += ["| property | verdict | examples | |", "|---|---|---|---|"]
    lines += [
        f"| {outcome.id} | {MARK[outcome.ok]} | {outcome.examples} | {_cell(_remark(outcome))} |"
        for outcome in outcomes
    ]
    for outcome in outcomes:
        if outcome.counterexample is not None:
            lines += ["", *_section(outcome.counterexample)]
    return "\n".join(lines) + "\n"


def _remark(outcome: Outcome) -> str:
    """What there is to say of a verdict in one line."""
    if outcome.counterexample is None:
        return "; ".join(filter(None, (outcome.reason, _not_offered(outcome))))
    said = outcome.counterexample.input
    shown = ", ".join(f"{name} `{said[name]}`" for name in _SHOWN if name in said)
    return f"{outcome.reason} ({shown})" if shown else outcome.reason


def _not_offered(outcome: Outcome) -> str:
    return f"not offered: {', '.join(outcome.not_offered)}" if outcome.not_offered else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _section(counterexample: Counterexample) -> list[str]:
    statement = STATEMENTS[counterexample.property]
    return [
        f"<details><summary>{counterexample.property}: the smallest example</summary>",
        "",
        f"{counterexample.property} says: {statement}",
        "",
        "```text",
        counterexample.text(),
        "```",
        "",
        "</details>",
    ]


def line_of(outcome: Outcome) -> str:
    """One verdict as a line of progress."""
    said = "; ".join(filter(None, (outcome.reason, _not_offered(outcome))))
    remark = f"  {said}" if said else ""
    return f"{outcome.id:<5}  {MARK[outcome.ok]:<7}  {outcome.examples:>4} examples  {outcome.seconds:>5.1f} s{remark}"
