"""Who is who: rooms, attempts, grants, incarnations, tokens; and the limits that bound them.

| name | width | chosen by | meaning |
|---|---|---|---|
| room | 63 bits | the router | one request's transfer; 0 is legal |
| attempt | 32 bits | the caller, equal on all ranks of both sides | which try of that request |
| grant | 64 bits | decode, dense and increasing per pair of engine incarnations | one METADATA |
| token | 64 bits, random | decode, one per grant | a stranger cannot forge completion blindly |
| incarnation | 64 bits, random, not 0 | each engine at its start | one life of one engine |

Grants are dense per pair of incarnations (not per decode engine as a whole), so that the set of grants that a prefill
engine has seen and finished stays one interval however many peers decode has.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

from .errors import InvalidArgument

ROOM_MAX = 2**63 - 1
ATTEMPT_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
NAME_MAX = 128
PAGES_MAX = 2**24
COMPONENTS_MAX = 64
BUFFERS_MAX = 4096
AUX_MAX = 64
SHARDS_MAX = 16
RANKS_MAX = 1024
ITEMS_MAX = 2**31 - 1


class RoomKey(NamedTuple):
    """What names a room on both sides."""

    room: int
    attempt: int

    def __str__(self) -> str:
        return f"room {self.room}" if self.attempt == 0 else f"room {self.room} attempt {self.attempt}"


def check_int(field: str, value: object, low: int, high: int) -> int:
    """`value` as an int within [low, high]; bool and float are refused. Raises InvalidArgument naming the field."""
    if isinstance(value, bool):
        raise InvalidArgument(field, value, "must be an integer, not a bool")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(field, value, "must be an integer") from None
    if not low <= number <= high:
        raise InvalidArgument(field, value, f"must be between {low} and {high}")
    return number


def room_key(room: object, attempt: object = 0) -> RoomKey:
    """The checked key of a room. Raises InvalidArgument."""
    return RoomKey(check_int("room", room, 0, ROOM_MAX), check_int("attempt", attempt, 0, ATTEMPT_MAX))


def agent_name(incarnation: int) -> str:
    """The transport agent's name. It holds the incarnation, so an engine that returns never reuses a name."""
    return f"kvrooms-{incarnation:016x}"
