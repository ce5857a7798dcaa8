"""Two or three engines in the simulated world, through the public methods: callers of every kind, faults of every kind.

The bench looks at every byte while the world runs. In the evening faults stop, callers finish what they have begun, and
everything must end: without a timer, unless a fault has happened that nobody could notice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from hypothesis.strategies import SearchStrategy

from ...protocol.status import Status
from ..faults import Faults
from ..simulate.memory import Shape, Side
from ..strategies import Schedule, faults, schedules, shapes
from ..world import Stuck
from .base import Machine
from .callers import WHO, Deal, Who, Wish, wishes
from .stage import SHORT, Stage, running, settle, waiting_turns

ROOMS_MAX = 6
LATE_S = 400.0
RECONNECT_S = 3.0
some_side = st.sampled_from(WHO)
some_number = st.integers(0, 7)
some_steps = st.sampled_from([8, 0, 1, 3, 20, 50])
DAYS = ("calm", "announced", "any")
"""What may go wrong in a run: nothing but callers, what tells of itself, anything."""


def act(*days: str, **arguments: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule after which so many things happen in the world. days: when it may be taken; default: always."""

    def made(function: Callable[..., None]) -> Any:
        @wraps(function)
        def acted(self: Engines, then: int, **drawn: Any) -> None:
            function(self, **drawn)
            self.go_on(then)

        chosen = rule(**{"then": some_steps, **arguments})(acted)  # type: ignore[call-overload]
        return precondition(lambda self: not days or self.day in days)(chosen)

    return made


