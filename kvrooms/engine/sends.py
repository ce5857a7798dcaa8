"""From what a caller hands over and a METADATA asks for to the transfers of one grant: positions to items."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.intervals import size
from ..protocol.layout import Layout, Regions
from ..protocol.manifest import Declaration, Indices, Manifest, check_manifest, counts_of
from ..protocol.notify import PartKind
from ..protocol.plan import DescriptorTable, Piece, Transfer, pieces
from ..protocol.shaped import PairTable
from ..protocol.shares import Covers
from ..protocol.staging import Slots

_NONE: Indices = np.empty(0, dtype=np.int32)
_KV, _AUX = PartKind.KV, PartKind.AUX  # every room asks for them; see `statemachine.ledger`


class Layers(NamedTuple):
    """Which KV buffers a send is of, how many positions of each buffer were sent before, and how many are now."""

    buffers: frozenset[int]
    before: tuple[int, ...]
    sent: int

    @property
    def after(self) -> tuple[int, ...]:
        """Of each buffer how many positions are sent, with this send."""
        return tuple(at + (self.sent if b in self.buffers else 0) for b, at in enumerate(self.before))

    def whole(self, of: Collection[int]) -> int:
        """Up to which position buffers `of` are sent, with this send."""
        after = self.after
        return min((after[b] for b in of), default=0)


class Send(NamedTuple):
    """One call of `send`: pages at positions [first_page, ...), per component of the layout (first position, indices).

    aux_index: the source aux slot when aux goes with this send, else None. declaration: the totals as known after it.
    layers: of which layers the pages are; None: of all.
    """

    first_page: int
    pages: Indices
    state: tuple[tuple[int, Indices], ...]
    aux_index: int | None
    declaration: Declaration
    layers: Layers | None = None

    @property
    def empty(self) -> bool:
        """Whether it has no page, no index and no totals."""
        nothing = not len(self.pages) and not any(len(indices) for _, indices in self.state)
        return nothing and self.declaration == Declaration()

    @property
    def reached(self) -> int:
        """Up to which position every layer is sent."""
        if self.layers is None:
            return self.first_page + len(self.pages)
        return self.layers.whole(range(len(self.layers.before)))


def sent_items(sends: Sequence[Send], kind: PartKind, place: int, start: int, stop: int) -> Indices:
    """The source items at positions [start, stop) of a part that was sent. place: the component within the layout."""
    found = []
    for send in sends:
        if kind is PartKind.AUX:
            found.append(_NONE if send.aux_index is None else np.array([send.aux_index], dtype=np.int32))
            continue
        if kind is PartKind.KV:
            first, items = send.first_page, send.pages[: max(0, send.reached - send.first_page)]
        else:
            first, items = send.state[place] if send.state else (0, _NONE)
        found.append(items[max(0, start - first) : max(0, stop - first)])
    return np.concatenate(found)


class Wanted(NamedTuple):
    """What one METADATA asks for: the manifest and where its positions go."""

    manifest: Manifest
    pages: Indices
    aux_index: int
    state: tuple[Indices, ...]
    digest: bool = False
    pages_from: int | None = None


class Shared(NamedTuple):
    """Two ranks whose layouts differ: decode's layout, and what the pair is for."""

    layout: Layout
    covers: Covers


def wanted_of(
    layout: Layout, ours: Regions, regions: Regions, body: wire.Metadata, shared: Shared | None = None
) -> Wanted:
    """What a METADATA asks for, checked against the layout and the regions of its sender. Raises WireError.

    shared: None where the layouts are equal and each rank is alone. Where page sizes differ, `pages_from` is decode's
    position of the first page.
    """
    manifest = body.manifest
    theirs = layout if shared is None else shared.layout
    if body.direction != "write":
        raise WireError("metadata.direction", f"{body.direction!r} is not supported; only 'write' is")
    check_manifest(layout, manifest, None if shared is None else shared.covers)
    equal = theirs.page_size == layout.page_size
    count = size(manifest.kv) if equal else _pages_needed(layout, theirs, body)
    pages = wire.unpack_indices("metadata.pages", body.pages, count, regions.pages)
    if bool(manifest.aux) != (body.aux_index >= 0) or body.aux_index >= max(regions.aux_slots, 1):
        raise WireError("metadata.aux_index", f"{body.aux_index} does not fit {regions.aux_slots} slots")
    if len(body.state) != len(manifest.state):
        raise WireError("metadata.state", f"{len(body.state)} components, the manifest has {len(manifest.state)}")
    state: list[Indices] = []
    for (name, count), packed in zip(manifest.state, body.state, strict=True):
        items = regions.component_items(theirs.component_names.index(name))
        state.append(wire.unpack_indices(f"metadata.state.{name}", packed, count, items))
    if body.digest and shared is not None:
        raise WireError("metadata.digest", "digests are taken of whole items, and these ranks share parts of items")
    if body.digest and not (regions.on_host and ours.on_host):
        raise WireError("metadata.digest", "digests are taken by the CPU, and a buffer is not in the host's memory")
    return Wanted(manifest, pages, body.aux_index, tuple(state), body.digest, None if equal else body.first_page)


