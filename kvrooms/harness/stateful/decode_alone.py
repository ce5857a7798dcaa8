"""A real decode engine, and a prefill made by hand that says what it likes: true, false, too early, twice.

No byte is moved. Decode has nothing but words to go by: which of them complete a room, which end it, and which give its
memory back is all that is asked here.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from ...engine.decode import DecodeEngine
from ...protocol import wire
from ...protocol.failure import Reason
from ...protocol.notify import Part, PartKind
from ...protocol.status import Status
from ...transport.ports import CloseCause
from ..simulate.memory import Shape, target_pool
from ..strategies import Schedule, schedules
from ..world import World
from .base import Machine
from .hands import BOOTSTRAP, HandPrefill
from .stage import STEPS_MAX, running

SHAPE = Shape(indexed=1, layers=1)
ROOMS = 5
PARTS = (
    Part(PartKind.KV, 0, 0, 1),
    Part(PartKind.KV, 0, 1, 1),
    Part(PartKind.AUX, 0, 0, 1),
    Part(PartKind.STATE, 0, 0, 1),
)
OUTSIDE = (
    Part(PartKind.KV, 0, 2, 1),
    Part(PartKind.KV, 0, 1, 2),
    Part(PartKind.STATE, 0, 0, 2),
    Part(PartKind.STATE, 1, 0, 1),
)
"""What no room here is owed."""
some_room = st.integers(0, ROOMS - 1)


class Asked:
    """A room of decode, and what the hand has truly said of it."""

    def __init__(self, handle: Any, owed: set[Part]) -> None:
        self.handle = handle
        self.owed = owed
        self.metadata: wire.Metadata | None = None
        self.ended = False
        self.promised = False
        self.first: tuple[Status, Any] | None = None


class DecodeAlone(Machine):
    """See the module."""

    NAME: ClassVar[str] = "decode alone"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L2", "L3", "L4", "L5", "S1", "S2", "S3", "S4", "S5", "C1")

    @initialize(schedule=schedules(), rooms=st.integers(1, ROOMS))
    def begin(self, schedule: Schedule, rooms: int) -> None:
        """The engine starts; the hand is known to the registry; some rooms are opened."""
        self.world = World()
        self.world.random = schedule
        pool = target_pool(SHAPE, pages=2 * ROOMS, slots=ROOMS)
        self.engine = DecodeEngine(pool.memory, assembly=self.world.assemble("decode", pool.memory))
        self.hand = HandPrefill(self, self.world, target_pool(SHAPE), "hand")
        self.hand.register()
        self.rooms: dict[int, Asked] = {}
        self.goodbye = False
        """Whether it was said on this connection: its end proves nothing then."""
        self.began = True
        for number in range(rooms):
            self.open(number, bool(number % 2))

    # -- decode's caller -------------------------------------------------------------------------------------------

    @rule(number=some_room, state=st.booleans())
    def open(self, number: int, state: bool) -> None:
        """The caller opens a room of two pages, aux and maybe state."""
        if number not in self.rooms:
            self.note("decode caller", "call", f"open room {number}" + (" with state" if state else ""), "decode")
            pages, slots = [2 * number, 2 * number + 1], [[number]] if state else None
            handle = self.engine.open(number, bootstrap=BOOTSTRAP, pages=pages, aux_index=number, state_indices=slots)
            self.rooms[number] = Asked(handle, set(PARTS if state else PARTS[:3]))
            self._go()

    @rule(number=some_room)
    def abort(self, number: int) -> None:
        """The caller aborts."""
        asked = self.rooms.get(number)
        if asked is not None:
            self.note("decode caller", "call", f"abort room {number}", "decode")
            asked.ended = True
            asked.handle.abort()
            self._go()

    # -- what the hand says ----------------------------------------------------------------------------------------

    @rule(number=some_room, at=st.integers(0, 3))
    def notify(self, number: int, at: int) -> None:
        """A part of a room has landed: true, or true again."""
        asked = self._asked(number)
        if asked is not None:
            part = PARTS[at % (3 + bool(asked.metadata.state))]
            self._say_landed(asked, part)
            asked.owed.discard(part)
            self._go()

    @rule(number=some_room)
    def notify_all(self, number: int) -> None:
        """All parts of a room have landed."""
        asked = self._asked(number)
        if asked is not None:
            for part in sorted(asked.owed):
                self._say_landed(asked, part)
            asked.owed.clear()
            self._go()

    @rule(number=some_room, wrong=st.sampled_from(["token", "grant", "agent"]))
    def forge(self, number: int, wrong: str) -> None:
        """Somebody says the same, of all parts, without the right to."""
        asked = self._asked(number)
        if asked is not None:
            token, grant = asked.metadata.token + (wrong == "token"), asked.metadata.grant + (wrong == "grant")
            agent = "a stranger" if wrong == "agent" else self.hand.transport.agent
            before = self._state()
            for part in sorted(asked.owed):
                self.hand.notify(self._transport, agent, grant, token, part)
            self._go()
            about = "S4" if wrong == "grant" else "S5"
            self.premise(about)
            self.check(about, self._state() == before, f"a notification with a wrong {wrong} was believed")

    @rule(number=some_room, at=st.integers(0, len(OUTSIDE) - 1))
    def notify_outside(self, number: int, at: int) -> None:
        """The hand claims what nobody asked for: that room, if it goes on, fails; no other notices."""
        asked = self._asked(number)
        if asked is not None:
            open_before, others = not asked.handle.poll().terminal, self._state(but=number)
            self._say_landed(asked, OUTSIDE[at])
            asked.ended = True
            self._go()
            self.premise("S5")
            if others:
                self.premise("L4")
            failed = asked.handle.failure is not None and asked.handle.failure.reason is Reason.PROTOCOL
            self.check("S5", failed or not open_before, f"{OUTSIDE[at]} was never asked for, and was believed")
            self.check("L4", self._state(but=number) == others, "a lie about one room changed another")

    @rule(number=some_room, kind=st.sampled_from(["ACCEPT", "FAILED", "REJECT", "ACK"]))
    def answer(self, number: int, kind: str) -> None:
        """The hand answers METADATA, or says that it will not."""
        asked = self._asked(number)
        if asked is not None and self.hand.connection:
            grant = asked.metadata.grant
            bodies: dict[str, wire.Body] = {
                "ACCEPT": wire.Accept(grant),
                "FAILED": wire.Failed(grant, Reason.ABORTED, "by hand", retryable=False),
                "REJECT": wire.Reject(grant, Reason.REFUSED, "by hand", retryable=True),
                "ACK": wire.Ack(grant),
            }
            self.hand.say(bodies[kind])
            asked.ended = asked.ended or kind != "ACCEPT"
            asked.promised = asked.promised or kind in ("REJECT", "ACK")
            self._go()

    @rule(undrained=st.lists(some_room, max_size=3), how=st.sampled_from(["goodbye", "closes", "dies", "times out"]))
    def leave(self, undrained: list[int], how: str) -> None:
        """The hand says GOODBYE, or its connection ends: closed after GOODBYE, by its death, or for no known reason."""
        granted = [asked for asked in self.rooms.values() if asked.metadata is not None]
        if not self.hand.connection:
            return
        self.note("hand", "fault", f"{how}, undrained: {sorted(undrained)}" if how in ("goodbye", "closes") else how)
        for asked in granted:
            asked.ended = True
        if how in ("goodbye", "closes"):
            kept = [asked for number, asked in self.rooms.items() if asked.metadata and number in undrained]
            self.hand.say(wire.Goodbye(tuple(sorted(asked.metadata.grant for asked in kept if asked.metadata))))
            for asked in granted:
                asked.promised = asked.promised or asked not in kept
            self.goodbye = True
        if how in ("closes", "dies"):
            self.hand.channel.close(self.hand.connection)
            for asked in granted:
                asked.promised = asked.promised or (how == "dies" and not self.goodbye)
        elif how == "times out":
            self.hand.channel.cut(CloseCause.TIMED_OUT)
        self.goodbye = self.goodbye and how == "goodbye"
        self._go(seconds=2.0)

    def _say_landed(self, asked: Asked, part: Part) -> None:
        assert asked.metadata is not None
        self.hand.notify(self._transport, self.hand.transport.agent, asked.metadata.grant, asked.metadata.token, part)

    # -- what must hold --------------------------------------------------------------------------------------------

    def _asked(self, number: int) -> Any:
        """A room whose METADATA has come."""
        asked = self.rooms.get(number)
        return asked if asked is not None and asked.metadata is not None else None

    @property
    def _transport(self) -> Any:
        return self.engine._core.transport  # noqa: SLF001

    def _state(self, but: int = -1) -> list[Any]:
        rooms = [(n, asked.handle) for n, asked in self.rooms.items() if n != but]
        return [(n, room.poll(), room.phase, room.failure, room.memory_free) for n, room in rooms]

    def _go(self, seconds: float = 0.0) -> None:
        """Everything happens that can; the hand answers what belongs to a handshake."""
        end = self.world.now + seconds
        with running(self):
            for _ in range(STEPS_MAX):
                self._listen()
                if not self.world.step() and not (self.world.now < end and self.world.step(timers=True)):
                    return
            self.fail("L2", f"decode goes on for ever: {self.world.state()}")

    def _listen(self) -> None:
        for body in self.hand.listen():
            match body:
                case wire.Hello():
                    self.hand.welcome()
                case wire.Metadata(room=number):
                    self.rooms[number].metadata = body

    @invariant()
    def words_are_taken_for_what_they_are(self) -> None:
        """What each room is follows from what was truly said of it."""
        for number, asked in self.rooms.items() if self.began else ():
            self._judge(number, asked)

    def _judge(self, number: int, asked: Asked) -> None:
        room, check = asked.handle, self.check
        status = room.poll()
        if asked.first is not None:
            check("S2", (status, room.failure) == asked.first, f"room {number} was {asked.first}, and is {status}")
        elif status.terminal:
            asked.first = (status, room.failure)
            if status is Status.FAILED:
                check("L2", asked.ended, f"room {number} failed, and nobody ended it: {room.failure}")
        check("S1", status is not Status.DONE or not asked.owed, f"room {number} is DONE, open: {sorted(asked.owed)}")
        if asked.metadata is not None and not asked.owed:
            check("L2", status.terminal, f"all of room {number} has landed, and it is {room.phase}")
        if asked.ended:
            check("L3", status.terminal, f"room {number} was ended, and is {room.phase}")
        may_write = asked.metadata is not None and not asked.promised and status is not Status.DONE
        free = room.memory_free
        check("S3", not (free and may_write), f"memory of room {number} is free, and nobody has promised anything")
        check(
            "L5",
            free or may_write or not status.terminal,
            f"nobody writes for room {number}, and its memory is not free",
        )

    def teardown(self) -> None:
        """The hand answers every ABORT; nothing stays."""
        if self.began and not self.broken and sys.exc_info()[0] is None:
            self._evening()
        super().teardown()

    def _evening(self) -> None:
        self.note("world", "call", "every room is closed, the hand acknowledges")
        for asked in self.rooms.values():
            asked.handle.close()
            asked.ended = True
        self._go(seconds=8.0)
        for asked in self.rooms.values():
            if asked.metadata is not None and not asked.handle.memory_free:
                self.hand.say(wire.Ack(asked.metadata.grant))
                asked.promised = True
        self._go()
        self.words_are_taken_for_what_they_are()
        tables = self.engine.tables()
        kept = {name: n for name, n in tables.items() if n and name not in ("links", "peers", "targets", "timers")}
        self.check("C1", not kept, f"every room is closed, every grant over, and decode holds {kept}")
