"""What the child processes tell the parent, one JSON object a line, and what it tells them."""

from __future__ import annotations

import msgspec

from ..engine.host import Drained as EngineDrained

DRAIN = b"drain"
"""Parent to child, a line of its own: no new rooms; end when those that are open have ended, or time is up."""


class Addresses(msgspec.Struct, frozen=True):
    """Parent to child: where to find whom. The prefill process gets `registry`, decode one URL per model."""

    urls: dict[str, str]


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Anything a child may say."""


class Ready(Event, frozen=True):
    """The prefill process serves: the bootstrap URL per model, and what carries the bytes ("nixl/UCX")."""

    urls: dict[str, str]
    transport: str


class Phase(Event, frozen=True):
    """A room of `request` is in another phase on the side that speaks."""

    request: str
    phase: str


class Sent(Event, frozen=True):
    """The prefill process has sent `chunks` chunks of `total`, with `pages` pages in all."""

    request: str
    chunks: int
    total: int
    pages: int


class Generated(Event, frozen=True):
    """Decode has all bytes of `request` and has generated from them.

    `bytes` counts all that landed, `state_bytes` the part of it in components. `seconds` run from the opening of the
    room to the last token.
    """

    request: str
    tokens: list[int]
    logprobs: list[float]
    pages: int
    bytes: int
    state_bytes: int
    seconds: float


class Control(Event, frozen=True):
    """What decode generated from the damaged copy `name` of `request`."""

    request: str
    name: str
    tokens: list[int]
    logprobs: list[float]


class Finished(Event, frozen=True):
    """A child has nothing more to say. `strays` names pools of a model that were written outside what was granted."""

    strays: dict[str, list[str]] = {}


class Reference(Event, frozen=True):
    """The reference's tokens for `request`. `foreign` lists modules of kvrooms in that process: there must be none."""

    request: str
    tokens: list[int]
    logprobs: list[float]
    foreign: list[str]


class Trouble(Event, frozen=True):
    """Something went wrong; with `request`, only there, else the child gives up."""

    text: str
    request: str = ""


class Drained(Event, frozen=True):
    """A child was told to end, and this is what became of its rooms, by engine."""

    engines: dict[str, EngineDrained]


Message = Ready | Phase | Sent | Generated | Control | Finished | Reference | Trouble | Drained

_DECODER = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """One line of a child. Raises msgspec.ValidationError or DecodeError if it is not one of the events."""
    return _DECODER.decode(line)