def lent_to(body: wire.Metadata, staging: Slots | None) -> list[int]:
    """The staging slots that a METADATA lends. Raises WireError."""
    there = 0 if staging is None else staging.count
    slots: list[int] = wire.unpack_indices("metadata.slots", body.slots, len(body.slots) // 4, there).tolist()
    if len(set(slots)) < len(slots):
        raise WireError("metadata.slots", f"names a slot twice: {slots}")
    return slots


def _pages_needed(ours: Layout, theirs: Layout, body: wire.Metadata) -> int:
    """How many pages of decode's size, from `first_page` on, a METADATA must name. Raises WireError.

    The first and the last of our pages may hold tokens that decode has already, or has no page for; none may be all so.
    """
    manifest = body.manifest
    if not manifest.kv:
        return 0
    (low, _), (_, high) = manifest.kv[0], manifest.kv[-1]
    first, count = body.first_page, len(body.pages) // 4
    a, b = ours.page_size, theirs.page_size
    begins, ends = first * b, (first + count) * b
    if not (low * a <= begins < (low + 1) * a or (begins <= low * a < begins + b)):
        raise WireError("metadata.first_page", f"{first} of {b} tokens is not where position {low} of {a} tokens is")
    if not count or not (high - 1) * a < ends < high * a + b:
        raise WireError("metadata.pages", f"{count} pages of {b} tokens for positions {low} to {high} of {a} tokens")
    return count


def transfers(layout: Layout, wanted: Wanted, send: Send, of: frozenset[int] | None = None) -> list[Transfer]:
    """The part of a send that one grant wants. The declarations have been compared: positions are within bounds.

    of: which KV buffers the grant's pair of ranks is about; None: all.
    """
    result: list[Transfer] = []
    first, stop, offset = send.first_page, send.first_page + len(send.pages), 0
    for start, end in wanted.manifest.kv:
        low, high = max(start, first), min(end, stop)
        if low < high:
            target = wanted.pages[offset + low - start : offset + high - start]
            items = send.pages[low - first : high - first]
            if wanted.pages_from is None:
                pages = Transfer(_KV, 0, 0, low, items, target)
            else:
                pages = Transfer(_KV, 0, 0, low, items, wanted.pages, wanted.pages_from)
            layers, positional = send.layers, wanted.pages_from is None
            result += [pages] if layers is None else _layered(layout, layers, pages, of, positional=positional)
        offset += end - start
    for component, (name, count) in enumerate(wanted.manifest.state):
        in_layout = layout.component_names.index(name)
        at, indices = send.state[in_layout] if send.state else (0, _NONE)
        if len(indices):
            assert at + len(indices) <= count
            target = wanted.state[component][at : at + len(indices)]
            result.append(Transfer(PartKind.STATE, component, in_layout, at, indices, target))
    if send.aux_index is not None and wanted.manifest.aux:
        source, target = np.array([send.aux_index], dtype=np.int32), np.array([wanted.aux_index], dtype=np.int32)
        result.append(Transfer(_AUX, 0, 0, 0, source, target))
    return result


def _layered(
    layout: Layout, layers: Layers, pages: Transfer, of: frozenset[int] | None, *, positional: bool
) -> Iterator[Transfer]:
    """Pages of some layers: first the positions that are whole with them, then the others.

    positional: each page has its destination; else they are counted in decode's pages.
    """
    concerned = frozenset(range(len(layout.kv))) if of is None else of
    buffers = tuple(sorted(layers.buffers & concerned))
    if not buffers:
        return
    whole = layers.whole(concerned)
    cut = min(max(whole - pages.first, 0), len(pages.source))
    for start, stop in ((0, cut), (cut, len(pages.source))):
        if start < stop:
            targets = pages.destination[start:stop] if positional else pages.destination
            yield pages._replace(
                first=pages.first + start,
                source=pages.source[start:stop],
                destination=targets,
                buffers=buffers,
                report=stop == cut,
            )


def too_much(
    names: tuple[str, ...], send: Send, wanted: Manifest, covers: Covers | None = None
) -> tuple[tuple[str, int], ...] | None:
    """The counts of state if one is larger than wanted; those that are not yet are left as wanted.

    covers: what the pair of ranks is for; what else is sent is not looked at.
    """
    expected = dict(wanted.state)
    sent = {
        name: at + len(some)
        for name, (at, some) in zip(names, send.state, strict=False)
        if covers is None or name in covers.state
    }
    if all(sent[name] <= expected.get(name, 0) for name in sent):
        return None
    return counts_of(names, tuple(max(sent.get(name, 0), expected.get(name, 0)) for name in names))


class Outbox:
    """The pieces that one grant still has to post, made one at a time as they are posted.

    pairs: how parts of items are exchanged, where the layouts differ. lent: whether there are slots of the receiver.
    """

    def __init__(
        self,
        layout: Layout,
        source: DescriptorTable,
        destination: DescriptorTable,
        limit: int,
        pairs: PairTable | None = None,
        *,
        lent: bool = False,
    ) -> None:
        self._layout = layout
        self._pairs = pairs
        self._lent = lent
        self._source = source
        self._destination = destination
        self._limit = limit
        self._sends: deque[Send] = deque()
        self._pieces: Iterator[Piece] | None = None
        self._next: Piece | None = None

    def put(self, send: Send) -> None:
        """Queue a send."""
        self._sends.append(send)

    def peek(self, wanted: Wanted) -> Piece | None:
        """The next piece, without taking it; None when nothing is left."""
        while self._next is None:
            if self._pieces is None:
                if not self._sends:
                    return None
                of = None if self._pairs is None else self._pairs.buffers()
                todo = transfers(self._layout, wanted, self._sends.popleft(), of)
                if self._pairs is None:
                    self._pieces = pieces(self._source, self._destination, todo, self._limit)
                else:
                    names = self._layout.component_names
                    named = [(one, names[one.layout_component] if one.kind is PartKind.STATE else "") for one in todo]
                    self._pieces = self._pairs.pieces(named, self._limit, lent=self._lent)
            self._next = next(self._pieces, None)
            if self._next is None:
                self._pieces = None
        return self._next

    def take(self) -> None:
        """The piece that `peek` showed is posted."""
        self._next = None
