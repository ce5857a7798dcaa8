"""The native wire format, version 1: frames on the control channel.

A frame is a 4-byte little-endian length, a fixed header, and a body. The header holds the version, the kind, the
sender's incarnation, the incarnation it is meant for (0 when not known yet), and `floor`: decode's lowest grant that is
not released (0 from prefill). The body is a MessagePack array whose fields are those of the frame's class below.
What fails, aborts or refuses has a reason, words, and `retryable`: whether the request may be tried again.
Decoding is strict: any deviation raises WireError, which names the field. Nothing is unpickled.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, ClassVar, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np

from .errors import WireError
from .failure import DETAIL_MAX, Reason
from .identity import ATTEMPT_MAX, COMPONENTS_MAX, NAME_MAX, PAGES_MAX, ROOM_MAX
from .layout import Layout, Regions
from .manifest import Indices, Manifest, extent
from .shares import Share
from .staging import SLOTS_MAX, Slots

VERSION = 1
FRAME_MAX = 64 * 2**20
_HEADER = struct.Struct("<BBHQQQ")
_PREFIX = struct.Struct("<I")
_PACKED = np.dtype("<i4")
PREFIX_LENGTH = _PREFIX.size
HEADER_LENGTH = _HEADER.size

U64 = Annotated[int, msgspec.Meta(ge=0)]
Grant = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
Detail = Annotated[str, msgspec.Meta(max_length=DETAIL_MAX)]
Blob = Annotated[bytes, msgspec.Meta(min_length=1, max_length=2**20)]
Slot = Annotated[int, msgspec.Meta(ge=0, le=SLOTS_MAX - 1)]
Packed = Annotated[bytes, msgspec.Meta(max_length=4 * PAGES_MAX)]


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all frame bodies. `KIND` is the number in the header."""

    KIND: ClassVar[int] = 0


class Hello(Body, frozen=True):
    """decode -> prefill, first frame of a connection: who I am, what my memory is, and the right to write to it.

    share: what this prefill rank owes this decode rank; None: each is alone on its side, and the layouts are equal.
    staging: slots that METADATA may lend, where parts are to be scattered from there.
    """

    KIND: ClassVar[int] = 1
    engine: Name
    agent: Name
    layout: Layout
    regions: Regions
    blob: Blob
    share: Share | None = None
    staging: Slots | None = None


class Welcome(Body, frozen=True):
    """prefill -> decode: the handshake is accepted."""

    KIND: ClassVar[int] = 2
    engine: Name
    agent: Name
    layout: Layout


class Refuse(Body, frozen=True):
    """prefill -> decode: the handshake is refused, in words; the connection closes after it."""

    KIND: ClassVar[int] = 3
    words: Annotated[tuple[Detail, ...], msgspec.Meta(min_length=1, max_length=64)]
    reason: Reason
    retryable: bool


class Metadata(Body, frozen=True):
    """decode -> prefill: one grant. Where each position of the manifest is to be written.

    pages: the destination page of each position of `manifest.kv`, in order, packed int32 little-endian.
    aux_index: the aux slot, -1 when no aux is owed. state: per component of `manifest.state`, packed int32 indices.
    direction: who moves the bytes; version 1 knows "write" (prefill writes), and refuses anything else by name.
    digest: each notification of this grant must carry a digest per part. first_page: which of decode's page positions
    the first of `pages` has, where the handshake has named a share. slots: numbers of staging slots, packed int32, lent
    to this grant until its lease ends: the parts that the handshake has named go through these.
    """

    KIND: ClassVar[int] = 4
    room: Annotated[int, msgspec.Meta(ge=0, le=ROOM_MAX)]
    attempt: Annotated[int, msgspec.Meta(ge=0, le=ATTEMPT_MAX)]
    grant: Grant
    token: U64
    manifest: Manifest
    pages: Packed
    aux_index: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
    state: Annotated[tuple[Packed, ...], msgspec.Meta(max_length=COMPONENTS_MAX)]
    direction: Annotated[str, msgspec.Meta(max_length=16)] = "write"
    digest: bool = False
    first_page: Annotated[int, msgspec.Meta(ge=0, le=PAGES_MAX)] = 0
    slots: Packed = b""


