"""A real prefill engine, and a decode made by hand whose frames arrive in any order, twice, or with an old floor.

What is at stake is the promise. After an ACK or a REJECT of a grant nothing of it may be written, whatever comes of it
later; so the hand writes over the pages of such a grant, and looks at them until the end.
"""

from __future__ import annotations

import sys
from typing import ClassVar, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from ...engine.prefill import PrefillEngine, PrefillRoom
from ...engine.settings import EngineSettings
from ...protocol import notify, wire
from ...protocol.errors import WireError
from ...protocol.failure import Reason
from ...protocol.manifest import Manifest
from ...protocol.status import Status
from ..simulate.memory import FREED, UNTOUCHED, Shape, source_pool, target_pool
from ..strategies import Schedule, schedules
from ..world import World
from .base import Machine
from .hands import HandDecode
from .stage import running, settle

SHAPE = Shape(layers=1, aux=False)
GRANTS = 8
PAGES = 2
PARKED_S = 8.0
some_grant = st.integers(1, GRANTS)


class Frame(NamedTuple):
    """A frame that was sent and may arrive, more than once. It carries the floor of when it was sent."""

    body: wire.Body
    floor: int


class PrefillAlone(Machine):
    """See the module. Grant n writes to pages 2n and 2n + 1 of the hand's memory, for room (n - 1) // 2, attempt 0."""

    NAME: ClassVar[str] = "prefill alone"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L4", "L5", "S1", "S3", "S4", "S5", "C1")

    @initialize(
        schedule=schedules(),
        rooms=st.lists(st.sampled_from([True, True, False]), min_size=2, max_size=4),
        asked=st.integers(0, GRANTS),
        aborted=st.lists(some_grant, max_size=4),
        held=st.booleans(),
        backwards=st.booleans(),
    )
    def begin(
        self, schedule: Schedule, rooms: list[bool], asked: int, aborted: list[int], held: bool, backwards: bool
    ) -> None:
        """The engine starts, the hand joins; some rooms are open, and sent, some frames are on the wire."""
        self.world = World()
        self.world.random = schedule
        self.source = source_pool(SHAPE, 1, pages=16)
        settings = EngineSettings(piece_bytes=32, parked_ttl_s=PARKED_S)
        assembly = self.world.assemble("prefill", self.source.memory, settings, listen=True)
        self.engine = PrefillEngine(self.source.memory, settings=settings, assembly=assembly)
        self.hand = HandDecode(self, self.world, target_pool(SHAPE, pages=2 * GRANTS + 2), "decode by hand")
        self.hand.join(self.engine.address)
        self.rooms: dict[int, PrefillRoom] = {}
        self.wire: list[Frame] = []
        self.issued = 0
        self.landed: dict[int, set[int]] = {}
        self.released: set[int] = set()
        self.aborted: set[int] = set()
        self.began = True
        self.odd: list[PrefillRoom] = []
        self.backwards = backwards
        self.world.writes_held = held
        for number, sent in enumerate(rooms):
            self.open(number, sent)
        for _ in range(asked):
            self.ask()
        for grant in aborted:
            self.abort(grant)

    # -- prefill's caller ------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 3), sent=st.booleans())
    def open(self, number: int, sent: bool) -> None:
        """The caller opens a room, and sends it, or not yet."""
        if number not in self.rooms:
            self.note("prefill caller", "call", f"open room {number}" + (", send" if sent else ""), "prefill")
            self.rooms[number] = self.engine.open(number, pages=PAGES)
            if sent:
                self._send(number)
            self._go(8)

    @rule(number=st.integers(0, 3), what=st.sampled_from(["send", "abort", "close"]))
    def go_on(self, number: int, what: str) -> None:
        """The caller goes on with a room."""
        room = self.rooms.get(number)
        if room is not None:
            self.note("prefill caller", "call", f"{what} room {number}", "prefill")
            if what == "send" and not room.poll().terminal and not room._complete:  # noqa: SLF001
                self._send(number)
            elif what == "abort":
                room.abort()
            elif what == "close":
                room.close()
                del self.rooms[number]
            self._go(8)

    def _send(self, number: int) -> None:
        self.rooms[number].send([2 * number, 2 * number + 1])

    # -- the hand --------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The lowest grant that is not released."""
        return next(n for n in range(1, GRANTS + 2) if n not in self.released)

    @rule()
    def ask(self) -> None:
        """METADATA of the next grant is sent."""
        if self.issued < GRANTS:
            self.issued += 1
            n = self.issued
            pages = np.array([2 * n, 2 * n + 1], dtype="<i4").tobytes()
            body = wire.Metadata((n - 1) // 2, 0, n, 1000 + n, Manifest(PAGES, ((0, PAGES),), (), ()), pages, -1, ())
            self.wire.append(Frame(body, self.floor))

    @rule(grant=some_grant)
    def abort(self, grant: int) -> None:
        """ABORT of a grant is sent; again, too."""
        if grant <= self.issued:
            self.aborted.add(grant)
            self.wire.append(Frame(wire.Abort(grant, Reason.PEER_ABORTED, "", retryable=False), self.floor))

    @rule(at=st.integers(0, 63), again=st.booleans(), steps=st.sampled_from([20, 0, 3]))
    def deliver(self, at: int, again: bool, steps: int) -> None:
        """Any frame on the wire arrives; with `again` it is still on the wire."""
        if self.wire:
            frame = self.wire[-1 - at % len(self.wire)]  # the latest first: an ABORT that overtakes its METADATA
            if not again:
                self.wire.remove(frame)
            self.hand.say(frame.body, frame.floor)
            self._go(steps)

    @rule(held=st.booleans())
    def hold(self, held: bool) -> None:
        """Writes stand still, or land."""
        self.note("world", "fault", f"writes {'stand still' if held else 'land'}")
        self.world.writes_held = held
        self._go(8)

    @rule(pages=st.lists(st.integers(-1, 99), max_size=3), more=st.integers(0, 3))
    def nonsense(self, pages: list[int], more: int) -> None:
        """A METADATA, for a room that is sent, asks for pages that are not there, or for others than it names."""
        total = len(pages) + more
        if more or not all(0 <= page < 2 * GRANTS + 2 for page in pages):
            number = 100 + len(self.odd)
            self.premise("S5")
            self.odd.append(self.engine.open(number, pages=total))
            self.odd[-1].send(list(range(total)))
            packed = np.array(pages, dtype="<i4").tobytes()
            manifest = Manifest(total, ((0, total),), (), ())
            self.hand.say(wire.Metadata(number, 0, 1000 + number, 1, manifest, packed, -1, ()), self.floor)
            self._go(20)

    @rule(data=st.binary(max_size=40))
    def babble(self, data: bytes) -> None:
        """Bytes that are no frame."""
        try:
            wire.decode(data)
        except WireError:
            self.note("decode by hand", "message", f"babbles {data!r}", "wire")
            self.premise("S5")
            self.hand.say_raw(data)
            self._go(8)

    # -- what must hold --------------------------------------------------------------------------------------------

    def _go(self, steps: int) -> None:
        with running(self):
            for _ in range(steps):
                if not self.world.step():
                    break
        self._look()

    def _look(self) -> None:
        """What has the hand been told, and what lies in its memory?"""
        for body in self.hand.listen():
            if isinstance(body, (wire.Ack, wire.Reject)) and body.grant in self._live:
                self._release(body.grant)
        for agent, message in self.hand.transport.arrivals():
            self.check("S5", agent == self.engine._core.agent, "a notification of a stranger")  # noqa: SLF001
            self._landed(notify.decode(message))
        for grant in self.released - self.landed.keys():
            spoilt = self._bytes(grant) != bytes([FREED]) * len(self._bytes(grant))
            self.check("S3", not spoilt, f"grant {grant} was acknowledged or refused, and was written after that")
        for other in range(self.issued + 1, GRANTS + 1):
            self.check(
                "S5",
                self._bytes(other).count(UNTOUCHED) == len(self._bytes(other)),
                f"grant {other} was never asked for, and was written",
            )

    @property
    def _live(self) -> set[int]:
        """The grants that were asked for and are not over."""
        return set(range(1, GRANTS + 1)) - self.released

    def _landed(self, told: notify.Notification) -> None:
        n = told.grant
        if n in self.released:
            return  # of what had landed before the promise; it says nothing new
        if self.issued > 1:
            self.premise("S4")
        self.check("S4", told.token == 1000 + n, f"a notification of grant {n} has another's token")
        found = self.landed.setdefault(n, set())
        for part in told.parts:
            for position in range(part.first, part.first + part.size):
                sent = self.source.read("kv", [2 * ((n - 1) // 2) + position])
                there = self.hand.pool.read("kv", [2 * n + position])
                same = all(a.tobytes() == b.tobytes() for a, b in zip(sent, there, strict=True))
                self.check("S1", same, f"page {position} of grant {n} is said to have landed, and has not")
                found.add(position)
        if len(found) == PAGES:
            self.released.add(n)

    def _release(self, grant: int) -> None:
        self.released.add(grant)
        if grant not in self.landed or len(self.landed[grant]) < PAGES:
            self.landed.pop(grant, None)
            self.hand.pool.fill("kv", [2 * grant, 2 * grant + 1], FREED)

    def _bytes(self, grant: int) -> bytes:
        return b"".join(buffer.tobytes() for buffer in self.hand.pool.read("kv", [2 * grant, 2 * grant + 1]))

    def teardown(self) -> None:
        """Everything on the wire arrives; aborted grants are answered; nothing stays."""
        if self.began and not self.broken and sys.exc_info()[0] is None:
            self._evening()
        super().teardown()

    def _evening(self) -> None:
        self.note("world", "call", "everything on the wire arrives, nothing stands still")
        self.world.writes_held = False
        for frame in reversed(self.wire) if self.backwards else self.wire:
            self.hand.say(frame.body, frame.floor)
        self._settle()
        for room in self.odd:
            self.check("S5", room.poll() is not Status.DONE, f"{room!r}, and it was asked for pages that are not there")
            room.close()
        left = self.aborted - self.released
        self.check("L5", not left, f"aborted, and neither acknowledged nor refused: grants {sorted(left)}")
        for number, room in sorted(self.rooms.items()):
            if not room.poll().terminal:
                self.note("prefill caller", "call", f"close room {number}", "prefill")
            room.close()
        end = self.world.now + PARKED_S + 1
        with running(self):
            while self.world.now < end and self.world.step(timers=True):
                self.hand.listen()
        self._look()
        tables = self.engine.tables()
        kept = {
            name: n
            for name, n in tables.items()
            if n and name in ("rooms", "grants", "parked", "posted", "keys", "in_flight")
        }
        self.check("C1", not kept, f"every room is closed, every grant over, and prefill holds {kept}")
        self._serve()

    def _settle(self) -> None:
        with running(self):
            for _ in range(3):
                settle(self, self.world)
                self._look()

    def _serve(self) -> None:
        """Another decode is served as if nothing had happened."""
        if "C2" in self.shown:  # a room has failed before
            self.premise("L4")
        other = HandDecode(self, self.world, target_pool(SHAPE, pages=4), "another decode")
        other.join(self.engine.address)
        room = self.engine.open(77, pages=PAGES)
        room.send([0, 1])
        manifest, pages = Manifest(PAGES, ((0, PAGES),), (), ()), np.array([3, 1], dtype="<i4").tobytes()
        other.say(wire.Metadata(77, 0, 1, 5, manifest, pages, -1, ()), 1)
        with running(self):
            settle(self, self.world)
        self.check("L4", room.poll() is Status.DONE, f"another decode is not served: {room!r}, {room.failure}")
