"""The suite: per property, draw examples, play them, shrink what breaks it, confirm, and say true, false or unknown.

Hypothesis draws and shrinks. What it is shown is remembered, so that no example is played twice; after a budget of time
it is shown nothing new, and what was smallest until then is the counterexample.
"""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import HypothesisException, HypothesisWarning

from ...protocol.errors import InvalidArgument
from ..evidence import PROPERTY_IDS, Counterexample
from .check import Check
from .checks_carried import FURTHER as CARRIED
from .checks_guests import FURTHER as GUESTS
from .checks_live import CHECKS as LIVE
from .checks_odd import FURTHER as ODD
from .checks_ranks import FURTHER as RANKS
from .checks_safe import CHECKS as SAFE
from .checks_safe import more_held
from .inputs import Found, found_in
from .plan import Plan, RoomPlan
from .play import must_end, play
from .reduce import smaller
from .stage import Broken, Stage
from .subject import SIDES, Shape, Subject, Unsupported

_EXAMPLES_MIN, _EXAMPLES_MIN_BROAD = 3, 12
_SHRINK_SHARE, _REDUCE_SHARE = 3, 4
_CONFIRM, _CONFIRM_TRIES = 2, 3
CHECKS: dict[str, Check] = {check.id: check for check in (*LIVE, *SAFE)}
FURTHER: tuple[Check, ...] = (*GUESTS, *RANKS, *ODD, *CARRIED)
"""Checks that go beyond the first one of a property, of what a subject need not have."""


class Effort(NamedTuple):
    """How much is tried. examples, seconds: per property (some have a larger or smaller share). shrink_s: for making a
    counterexample smaller. patience_s: how long a real subject may be quiet before it is a hang; less while shrinking,
    more before the word is false. deadline_s: of subjects in examples in which rooms end by their deadlines.
    """

    examples: int = 40
    seconds: float = 5.0
    shrink_s: float = 40.0
    patience_s: float = 3.0
    deadline_s: float = 1.0
    seed: int = 0


class Outcome(NamedTuple):
    """What was found out about one property. ok None: unknown, and `reason` says why; that is no pass.

    not_offered: what the property was not put to, because the subject does not have it; it is not judged by that.
    """

    id: str
    ok: bool | None
    examples: int
    reason: str = ""
    counterexample: Counterexample | None = None
    seconds: float = 0.0
    not_offered: tuple[str, ...] = ()


class Session:
    """A subject, started when an example needs it, and anew when the last one left something behind."""

    def __init__(self, subject: Subject, effort: Effort) -> None:
        self.subject = subject
        self.effort = effort
        self._stage: Stage | None = None

    def play(self, check: Check, shape: Shape, plan: Plan, *, patience_s: float) -> Found | bool:
        """Play an example: what is broken, or whether the example says anything. Raises Unsupported."""
        stage = self._stage_for(check, shape, plan)
        stage.patience_s = patience_s
        try:
            said = check.run(stage, plan)
        except Broken as broken:
            found = found_in(stage, plan, broken)
            self.stop()
            return found
        except BaseException:
            self.stop()
            raise
        self._leave(stage)
        return said

    def _stage_for(self, check: Check, shape: Shape, plan: Plan) -> Stage:
        deadline_s = self.effort.deadline_s if plan.deadline else None
        stage = self._stage
        fits = stage is not None and stage.shape == shape and stage.deadline_s == deadline_s
        if stage is None or not fits or self.subject.traits.simulated or (check.warm and not stage.warm):
            self.stop()
            stage = self._stage = Stage(
                self.subject, shape, patience_s=self.effort.patience_s, deadline_s=deadline_s, seed=plan.seed
            )
            if check.warm:
                _warm(stage)
        stage.begin()
        return stage

    def _leave(self, stage: Stage) -> None:
        """Close what an example has opened; what does not go away costs a new start."""
        try:
            for live in stage.rooms:
                for side in list(live.handles):
                    if live.state[side] == "open" and side in self.subject.traits.aborts:
                        stage.abort(live, side)
                    stage.close(live, side)
            clean = stage.settle(lambda: _all_free(stage), patience_s=stage.brief_s)
            if not self.subject.traits.simulated and any("failed" in live.state.values() for live in stage.rooms):
                stage.rest()
            # What this example has broken or left behind must not be held against the next one.
            clean = clean and not any(self.subject.ailments(side) or more_held(stage, side) for side in SIDES)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the next example gets a new one
            clean = False
        if stage.dirty or not clean:
            self.stop()

    def stop(self) -> None:
        """End the subject, if it runs. What it raises then says nothing of a property, and must not hide what does."""
        stage, self._stage = self._stage, None
        try:
            if stage is not None:
                stage.stop()
        except Exception as error:  # noqa: BLE001 - it is a subject's
            warnings.warn(f"{self.subject.name} could not be stopped: {error!r}", RuntimeWarning, stacklevel=2)


