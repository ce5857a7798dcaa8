"""Probes: short scenarios through the public methods, each of which asks after one property and nothing else.

Exploration, simulation and hypothesis look for what nobody thought of, and judge all properties at once. A probe is
the opposite: it knows what it looks for. That makes it quick, and it says precisely which property a mutant breaks.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...shapes.table import Case
from ..evidence import Counterexample, Step, Tally
from .stage import Aside, Broken, Hang, Shape, Stage
from .stage_ranks import RankStage


class Timeline(Protocol):
    """What a counterexample shows of a stage."""

    steps: list[Step]

    def open_ends(self) -> list[Step]:
        """What is left open at the end."""


class Probe(NamedTuple):
    """A scenario of one property. seeds: in so many worlds it is played."""

    name: str
    property: str
    play: Callable[[Play], None]
    seeds: int


class Play:
    """One playing of a probe: it makes its stages here, so that a counterexample can show the last one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)  # noqa: S311 - to be replayed
        self.stage: Timeline | None = None
        self.scenes = 0

    def scene(self, shape: Shape = Shape(), *, seed: int | None = None, **options: object) -> Stage:  # noqa: B008
        """A new stage."""
        self.scenes += 1
        number = self.seed if seed is None else self.seed + 1000 * seed
        stage = Stage(number, shape, **options)  # type: ignore[arg-type]
        self.stage = stage
        return stage

    def ranks(self, case: Case, *, seed: int | None = None, **options: Any) -> RankStage:
        """A new stage with the ranks of a shape."""
        self.scenes += 1
        stage = RankStage(case, self.seed if seed is None else seed, **options)
        self.stage = stage
        return stage


PROBES: list[Probe] = []
_COSTLY = ("probes_group", "probes_ranks", "probes_shapes", "probes_staging")
"""Their scenes take a hundred times as long as others: where one counterexample is enough, they come last."""


def probe(property_id: str, *, seeds: int = 2) -> Callable[[Callable[[Play], None]], Callable[[Play], None]]:
    """Make a function a probe of a property."""

    def made(play: Callable[[Play], None]) -> Callable[[Play], None]:
        PROBES.append(Probe(play.__name__, property_id, play, seeds))
        return play

    return made


def _register() -> None:
    """Import the modules of probes beside this one: they register themselves."""
    names = sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]))
    for name in names:
        if name.startswith("probes_"):
            importlib.import_module(f".{name}", __package__)


def play_probes(properties: Iterable[str] | None = None, *, tolerant: bool = False, first: bool = False) -> Tally:
    """Play all probes, or those of some properties. A scene is an example.

    tolerant: an exception out of the code under a probe is passed over. It shows no property broken, and a mutant may
    well raise one; where nothing is planted it is a fault of kvrooms, and goes to the caller. first: stop at the first
    that breaks; one counterexample is enough for a kill.
    """
    _register()
    wanted = None if properties is None else set(properties)
    tally = Tally()
    for one in sorted(PROBES, key=_costly) if first else PROBES:
        if wanted is not None and one.property not in wanted:
            continue
        try:
            _play(one, tally)
        except Exception:
            if not tolerant:
                raise
        if first and tally.broken:
            break
    return tally


def _costly(one: Probe) -> bool:
    return one.play.__module__.rpartition(".")[2] in _COSTLY


def _play(one: Probe, tally: Tally) -> None:
    for seed in range(one.seeds):
        play = Play(seed)
        try:
            one.play(play)
        except Aside:
            continue
        except Broken as broken:
            if isinstance(broken, Hang) and not one.property.startswith("L"):
                continue  # a room that hangs breaks liveness; of safety it shows nothing
            steps = tuple([*play.stage.steps, *play.stage.open_ends()] if play.stage else [])
            source = f"probe {one.name}, seed {seed}"
            tally.broke(Counterexample(one.property, broken.summary, source, broken.given, steps))
            return
        tally.held(one.property, max(play.scenes, 1))
