"""Who looks: probes, exploration, simulation and hypothesis, each by name, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..evidence import Tally
from .probe import play_probes

SIMULATED_ROOMS = 300
HUNT_EXAMPLES = 30


def _probes() -> Tally:
    return play_probes(tolerant=True)


def _explore() -> Tally:
    from ..explore.run import explore

    return explore(scope="mutant", workers=0).tally


def _simulate() -> Tally:
    from ..simulate.run import simulate

    return simulate(seed=0, rooms=SIMULATED_ROOMS, workers=0).tally


def _hunt() -> Tally:
    from ..stateful import hunt

    return hunt(examples=HUNT_EXAMPLES, seed=None, shrink=False).tally


CHECKERS: dict[str, Callable[[], Tally]] = {
    "probes": _probes,
    "explore": _explore,
    "simulate": _simulate,
    "hunt": _hunt,
}


def check_quickly(properties: Iterable[str]) -> Tally:
    """The probes of some properties, up to the first that breaks: the quickest look there is."""
    return play_probes(properties, tolerant=True, first=True)
