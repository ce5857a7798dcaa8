"""The decode side: rooms, grants and their leases as frozen values, and one turn of them.

The counterpart of `engine.decode_core` and `engine.decode_links`. What decides is asked of the running code through
its module at every step (`rooms.step_decode`, `memory.step_lease`, `ledger.within`, `decode_state.Peer.floor`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...engine import decode_state
from ...protocol import notify, wire
from ...protocol.errors import WireError
from ...protocol.events import (
    DEADLINE_REASON,
    Accepted,
    Close,
    Command,
    DecodeEvent,
    Do,
    Fail,
    Landed,
    LeaseEvent,
    Located,
    Timer,
)
from ...protocol.events import RoomEvent as On
from ...protocol.failure import Failure, Reason
from ...protocol.status import TERMINAL, Phase
from ...statemachine import ledger, memory, rooms
from ...statemachine.table import Kind
from .glue import CUT, DEAD, EOF, UP, Broken, Cells, Effects, Ended, Sent, judge_step
from .scenario import TOKEN, Plan

Lease = memory.Lease
_LEASE_EVENTS = {
    Do.LEASE_LANDED: LeaseEvent.LANDED,
    Do.LEASE_FAILED: LeaseEvent.FAILED,
    Do.LEASE_CLOSED: LeaseEvent.CLOSED,
}


class Grant(NamedTuple):
    """One METADATA of one use to one lane. number: 0 while held back. peer: its life. proven: its writer is gone."""

    lease: Lease
    number: int = 0
    peer: int = 0
    retry: bool = False
    freed: bool = False
    released: bool = False
    proven: bool = False


class Record(NamedTuple):
    """A room. room: None once nothing can touch it any more; what its caller saw stays in `last`."""

    room: Any
    last: Ended
    timer: Timer | None = None
    cap: bool = False
    grants: tuple[Grant, ...] = ()
    closed: bool = False


class Link(NamedTuple):
    """The connection to a prefill engine. peer: which life of it. goodbye: it has said GOODBYE."""

    up: bool = False
    peer: int = 0
    next_grant: int = 1
    goodbye: bool = False


class DecodeSide(NamedTuple):
    """A decode engine: is its process running, one record per use so far (None: not opened yet), one link per lane.

    held: prefill was asked to keep the room.
    """

    run: str
    records: tuple[Record | None, ...]
    links: tuple[Link, ...]
    held: bool = False


def start(plans: tuple[Plan, ...], lanes: int) -> DecodeSide:
    """Before anything is opened."""
    return DecodeSide(UP, (None,) * len(plans), (Link(),) * lanes)


def mirrored(side: DecodeSide) -> DecodeSide:
    """The side with its two lanes in each other's place."""
    records = tuple(None if record is None else _mirrored(record) for record in side.records)
    return side._replace(records=records, links=side.links[::-1])


def _mirrored(record: Record) -> Record:
    room = record.room
    if room is not None:
        turned = ledger.DecodeLedger(room.ledger.senders[::-1])
        room = rooms.DecodeRoom(room.phase, turned, room.cause)
    return record._replace(room=room, grants=record.grants[::-1])


