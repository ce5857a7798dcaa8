"""The ports under the engine core: what moves bytes, carries frames, finds peers, tells time and draws ids.

Each has a real implementation in this package and a simulated one in `kvrooms.harness`. No port knows a phase, a
manifest or a lease. Only the engine's thread calls them, and none of the calls blocks, except where its text says so.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ..protocol.layout import Layout, Regions
from ..protocol.plan import DescriptorTable, Piece
from ..protocol.registration import Registration, Resolved, Unresolved


class Arrival(NamedTuple):
    """A notification: which transport agent it says it is from (no proof), and its bytes."""

    agent: str
    message: bytes


class Settlement(NamedTuple):
    """A posted write that is over: its handle, and what went wrong (None: its bytes have landed).

    One that went wrong may have bytes under way that land later if the peer lives.
    """

    handle: int
    error: str | None


class Transport(Protocol):
    """Writes to registered memory of a peer, each with a notification. Real: NIXL."""

    @property
    def agent(self) -> str:
        """This agent's name, unique per engine incarnation."""

    @property
    def backend(self) -> str:
        """What carries the bytes, for people: "nixl/UCX"."""

    def register(self, layout: Layout, regions: Regions) -> DescriptorTable:
        """Register this side's memory, once, and prepare its descriptor lists. Raises TransportError."""

    def register_staging(self, address: int, length: int) -> None:
        """Register a range of the host's memory beside that, before `metadata` is asked for. Raises TransportError."""

    def metadata(self) -> bytes:
        """The capability that lets a peer write to the registered memory. Never log it or pass it on."""

    def add_peer(self, agent: str, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
        """Make `agent` writable and prepare its descriptor lists. Raises TransportError, also for another's blob."""

    def remove_peer(self, agent: str) -> None:
        """Forget a peer. Idempotent. Its writes in flight still settle, with an error or not."""

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """Post a write; `notification` (empty: none) becomes visible to the peer no earlier than all its bytes.

        Returns its handle, or None when it has settled already. Raises UncertainWrite
        or PeerGone if bytes may be under way all the same, TransportError if nothing was posted.
        """

    def settled(self) -> Sequence[Settlement]:
        """The posted writes that are over since the last call. Each handle appears once and is released."""

    def arrivals(self) -> Sequence[Arrival]:
        """The notifications that arrived since the last call."""

    @property
    def in_flight(self) -> int:
        """How many writes are posted and not settled."""

    def close(self) -> None:
        """Release every handle, deregister, destroy the agent. May block for a moment. Idempotent."""


class CloseCause(enum.Enum):
    """How a connection ended. Only PEER_CLOSED and RESET come from the peer's kernel and prove anything.

    NOBODY proves that whoever listened there has ended: the kernel of that address has answered.
    """

    PEER_CLOSED = "the peer closed it"
    RESET = "the peer reset it"
    TIMED_OUT = "the network timed out"
    UNREACHABLE = "it could not be opened"
    NOBODY = "nobody listens there"
    OVERFLOW = "the peer does not read"
    BAD_FRAME = "the peer sent a malformed length"
    LOCAL = "we closed it"


class Opened(NamedTuple):
    """A connection is open: dialled (inbound False) or accepted."""

    connection: int
    inbound: bool
    address: str


class FrameIn(NamedTuple):
    """A whole frame has arrived, without its length prefix."""

    connection: int
    frame: bytes


class Closed(NamedTuple):
    """A connection is over. Reported once; also for one that we closed and for one that never opened."""

    connection: int
    cause: CloseCause
    detail: str


ChannelEvent: TypeAlias = Opened | FrameIn | Closed


class ControlChannel(Protocol):
    """Ordered frames between two engines. Real: TCP."""

    def dial(self, address: str) -> int:
        """Start to open a connection to "host:port". Returns its number; Opened or Closed follows."""

    def send(self, connection: int, frame: bytes) -> None:
        """Queue a frame (length prefix included). Unknown or closed connections are ignored: Closed tells."""

    def flush(self) -> None:
        """Hand everything that is queued to the network, as far as it takes it."""

    def close(self, connection: int) -> None:
        """Close a connection after what is queued was handed over. Idempotent.

        After Closed with OVERFLOW or BAD_FRAME the peer still sees an open connection until this is called: its end
        would look like the end of our process.
        """

    def poll(self) -> Sequence[ChannelEvent]:
        """What happened since the last call."""


class Registry(Protocol):
    """Finds prefill engines. Real: HTTP."""

    def lookup(self, bootstrap: str, instance: str, rank: int) -> int:
        """Ask the registry at `bootstrap` for an engine. Returns a ticket; `poll` answers it."""

    def poll(self) -> Sequence[Resolved | Unresolved]:
        """The answers since the last call."""

    def announce(self, bootstrap: str, registration: Registration) -> None:
        """Register, and again before it expires, until withdrawn."""

    def withdraw(self, bootstrap: str, registration: Registration) -> None:
        """Stop announcing and remove the registration."""


class Clock(Protocol):
    """Monotonic seconds that go on while the machine sleeps."""

    def now(self) -> float:
        """Seconds since some moment in the past."""


class Ids(Protocol):
    """Random numbers."""

    def incarnation(self) -> int:
        """A random 64-bit number, not 0."""

    def token(self) -> int:
        """A random 64-bit number."""
