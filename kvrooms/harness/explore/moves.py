"""Every move from a global state: by itself, by a timer where nothing else can happen, by a fault, by the world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .carriers import Label
from .facts import Own
from .faults import Faulty, faults
from .faults_ports import world
from .glue import Broken
from .system import Budget, Move, State, System


class Successor(NamedTuple):
    """One move from a state. broken: the step itself broke a property. obligation: what a timer closed."""

    move: Move
    label: Label
    state: State
    broken: Broken | None
    obligation: str = ""


class Moves:
    """The successors of the states of a system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._one = system.lanes == 1

    def of(self, state: State) -> list[Successor]:
        """All moves from a state, in a fixed order."""
        found: list[Successor] = []
        self._normal(state, found)
        moved = any(one.move is Move.NORMAL and one.state != state for one in found)
        if not moved:
            self._timers(state, found)
        budget = self.system.budgets.values[state[1]]
        if budget.left:
            found.extend(self._fault(state, budget, fault) for fault in faults(self.system, state))
        if self.system.setup.budget:
            after = world(self.system, state)
            found.extend(Successor(Move.WORLD, one.label, one.state, one.broken) for one in after)
        return found

    def _normal(self, state: State, found: list[Successor]) -> None:
        system = self.system
        decode, mute = system.decode(state[0]), system.budgets.values[state[1]].mute
        if decode.running and "decode" not in mute:
            for label, event in self._own(state[0], "decode", decode.moves):
                result = system.step_decode(state[0], event)
                found.append(Successor(Move.NORMAL, label, system.decoded(state, result), result.broken))
        for lane in range(system.lanes):
            self._lane(state, lane, mute, found)

    def _lane(self, state: State, lane: int, mute: tuple[str, ...], found: list[Successor]) -> None:
        system, at = self.system, 2 + 3 * lane
        decode, prefill = system.decode(state[0]), system.prefill(state[at])
        if prefill.running:
            own = () if "prefill" in mute else prefill.moves
            for label, event in self._own(state[at], "prefill", own, lane):
                result = system.step_prefill(state[at], event)
                found.append(Successor(Move.NORMAL, label, system.prefilled(state, result, lane), result.broken))
            for label, event in self._own(state[at], "posts", tuple(one for _, one in prefill.posts), lane):
                result = system.step_prefill(state[at], event)
                found.append(Successor(Move.NORMAL, label, system.prefilled(state, result, lane), result.broken))
        if decode.running and prefill.running and decode.wants[lane]:
            found.append(self._connect(state, lane))
        for to_prefill, label, event, wire in system.deliveries(state[at + 1], lane):
            if to_prefill and prefill.running and prefill.link:
                result = system.step_prefill(state[at], event)
                after = system.prefilled(state, result, lane, wire)
            elif not to_prefill and decode.running and decode.up[lane]:
                result = system.step_decode(state[0], event)
                after = system.decoded(state, result, lane, wire)
            else:
                continue
            found.append(Successor(Move.NORMAL, label, after, result.broken))
        for what, certain, label, event, use, piece, flights in system.flying(state[at + 2]):
            move, broken = Move.NORMAL if certain else Move.WORLD, None
            if what == "land":
                after = (*state[: at + 2], flights, *state[at + 3 :])
            elif what == "note" and decode.running:
                result = system.step_decode(state[0], system.note(state[0], lane, use, piece))
                after, broken = system.decoded(state, result, lane, -1, flights), result.broken
            elif what == "settle" and prefill.running:
                result = system.step_prefill(state[at], event)
                after, broken = system.prefilled(state, result, lane, -1, flights), result.broken
            else:
                continue
            found.append(Successor(move, label, after, broken))

    def _connect(self, state: State, lane: int) -> Successor:
        """HELLO and WELCOME: prefill replaces an older connection, decode sends what it has held back."""
        system, at = self.system, 2 + 3 * lane
        wire = system.cleared(system.cleared(state[at + 1], to_prefill=True), to_prefill=False)
        hello = system.step_prefill(state[at], system.events.number(("connect",)))
        state = system.prefilled(state, hello, lane, wire)
        life = system.prefills.values[state[at]].life
        welcome = system.step_decode(state[0], system.events.number(("connect", lane, life)))
        after = system.decoded(state, welcome, lane)
        return Successor(
            Move.NORMAL,
            Label("decode", "message", "connects", _name("prefill", lane, system.lanes)),
            after,
            hello.broken or welcome.broken,
        )

    def _own(self, number: int, who: str, moves: tuple[Own, ...], lane: int = 0) -> Iterator[tuple[Label, int]]:
        found: list[tuple[Label, int]] = self.system.known(
            (number, who, lane, len(moves)), lambda: [self._labelled(one, who, lane) for one in moves]
        )
        return iter(found)

    def _labelled(self, one: Own, who: str, lane: int) -> tuple[Label, int]:
        side = "decode" if who == "decode" else _name("prefill", lane, self.system.lanes)
        caller = f"{side} caller" if one.kind == "call" else side
        return Label(caller, one.kind, one.text, side if one.kind == "call" else ""), self.system.events.number(
            one.event
        )

    def _timers(self, state: State, found: list[Successor]) -> None:
        system = self.system
        decode = system.decode(state[0])
        if decode.running:
            for one in decode.timers:
                self._decode_timer(state, one, Move.TIMER, found)
            for lane, one in decode.retries:
                wire = system.wires.values[state[3 + 3 * lane]]
                if not any("ABORT" in sent.text for sent in (*wire.to_prefill, *wire.stray_to_prefill)):
                    self._decode_timer(state, one, Move.RETRY, found)
        for lane in range(system.lanes):
            at = 2 + 3 * lane
            prefill = system.prefill(state[at])
            if decode.running and decode.up[lane] and not (prefill.running and prefill.link):
                self._decode_timer(
                    state,
                    Own("timer", "prefill was silent for too long", ("silent", lane), "heartbeat"),
                    Move.TIMER,
                    found,
                )
            if not prefill.running:
                continue
            silent = Own("timer", "decode was silent for too long", ("silent",), "heartbeat")
            lost = prefill.link and not (decode.running and decode.up[lane])
            for one in (*prefill.timers, *((silent,) if lost else ())):
                result = system.step_prefill(state[at], system.events.number(one.event))
                after = system.prefilled(state, result, lane)
                label = Label(_name("prefill", lane, system.lanes), "timer", one.text)
                found.append(Successor(Move.TIMER, label, after, result.broken, _closed(one)))

    def _decode_timer(self, state: State, one: Own, move: Move, found: list[Successor]) -> None:
        result = self.system.step_decode(state[0], self.system.events.number(one.event))
        label = Label("decode", "timer", one.text)
        after = self.system.decoded(state, result)
        found.append(Successor(move, label, after, result.broken, _closed(one)))

    def _fault(self, state: State, budget: Budget, fault: Faulty) -> Successor:
        system = self.system
        after = Budget(
            left=budget.left - 1,
            severity=max(budget.severity, fault.severity),
            apart=budget.apart and fault.use == 0,
            mute=tuple(sorted({*budget.mute, *fault.mute})),
        )
        number = system.known((after, "budget"), lambda: system.budgets.number(after) + 1) - 1
        return Successor(Move.FAULT, fault.label, (fault.state[0], number, *fault.state[2:]), fault.broken)


def _closed(one: Own) -> str:
    event = one.event
    kind = (
        event[2].value
        if event[0] == "deadline"
        else {"silent": "heartbeat", "expired": "parked", "retry": "abort_retry"}[event[0]]
    )
    return f"{kind}: {one.obligation}" if one.obligation else str(kind)


def _name(side: str, lane: int, lanes: int) -> str:
    return side if lanes == 1 else f"{side} {lane + 1}"
