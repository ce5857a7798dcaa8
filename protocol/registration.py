"""What the bootstrap registry stores and answers: where an engine's control channel is, and which engine it is.

The registry says *where*; what an engine can do is said by the engine itself, in the handshake. An agent's metadata
blob never appears here: whoever holds it can write all memory that is registered with the agent.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from .errors import InvalidArgument, WireError
from .identity import RANKS_MAX, check_int
from .layout import Rank, check_layout

MAX_BODY = 2**20
"""Bytes of the longest request or answer body, apart from the list of all engines."""

MIN_TTL_S = 0.1
MAX_TTL_S = 86_400.0
MAX_RANK = 65_535

# The first character is a letter or a digit, so that "-" can mean "the only instance there is", and ".." is no path.
_NAME = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"
_ADDRESS = re.compile(r"\A(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})\Z")
_INCARNATION = r"\A[0-9a-f]{16}\Z"
_DIGEST = r"\A[0-9A-Za-z:._-]{1,128}\Z"

_Name = Annotated[str, Meta(pattern=_NAME)]
_Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
_Hex = Annotated[str, Meta(pattern=_INCARNATION)]
_PageSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Digest = Annotated[str, Meta(pattern=_DIGEST)]
_Ttl = Annotated[float, Meta(ge=MIN_TTL_S, le=MAX_TTL_S)]
_Ranks = Annotated[int, Meta(ge=1, le=RANKS_MAX)]
_Address = Annotated[str, Meta(min_length=3, max_length=300)]


class Registration(msgspec.Struct, frozen=True):
    """One engine as the registry knows it.

    `instance` and `rank` name it; `address` is "host:port" of its control channel; `incarnation` its 64 random bits;
    `page_size` is in tokens; `layout_digest` fingerprints its memory layout; `ttl_s` is for how many seconds the entry
    stays without being renewed. `ranks` is how many ranks its instance has, `member` what this one of them has.
    """

    instance: str
    rank: int
    address: str
    incarnation: int
    page_size: int
    layout_digest: str
    ttl_s: float
    ranks: int = 1
    member: Rank | None = None


class Resolved(msgspec.Struct, frozen=True):
    """The answer to the lookup `ticket`: the engine is registered."""

    ticket: int
    registration: Registration


class Unresolved(msgspec.Struct, frozen=True):
    """The lookup `ticket` has no answer; `why` says so in words, naming the registry."""

    ticket: int
    why: str


class _Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: _Address
    incarnation: _Hex
    page_size: _PageSize
    layout_digest: _Digest
    ttl_s: _Ttl
    ranks: _Ranks = 1
    member: Rank | None = None


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instance: _Name
    rank: _Rank
    address: _Address
    incarnation: _Hex
    page_size: _PageSize
    layout_digest: _Digest
    ttl_s: _Ttl
    expires_in_s: Annotated[float, Meta(ge=0)]
    ranks: _Ranks = 1
    member: Rank | None = None


class _Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    error: str


_T = TypeVar("_T")
_name_pattern = re.compile(_NAME)
_incarnation_pattern = re.compile(_INCARNATION)
# Where msgspec says that a value is wrong: "... - at `$.rank`", "... missing required field `rank`".
_place = re.compile(r"at `\$\.([^`]+)`\Z|field `([^`]+)`\Z")


def check_instance(instance: str) -> str:
    """An instance's name unchanged; InvalidArgument unless it is a letter or digit and up to 127 of A-Za-z0-9._-"""
    if not _name_pattern.match(instance):
        raise InvalidArgument("instance", instance, "1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or a digit")
    return instance


def check_rank(rank: object) -> int:
    """A rank as an int; InvalidArgument unless 0 <= rank <= 65535."""
    return check_int("rank", rank, 0, MAX_RANK)


def format_incarnation(incarnation: int) -> str:
    """64 bits as 16 lower-case hexadecimal digits: many readers of JSON would lose bits of a number."""
    return f"{incarnation:016x}"


def parse_incarnation(text: str) -> int:
    """The inverse of `format_incarnation`; WireError for anything else."""
    if not _incarnation_pattern.match(text) or int(text, 16) == 0:
        raise WireError("incarnation", "16 lower-case hexadecimal digits are expected, not all zero")
    return int(text, 16)


def parse_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port" into host (without brackets) and port (1 to 65535); WireError otherwise."""
    match = _ADDRESS.match(address)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise WireError("address", 'a control channel\'s "host:port" is expected, with a port from 1 to 65535')
    return match["six"] or match["host"], int(match["port"])


