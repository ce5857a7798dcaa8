"""The evening of a simulated run: nothing goes wrong; everything must end and come back to what it was.

1. What stood still goes on, callers do what they still intend, and no timer runs. Then each room that no silent fault
   has touched has ended and its memory is free (L2, L3, L5). A lost connection is given time to be made again.
2. Timers run. Each room ends within its deadlines (L1), and each lease for which an answer or a proof exists (L5).
3. Rooms are closed; what dead processes may still hold is fenced. Every pair of engines serves another room (L4), every
   byte that no room has is untouched (S3), and every table is as before the first room (C1).
"""

from __future__ import annotations

from ...protocol.status import Status
from . import told
from .callers import who
from .day import Day
from .lives import Caller, Life, Trouble
from .memory import Side
from .swarm import PHASES_S, WARN_S

RECONNECT_S = 3.0
SLACK_S = 25.0
"""What handshakes, heartbeats and repeated ABORTs may add to a deadline."""
ROUNDS_MAX = 400


class Evening:
    """What comes after a day."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.judge = day.judge
        self.world = day.world

    def live(self) -> None:
        """All of it, as long as nothing is broken."""
        self.world.heal()
        self.day.stalled.clear()
        for stranger in self.day.strangers:
            stranger.leave()
        for stage in (self.by_itself, self.by_deadline, self.give_back, self.as_new):
            if self.judge.found:
                return
            stage()

    # -- without a timer -------------------------------------------------------------------------------------------

    def by_itself(self) -> None:
        """Callers do the rest, and what can end without a timer does."""
        self._callers_go_on()
        self.world.settle()
        self._must_have_ended(Trouble.ANNOUNCED)
        self.world.wait(RECONNECT_S)
        self.world.settle()
        self._must_have_ended(Trouble.RECONNECTING)

    def _callers_go_on(self) -> None:
        draw = self.day.draw
        self.day.callers.scarce = False
        for _ in range(ROUNDS_MAX):
            ready = [
                (life, caller)
                for life in self.judge.lives
                for caller in life.callers
                if self.day.callers.may(caller) and caller.intends[0] != "close"
            ]
            if not ready:
                return
            self.day.callers.act(*draw.choice(ready))
            self.judge.steps(draw.randrange(6))

    def _must_have_ended(self, worst: Trouble) -> None:
        for life in self.judge.lives:
            for caller in life.callers:
                if life.trouble <= worst and caller.open and not self._waits(life, caller):
                    self.judge.hangs(life, f"{self._words(life, caller)}, and without a timer nothing will end it")
                elif life.lease_trouble <= worst and self._should_be_free(caller) and not self._orphan(life, caller):
                    self.judge.accuse("L5", f"memory of {self._words(life, caller)} is not free without a timer", life)

    @staticmethod
    def _waits(life: Life, caller: Caller) -> bool:
        """Whether a room waits for somebody who will not come: a caller, or a decode engine that has given up."""
        other = life.other(caller)
        never_asked = caller is life.sender and other.end is not None and caller.room.poll() is Status.BOOTSTRAPPING
        return other.absent or not life.complete or never_asked

    @staticmethod
    def _should_be_free(caller: Caller) -> bool:
        return caller.end is not None and not caller.free

    @staticmethod
    def _orphan(life: Life, caller: Caller) -> bool:
        """Whether memory is held for a writer that cannot answer, and whose death there is no proof of."""
        return caller is life.receiver and (life.in_doubt or life.unheard or (life.sender.gone and life.cut_off))

    @staticmethod
    def _words(life: Life, caller: Caller) -> str:
        return f"{who(life, caller)} of {life} is {caller.room.poll().name} in {caller.room.phase}"

    # -- with timers -----------------------------------------------------------------------------------------------

    def by_deadline(self) -> None:
        """Everything ends within its deadlines; then every lease for which there is an answer or a proof."""
        judge = self.judge
        waiting = [(life, caller) for life in judge.lives for caller in life.callers if caller.open]
        self.world.wait(PHASES_S + SLACK_S, lambda: not any(caller.open for _, caller in waiting))
        for life, caller in waiting:
            judge.examples["L1"] += 1
            if caller.open:
                judge.accuse("L1", f"{self._words(life, caller)}, and no deadline has ended it", life)
        held = [life for life in judge.lives for caller in life.callers if self._answerable(life, caller)]
        judge.timers["lease: ABORT is repeated until it is acknowledged"] += len(held)
        self.world.wait(PHASES_S, lambda: not any(self._answerable(life, c) for life in held for c in life.callers))
        for life in held:
            for caller in life.callers:
                if self._answerable(life, caller):
                    words = f"memory of {self._words(life, caller)} is not free, although there is somebody to answer"
                    judge.accuse("L5", words, life)

    def _answerable(self, life: Life, caller: Caller) -> bool:
        """Whether memory is held for which a living writer must answer."""
        gone = life.sender.gone or (life.unheard and life.sender.side.name in self.day.dead)
        return self._should_be_free(caller) and not (caller is life.receiver and (life.in_doubt or gone))

    # -- afterwards ------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Rooms are closed; processes in doubt end; the orchestrator says who was fenced."""
        day, judge = self.day, self.judge
        if any(self._should_be_free(caller) for life in judge.lives for caller in life.callers):
            self.world.wait(WARN_S + 1.0)
        told.health(judge)
        for life in list(judge.lives):
            for caller in life.callers:
                if caller.room is not None and not caller.gone:
                    day.callers.absorbs(life, caller)
                    day.callers.close(life, caller)
                caller.intends.clear()
        self.world.settle()
        if any(life.in_doubt for life in judge.lives):
            for side in list(judge.prefills):
                day.end(side, kill=True)
            self.world.wait(RECONNECT_S)
            self.world.settle()
        for decode in judge.decodes:
            for name in sorted(day.dead):
                judge.fenced.add(name)
                decode.engine.peer_fenced(name)
        self.world.settle()
        for held in judge.held:
            judge.accuse(
                "L5", f"memory of {held.room!r} is not free although its writer is gone or fenced", held.note[0]
            )
        for life in list(judge.lives):
            judge.lives.remove(life)
            day._past(life)  # noqa: SLF001 - the day's own evening

    def as_new(self) -> None:
        """The next room of each pair is served as the first was, and then no table holds anything of any room."""
        judge = self.judge
        self.world.wait(RECONNECT_S)
        self.world.settle()
        for d, decode in enumerate(judge.decodes):
            for p, prefill in enumerate(judge.prefills):
                judge.examples["L4"] += 1
                self._serve(d, p, decode, prefill)
        if judge.found:
            return
        self.world.wait(2.5)  # a few heartbeats
        for side in (*judge.decodes, *judge.prefills):
            judge.examples["C1"] += 1
            left = judge.left_over(side)
            if left:
                judge.accuse("C1", left)
            elif not side.engine.health().ok:
                judge.accuse("C1", f"no room is left, and health of {side.name} says {side.engine.health()}")
        judge.check_bytes()

    def _serve(self, d: int, p: int, decode: Side, prefill: Side) -> None:
        judge, day = self.judge, self.day
        day.serials += 1
        plan = judge.plan(1, decode=d, prefill=p)
        room = 2**62 + day.serials
        receiver = judge.receive(plan, room, decode=d, prefill=p)
        sender = judge.offer(plan, room, prefill=p)
        sender.send(plan.source["kv"], plan.state(plan.source), last=True)
        self.world.settle()
        ends = (receiver.poll(), sender.poll())
        if ends != (Status.DONE, Status.DONE):
            why = f"{ends[0].name} and {ends[1].name} ({receiver.failure or sender.failure or 'no failure'})"
            judge.accuse("L4", f"the next room of {decode.name} and {prefill.name} is not served: {why}")
        receiver.close()
        sender.close()
        self.world.settle()
