"""The stage on which examples are played: one started subject, its memory, its rooms, and what was seen of them.

It gives out room numbers, and memory (`Ground`, which knows what decode must find), and writes the timeline. It judges
nothing but bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from ..evidence import Step
from .ground import Given, Ground, Must
from .plan import RoomPlan
from .spelling import build, fitted, spelled
from .subject import SIDES, Handle, OddRank, Refused, Request, Shape, Side, Status, Subject, Unsupported, View

_BRIEF_S, _BRIEF_SHARE, _QUIET_SHARE = 0.25, 10, 5
State = Literal["unopened", "refused", "open", "done", "failed", "gone"]


class Broken(AssertionError):
    """A property does not hold. room: that shows it, if there is one."""

    def __init__(self, summary: str, room: Live | None = None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.room = room


@contextmanager
def _asked(what: str, live: Live) -> Iterator[None]:
    """What an implementation raises into a caller that did nothing wrong is its fault."""
    try:
        yield
    except (Refused, Unsupported):
        raise
    except Exception as error:
        raise Broken(f"{what} raised {type(error).__name__}: {error}", live) from error


class Live:
    """A room of an example while it is played."""

    def __init__(self, index: int, plan: RoomPlan, number: int, attempt: int, given: dict[Side, Given]) -> None:
        self.index = index
        self.plan = plan
        self.number = number
        self.attempt = attempt
        self.given = given
        self.handles: dict[Side, Handle] = {}
        self.state: dict[Side, State] = {"prefill": "unopened", "decode": "unopened"}
        self.must = Must()
        self.wrong_at_done: str | None = None
        self.said_at_refusal: dict[Side, str] = {}

    def __repr__(self) -> str:
        return f"room {self.number}" + (f" attempt {self.attempt}" if self.attempt else "")

    @property
    def open_sides(self) -> list[Side]:
        """The sides that have not ended, of those that were opened."""
        return [side for side in SIDES if self.state[side] == "open"]

    @property
    def ended(self) -> bool:
        """Whether no side is open any more."""
        return not self.open_sides


class Stage:
    """A started subject. Made anew after every example that left something behind."""

    def __init__(
        self, subject: Subject, shape: Shape, *, patience_s: float, deadline_s: float | None, seed: int
    ) -> None:
        self.subject = subject
        self.shape = shape
        self.patience_s = patience_s
        self.deadline_s = deadline_s
        self.ground = Ground(subject, shape)
        self.names = self.ground.names
        self.steps: list[Step] = []
        self.rooms: list[Live] = []
        self.dirty = False
        self.warm = False
        self.killed: set[Side] = set()
        self.baseline: dict[Side, Mapping[str, int]] = {}
        self._numbers = 0
        self._began = time.monotonic()
        try:
            subject.start(shape, deadline_s=deadline_s, seed=seed)
        except BaseException:
            subject.stop()
            raise

    def stop(self) -> None:
        """End the subject."""
        self.subject.stop()

    def begin(self) -> None:
        """A new example on a subject that the last one left clean."""
        self.steps.clear()
        self.rooms.clear()
        self.subject.steps()
        self._began = time.monotonic()
        self.ground.refill()

    # -- rooms ---------------------------------------------------------------------------------------------------

    def room(self, plan: RoomPlan, again: Live | None = None, *, attempt: bool = False) -> Live:
        """A room with memory of its own; with the number of an earlier one (its next attempt), or a new one."""
        given = self.ground.give(plan)
        if again is None:
            self._numbers += 1
        number = self._numbers if again is None else again.number
        live = Live(len(self.rooms), plan, number, 0 if again is None else again.attempt + attempt, given)
        self.rooms.append(live)
        live.must = self.ground.fill(plan, given)
        return live

    # -- calls ---------------------------------------------------------------------------------------------------

    def open(self, live: Live, side: Side) -> None:
        """The side's caller opens the room."""
        mine, plan = live.given[side], live.plan
        request, words = self._request(live, side, mine)
        if mine.odd is not None and plan.odd is not None:
            other, more = self._request(live, side, mine.odd)
            request = request._replace(odd=OddRank(plan.odd.rank, other, [list(some) for some in mine.odd.state]))
            words += f"; rank {plan.odd.rank}: {more}"
        self.note(side, "call", f"open({live}, {words})")
        try:
            with _asked(f"open on {side}", live):
                live.handles[side] = self.subject.open(side, request)
            live.state[side] = "open"
        except Refused as refusal:
            self._refused(live, side, refusal)

    def _request(self, live: Live, side: Side, mine: Given) -> tuple[Request, str]:
        """What a caller opens, and the same in words."""
        request = Request(live.number, live.attempt, mine.pages, mine.aux, held=mine.held)
        words = f"{len(mine.pages)} pages" + (f" after {len(mine.held)} held" if mine.held else "")
        if side == "decode":
            form = fitted(live.plan.decode_form, mine.state)
            request = request._replace(state_indices=build(form, mine.state, self.names))
            words += f", state_indices={spelled(form, mine.state, self.names)}"
        return request, words

    def send(self, live: Live, number: int) -> None:
        """Prefill's caller sends a chunk, or some layers of it; state goes with the last send."""
        mine, plan = live.given["prefill"], live.plan
        chunk, layers = plan.parts[number]
        start = sum(plan.chunks[:chunk])
        pages = mine.pages[start : start + plan.chunks[chunk]]
        last = number == len(plan.parts) - 1
        form = fitted(plan.prefill_form, mine.state)
        if not last:
            form = form._replace(outer="absent")
        value = build(form, mine.state, self.names)
        words = f"send({len(pages)} pages, " + (f"layers={list(layers)}, " if layers else "")
        words += f"state_indices={spelled(form, mine.state, self.names)}"
        if last and mine.odd is not None and plan.odd is not None:
            left = max(0, len(mine.odd.pages) - start)
            words += f"; rank {plan.odd.rank}: {left} pages, state_indices={[list(some) for some in mine.odd.state]}"
        self.note("prefill", "call", words + (", last)" if last else ")"))
        try:
            with _asked("send", live):
                if layers:
                    self.subject.send_layers(live.handles["prefill"], layers, pages, value, last=last)
                else:
                    self.subject.send(live.handles["prefill"], pages, value, last=last)
        except Refused as refusal:
            self._refused(live, "prefill", refusal)

    def _refused(self, live: Live, side: Side, refusal: Refused) -> None:
        live.said_at_refusal[side] = str(refusal) or type(refusal).__name__
        self.note(side, "state", f"refused: {live.said_at_refusal[side]}")
        if side not in live.handles:
            live.state[side] = "refused"

    def abort(self, live: Live, side: Side) -> None:
        """The side's caller gives the room up."""
        if side in live.handles:
            self.note(side, "call", f"abort({live})")
            with _asked(f"abort on {side}", live):
                self.subject.abort(live.handles[side])

    def close(self, live: Live, side: Side) -> None:
        """The side's caller is finished with the room."""
        if side in live.handles:
            self.note(side, "call", f"close({live})")
            with _asked(f"close on {side}", live):
                self.subject.close(live.handles[side])

    def hold(self) -> None:
        """Writes do not move their bytes from here on."""
        self.note("wire", "fault", "writes are held back")
        self.subject.hold_writes(held=True)

    def kill(self, side: Side) -> None:
        """A side dies; its callers with it."""
        self.dirty = True
        self.killed.add(side)
        self.note(side, "fault", "killed")
        self.subject.kill(side)
        for live in self.rooms:
            if side in live.handles:
                del live.handles[side]
                live.state[side] = "gone"

    def restart(self, side: Side) -> None:
        """A side that has died comes back under the same name."""
        self.killed.discard(side)
        self.note(side, "fault", "started again")
        self.subject.restart(side)

    # -- looking -------------------------------------------------------------------------------------------------

    def look(self) -> list[State]:
        """Poll every room. The first sight of done on decode is the moment at which its bytes must be there."""
        seen: list[State] = []
        for live in self.rooms:
            for side, handle in live.handles.items():
                with _asked(f"poll on {side}", live):
                    status: Status = self.subject.poll(handle)
                before, live.state[side] = live.state[side], status
                if status != before and before == "open":
                    if side == "decode" and status == "done":
                        live.wrong_at_done = self.wrong_bytes(live)
                    self.note(side, "state", f"{live}: {status}")
                seen.append(status)
        return seen

    def settle(self, until: Callable[[], bool], *, patience_s: float | None = None, timers: bool = False) -> bool:
        """Let both sides run until `until()`, or until nothing changes any more: then False."""

        def view() -> object:
            return self.look()

        def over() -> bool:
            self.look()
            return until()

        patience = self.patience_s if patience_s is None else patience_s
        return self.subject.settle(over, view, patience_s=patience, timers=timers)

    @property
    def brief_s(self) -> float:
        """How long to wait for what need not happen: the patience is for what must."""
        return max(_BRIEF_S, self.patience_s / _BRIEF_SHARE)

    def rest(self, moments: int | None = None, *, long: bool = False) -> None:
        """Let both sides run until all is quiet (a real one: for a while, or a long one), or for a few moments."""
        left = moments

        def over() -> bool:
            nonlocal left
            left = None if left is None else left - 1
            return left is not None and left < 0

        self.settle(over, patience_s=self.brief_s / (1 if long else _QUIET_SHARE))

    def failure(self, live: Live, side: Side) -> str | None:
        """What the side's caller is told of the failure."""
        with _asked(f"the failure on {side}", live):
            said = self.subject.failure(live.handles[side])
        self.note(side, "call", f"reads the failure: {said}")
        return said

    def count(self) -> None:
        """Remember what both sides hold now, as what they may always hold."""
        self.baseline = {side: self.subject.held(side) for side in SIDES}

    def wrong_bytes(self, live: Live) -> str | None:
        """What of decode's memory is not as it must be once the room is done, in words."""
        return self.ground.wrong(live.must) or self.strayed(live)

    def strayed(self, live: Live) -> str | None:
        """What of decode's memory is no matter of the room, and was written to all the same, in words."""
        return self.ground.strayed(live.must, live.given["decode"].held)

    def free(self, live: Live, side: Side) -> bool:
        """Whether the side says that the room's memory may be used for something else."""
        return side not in live.handles or self.subject.memory_free(live.handles[side])

    def spend(self, live: Live, side: Side) -> None:
        """Use the room's memory on this side for something else."""
        self.note(side, "call", f"the memory of {live} is used for something else")
        self.ground.spend(side, live.given[side])

    def unspent(self, live: Live, side: Side) -> str | None:
        """The first item that does not hold what `spend` wrote, in words."""
        return self.ground.unspent(side, live.given[side])

    # -- timeline ------------------------------------------------------------------------------------------------

    def note(self, who: str, kind: str, text: str, to: str = "") -> None:
        """One more step of the timeline."""
        self._take_steps()
        self.steps.append(Step(time.monotonic(), who, kind, text, to))

    def _take_steps(self) -> None:
        self.steps += self.subject.steps()

    def timeline(self, live: Live | None, summary: str) -> tuple[Step, ...]:
        """What happened, and at its end what each side believes and which obligation it waits for."""
        self._take_steps()
        now = time.monotonic()
        for side in SIDES:
            if live is not None and side in live.handles:
                self._believes(live, side, now)
            for ailment in self.subject.ailments(side):
                self.steps.append(Step(now, side, "fault", ailment))
        self.steps.append(Step(now, "suite", "state", summary))
        if self.subject.traits.simulated:
            return tuple(step_at(step, float(number)) for number, step in enumerate(self.steps))
        return tuple(step_at(step, max(0.0, round(step.at - self._began, 3))) for step in sorted(self.steps, key=_at))

    def _believes(self, live: Live, side: Side, now: float) -> None:
        view: View = self.subject.explain(live.handles[side])
        parts = [f"{live} is in {view.phase}", view.met and f"met: {view.met}", view.belief]
        self.steps.append(Step(now, side, "state", "; ".join(filter(None, parts))))
        if live.state[side] == "open":
            self.steps.append(Step(now, side, "open", f"waits for {view.waiting or 'something it does not name'}"))


def _at(step: Step) -> float:
    return step.at


def step_at(step: Step, at: float) -> Step:
    """The step at another time."""
    return Step(at, step.who, step.kind, step.text, step.to)
