"""The whole: one decode engine, one or two prefill engines, what lies between them, and every move that is possible.

A global state is a tuple of small numbers, one per part: decode, the faults so far, and per lane (one prefill engine)
that engine, the frames and the writes between the two. Each number stands for a frozen value. A part's step is taken
once, by the running code, and remembered; so the product of all interleavings costs a few look-ups per transition. The
memory belongs to one `System`: whoever changes the code makes a new one.
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ...protocol import notify
from ...protocol.status import Phase
from . import decode_side, prefill_values
from .carriers import (
    GOOD,
    IN_FLIGHT,
    Flight,
    Flights,
    Label,
    Wire,
    fates,
    frame_label,
    no_flights,
    taken,
    with_flight,
    with_stray,
    write_label,
)
from .decode_side import DecodeSide, DecodeTurn
from .facts import DecodeFacts, FlightFacts, PrefillFacts, decode_facts, flight_facts, prefill_facts
from .glue import Broken, Cells, Effects, Ended, Sent
from .prefill_side import PrefillTurn
from .prefill_values import PrefillSide
from .scenario import TOKEN, Plan

V = TypeVar("V", bound=Hashable)
State: TypeAlias = tuple[int, ...]
Event: TypeAlias = tuple[Any, ...]


class Move(enum.IntEnum):
    """NORMAL moves happen by themselves, a TIMER only where nothing NORMAL can; RETRY repeats an ABORT."""

    NORMAL = 0
    TIMER = 1
    RETRY = 2
    FAULT = 3
    WORLD = 4  # a stalled process goes on, a dead one is started again, the orchestrator fences


class Budget(NamedTuple):
    """The faults so far. left: how many more. severity: 0 none, 1 harmless, 2 announced, 3 silent.

    apart: all faults so far concerned the first use alone. mute: whose caller does nothing any more.
    """

    left: int
    severity: int = 0
    apart: bool = True
    mute: tuple[str, ...] = ()


class Interner(Generic[V]):
    """Values by number, and facts about each, found out once."""

    def __init__(self) -> None:
        self._numbers: dict[V, int] = {}
        self.values: list[V] = []

    def number(self, value: V) -> int:
        """The number of a value."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Result(NamedTuple):
    """What a remembered step gives: the side after it, frames per lane (numbered), posts, and what it broke."""

    side: int
    frames: tuple[tuple[int, int], ...]
    posts: tuple[tuple[int, int], ...]
    broken: Broken | None


class Fate(NamedTuple):
    """Something that may happen to a write: "land", "note", "settle". certain: it does happen, sooner or later."""

    what: str
    certain: bool
    label: Label
    event: int
    use: int
    piece: int
    flights: int


class Setup(NamedTuple):
    """A system to explore. lanes: prefill engines. faults: names of `faults.FAULTS` that may happen, `budget` in all.

    unordered: frames from decode may overtake each other without that being a fault. lazy: a write lands as late as it
    can (see docs/exploration.md). symmetric: two equal prefill engines are not told apart. in_turn: the uses follow
    each other; else they run beside each other.
    """

    plans: tuple[Plan, ...]
    lanes: int = 1
    budget: int = 0
    faults: frozenset[str] = frozenset()
    unordered: bool = False
    lazy: bool = False
    symmetric: bool = False
    in_turn: bool = True
    hold: bool = False