class DecodeTurn:
    """One turn. The event is a tuple: what happens, then its arguments; each names a method `on_...`."""

    def __init__(self, plans: tuple[Plan, ...], cells: Cells, side: DecodeSide) -> None:
        self._plans = plans
        self._held_before = side.held
        self._cells = cells
        self._run = side.run
        self._records = list(side.records)
        self._links = list(side.links)
        self._frames: list[tuple[int, Sent]] = []
        self._broken: Broken | None = None
        self._untidy: Broken | None = None

    def take(self, event: tuple[Any, ...]) -> tuple[DecodeSide, Effects]:
        """The side after an event, and what it hands over."""
        getattr(self, f"on_{event[0]}")(*event[1:])
        records = tuple(None if record is None else _settled_down(record) for record in self._records)
        side = DecodeSide(self._run, records, tuple(self._links), self._held_before)
        return side, Effects(tuple(self._frames), (), self._broken)

    # -- what happens --------------------------------------------------------------------------------------------

    def on_open(self, use: int) -> None:
        """The caller opens the room."""
        room = rooms.decode_room()
        grants = tuple(Grant(memory.LEASE.initial) for _ in self._links)
        self._records[use] = Record(room, Ended(room.phase, None, None, 0), grants=grants)
        self._carry_out(use, rooms.DECODE_ROOM.initial_commands)
        self._step(use, Located((self._plans[use].manifest,) * len(self._links)))

    def on_hold(self) -> None:
        """The caller asks prefill to keep the room; decode has no memory for it yet."""
        self._held_before = True
        for lane in range(len(self._links)):
            self._push(lane, Sent(wire.Hold(*self._plans[0].key), self._floor(lane)))

    def on_fail(self, use: int, column: On, reason: Reason) -> None:
        """Something ends the room: its caller aborts, the engine shuts down."""
        self._fail(use, column, reason)

    def on_close(self, use: int) -> None:
        """The caller is finished with the room."""
        self._step(use, Close(), Reason.ABORTED)

    def on_connect(self, lane: int, peer: int) -> None:
        """The handshake with a prefill engine is complete. peer: which life of it."""
        link = self._links[lane]
        if link.peer != peer:
            link = Link(peer=peer)
        self._links[lane] = link._replace(up=True, goodbye=False)
        for use in self._of_peer(lane, peer):
            self._lease(use, lane, LeaseEvent.LINK_UP)
        for use, record in enumerate(self._records):
            if record is not None and self._held(record.grants[lane]):
                self._send_metadata(use, lane)

    def on_refused(self, lane: int) -> None:
        """The handshake is refused: the rooms that wait for the link learn it."""
        for use, record in enumerate(self._records):
            if record is not None and self._held(record.grants[lane]):
                self._fail(use, On.PEER_LOST, Reason.HANDSHAKE_REFUSED)

    def on_frame(self, lane: int, sent: Sent) -> None:
        """A frame arrives, or the connection ends."""
        if sent.end:
            self._lost(lane, sent.end)
            return
        match sent.body:
            case wire.Accept(number):
                for use in self._numbered(lane, number):
                    self._step(use, Accepted(lane))
            case wire.Failed(number, reason, _):
                self._peer_failed(lane, number, reason)
            case wire.Reject(number, reason, _):
                self._peer_failed(lane, number, reason)
                self._acked(lane, number)
            case wire.Ack(number):
                self._peer_failed(lane, number, Reason.PEER_FAILED)
                self._acked(lane, number)
            case wire.Goodbye(undrained):
                self._links[lane] = self._links[lane]._replace(goodbye=True)
                for use in self._of_peer(lane, self._links[lane].peer):
                    number = self._grant(use, lane).number
                    self._fail(use, On.PEER_LOST, Reason.PEER_LOST)
                    if number not in undrained:
                        self._lease(use, lane, LeaseEvent.ACKED)

    def on_note(self, lane: int, agent: bool, message: bytes) -> None:
        """A notification arrives. agent: it carries the name of the agent that the grant was given to."""
        try:
            number, token, parts, _, _ = notify.decode(message)
        except WireError:
            return
        use = token - TOKEN
        record = self._records[use] if 0 <= use < len(self._records) else None
        if record is None or record.room is None or record.room.phase in TERMINAL or not agent:
            return
        if record.grants[lane].number != number or not number:
            return
        for kind, component, first, size in parts:
            if not ledger.within(self._plans[use].manifest, kind, component, first, first + size):
                self._fail(use, On.VIOLATION, Reason.PROTOCOL)
                return
            self._step(use, Landed(lane, kind, component, first, first + size))

    def on_deadline(self, use: int, timer: Timer) -> None:
        """A deadline of the room passes."""
        self._fail(use, On.DEADLINE, DEADLINE_REASON[timer])

    def on_retry(self, use: int, lane: int) -> None:
        """The abort retry of a lease is due."""
        self._grant_is(use, lane, self._grant(use, lane)._replace(retry=False))
        self._lease(use, lane, LeaseEvent.RETRY)

    def on_silent(self, lane: int) -> None:
        """The peer has been silent for too long: the connection is given up."""
        self._push(lane, Sent(wire.Goodbye(), self._floor(lane)))
        self._push(lane, Sent(None, end=EOF))
        self._lost(lane, CUT)

    def on_fenced(self, lane: int) -> None:
        """The orchestrator's word that the silent writer was fenced."""
        for use in self._of_peer(lane, self._links[lane].peer):
            self._fail(use, On.PEER_LOST, Reason.PEER_LOST)
            self._lease(use, lane, LeaseEvent.FENCED)

    def on_run(self, run: str) -> None:
        """The process stands still, goes on, or dies."""
        self._run = run
        if run == DEAD:
            self._links = [link._replace(up=False) for link in self._links]

    # -- rooms ---------------------------------------------------------------------------------------------------

    def _fail(self, use: int, column: On, reason: Reason) -> None:
        self._step(use, Fail(column, reason), reason)

    def _step(self, use: int, event: DecodeEvent, reason: Reason | None = None) -> None:
        record = self._records[use]
        if record is None or record.room is None:
            return
        before = record.room
        room, row = rooms.step_decode(before, event)
        self._cells.visit(rooms.DECODE_ROOM, before.phase, event.KIND)
        first = record.last.first
        if row.kind is not Kind.IGNORE and room.phase is Phase.FAILED and before.phase not in TERMINAL:
            first = reason
        after = Ended(room.phase, room.cause, first, record.last.reports)
        self._records[use] = record._replace(room=room, last=after)
        if row.kind is not Kind.IGNORE:
            self._carry_out(use, row.commands)
        now = self._records[use]
        assert now is not None
        broken = judge_step("the room on decode", record.last, now.last, _armed(now))
        self._broken = self._broken or broken or self._untidy

    def _carry_out(self, use: int, commands: tuple[Command, ...]) -> None:
        for do, timer in commands:
            record = self._records[use]
            assert record is not None
            match do:
                case Do.ARM:
                    change = {"cap": True} if timer is Timer.CAP else {"timer": timer}
                    self._records[use] = record._replace(**change)
                case Do.DISARM:
                    self._records[use] = record._replace(cap=False, timer=None)
                case Do.SEND_METADATA:
                    for lane, link in enumerate(self._links):
                        if link.up:
                            self._send_metadata(use, lane)
                case Do.LEASE_LANDED | Do.LEASE_FAILED | Do.LEASE_CLOSED:
                    for lane in range(len(self._links)):
                        self._lease(use, lane, _LEASE_EVENTS[do])
                case Do.REPORT:
                    if _armed(record):
                        self._untidy = Broken("C2", "decode's caller hears the end before the clean-up")
                    last = record.last._replace(reports=record.last.reports + 1)
                    self._records[use] = record._replace(last=last)
                case Do.FORGET:
                    self._records[use] = record._replace(closed=True)
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    # -- leases --------------------------------------------------------------------------------------------------

    def _grant(self, use: int, lane: int) -> Grant:
        record = self._records[use]
        assert record is not None
        return record.grants[lane]

    def _grant_is(self, use: int, lane: int, grant: Grant) -> None:
        record = self._records[use]
        assert record is not None
        grants = (*record.grants[:lane], grant, *record.grants[lane + 1 :])
        self._records[use] = record._replace(grants=grants)

    def _lease(self, use: int, lane: int, event: LeaseEvent) -> None:
        grant = self._grant(use, lane)
        lease, row = memory.step_lease(grant.lease, event)
        self._cells.visit(memory.LEASE, grant.lease, event)
        proven = grant.proven or event in (LeaseEvent.WRITER_GONE, LeaseEvent.FENCED)
        self._grant_is(use, lane, grant._replace(lease=lease, proven=proven))
        for do, _ in row.commands:
            grant = self._grant(use, lane)
            match do:
                case Do.SEND_ABORT:
                    if self._links[lane].up and self._links[lane].peer == grant.peer:
                        why = Failure(self._cause(use) or Reason.ABORTED)
                        self._push(lane, Sent(wire.Abort(grant.number, *why.told), self._floor(lane)))
                case Do.ARM:
                    self._grant_is(use, lane, grant._replace(retry=True))
                case Do.DISARM:
                    self._grant_is(use, lane, grant._replace(retry=False))
                case Do.FREE:
                    self._grant_is(
                        use, lane, grant._replace(freed=True, proven=False, released=event is not LeaseEvent.LANDED)
                    )
                case _:
                    raise AssertionError(f"{do} is no command of this table")

    def _cause(self, use: int) -> Reason | None:
        record = self._records[use]
        assert record is not None
        return record.last.first

    @staticmethod
    def _held(grant: Grant) -> bool:
        return not grant.number and not grant.freed

    def _send_metadata(self, use: int, lane: int) -> None:
        link, grant = self._links[lane], self._grant(use, lane)
        number = link.next_grant
        self._links[lane] = link._replace(next_grant=number + 1)
        self._grant_is(use, lane, grant._replace(number=number, peer=link.peer))
        self._lease(use, lane, LeaseEvent.ADVERTISED)
        self._push(lane, Sent(self._plans[use].metadata(number), self._floor(lane)))

    def _floor(self, lane: int) -> int:
        link = self._links[lane]
        peer = decode_state.Peer(1, "prefill", "agent", 1)
        peer.next_grant = link.next_grant
        live: Any = dict.fromkeys(self._grant(use, lane).number for use in self._of_peer(lane, link.peer))
        peer.grants = live  # the numbers are all that a floor looks at
        return peer.floor

    def _push(self, lane: int, sent: Sent) -> None:
        self._frames.append((lane, sent))

    # -- peers ---------------------------------------------------------------------------------------------------

    def _of_peer(self, lane: int, peer: int) -> list[int]:
        """The uses whose grant to this life of the lane's engine is not free, as `Peer.grants` holds them."""
        return [
            use
            for use, record in enumerate(self._records)
            if record is not None
            and record.grants[lane].number
            and record.grants[lane].peer == peer
            and not record.grants[lane].freed
        ]

    def _numbered(self, lane: int, number: int) -> list[int]:
        found = self._of_peer(lane, self._links[lane].peer)
        return [use for use in found if self._grant(use, lane).number == number]

    def _peer_failed(self, lane: int, number: int, reason: Reason) -> None:
        for use in self._numbered(lane, number):
            record = self._records[use]
            if record is not None and record.room is not None and record.room.phase not in TERMINAL:
                self._fail(use, On.PEER_FAILED, reason)

    def _acked(self, lane: int, number: int) -> None:
        for use in self._numbered(lane, number):
            self._lease(use, lane, LeaseEvent.ACKED)

    def _lost(self, lane: int, end: str) -> None:
        link = self._links[lane]
        self._links[lane] = link._replace(up=False, goodbye=False)
        for use in self._of_peer(lane, link.peer):
            self._fail(use, On.PEER_LOST, Reason.PEER_LOST)
            if end == EOF and not link.goodbye:
                self._lease(use, lane, LeaseEvent.WRITER_GONE)


def _armed(record: Record) -> tuple[Timer, ...]:
    cap = (Timer.CAP,) if record.cap else ()
    return cap if record.timer is None else (*cap, record.timer)


def _settled_down(record: Record) -> Record:
    """A closed room whose leases are over: nothing can touch it, so its ledger says nothing any more."""
    over = record.closed and all(grant.freed and not grant.retry for grant in record.grants)
    return record._replace(room=None) if over else record
