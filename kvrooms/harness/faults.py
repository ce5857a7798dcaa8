"""What may go wrong in a simulated world, and what bytes look like when they have been damaged on their way."""

from __future__ import annotations

import ctypes
import random
from typing import NamedTuple

from ..protocol import group, wire
from ..protocol.errors import WireError

_TRIES = 6


class Faults(NamedTuple):
    """Probabilities of what goes wrong by itself; each is switched on by a number above 0.

    On the control channel, per frame: drop, repeat, corrupt (some bytes are others), truncate (the end is missing),
    late (its connection stands still, this way, for up to `late_s` seconds). reorder: the frames of a connection come
    in any order. On the transport, per write: post_fails (nothing is posted), write_fails (it ends with an error, and
    what it had under way may land later all the same), write_slow (it stands still for up to `late_s` seconds),
    write_stuck (it stands still until the world heals); per descriptor: flips (it lands with another byte than was
    sent, and nobody is told). delay: where timers run, the probability per step that time passes first, so that
    anything may be slower than any timer. at_once: no fault; the probability that a write has landed and is over when
    its post returns.
    """

    drop: float = 0.0
    repeat: float = 0.0
    reorder: bool = False
    delay: float = 0.0
    corrupt: float = 0.0
    truncate: float = 0.0
    late: float = 0.0
    late_s: float = 10.0
    post_fails: float = 0.0
    write_fails: float = 0.0
    write_slow: float = 0.0
    write_stuck: float = 0.0
    flips: float = 0.0
    at_once: float = 0.0

    @property
    def frames(self) -> bool:
        """Whether anything may happen to frames, their order aside."""
        return bool(self.drop or self.repeat or self.corrupt or self.truncate or self.late)

    @property
    def writes(self) -> bool:
        """Whether anything may happen to writes once they are posted."""
        return bool(self.write_fails or self.write_slow or self.write_stuck)


def corrupted(frame: bytes, draw: random.Random) -> bytes:
    """A frame (without length prefix) with some other bytes, such that its receiver can tell.

    Damage that makes another valid frame of the same sender is left out: against it only the checksums of the network
    help, and the protocol trusts them. A header that names another incarnation can be told by its receiver, except in
    the handshake, where incarnations are not known yet.
    """
    for _ in range(_TRIES if frame else 0):
        damaged = bytearray(frame)
        for _ in range(draw.randrange(1, 4)):
            damaged[int(draw.random() * len(damaged))] = draw.randrange(256)
        if told_apart(frame, bytes(damaged)):
            return bytes(damaged)
    return truncated(frame, draw)


def told_apart(frame: bytes, damaged: bytes) -> bool:
    """Whether whoever receives `damaged` can tell that it is not what was sent."""
    try:
        received, sent = _decoded(damaged), _decoded(frame)
    except WireError:
        return True
    if isinstance(sent.body, (wire.Hello, wire.Welcome, group.Join, group.Resume)):
        return False
    return (received.source, received.target) != (sent.source, sent.target)


def _decoded(frame: bytes) -> wire.Received | group.Received:
    try:
        return wire.decode(frame)
    except WireError:
        return group.decode(frame)


def truncated(frame: bytes, draw: random.Random) -> bytes:
    """A frame whose end is missing."""
    return frame[: int(draw.random() * len(frame))]


def damage(address: int, length: int, draw: random.Random) -> None:
    """Flip a bit of some memory."""
    byte = ctypes.c_ubyte.from_address(address + int(draw.random() * length))
    byte.value ^= 1 << int(draw.random() * 8)
