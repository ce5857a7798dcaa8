"""What both sides' callers do with their rooms: the plan's steps and faults, then the checks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import ClassVar, cast

from msgspec.structs import replace

from ..engine.decode import DecodeEngine
from ..engine.handle import Room
from ..engine.host import Assembly
from ..engine.prefill import PrefillEngine, PrefillRoom
from ..engine.real import assemble
from ..engine.settings import load_settings
from ..protocol.errors import RoomClosed, RoomFailed
from ..protocol.registration import parse_address
from ..protocol.status import Status
from ..transport.ports import Transport
from .channel import FaultyChannel, Mark, hostile, poison
from .corrupt import CorruptingTransport
from .memory import Holding, Pools, spelled
from .messages import Complaint, Ended, FromWorker, Order, Start
from .oracle import Oracle
from .plan import Fault, Plan, plan_of
from .plan import Side as SideName
from .stranger import call_on

DEADLINE_S, CAP_S = 15.0, 20.0
SILENT_DEADLINE_S, SILENT_CAP_S = 1.0, 10.0
_TICK_S = 0.5
_ROOM_WAIT_S = 0.005


def deadlines(plan: Plan, *names: str) -> dict[str, float]:
    """A room's own timeouts: short ones where only they may end it."""
    seconds, cap = (SILENT_DEADLINE_S, SILENT_CAP_S) if plan.silent else (DEADLINE_S, CAP_S)
    return {**{f"{name}_timeout_s": seconds for name in names}, "cap_timeout_s": cap}


class Side:
    """One engine, its pools, and its caller. Runs on one event loop."""

    role: ClassVar[SideName]
    engine: PrefillEngine | DecodeEngine
    address = ""

    def __init__(self, start: Start, say: Callable[[FromWorker], None]) -> None:
        self.start = start
        self.say = say
        self.pools = Pools(Oracle(start.config.seed))
        self._settings = load_settings(**start.settings)
        self._open: dict[int, Room] = {}
        self.held = 0
        """Rooms of which items are still held."""

    def _assemble(self, listen: tuple[str, int] | None) -> Assembly:
        """The real parts, with faults between the core and its control channel."""
        assembly = assemble(
            self.start.name, self.pools.memory, self._settings, listen=listen,
            registry=self.start.registry if listen else None,
        )  # fmt: skip
        self.channel = FaultyChannel(assembly.ports.channel)
        assembly.ports.channel = self.channel
        return assembly

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def abandon(self, number: int) -> None:
        """The other side of a room is dead for good: end it, if it did not end by itself."""
        room = self._open.get(number)
        if room is not None and not room.poll().terminal:
            room.abort("its other side is dead")

    async def carry(self, order: Order) -> None:
        """One room from its order to the return of its memory."""
        plan = plan_of(self.start.config, order.number)
        self.held += 1
        holding = await self._claim(plan)
        self._mark(plan)
        try:
            await self._one(plan, order, holding)
        finally:
            self._unmark((plan.room, plan.attempt))
        self.pools.give_back(holding)
        self.held -= 1

    async def _claim(self, plan: Plan) -> Holding:
        while True:
            holding = self.pools.take(plan, self._pages(plan))
            if holding is not None:
                return holding
            await asyncio.sleep(_ROOM_WAIT_S)

    def _pages(self, plan: Plan) -> int:
        raise NotImplementedError

    async def _one(self, plan: Plan, order: Order, holding: Holding) -> None:
        raise NotImplementedError

    def _mark(self, plan: Plan) -> None:
        """Tell the channel what to do to the room's messages."""
        injury = plan.injury
        if injury is None or injury.side != self.role:
            return
        draw = random.Random(plan.number)
        first = "metadata" if self.role == "decode" else "accept"
        marks: dict[Fault, tuple[str, Mark]] = {
            Fault.LOSE: (injury.frame, Mark(copies=0)),
            Fault.REPEAT: (injury.frame, Mark(copies=1 + injury.times)),
            Fault.HOSTILE: (first, Mark(before=hostile(draw, self.role))),
            Fault.POISON: ("metadata", Mark(before=poison)),
        }
        if injury.fault in marks:
            frame, mark = marks[injury.fault]
            times = injury.times if injury.fault is Fault.LOSE else 1
            self.channel.mark((plan.room, plan.attempt), frame, *[mark] * times)

    def _unmark(self, room: tuple[int, int]) -> None:
        """The room is over: forget what was not done to it."""
        self.channel.unmark(room)

    def _ends_it(self, plan: Plan) -> Callable[[Room], object] | None:
        """How this side's caller ends the room on purpose, if it does."""
        injury = plan.injury
        if injury is None:
            return None
        if injury.fault in {Fault.ABORT, Fault.CLOSE} and injury.side == self.role:
            return Room.abort if injury.fault is Fault.ABORT else Room.close
        return Room.abort if injury.abort == self.role else None

    async def _see_through(self, plan: Plan, room: Room, opened: float) -> Ended:
        """Wait for the end of a room, at most twice its longest deadline, and look at how it ended."""
        status = "hung"
        if await _ends(room, 2 * (SILENT_CAP_S if plan.silent else CAP_S)):
            status = "done" if room.poll() is Status.DONE else "failed"
        ended = time.monotonic()
        reason = detail = ""
        if status == "failed" and room.failure is not None:
            reason, detail = room.failure.reason.value, str(room.failure)
        met = self.channel.met.get((plan.room, plan.attempt), 0.0)
        return Ended(plan.number, self.role, status, reason, detail, opened, ended, met)

    async def _let_go(self, plan: Plan, room: Room) -> None:
        """Close the room, look at how its failure surfaces, and wait until its memory is free."""
        if room.poll() is Status.FAILED:
            wrong = _surfaces(room)
            if wrong:
                self.say(Complaint(f"{self.start.name}, room {plan.number}: {wrong}"))
        room.close()
        self._open.pop(plan.number, None)
        await room.memory_freed()


