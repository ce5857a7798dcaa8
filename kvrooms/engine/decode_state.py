"""What a decode engine holds: targets, links, peers, rooms and their grants. Plain records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..protocol.events import Timer
from ..protocol.failure import DETAIL_MAX
from ..protocol.identity import RoomKey
from ..protocol.intervals import Intervals, below, size
from ..protocol.layout import Layout
from ..protocol.manifest import Indices, Manifest, derive
from ..protocol.notify import PartKind
from ..protocol.registration import Registration
from ..protocol.shaped import PairTable
from ..protocol.shares import Covers, Share
from ..protocol.status import Phase
from ..statemachine.memory import LEASE
from ..statemachine.rooms import decode_room
from .core import Link, Record
from .health import Held, range_bytes
from .settings import EngineSettings
from .watch import Watcher

if TYPE_CHECKING:
    from .holds import Hold

REDIAL_FIRST_S = 0.02


def joined(words: Sequence[str]) -> str:
    """The differences between two engines, as the detail of a failure."""
    return "; ".join(words)[:DETAIL_MAX]


class Target(NamedTuple):
    """Which prefill engine: the registry to ask, the instance ("" when there is only one) and the rank."""

    bootstrap: str
    instance: str
    rank: int


class Route(NamedTuple):
    """One sending rank: where it is, what it owes (None: everything, from an equal layout), its pages' tokens."""

    target: Target
    share: Share | None
    covers: Covers | None
    page_size: int


class Source:
    """A prefill instance: its ranks as the registry knows them, and once all are known the routes from them.

    waiting: the rooms that were opened before that. placed: the routes that rooms were placed by last.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.known: dict[int, Registration] = {}
        self.routes: tuple[Route, ...] | None = None
        self.placed: tuple[Route, ...] = ()
        self.waiting: dict[DecodeRecord, None] = {}

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that send together, as far as anything is known of them."""
        size = next((one.ranks for one in self.known.values()), 1)
        return range(size) if size > 1 else (self.target.rank,)

    @property
    def unknown(self) -> list[int]:
        """Of these the ones that the registry has not named yet."""
        return [rank for rank in self.ranks if rank not in self.known]


class Wish(NamedTuple):
    """What the caller wants: destination pages from position `prefix` on, an aux slot (-1: none), indices per component
    of the layout, and how many tokens the prompt has."""

    pages: Indices
    prefix: int
    aux_index: int
    state: tuple[Indices, ...]
    tokens: int


class Destination(NamedTuple):
    """Where the bytes go: a page per owed position, an aux slot (-1: none), indices per component of the manifest.

    first_page: decode's page position that the first of `pages` has.
    """

    pages: Indices
    aux_index: int
    state: tuple[Indices, ...]
    first_page: int = 0

    def items(self, manifest: Manifest, kind: PartKind, component: int, start: int, stop: int) -> Indices:
        """The items at positions [start, stop) of a part that the manifest owes."""
        match kind:
            case PartKind.KV:
                offset = size(below(manifest.kv, start)) - start
                return self.pages[start + offset : stop + offset]
            case PartKind.AUX:
                return np.array([self.aux_index], dtype=np.int32)
            case PartKind.STATE:
                return self.state[component][start:stop]


class Peer:
    """One incarnation of a prefill engine: the grants that it may still write to.

    rank: of an instance whose ranks have one name together; None: it has a name of its own. name: what tells it apart.
    """

    def __init__(self, incarnation: int, engine: str, agent: str, first_grant: int, rank: int | None = None) -> None:
        self.incarnation = incarnation
        self.engine = engine
        self.name = engine if rank is None else f"{engine} rank {rank}"
        self.agent = agent
        self.link: DecodeLink | None = None
        self.grants: dict[int, Grant] = {}
        self.next_grant = first_grant
        self.fenced_at = -math.inf
        self._floor = first_grant

    @property
    def floor(self) -> int:
        """The lowest grant that is not released. Grants are dense, so the walk costs one step per grant in all."""
        while self._floor < self.next_grant and self._floor not in self.grants:
            self._floor += 1
        return self._floor


