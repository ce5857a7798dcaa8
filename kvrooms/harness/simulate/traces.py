"""Traces of real runs, and the question whether the simulated ports could have produced them.

The world is only as good as its ports: of what the real ones do and it cannot do, it shows nothing. So real runs are
recorded at the ports (`record_ports`), and each trace is rehearsed in a world: every post is posted there, and whenever
the trace says that a write has settled or that a notification has arrived, the world must have just that among the
things that can happen next. `rehearse` tells the first step that it cannot follow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ...engine.core import Ports
from ...protocol.errors import TransportError
from ...protocol.plan import Piece
from ...transport.ports import Arrival, ChannelEvent, Closed, FrameIn, Opened, Settlement
from ..ports import SimTransport, Write
from ..world import World

Kind = Literal["posted", "settled", "arrived", "opened", "sent", "received", "closed"]


class Seen(NamedTuple):
    """One thing that passed a port.

    agent: whose port. number: of a write (0: it was over when its post returned) or of a connection. peer: for a post
    to whom, for a notification from whom. rows: descriptors of a post.
    """

    at: float
    agent: str
    kind: Kind
    number: int = 0
    peer: str = ""
    data: bytes = b""
    rows: int = 0
    error: str | None = None


class Trace:
    """What passed the recorded ports, in order. Any thread may append: a list's append is one step."""

    def __init__(self) -> None:
        self.steps: list[Seen] = []
        self._started = time.monotonic()

    def add(self, agent: str, kind: Kind, **what: Any) -> int:
        """A step; its index."""
        self.steps.append(Seen(time.monotonic() - self._started, agent, kind, **what))
        return len(self.steps) - 1