class Accept(Body, frozen=True):
    """prefill -> decode: the grant is bound to an open room."""

    KIND: ClassVar[int] = 5
    grant: Grant


class Reject(Body, frozen=True):
    """prefill -> decode: the grant is void, nothing was written for it and nothing will be."""

    KIND: ClassVar[int] = 6
    grant: Grant
    reason: Reason
    detail: Detail
    retryable: bool


class Failed(Body, frozen=True):
    """prefill -> decode: the room of this grant failed. Says nothing about the memory: Ack does."""

    KIND: ClassVar[int] = 7
    grant: Grant
    reason: Reason
    detail: Detail
    retryable: bool


class Abort(Body, frozen=True):
    """decode -> prefill: the room of this grant failed here; void the grant and acknowledge. Repeated until then."""

    KIND: ClassVar[int] = 8
    grant: Grant
    reason: Reason
    detail: Detail
    retryable: bool


class Ack(Body, frozen=True):
    """prefill -> decode, a promise: nothing of this grant is posted, and nothing will be."""

    KIND: ClassVar[int] = 9
    grant: Grant


class Ping(Body, frozen=True):
    """Either way: are you there. Also rings the bell of a peer that sleeps on its socket."""

    KIND: ClassVar[int] = 10
    sequence: U64


class Pong(Body, frozen=True):
    """Either way: the answer to the Ping with this sequence number."""

    KIND: ClassVar[int] = 11
    sequence: U64


class Goodbye(Body, frozen=True):
    """Either way, before an orderly close. From prefill: every grant but the `undrained` is hereby acknowledged."""

    KIND: ClassVar[int] = 12
    undrained: Annotated[tuple[Grant, ...], msgspec.Meta(max_length=65536)] = ()


class Hold(Body, frozen=True):
    """decode -> prefill: keep this room until its METADATA comes. Repeated while decode has no memory for it."""

    KIND: ClassVar[int] = 13
    room: Annotated[int, msgspec.Meta(ge=0, le=ROOM_MAX)]
    attempt: Annotated[int, msgspec.Meta(ge=0, le=ATTEMPT_MAX)]


class HoldLost(Body, frozen=True):
    """prefill -> decode: the room that was to be kept has ended."""

    KIND: ClassVar[int] = 14
    room: Annotated[int, msgspec.Meta(ge=0, le=ROOM_MAX)]
    attempt: Annotated[int, msgspec.Meta(ge=0, le=ATTEMPT_MAX)]
    reason: Reason
    detail: Detail
    retryable: bool


class Emptied(Body, frozen=True):
    """decode -> prefill: what lay in these staging slots of a grant is where it belongs; they may be written again."""

    KIND: ClassVar[int] = 15
    grant: Grant
    slots: Annotated[tuple[Slot, ...], msgspec.Meta(min_length=1, max_length=SLOTS_MAX)]


Frame: TypeAlias = (
    Hello
    | Welcome
    | Refuse
    | Metadata
    | Accept
    | Reject
    | Failed
    | Abort
    | Ack
    | Ping
    | Pong
    | Goodbye
    | Hold
    | HoldLost
    | Emptied
)
FRAMES: tuple[type[Body], ...] = (
    Hello, Welcome, Refuse, Metadata, Accept, Reject, Failed, Abort, Ack, Ping, Pong, Goodbye, Hold, HoldLost, Emptied,
)  # fmt: skip


class Dialect:
    """The frames that one kind of connection carries, by their numbers."""

    def __init__(self, frames: tuple[type[Body], ...]) -> None:
        self.classes = {cls.KIND: cls for cls in frames}
        self.decoders: dict[int, msgspec.msgpack.Decoder[Frame]] = {
            cls.KIND: cast("msgspec.msgpack.Decoder[Frame]", msgspec.msgpack.Decoder(cls)) for cls in frames
        }


