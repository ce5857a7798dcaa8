"""What the conductor of shapes and its workers say to each other."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Side: TypeAlias = Literal["prefill", "decode"]


class Role(msgspec.Struct, tag=True, frozen=True):
    """Be one rank of a shape. The descriptor of the rank's memory follows on the pipe.

    instance: which prefill instance, or 0. group: the number that the decode ranks have in common. size: bytes of the
    memory. settings: as for the engine's constructor. corrupt: which byte of the memory to change once all is DONE.
    """

    case: str
    seed: int
    side: Side
    instance: int
    rank: int
    registry: str
    group: int
    size: int
    settings: dict[str, float] = {}
    corrupt: int | None = None


class Close(msgspec.Struct, tag=True, frozen=True):
    """Close the engine and be nobody."""


class Over(msgspec.Struct, tag=True, frozen=True):
    """Every room of the rank has ended. wrong: what did not go well, in words."""

    wrong: tuple[str, ...]


class Idle(msgspec.Struct, tag=True, frozen=True):
    """The engine is closed. wrong: what it still held. staged: the pieces that it has gathered, and scattered."""

    wrong: tuple[str, ...]
    staged: tuple[int, int] = (0, 0)


class Told(msgspec.Struct, tag=True, frozen=True):
    """A signal has told this process to end: the conductor should begin no more shapes."""

    sign: str


ToWorker: TypeAlias = Role | Close
FromWorker: TypeAlias = Over | Idle | Told
_ENCODER = msgspec.msgpack.Encoder()
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def to_worker(data: bytes) -> ToWorker:
    """A message that a worker receives."""
    return _TO_WORKER.decode(data)


def from_worker(data: bytes) -> FromWorker:
    """A message that the conductor receives."""
    return _FROM_WORKER.decode(data)
