"""Several ranks on each side: every interleaving of one room between P prefill and D decode ranks, with one fault.

Rooms, ledgers, leases and drains are the running ones. Between each pair of ranks lie frames in their order, one write,
and its notification; the glue carries commands out as the engines' cores do. A pair that owes nothing has no write.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...protocol.events import (
    Accepted,
    Bound,
    Declared,
    Do,
    DrainEvent,
    Fail,
    Landed,
    LeaseEvent,
    Located,
    Queued,
    RoomEvent,
    Settled,
)
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration, Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine import memory, rooms
from ...statemachine.memory import Drain, DrainValue, Lease
from ..evidence import Counterexample, Step
from .glue import Broken, Cells
from .search import Found

PAGE = Manifest(1, ((0, 1),), (), ())
EMPTY = Manifest(1, (), (), ())
DECLARED = Declared(Declaration(1, (), ()))
NONE, FLYING, LANDED = range(3)
FREED = (Lease.LANDED, Lease.RELEASED)


class Pair(NamedTuple):
    """What lies between one prefill and one decode rank."""

    to_prefill: tuple[str, ...] = ()
    to_decode: tuple[str, ...] = ()
    bound: bool = False
    accepted: bool = False
    lease: Lease = memory.LEASE.initial
    drain: DrainValue = DrainValue()
    write: int = NONE
    settled: bool = False
    told: bool = False


class World(NamedTuple):
    """All of it. prefills: the room and whether its caller has sent; None for a dead process. fault: may still be."""

    decodes: tuple[rooms.DecodeRoom, ...]
    prefills: tuple[tuple[rooms.PrefillRoom, bool] | None, ...]
    pairs: tuple[Pair, ...]
    fault: bool


FAULTS = ("decode aborts", "prefill aborts", "prefill dies")
OVERDUE = "decode overdue"
Move = tuple[str, World]


class Shape(NamedTuple):
    """What to explore. owed: per pair (p * D + d) whether that prefill rank owes that decode rank its page.

    fault: of `FAULTS`, at the first rank of its side, at any moment or never; "" for none. Which rank is called the
    first does not matter. `OVERDUE`: the deadline of any rank of decode passes. in_time: the callers of prefill have
    sent everything before. bound: prefill has bound every grant, and said so, before.
    """

    prefills: int
    decodes: int
    owed: tuple[bool, ...]
    fault: str = ""
    in_time: bool = False
    bound: bool = False


class Ranks:
    """The search."""

    def __init__(self, shape: Shape) -> None:
        self._cells = Cells()
        self._p, self._d, self._owed, self._fault, in_time, self._bound = shape
        prefills, decodes, owed, fault = self._p, self._d, self._owed, self._fault
        self._start = World(
            (rooms.decode_room(),) * decodes,
            ((rooms.prefill_room(), False),) * prefills,
            (Pair(),) * len(owed),
            bool(fault),
        )
        for p in range(prefills if in_time else 0):
            self._start = self._sends(self._start, p)

    def run(self) -> Found:
        """Explore it all."""
        start = self.located()
        paths: dict[World, tuple[World | None, str]] = {start: (None, "")}
        queue, steps, broken, checked = deque([start]), 0, dict[str, Counterexample](), Counter[str]()
        while queue:
            world, bottom = queue.popleft(), True
            for text, after in self.moves(world):
                bottom = False
                steps += 1
                if after not in paths:
                    paths[after] = (world, text)
                    queue.append(after)
            checked.update(self.premises(world, bottom=bottom))
            for found in self.judge(world, bottom=bottom):
                broken.setdefault(found.property, self._example(found, paths, world))
        cells = dict(self._cells.visits)
        return Found(len(paths), steps, complete=True, checked=dict(checked), broken=broken, cells=cells)

    @property
    def cells(self) -> Counter[str]:
        """How often each cell of the tables was taken."""
        return self._cells.visits

    def located(self) -> World:
        """Where it begins: the ranks of decode know those of prefill, and have told them what they want."""
        start = self._start
        for d in range(self._d):
            manifests = tuple(self._manifest(p, d) for p in range(self._p))
            start = self.decode(start, d, Located(manifests))
        while self._bound and any(pair.to_prefill or pair.to_decode for pair in start.pairs):
            i = next(i for i, pair in enumerate(start.pairs) if pair.to_prefill or pair.to_decode)
            _, start = next(self._between(start, i, *divmod(i, self._d), start.pairs[i]))
        return start

    def _manifest(self, p: int, d: int) -> Manifest:
        return PAGE if self._owed[p * self._d + d] else EMPTY

    def _example(self, found: Broken, paths: dict[World, tuple[World | None, str]], world: World) -> Counterexample:
        texts: list[str] = []
        at: World | None = world
        while at is not None:
            at, text = paths[at]
            texts.append(text)
        steps = tuple(Step(float(i), "ranks", "state", text) for i, text in enumerate(reversed(texts[:-1]), 1))
        name = f"explore ranks: {self._p} to {self._d}"
        return Counterexample(found.property, found.summary, name, {"owed": str(self._owed)}, steps)

    # -- what holds ----------------------------------------------------------------------------------------------

    def judge(self, world: World, *, bottom: bool, faultless: bool = True) -> Iterator[Broken]:
        """What is wrong in a state. bottom: nothing can happen any more. faultless: elsewhere there was no fault."""
        for i, pair in enumerate(world.pairs):
            p, d = divmod(i, self._d)
            if world.decodes[d].phase is Phase.DONE and self._owed[i] and pair.write != LANDED:
                yield Broken("S1", f"decode {d} is DONE, and the page of prefill {p} has not landed")
            if pair.lease in FREED and pair.write == FLYING and world.prefills[p] is not None:
                yield Broken("S3", f"the lease of prefill {p} at decode {d} is over, and its write is under way")
        if not bottom:
            return
        faultless = faultless and world.fault == self._start.fault
        phases = [room.phase for room in world.decodes] + [one[0].phase for one in world.prefills if one is not None]
        if faultless and set(phases) != {Phase.DONE}:
            yield Broken("L2", f"nothing happens any more, and the rooms are {[phase.value for phase in phases]}")
        if not set(phases) <= TERMINAL:
            yield Broken("L3", f"after a fault nothing happens any more: {[phase.value for phase in phases]}")
        for i, pair in enumerate(world.pairs):
            p, d = divmod(i, self._d)
            if pair.lease not in FREED:
                yield Broken("L5", f"the lease of prefill {p} at decode {d} stays {pair.lease.name}")
            if world.prefills[p] is not None and pair.bound and pair.drain.state is not Drain.DRAINED:
                yield Broken("L5", f"the drain of prefill {p} for decode {d} stays {pair.drain.state.name}")

    def premises(self, world: World, *, bottom: bool, faultless: bool = True) -> Iterator[str]:
        """The properties that have something to say of a state. See `judge`."""
        if any(room.phase is Phase.DONE for room in world.decodes):
            yield "S1"
        if any(pair.write == FLYING for pair in world.pairs):
            yield "S3"
        if bottom:
            yield "L2" if faultless and world.fault == self._start.fault else "L3"
            yield "L5"

    # -- what can happen -----------------------------------------------------------------------------------------

    def moves(self, world: World) -> Iterator[Move]:
        """Everything that can happen now."""
        for p, prefill in enumerate(world.prefills):
            if prefill is not None and not prefill[1] and prefill[0].phase not in TERMINAL:
                yield f"prefill {p}: its caller sends", self._sends(world, p)
        for i, pair in enumerate(world.pairs):
            p, d = divmod(i, self._d)
            yield from self._between(world, i, p, d, pair)
        if world.fault:
            yield from self._faults(world._replace(fault=False))

    def _sends(self, world: World, p: int) -> World:
        prefill = world.prefills[p]
        assert prefill is not None
        world = _with_prefill(world, p, (prefill[0], True))
        return self._prefill(self._prefill(world, p, Queued()), p, DECLARED)

    def _between(self, world: World, i: int, p: int, d: int, pair: Pair) -> Iterator[Move]:
        between = f"prefill {p}, decode {d}"
        prefill = world.prefills[p]
        if pair.to_prefill and prefill is not None:
            first = pair.to_prefill[0]
            after = _with_pair(world, i, pair._replace(to_prefill=pair.to_prefill[1:]))
            yield f"{between}: {first} arrives", self._at_prefill(after, i, p, d, first)
        if pair.to_decode:
            first = pair.to_decode[0]
            after = _with_pair(world, i, pair._replace(to_decode=pair.to_decode[1:]))
            yield f"{between}: {first} arrives", self._at_decode(after, i, p, d, first)
        if prefill is not None and self._may_post(prefill, i, pair):
            drain, _ = memory.step_drain(pair.drain, DrainEvent.POSTED)
            yield f"{between}: the write is posted", _with_pair(world, i, pair._replace(write=FLYING, drain=drain))
        if pair.write == FLYING:
            yield f"{between}: the write lands", _with_pair(world, i, pair._replace(write=LANDED))
        if pair.write == LANDED and not pair.told:
            after = _with_pair(world, i, pair._replace(told=True))
            yield f"{between}: the notification arrives", self._noted(after, i, p, d)
        if pair.write == LANDED and not pair.settled and prefill is not None:
            after = _with_pair(world, i, pair._replace(settled=True))
            after = self._drain(after, i, DrainEvent.SETTLED)
            yield f"{between}: the write settles", self._prefill(after, p, Settled(d, PartKind.KV, 0, 0, 1))

    def _may_post(self, prefill: tuple[rooms.PrefillRoom, bool], i: int, pair: Pair) -> bool:
        room, sent = prefill
        open_ = room.phase is not Phase.METADATA and pair.bound and pair.drain.state is Drain.OPEN
        return open_ and sent and self._owed[i] and pair.write == NONE

    def _faults(self, world: World) -> Iterator[Move]:
        abort, prefill = Fail(RoomEvent.ABORT, Reason.ABORTED), world.prefills[0]
        if self._fault == "decode aborts" and world.decodes[0].phase not in TERMINAL:
            yield "decode 0: its caller aborts", self.decode(world, 0, abort)
        if self._fault == "prefill aborts" and prefill is not None and prefill[0].phase not in TERMINAL:
            yield "prefill 0: its caller aborts", self._prefill(world, 0, abort)
        if self._fault == "prefill dies" and prefill is not None:
            yield "prefill 0: is killed", self._killed(world, 0)
        for d in range(self._d if self._fault == OVERDUE else 0):
            if world.decodes[d].phase not in TERMINAL:
                late = Fail(RoomEvent.DEADLINE, Reason.DEADLINE_MOVING)
                yield f"decode {d}: its deadline passes", self.decode(world, d, late)

    def _killed(self, world: World, p: int) -> World:
        for i in range(p * self._d, (p + 1) * self._d):
            pair = world.pairs[i]
            left = NONE if pair.write == FLYING else pair.write
            pair = pair._replace(to_prefill=(), to_decode=(*pair.to_decode, "its end"), write=left)
            world = _with_pair(world, i, pair)
        return _with_prefill(world, p, None)

    # -- as the cores do -----------------------------------------------------------------------------------------

    def _noted(self, world: World, i: int, p: int, d: int) -> World:
        if world.decodes[d].phase in TERMINAL:
            return world  # the token of an ended room is forgotten
        return self.decode(world, d, Landed(p, PartKind.KV, 0, 0, 1))

    def _at_prefill(self, world: World, i: int, p: int, d: int, frame: str) -> World:
        if frame == "METADATA":
            world = _with_pair(world, i, world.pairs[i]._replace(bound=True))
            return self._prefill(world, p, Bound(d, self._manifest(p, d), self._d))
        if world.pairs[i].drain.state is Drain.DRAINED:
            return self._push(world, i, to_decode="ACK")
        world = self._prefill(world, p, Fail(RoomEvent.PEER_FAILED, Reason.PEER_ABORTED))
        return self._drain(world, i, DrainEvent.VOIDED)

    def _at_decode(self, world: World, i: int, p: int, d: int, frame: str) -> World:
        if world.pairs[i].lease in FREED:
            return world  # a grant that is over is not known any more
        if frame == "ACCEPT":
            return self.decode(world, d, Accepted(p))
        lost = frame == "its end"
        fail = Fail(RoomEvent.PEER_LOST if lost else RoomEvent.PEER_FAILED, Reason.PEER_FAILED)
        if world.decodes[d].phase not in TERMINAL:
            world = self.decode(world, d, fail)
        if frame == "FAILED":
            return world
        return self._lease(world, i, LeaseEvent.WRITER_GONE if lost else LeaseEvent.ACKED)

    def decode(self, world: World, d: int, event: Any) -> World:
        """A step of the room of a rank of decode, and what follows from it."""
        before = world.decodes[d]
        room, row = rooms.step_decode(before, event)
        self._cells.visit(rooms.DECODE_ROOM, before.phase, event.KIND)
        world = world._replace(decodes=(*world.decodes[:d], room, *world.decodes[d + 1 :]))
        told = {Do.LEASE_LANDED: LeaseEvent.LANDED, Do.LEASE_FAILED: LeaseEvent.FAILED}
        for do, _ in row.commands:
            for i in range(d, len(world.pairs), self._d):
                if do is Do.SEND_METADATA:
                    world = self._lease(self._push(world, i, to_prefill="METADATA"), i, LeaseEvent.ADVERTISED)
                elif do in told:
                    world = self._lease(world, i, told[do])
        return world

    def _lease(self, world: World, i: int, event: LeaseEvent) -> World:
        lease, row = memory.step_lease(world.pairs[i].lease, event)
        self._cells.visit(memory.LEASE, world.pairs[i].lease, event)
        world = _with_pair(world, i, world.pairs[i]._replace(lease=lease))
        if any(do is Do.SEND_ABORT for do, _ in row.commands) and world.prefills[i // self._d] is not None:
            world = self._push(world, i, to_prefill="ABORT")
        return world

    def _prefill(self, world: World, p: int, event: Any) -> World:
        prefill = world.prefills[p]
        assert prefill is not None
        room, row = rooms.step_prefill(prefill[0], event)
        self._cells.visit(rooms.PREFILL_ROOM, prefill[0].phase, event.KIND)
        world = _with_prefill(world, p, (room, prefill[1]))
        for do, _ in row.commands:
            for i in range(p * self._d, (p + 1) * self._d):
                world = self._carried_out(world, i, do, room)
        return world

    def _carried_out(self, world: World, i: int, do: Do, room: rooms.PrefillRoom) -> World:
        """One command, for one of the room's writers: a pair that is bound and not drained."""
        pair = world.pairs[i]
        if not pair.bound or pair.drain.state is Drain.DRAINED:
            return world
        owes = self._owed[i] and pair.write == NONE
        if do is Do.SEND_ACCEPT and not pair.accepted and (owes or room.ledger.declared.complete):
            return self._push(_with_pair(world, i, pair._replace(accepted=True)), i, to_decode="ACCEPT")
        if do is Do.SEND_FAILED:
            return self._push(world, i, to_decode="FAILED")
        if do is Do.DRAIN_FINISHED:
            return self._drain(world, i, DrainEvent.FINISHED)
        return self._drain(world, i, DrainEvent.VOIDED) if do is Do.DRAIN_VOIDED else world

    def _drain(self, world: World, i: int, event: DrainEvent) -> World:
        before = world.pairs[i].drain
        if before.state is Drain.DRAINED:
            return world
        drain, row = memory.step_drain(before, event)
        self._cells.visit(memory.DRAIN, before.state, event)
        world = _with_pair(world, i, world.pairs[i]._replace(drain=drain))
        acknowledged = any(do is Do.SEND_ACK for do, _ in row.commands)
        return self._push(world, i, to_decode="ACK") if acknowledged else world

    @staticmethod
    def _push(world: World, i: int, *, to_prefill: str = "", to_decode: str = "") -> World:
        pair = world.pairs[i]
        if to_prefill:
            return _with_pair(world, i, pair._replace(to_prefill=(*pair.to_prefill, to_prefill)))
        return _with_pair(world, i, pair._replace(to_decode=(*pair.to_decode, to_decode)))


def _with_pair(world: World, i: int, pair: Pair) -> World:
    return world._replace(pairs=(*world.pairs[:i], pair, *world.pairs[i + 1 :]))


def _with_prefill(world: World, p: int, prefill: tuple[rooms.PrefillRoom, bool] | None) -> World:
    return world._replace(prefills=(*world.prefills[:p], prefill, *world.prefills[p + 1 :]))