class DecodeLink(Link):
    """The connection to one target, or the attempt to have one."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.sought = 0
        self.introduced = False
        self.peer: Peer | None = None
        self.held: dict[Grant, None] = {}
        self.holds: dict[Hold, None] = {}
        self.backoff_s = REDIAL_FIRST_S
        self.trouble = "its registry has not answered yet"
        self.sources: dict[Source, None] = {}
        self.found: Registration | None = None
        self.share: Share | None = None
        self.landing: PairTable | None = None

    @property
    def number(self) -> int | None:
        """The rank of the engine at its other end, where that tells it from others of its name."""
        several = any(len(source.ranks) > 1 for source in self.sources)
        return self.target.rank if several or self.target.rank else None


class Grant:
    """One METADATA to one prefill rank, and its lease.

    slots: the staging slots that are lent to it. landing: what lies in them. scattered: of positions that came in part,
    which buffers have.
    """

    def __init__(
        self, record: DecodeRecord, sender: int, target: Target, manifest: Manifest, to: Destination, token: int
    ) -> None:
        self.record = record
        self.sender = sender
        self.target = target
        self.manifest = manifest
        self.destination = to
        self.token = token
        self.lease = LEASE.initial
        self.peer: Peer | None = None
        self.number = 0
        self.retry_s = 0.0
        self.quarantined_at = 0.0
        self.slots: tuple[int, ...] = ()
        self.landing: PairTable | None = None
        self.scattered: dict[tuple[PartKind, int, int], Intervals] = {}


class DecodeRecord(Record):
    """A room on decode."""

    def __init__(
        self,
        key: RoomKey,
        settings: EngineSettings,
        opened: float,
        target: Target,
        wish: Wish,
        watcher: Watcher,
    ) -> None:
        super().__init__(key, settings, opened)
        self.target = target
        self.wish = wish
        self.manifests: tuple[Manifest, ...] = ()
        self.watcher = watcher
        self.room = decode_room(())
        self.timer: Timer | None = None
        self.grants: tuple[Grant, ...] = ()
        self.unreleased = 0

    @property
    def room_phase(self) -> Phase:
        """See `Record.room_phase`."""
        return self.room.phase


def held_of(layout: Layout, grants: Sequence[Grant]) -> Held:
    """What is held of a room because of some of its grants: all of it, for none of it comes back before the last."""
    pages, _, slot, state, _ = grants[0].record.wish
    size = range_bytes(layout, layout.component_names, pages, slot, state)
    peers = tuple(grant.peer.name for grant in sorted(grants, key=lambda one: one.sender) if grant.peer is not None)
    return Held(size, min(grant.quarantined_at for grant in grants), peers)


def wanted_from(layout: Layout, route: Route, wish: Wish) -> tuple[Manifest, Destination]:
    """What a room wants from one sending rank, and where that goes."""
    pages, prefix, slot, indices, tokens = wish
    total = prefix + len(pages)
    if route.covers is None:
        manifest = derive(layout, total, prefix, indices, aux=slot >= 0)
        return manifest, Destination(
            pages if manifest.kv else pages[:0], slot, tuple(some for some in indices if len(some))
        )
    ours, theirs = layout.page_size, route.page_size
    sent = total if ours == theirs else -(-tokens // theirs)
    held = sent if prefix * ours >= tokens else prefix * ours // theirs  # decode may hold less than a page of theirs
    manifest = derive(layout, sent, held, indices, slot >= 0, route.covers)
    low, high = (manifest.kv[0][0], manifest.kv[-1][1]) if manifest.kv else (0, 0)
    first, stop = max(prefix, low * theirs // ours), min(total, -(-high * theirs // ours))
    some = pages[first - prefix : stop - prefix] if manifest.kv else pages[:0]
    named = dict(zip(layout.component_names, indices, strict=True)) if indices else {}
    return manifest, Destination(
        some, slot if manifest.aux else -1, tuple(named[name] for name, _ in manifest.state), first
    )