def _all_free(stage: Stage) -> bool:
    return all(stage.free(live, side) for live in stage.rooms for side in live.handles)


def _warm(stage: Stage) -> None:
    """Serve one ordinary room, so that what is kept per peer is there; then count, where the subject can."""
    traits = stage.subject.traits
    state = tuple(1 for _ in stage.shape.state)
    lives = play(stage, Plan((RoomPlan(state=state, decode_at=0 if traits.decode_first else 2),)))
    try:
        must_end(stage, lives, "the first room")
    except Broken as broken:
        raise Unsupported(f"not even a first ordinary room ends: {broken.summary}") from broken
    for live in lives:
        for side in live.handles:
            stage.close(live, side)
    stage.rest()
    stage.warm = True
    if traits.counts:
        stage.count()


class _Search:
    """The search for a broken example of one property."""

    def __init__(self, session: Session, check: Check, shape: Shape, effort: Effort, deadline: float) -> None:
        self.session = session
        self.check = check
        self.shape = shape
        self.effort = effort
        self.deadline = deadline
        self.least = _EXAMPLES_MIN if check.share <= 1 else _EXAMPLES_MIN_BROAD
        self.known: dict[Plan, bool] = {}
        self.broken: list[Found] = []
        self.examples = 0
        self.unconfirmed = ""

    def run(self, examples: int) -> None:
        """Draw and shrink. What is found lies in `broken`, the smallest one last."""
        simulated = self.session.subject.traits.simulated
        settled = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=False,
            # Where an example that hangs costs seconds, `reduce` has to do.
            phases=(Phase.generate, Phase.shrink) if simulated else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )

        @seeded(self.effort.seed)
        @settled
        @given(self.check.draws(self.session.subject, self.shape))
        def example(plan: Plan) -> None:
            if self._fails(plan):
                raise Broken("an example")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            try:
                example()
            except (Broken, HypothesisException):  # what was found is in `broken`; flaky or not is judged by `confirm`
                pass
        if self.broken:
            if simulated:  # hypothesis may have used up the time, and the largest steps are these
                self.deadline = max(self.deadline, time.monotonic() + self.effort.shrink_s / _REDUCE_SHARE)
            self._reduce()
        self.broken.sort(key=lambda found: -found.plan.size)

    def _reduce(self) -> None:
        """Go on from the smallest broken example to smaller ones, while there is time."""
        plan, going = min((found.plan for found in self.broken), key=lambda plan: plan.size), True
        while going:
            going = False
            for less in smaller(plan, self.session.subject.traits):
                if less.size < plan.size and self.check.fits(less) and self._fails(less):
                    plan, going = less, True
                    break

    def _fails(self, plan: Plan) -> bool:
        if plan in self.known:
            return self.known[plan]
        if time.monotonic() > self.deadline and (self.broken or self.examples >= self.least):
            return False
        patience_s = self.effort.patience_s / (_SHRINK_SHARE if self.broken else 1)
        found = self.session.play(self.check, self.shape, plan, patience_s=patience_s)
        if isinstance(found, Found) and not self.broken and not self.session.subject.traits.simulated:
            seen, found = found, self.confirm(found)
            if not isinstance(found, Found):
                self.unconfirmed = f"seen once, and not with more patience: {seen.summary} ({_line(seen.input)})"
        self.known[plan] = broke = isinstance(found, Found)
        self.examples += broke or found is True
        if isinstance(found, Found):
            if not self.broken:
                self.deadline = time.monotonic() + self.effort.shrink_s
            self.broken.append(found)
        return broke

    def confirm(self, found: Found) -> Found | bool:
        """Play it again on a fresh start with more patience; where threads race, up to a few times."""
        last: Found | bool = False
        for _ in range(1 if self.session.subject.traits.simulated else _CONFIRM_TRIES):
            self.session.stop()
            patience_s = self.effort.patience_s * _CONFIRM
            last = self.session.play(self.check, found.shape, found.plan, patience_s=patience_s)
            if isinstance(last, Found):
                break
        return last


def _line(said: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in said.items())


def judge(session: Session, property_id: str) -> Outcome:
    """Search for a counterexample of one property: in what every subject has, then in what this one offers beyond."""
    further, traits = [check for check in FURTHER if check.id == property_id], session.subject.traits
    missing = tuple(check.also for check in further if check.lacks(traits) is not None)
    try:
        outcome = judge_check(session, CHECKS[property_id])
        for check in further:
            if outcome.ok and check.also not in missing:
                more = judge_check(session, check)
                examples, seconds = outcome.examples + more.examples, outcome.seconds + more.seconds
                outcome = more._replace(examples=examples, seconds=seconds)
    finally:
        session.stop()
    return outcome._replace(not_offered=missing)


