"""The prefill engine: opens rooms that send a prompt's KV cache, aux and state to a decode engine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import cast

import numpy as np

from ..protocol.arguments import check_bool
from ..protocol.errors import InvalidArgument, RoomClosed
from ..protocol.identity import ITEMS_MAX, PAGES_MAX, RANKS_MAX, RoomKey, check_int, room_key
from ..protocol.layout import Layout, Rank
from ..protocol.manifest import Declaration, Indices, counts_of, owed_always, page_indices
from ..protocol.manifest import state_indices as spelled
from ..protocol.memory import Memory
from ..protocol.registration import check_bootstrap, check_instance
from ..protocol.shares import part_of
from ..protocol.status import Status
from .claims import check_once
from .core import EngineCore
from .decode import room_settings
from .group import RoomGroup
from .handle import Room
from .host import Assembly, Engine, Place
from .prefill_core import PrefillCore
from .prefill_state import PrefillRecord
from .security import Security
from .sends import Layers, Send
from .settings import EngineSettings, load_settings


class PrefillRoom(Room):
    """A room on the prefill side."""

    _HELD = "held: posted writes that read it have not settled"

    def __init__(
        self, engine: PrefillEngine, key: RoomKey, pages: int | None, aux_index: int | None, *, skip_state: bool
    ) -> None:
        super().__init__(engine, key)
        self._engine = engine
        self._pages = pages
        self._aux_index = aux_index
        self._skip_state = skip_state
        self._part_begin, self._part_end = engine.part_of(pages)
        self._sent_pages = self._part_begin
        self._sent_layers: tuple[int, ...] | None = None
        self._sent_state = (0,) * len(engine.memory.layout.state)
        self._sent_items: set[int] = set()
        self._complete = False

    def send(
        self,
        pages: object = (),
        state_indices: object = None,
        *,
        layers: object = None,
        last: bool | None = None,
    ) -> None:
        """Send the next pages, and state, as they are computed. Never blocks: the writes follow decode's METADATA.

        pages: source page of each of the next positions (of a context-parallel rank: of its part of the prompt), none
        of them twice in a room; only their number counts on a rank without KV.
        layers: the ids of the layers whose KV is ready; these continue at the position that they have reached, and
        others follow with sends of their own, of the same pages. None: all layers. A position counts as sent once every
        layer is. A page that a chunk fills in part is kept back until a later one has filled it; the prompt's last page
        is sent as it is. state_indices: source indices per component, in any spelling; they continue earlier sends'.
        last: nothing follows, so the totals are now known; aux goes with it. None: the last one if the room was opened
        with a number of pages and this reaches it. The items must stay as they are until `memory_free`. A room that
        owes nothing (decode holds all pages, or another rank sends them) may be DONE before its sends: they are taken,
        and go nowhere. Raises InvalidArgument and Overloaded (nothing was sent, the room is as before), RoomClosed once
        it has ended.
        """
        self._engine._send(self, pages, state_indices, layers, last)  # noqa: SLF001


class PrefillEngine(Engine):
    """Sends. One per prefill rank; see `Engine` for what any thread may do.

    memory: the registered pools. name: what the registry knows it by. registry: URL of a registry (`kvrooms
    bootstrap`); None serves one in this process. host, port: where decode engines connect (0: any free port);
    advertise: the host name to publish, where it differs. rank, ranks: which one this is of an instance of several
    ranks that send together, all under one name. cp_rank, cp_size: which part of every prompt's pages it computes.
    settings, single settings, security, group as for `DecodeEngine`. Raises InvalidArgument, TransportError, OSError.
    """

    def __init__(  # noqa: PLR0913 - a deployment is what these say
        self,
        memory: Memory,
        *,
        name: str | None = None,
        registry: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        cp_rank: int = 0,
        cp_size: int = 1,
        settings: EngineSettings | None = None,
        security: Security | None = None,
        assembly: Assembly | None = None,
        group: RoomGroup | None = None,
        **overrides: float,
    ) -> None:
        settings = settings or load_settings(**overrides)
        if group is not None:
            group.check_free()
        ranks = check_int("ranks", ranks, 1, RANKS_MAX)
        cp_size = check_int("cp_size", cp_size, 1, RANKS_MAX)
        self._cp = check_int("cp_rank", cp_rank, 0, cp_size - 1), cp_size
        if assembly is None:
            from .real import assemble

            name = check_instance(name or f"prefill-{os.getpid()}")
            registry = None if registry is None else check_bootstrap(registry)
            listen = (host, check_int("port", port, 0, 65535))
            assembly = assemble(
                name,
                memory,
                settings,
                listen=listen,
                advertise=advertise,
                registry=registry,
                security=security,
                place=Place(check_int("rank", rank, 0, ranks - 1), ranks, Rank(memory.layout, *self._cp)),
            )
        self._items = tuple(memory.regions.component_items(i) for i in range(len(memory.layout.state)))
        super().__init__(memory, settings, assembly, group)

    def _make_core(self, assembly: Assembly) -> EngineCore:
        return PrefillCore(assembly.ports, assembly.source)

    def part_of(self, pages: int | None) -> tuple[int, int | None]:
        """The page positions [low, high) that this rank sends of a prompt; high is None while the total is not known.

        Raises InvalidArgument where the total has to be known.
        """
        if self._cp[1] == 1:
            return 0, pages
        if pages is None:
            raise InvalidArgument("pages", pages, "a context-parallel rank has to know the pages of the whole prompt")
        return part_of(pages, *self._cp)

    @property
    def bootstrap(self) -> str:
        """The registry's URL: what decode is told."""
        return self._assembly.bootstrap

    @property
    def address(self) -> str:
        """ "host:port" of the control channel, as registered."""
        return self._assembly.address

    def open(
        self,
        room: int,
        *,
        attempt: int = 0,
        pages: int | None = None,
        aux_index: int | None = None,
        skip_state: bool = False,
        **timeouts: float,
    ) -> PrefillRoom:
        """Open a room that will send. Never blocks; either side may come first.

        pages: number of pages of the whole prompt, those that decode holds already included; None: declared by the last
        send. aux_index: source aux slot, None for no aux. skip_state: as on decode. timeouts: `queued_timeout_s`,
        `moving_timeout_s`, `cap_timeout_s` of this room. Raises InvalidArgument, Overloaded and EngineClosed.
        """
        self._check_open()
        self.memory.check_kept()
        stateless = check_bool("skip_state", skip_state)
        layout, regions = self.memory.layout, self.memory.regions
        key = room_key(room, attempt)
        total = None if pages is None else check_int("pages", pages, 0, PAGES_MAX)
        if aux_index is not None:
            check_int("aux_index", aux_index, 0, regions.aux_slots - 1)
        handle = PrefillRoom(self, key, total, aux_index, skip_state=stateless)
        record = PrefillRecord(key, room_settings(self.settings, timeouts, "prefill"), 0.0, handle)
        handle.record = record
        aux = layout.aux_names if aux_index is not None else ()
        declaration = Declaration(total, aux, () if stateless or not layout.state else None)
        with self.lock:
            self._check_room()
            self._claims.take_key(key)
            self._open_rooms[handle] = None
            self._submit(cast(PrefillCore, self._core).open, record, declaration)  # before whatever refuses rooms
            self._enter(handle)
        return handle

    def _send(self, room: PrefillRoom, pages: object, state_indices: object, layers: object, last: bool | None) -> None:
        self._check_open()
        self.memory.check_kept()
        layout, regions = self.memory.layout, self.memory.regions
        if last is not None and not isinstance(last, (bool, np.bool_)):
            raise InvalidArgument("last", last, "must be True, False or None")
        some = page_indices("pages", pages, regions.pages if layout.kv else ITEMS_MAX)
        if layout.kv:  # else only their number counts
            check_once("pages", some)
        skip = room._skip_state  # noqa: SLF001
        state = spelled(layout, state_indices, self._items, skip_state=skip, complete=False)
        buffers = None if layers is None else _buffers_of(layout, layers)
        with self.lock:
            self._check_calls()
            record = room.record
            send = _next(room, some, state, buffers, last, layout.component_names)
            if send.empty:
                if record.greeted:
                    return
                record.greeted = True
            self._core.submit(cast(PrefillCore, self._core).send, record, send)
        self._runner.wake()


