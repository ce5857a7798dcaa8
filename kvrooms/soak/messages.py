"""What the conductor of a soak and its processes say to each other."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .plan import Config


class Start(msgspec.Struct, tag=True, frozen=True):
    """To a new process: be this engine. registry: its URL. port: of the control channel, 0 for any. settings: as for
    the engine's constructor."""

    name: str
    role: str
    config: Config
    registry: str
    port: int = 0
    settings: dict[str, int | float] = {}


class Order(msgspec.Struct, frozen=True):
    """One room: its number (the plan follows from it), the instance that sends, and the address of its port."""

    number: int
    prefill: str
    address: str


class Rooms(msgspec.Struct, tag=True, frozen=True):
    """Carry these rooms."""

    orders: list[Order]


class Abandon(msgspec.Struct, tag=True, frozen=True):
    """The other side of these rooms died a while ago: abort what is still open, as a router would."""

    numbers: list[int]


class Look(msgspec.Struct, tag=True, frozen=True):
    """Say what you hold, once it is `tables` or some seconds have passed."""

    tables: dict[str, int] = {}


class End(msgspec.Struct, tag=True, frozen=True):
    """Close the engine and end."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine runs. address: of its control port, or of the registry's HTTP port."""

    address: str


class Ended(msgspec.Struct, tag=True, frozen=True):
    """One side of a room has ended: "done", "failed", or "hung" at twice its longest deadline.

    opened, ended: monotonic seconds. met: when it came to know its peer, 0 if it did not. wrong: how many of its
    items do not hold what they must.
    """

    number: int
    role: str
    status: str
    reason: str
    detail: str
    opened: float
    ended: float
    met: float = 0.0
    wrong: int = 0


class Figures(msgspec.Struct, tag=True, frozen=True):
    """What a process holds. canaries: how many were hit. held: rooms whose memory is not free. descriptors: open
    files by kind."""

    tables: dict[str, int]
    canaries: int
    held: int
    descriptors: dict[str, int]
    threads: int
    counters: dict[str, int]


class Told(msgspec.Struct, tag=True, frozen=True):
    """A signal has told this process to end: the conductor should begin no more rooms."""

    sign: str


class Complaint(msgspec.Struct, tag=True, frozen=True):
    """Something that must not happen has happened."""

    text: str


ToWorker: TypeAlias = Start | Rooms | Abandon | Look | End
FromWorker: TypeAlias = Ready | Ended | Figures | Told | Complaint
_ENCODER = msgspec.msgpack.Encoder()
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def to_worker(data: bytes) -> ToWorker:
    """A message that a process receives."""
    return _TO_WORKER.decode(data)


def from_worker(data: bytes) -> FromWorker:
    """A message that the conductor receives."""
    return _FROM_WORKER.decode(data)
