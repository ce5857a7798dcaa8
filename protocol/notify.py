"""Completion notifications: what a landed write says about itself, attached to the write by the transport.

A notification is `KR`, version, number of parts, grant, token, then per part its kind, component, first position and
number of positions; in version 2, sent where decode has asked for digests, then a digest per part. It becomes visible
no earlier than all bytes of its own write, and says nothing of any other write.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from .errors import WireError
from .identity import COMPONENTS_MAX, ITEMS_MAX

_MAGIC = b"KR"
NOTIFY_VERSION = 1
DIGEST_VERSION = 2
DIGEST_LENGTH = 16
_HEAD = struct.Struct("<2sBBQQ")
_PART = struct.Struct("<BBHII")
PARTS_MAX = 128


class PartKind(enum.IntEnum):
    """Which kind of obligation a part belongs to."""

    KV = 1
    AUX = 2
    STATE = 3


class Part(NamedTuple):
    """Landed positions [first, first + size) of the KV pages, of the aux slot (0, 1), or of a state component."""

    kind: PartKind
    component: int
    first: int
    size: int


class Notification(NamedTuple):
    """A decoded notification."""

    grant: int
    token: int
    parts: tuple[Part, ...]
    digests: tuple[bytes, ...] = ()


_KINDS = {int(kind): kind for kind in PartKind}


def encode(grant: int, token: int, parts: tuple[Part, ...], digests: tuple[bytes, ...] = ()) -> bytes:
    """The bytes of a notification. digests: none, or one of `DIGEST_LENGTH` bytes per part."""
    head = _HEAD.pack(_MAGIC, DIGEST_VERSION if digests else NOTIFY_VERSION, len(parts), grant, token)
    rows = [_PART.pack(kind, component, 0, first, count) for kind, component, first, count in parts]
    return b"".join((head, *rows, *digests))


def decode(message: bytes) -> Notification:
    """Raises WireError naming the field, and nothing else."""
    if len(message) < _HEAD.size:
        raise WireError("length", f"{len(message)} bytes cannot hold a notification's head of {_HEAD.size}")
    magic, version, number, grant, token = _HEAD.unpack_from(message)
    if magic != _MAGIC:
        raise WireError("magic", f"{magic!r} is not {_MAGIC!r}")
    if version not in (NOTIFY_VERSION, DIGEST_VERSION):
        raise WireError("version", f"{version} is neither {NOTIFY_VERSION} nor {DIGEST_VERSION}")
    if not 1 <= number <= PARTS_MAX:
        raise WireError("parts", f"{number} is not between 1 and {PARTS_MAX}")
    end = _HEAD.size + number * _PART.size
    if len(message) != end + (number * DIGEST_LENGTH if version == DIGEST_VERSION else 0):
        raise WireError("length", f"{len(message)} bytes for {number} parts of version {version}")
    digests = tuple(message[at : at + DIGEST_LENGTH] for at in range(end, len(message), DIGEST_LENGTH))
    parts = []
    for kind, component, reserved, first, count in _PART.iter_unpack(message[_HEAD.size : end]):
        known = _KINDS.get(kind)
        if known is None:
            raise WireError("part.kind", f"{kind} is no kind of part")
        if component >= COMPONENTS_MAX or (component and known is not PartKind.STATE):
            raise WireError("part.component", f"{component} is no component of a {known.name} part")
        if reserved:
            raise WireError("part.reserved", f"{reserved} must be 0")
        if not 1 <= count <= ITEMS_MAX or first + count > ITEMS_MAX:
            raise WireError("part.count", f"positions {first} to {first + count} are not a range")
        parts.append(Part(known, component, first, count))
    return Notification(grant, token, tuple(parts), digests)
