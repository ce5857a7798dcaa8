"""Traces of real runs: what passed the ports, and what was done to processes and seen in memory beside them.

`record_ports` puts recorders in front of an engine's ports. Whether the simulated ports could have produced a trace is
asked in `rehearsal.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ...engine.core import Ports
from ...protocol.errors import TransportError
from ...protocol.layout import Layout, Regions
from ...protocol.plan import DescriptorTable, Piece
from ...transport.ports import Arrival, ChannelEvent, Closed, FrameIn, Opened, Settlement

Kind = Literal[
    "posted", "settled", "arrived", "met", "removed", "deregistered", "ended", "died", "looked",
    "opened", "sent", "received", "closed",
]  # fmt: skip


class Seen(NamedTuple):
    """One thing that passed a port, or that whoever directs the run has done or seen.

    agent: whose port. number: of a write (0: it was over when its post returned) or of a connection. peer: for a post
    to whom, for a notification from whom. rows: descriptors of a post. error: of a post, the class and the text.

    Done and seen: "deregistered" (memory alone, the agent lives), "died" (SIGKILL, and it was waited for), "looked": so
    many `rows` of the write with the notification `data` from `peer` were then whole in the memory of `agent`.
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

    def add_peer(self, agent: str, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
        """See `Transport.add_peer`. One that fails leaves no step."""
        table: DescriptorTable = self._inner.add_peer(agent, blob, layout, regions)
        self._trace.add(self._inner.agent, "met", peer=agent)
        return table

    def remove_peer(self, agent: str) -> None:
        """See `Transport.remove_peer`."""
        self._inner.remove_peer(agent)
        self._trace.add(self._inner.agent, "removed", peer=agent)

    def close(self) -> None:
        """See `Transport.close`. It stands in the trace before it begins, as a post does."""
        self._trace.add(self._inner.agent, "ended")
        self._inner.close()

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """See `Transport.post`. It stands in the trace before it begins: the peer may see it before we return."""
        merged = piece.source_descriptors
        rows = len(piece.source_indices if merged is None else merged)
        steps = self._trace.steps
        place = self._trace.add(self._inner.agent, "posted", number=-1, peer=agent, data=notification, rows=rows)
        try:
            handle: int | None = self._inner.post(agent, piece, notification)
        except TransportError as error:
            steps[place] = steps[place]._replace(error=f"{type(error).__name__}: {error}")
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