def _next(
    room: PrefillRoom,
    pages: Indices,
    state: tuple[Indices, ...],
    buffers: frozenset[int] | None,
    last: bool | None,
    names: tuple[str, ...],
) -> Send:
    """The send that continues a room's earlier ones; the room's totals move on only if nothing is wrong with it."""
    status = room.poll()
    nothing_owed = status is Status.DONE and not room._complete  # noqa: SLF001 - what is sent now goes nowhere
    if (status.terminal and not nothing_owed) or room.record is None:
        raise RoomClosed(f"{room!r} has ended: {room.failure or 'everything was sent'}")
    if room._complete:  # noqa: SLF001
        raise InvalidArgument("send", len(pages), "the last send of this room was made before")
    total = room._part_end  # noqa: SLF001
    first, layers = _continued(room, len(pages), buffers)
    if total is not None and first + len(pages) > total:
        raise InvalidArgument("pages", len(pages), f"{first} of {total} pages were sent before: too many")
    after = None if layers is None else layers.after
    reached = first + len(pages) if after is None else min(after)
    before = room._sent_state  # noqa: SLF001
    counted = tuple(at + len(indices) for at, indices in zip(before, state or (_NONE,) * len(before), strict=True))
    last = (total is not None and reached == total) if last is None else last
    if last:
        if after is not None and max(after) > reached:
            raise InvalidArgument(
                "last", last, f"some layers are sent up to {max(after)} pages, others up to {reached}"
            )
        if total is not None and reached < total:
            raise InvalidArgument("last", last, f"only {reached} of {total} pages were sent")
        if not room._skip_state:  # noqa: SLF001
            owed_always(room._engine.memory.layout, counted)  # noqa: SLF001
    _note_items(room, pages, again=layers is not None, last=last)
    room._sent_pages, room._sent_state, room._complete = reached, counted, last  # noqa: SLF001
    room._sent_layers = None if after is None or min(after) == max(after) else after  # noqa: SLF001
    whole = reached if room._pages is None else room._pages  # noqa: SLF001
    declaration = Declaration(whole, None, counts_of(names, counted)) if last else Declaration()
    aux_index = room._aux_index if last else None  # noqa: SLF001
    return Send(first, pages, tuple(zip(before, state, strict=False)), aux_index, declaration, layers)