class RecordingTransport:
    """A transport, and a trace of what passes it. Everything else is the transport's own."""

    def __init__(self, inner: Any, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """See `Transport.post`. It stands in the trace before it begins: the peer may see it before we return."""
        merged = piece.source_descriptors
        rows = len(piece.source_indices if merged is None else merged)
        steps = self._trace.steps
        place = self._trace.add(self._inner.agent, "posted", number=-1, peer=agent, data=notification, rows=rows)
        try:
            handle: int | None = self._inner.post(agent, piece, notification)
        except TransportError as error:
            steps[place] = steps[place]._replace(error=str(error))
            raise
        steps[place] = steps[place]._replace(number=handle or 0)
        return handle

    def settled(self) -> Sequence[Settlement]:
        """See `Transport.settled`."""
        settled: Sequence[Settlement] = self._inner.settled()
        for handle, error in settled:
            self._trace.add(self._inner.agent, "settled", number=handle, error=error)
        return settled

    def arrivals(self) -> Sequence[Arrival]:
        """See `Transport.arrivals`."""
        arrivals: Sequence[Arrival] = self._inner.arrivals()
        for agent, message in arrivals:
            self._trace.add(self._inner.agent, "arrived", peer=agent, data=message)
        return arrivals


class RecordingChannel:
    """A control channel, and a trace of what passes it. Everything else is the channel's own."""

    def __init__(self, inner: Any, trace: Trace, agent: str) -> None:
        self._inner = inner
        self._trace = trace
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        self._trace.add(self._agent, "sent", number=connection, data=frame[4:])
        self._inner.send(connection, frame)

    def poll(self) -> Sequence[ChannelEvent]:
        """See `ControlChannel.poll`."""
        events: Sequence[ChannelEvent] = self._inner.poll()
        for event in events:
            match event:
                case Opened(connection):
                    self._trace.add(self._agent, "opened", number=connection)
                case FrameIn(connection, frame):
                    self._trace.add(self._agent, "received", number=connection, data=bytes(frame))
                case Closed(connection, cause):
                    self._trace.add(self._agent, "closed", number=connection, error=cause.value)
        return events


def record_ports(ports: Ports, trace: Trace) -> None:
    """Put recorders in front of an engine's transport and channel, before its core is made."""
    agent = ports.transport.agent
    ports.transport = RecordingTransport(ports.transport, trace)
    ports.channel = RecordingChannel(ports.channel, trace, agent)


def rehearse(steps: Sequence[Seen]) -> str:
    """Follow a trace in a simulated world. "" if the world can do all of it, else the first step that it cannot do."""
    writes, frames = _Writes(), _Frames()
    for number, step in enumerate(steps):
        actor = writes if step.kind in ("posted", "settled", "arrived") else frames
        trouble = actor.follow(step)
        if trouble:
            return f"step {number} ({step.at:.6f} s, {step.agent}, {step.kind} {step.number}): {trouble}"
    return ""


class _Writes:
    """Writes and notifications of a trace, in a world whose transports bear the names of the real ones."""

    def __init__(self) -> None:
        self._world = World()
        self._transports: dict[str, SimTransport] = {}
        self._writes: dict[tuple[str, int], Write] = {}
        self._posted: list[Write] = []
        self._memory = np.zeros(64, dtype=np.uint8)

    def follow(self, step: Seen) -> str:
        """Do a step in the world; what is impossible about it."""
        match step.kind:
            case "posted":
                return self._post(step)
            case "settled":
                return self._settle(step)
            case _:
                return self._arrive(step)

    def _transport(self, agent: str) -> SimTransport:
        if agent not in self._transports:
            self._transports[agent] = SimTransport(self._world, agent)
        return self._transports[agent]

    def _post(self, step: Seen) -> str:
        if step.error is not None:
            return ""  # nothing was posted, or nothing is known of it
        at = int(self._memory.ctypes.data)
        rows = [(at, 1, at + 32)] * max(step.rows, 1)
        write = self._transport(step.agent).start(self._transport(step.peer), rows, step.data)
        self._posted.append(write)
        if step.number > 0:
            if (step.agent, step.number) in self._writes:
                return "the handle belongs to another write"
            self._writes[step.agent, step.number] = write
        return ""

    def _settle(self, step: Seen) -> str:
        write = self._writes.pop((step.agent, step.number), None)
        if write is None:
            return "no write with this handle is in flight"
        if step.error is not None:
            write.source.fail(write, step.error)
            return ""
        self._land(write)
        lane = (write.source, "settlements")
        return self._happens(lane, lambda action: action.args[0] is write) or ""

    def _arrive(self, step: Seen) -> str:
        target = self._transport(step.agent)
        wanted = Arrival(step.peer, step.data)
        for write in self._posted:
            if write.target is target and Arrival(write.source.agent, write.message) == wanted:
                self._posted.remove(write)
                if write.error is not None:
                    return "its write has failed"
                self._land(write)
                return self._happens((target, "notifications"), lambda action: action.args[0] == wanted)
        return "no write that was posted carries this notification, or it has arrived before"

    def _land(self, write: Write) -> None:
        if write.left and write in self._world.writes:
            self._world.finish(write)

    def _happens(self, lane: tuple[SimTransport, str], wanted: Any) -> str:
        """Let the wanted thing of a lane happen."""
        queue = self._world.queue(lane)
        for action in queue:
            if isinstance(action, partial) and wanted(action):
                queue.remove(action)
                action()
                return ""
        return "the world has nothing of the kind to come"


class _Frames:
    """Frames of a trace: what is received at one end of a connection is what was sent at the other, in order."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], list[bytes]] = {}
        self._far: dict[tuple[str, int], tuple[str, int]] = {}
        self._taken: dict[tuple[str, int], int] = {}
        self._over: set[tuple[str, int]] = set()

    def follow(self, step: Seen) -> str:
        """Take in a step; what is impossible about it."""
        end = (step.agent, step.number)
        match step.kind:
            case "sent":
                self._sent.setdefault(end, []).append(step.data)
            case "closed":
                self._over.add(end)
            case "received":
                return self._received(end, step.data)
        return ""

    def _received(self, end: tuple[str, int], frame: bytes) -> str:
        if end in self._over:
            return "the connection is over"
        far = self._far.get(end)
        if far is None:
            free = [one for one in self._sent if one not in self._far.values() and one[0] != end[0]]
            far = next((one for one in free if self._sent[one][0] == frame), None)
            if far is None:
                return "nobody has sent this frame first on a connection"
            self._far[end] = far
        taken = self._taken.get(end, 0)
        sent = self._sent[far]
        if taken >= len(sent) or sent[taken] != frame:
            return "it is not the next frame that was sent on this connection"
        self._taken[end] = taken + 1
        return ""
