"""Every figure an engine goes by, in one place: argument, else `KVROOMS_*` environment variable, else default.

The variable of `heartbeat_s` is `KVROOMS_HEARTBEAT_S`, and so on. A variable of that family that names no setting is an
error rather than a silent nothing: a misspelt deadline is found when the engine starts, not when it should have struck.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from ..protocol.errors import InvalidArgument

PREFIX = "KVROOMS_"
ELSEWHERE = ("KVROOMS_SECRET", "KVROOMS_SECRET_FILE", "KVROOMS_REGISTRY_TOKEN", "KVROOMS_ALLOW_UNAUTHENTICATED")
"""Variables of the family that are no figures; `security` reads them."""

_Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]
_MaybeSeconds = Annotated[float, Meta(ge=0, le=3600)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Switch = Annotated[int, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=1, le=2**40)]
_MaybeBytes = Annotated[int, Meta(ge=0, le=2**40)]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one engine. Durations are in seconds, sizes in bytes."""

    bootstrap_timeout_s: _Seconds = 30.0
    """From opening a room on decode until each sending rank has accepted its grant."""

    waiting_timeout_s: _Seconds = 300.0
    """From the accepted grant until the first bytes land: prefill may have a queue."""

    queued_timeout_s: _Seconds = 300.0
    """How long a room of the prefill side may wait for its peer's METADATA, or for its caller's next send.
    A hold of decode begins the wait for METADATA anew."""

    hold_renew_s: _Seconds = 30.0
    """How often decode renews the hold on a room that it has no memory for yet."""

    moving_timeout_s: _Seconds = 300.0
    """How long a transfer may stand still, with nothing landing or settling, once it has begun. On prefill only while
    something is handed over and has not settled, and not while it waits for its turn behind other rooms that move; on
    decode, which cannot know, the time in which prefill computes the next chunk counts."""

    cap_timeout_s: _Seconds = 1800.0
    """The longest life of a room, whatever progress it makes."""

    decision_timeout_s: _Seconds = 300.0
    """How long the leader of a group waits for the other ranks' reports once a rank has reported a room's end; and how
    long it may be silent before its ranks take it for lost. In a group at least twice `heartbeat_timeout_s`."""

    drain_timeout_s: _Seconds = 20.0
    """How long `drain`, and a command that was told to end, lets open rooms go on before it aborts them."""

    heartbeat_s: _Seconds = 1.0
    """Between two heartbeats on a connection that carries nothing else."""

    heartbeat_timeout_s: _Seconds = 5.0
    """Silence after which a peer counts as unhealthy. Longer than `heartbeat_s`. It proves nothing about its writes."""

    abort_retry_s: _Seconds = 0.2
    """Before an ABORT without an acknowledgement is sent a second time; doubled at each further time."""

    abort_retry_max_s: _Seconds = 5.0
    """The longest pause between two tries of the same ABORT. At least `abort_retry_s`."""

    parked_ttl_s: _Seconds = 20.0
    """How long prefill keeps a METADATA for a room that its caller has not opened yet, before refusing it."""

    parked_per_peer: _Count = 4096
    """The most METADATA that prefill keeps for one peer's rooms not opened yet."""

    parked_total: _Count = 65_536
    """The most METADATA that prefill keeps for all peers' rooms not opened yet. At least `parked_per_peer`."""

    piece_bytes: _Bytes = 16 << 20
    """The most bytes in one post (one item at least): what can still land after the last look at a lease."""

    inflight_per_peer_bytes: _Bytes = 64 << 20
    """The most bytes posted to one decode engine and not settled: a slow one holds up nobody else.
    At least `piece_bytes`."""

    inflight_bytes: _Bytes = 1 << 30
    """The most bytes posted and not settled, over all peers of an engine. At least `piece_bytes`."""

    staging_max_slice_bytes: _MaybeBytes = 2048
    """Between ranks of unequal layouts, runs of at most so many bytes are gathered in a staging buffer before they are
    sent. 0: never."""

    staging_bytes: _MaybeBytes = 64 << 20
    """The size of an engine's staging buffer, made when the first peer needs it. 0: none."""

    digest: _Switch = 0
    """1 on decode: prefill sends a digest with each completion and decode compares it with what has landed."""

    rooms_max: _Count = 65_536
    """The most rooms of an engine that are not closed, or closed while their memory is held; `open` raises Overloaded
    beyond them."""

    calls_max: _Count = 262_144
    """The most calls of `open`, `send` and `hold` that wait for an engine's thread; further ones raise Overloaded, and
    nothing has changed then. To abort, to close and to release is never refused; of each, few wait per room."""

    registry_ttl_s: _Seconds = 30.0
    """How long a registration lives without being renewed; it is renewed every third of that."""

    spin_s: _MaybeSeconds = 0.001
    """How long the engine's thread polls without a pause after something happened."""

    linger_s: _MaybeSeconds = 0.02
    """For how long after that it looks every 0.05 ms or so, before it sleeps on its sockets. At least `spin_s`."""

    idle_poll_s: _Seconds = 0.002
    """The longest sleep of the engine's thread while transfers are outstanding (NIXL wakes nobody)."""

    quarantine_warn_s: _Seconds = 30.0
    """After how long in quarantine memory is reported by the engine's health. It is not handed back for that."""

    quarantine_share: _Share = 0.25
    """The share of the registered bytes that may be in quarantine before the engine's health says so."""

    no_progress_s: _Seconds = 600.0
    """How long rooms may be open, and none of them make progress, before the engine's health says so."""

    max_connections: _Count = 1024
    """The most control connections at a time; further ones are closed on arrival."""

    backlog_bytes: _Bytes = 128 << 20
    """The most bytes of frames that wait for a peer that does not read; beyond them its connection is given up."""

    handshake_timeout_s: _Seconds = 5.0
    """From a connection's start until its handshake is complete."""


