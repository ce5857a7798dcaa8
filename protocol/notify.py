"""Completion notifications: what a landed write says about itself, attached to the write by the transport.

A notification is `KR`, version, number of parts, grant, token, then per part its kind, component, first position and
number of positions; in version 2, sent where decode has asked for digests, then a digest per part. In version 3 the one
part has not landed yet: it lies in a staging slot, and slot, first buffer and the buffer behind the last follow. A
notification becomes visible no earlier than all bytes of its own write, and says nothing of any other write.
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
STAGED_VERSION = 3
DIGEST_LENGTH = 16
_HEAD = struct.Struct("<2sBBQQ")
_PART = struct.Struct("<BBHII")
_SLOT = struct.Struct("<III")
_FURTHER = {NOTIFY_VERSION: 0, DIGEST_VERSION: DIGEST_LENGTH, STAGED_VERSION: _SLOT.size}
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


class InSlot(NamedTuple):
    """What lies in a staging slot: of each position of a part, buffers [first, stop) of those that are exchanged."""

    slot: int
    first: int
    stop: int


class Notification(NamedTuple):
    """A decoded notification."""

    grant: int
    token: int
    parts: tuple[Part, ...]
    digests: tuple[bytes, ...] = ()
    staged: InSlot | None = None


_KINDS = {int(kind): kind for kind in PartKind}


def encode(
    grant: int, token: int, parts: tuple[Part, ...], digests: tuple[bytes, ...] = (), staged: InSlot | None = None
) -> bytes:
    """The bytes of a notification. digests: none, or one of `DIGEST_LENGTH` bytes per part. staged: of one part."""
    version = STAGED_VERSION if staged is not None else DIGEST_VERSION if digests else NOTIFY_VERSION
    head = _HEAD.pack(_MAGIC, version, len(parts), grant, token)
    rows = [_PART.pack(kind, component, 0, first, count) for kind, component, first, count in parts]
    return b"".join((head, *rows, *digests, b"" if staged is None else _SLOT.pack(*staged)))


def decode(message: bytes) -> Notification:
    """Raises WireError naming the field, and nothing else."""
    if len(message) < _HEAD.size:
        raise WireError("length", f"{len(message)} bytes cannot hold a notification's head of {_HEAD.size}")
    magic, version, number, grant, token = _HEAD.unpack_from(message)
    if magic != _MAGIC:
        raise WireError("magic", f"{magic!r} is not {_MAGIC!r}")
    if version not in _FURTHER:
        raise WireError("version", f"{version} is none of {NOTIFY_VERSION}, {DIGEST_VERSION} and {STAGED_VERSION}")
    most = 1 if version == STAGED_VERSION else PARTS_MAX
    if not 1 <= number <= most:
        raise WireError("parts", f"{number} is not between 1 and {most}")
    end = _HEAD.size + number * _PART.size
    if len(message) != end + number * _FURTHER[version]:
        raise WireError("length", f"{len(message)} bytes for {number} parts of version {version}")
    parts = tuple([_part(*fields) for fields in _PART.iter_unpack(message[_HEAD.size : end])])
    further = message[end:]
    if not further:
        return Notification(grant, token, parts)
    if version == STAGED_VERSION:
        staged = InSlot(*_SLOT.unpack(further))
        if staged.first >= staged.stop:
            raise WireError("buffers", f"{staged.first} to {staged.stop} is not a range")
        return Notification(grant, token, parts, (), staged)
    digests = tuple(further[at : at + DIGEST_LENGTH] for at in range(0, len(further), DIGEST_LENGTH))
    return Notification(grant, token, parts, digests)


def _part(kind: int, component: int, reserved: int, first: int, count: int) -> Part:
    known = _KINDS.get(kind)
    if known is None:
        raise WireError("part.kind", f"{kind} is no kind of part")
    if component >= COMPONENTS_MAX or (component and known is not PartKind.STATE):
        raise WireError("part.component", f"{component} is no component of a {known.name} part")
    if reserved:
        raise WireError("part.reserved", f"{reserved} must be 0")
    if not 1 <= count <= ITEMS_MAX or first + count > ITEMS_MAX:
        raise WireError("part.count", f"positions {first} to {first + count} are not a range")
    return Part(known, component, first, count)