class Engines(Machine):
    """See the module."""

    NAME: ClassVar[str] = "engines"
    PROPERTIES: ClassVar[tuple[str, ...]] = (
        "L1", "L2", "L3", "L4", "L5", "S1", "S2", "S3", "S4", "S5", "C1", "C2", "A1",
    )  # fmt: skip

    ALWAYS: ClassVar[tuple[str, ...]] = ("L1", "C1")

    @initialize(
        shape=shapes(),
        decodes=st.integers(1, 2),
        first=st.lists(st.tuples(wishes(), st.sampled_from(["whole", "pieces", "later"])), min_size=1, max_size=4),
        held=st.sampled_from([False, False, True]),
        day=st.sampled_from(DAYS),
        vanish=st.sampled_from([False, False, True]),
        schedule=schedules(),
    )
    def begin(
        self,
        shape: Shape,
        decodes: int,
        first: list[tuple[Wish, str]],
        held: bool,
        day: str,
        vanish: bool,
        schedule: Schedule,
    ) -> None:
        """The engines start, the first rooms are opened, and some of them sent.

        vanish: in the evening callers do nothing any more; otherwise they finish what they have begun.
        """
        self.stage = Stage(self, shape, decodes=decodes, settings=SHORT, pages=24, slots=12)
        self.world = self.stage.world
        self.world.random = schedule
        self.deals: list[Deal] = []
        self.day, self.vanish = day, vanish
        self.silent = False
        """Whether something has happened that nobody could notice at once: after it, timers are needed."""
        self.apart = False
        """Whether connections have ended: they are made again after a pause."""
        self.began = True
        self.note("world", "call", f"{', '.join(shape.components) or 'dense'}; {decodes} decode engines; {schedule!r}"
                  f"{'; writes stand still' if held else ''}")  # fmt: skip
        for number, (wish, sent) in enumerate(first):
            self._open(wish, number, number % decodes, "both")
            if sent == "whole":
                self.deals[-1].send_the_rest()
            elif sent == "pieces":
                self.deals[-1].send_piecewise()
        self.world.writes_held = held

    # -- callers ---------------------------------------------------------------------------------------------------

    @act(wish=wishes(), number=some_number, decode=st.integers(0, 1), first=st.sampled_from(["both", *WHO]))
    def open(self, wish: Wish, number: int, decode: int, first: str) -> None:
        """A caller, or both, open a room: a number used before as another attempt, or again if all was well."""
        decode %= len(self.stage.decodes)
        live = [deal.number for deal in self.deals if not deal.over]
        if len(live) < ROOMS_MAX and number not in live and self.stage.fits_another(decode):
            self._open(wish, number, decode, first)

    def _open(self, wish: Wish, number: int, decode: int, first: str) -> None:
        before = [deal for deal in self.deals if deal.number == number]
        attempt = before[-1].attempt + (not before[-1].well) if before else 0
        if before:
            self.premise("S4")
        calm = self.world.faults == Faults() and not self.apart and not self.stage.refuses_posts
        deal = Deal(self.stage, wish, number, attempt, decode, clean=calm)
        self.deals.append(deal)
        for side in WHO:
            if first in (side, "both"):
                deal.open(side)

    @act(at=some_number, side=some_side)
    def join(self, at: int, side: Who) -> None:
        """The other caller opens."""
        for deal in self._pick(at, lambda deal: deal.room(side) is None):
            deal.open(side)

    @act(at=some_number, data=st.data())
    def send(self, at: int, data: st.DataObject) -> None:
        """The next chunk of a room."""
        for deal in self._pick(at, lambda deal: deal.sends):
            deal.send(data)

    @act(at=some_number)
    def send_the_rest(self, at: int) -> None:
        """Everything that is left of a room."""
        for deal in self._pick(at, lambda deal: deal.sends):
            deal.send_the_rest()

    @act()
    def nothing(self) -> None:
        """Nobody does anything."""

    @act(at=some_number, side=some_side)
    def abort(self, at: int, side: Who) -> None:
        """A caller aborts."""
        for deal in self._pick(at, lambda deal: deal.room(side) is not None):
            deal.abort(side)

    @act(at=some_number, side=some_side)
    def close(self, at: int, side: Who) -> None:
        """A caller is finished with a room, whether it has ended or not."""
        for deal in self._pick(at, lambda deal: deal.room(side) is not None and side not in deal.closed):
            deal.close(side)

    @act(at=some_number, side=some_side)
    def ask_for_the_failure(self, at: int, side: Who) -> None:
        """A caller lets the failure be raised: once, with the first cause, and the room is clean by then."""

        def fits(deal: Deal) -> bool:
            room = deal.room(side)
            failed = room is not None and room.poll() is Status.FAILED
            return failed and side not in deal.closed and not deal.stalled(side)

        for deal in self._pick(at, fits):
            self._let_raise(deal, side)

    @act(at=some_number, how=st.integers(0, 3))
    def misuse(self, at: int, how: int) -> None:
        """A caller asks for what cannot be: it is told so, and nothing changes."""
        for deal in self._pick(at, lambda _: True):
            before = self.stage.tables()
            broken = deal.misuse(how)
            if broken is not None:
                self.fail(*broken)
            self.check("C1", self.stage.tables() == before, f"a call that was refused changed {before}")

    def _pick(self, at: int, fits: Callable[[Deal], bool]) -> list[Deal]:
        """One of the rooms that fit, if any."""
        found = [deal for deal in self.deals if fits(deal)]
        return [found[at % len(found)]] if found else []

    def _let_raise(self, deal: Deal, side: Who) -> None:
        deal.check_final()
        room, engine = deal.room(side), deal.sides[side].engine
        assert room is not None
        self.note(f"{side} caller", "call", f"{deal}: failure_exception()", deal.sides[side].name)
        held, first = engine.tables()["keys"], room.failure
        with running(self), waiting_turns(self.world):
            raised = deal.raised(side)
        self.check("C2", raised is not None and raised.failure == first, f"{deal} failed: {first}; raised: {raised}")
        left = engine.tables()["keys"]
        self.check(
            "C2", left < held, f"the failure of {deal} was raised, and its engine still holds {left} of {held} rooms"
        )
        self.check("C2", not deal.raised_again(side), f"the failure of {deal} was raised a second time")

    # -- the world -------------------------------------------------------------------------------------------------

    def go_on(self, count: int) -> None:
        """Things happen, no time passes."""
        if count:
            self.note("world", "call", f"up to {count} things happen")
        with running(self):
            self.stage.steps(count)

    @act("any", seconds=st.sampled_from([0.3, 2.0, 9.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        """Time passes: deadlines may."""
        self.time_passes_by(seconds)

    def time_passes_by(self, seconds: float) -> None:
        """Run, timers too."""
        self.note("world", "timer", f"{seconds} s pass")
        end = self.world.now + seconds
        self._disturb(silent=True)
        with running(self):
            while self.world.now < end and self.world.step(timers=True):
                pass

    @act("any", seconds=st.sampled_from([45.0, 90.0]))
    def a_long_time_passes(self, seconds: float) -> None:
        """Nobody does anything."""
        self._wait_long(seconds)

    def _wait_long(self, seconds: float) -> None:
        """No deadline of `SHORT` but the cap is longer than 20 s, and while nobody does anything all must pass."""
        rooms = [room for deal in self.deals for side in WHO if (room := deal.room(side)) and not deal.stalled(side)]
        faults = self.world.faults
        self.time_passes_by(seconds)
        for room in rooms:
            if seconds > SHORT.cap_timeout_s:
                self.check("L1", room.poll().terminal, f"{room!r} is older than its cap")
            elif not (faults.write_slow or faults.late or faults.delay):
                self.check("L3", room.poll().terminal, f"{room!r}: nothing has moved for {seconds} s")

    @act("announced", weather=faults(silent=False))
    def announced_weather(self, weather: Faults) -> None:
        """What may happen to frames and writes from here on, and is noticed at once."""
        self._weather(weather, silent=False)

    @act("any", weather=faults())
    def weather(self, weather: Faults) -> None:
        """What may happen to frames and writes from here on."""
        self._weather(weather, silent=True)

    def _weather(self, weather: Faults, *, silent: bool) -> None:
        self.world.faults = weather
        if weather.corrupt or weather.truncate:
            self.premise("S5")
        self.note("world", "fault", str(weather))
        self._disturb(silent=silent)

    @act(held=st.booleans())
    def hold(self, held: bool) -> None:
        """Posted writes stand still, or land again."""
        self.world.writes_held = held
        self.note("world", "fault", f"writes {'stand still' if held else 'land'}")

    @act("announced", "any", at=some_number, stalled=st.booleans())
    def stall(self, at: int, stalled: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        name = self._engine_at(at).name
        self.note("world", "fault", f"{name} {'stops' if stalled else 'goes on'}")
        self.stage.stop_or_go(name, stalled=stalled)

    @act("announced", "any", at=some_number)
    def cut(self, at: int) -> None:
        """Its connections end, and both ends are told; that proves nothing."""
        side = self._engine_at(at)
        self.note("world", "fault", f"the connections of {side.name} time out")
        self.stage.time_out(side)
        self.apart = True
        self._disturb(silent=False)

    @act("any", at=some_number)
    def kill(self, at: int) -> None:
        """kill -9, and another process comes in its place."""
        side = self._engine_at(at)
        self.note("world", "fault", f"{side.name} is killed, another comes in its place")
        for deal in self.deals:
            deal.died(side)
        with running(self):
            self.stage.kill_and_replace(side)
        self.premise("S4")
        self._disturb(silent=True)

    @act("announced", "any", error=st.sampled_from(["no more descriptors", ""]))
    def posts_fail(self, error: str) -> None:
        """Writes cannot be posted, or can again."""
        self.note("world", "fault", error or "writes can be posted again")
        self.stage.refuse_posts(error)
        self._disturb(silent=False)

    def _engine_at(self, at: int) -> Side:
        sides = self.stage.sides
        return sides[at % len(sides)]

    def _disturb(self, *, silent: bool) -> None:
        """Something happens to every open room."""
        self.silent = self.silent or silent
        for deal in self.deals:
            deal.clean = False

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def endings_are_final(self) -> None:
        """S2."""
        for deal in self.deals if self.began else ():
            deal.check_final()

    @invariant()
    def every_room_has_a_deadline(self) -> None:
        """L1."""
        for deal in self.deals if self.began else ():
            deal.check_deadlines()

    def teardown(self) -> None:
        """The evening: nothing goes wrong any more, and everything ends."""
        if self.began and not self.broken and sys.exc_info()[0] is None:
            with running(self):
                self._evening()
        super().teardown()

    def _evening(self) -> None:
        self.note(
            "world", "call", f"faults stop, callers {'have vanished' if self.vanish else 'finish what they began'}"
        )
        self.stage.recover()
        if self.vanish:
            self._wait_long(45.0)
        for deal in [] if self.vanish else self.deals:
            deal.finish()
        self._quiet()
        for deal in self.deals:
            deal.leave()
        rooms = [room for deal in self.deals for room in deal.rooms()]
        alike = "L3" if self.silent or self.apart else "L2"
        self.premise(alike)
        self._until(lambda: [room for room in rooms if not room.poll().terminal], alike, "has not ended")
        self.endings_are_final()
        for deal in self.deals:
            deal.check_outcome(failures=sum(room.poll() is Status.FAILED for room in rooms))
            for side in WHO:
                if deal.room(side) is not None and side not in deal.closed:
                    deal.close(side)
        self._quiet()
        self.stage.fence_the_dead()
        self._until(
            lambda: [room for room in rooms if not room.memory_free], "L5", "has ended, and its memory is not free"
        )
        self._until(lambda: [] if self.stage.at_rest() else [self.world.state()], "C1", "- every room is closed")
        self._quiet()
        self.stage.check_clean()
        self._another()

    def _quiet(self) -> None:
        """Let everything happen that can; with a pause, if connections have to be made again."""
        end = self.world.now + RECONNECT_S * (self.silent or self.apart)
        settle(self, self.world)
        while self.world.now < end and self.world.step(timers=True):
            pass

    def _until(self, left: Callable[[], list[object]], property_id: str, words: str) -> None:
        """Let things happen until nothing is left. No time passes, unless it has to."""
        patience = LATE_S if self.silent else RECONNECT_S if self.apart else 0.0
        end = self.world.now + patience
        try:
            self.world.run(lambda: not left() or self.world.now > end, timers=patience > 0)
        except Stuck as stuck:
            self.fail(property_id, f"{', '.join(map(str, left()))} {words}; nothing can happen any more: {stuck}")
        self.check(property_id, not left(), f"{', '.join(map(str, left()))} {words} after {patience} s")

    def _another(self) -> None:
        """A room that agrees is served as if nothing had happened."""
        if "C2" in self.shown:  # a room has failed before
            self.premise("L4")
        deal = Deal(self.stage, Wish(), 8, 0, 0, clean=True)
        deal.finish()
        self._until(lambda: [room for room in deal.rooms() if not room.poll().terminal], "L4", "is not served")
        for room in deal.rooms():
            self.check("L4", room.poll() is Status.DONE, f"the next room is not served: {room!r}, {room.failure}")
