"""What the child processes tell the parent, one JSON object a line, and what it tells them."""

from __future__ import annotations

import msgspec

from ..engine.host import Drained as EngineDrained

DRAIN = b"drain"
"""Parent to child, a line of its own: no new rooms; end when those that are open have ended, or time is up."""


class Addresses(msgspec.Struct, frozen=True):
    """Parent to child: where to find whom.

    Prefill gets `registry`, decode one URL per model; ranks that lead no group get `group/MODEL` as well.
    """

    urls: dict[str, str]


class Gather(msgspec.Struct, frozen=True):
    """Parent to rank 0 of decode: every decode rank has left what landed of `request` in its file; generate from it."""

    request: str


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Anything a child may say."""


class Ready(Event, frozen=True):
    """The prefill process serves: the bootstrap URL per model, and what carries the bytes ("nixl/UCX")."""

    urls: dict[str, str]
    transport: str


class Leads(Event, frozen=True):
    """Rank 0 of a side of several ranks: where the others join its groups, by `group/MODEL`."""

    addresses: dict[str, str]


class Phase(Event, frozen=True):
    """A room of `request` is in another phase on the side that speaks."""

    request: str
    phase: str


class Sent(Event, frozen=True):
    """A prefill process has sent `chunks` chunks of `total`, with `pages` pages in all."""

    request: str
    chunks: int
    total: int
    pages: int


class Held(Event, frozen=True):
    """A rank has all it is to have of `request`, and has left a copy of it in its file.

    `bytes` counts all of it, `state_bytes` the part of it in components.
    """

    request: str
    pages: int
    bytes: int
    state_bytes: int


class Generated(Event, frozen=True):
    """Decode has generated from what landed of `request`, `seconds` after the opening of the room."""

    request: str
    tokens: list[int]
    logprobs: list[float]
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


Message = Ready | Leads | Phase | Sent | Held | Generated | Control | Finished | Reference | Trouble | Drained

_DECODER = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """One line of a child. Raises msgspec.ValidationError or DecodeError if it is not one of the events."""
    return _DECODER.decode(line)
