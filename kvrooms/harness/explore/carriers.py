"""What lies between two sides: frames on their way, and writes on theirs. Values, and the moves that they allow.

Frames keep their order in a connection. A frame that was overtaken, repeated, or sent in a configuration without order
is a *stray*: it may arrive at any time later, or whenever. A write lands descriptor by descriptor; once it has landed,
its notification and its settlement come, in either order, and unordered among writes.
"""

from __future__ import annotations

from typing import NamedTuple

from .glue import Sent
from .scenario import Plan

Strays = tuple[Sent, ...]


class Wire(NamedTuple):
    """The frames between decode and one prefill engine, first to last; and the strays, a multiset kept in order."""

    to_prefill: tuple[Sent, ...] = ()
    to_decode: tuple[Sent, ...] = ()
    stray_to_prefill: Strays = ()
    stray_to_decode: Strays = ()


def with_stray(strays: Strays, sent: Sent) -> Strays:
    """The multiset with one more frame."""
    return tuple(sorted((*strays, sent), key=repr))


def without(frames: tuple[Sent, ...], at: int) -> tuple[Sent, ...]:
    """Without the frame at a place."""
    return (*frames[:at], *frames[at + 1 :])


UNPOSTED, IN_FLIGHT, GOOD, BAD, ORPHAN = "unposted", "in flight", "settled", "failed", "its process is dead"


class Flight(NamedTuple):
    """One piece of one grant. landed: descriptors in place. noted: its notification was delivered, or is lost.

    stopped: it can land no more (a process is dead). A write that has failed may still land (seen with UCX over TCP).
    """

    state: str = UNPOSTED
    landed: int = 0
    noted: bool = False
    stopped: bool = False


Flights = tuple[tuple[Flight, ...], ...]
"""Per use, per piece."""


def no_flights(plans: tuple[Plan, ...]) -> Flights:
    """Nothing is posted yet."""
    return tuple(tuple(Flight() for _ in plan.all_writes) for plan in plans)


def with_flight(flights: Flights, use: int, piece: int, flight: Flight) -> Flights:
    """With another value for one piece."""
    row = (*flights[use][:piece], flight, *flights[use][piece + 1 :])
    return (*flights[:use], row, *flights[use + 1 :])


def may_land(flight: Flight, size: int) -> bool:
    """Whether bytes of it can still land."""
    return flight.state in (IN_FLIGHT, BAD) and flight.landed < size and not flight.stopped


def fates(flight: Flight, size: int, notifies: bool, lazy: bool) -> list[tuple[str, Flight]]:
    """What may happen to a write next: a descriptor lands ("land"), the notification comes ("note"), it is over
    ("settle"). lazy: descriptors land no earlier than something shows it."""
    found: list[tuple[str, Flight]] = []
    landing = may_land(flight, size)
    if landing and not (lazy and flight.state == IN_FLIGHT):
        found.append(("land", flight._replace(landed=size if lazy else flight.landed + 1)))
    whole = flight.landed == size or (lazy and flight.state in (IN_FLIGHT, ORPHAN))
    landed = flight._replace(landed=size)
    if whole and flight.state != UNPOSTED and not flight.noted and notifies:
        found.append(("note", landed._replace(noted=True)))
    if flight.state == IN_FLIGHT and whole:
        found.append(("settle", landed._replace(state=GOOD)))
    if flight.state == IN_FLIGHT and flight.stopped and flight.landed != size:
        found.append(("settle", flight._replace(state=BAD)))
    return found


class Label(NamedTuple):
    """A move for people. who, to: lifelines. kind: as `evidence.Step`."""

    who: str
    kind: str
    text: str
    to: str = ""


def taken(value: Wire, *, to_prefill: bool) -> list[tuple[Sent, bool, Wire]]:
    """(frame, is it a stray, wire without it) for each frame that may arrive next."""
    found = []
    queue = value.to_prefill if to_prefill else value.to_decode
    strays = value.stray_to_prefill if to_prefill else value.stray_to_decode
    if queue:
        after = value._replace(to_prefill=queue[1:]) if to_prefill else value._replace(to_decode=queue[1:])
        found.append((queue[0], False, after))
    for i, sent in enumerate(strays):
        if i == 0 or sent != strays[i - 1]:
            left = without(strays, i)
            after = value._replace(stray_to_prefill=left) if to_prefill else value._replace(stray_to_decode=left)
            found.append((sent, True, after))
    return found


def frame_label(sent: Sent, *, to_prefill: bool) -> Label:
    """A frame that arrives, for people."""
    who, to = ("decode", "prefill") if to_prefill else ("prefill", "decode")
    return Label(who, "message", sent.text, to)


def write_label(plan: Plan, what: str, piece: int) -> Label:
    """What happens to a write, for people."""
    words = piece_words(plan, piece)
    if what == "land":
        return Label("prefill", "write", f"{words}: bytes land", "decode")
    if what == "note":
        return Label("prefill", "notification", words, "decode")
    return Label("prefill", "write", f"{words} {'settles' if what == 'settle' else what}")


def piece_words(plan: Plan, piece: int) -> str:
    """What a piece reports, for people."""
    parts = plan.all_writes[piece].piece.parts
    named = [f"{p.kind.name}{f' of component {p.component}' if p.component else ''} {p.first}" for p in parts]
    return (
        " and ".join(
            name + (f" to {p.first + p.size - 1}" if p.size > 1 else "") for name, p in zip(named, parts, strict=True)
        )
        or f"piece {piece}"
    )


def complete(plan: Plan, row: tuple[Flight, ...]) -> bool:
    """Whether every descriptor that the use's request owes has been filled by a write that landed whole."""
    filled: set[int] = set()
    for flight, write in zip(row, plan.all_writes, strict=True):
        if flight.landed == len(write.fills):
            filled |= write.fills
    return plan.owed <= filled
