"""EngineCore: what both engines share. No thread, clock, socket or randomness of its own: all of it comes by the ports.

`turn()` takes in what the ports have, steps machines, carries out their commands, fires alarms, and flushes. It never
blocks. Whoever owns the core calls `turn` again when something arrives or at `next_deadline()`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.failure import Failure
from ..protocol.identity import RoomKey, agent_name
from ..protocol.layout import Instance, Layout, Rank, Regions
from ..protocol.status import TERMINAL, Phase
from ..transport.ports import Clock, Closed, ControlChannel, FrameIn, Ids, Opened, Registry, Transport
from .health import Health, Held, judge, registered_bytes
from .settings import EngineSettings
from .timers import Alarm, Timers

log = logging.getLogger("kvrooms.engine")
CONTEXT_MAX = 8
_AT_REST = TERMINAL | {Phase.METADATA}


class Ports:
    """The ports of one engine, and what it is: rank `rank` of `instance` (None: the only one)."""

    def __init__(  # noqa: PLR0913 - one name per port
        self,
        *,
        name: str,
        incarnation: int,
        layout: Layout,
        regions: Regions,
        settings: EngineSettings,
        transport: Transport,
        channel: ControlChannel,
        registry: Registry,
        clock: Clock,
        ids: Ids,
        instance: Instance | None = None,
        rank: int = 0,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.layout = layout
        self.regions = regions
        self.settings = settings
        self.transport = transport
        self.channel = channel
        self.registry = registry
        self.clock = clock
        self.ids = ids
        self.instance = instance or Instance((Rank(layout),), incarnation)
        self.rank = rank


class Link:
    """One connection and its handshake, either side. Subclasses add what each side knows of its peer."""

    def __init__(self) -> None:
        self.connection: int | None = None
        self.incarnation = 0
        self.engine = ""
        self.up = False
        self.goodbye = False
        self.dropped = False
        self.last_heard = 0.0
        self.last_sent = 0.0
        self.ping = 0
        self.ping_sent = 0.0
        self.answered = True


class EngineCore:
    """The shared half of the two cores. Only the owning thread calls it, except `submit`, which any thread may call."""

    def __init__(self, ports: Ports) -> None:
        self.name = ports.name
        self.incarnation = ports.incarnation
        self.layout = ports.layout
        self.regions = ports.regions
        self.settings = ports.settings
        self.transport = ports.transport
        self.channel = ports.channel
        self.registry = ports.registry
        self.clock = ports.clock
        self.ids = ports.ids
        self.instance = ports.instance
        self.rank = ports.rank
        self.agent = agent_name(ports.incarnation)
        self.counters: Counter[str] = Counter()
        self._complaints: Counter[str] = Counter()
        self.closing = False
        self.draining = False
        self.reported = False
        self.patient = False  # whether what comes next takes a peer longer than a look: no polling without a pause
        self.now = self.progressed_at = self.clock.now()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._links: dict[int, Link] = {}
        self._timers = Timers()

    # -- the loop ------------------------------------------------------------------------------------------------

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the next turn. Any thread."""
        self._inbox.append((call, arguments))

    @property
    def has_input(self) -> bool:
        """Whether calls are queued."""
        return bool(self._inbox)

    def turn(self) -> bool:
        """One round over all ports, in the order of `first_cause`. Returns whether anything happened."""
        self.now = self.clock.now()
        # Completions first: a peer that leaves after its last write has done all that it owed.
        busy = self._take_in()
        inbox = self._inbox
        for _ in range(len(inbox)):
            call, arguments = inbox.popleft()
            call(*arguments)
            busy = True
        for event in self.channel.poll():
            busy = True
            if isinstance(event, FrameIn):
                self._frame_in(*event)
            elif isinstance(event, Opened):
                self._opened(event)
            else:
                self._closed(event)
        for owner, alarm in self._timers.due(self.now):
            busy = True
            self._alarm(owner, alarm)
        self.channel.flush()
        return self._work() or busy

    def next_deadline(self) -> float | None:
        """When the next alarm is due, on the clock's scale; None when none is set."""
        return self._timers.next_deadline()

    @property
    def listening(self) -> bool:
        """Whether the transport has to be polled: it cannot wake anybody."""
        raise NotImplementedError

    def health(self) -> Health:
        """How the engine is. Any thread."""
        now = self.clock.now()
        began = [record.opened for record in self.open_records() if record.room_phase not in _AT_REST]
        still_s = max(0.0, now - max(self.progressed_at, min(began))) if began else 0.0
        registered = registered_bytes(self.layout, self.regions)
        rooms = len(self.open_records())
        return judge(self.settings, registered=registered, now=now, rooms=rooms, still_s=still_s, held=self.held())

    def open_records(self) -> list[Record]:
        """The rooms that are not closed. Any thread."""
        raise NotImplementedError

    def held(self) -> list[Held]:
        """Ended rooms whose memory is not free. Any thread."""
        raise NotImplementedError

    def tables(self) -> dict[str, int]:
        """The number of entries of every table: equal before and after any number of finished rooms."""
        return {"links": len(self._links), "timers": len(self._timers), "in_flight": self.transport.in_flight}

    def _take_in(self) -> bool:
        """Take in what the transport and the registry have."""
        raise NotImplementedError

    def _work(self) -> bool:
        """Work that is left over when everything is taken in."""
        return False

    # -- frames --------------------------------------------------------------------------------------------------

    def _send(self, link: Link, body: wire.Body) -> None:
        """Queue a frame for a peer; nothing happens without a connection."""
        if link.connection is None:
            return
        link.last_sent = self.now
        frame = wire.encode(body, self.incarnation, link.incarnation, self._floor(link))
        self.channel.send(link.connection, frame)

    def _floor(self, link: Link) -> int:
        """What every frame to this peer says about the grants that are over (0 from prefill)."""
        return 0

    def _frame_in(self, connection: int, frame: bytes) -> None:
        link = self._links.get(connection)
        if link is None or link.dropped:
            return  # it was closed by us while this frame was on its way
        try:
            received = wire.decode(frame)
        except WireError as error:
            self.counters["frames malformed"] += 1
            self._complain("a malformed frame", error)
            if not link.up:
                self._refuse(link, (str(error),))
            return
        if link.up and (received.source != link.incarnation or received.target != self.incarnation):
            self.counters["frames of another incarnation"] += 1
            self._complain("a frame of another incarnation", f"{link.engine}: {received.source:016x}")
            return
        link.last_heard = self.now
        if link.up:
            self._reached(link, received.floor)
        body = received.body
        if type(body) is wire.Ping:  # not isinstance: see `protocol.events`
            self._send(link, wire.Pong(body.sequence))
        elif type(body) is wire.Pong:
            if body.sequence == link.ping:
                link.answered = True
                self._confirmed(link)
        elif not link.up:
            self._handshake(link, received.source, received.target, body)
        elif type(body) is wire.Goodbye:
            link.goodbye = True
            self._left(link, body.undrained)
        else:
            self._frame(link, body)

    def _unexpected(self, link: Link, body: wire.Body) -> None:
        self.counters["frames unexpected"] += 1
        self._complain("a frame that is not for this side", type(body).__name__)

    def _complain(self, what: str, detail: object) -> None:
        """Log what a peer did wrong: the first time, the second, the fourth, ... of its kind."""
        self._complaints[what] += 1
        times = self._complaints[what]
        if times & (times - 1) == 0:
            log.warning("%s: %s: %s (%d so far)", self.name, what, detail, times)

    def _reached(self, link: Link, floor: int) -> None:
        """What any frame of that peer, a heartbeat too, says about the grants that are over."""

    def _frame(self, link: Link, body: wire.Body) -> None:
        """A frame of a peer whose handshake is complete."""
        raise NotImplementedError

    def _handshake(self, link: Link, source: int, target: int, body: wire.Body) -> None:
        """A frame of a peer whose handshake is not complete."""
        raise NotImplementedError

    def _refuse(self, link: Link, words: tuple[str, ...]) -> None:
        """Bytes that make no handshake."""
        raise NotImplementedError

    def _left(self, link: Link, undrained: tuple[int, ...]) -> None:
        """The peer said GOODBYE."""

    def _confirmed(self, link: Link) -> None:
        """The peer has answered our latest ping."""

    # -- connections ---------------------------------------------------------------------------------------------

    def _opened(self, event: Opened) -> None:
        raise NotImplementedError

    def _closed(self, event: Closed) -> None:
        link = self._links.pop(event.connection, None)
        if link is None:
            return
        link.connection, link.dropped = None, False
        self._timers.disarm(link, Alarm.HEARTBEAT)
        self._timers.disarm(link, Alarm.HANDSHAKE)
        if not self.closing:
            log.info(
                "%s: connection to %s ended: %s %s", self.name, link.engine or "?", event.cause.value, event.detail
            )
        self._lost(link, event)
        self._let_go(link, event.connection)

    def _let_go(self, link: Link, connection: int) -> None:
        """Our end of a connection that is over may be closed; a peer may read our death into that."""
        self.channel.close(connection)

    def _lost(self, link: Link, event: Closed) -> None:
        """A connection is over, in whatever state its handshake was."""
        raise NotImplementedError

    def _drop(self, link: Link, why: str) -> None:
        """Close a connection ourselves; `_closed` follows from the channel.

        GOODBYE goes first, so that the peer does not take our kernel's EOF for our death; it lists what may still be
        written. Nothing that arrives after it is listened to: the promise covers grants that we have not seen.
        """
        self.counters[f"connections dropped: {why}"] += 1
        if link.connection is not None and not link.dropped:
            if link.up:
                self._send(link, wire.Goodbye(self._undrained_of(link)))
            link.dropped = True
            self.channel.close(link.connection)

    def _established(self, link: Link) -> None:
        link.up = True
        link.last_heard = self.now
        self._timers.disarm(link, Alarm.HANDSHAKE)
        self._timers.arm(link, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _beat(self, link: Link) -> None:
        """A heartbeat is due: give up a silent peer, ping the others."""
        if self.now - link.last_heard > self.settings.heartbeat_timeout_s:
            log.warning("%s: %s has been silent for %.1f s", self.name, link.engine, self.now - link.last_heard)
            self._drop(link, "silent")
            return
        self._ring(link)
        self._timers.arm(link, Alarm.HEARTBEAT, self.now + self.settings.heartbeat_s)

    def _ring(self, link: Link) -> None:
        """Ping, with a new number if the last one was answered; what confirms is when a number was first sent."""
        if link.answered:
            link.answered = False
            link.ping += 1
            link.ping_sent = self.clock.now()
        self._send(link, wire.Ping(link.ping))

    def _alarm(self, owner: object, alarm: Alarm) -> None:
        """An alarm has fired."""
        match alarm:
            case Alarm.HEARTBEAT:
                assert isinstance(owner, Link)
                self._beat(owner)
            case Alarm.HANDSHAKE:
                assert isinstance(owner, Link)
                self._drop(owner, "no handshake")
            case _:
                self._own_alarm(owner, alarm)

    def _own_alarm(self, owner: object, alarm: Alarm) -> None:
        """An alarm of a side's own kinds."""
        raise NotImplementedError

    # -- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no new rooms."""
        self.draining = True

    def shutdown(self) -> None:
        """Fail every open room; `undrained` tells when nothing is left."""
        raise NotImplementedError

    @property
    def undrained(self) -> int:
        """How many grants may still be written to, or are being written."""
        raise NotImplementedError

    def farewell(self) -> None:
        """Say GOODBYE to every peer and close. The transport's agent must be closed before."""
        for link in list(self._links.values()):
            self._drop(link, "closing")
        self.channel.flush()

    def _undrained_of(self, link: Link) -> tuple[int, ...]:
        """The grants of this peer that may still be written."""
        return ()


class Record:
    """A room as the core holds it: key, watcher, cause, and which deadline is armed. The machine is the subclass's."""

    def __init__(self, key: RoomKey, settings: EngineSettings, opened: float) -> None:
        self.key = key
        self.settings = settings
        self.opened = opened
        self.progressed = False
        self.progressed_at = opened
        self.bytes = 0
        self.failure: Failure | None = None
        self.error: Exception | None = None  # what the transport raised, where that is the cause
        self.context: list[Failure] = []

    @property
    def room_phase(self) -> Phase:
        """Of the room's machine."""
        raise NotImplementedError

    def progress(self, now: float) -> None:
        """Something has landed or settled."""
        self.progressed, self.progressed_at = True, now

    def add_context(self, failure: Failure) -> None:
        """Remember a later cause, within bounds."""
        if len(self.context) < CONTEXT_MAX:
            self.context.append(failure)


def log_end(name: str, record: Record, phase: Phase, peer: str, now: float) -> None:
    """The one line that each room leaves in the log."""
    if log.isEnabledFor(logging.INFO):
        why, ms = f" {record.failure}" if record.failure else "", (now - record.opened) * 1e3
        log.info("%s: %s peer=%s %s%s bytes=%d ms=%.2f", name, record.key, peer, phase.value, why, record.bytes, ms)
