"""Writes over NIXL (backend UCX, no progress thread): whoever owns the agent drives it by polling.

What NIXL 1.5 was seen to do, and what follows from it here:

- A write may be over when it is posted. If not, only polling its handle finds out, and the peer may have to poll too.
- Releasing a handle in progress succeeds, and so does the removal of its peer; over TCP the bytes land all the same,
  later. So a handle in progress is never released before `close`, and a removed peer stays loaded until its writes are
  over: what `settled` reports is the truth about the write, not about our bookkeeping.
- A peer whose process died is noticed at once: its handles fail and posts raise.
- Picked from prepared lists, neighbouring descriptors are merged by NIXL itself.
- Every call releases the interpreter's lock. A user thread that computes in pure Python costs a poll up to the
  interpreter's switch interval.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..protocol.errors import KvroomsError, PeerGone, TransportError, UncertainWrite
from ..protocol.layout import Layout, Regions, check_regions
from ..protocol.plan import DescriptorTable, Piece
from .nixl_agent import BACKEND, start
from .ports import Arrival, Settlement

log = logging.getLogger("kvrooms.nixl")
_DONE, _IN_PROGRESS = 0, 1
_CLOSE_WAIT_S = 1.0
_NOTHING: tuple[Any, ...] = ()


class _Peer:
    """A remote agent: its prepared lists by kind of memory; its writes in flight (our handle: NIXL's), oldest first."""

    __slots__ = ("agent", "blob", "flying", "layout", "lists", "looks", "regions", "removed", "table")

    def __init__(self, agent: str, blob: bytes, layout: Layout, regions: Regions, lists: dict[str, int]) -> None:
        self.agent = agent
        self.blob = blob
        self.layout = layout
        self.regions = regions
        self.lists = lists
        self.table = DescriptorTable(layout, regions)
        self.flying: dict[int, int] = {}
        self.looks = 1  # how many writes in progress one call of `settled` looks at
        self.removed = False


class NixlTransport:
    """A NIXL agent. Its owner's thread alone may call it, except that it may be made and registered by another."""

    def __init__(self, agent: str) -> None:
        """Start an agent of that name. Imports nixl (about a second). Raises TransportError."""
        self._agent = agent
        self._peers: dict[str, _Peer] = {}
        self._busy: dict[str, _Peer] = {}
        self._local: dict[str, int] = {}
        self._registered: list[Any] = []
        self._unreleased: list[int] = []
        self._next_handle = 0
        self._in_flight = 0
        self._registered_once = self._closed = False
        self._bindings, self._wrapper = start(agent)
        bindings = self._bindings
        self._errors = tuple(
            kind for name, kind in vars(bindings).items() if name.startswith("nixl") and name.endswith("Error")
        )
        self._disconnected = bindings.nixlRemoteDisconnectError
        self._write = bindings.NIXL_WRITE
        self._memories = {"DRAM": bindings.DRAM_SEG, "VRAM": bindings.VRAM_SEG}
        # The wrapper's methods add an object with a finalizer and slow comparisons of enums: 1 microsecond per write.
        # The agent under it is a public attribute.
        raw = self._wrapper.agent
        self._make: Callable[..., int] = raw.makeXferReq
        self._create: Callable[..., int] = raw.createXferReq
        self._start_write: Callable[[int], Any] = raw.postXferReq
        self._check: Callable[[int], Any] = raw.getXferStatus
        self._release: Callable[[int], Any] = raw.releaseXferReq
        self._notifications: Callable[[dict[str, list[bytes]]], dict[str, list[bytes]]] = raw.getNotifs
        self._descriptors: Callable[..., Any] = bindings.nixlXferDList

    @property
    def agent(self) -> str:
        """This agent's name."""
        return self._agent

    @property
    def backend(self) -> str:
        """What carries the bytes, for people."""
        return f"nixl/{BACKEND}"

    @property
    def in_flight(self) -> int:
        """How many writes are posted and not settled. After `close`: how many it gave up."""
        return self._in_flight

    # -- memory and peers --------------------------------------------------------------------------------------------

    def register(self, layout: Layout, regions: Regions) -> DescriptorTable:
        """Register this side's memory, once, and prepare its descriptor lists. Raises TransportError."""
        self._check_open()
        if self._registered_once:
            raise TransportError(f"{self._agent}: its memory is registered already")
        ranges: dict[str, dict[tuple[int, int, int, str], None]] = {}
        for region, length in zip(regions.in_order(), _item_lengths(layout), strict=True):
            row = (region.address, region.items * length, region.device, "")
            ranges.setdefault(region.memory, {})[row] = None
        try:
            for memory, rows in ranges.items():
                self._registered.append(self._wrapper.register_memory(list(rows), memory))
            self._local = self._prepare(self._bindings.NIXL_INIT_AGENT, layout, regions)
        except self._errors as error:
            self._deregister()
            raise TransportError(f"{self._agent}: NIXL refuses {' and '.join(ranges)} memory: {error}") from error
        self._registered_once = True
        return DescriptorTable(layout, regions)

    def register_staging(self, address: int, length: int) -> None:
        """Register a range of the host's memory beside that, before `metadata` is asked for. Raises TransportError."""
        self._check_open()
        try:
            self._registered.append(self._wrapper.register_memory([(address, length, 0, "")], "DRAM"))
        except self._errors as error:
            raise TransportError(f"{self._agent}: NIXL refuses {length} bytes for staging: {error}") from error

    def metadata(self) -> bytes:
        """The capability that lets a peer write to the registered memory. Never log it or pass it on."""
        self._check_open()
        return bytes(self._wrapper.get_agent_metadata())

    def add_peer(self, agent: str, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
        """Make `agent` writable and prepare its descriptor lists. Raises TransportError; nothing is added then.

        A peer that was removed and has writes in flight comes back with the same blob and memory only.
        """
        self._check_open()
        known = self._peers.get(agent)
        if known is not None:
            return _again(known, blob, layout, regions)
        try:
            check_regions(layout, regions)
            name = self._wrapper.add_remote_agent(blob)
        except (*self._errors, KvroomsError) as error:
            raise TransportError(f"the metadata of {agent} is not usable: {error}") from error
        if name != agent.encode():
            # If that other agent is a peer, its entry is not ours to undo.
            if name.decode(errors="replace") not in self._peers:
                self._forget(name)
            raise TransportError(f"the metadata is not that of {agent}")
        try:
            lists = self._prepare(agent, layout, regions)
        except self._errors as error:
            self._forget(agent)
            raise TransportError(f"{agent} has not registered the memory that it describes: {error}") from error
        peer = self._peers[agent] = _Peer(agent, blob, layout, regions, lists)
        return peer.table

    def remove_peer(self, agent: str) -> None:
        """Forget a peer, as soon as its writes in flight are over: until then they are polled as before. Idempotent."""
        peer = self._peers.get(agent)
        if peer is not None and not peer.removed:
            peer.removed = True
            if not peer.flying:
                self._drop(peer)

    def _prepare(self, agent: str, layout: Layout, regions: Regions) -> dict[str, int]:
        """Prepared descriptor lists by kind of memory, numbered as DescriptorTable does. Raises NIXL's errors."""
        strided: dict[str, list[tuple[int, int, int, int, int]]] = {}
        for region, length in zip(regions.in_order(), _item_lengths(layout), strict=True):
            strided.setdefault(region.memory, []).append((region.address, length, region.device, length, region.items))
        lists: dict[str, int] = {}
        try:
            for memory, rows in strided.items():
                # One row per buffer instead of one per item: microseconds for millions of items, and no memory.
                array = np.array(rows, dtype=np.uint64)
                lists[memory] = int(self._wrapper.agent.prepXferDlist(agent, self._memories[memory], array, []))
        except BaseException:
            self._release_lists(lists)
            raise
        return lists

    def _release_lists(self, lists: dict[str, int]) -> None:
        while lists:
            self._attempt("release a descriptor list", self._wrapper.agent.releasedDlistH, lists.popitem()[1])

    def _drop(self, peer: _Peer) -> None:
        del self._peers[peer.agent]
        self._release_lists(peer.lists)
        self._forget(peer.agent)

    def _forget(self, agent: str | bytes) -> None:
        self._attempt("remove a peer", self._wrapper.remove_remote_agent, agent)

    # -- writes ------------------------------------------------------------------------------------------------------

    def post(self, agent: str, piece: Piece, notification: bytes) -> int | None:
        """Post a write; `notification` (empty: none) becomes visible to the peer no earlier than all its bytes.

        Returns its handle, or None when it has settled already. Raises UncertainWrite, PeerGone or TransportError.
        """
        peer = self._peers.get(agent)
        if peer is None or peer.removed:
            raise PeerGone(f"{agent} is no peer")
        request = 0
        try:
            if piece.source_descriptors is None:
                request = self._make(
                    self._write,
                    self._local[piece.source_memory],
                    piece.source_indices,
                    peer.lists[piece.destination_memory],
                    piece.destination_indices,
                    notification,
                )
            else:
                ours = self._descriptors(self._memories[piece.source_memory], piece.source_descriptors)
                theirs = self._descriptors(self._memories[piece.destination_memory], piece.destination_descriptors)
                request = self._create(self._write, ours, theirs, agent, notification)
            status = self._start_write(request).value
        except (*self._errors, KeyError) as error:
            if request:
                self._discard(request)
            raise self._failure(agent, error, started=request > 0) from error
        if status == _IN_PROGRESS:
            handle = self._next_handle = self._next_handle + 1
            peer.flying[handle] = request
            self._busy[agent] = peer
            self._in_flight += 1
            return handle
        self._discard(request)
        if status != _DONE:
            raise UncertainWrite(f"NIXL could not post a write to {agent}: status {status}")
        return None

    def settled(self) -> Sequence[Settlement]:
        """The posted writes that are over since the last call. Each handle appears once and is released.

        With an error it is over on this side; whether its bytes have landed, or will, is not known then.
        """
        if not self._in_flight:
            return _NOTHING
        over: list[Settlement] = []
        for peer in list(self._busy.values()):
            self._look(peer, over)
        self._in_flight -= len(over)
        if over and self._unreleased:
            self._retry()
        return over

    def _look(self, peer: _Peer, over: list[Settlement]) -> None:
        """Collect the settled writes of one peer.

        Writes to one peer settle nearly in order, so while the oldest is in progress it is seldom worth looking at the
        others. A look that finds nothing doubles how many are looked at, one that finds something halves it: a write
        behind one that is stuck is found after a few calls.
        """
        check, release, flying = self._check, self._release, peer.flying
        left, first = peer.looks, len(over)
        for handle, request in flying.items():
            try:
                status = check(request).value
            except self._errors as error:
                over.append(Settlement(handle, str(self._failure(peer.agent, error))))
                continue
            if status == _IN_PROGRESS:
                left -= 1
                if not left:
                    break
            else:
                over.append(Settlement(handle, None if status == _DONE else f"NIXL reports status {status}"))
        if len(over) == first:
            peer.looks *= 2 if peer.looks < len(flying) else 1
            return
        peer.looks = peer.looks // 2 or 1
        for handle, _ in over[first:]:
            request = flying.pop(handle)
            try:
                release(request)
            except self._errors:
                self._unreleased.append(request)
        if not flying:
            del self._busy[peer.agent]
            if peer.removed:
                self._drop(peer)

    def arrivals(self) -> Sequence[Arrival]:
        """The notifications that arrived since the last call."""
        try:
            notifications = self._notifications({})
        except UnicodeDecodeError:
            # Somebody calls itself something that is no text; what came together with it is lost.
            log.warning("%s: notifications under a malformed name were dropped", self._agent)
            return _NOTHING
        if not notifications:
            return _NOTHING
        return [Arrival(agent, message) for agent, messages in notifications.items() for message in messages]

    def _failure(self, agent: str, error: Exception, *, started: bool = True) -> TransportError:
        if isinstance(error, self._disconnected):
            return PeerGone(f"NIXL has lost {agent}: {error}")
        if isinstance(error, KeyError):
            return TransportError(f"a write to {agent} names memory that is not registered: {error}")
        return (UncertainWrite if started else TransportError)(f"NIXL failed a write to {agent}: {error}")

    def _discard(self, request: int) -> None:
        """Release a request that is not in progress, now or later."""
        try:
            self._release(request)
        except self._errors:
            self._unreleased.append(request)

    def _retry(self) -> None:
        requests, self._unreleased = self._unreleased, []
        for request in requests:
            self._discard(request)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait a moment for writes in flight, release everything, deregister, destroy the agent. Idempotent.

        Never raises. Over TCP, writes given up here may still land from the system's buffers: `in_flight` counts them.
        """
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + _CLOSE_WAIT_S
        while self._in_flight and time.monotonic() < end:
            if not self.settled():
                self.arrivals()
                time.sleep(0.0002)
        for peer in self._peers.values():
            for request in peer.flying.values():
                self._discard(request)
            self._release_lists(peer.lists)
            self._forget(peer.agent)
        self._retry()
        if self._unreleased:
            log.warning("%s: %d transfer handles could not be released", self._agent, len(self._unreleased))
        self._release_lists(self._local)
        self._deregister()
        self._peers, self._busy = {}, {}
        # The agent is destroyed with the last reference to it, and every bound method is one.
        self._make = self._create = self._start_write = self._check = self._release = self._notifications = _nothing
        self._wrapper = None

    def _deregister(self) -> None:
        while self._registered:
            self._attempt("deregister memory", self._wrapper.deregister_memory, self._registered.pop())

    def _attempt(self, what: str, call: Callable[..., Any], argument: Any) -> None:
        """Something on the way out that must not keep the rest from being done."""
        try:
            call(argument)
        except self._errors as error:
            log.warning("%s: could not %s: %s", self._agent, what, error)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"{self._agent} is closed")


def _item_lengths(layout: Layout) -> list[int]:
    """Bytes per item of every buffer, in the order of `Regions.in_order`."""
    lengths = [spec.item_length for spec in layout.kv] + [spec.item_length for spec in layout.aux]
    return lengths + [spec.item_length for component in layout.state for spec in component.buffers]


def _again(peer: _Peer, blob: bytes, layout: Layout, regions: Regions) -> DescriptorTable:
    """A peer that was removed while it had writes in flight, and comes back."""
    if not peer.removed:
        raise TransportError(f"{peer.agent} is a peer already")
    if (peer.blob, peer.layout.digest, peer.regions) != (blob, layout.digest, regions):
        raise TransportError(f"{peer.agent} comes back as another while writes to it are in flight")
    peer.removed = False
    return peer.table


def _nothing(*_: Any) -> Any:
    return {}
