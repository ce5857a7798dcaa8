"""What a prefill engine holds: decode engines, rooms, and the grants that it writes for. Plain records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.events import Timer
from ..protocol.identity import RoomKey, agent_name
from ..protocol.intervals import size
from ..protocol.layout import Layout, Regions
from ..protocol.plan import DescriptorTable, Piece
from ..protocol.shaped import PairTable
from ..protocol.shares import Covers, Share
from ..protocol.staging import Slots
from ..protocol.status import Phase
from ..statemachine.memory import DrainValue
from ..statemachine.rooms import prefill_room
from . import account
from .account import Met
from .core import Link, Record
from .grants import GrantBook
from .health import Held
from .sends import Outbox, Send, Wanted
from .settings import EngineSettings
from .watch import Watcher


class PrefillPeer:
    """One incarnation of a decode engine: which of its grants are live and which are over.

    broken: a write to it has failed since the transport learnt of it. answered: it has answered a ping since then.
    suspect: it was made known anew after that, and no write has settled yet. aside: its grants that came to post when
    nothing more could be posted to it, in the order in which they are called up.
    """

    def __init__(self, incarnation: int, engine: str) -> None:
        self.incarnation = incarnation
        self.engine = engine
        self.agent = agent_name(incarnation)
        self.link: Link | None = None
        self.book = GrantBook()
        self.drains: dict[int, Writer] = {}
        self.layout: Layout | None = None
        self.regions: Regions | None = None
        self.share: Share | None = None
        self.covers: Covers | None = None
        self.pairs: PairTable | None = None
        self.staging: Slots | None = None
        self.table: DescriptorTable | None = None
        self.lease_until = 0.0
        self.parked = 0
        self.last_notified = 0.0
        self.posted_bytes = 0
        self.gone = False
        self.blob = b""
        self.broken = False
        self.answered = False
        self.suspect = False
        self.kept: list[int] = []
        self.doubtful: set[int] = set()
        self.aside: OrderedDict[Writer, None] = OrderedDict()


class Writer:
    """One grant as prefill holds it: what decode wants, what is still to be posted, and its drain.

    empty, filled: the slots of decode that are lent to it, which may be written to, and which may not yet. called: it
    was set aside and called up, and has not posted since.
    """

    def __init__(
        self,
        peer: PrefillPeer,
        number: int,
        token: int,
        key: RoomKey,
        wanted: Wanted,
        outbox: Outbox,
        slots: list[int],
    ) -> None:
        self.peer = peer
        self.number = number
        self.token = token
        self.key = key
        self.wanted = wanted
        self.outbox = outbox
        self.empty = slots
        self.filled: set[int] = set()
        self.drain = DrainValue()
        self.record: PrefillRecord | None = None
        self.ready = self.called = False
        self.accepted = False
        self.voided_at = 0.0
        self.posted_bytes = 0
        self.turn_at = 0.0
        share = peer.share
        self.receiver, self.receivers = (0, 1) if share is None else (share.receiver, share.receivers)
        self.instance = peer.incarnation if share is None else share.instance
        manifest = wanted.manifest
        self.unposted = size(manifest.kv) + bool(manifest.aux) + sum([count for _, count in manifest.state])


class PrefillRecord(Record):
    """A room on prefill. greeted: a send that says nothing but that the caller is there waits to be taken in."""

    def __init__(self, key: RoomKey, settings: EngineSettings, opened: float, watcher: Watcher) -> None:
        super().__init__(key, settings, opened)
        self.watcher = watcher
        self.room = prefill_room()
        self.timer: Timer | None = None
        self.armed_at = 0.0
        self.writers: dict[Writer, None] = {}
        self.holders: dict[PrefillPeer, None] = {}
        self.sends: list[Send] = []
        self.freed = self.greeted = False

    @property
    def room_phase(self) -> Phase:
        """See `Record.room_phase`."""
        return self.room.phase


def held_of(writers: Sequence[Writer]) -> Held:
    """What the writes in flight of an ended room carry."""
    peers = tuple(writer.peer.engine for writer in sorted(writers, key=lambda one: one.receiver))
    return Held(sum(writer.posted_bytes for writer in writers), min(writer.voided_at for writer in writers), peers)


def met_of(record: PrefillRecord) -> Met | None:
    """What of a failed room was written; None for a room that has not failed."""
    if record.failure is None:
        return None
    receivers = record.room.ledger.receivers
    if any(receiver is None for receiver in receivers):
        return account.NOTHING_MET
    return account.met_by_all([(one.wanted, one.missing) for one in receivers if one is not None])


class Posted(NamedTuple):
    """A write in flight: for which grant, what it carries, and from which staging slot of ours."""

    writer: Writer
    piece: Piece
    slot: int | None
