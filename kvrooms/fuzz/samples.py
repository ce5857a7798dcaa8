"""What is valid: frames of every kind, notifications, registrations, answers, names. The material of all mutations."""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from ..protocol import group, notify, registration, wire
from ..protocol.failure import Reason
from ..protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from ..protocol.manifest import Manifest
from ..protocol.notify import InSlot, Part, PartKind
from ..protocol.registration import Registration
from ..protocol.shares import Entry, Share
from ..protocol.staging import Slots
from .mutate import Sample

SOURCE, TARGET, FLOOR = 0x1111_2222_3333_4444, 0x5555_6666_7777_8888, 3
PAGES, SLOTS, STATES = 64, 8, 16
LAYOUT = Layout(
    16,
    (BufferSpec(0, "k", 4096, "float16"), BufferSpec(0, "v", 4096, "float16"), BufferSpec(1, "kv", 512, "uint8")),
    (AuxSpec("answer", 64, "uint8"),),
    (
        ComponentSpec("conv", "mamba", Owed.ALWAYS, (BufferSpec(2, "conv", 96, "float32"),)),
        ComponentSpec("window", "sliding_window", Owed.WHEN_INDEXED, (BufferSpec(3, "kv", 128, "float16"),)),
    ),
)
REGIONS = Regions(
    tuple(Region(0x7F00_0000_0000 + i * 2**24, PAGES) for i in range(3)),
    (Region(0x7E00_0000_0000, SLOTS),),
    ((Region(0x7D00_0000_0000, STATES),), (Region(0x7C00_0000_0000, STATES),)),
)
_ENTRY = Registration("prefill-0", 0, "10.0.0.1:4000", SOURCE, 16, LAYOUT.digest.hex(), 30.0)


_SHARE = Share(0, 2, 1, (Entry(PartKind.KV, "", 0, 0, 0, 0, 1), Entry(PartKind.STATE, "conv", 0, 0, 0, 1, 2)))
STAGING = Slots(0x7B00_0000_0000, 8, 2**20, ((PartKind.KV, ""), (PartKind.STATE, "conv")))


def packed(*indices: int) -> bytes:
    """Indices as METADATA carries them."""
    return np.array(indices, dtype="<i4").tobytes()


def _metadata_bodies() -> tuple[wire.Metadata, ...]:
    whole = Manifest(3, ((0, 3),), ("answer",), (("conv", 1), ("window", 2)))
    tail = Manifest(70, ((6, 8), (9, 70)), (), (("conv", 1),))
    nothing = Manifest(0, (), (), ())
    return (
        wire.Metadata(7, 0, 1, 99, whole, packed(1, 2, 3), 4, (packed(5), packed(6, 7))),
        wire.Metadata(2**63 - 1, 2**32 - 1, 2**64 - 1, 0, tail, packed(*range(63)), -1, (packed(15),)),
        wire.Metadata(0, 0, 5, 2**64 - 1, nothing, b"", -1, (), digest=True),
        wire.Metadata(7, 1, 6, 3, whole, packed(1, 2, 3), 4, (packed(5), packed(6, 7)), slots=packed(3, 0)),
    )


def _bodies() -> tuple[wire.Body, ...]:
    small = Layout(1, (), (), ())
    return (
        wire.Hello("decode-0", "kvrooms-1111222233334444", LAYOUT, REGIONS, b"blob" * 50),
        wire.Hello("decode-0", "kvrooms-1111222233334444", LAYOUT, REGIONS, b"blob", _SHARE, STAGING),
        wire.Hello("d", "a", small, Regions((), (), ()), b"b"),
        wire.Welcome("prefill-0", "kvrooms-5555666677778888", LAYOUT),
        wire.Refuse(
            ("the layouts differ", "page size: ours is 16 tokens, the peer's 32"),
            Reason.HANDSHAKE_REFUSED,
            retryable=False,
        ),
        *_metadata_bodies(),
        wire.Accept(1),
        wire.Reject(2, Reason.REFUSED, "not open here", retryable=True),
        wire.Failed(3, Reason.MISMATCH, "pages: prefill has 3, decode expects 2", retryable=False),
        wire.Abort(4, Reason.PEER_ABORTED, "changed my mind", retryable=False),
        wire.Ack(5),
        wire.Ping(6),
        wire.Pong(2**64 - 1),
        wire.Goodbye((1, 5, 2**64 - 1)),
        wire.Goodbye(),
        wire.Hold(7, 0),
        wire.HoldLost(7, 1, Reason.ABORTED, "aborted", retryable=False),
        wire.Emptied(1, (0,)),
        wire.Emptied(2**64 - 1, (5, 2, 2**20 - 1)),
    )


