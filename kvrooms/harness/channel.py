"""The simulated control channel: connections between the engines of a `World`, and what may happen to their frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.wire import PREFIX_LENGTH
from ..transport.ports import ChannelEvent, CloseCause, Closed, FrameIn, Opened
from .faults import corrupted, truncated

if TYPE_CHECKING:
    from .world import World


def nobody() -> None:
    """Wakes no engine."""


class _End(NamedTuple):
    channel: SimChannel
    connection: int


class SimChannel:
    """Connections between the world's channels. A frame is delivered some time after it was flushed."""

    def __init__(self, world: World, name: str = "") -> None:
        self._world = world
        self._events: list[ChannelEvent] = []
        self._far: dict[int, _End] = {}
        self._queued: list[tuple[int, bytes]] = []
        self._jammed: set[int] = set()
        self._leaving: set[int] = set()
        self._address = ""
        self.name = name
        self.owner: Callable[[], None] = nobody
        self.dead = False

    def listen(self) -> str:
        """Take connections from now on; the address."""
        self._address = f"world:{self._world.number()}"
        self._world.listeners[self._address] = self
        return self._address

    def far(self, connection: int) -> SimChannel | None:
        """Whose the other end of a connection is, while it is open."""
        end = self._far.get(connection)
        return None if end is None else end.channel

    @property
    def jammed(self) -> bool:
        """Whether this end of a connection that it could not write to is still open."""
        return bool(self._jammed)

    def number_there(self, connection: int) -> int:
        """The number that a connection has at its other end; 0 when it is over."""
        end = self._far.get(connection)
        return 0 if end is None else end.connection

    @property
    def connections(self) -> list[int]:
        """The open connections, oldest first, without those that this end has closed."""
        return [connection for connection in self._far if connection not in self._leaving]

    def dial(self, address: str) -> int:
        """See `ControlChannel.dial`."""
        connection = self._world.number()
        self._world.later((self, connection), lambda: self._connect(connection, address))
        return connection

    def _connect(self, connection: int, address: str) -> None:
        if self.dead:
            return
        listener = self._world.listeners.get(address)
        if listener is None or listener.dead:
            self._event(Closed(connection, CloseCause.NOBODY, f"nobody listens at {address}"))
            return
        theirs = self._world.number()
        self._far[connection] = _End(listener, theirs)
        listener._far[theirs] = _End(self, connection)  # noqa: SLF001 - the other end of the same class
        self._event(Opened(connection, inbound=False, address=address))
        listener._event(Opened(theirs, inbound=True, address="world:0"))  # noqa: SLF001

    # -- frames --------------------------------------------------------------------------------------------------

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        self._queued.append((connection, frame[PREFIX_LENGTH:]))

    def flush(self) -> None:
        """See `ControlChannel.flush`."""
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        disturbed, witness = self._world.faults.frames, self._world.witness
        for connection, frame in queued:
            witness.sent(self, connection, frame)
            if disturbed:
                self._disturb(connection, frame)
            else:
                self._deliver_later(connection, frame)

    def _disturb(self, connection: int, frame: bytes) -> None:
        world = self._world
        faults, draw, tell = world.faults, world.random, world.witness.spoiled
        if draw.random() < faults.drop:
            tell("lost", self, connection, frame)
            return
        spoilt = frame
        if draw.random() < faults.corrupt:
            tell("corrupted", self, connection, frame)
            spoilt = corrupted(frame, draw)
        elif draw.random() < faults.truncate:
            tell("truncated", self, connection, frame)
            spoilt = truncated(frame, draw)
        self._deliver_later(connection, spoilt)
        if draw.random() < faults.repeat:
            tell("repeated", self, connection, frame)
            self._deliver_later(connection, frame)
        if draw.random() < faults.late:
            tell("late", self, connection, frame)
            world.hold((self, connection), draw.random() * faults.late_s)

    def _deliver_later(self, connection: int, frame: bytes) -> None:
        lane, ordered = (self, connection), not self._world.faults.reorder
        self._world.later(lane, partial(self._deliver, connection, frame), ordered=ordered)

    def _deliver(self, connection: int, frame: bytes) -> None:
        far = self._far.get(connection)
        if far is not None and connection not in self._jammed:
            far.channel._hear(far.connection, frame)  # noqa: SLF001

    def _hear(self, connection: int, frame: bytes) -> None:
        if connection not in self._jammed:
            self._world.witness.delivered(self, connection, frame)
            self._event(FrameIn(connection, frame))

    # -- ends ----------------------------------------------------------------------------------------------------

    def close(self, connection: int) -> None:
        """See `ControlChannel.close`. What is handed over with it arrives with it, whatever may happen to frames.

        Closing it again ends nothing sooner: it would be an end that comes before those last frames.
        """
        last = [frame for at, frame in self._queued if at == connection]
        self._queued = [(at, frame) for at, frame in self._queued if at != connection]
        for frame in last:
            self._world.witness.sent(self, connection, frame)
        self._world.witness.left(self, connection)
        if connection not in self._leaving:
            self._world.later((self, connection), lambda: self._leave(connection, last))
        if connection in self._far:
            self._leaving.add(connection)
        self._event(Closed(connection, CloseCause.LOCAL, ""))

    def _leave(self, connection: int, last: list[bytes]) -> None:
        for frame in last:
            self._deliver(connection, frame)
        self._end(connection, CloseCause.PEER_CLOSED)

    def cut(self, cause: CloseCause) -> None:
        """Every connection ends; both ends see `cause`."""
        for connection in list(self._far):
            self._world.witness.broken("cut", self, connection)
            self._end(connection, cause)
            self._event(Closed(connection, cause, ""))

    def jam(self, connection: int) -> None:
        """The peer does not read: this end sees OVERFLOW and hears no more, the other sees nothing until we close."""
        if connection in self.connections and connection not in self._jammed:
            self._world.witness.broken("jammed", self, connection)
            self._jammed.add(connection)
            self._event(Closed(connection, CloseCause.OVERFLOW, ""))

    def kill(self) -> None:
        """The process is gone, or has closed all: what was still open is closed, after what was on its way."""
        self.dead = True
        for connection in list(self._far):
            self._world.later((self, connection), partial(self._end, connection, CloseCause.PEER_CLOSED))

    def _end(self, connection: int, cause: CloseCause) -> None:
        far = self._far.pop(connection, None)
        self._jammed.discard(connection)
        self._leaving.discard(connection)
        if far is not None and far.channel._far.pop(far.connection, None) is not None:  # noqa: SLF001
            far.channel._hear_end(far.connection, cause)  # noqa: SLF001

    def _hear_end(self, connection: int, cause: CloseCause) -> None:
        self._leaving.discard(connection)
        if connection in self._jammed:
            self._jammed.discard(connection)
        else:
            self._event(Closed(connection, cause, ""))

    def poll(self) -> Sequence[ChannelEvent]:
        """See `ControlChannel.poll`."""
        events, self._events = self._events, []
        return events

    def _event(self, event: ChannelEvent) -> None:
        if isinstance(event, Closed):
            self._world.witness.over(self, event.connection, event.cause)
        self._events.append(event)
        self.owner()