_NATIVE = Dialect(FRAMES)
_ENCODER = msgspec.msgpack.Encoder()
_PATH = re.compile(r" - at `\$((?:\[[^\]]*\]|\.\w+)*)`$")
_LENGTH = re.compile(r"at (?:least|most) length (\d+)")


class Received(NamedTuple):
    """A decoded frame: the sender's incarnation, the one it is meant for, decode's floor, the body."""

    source: int
    target: int
    floor: int
    body: Frame


def encode(body: Body, source: int, target: int, floor: int = 0) -> bytes:
    """The bytes of a frame, length prefix included."""
    payload = _ENCODER.encode(body)
    length = HEADER_LENGTH + len(payload)
    return _PREFIX.pack(length) + _HEADER.pack(VERSION, body.KIND, 0, source, target, floor) + payload


def frame_length(prefix: bytes | memoryview, limit: int = FRAME_MAX) -> int:
    """The length of the frame that follows a 4-byte prefix. Raises WireError when it is out of bounds."""
    (length,) = _PREFIX.unpack(prefix)
    if not HEADER_LENGTH < length <= limit:
        raise WireError("length", f"{length} is not between {HEADER_LENGTH + 1} and {limit}")
    return int(length)


def decode(frame: bytes, dialect: Dialect = _NATIVE) -> Received:
    """A frame without its length prefix. Raises WireError naming the field, and nothing else."""
    if len(frame) <= HEADER_LENGTH:
        raise WireError("length", f"{len(frame)} bytes cannot hold a header and a body")
    version, kind, reserved, source, target, floor = _HEADER.unpack_from(frame)
    if version != VERSION:
        raise WireError("version", f"the peer speaks version {version}, we speak version {VERSION}")
    decoder = dialect.decoders.get(kind)
    if decoder is None:
        raise WireError("kind", f"{kind} is no frame of version {VERSION}")
    if reserved:
        raise WireError("reserved", f"{reserved} must be 0")
    try:
        body = decoder.decode(memoryview(frame)[HEADER_LENGTH:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(_field(dialect.classes[kind], str(error)), str(error)) from None
    return Received(source, target, floor, body)


def _field(cls: type[Body], message: str) -> str:
    """The dotted name of the field that a decoding error speaks of."""
    name = cls.__name__.lower()
    match = _PATH.search(message)
    fields = cls.__struct_fields__
    if match is None:
        length = _LENGTH.search(message)
        if length is None:
            return name
        got = re.search(r"got (\d+)$", message)
        index = int(got[1]) if got else 0
        return f"{name}.{fields[index]}" if index < len(fields) else f"{name}[{len(fields)}]"
    indices = re.findall(r"\[([^\]]*)\]", match[1])
    if not indices or not indices[0].isdigit() or int(indices[0]) >= len(fields):
        return name
    return f"{name}.{fields[int(indices[0])]}" + "".join(f"[{i}]" for i in indices[1:])


def pack_indices(indices: Indices) -> bytes:
    """int32 little-endian, as Metadata carries them."""
    return indices.astype(_PACKED, copy=False).tobytes()


def unpack_indices(field: str, packed: bytes, count: int, items: int) -> Indices:
    """Indices from the wire: exactly `count`, each in [0, items). Raises WireError naming the field."""
    if len(packed) != 4 * count:
        raise WireError(field, f"{len(packed)} bytes, {4 * count} are needed for {count} indices")
    indices: Indices = np.frombuffer(packed, dtype=_PACKED).astype(np.int32, copy=False)
    if count:
        low, high = extent(indices)
        if low < 0 or high >= items:
            raise WireError(field, f"index {low if low < 0 else high} is not between 0 and {items - 1}")
    return indices
