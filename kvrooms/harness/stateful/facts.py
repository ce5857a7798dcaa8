"""A second opinion on rooms: what must hold after each step, told from facts alone.

The facts are who accepted or was bound, which positions are open, what was declared, and what ended the room. Nothing
here reads a ledger, so a fault in a ledger cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...protocol.events import Close, Do, Fail, RoomEvent, Timer
from ...protocol.failure import Reason
from ...protocol.manifest import Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine.table import Kind, Row

if TYPE_CHECKING:
    from .base import Machine

ORDER = [Phase.METADATA, Phase.KV, Phase.AUX, Phase.STATE, Phase.DONE, Phase.FAILED]
PHASE_OF = {PartKind.KV: Phase.KV, PartKind.AUX: Phase.AUX, PartKind.STATE: Phase.STATE}
PARTS = tuple(
    map(
        frozenset,
        (
            [PartKind.KV, PartKind.AUX, PartKind.STATE],
            [PartKind.KV, PartKind.AUX],
            [PartKind.KV],
            [PartKind.STATE],
            [PartKind.AUX, PartKind.STATE],
            [],
        ),
    )
)
"""Parts that go together: all of them, and such as leave each phase open."""
Item: TypeAlias = tuple[int, PartKind, int, int]
"""One position owed by, or to, one rank: rank, part, component (of the manifest), position."""
REASONS = {
    RoomEvent.POST_ERROR: Reason.SEND_ERROR,
    RoomEvent.PEER_LOST: Reason.PEER_LOST,
    RoomEvent.PEER_FAILED: Reason.PEER_FAILED,
    RoomEvent.VIOLATION: Reason.PROTOCOL,
    RoomEvent.ABORT: Reason.ABORTED,
    RoomEvent.DEADLINE: Reason.DEADLINE_CAP,
}
"""Why a room fails by each event that ends rooms."""
LATE = frozenset({Do.FORGET, Do.LEASE_CLOSED, Do.SEND_FAILED, Do.DRAIN_VOIDED})
"""What a room that has ended may still ask for: to be forgotten, and to tell a rank that comes too late."""


class Chunk(NamedTuple):
    """Positions [start, stop) of one part, from or to one rank."""

    rank: int
    part: PartKind
    component: int
    start: int
    stop: int

    @property
    def items(self) -> frozenset[Item]:
        """The positions one by one."""
        return frozenset((self.rank, self.part, self.component, p) for p in range(self.start, self.stop))

    def __str__(self) -> str:
        name = f"{self.part.name.lower()} {self.component}" if self.part is PartKind.STATE else self.part.name.lower()
        return f"{name}[{self.start}:{self.stop}] of rank {self.rank}"


def chunks_of(rank: int, manifest: Manifest) -> list[Chunk]:
    """Everything that a manifest owes: each position by itself, and all of a part together."""
    spans = [(PartKind.KV, 0, a, b) for a, b in manifest.kv]
    spans += [(PartKind.AUX, 0, 0, 1)] if manifest.aux else []
    spans += [(PartKind.STATE, c, 0, n) for c, (_, n) in enumerate(manifest.state)]
    found = [Chunk(rank, part, c, p, p + 1) for part, c, a, b in spans for p in range(a, b)]
    return found + [Chunk(rank, *one) for one in spans if one[3] - one[2] > 1]


class Facts:
    """What is known of one room. Subclasses say what follows from it."""

    def __init__(self, manifests: tuple[Manifest, ...]) -> None:
        self.manifests = manifests
        self.ranks: set[int] = set()
        self.chunks = [chunk for rank, manifest in enumerate(manifests) for chunk in chunks_of(rank, manifest)]
        self.open: set[Item] = {item for chunk in self.chunks for item in chunk.items}
        self.ended: Reason | None = None
        self.closed = False

    @property
    def phase(self) -> Phase:
        """The first kind of obligation that is open."""
        if self.ended is not None:
            return Phase.FAILED
        if len(self.ranks) < len(self.manifests):
            return Phase.METADATA
        return self.first_open()

    def first_open(self) -> Phase:
        """The first part with a position that has not arrived."""
        return min((PHASE_OF[part] for _, part, _, _ in self.open), key=ORDER.index, default=Phase.DONE)


class Judge:
    """Checks each step of one room against its facts, by the names of the properties."""

    def __init__(self, machine: Machine, facts: Facts) -> None:
        self._machine = machine
        self._facts = facts
        self.armed: set[Timer] = set()
        self.reports = 0
        self.forgotten = 0

    def step(self, before: Any, after: Any, row: Row[Any, Any], news: bool) -> None:
        """One step of a room has been taken; `facts` are those after it. news: whether they changed."""
        check, expected = self._machine.check, self._facts.phase
        commands = [command.do for command in row.commands]
        if before.phase in TERMINAL:
            check("S2", after is before, f"{before.phase.name} was left, or changed, by a late event")
            check("S2", set(commands) <= LATE, f"a late event made a room that had ended ask for {_names(commands)}")
        else:
            self._alive(before, after, expected, news)
            ends = after.phase in TERMINAL
            check("C2", commands.count(Do.REPORT) == ends, f"{before.phase.name} to {after.phase.name} was reported "
                  f"{commands.count(Do.REPORT)} times")  # fmt: skip
            check("C1", (Do.DISARM in commands) == ends, f"{after.phase.name} was reached, and deadlines are "
                  f"{'not ' if ends else ''}disarmed")  # fmt: skip
            check("C2", (row.kind is Kind.FAIL) == (after.phase is Phase.FAILED), "a room failed without a failure")
        for do, timer in row.commands:
            self._count(do, timer)
        check("C2", after.cause is self._facts.ended, f"the cause is {after.cause}, the first was {self._facts.ended}")
        check("C1", self.forgotten == self._facts.closed, f"after close, the room was forgotten {self.forgotten} times")
        check("C1", after.phase not in TERMINAL or not self.armed, f"{_names(self.armed)} outlive the room")

    def _alive(self, before: Any, after: Any, expected: Phase, news: bool) -> None:
        check, actual = self._machine.check, after.phase
        if expected is Phase.FAILED:
            mismatch = self._facts.ended is Reason.MISMATCH
            check("A1" if mismatch else "L3", actual is Phase.FAILED, f"{self._facts.ended} left it in {actual.name}")
        check("S1", actual is not Phase.DONE or expected is Phase.DONE, f"DONE, and {expected.name} is open")
        if expected is Phase.DONE:
            check("L2", actual is Phase.DONE, f"every obligation is met, and it waits in {actual.name}")
        else:
            check(
                "L2", actual is expected, f"{expected.name} is the first open obligation, the room is in {actual.name}"
            )
        check("L2", (after is before) == (not news), "nothing new was said, and something changed, or the other way")

    def arm(self, timer: Timer) -> None:
        """A deadline is armed: a room has its cap and at most one phase deadline."""
        self.armed = self.armed | {timer} if timer is Timer.CAP else (self.armed & {Timer.CAP}) | {timer}

    def exits(self, table: str, room: Any, step: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        """L1, in any state: a deadline is armed, and whatever can end a room ends it."""
        if room.phase in TERMINAL:
            return
        check, where = self._machine.check, room.phase.name
        check("L1", Timer.CAP in self.armed, f"the cap is not armed in {where}")
        check("L1", len(self.armed) > 1, f"no deadline but the cap is armed in {where}")
        endings: list[Fail | Close] = [*(Fail(column, reason) for column, reason in REASONS.items()), Close()]
        for event in endings:
            self._machine.tries(table, room.phase, event.KIND)
            after, _ = step(room, event)
            check("L1", after.phase is Phase.FAILED, f"{event.KIND.name} does not end a room in {where}")

    def _count(self, do: Do, timer: Timer | None) -> None:
        match do:
            case Do.ARM:
                assert timer is not None
                self.arm(timer)
            case Do.DISARM:
                self.armed.clear()
            case Do.REPORT:
                self.reports += 1
            case Do.FORGET:
                self.forgotten += 1


def _names(values: Any) -> str:
    return ", ".join(sorted(value.name for value in values)) or "nothing"