_KINDS: dict[str, object] = {
    name: kind for name, kind in get_type_hints(EngineSettings, include_extras=True).items() if not name.startswith("_")
}
# In each pair the first must not exceed the second.
_ORDER = (
    ("heartbeat_s", "heartbeat_timeout_s"),
    ("abort_retry_s", "abort_retry_max_s"),
    ("parked_per_peer", "parked_total"),
    ("piece_bytes", "inflight_bytes"),
    ("piece_bytes", "inflight_per_peer_bytes"),
    ("spin_s", "linger_s"),
)


def load_settings(environ: Mapping[str, str] | None = None, /, **overrides: float) -> EngineSettings:
    """Settings from arguments, else from `KVROOMS_*` variables of `environ` (default: os.environ), else the defaults.

    An argument of None counts as not given. Raises InvalidArgument, naming argument or variable, for an unknown name
    (with the nearest known one) and for a value that is no number or out of range.
    """
    values: dict[str, object] = {}
    origin: dict[str, str] = {}
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        if variable.startswith(PREFIX) and variable not in ELSEWHERE:
            name = _known(variable, variable[len(PREFIX) :].lower(), PREFIX)
            values[name] = _convert(variable, name, _number(variable, text))
            origin[name] = variable
    for argument, value in overrides.items():
        if value is not None:
            name = _known(argument, argument, "")
            values[name] = _convert(argument, name, value)
            origin[name] = argument
    settings = msgspec.convert(values, EngineSettings)
    for low, high in _ORDER:
        if getattr(settings, low) > getattr(settings, high):
            blamed = low if low in origin else high
            other = high if blamed == low else low
            why = f"{low} must not exceed {high}, and {other} is {getattr(settings, other):g}"
            raise InvalidArgument(origin[blamed], getattr(settings, blamed), why)
    return settings


def _known(said: str, name: str, prefix: str) -> str:
    if name in _KINDS and said in {name, prefix + name.upper()}:
        return name
    others = [variable[len(PREFIX) :].lower() for variable in ELSEWHERE] if prefix else []
    near = difflib.get_close_matches(name.lower(), [*_KINDS, *others], n=1, cutoff=0.5)
    hint = ""
    if near:
        hint = f"; did you mean {prefix + near[0].upper() if prefix else near[0]}?"
    raise InvalidArgument(said, said, f"there is no such setting{hint}")


def _number(variable: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise InvalidArgument(variable, text, "a number is expected") from None
    if not math.isfinite(number):
        raise InvalidArgument(variable, text, "a finite number is expected")
    return number


def _convert(said: str, name: str, value: object) -> object:
    try:
        return msgspec.convert(value, _KINDS[name])
    except msgspec.ValidationError as error:
        raise InvalidArgument(said, value, str(error)) from None
