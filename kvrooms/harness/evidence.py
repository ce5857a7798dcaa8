"""What the harness finds: steps of a run, counterexamples, and a tally of evidence per property.

Every check of the harness (explorer, simulation, property tests, conformance suite) reports in these words, so that one
command can add them up and one renderer can draw them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..protocol.invariants import INVARIANTS

SMOKE = "SMOKE"
STATEMENTS: dict[str, str] = {
    **{invariant.id: invariant.text for invariant in INVARIANTS},
    SMOKE: "An ordinary room, with indices where the layout has state, moves every byte and ends DONE on both sides.",
}
PROPERTY_IDS: tuple[str, ...] = tuple(STATEMENTS)
"""L1 to A1, then SMOKE."""
COUNTEREXAMPLES_MAX = 3


class Step(msgspec.Struct, frozen=True):
    """One line of a timeline.

    at: seconds, or the number of the step where the run has no clock. who: the lifeline ("prefill", "decode",
    "decode 1", "prefill caller", "wire"). to: the other lifeline of a message or write, "" where there is none.
    kind: "call", "message", "write", "notification", "state", "fault", "timer" or "open" (an obligation that was left
    open at the end).
    """

    at: float
    who: str
    kind: str
    text: str
    to: str = ""


class Counterexample(msgspec.Struct, frozen=True):
    """How a property was broken.

    input: what was put in, by name, as text (`prefill_state_indices` and `decode_state_indices` are spelled as a caller
    writes them: "absent", "None", "[]", "[[]]", "[[3, 5]]"). source: how to see it again ("simulation seed 17",
    "explore fault-1", "conformance ...").
    """

    property: str
    summary: str
    source: str = ""
    input: dict[str, str] = {}
    timeline: tuple[Step, ...] = ()

    def text(self) -> str:
        """For people: the property, what broke, the input, and the timeline with one line per step."""
        lines = [f"{self.property} does not hold: {self.summary}"]
        if self.source:
            lines.append(f"  found by: {self.source}")
        lines += [f"  {name}: {value}" for name, value in self.input.items()]
        lines += timeline_lines(self.timeline)
        return "\n".join(lines)


def timeline_lines(timeline: Iterable[Step]) -> list[str]:
    """The steps as aligned text, one line each."""
    steps = list(timeline)
    width = max((len(_actors(step)) for step in steps), default=0)
    return [f"  {step.at:>9g}  {_actors(step):<{width}}  {step.kind:<12}  {step.text}" for step in steps]


def _actors(step: Step) -> str:
    return f"{step.who} -> {step.to}" if step.to else step.who


class Verdict(NamedTuple):
    """What is known of one property. ok None: nothing was found out, and that is no pass."""

    id: str
    ok: bool | None
    examples: int
    counterexample: Counterexample | None


class Tally:
    """Examples and counterexamples per property. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._examples: dict[str, int] = {}
        self._broken: dict[str, list[Counterexample]] = {}

    def held(self, property_id: str, examples: int = 1) -> None:
        """So many more examples in which the property held."""
        self._known(property_id)
        with self._lock:
            self._examples[property_id] = self._examples.get(property_id, 0) + examples

    def broke(self, counterexample: Counterexample) -> None:
        """A counterexample; the first few of each property are kept."""
        self._known(counterexample.property)
        with self._lock:
            found = self._broken.setdefault(counterexample.property, [])
            if len(found) < COUNTEREXAMPLES_MAX:
                found.append(counterexample)

    def add(self, other: Tally) -> None:
        """Everything that another tally holds."""
        for property_id, examples in other._examples.items():
            self.held(property_id, examples)
        for found in other._broken.values():
            for counterexample in found:
                self.broke(counterexample)

    @property
    def broken(self) -> frozenset[str]:
        """The properties with a counterexample."""
        return frozenset(self._broken)

    def counterexamples(self) -> list[Counterexample]:
        """All that are kept, in the order of the properties."""
        return [found for property_id in PROPERTY_IDS for found in self._broken.get(property_id, ())]

    def verdict(self, property_id: str) -> Verdict:
        """What is known of a property."""
        self._known(property_id)
        found = self._broken.get(property_id)
        examples = self._examples.get(property_id, 0)
        ok = False if found else (True if examples else None)
        return Verdict(property_id, ok, examples + len(found or ()), found[0] if found else None)

    @staticmethod
    def _known(property_id: str) -> None:
        if property_id not in STATEMENTS:
            raise ValueError(f"{property_id} is not a property; they are {', '.join(PROPERTY_IDS)}")
