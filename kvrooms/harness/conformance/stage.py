"""The stage on which examples are played: one started subject, its memory, its rooms, and what was seen of them.

It gives out memory and room numbers, fills sources with bytes that are different everywhere, keeps the oracle of what
decode must find, and writes the timeline. It judges nothing but bytes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

from ..evidence import Step
from .plan import RoomPlan
from .spelling import Indices, build, fitted, spelled
from .subject import SIDES, Handle, Item, Refused, Request, Shape, Side, Status, Subject, Unsupported, View

UNTOUCHED, SPENT = 0xA5, 0x5A
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


class Given(NamedTuple):
    """What one side's caller was given for a room: items of its memory, in the order of positions."""

    pages: tuple[int, ...]
    aux: int
    state: Indices

    def items(self) -> list[Item]:
        """All of them."""
        found = [Item("kv", page) for page in self.pages] + [Item("aux", self.aux)]
        return found + [Item("state", index, number) for number, some in enumerate(self.state) for index in some]


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
        self.expected: list[tuple[Item, bytes]] = []
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
        self.names = [component.name for component in shape.state]
        self.steps: list[Step] = []
        self.rooms: list[Live] = []
        self.dirty = False
        self.warm = False
        self.killed: set[Side] = set()
        self.baseline: dict[Side, Mapping[str, int]] = {}
        self._numbers = 0
        self._serial = 0
        self._free: dict[tuple[Side, str, int], list[int]] = {}
        self._began = time.monotonic()
        self._refill()
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
        self._refill()

    def _refill(self) -> None:
        shape = self.shape
        for side in SIDES:
            prefill = side == "prefill"
            self._free[side, "kv", 0] = list(range(shape.prefill_pages if prefill else shape.decode_pages))
            slots = shape.prefill_aux_slots if prefill else shape.decode_aux_slots
            self._free[side, "aux", 0] = list(range(slots))
            for number, component in enumerate(shape.state):
                items = component.prefill_items if prefill else component.decode_items
                self._free[side, "state", number] = list(range(items))

    # -- rooms ---------------------------------------------------------------------------------------------------

    def room(self, plan: RoomPlan, again: Live | None = None, *, attempt: bool = False) -> Live:
        """A room with memory of its own; with the number of an earlier one (its next attempt), or a new one."""
        given: dict[Side, Given] = {
            "prefill": self._give("prefill", plan.pages, plan.state),
            "decode": self._give("decode", plan.pages_wanted, plan.state_wanted),
        }
        if again is None:
            self._numbers += 1
        number = self._numbers if again is None else again.number
        live = Live(len(self.rooms), plan, number, 0 if again is None else again.attempt + attempt, given)
        self.rooms.append(live)
        self._fill(live)
        return live

    def _give(self, side: Side, pages: int, state: tuple[int, ...]) -> Given:
        counts = [*state, *[0] * (len(self.shape.state) - len(state))]
        indices = tuple(self._take(side, "state", number, count) for number, count in enumerate(counts))
        return Given(self._take(side, "kv", 0, pages), self._take(side, "aux", 0, 1)[0], indices)

    def _take(self, side: Side, kind: str, component: int, count: int) -> tuple[int, ...]:
        """Items that no room of this example has. Every other one first, so that positions and indices differ."""
        free = self._free[side, kind, component]
        step = 3 if side == "prefill" else 1
        taken = [free.pop((step * n) % len(free)) for n in range(count)]
        if side == "decode":
            taken.reverse()
        return tuple(taken)

    def _fill(self, live: Live) -> None:
        """Bytes that are different everywhere on the source, and none of them on the destination."""
        sources, targets = live.given["prefill"].items(), live.given["decode"].items()
        for item in sources:
            self.subject.fill("prefill", item, self._bytes(item))
        for item in targets:
            self.subject.fill("decode", item, bytes([UNTOUCHED]) * self._length(item))
        live.expected = []
        for kind, component in dict.fromkeys((item.kind, item.component) for item in targets):
            source = [item for item in sources if (item.kind, item.component) == (kind, component)]
            target = [item for item in targets if (item.kind, item.component) == (kind, component)]
            pairs = zip(source, target, strict=False)  # by position; what one side has too much has no partner
            live.expected += [(there, self.subject.read("prefill", here)) for here, there in pairs]

    def _bytes(self, item: Item) -> bytes:
        self._serial += 1
        length = self._length(item)
        word = hashlib.blake2b(f"{self._serial}/{item}".encode()).digest()
        return (word * (length // len(word) + 1))[:length]

    def _length(self, item: Item) -> int:
        if item.kind == "state":
            return self.shape.state[item.component].item_bytes
        return self.shape.page_bytes if item.kind == "kv" else self.shape.aux_bytes

    # -- calls ---------------------------------------------------------------------------------------------------

    def open(self, live: Live, side: Side) -> None:
        """The side's caller opens the room."""
        mine, plan = live.given[side], live.plan
        request = Request(live.number, live.attempt, mine.pages, mine.aux)
        words = f"open({live}, {len(mine.pages)} pages"
        if side == "decode":
            form = fitted(plan.decode_form, mine.state)
            request = request._replace(state_indices=build(form, mine.state, self.names))
            words += f", state_indices={spelled(form, mine.state, self.names)}"
        self.note(side, "call", words + ")")
        try:
            with _asked(f"open on {side}", live):
                live.handles[side] = self.subject.open(side, request)
            live.state[side] = "open"
        except Refused as refusal:
            self._refused(live, side, refusal)

    def send(self, live: Live, chunk: int) -> None:
        """Prefill's caller sends a chunk; state goes with the last."""
        mine, plan = live.given["prefill"], live.plan
        start = sum(plan.chunks[:chunk])
        pages = mine.pages[start : start + plan.chunks[chunk]]
        last = chunk == len(plan.chunks) - 1
        form = fitted(plan.prefill_form, mine.state)
        if not last:
            form = form._replace(outer="absent")
        value = build(form, mine.state, self.names)
        words = f"send({len(pages)} pages, state_indices={spelled(form, mine.state, self.names)}"
        self.note("prefill", "call", words + (", last)" if last else ")"))
        try:
            with _asked("send", live):
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
        """The first item of decode's memory that does not hold what prefill had at its position, in words."""
        for item, expected in live.expected:
            found = self.subject.read("decode", item)
            if found != expected:
                place = item.kind if item.kind != "state" else f"state {self.names[item.component]!r}"
                untouched = found == bytes([UNTOUCHED]) * len(found)
                return f"{place} item {item.index} {'was not written' if untouched else 'holds other bytes'}"
        return None

    def free(self, live: Live, side: Side) -> bool:
        """Whether the side says that the room's memory may be used for something else."""
        return side not in live.handles or self.subject.memory_free(live.handles[side])

    def spend(self, live: Live, side: Side) -> None:
        """Use the room's memory on this side for something else."""
        self.note(side, "call", f"the memory of {live} is used for something else")
        for item in live.given[side].items():
            self.subject.fill(side, item, bytes([SPENT]) * self._length(item))

    def unspent(self, live: Live, side: Side) -> str | None:
        """The first item that does not hold what `spend` wrote, in words."""
        for item in live.given[side].items():
            if self.subject.read(side, item) != bytes([SPENT]) * self._length(item):
                return f"{item.kind} item {item.index} was written to"
        return None

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
