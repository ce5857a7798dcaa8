"""The words of a passed deadline: which obligation is open, from whom, for how long, and what to look at.

With several ranks those are named that hold a room up, and no others: whoever reads it goes to look there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.events import Timer
from ..protocol.failure import DETAIL_MAX
from ..protocol.status import Phase
from . import account
from .core import Record
from .decode_state import DecodeLink, DecodeRecord, Grant, Target
from .prefill_posting import _busy
from .prefill_state import PrefillRecord, Writer

_SHOWN = 4
_CAP = "no room may live longer than cap_timeout_s, whatever progress it makes"
_DECODE_LOOKS = {
    Timer.BOOTSTRAP: "is the other engine up and registered, and was the room opened there under this number?",
    Timer.WAITING: "does the other side still have this request in its queue?",
    Timer.MOVING: "is the other side computing or stuck, and does the network carry its writes?",
    Timer.CAP: _CAP,
}


class Open(NamedTuple):
    """An obligation that is open: who owes it, and what it is."""

    who: str
    what: str


def overdue(record: Record, now: float, phase: Phase, those: Sequence[Open], look: str, more: str = "") -> str:
    """The detail of a passed deadline. It is cut in its middle where it is too long."""
    groups: dict[str, list[str]] = {}
    for who, what in those:
        groups.setdefault(what, []).append(who)
    whats = [what if len(groups) == 1 else f"{what} from {account.listed(names)}" for what, names in groups.items()]
    if len(whats) > _SHOWN:
        whats[_SHOWN:] = ["..."]
    middle = f"{account.listed([one.who for one in those])}; open: {'; '.join(whats)}"
    head = f"{record.key} was in {phase.value} after {now - record.opened:.1f} s, waiting for "
    tail = f"{more}; no progress for {now - record.progressed_at:.1f} s; {look}"
    return head + middle[: DETAIL_MAX - len(head) - len(tail)] + tail


# -- decode ------------------------------------------------------------------------------------------------------------


def late_on_decode(
    record: DecodeRecord, timer: Timer, now: float, links: dict[Target, DecodeLink], unknown: Sequence[int]
) -> str:
    """The detail of a deadline that has passed on decode. unknown: the sending ranks that are not registered."""
    those = _owed_to(record, links, unknown)
    return overdue(record, now, record.room.phase, those, _DECODE_LOOKS[timer])


def _owed_to(record: DecodeRecord, links: dict[Target, DecodeLink], unknown: Sequence[int]) -> list[Open]:
    if not record.grants:
        targets = [record.target._replace(rank=rank) for rank in unknown] or [record.target]
        return [Open(_from(target, links), "which ranks send, and their answer to METADATA") for target in targets]
    senders = list(zip(record.grants, record.room.ledger.senders, strict=True))
    asked = [grant for grant, sender in senders if not sender.accepted]
    if asked:
        return [Open(sender_name(grant, links), "the answer to METADATA") for grant in asked]
    return [
        Open(sender_name(grant, links), account.open_words(grant.manifest, sender.missing))
        for grant, sender in senders
        if account.owes(sender.missing)
    ]


def sender_name(grant: Grant, links: dict[Target, DecodeLink]) -> str:
    """Who is to send what a grant is for."""
    return _from(grant.target, links, "" if grant.peer is None else grant.peer.name)


def _from(target: Target, links: dict[Target, DecodeLink], name: str = "") -> str:
    """An engine that sends, by its name or by how it was asked for, and what is wrong with the connection to it."""
    link = links.get(target)
    if not name:
        number = None if link is None else link.number
        name = (target.instance or target.bootstrap) + ("" if number is None else f" rank {number}")
    return name if link is None or link.up else f"{name} ({link.trouble})"


# -- prefill -----------------------------------------------------------------------------------------------------------


def late_on_prefill(record: PrefillRecord, timer: Timer, now: float, us: str) -> str:
    """The detail of a deadline that has passed on prefill. us: this engine's name, for both sides are told."""
    those, look = _owed_by(record, us)
    sent = record.sends[-1] if record.sends else None
    pages = 0 if sent is None else sent.first_page + len(sent.pages)
    handed = "everything" if sent is not None and sent.declaration.pages is not None else f"{pages} pages"
    more = f"; handed over by the caller so far: {handed}"
    return overdue(record, now, record.room.phase, those, _CAP if timer is Timer.CAP else look, more)


def _owed_by(record: PrefillRecord, us: str) -> tuple[list[Open], str]:
    """Who holds a room of prefill up, and where to look: a decode rank that has not asked, or that what is written to
    it has not reached; or nobody but the room's own caller."""
    receivers = record.room.ledger.receivers
    absent = [i for i, receiver in enumerate(receivers) if receiver is None]
    if absent:
        look = "is decode up, and was the room opened there under this number?"
        if not record.writers:
            return [Open("a decode engine", "its METADATA")], look
        have = account.listed([receiver_name(writer) for writer in record.writers])
        numbered = f"of the {len(receivers)} decode ranks that {us} sends to, counted from 0, {have} asked; {look}"
        return [Open(f"receiver {i} of {len(receivers)}", "its METADATA") for i in absent], numbered
    busy = [writer for writer in record.writers if _busy(writer)]
    if busy:
        look = "is that side stuck, and does the network carry the writes to it?"
        return [Open(receiver_name(writer), _unsettled(record, writer)) for writer in busy], look
    look = "does whatever computes this request still run, and does its last send say so?"
    if any(writer.outbox.peek(writer.wanted) is not None for writer in record.writers):
        what = "its last send, with the totals"  # all that was asked for is handed over, and the end of it kept back
    else:
        owed = dict.fromkeys(_unsettled(record, writer) for writer in record.writers)
        what = f"its next send, for {'; '.join(list(owed)[:_SHOWN])}"
    return [Open(f"the caller of {us}", what)], look


def receiver_name(writer: Writer) -> str:
    """Who is to receive what a grant is for; with several, which one it is of those that this rank sends to."""
    name = writer.peer.engine
    return name if writer.receivers == 1 else f"{name} (receiver {writer.receiver} of {writer.receivers})"


def _unsettled(record: PrefillRecord, writer: Writer) -> str:
    receiver = record.room.ledger.receivers[writer.receiver]
    assert receiver is not None
    return account.open_words(receiver.wanted, receiver.missing)