def _note_items(room: PrefillRoom, pages: Indices, *, again: bool, last: bool) -> None:
    """A page that an earlier send of the room has named is somebody's mistake. Raises InvalidArgument.

    again: it may be of other layers of the same pages.
    """
    before = room._sent_items  # noqa: SLF001
    if again or not room._engine.memory.layout.kv or (last and not before):  # noqa: SLF001 - most rooms are one send
        return
    listed = pages.tolist()
    if not before.isdisjoint(listed):
        both = next(page for page in listed if page in before)
        raise InvalidArgument("pages", both, "an earlier send of this room has named it: each page once")
    if last:
        before.clear()
    else:
        before.update(listed)


def _continued(room: PrefillRoom, count: int, buffers: frozenset[int] | None) -> tuple[int, Layers | None]:
    """At which position a send begins, and of which layers it is. Raises InvalidArgument."""
    apart = room._sent_layers  # noqa: SLF001
    if buffers is None:
        if apart is not None and count:
            raise InvalidArgument(
                "layers", None, "the layers of this room have been sent apart: say which these are of"
            )
        if apart is None:
            return room._sent_pages, None  # noqa: SLF001
        buffers = frozenset()
    everywhere = apart or (room._sent_pages,) * len(room._engine.memory.layout.kv)  # noqa: SLF001
    reached = {everywhere[buffer] for buffer in buffers}
    if len(reached) > 1:
        raise InvalidArgument("layers", sorted(reached), "these layers have reached different positions")
    return min(reached, default=min(everywhere)), Layers(buffers, everywhere, count)


def _buffers_of(layout: Layout, layers: object) -> frozenset[int]:
    """The KV buffers of some layers. Raises InvalidArgument naming one that this rank does not have."""
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Iterable):
        raise InvalidArgument("layers", layers, "must be the ids of layers")
    known = {spec.layer for spec in layout.kv}
    wanted = {check_int("layers", layer, 0, 2**31) for layer in layers}
    if not wanted or wanted - known:
        raise InvalidArgument("layers", sorted(wanted - known), f"this rank's layers are {sorted(known)}")
    return frozenset(i for i, spec in enumerate(layout.kv) if spec.layer in wanted)


_NONE: Indices = np.empty(0, dtype=np.int32)
