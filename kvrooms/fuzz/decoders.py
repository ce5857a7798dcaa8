"""Every function that reads bytes or text of a stranger, what is valid for it, and what must hold whatever it is fed.

A decoder either accepts and then what it returns must hold good (the check's assertions), or raises one of its typed
errors. Anything else is a fault: an engine's thread would die of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..engine.sends import lent_to, wanted_of
from ..protocol import group, notify, registration, wire
from ..protocol.errors import InvalidArgument, WireError
from ..protocol.identity import U64_MAX
from ..protocol.layout import check_regions, differences
from ..protocol.manifest import Declaration
from ..protocol.manifest import differences as manifest_differences
from ..protocol.notify import PartKind
from ..protocol.plan import DescriptorTable
from ..protocol.staging import check_slots
from ..transport.ports import ChannelEvent, FrameIn
from ..transport.tcp_link import Link
from . import samples
from .mutate import Sample


class Decoder(NamedTuple):
    """One reader of strange bytes. check: raises one of `typed`, or AssertionError, or returns when it accepts."""

    name: str
    samples: tuple[Sample, ...]
    check: Callable[[bytes], None]
    typed: tuple[type[Exception], ...] = (WireError,)


def _frame(data: bytes) -> None:
    """A frame's body is what it is, however often it is written and read."""
    received = wire.decode(data)
    again = wire.decode(wire.encode(*_fields(received))[wire.PREFIX_LENGTH :])
    assert again == received, "written and read again, it is another"


def _fields(received: wire.Received) -> tuple[wire.Body, int, int, int]:
    return received.body, received.source, received.target, received.floor


def _group_frame(data: bytes) -> None:
    """As a frame; and neither kind of peer takes the other's for its own."""
    received = group.decode(data)
    written = wire.encode(received.body, received.source, received.target)[wire.PREFIX_LENGTH :]
    assert group.decode(written) == received, "written and read again, it is another"
    try:
        wire.decode(data)
    except WireError:
        return
    raise AssertionError("an engine takes it for a frame of its own")


def _stream(data: bytes) -> None:
    """Whole frames come out of a stream however it is cut, and every one of them is decoded."""
    link, events = Link(1, "", inbound=True), list[ChannelEvent]()
    step = 1 + data[-1] if data else 1
    for at in range(0, len(data), step):
        link.split(data[at : at + step], events)
    taken = sum(wire.PREFIX_LENGTH + len(event.frame) for event in events if isinstance(event, FrameIn))
    assert taken <= len(data), "more came out than went in"
    for event in events:
        assert isinstance(event, FrameIn)
        wire.decode(event.frame)


def _hello(data: bytes) -> None:
    """A HELLO that is accepted has regions that fit its layout, and its differences can be told."""
    body = wire.decode(data).body
    if isinstance(body, wire.Hello):
        words = differences(samples.LAYOUT, body.layout)
        assert bool(words) == (body.layout != samples.LAYOUT), "unequal layouts, and no difference"
        check_regions(body.layout, body.regions)
        DescriptorTable(body.layout, body.regions)
        if body.staging is not None:
            check_slots(body.staging)
            assert body.staging.address + body.staging.count * body.staging.length <= U64_MAX
            assert PartKind.AUX not in dict(body.staging.parts)
    elif isinstance(body, wire.Welcome):
        differences(samples.LAYOUT, body.layout)


def _metadata(data: bytes) -> None:
    """Every index of a METADATA that is accepted lies within the memory of its sender."""
    body = wire.decode(data).body
    if not isinstance(body, wire.Metadata):
        return
    wanted = wanted_of(samples.LAYOUT, samples.REGIONS, samples.REGIONS, body)
    assert all(0 <= page < samples.REGIONS.pages for page in wanted.pages.tolist())
    assert -1 <= wanted.aux_index < samples.REGIONS.aux_slots
    assert len(wanted.pages) == sum(stop - start for start, stop in wanted.manifest.kv)
    names = samples.LAYOUT.component_names
    for (name, count), indices in zip(wanted.manifest.state, wanted.state, strict=True):
        items = samples.REGIONS.component_items(names.index(name))
        assert len(indices) == count
        assert all(0 <= index < items for index in indices.tolist())
    slots = lent_to(body, samples.STAGING)
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < samples.STAGING.count for slot in slots)
    assert not lent_to(msgspec.structs.replace(body, slots=b""), None)
    manifest_differences(Declaration(3, ("answer",), ()), wanted.manifest)


def _notification(data: bytes) -> None:
    said = notify.decode(data)
    assert notify.encode(*said) == data, "written again, it is another"


def _announcement(data: bytes) -> None:
    said = registration.decode_announcement("engine", 0, data)
    assert registration.decode_announcement("engine", 0, registration.encode_announcement(said)) == said
    registration.parse_address(said.address)


def _record(data: bytes) -> None:
    said = registration.decode_record(data)
    assert registration.decode_record(registration.encode_record(said, 1.0)) == said
    registration.parse_address(said.address)
    assert said.incarnation


def _refusal(data: bytes) -> None:
    words = registration.decode_refusal(data)
    if words is None:
        raise WireError("error", "no refusal")
    assert words.isprintable() or not words
    assert len(words) <= 300


def _text(check: Callable[[str], object]) -> Callable[[bytes], None]:
    def checked(data: bytes) -> None:
        check(data.decode("utf-8", errors="surrogateescape"))

    return checked


def _url(text: str) -> None:
    url = registration.check_bootstrap(text)
    assert urlsplit(url).hostname


def _prefix(data: bytes) -> None:
    if len(data) >= wire.PREFIX_LENGTH:
        assert wire.HEADER_LENGTH < wire.frame_length(data[: wire.PREFIX_LENGTH]) <= wire.FRAME_MAX


_NAMES = (WireError, InvalidArgument)
DECODERS: tuple[Decoder, ...] = (
    Decoder("frame", samples.frames(), _frame),
    Decoder("group frame", samples.group_frames(), _group_frame),
    Decoder("stream", samples.streams(), _stream),
    Decoder("hello", samples.handshakes(), _hello),
    Decoder("metadata", samples.metadata(), _metadata),
    Decoder("notification", samples.notifications(), _notification),
    Decoder("announcement", samples.announcements(), _announcement),
    Decoder("record", samples.records(), _record),
    Decoder("refusal", samples.refusals(), _refusal),
    Decoder("instance", samples.texts("engine", "prefill-0", "A.b_c-9"), _text(registration.check_instance), _NAMES),
    Decoder("address", samples.texts("10.0.0.1:4000", "[::1]:65535", "host.name:1"), _text(registration.parse_address)),
    Decoder("incarnation", samples.texts("00000000000000ff", "f" * 16), _text(registration.parse_incarnation)),
    Decoder("url", samples.texts("http://h:1", "https://[::1]:2/", "http://10.0.0.1:65535"), _text(_url), _NAMES),
    Decoder("prefix", samples.prefixes(), _prefix),
)
BY_NAME = {decoder.name: decoder for decoder in DECODERS}
# How often each is fed: what is complicated, and what anybody can reach, most.
_SHARES = {
    "frame": 20,
    "metadata": 20,
    "hello": 14,
    "stream": 10,
    "group frame": 10,
    "notification": 12,
    "announcement": 6,
    "record": 6,
}
_WHEEL = tuple(decoder for decoder in DECODERS for _ in range(_SHARES.get(decoder.name, 2)))


def draw(rng: random.Random) -> Decoder:
    """One decoder, by its share."""
    return _WHEEL[rng.randrange(len(_WHEEL))]