def judge_check(session: Session, check: Check) -> Outcome:
    """What one check alone finds. The subject may go on running, for a check with memory of the same shape."""
    started, effort, traits = time.monotonic(), session.effort, session.subject.traits
    lacking = check.lacks(traits)
    if lacking is not None:
        return Outcome(check.id, None, 0, lacking)
    shapes, examples, unconfirmed = check.shapes(traits), 0, ""
    try:
        for number, shape in enumerate(shapes):
            end = started + effort.seconds * check.share * (number + 1) / len(shapes)
            search = _Search(session, check, shape, effort, max(end, time.monotonic() + 1.0))
            search.run(max(3, round(effort.examples * check.share / len(shapes))))
            examples += search.examples
            unconfirmed = unconfirmed or search.unconfirmed
            if search.broken:
                return _verdict(session, check, search, examples, started)
    except Unsupported as unsupported:
        session.stop()
        return Outcome(check.id, None, examples, str(unsupported), seconds=time.monotonic() - started)
    except Exception as error:  # noqa: BLE001 - a subject that cannot be driven here may be judged elsewhere
        if signalled := _signal_behind(error):
            raise signalled from None
        session.stop()
        return Outcome(check.id, None, examples, _undriven(error), seconds=time.monotonic() - started)
    reason = unconfirmed or ("" if examples else "no example said anything about it in the time there was")
    return Outcome(check.id, None if reason else True, examples, reason, seconds=time.monotonic() - started)


def _signal_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that this error only answers: hypothesis fails in its own way, interrupted while it begins."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _undriven(error: Exception) -> str:
    """What was raised where, when it was nothing that an implementation says to its callers."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"the subject could not be driven: {text} ({place.filename}:{place.lineno})"


def _verdict(session: Session, check: Check, search: _Search, examples: int, started: float) -> Outcome:
    """False, if the smallest example (else the first, which was confirmed) can be seen once more."""
    last: Found | bool = False
    for found in dict.fromkeys((len(search.broken) - 1, 0)):
        last = search.confirm(search.broken[found])
        if isinstance(last, Found):
            break
    seconds = time.monotonic() - started
    if not isinstance(last, Found):
        reason = f"seen but not seen again: {search.broken[-1].summary}"
        return Outcome(check.id, None, examples, reason, seconds=seconds)
    name = f"{session.subject.name} {session.subject.version}".strip()
    source = f"the conformance suite on {name}, seed {session.effort.seed}"
    counterexample = Counterexample(check.id, last.summary, source, last.input, last.timeline)
    return Outcome(
        check.id, ok=False, examples=examples, reason=last.summary, counterexample=counterexample, seconds=seconds
    )


def run(
    subject: Subject,
    effort: Effort | None = None,
    properties: Iterable[str] = (),
    progress: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Judge these properties of a subject (default: all of them, SMOKE first). Raises InvalidArgument."""
    effort = effort or default_effort(subject)
    wanted = set(properties) or set(PROPERTY_IDS)
    if unknown := wanted - set(PROPERTY_IDS):
        raise InvalidArgument("property", sorted(unknown), f"must be of {', '.join(PROPERTY_IDS)}")
    outcomes: dict[str, Outcome] = {}
    for property_id in ("SMOKE", *PROPERTY_IDS):
        if property_id in wanted and property_id not in outcomes:
            outcomes[property_id] = judge(Session(subject, effort), property_id)
            progress(outcomes[property_id])
    return [outcomes[one] for one in PROPERTY_IDS if one in outcomes]


def unjudged(judged: Iterable[Outcome], properties: Iterable[str], why: str) -> list[Outcome]:
    """The outcomes of a run that was given up: of what it did not come to, nothing is known."""
    known, wanted = {outcome.id: outcome for outcome in judged}, set(properties) or set(PROPERTY_IDS)
    return [known.get(one) or Outcome(one, None, 0, why) for one in PROPERTY_IDS if one in wanted]


def default_effort(subject: Subject, **changes: Any) -> Effort:
    """More examples where no time passes. changes: fields of `Effort`; None leaves the default."""
    effort = Effort(examples=100, seconds=8.0, shrink_s=10.0) if subject.traits.simulated else Effort()
    return effort._replace(**{name: value for name, value in changes.items() if value is not None})


def status(outcomes: Sequence[Outcome]) -> int:
    """The exit status: 0 all true, 1 something is false, 2 nothing is false and something unknown."""
    if any(outcome.ok is False for outcome in outcomes):
        return 1
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 2


@contextmanager
def no_traces() -> Iterator[None]:
    """What hypothesis notes about a run goes away with it; by itself it would leave a folder wherever one stands."""
    with tempfile.TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)