def _frame(body: wire.Body) -> bytes:
    return wire.encode(body, SOURCE, TARGET, FLOOR)[wire.PREFIX_LENGTH :]


def _sample(body: wire.Body) -> Sample:
    frame = _frame(body)
    head, rest = frame[: wire.HEADER_LENGTH], frame[wire.HEADER_LENGTH :]
    return Sample(head, msgspec.msgpack.decode(rest), msgspec.msgpack.encode)


def frames() -> tuple[Sample, ...]:
    """A frame of every kind, without its length."""
    return tuple(map(_sample, _bodies()))


def handshakes() -> tuple[Sample, ...]:
    """HELLO and WELCOME."""
    return tuple(_sample(body) for body in _bodies() if isinstance(body, (wire.Hello, wire.Welcome)))


def metadata() -> tuple[Sample, ...]:
    """METADATA that fits LAYOUT and REGIONS."""
    return tuple(map(_sample, _metadata_bodies()))


def streams() -> tuple[Sample, ...]:
    """Several frames, with their lengths."""
    every = [wire.encode(body, SOURCE, TARGET, FLOOR) for body in _bodies()]
    return (Sample(b"".join(every)), Sample(b"".join(every[-6:])), Sample(every[0]))


def group_frames() -> tuple[Sample, ...]:
    """A frame of every kind that the ranks of a group send each other."""
    bodies: tuple[wire.Body, ...] = (
        group.Join(1, 4, b"rank 1"),
        group.Resume(3),
        group.Gathering((1, 2, 1023)),
        group.Present(0, b""),
        group.Ready(2**63 - 1),
        group.Welcome(5, (2,)),
        group.Refuse("this group has 4 ranks, and you were told 3"),
        group.ReportDone(7, 0, 1),
        group.ReportFailed(7, 2**32 - 1, 2, Reason.SEND_ERROR, "the cable is cut", retryable=True),
        group.OutcomeDone(2**63 - 1, 0, 1, 1),
        group.OutcomeFailed(7, 0, 2, 0, 3, Reason.PEER_LOST, "its process has ended", retryable=True),
        group.Acknowledge(7, 0, 2**63 - 1),
        group.RankLost(2, Reason.PEER_LOST, "", retryable=True),
        group.RankBack(2),
        group.Ask(2**64 - 1),
        group.Answer(0),
        group.Leave(final=True, detail="the group was closed on its leader"),
    )
    return tuple(map(_sample, bodies))


def notifications() -> tuple[Sample, ...]:
    """Notifications with one part, with several, with the most there can be, with digests, and in slots."""
    kv, aux, state = Part(PartKind.KV, 0, 0, 3), Part(PartKind.AUX, 0, 0, 1), Part(PartKind.STATE, 1, 0, 2)
    many = tuple(Part(PartKind.KV, 0, first, 1) for first in range(notify.PARTS_MAX))
    said = ((1, 99, (kv,)), (2, 2**64 - 1, (kv, aux, state)), (2**64 - 1, 0, many))
    proven = notify.encode(3, 7, (kv, aux), (b"k" * notify.DIGEST_LENGTH, b"a" * notify.DIGEST_LENGTH))
    staged = [notify.encode(4, 5, (part,), (), InSlot(2, 0, 64)) for part in (kv, state)]
    return (*(Sample(notify.encode(*one)) for one in said), Sample(proven), *map(Sample, staged))


def _json(body: bytes) -> Sample:
    return Sample(b"", msgspec.json.decode(body), msgspec.json.encode)


def announcements() -> tuple[Sample, ...]:
    """Bodies of a PUT."""
    six = msgspec.structs.replace(_ENTRY, address="[::1]:1", ttl_s=0.5)
    return tuple(_json(registration.encode_announcement(entry)) for entry in (_ENTRY, six))


def records() -> tuple[Sample, ...]:
    """Answers to a GET."""
    return (_json(registration.encode_record(_ENTRY, 12.5)),)


def refusals() -> tuple[Sample, ...]:
    """Answers that say no."""
    return tuple(
        _json(registration.encode_refusal(words)) for words in ("prefill-0 rank 0 is not registered", "é" * 500)
    )


def texts(*words: str) -> tuple[Sample, ...]:
    """Names and addresses."""
    return tuple(Sample(word.encode()) for word in words)


def prefixes() -> tuple[Sample, ...]:
    """Lengths of frames."""
    return tuple(Sample(struct.pack("<I", length)) for length in (wire.HEADER_LENGTH + 1, 300, wire.FRAME_MAX))
