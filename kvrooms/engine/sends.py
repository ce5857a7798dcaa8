"""From what a caller hands over and a METADATA asks for to the transfers of one grant: positions to items."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.intervals import size
from ..protocol.layout import Layout, Regions
from ..protocol.manifest import Declaration, Indices, Manifest, check_manifest, counts_of
from ..protocol.notify import PartKind
from ..protocol.plan import DescriptorTable, Piece, Transfer, pieces

_NONE: Indices = np.empty(0, dtype=np.int32)


class Send(NamedTuple):
    """One call of `send`: pages at positions [first_page, ...), per component of the layout (first position, indices).

    aux_index: the source aux slot when aux goes with this send, else None. declaration: the totals as known after it.
    """

    first_page: int
    pages: Indices
    state: tuple[tuple[int, Indices], ...]
    aux_index: int | None
    declaration: Declaration


def sent_items(sends: Sequence[Send], kind: PartKind, place: int, start: int, stop: int) -> Indices:
    """The source items at positions [start, stop) of a part that was sent. place: the component within the layout."""
    found = []
    for send in sends:
        if kind is PartKind.AUX:
            found.append(_NONE if send.aux_index is None else np.array([send.aux_index], dtype=np.int32))
            continue
        if kind is PartKind.KV:
            first, items = send.first_page, send.pages
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


def wanted_of(layout: Layout, ours: Regions, regions: Regions, body: wire.Metadata) -> Wanted:
    """What a METADATA asks for, checked against the layout and the regions of its sender. Raises WireError."""
    manifest = body.manifest
    if body.direction != "write":
        raise WireError("metadata.direction", f"{body.direction!r} is not supported; only 'write' is")
    check_manifest(layout, manifest)
    pages = wire.unpack_indices("metadata.pages", body.pages, size(manifest.kv), regions.pages)
    if bool(manifest.aux) != (body.aux_index >= 0) or body.aux_index >= max(regions.aux_slots, 1):
        raise WireError("metadata.aux_index", f"{body.aux_index} does not fit {regions.aux_slots} slots")
    if len(body.state) != len(manifest.state):
        raise WireError("metadata.state", f"{len(body.state)} components, the manifest has {len(manifest.state)}")
    state: list[Indices] = []
    for (name, count), packed in zip(manifest.state, body.state, strict=True):
        items = regions.component_items(layout.component_names.index(name))
        state.append(wire.unpack_indices(f"metadata.state.{name}", packed, count, items))
    if body.digest and not (regions.on_host and ours.on_host):
        raise WireError("metadata.digest", "digests are taken by the CPU, and a buffer is not in the host's memory")
    return Wanted(manifest, pages, body.aux_index, tuple(state), body.digest)


def transfers(layout: Layout, wanted: Wanted, send: Send) -> list[Transfer]:
    """The part of a send that one grant wants. The declarations have been compared: positions are within bounds."""
    result: list[Transfer] = []
    first, stop, offset = send.first_page, send.first_page + len(send.pages), 0
    for start, end in wanted.manifest.kv:
        low, high = max(start, first), min(end, stop)
        if low < high:
            target = wanted.pages[offset + low - start : offset + high - start]
            result.append(Transfer(PartKind.KV, 0, 0, low, send.pages[low - first : high - first], target))
        offset += end - start
    for component, (name, count) in enumerate(wanted.manifest.state):
        in_layout = layout.component_names.index(name)
        at, indices = send.state[in_layout] if send.state else (0, _NONE)
        if len(indices):
            assert at + len(indices) <= count
            target = wanted.state[component][at : at + len(indices)]
            result.append(Transfer(PartKind.STATE, component, in_layout, at, indices, target))
    if send.aux_index is not None and wanted.manifest.aux:
        source, target = (np.array([slot], dtype=np.int32) for slot in (send.aux_index, wanted.aux_index))
        result.append(Transfer(PartKind.AUX, 0, 0, 0, source, target))
    return result


def too_much(names: tuple[str, ...], send: Send, wanted: Manifest) -> tuple[tuple[str, int], ...] | None:
    """The counts of state if one is larger than wanted; those that are not yet are left as wanted."""
    expected = dict(wanted.state)
    sent = {name: at + len(some) for name, (at, some) in zip(names, send.state, strict=False)}
    if all(sent[name] <= expected.get(name, 0) for name in sent):
        return None
    return counts_of(names, tuple(max(sent[name], expected.get(name, 0)) for name in names))


class Outbox:
    """The pieces that one grant still has to post, made one at a time as they are posted."""

    def __init__(self, layout: Layout, source: DescriptorTable, destination: DescriptorTable, limit: int) -> None:
        self._layout = layout
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
                todo = transfers(self._layout, wanted, self._sends.popleft())
                self._pieces = pieces(self._source, self._destination, todo, self._limit)
            self._next = next(self._pieces, None)
            if self._next is None:
                self._pieces = None
        return self._next

    def take(self) -> None:
        """The piece that `peek` showed is posted."""
        self._next = None