async def _ends(room: Room, seconds: float) -> bool:
    """Whether the room ends in so many seconds, those left out in which this process stood still."""
    while seconds > 0:
        before = time.monotonic()
        try:
            await asyncio.wait_for(_the_end_of(room), _TICK_S)
        except TimeoutError:
            seconds -= min(time.monotonic() - before, 2 * _TICK_S)
        else:
            return True
    return room.poll().terminal


async def _the_end_of(room: Room) -> Status:
    return await room


def _surfaces(room: Room) -> str:
    """What is wrong with how a failed room's exception surfaces; "" if nothing is."""
    try:
        room.failure_exception()
        return "it has failed, and failure_exception() raised nothing"
    except RoomFailed as error:
        if error.failure != room.failure:
            return f"it failed of {room.failure}, and raised {error.failure}"
    try:
        room.failure_exception()
        return "its failure was raised once, and then nothing was raised"
    except RoomFailed:
        return "its failure was raised twice"
    except RoomClosed:
        return ""


class PrefillSide(Side):
    """The side that sends."""

    role = "prefill"
    engine: PrefillEngine

    def __init__(self, start: Start, say: Callable[[FromWorker], None]) -> None:
        super().__init__(start, say)
        assembly = self._assemble(("127.0.0.1", start.port))
        self.engine = PrefillEngine(self.pools.memory, name=start.name, settings=self._settings, assembly=assembly)
        self.address = self.engine.address

    def _pages(self, plan: Plan) -> int:
        return plan.total

    async def _one(self, plan: Plan, order: Order, holding: Holding) -> None:
        self.pools.fill(plan, holding)
        await asyncio.sleep(plan.waits_s[0])
        opened = time.monotonic()
        room = self._open[plan.number] = self.engine.open(
            plan.room,
            attempt=plan.attempt,
            pages=plan.total if plan.declared else None,
            aux_index=holding.aux[0] if plan.aux else None,
            skip_state=not plan.conv,
            **deadlines(plan, "queued", "moving"),
        )
        await self._send(plan, room, holding)
        self.say(await self._see_through(plan, room, opened))
        await self._let_go(plan, room)

    async def _send(self, plan: Plan, room: PrefillRoom, holding: Holding) -> None:
        """Send chunk by chunk, and end the room before one of them if the plan says so."""
        ends_it, injury = self._ends_it(plan), plan.injury
        at, last = 0, len(plan.chunks) - 1
        for step, size in enumerate(plan.chunks):
            await asyncio.sleep(plan.gaps_s[step])
            if ends_it is not None and injury is not None and injury.step == step:
                await asyncio.sleep(injury.delay_s / 10)
                ends_it(room)
            state = spelled(plan, holding) if step == last else None
            try:
                room.send(holding.pages[at : at + size], state_indices=state, last=step == last)
            except RoomClosed:
                return
            at += size
        if ends_it is not None and injury is not None and injury.step > last:
            await asyncio.sleep(injury.delay_s / 10)
            ends_it(room)


class DecodeSide(Side):
    """The side that receives."""

    role = "decode"
    engine: DecodeEngine

    def __init__(self, start: Start, say: Callable[[FromWorker], None]) -> None:
        super().__init__(start, say)
        assembly = self._assemble(None)
        self._corrupting = CorruptingTransport(assembly.ports.transport, self.channel)
        assembly.ports.transport = cast(Transport, self._corrupting)
        self.engine = DecodeEngine(self.pools.memory, name=start.name, settings=self._settings, assembly=assembly)

    def _pages(self, plan: Plan) -> int:
        return plan.total - plan.prefix if plan.total > plan.prefix else 0

    async def _one(self, plan: Plan, order: Order, holding: Holding) -> None:
        if plan.injury is not None and plan.injury.fault is Fault.CORRUPT and self._settings.digest:
            self._corrupting.mark((plan.room, plan.attempt), lambda part: self.pools.landed_item(plan, holding, part))
        await asyncio.sleep(plan.waits_s[1])
        opened = time.monotonic()
        room = self._open[plan.number] = self.engine.open(
            plan.room,
            attempt=plan.attempt,
            bootstrap=self.start.registry,
            instance=order.prefill,
            pages=holding.pages,
            prefix_pages=plan.prefix,
            aux_index=holding.aux[0] if plan.aux else None,
            state_indices=spelled(plan, holding),
            skip_state=not plan.conv,
            **deadlines(plan, "bootstrap", "waiting", "moving"),  # type: ignore[arg-type]
        )
        meddling = asyncio.create_task(self._meddle(plan, order, room))
        ended = await self._see_through(plan, room, opened)
        if ended.status == "done":
            ended = replace(ended, wrong=self.pools.wrong(plan, holding))
        self.say(ended)
        await meddling
        await self._let_go(plan, room)

    def _unmark(self, room: tuple[int, int]) -> None:
        super()._unmark(room)
        self._corrupting.unmark(room)

    async def _meddle(self, plan: Plan, order: Order, room: Room) -> None:
        """What happens to the room on this side while it moves."""
        injury, ends_it = plan.injury, self._ends_it(plan)
        if injury is None:
            return
        if injury.fault is Fault.STRANGER:
            memory, draw = self.pools.memory, random.Random(plan.number)
            await call_on(draw, order.address, self.start.registry, memory.layout, memory.regions)
        if ends_it is not None:
            await asyncio.sleep(injury.delay_s)
            ends_it(room)


def control_port(address: str) -> int:
    """The port of an address "host:port"."""
    return parse_address(address)[1]
