"""What a mutant is: a mistake that a good engineer could make, where it is made, and which properties must notice."""

from __future__ import annotations

from typing import NamedTuple

from .plant import Fault


class Mutant(NamedTuple):
    """One mistake.

    expected: the properties that must break, each with a counterexample. only: nothing else may break, whatever
    checker looks. also: checkers that must notice it beside the probes of `expected`, so that each of them is tested,
    too; only such are named that take seconds.
    """

    name: str
    mistake: str
    fault: Fault
    expected: tuple[str, ...]
    only: bool = False
    also: tuple[str, ...] = ()