class System:
    """See the module. `successors` is the one way from a state to the next ones."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.plans = setup.plans
        self.lanes = setup.lanes
        self.cells = Cells()
        self.decodes: Interner[DecodeSide] = Interner()
        self.prefills: Interner[PrefillSide] = Interner()
        self.wires: Interner[Wire] = Interner()
        self.flights: Interner[Flights] = Interner()
        self.budgets: Interner[Budget] = Interner()
        self.events: Interner[Event] = Interner()
        self._frames: Interner[tuple[Sent, ...]] = Interner()
        self._memo: dict[Hashable, Any] = {}
        self._of_decode: list[DecodeFacts] = []
        self._of_prefill: list[PrefillFacts] = []
        self._of_flights: list[FlightFacts] = []
        self._decode_steps: list[dict[int, Result]] = []
        self._prefill_steps: list[dict[int, Result]] = []
        self.strange: set[int] = set()
        """Events in which somebody says what it should not."""

    def mirrored(self, state: State) -> State:
        """The state with the two prefill engines in each other's place."""
        decode = self.known(
            (state[0], "mirrored"), lambda: self.decodes.number(decode_side.mirrored(self.decodes.values[state[0]])) + 1
        )
        return (decode - 1, state[1], *state[5:8], *state[2:5])

    def initial(self) -> State:
        """Nothing is opened, nothing connected."""
        lane = (
            self.prefills.number(prefill_values.start(self.plans)),
            self.wires.number(Wire()),
            self.flights.number(no_flights(self.plans)),
        )
        decode = self.decodes.number(decode_side.start(self.plans, self.lanes))
        return (decode, self.budgets.number(Budget(self.setup.budget)), *(lane * self.lanes))

    # -- facts about parts, found out once per value -------------------------------------------------------------

    def decode(self, number: int) -> DecodeFacts:
        """What matters of a decode side."""
        while number >= len(self._of_decode):
            value = self.decodes.values[len(self._of_decode)]
            self._of_decode.append(decode_facts(value, in_turn=self.setup.in_turn, hold=self.setup.hold))
        return self._of_decode[number]

    def prefill(self, number: int) -> PrefillFacts:
        """What matters of a prefill side."""
        while number >= len(self._of_prefill):
            value = self.prefills.values[len(self._of_prefill)]
            self._of_prefill.append(prefill_facts(value, self.plans, in_turn=self.setup.in_turn))
        return self._of_prefill[number]

    def flight(self, number: int) -> FlightFacts:
        """What matters of the writes of a lane."""
        while number >= len(self._of_flights):
            self._of_flights.append(flight_facts(self.flights.values[len(self._of_flights)], self.plans))
        return self._of_flights[number]

    def known(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that follows from numbers, found out once."""
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = make()
        return found

    @property
    def strange_steps(self) -> int:
        """How many steps the sides took by such an event."""
        taken = (*self._decode_steps, *self._prefill_steps)
        return sum(len(self.strange & known.keys()) for known in taken) if self.strange else 0

    # -- steps of a side, taken once by the running code ---------------------------------------------------------

    def step_decode(self, number: int, event: int) -> Result:
        """One turn of the decode side."""
        return self._step(DecodeTurn, self._decode_steps, self.decodes, number, event)

    def step_prefill(self, number: int, event: int) -> Result:
        """One turn of a prefill side."""
        return self._step(PrefillTurn, self._prefill_steps, self.prefills, number, event)

    def _step(self, turn: Any, known: list[dict[int, Result]], sides: Any, number: int, event: int) -> Result:
        while number >= len(known):
            known.append({})
        result = known[number].get(event)
        if result is None:
            side, what = sides.values[number], self.events.values[event]
            after, effects = _turn(lambda: turn(self.plans, self.cells, side).take(what), side, what)
            result = known[number][event] = self._result(sides.number(after), effects)
        return result

    def _result(self, number: int, effects: Effects) -> Result:
        lanes: dict[int, list[Sent]] = {}
        for lane, sent in effects.frames:
            lanes.setdefault(lane, []).append(sent)
        frames = tuple((lane, self._frames.number(tuple(sents))) for lane, sents in lanes.items())
        return Result(number, frames, effects.posts, effects.broken)

    # -- the moves -----------------------------------------------------------------------------------------------

    def decoded(self, state: State, result: Result, lane: int = 0, wire: int = -1, flights: int = -1) -> State:
        """The state after a turn of decode. wire, flights: of the lane, where the event was taken from there."""
        at = 2 + 3 * lane
        new = list(state)
        if wire >= 0:
            new[at + 1] = wire
        if flights >= 0:
            new[at + 2] = flights
        new[0] = result.side
        for to, frames in result.frames:
            if self.prefill(state[2 + 3 * to]).link:
                new[3 + 3 * to] = self.pushed(new[3 + 3 * to], frames, to_prefill=True)
        if result.side != state[0]:
            before, after = self.decode(state[0]).up, self.decode(result.side).up
            if before != after:
                for i in range(self.lanes):
                    if before[i] and not after[i]:
                        new[3 + 3 * i] = self.cleared(new[3 + 3 * i], to_prefill=False)
        return tuple(new)

    def prefilled(self, state: State, result: Result, lane: int, wire: int = -1, flights: int = -1) -> State:
        """The state after a turn of a prefill side. wire, flights: as for `decoded`."""
        at = 2 + 3 * lane
        new = list(state)
        if wire >= 0:
            new[at + 1] = wire
        if flights >= 0:
            new[at + 2] = flights
        for _, frames in result.frames:
            if self.decode(state[0]).up[lane]:
                new[at + 1] = self.pushed(new[at + 1], frames, to_prefill=False)
        for use, piece in result.posts:
            new[at + 2] = self.posted(new[at + 2], use, piece)
        if result.side != state[at]:
            new[at] = result.side
            if self.prefill(state[at]).link and not self.prefill(result.side).link:
                new[at + 1] = self.cleared(new[at + 1], to_prefill=True)
        return tuple(new)

    def pushed(self, wire: int, frames: int, *, to_prefill: bool) -> int:
        """The wire with frames (numbered) sent after those that it holds."""
        key = (wire, frames, to_prefill)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.wires.number(self._push(wire, frames, to_prefill=to_prefill))
        return int(found)

    def _push(self, wire: int, frames: int, *, to_prefill: bool) -> Wire:
        value, sents = self.wires.values[wire], self._frames.values[frames]
        if not to_prefill:
            return value._replace(to_decode=(*value.to_decode, *sents))
        for sent in sents:
            if self.setup.unordered and not sent.end:
                value = value._replace(stray_to_prefill=with_stray(value.stray_to_prefill, sent))
            else:
                value = value._replace(to_prefill=(*value.to_prefill, sent))
        return value

    def cleared(self, wire: int, *, to_prefill: bool) -> int:
        """The wire without the frames that nobody reads any more."""
        value = self.wires.values[wire]
        return self.wires.number(value._replace(to_prefill=()) if to_prefill else value._replace(to_decode=()))

    def posted(self, flights: int, use: int, piece: int) -> int:
        """The writes with one more."""
        value = self.flights.values[flights]
        return self.flights.number(with_flight(value, use, piece, Flight(IN_FLIGHT)))

    @staticmethod
    def closed_record() -> prefill_values.Record:
        """A room of an earlier life of a prefill engine."""
        return prefill_values.Record(None, Ended(Phase.FAILED, None, None, 1), freed=True, closed=True)

    # -- what frames and writes allow ----------------------------------------------------------------------------

    def deliveries(self, wire: int, lane: int) -> tuple[tuple[bool, Label, int, int], ...]:
        """(to prefill, label, event, wire after it) for each frame that may arrive next."""
        key = (wire, lane, "deliveries")
        found: tuple[tuple[bool, Label, int, int], ...] = self.known(key, lambda: self._deliver(wire, lane))
        return found

    def _deliver(self, wire: int, lane: int) -> tuple[tuple[bool, Label, int, int], ...]:
        value, found = self.wires.values[wire], []
        for to_prefill in (True, False):
            for sent, _, after in taken(value, to_prefill=to_prefill):
                event = self.events.number(("frame", sent) if to_prefill else ("frame", lane, sent))
                found.append((to_prefill, frame_label(sent, to_prefill=to_prefill), event, self.wires.number(after)))
        return tuple(found)

    def flying(self, flights: int) -> tuple[Fate, ...]:
        """Each thing that may happen to a write."""
        key = (flights, "flying")
        found: tuple[Fate, ...] = self.known(key, lambda: self._fly(flights))
        return found

    def _fly(self, flights: int) -> tuple[Fate, ...]:
        value, found = self.flights.values[flights], []
        for use, row in enumerate(value):
            writes = self.plans[use].all_writes
            for piece, flight in enumerate(row):
                for what, after in fates(
                    flight, len(writes[piece].fills), bool(writes[piece].piece.parts), self.setup.lazy
                ):
                    event = self.events.number(("settled", use, piece, after.state == GOOD))
                    number = self.flights.number(with_flight(value, use, piece, after))
                    # What has failed, or is left by a dead process, may land and be told, or not.
                    certain = flight.state in (IN_FLIGHT, GOOD)
                    label = write_label(self.plans[use], what, piece)
                    found.append(Fate(what, certain, label, event, use, piece, number))
        return tuple(found)

    def note(self, decode: int, lane: int, use: int, piece: int) -> int:
        """The event of a notification: what prefill attached to the write, for the grant that it was posted for."""
        key = (decode, lane, use, piece, "note")
        found: int = self.known(key, lambda: self._note(decode, lane, use, piece))
        return found

    def _note(self, decode: int, lane: int, use: int, piece: int) -> int:
        record = self.decodes.values[decode].records[use]
        number = record.grants[lane].number if record is not None else 0
        parts = self.plans[use].all_writes[piece].piece.parts
        return self.events.number(("note", lane, True, notify.encode(number, TOKEN + use, parts)))


def _turn(take: Callable[[], tuple[Any, Effects]], side: Any, event: Event) -> tuple[Any, Effects]:
    """A turn; one in which the running code raises has broken its engine, and with it every room."""
    try:
        found: tuple[Any, Effects] = take()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        if Path(where.filename).parent == Path(__file__).parent and not isinstance(error, AssertionError):
            raise  # a mistake of the explorer's own proves nothing
        words = f"{event[0]}: {type(error).__name__} in {where.name}: {error}"
        hostile = event[0] in ("note", "full")
        return side, Effects(broken=Broken("S5" if hostile else "L2", f"the engine's thread dies of {words}"))
    return found
