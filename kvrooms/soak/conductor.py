"""The conductor of a soak: hands out rooms, stops and kills processes, and keeps the books."""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait

from ..engine.ending import Ending
from .messages import Abandon, Complaint, End, Ended, Figures, Look, Order, Ready, Rooms, Told
from .plan import PLAIN_FROM, Config, Fault, Plan, Side, kill_numbers, plan_of
from .procs import ProcessError
from .seats import Seat, Seats, State
from .tally import Carried, Incident, Tally

_START_LIMIT_S = 60.0
_LAST_LIMIT_S = 60.0
_TICK_S = 0.2
_ABANDON_S = 2.5
_RECOVER_S = 1.0
_DEFERRED_MOST = 2
_KILL_WITHIN_S = 0.08
_SHORT_STALL_S = (0.05, 1.0)


class Conductor:
    """One run. rooms: how many. seconds: after which no new ones begin. heartbeat_s: what silence engines bear."""

    def __init__(
        self,
        seats: Seats,
        config: Config,
        *,
        rooms: int,
        seconds: float | None,
        in_flight: int,
        kill_every: int,
        heartbeat_s: float,
        ending: Ending,
    ) -> None:
        self.tally = Tally()
        self.rooms = rooms
        self._ending = ending
        self.told: list[str] = []
        """Signals that told other processes to end, in words."""
        self._seats = seats
        self._config = config
        self._seconds = seconds
        self._in_flight = in_flight
        self._heartbeat_s = heartbeat_s
        self._kills = kill_numbers(config, rooms, kill_every) if config.fault_rate else {}
        self._open: dict[int, Carried] = {}
        self._next = 0
        self._deferred: deque[Plan] = deque()
        self._kill_every = kill_every
        self._kill_due = 0
        self._killing: deque[Side] = deque()
        self._incident: Seat | None = None
        self._recovering: set[int] = set()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._draw = random.Random(f"kvrooms soak {config.seed} conductor")
        self._figures: dict[str, Figures] = {}
        self._baseline: dict[str, Figures] = {}
        self.rss_mark: dict[str, int] = {}
        self.rss_end: dict[str, int] = {}
        self._mark_at = 1000 if rooms >= 2000 else max(1, rooms // 3)

    # -- the whole ---------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Tally]:
        """Run; yields every now and then, for progress. Raises ProcessError when it cannot go on."""
        for seat in self._seats.all:
            self._seats.start(seat)
        yield from self._until(lambda: all(seat.state is State.UP for seat in self._seats.all), _START_LIMIT_S)
        yield from self._all_pairs()
        yield from self._look({})
        self._baseline = dict(self._figures)
        began = time.monotonic()
        while not (self._all_issued(began) and not self._open and self._incident is None):
            if not self.interrupted:
                self._issue(began)
            self._turn(_TICK_S)
            if not self.rss_mark and self.tally.rooms >= self._mark_at:
                self.rss_mark = self._rss()
            yield self.tally
        yield from self._all_pairs()
        self.rss_end = self._rss()
        yield from self._look({name: figures.tables for name, figures in self._baseline.items()})
        self._compare()
        self._end()

    @property
    def interrupted(self) -> bool:
        """Whether a signal has told the conductor or one of the processes to end: no more rooms begin then."""
        return self._ending.asked is not None or bool(self.told)

    def _all_issued(self, began: float) -> bool:
        if self.interrupted or (self._seconds is not None and time.monotonic() > began + self._seconds):
            self._deferred.clear()
            self._killing.clear()
            return True
        return self._next >= self.rooms and not self._deferred

    def _until(self, true: Callable[[], bool], limit_s: float) -> Iterator[Tally]:
        end = time.monotonic() + limit_s
        while not true():
            if time.monotonic() > end:
                states = ", ".join(f"{seat.name} is {seat.state.value}" for seat in self._seats.all)
                raise ProcessError(f"no end after {limit_s:g} s: {states}; {len(self._open)} rooms are open")
            self._turn(_TICK_S)
            yield self.tally

    def _plain_rooms(self, pairs: Iterable[tuple[Seat, Seat]]) -> set[int]:
        """A room of each pair to which nothing is done: it connects the two, and must be DONE. Not counted."""
        numbers = set()
        for prefill, decode in pairs:
            number = PLAIN_FROM + next(self._numbers)
            numbers.add(number)
            self._begin(plan_of(self._config, number), prefill, decode)
        return numbers

    def _all_pairs(self) -> Iterator[Tally]:
        pairs = list(itertools.product(self._seats.prefills, self._seats.decodes))
        for _ in range(2):
            self._plain_rooms(pairs)
            yield from self._until(lambda: not self._open, _LAST_LIMIT_S)

    def _look(self, wanted: dict[str, dict[str, int]]) -> Iterator[Tally]:
        """Ask every process what it holds, once its tables are as wanted or have had the time to be."""
        self._figures = {}
        for seat in self._seats.all:
            seat.running.tell(Look(wanted.get(seat.name, {})))
        yield from self._until(lambda: len(self._figures) == len(self._seats.all), _LAST_LIMIT_S)

    def _end(self) -> None:
        """Close the engines: a process that does not end by itself is a fault too."""
        for seat in self._seats.all:
            seat.state = State.ENDED
            seat.running.tell(End())
        for seat in self._seats.all:
            if not seat.running.ended(_LAST_LIMIT_S):
                self.tally.wrong(f"{seat.name} does not end")
            self._drain_pipe(seat)

    def _compare(self) -> None:
        """What has not come back at the end."""
        for seat in self._seats.all:
            first, last = self._baseline[seat.name], self._figures[seat.name]
            self.tally.canaries += last.canaries
            pairs = {name: (first.tables.get(name, 0), count) for name, count in last.tables.items()}
            pairs["rooms whose memory is not free"] = (0, last.held)
            if not seat.killed:
                pairs["threads"] = (first.threads, max(first.threads, last.threads))
                for kind, count in last.descriptors.items():
                    before = first.descriptors.get(kind, 0)
                    pairs[f"open files, {kind}"] = (before, max(before, count))
            for name, (before, after) in pairs.items():
                if before != after:
                    self.tally.leaks += 1
                    self.tally.wrong(f"{seat.name}: {name}: {before} at first, {after} at the end")
            if last.canaries:
                self.tally.wrong(f"{seat.name}: {last.canaries} canaries were hit")

    def figures(self) -> dict[str, Figures]:
        """What each process said last."""
        return self._figures

    def memory(self) -> tuple[int, int]:
        """Resident bytes of the largest engine process that was never killed: at the mark, and at the end."""
        kept = [seat.name for seat in self._seats.all if not seat.killed and self.rss_end.get(seat.name)]
        if not kept:
            return 0, 0
        largest = max(kept, key=lambda name: self.rss_end[name])
        return self.rss_mark.get(largest, 0), self.rss_end[largest]

    def _rss(self) -> dict[str, int]:
        return {seat.name: seat.running.rss() for seat in self._seats.all}

    # -- rooms -------------------------------------------------------------------------------------------------------

    def _issue(self, began: float) -> None:
        """Hand out rooms, up to the limit."""
        while len(self._open) < self._in_flight:
            if self._killing and self._incident is None:
                self._kill_next()
            plan = self._next_plan(began)
            if plan is None:
                return
            prefill = self._up(self._seats.prefills, plan.prefill)
            decode = self._up(self._seats.decodes, plan.decode)
            if prefill is None or decode is None:
                self._deferred.appendleft(plan)
                return
            self._begin(plan, prefill, decode)

    def _next_plan(self, began: float) -> Plan | None:
        """The next room whose turn it is; rooms that stop a process wait until no other such thing goes on."""
        if self._deferred and (self._incident is None or not _stops(self._deferred[0])):
            return self._deferred.popleft()
        while self._next < self.rooms and len(self._deferred) < _DEFERRED_MOST and not self._all_issued(began):
            if self._killing and self._next > self._kill_due + self._kill_every // 8:
                return None  # rooms are to be under way when a process dies, so they do not run ahead
            if self._next in self._kills:
                self._kill_due = self._next
                self._killing.append(self._kills.pop(self._next))
                if self._incident is None:
                    self._kill_next()
            number, self._next = self._next, self._next + 1
            plan = plan_of(self._config, number)
            if not _stops(plan) or (self._incident is None and not self._deferred):
                return plan
            self._deferred.append(plan)
        return None

    @staticmethod
    def _up(seats: list[Seat], wanted: int) -> Seat | None:
        """The seat that a plan wants, or another one that is up."""
        ordered = [*seats[wanted:], *seats[:wanted]]
        return next((seat for seat in ordered if seat.state is State.UP), None)

    def _begin(self, plan: Plan, prefill: Seat, decode: Seat) -> None:
        room = Carried(plan, prefill.name, decode.name, time.monotonic())
        self._open[plan.number] = room
        order = Rooms([Order(plan.number, prefill.name, prefill.address)])
        for seat in (prefill, decode):
            seat.running.tell(order)
        injury = plan.injury
        if injury is not None and _stops(plan):
            seat = prefill if injury.side == "prefill" else decode
            self._incident = seat
            self._after(injury.delay_s, lambda: self._stop(seat, long=injury.fault is Fault.FREEZE))

    def _kill_next(self) -> None:
        """Choose whom to kill in a moment. All processes are well: nothing else goes on."""
        side = self._killing.popleft()
        seats = self._seats.prefills if side == "prefill" else self._seats.decodes
        # The first of each side is never killed: its memory is measured from the beginning to the end.
        victim = seats[self._draw.randrange(1, len(seats))] if len(seats) > 1 else seats[0]
        self._incident = victim
        self._after(self._draw.uniform(0, _KILL_WITHIN_S), lambda: self._kill(victim))

    # -- what is done to processes -----------------------------------------------------------------------------------

    def _kill(self, seat: Seat) -> None:
        began, died = self._seats.kill(seat)
        incident = Incident("kill", seat.name, began, died=died)
        self.tally.kills += 1
        self.tally.incidents.append(incident)
        self._drain_pipe(seat)
        affected = [number for number, room in self._open.items() if seat.name in room.processes]
        for number in affected:
            self._side_lost(number, seat.role)
        self._after(_ABANDON_S, lambda: self._abandon(affected, seat.role))
        seat.running.pipe.close()
        self._seats.start(seat)

    def _drain_pipe(self, seat: Seat) -> None:
        """What a dead process said before its death still counts."""
        while seat.running.pipe.poll():
            message = seat.running.heard()
            if message is None:
                return
            self._take(seat, message)

    def _abandon(self, numbers: list[int], dead: Side) -> None:
        """Do what a router does with rooms whose other side is dead. Those that knew it have failed long ago."""
        for seat in self._seats.all:
            if seat.role != dead and seat.state is not State.ENDED:
                seat.running.tell(Abandon([number for number in numbers if number in self._open]))

    def _side_lost(self, number: int, side: Side) -> None:
        room = self._open[number]
        if side in room.waiting:
            room.lost.add(side)
            self._side_over(number, side)

    def _stop(self, seat: Seat, *, long: bool) -> None:
        """Stop a process for a while: longer than the others wait for its heartbeat, or shorter."""
        began = self._seats.stop(seat)
        self.tally.stalls += 1
        if long:
            seat.state = State.STOPPED
            incident = Incident("stall", seat.name, began)
            self.tally.incidents.append(incident)
            seconds = self._heartbeat_s + self._draw.uniform(0.5, 2.0)
            self._after(seconds, lambda: self._go_on(seat, incident))
        else:
            self._after(self._draw.uniform(*_SHORT_STALL_S), lambda: self._go_on(seat, None))

    def _go_on(self, seat: Seat, incident: Incident | None) -> None:
        seat.running.signal(signal.SIGCONT)
        if incident is None:
            self._incident = None
            return
        incident.over = time.monotonic()
        seat.state = State.RECOVERING
        self._after(_RECOVER_S, lambda: self._serve_again(seat))

    def _serve_again(self, seat: Seat) -> None:
        """A process is back: first one room with each process of the other side, and then its share of the others."""
        mine = ([seat], self._seats.decodes) if seat.role == "prefill" else (self._seats.prefills, [seat])
        self._recovering = self._plain_rooms(itertools.product(*mine))

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._numbers), call))

    def _turn(self, most_s: float) -> None:
        """Do what is due, and hear what there is to hear."""
        now = time.monotonic()
        while self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2]()
        due = self._agenda[0][0] - time.monotonic() if self._agenda else most_s
        pipes = {seat.running.pipe: seat for seat in self._seats.all if not seat.running.pipe.closed}
        patience_s = max(0.0, min(due, most_s))
        asleep = time.monotonic()
        ready = wait(list(pipes), patience_s)
        self.tally.late_s = max(self.tally.late_s, time.monotonic() - asleep - patience_s)
        for pipe in ready:
            seat = pipes[pipe]  # type: ignore[index]
            message = seat.running.heard()
            if message is not None:
                self._take(seat, message)
            elif seat.state is State.ENDED:
                seat.running.pipe.close()
            else:
                raise ProcessError(f"{seat.name} has ended, and nobody killed it")

    def _take(self, seat: Seat, message: object) -> None:
        match message:
            case Ready(address):
                seat.address, seat.state = address, State.UP
                if self._incident is seat:
                    seat.state = State.RECOVERING
                    self.tally.incidents[-1].over = time.monotonic()
                    self._serve_again(seat)
            case Ended(number):
                room = self._open.get(number)
                if room is not None and message.role in room.waiting:
                    room.ends.append(message)
                    self._side_over(number, seat.role)
            case Figures():
                self._figures[seat.name] = message
            case Told(sign):
                self.told.append(f"{seat.name} was told to end by {sign}: no more rooms begin")
            case Complaint(text):
                self.tally.wrong(text)

    def _side_over(self, number: int, side: Side) -> None:
        room = self._open[number]
        room.waiting.discard(side)
        if room.waiting:
            return
        del self._open[number]
        if number < PLAIN_FROM:
            self.tally.take(room)
            return
        self.tally.take_plain(room)
        self._recovering.discard(number)
        if self._incident is not None and self._incident.state is State.RECOVERING and not self._recovering:
            self._incident.state = State.UP
            self._incident = None
            self.tally.incidents[-1].served = True


def _stops(plan: Plan) -> bool:
    """Whether a room's fault is that one of its processes is stopped."""
    return plan.injury is not None and plan.injury.fault in {Fault.STALL, Fault.FREEZE}
