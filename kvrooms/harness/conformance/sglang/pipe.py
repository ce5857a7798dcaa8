"""What suite and driver say to each other: JSON in length-prefixed frames on a socket pair, and state indices as JSON.

No pickle: the driver runs somebody else's code.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import numpy as np

from ..subject import ABSENT

_LENGTH = struct.Struct("!I")
_FRAME_MAX = 64 << 20


def send_frame(channel: socket.socket, value: dict[str, Any]) -> None:
    """One message. Raises OSError if the other end is gone."""
    body = json.dumps(value).encode()
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream. Raises OSError, TimeoutError and ValueError."""
    head = _exactly(channel, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _FRAME_MAX:
        raise ValueError(f"a frame of {length} bytes")
    body = _exactly(channel, length)
    if body is None:
        return None
    value: dict[str, Any] = json.loads(body)
    return value


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def pack_indices(value: Any) -> Any:
    """State indices in a spelling that SGLang's API allows, as JSON. Raises TypeError for any other value."""
    if value is ABSENT:
        return {"absent": True}
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, list):
        return [pack_indices(entry) for entry in value]
    if isinstance(value, (int, np.integer)):
        return int(value)
    raise TypeError(f"SGLang takes lists of lists or arrays, not {type(value).__name__}")


def unpack_indices(packed: Any) -> Any:
    """What `pack_indices` was given: the same types, array for array and list for list."""
    if isinstance(packed, dict):
        return ABSENT if "absent" in packed else np.array(packed["array"], dtype=packed["dtype"])
    if isinstance(packed, list):
        return [unpack_indices(entry) for entry in packed]
    return packed