def format_address(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_bootstrap(url: str) -> str:
    """Return a registry's URL without a trailing slash; InvalidArgument in words unless it is http(s)://host:port."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument("bootstrap", url, f"no URL: {error}") from None
    if parts.scheme not in {"http", "https"}:
        raise InvalidArgument("bootstrap", url, "a URL like http://host:port is expected")
    if not parts.hostname:
        raise InvalidArgument("bootstrap", url, "the URL names no host")
    if port == 0:
        raise InvalidArgument("bootstrap", url, "port 0 cannot be reached")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("bootstrap", url, "the URL must not carry a user or a password")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidArgument("bootstrap", url, "the URL must end after the port")
    if any(ord(c) <= 32 or ord(c) >= 127 for c in url):
        raise InvalidArgument("bootstrap", url, "the URL must be printable ASCII without spaces")
    return f"{parts.scheme}://{parts.netloc}"


def encode_announcement(registration: Registration) -> bytes:
    """The JSON body of a PUT; name and rank are in its path."""
    return msgspec.json.encode(
        _Announcement(
            address=registration.address,
            incarnation=format_incarnation(registration.incarnation),
            page_size=registration.page_size,
            layout_digest=registration.layout_digest,
            ttl_s=registration.ttl_s,
            ranks=registration.ranks,
            member=registration.member,
        )
    )


def decode_announcement(instance: str, rank: int, body: bytes) -> Registration:
    """A PUT's body for the engine that its path names; WireError names the first field that is wrong."""
    said = _decode(body, _Announcement)
    parse_address(said.address)
    _check_member(said.member, said.ranks, rank)
    return Registration(
        instance=instance,
        rank=rank,
        address=said.address,
        incarnation=parse_incarnation(said.incarnation),
        page_size=said.page_size,
        layout_digest=said.layout_digest,
        ttl_s=said.ttl_s,
        ranks=said.ranks,
        member=said.member,
    )


def _check_member(member: Rank | None, ranks: int, rank: int) -> None:
    if ranks > 1 and (member is None or rank >= ranks):
        raise WireError("member", f"rank {rank} of {ranks} must say what it has")
    if member is not None:
        check_layout(member.layout)
        if member.cp_rank >= member.cp_size:
            raise WireError("member", f"part {member.cp_rank} of {member.cp_size} of a prompt")


def encode_record(registration: Registration, expires_in_s: float) -> bytes:
    """The JSON of one registered engine, as the registry answers it."""
    return msgspec.json.encode(
        _Record(
            instance=registration.instance,
            rank=registration.rank,
            address=registration.address,
            incarnation=format_incarnation(registration.incarnation),
            page_size=registration.page_size,
            layout_digest=registration.layout_digest,
            ttl_s=registration.ttl_s,
            expires_in_s=max(0.0, expires_in_s),
            ranks=registration.ranks,
            member=registration.member,
        )
    )


def decode_record(body: bytes) -> Registration:
    """A registry's answer; WireError names the first field that is wrong."""
    said = _decode(body, _Record)
    parse_address(said.address)
    _check_member(said.member, said.ranks, said.rank)
    return Registration(
        instance=said.instance,
        rank=said.rank,
        address=said.address,
        incarnation=parse_incarnation(said.incarnation),
        page_size=said.page_size,
        layout_digest=said.layout_digest,
        ttl_s=said.ttl_s,
        ranks=said.ranks,
        member=said.member,
    )


def encode_refusal(words: str) -> bytes:
    """The JSON of a refusal."""
    return msgspec.json.encode(_Refusal(words))


def decode_refusal(body: bytes) -> str | None:
    """The words of a refusal, at most 300 printable characters; None when the body is none."""
    try:
        words = _decode(body, _Refusal).error
    except WireError:
        return None
    return printable(words)


def printable(words: str) -> str:
    """What a stranger wrote, fit for a log line: at most 300 characters, none of them a control character."""
    return "".join(c if c.isprintable() else "?" for c in words[:300])


def _decode(body: bytes, kind: type[_T]) -> _T:
    if len(body) > MAX_BODY:
        raise WireError("body", f"longer than {MAX_BODY} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        words = printable(str(error))
        found = _place.search(words)
        raise WireError(found[1] or found[2] if found else "body", words) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("body", f"no JSON: {error}") from None
