"""The decode engine: opens rooms that receive a prompt's KV cache, aux and state from a prefill engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias, cast

import msgspec

from ..protocol.arguments import check_bool, check_text
from ..protocol.errors import InvalidArgument, Overloaded
from ..protocol.identity import ITEMS_MAX, RoomKey, check_int, room_key
from ..protocol.layout import Instance, differences
from ..protocol.manifest import Indices, page_indices
from ..protocol.manifest import state_indices as spelled
from ..protocol.memory import Memory
from ..protocol.registration import check_bootstrap, check_instance, check_rank
from .core import EngineCore
from .decode_core import DecodeCore
from .decode_state import DecodeRecord, Target, Wish
from .group import RoomGroup
from .handle import Room, check_process
from .holds import Hold
from .host import Assembly, Engine
from .security import Security, load_security
from .settings import EngineSettings, load_settings

Claimed: TypeAlias = tuple[Indices, int, tuple[Indices, ...]]


class DecodeRoom(Room):
    """A room on the decode side."""

    _HELD = (
        "held: a write may still land until the writer acknowledges the abort, is proven gone, or is said to be fenced"
    )
    claimed: Claimed | None = None


class DecodeEngine(Engine):
    """Receives. One per decode rank; see `Engine` for what any thread may do.

    memory: the registered pools. name: for logs and for the peers. settings: see `EngineSettings`; single settings can
    be given by name instead (`DecodeEngine(memory, moving_timeout_s=5)`), else `KVROOMS_*`, else defaults. security:
    what peers and registry must know; None: see `load_security`. ranks, rank: what all ranks of this decode instance
    have, and which of them this is; None: it is alone. group: the ranks that give each room one `outcome`; None: only
    this one.
    Raises InvalidArgument and TransportError.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        name: str | None = None,
        settings: EngineSettings | None = None,
        security: Security | None = None,
        assembly: Assembly | None = None,
        group: RoomGroup | None = None,
        ranks: Instance | None = None,
        rank: int = 0,
        **overrides: float,
    ) -> None:
        settings = settings or load_settings(**overrides)
        if group is not None:
            group.check_free()
        self._security: Security | None = None
        if assembly is None:
            from .real import assemble

            self._security = security = security or load_security()
            name = check_instance(name or f"decode-{os.getpid()}")
            rank = _checked_rank(memory, ranks, rank)
            assembly = assemble(name, memory, settings, security=security, instance=ranks, rank=rank)
        self._items = tuple(memory.regions.component_items(i) for i in range(len(memory.layout.state)))
        self._targets: dict[tuple[str, str, int], Target] = {}
        self._holds: dict[RoomKey, Hold] = {}
        super().__init__(memory, settings, assembly, group)

    def _make_core(self, assembly: Assembly) -> EngineCore:
        return DecodeCore(assembly.ports)

    def open(  # noqa: PLR0913 - a room is what these say
        self,
        room: int,
        *,
        bootstrap: str,
        pages: object = (),
        aux_index: int | None = None,
        state_indices: object = None,
        prefix_pages: int = 0,
        attempt: int = 0,
        instance: str = "",
        rank: int = 0,
        skip_state: bool = False,
        tokens: int | None = None,
        **timeouts: float,
    ) -> DecodeRoom:
        """Open a room and ask the prefill engine for it. Never blocks; either side may come first.

        bootstrap: URL of the registry that knows the prefill engine (`PrefillEngine.bootstrap`). instance: its name, ""
        when the registry knows only one. pages: destination page of each position that is owed, in order; only their
        number counts on a rank without KV.
        prefix_pages: how many leading positions decode holds already. aux_index: destination aux slot; None: no aux.
        state_indices: destination indices per component, in any spelling (`protocol.manifest.state_indices`).
        skip_state: this room carries no state, not even what is owed always; both sides must say so.
        tokens: of the whole prompt, needed where prefill's pages have another size; None: all pages are full.
        timeouts: `bootstrap_timeout_s`, `waiting_timeout_s`, `moving_timeout_s`, `cap_timeout_s` of this room.
        Raises InvalidArgument and Overloaded (nothing has changed then), and EngineClosed.
        """
        self._check_open()
        self.memory.check_kept()
        layout, regions = self.memory.layout, self.memory.regions
        key = room_key(room, attempt)
        target = self._target(bootstrap, instance, rank)
        destination_pages = page_indices("pages", pages, regions.pages if layout.kv else ITEMS_MAX)
        prefix = check_int("prefix_pages", prefix_pages, 0, 2**24 - len(destination_pages))
        slot = -1 if aux_index is None else check_int("aux_index", aux_index, 0, regions.aux_slots - 1)
        indices = spelled(layout, state_indices, self._items, skip_state=check_bool("skip_state", skip_state))
        full = (prefix + len(destination_pages)) * layout.page_size
        length = full if tokens is None else check_int("tokens", tokens, max(0, full - layout.page_size + 1), full)
        settings = room_settings(self.settings, timeouts, "decode")
        handle = DecodeRoom(self, key)
        wish = Wish(destination_pages, prefix, slot, indices, length)
        record = DecodeRecord(key, settings, 0.0, target, wish, handle)
        handle.record = record
        claimed = destination_pages if layout.kv else destination_pages[:0]
        self._admit(handle, key, (claimed, slot, indices))
        if (held := self._holds.get(key)) is not None:
            self.release(held)
        self._begin(handle, cast(DecodeCore, self._core).open, record)
        return handle

    def hold(self, room: int, *, bootstrap: str, attempt: int = 0, instance: str = "", rank: int = 0) -> Hold:
        """Ask prefill to keep a room that there is no memory for yet, until `open` or `release`. Never blocks.

        bootstrap, instance, rank, attempt: as for `open`, which takes over what is held. Raises InvalidArgument,
        EngineClosed, Overloaded.
        """
        self._check_open()
        key = room_key(room, attempt)
        hold = Hold(key, self._target(bootstrap, instance, rank))
        with self.lock:
            self._check_room()
            if key in self._holds:
                raise InvalidArgument("room", room, f"{key} is held already")
            if len(self._holds) >= self.settings.rooms_max:
                raise Overloaded(f"{self.name} holds {len(self._holds)} rooms, and rooms_max is that")
            self._holds[key] = hold
            self._submit(cast(DecodeCore, self._core).hold, hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Let prefill give a room up. Idempotent."""
        check_process(self)
        if not isinstance(hold, Hold):
            raise InvalidArgument("hold", hold, "must be what `hold` has returned")
        with self.lock:
            if self._holds.get(hold.key) is hold:
                del self._holds[hold.key]
                self._submit(cast(DecodeCore, self._core).release, hold)

    def _admit(self, handle: DecodeRoom, key: RoomKey, items: Claimed) -> None:
        """Take the room's key and its items, all or none. Raises InvalidArgument, EngineClosed and Overloaded."""
        with self.lock:
            self._check_room()
            self._claims.take_key(key)
            try:
                self._claims.take(*items)
            except InvalidArgument:
                self._claims.drop_key(key)
                raise
            self._open_rooms[handle] = None
            handle.claimed = items

    def peer_fenced(self, engine: str) -> None:
        """The orchestrator's word that processes named `engine` are fenced: their writes can land no more.

        Of an instance of several ranks "prefill rank 2" is one of them, "prefill" all.
        Their quarantined ranges are free; of one that was connected, once it has been silent for `heartbeat_timeout_s`.
        If it is heard of after this word it is another process, or was not fenced, and the word counts for nothing. To
        say this of a process that lives and cannot be heard corrupts memory.
        """
        self._check_open()
        if not check_text("engine", engine):
            raise InvalidArgument("engine", engine, "must be an engine's name")
        with self.lock:
            self._check_calls()
            self._submit(cast(DecodeCore, self._core).fence, engine)

    def _free_claims(self, room: Room) -> None:
        """See `Engine._free_claims`."""
        claimed, room.claimed = room.claimed, None  # type: ignore[attr-defined]
        if claimed is not None:
            self._claims.give_back(*claimed)

    def _target(self, bootstrap: str, instance: str, rank: int) -> Target:
        target = self._targets.get((bootstrap, instance, rank))
        if target is None:
            url = check_bootstrap(bootstrap)
            if self._security is not None:
                self._security.check_registry("bootstrap", url)
            target = Target(url, check_instance(instance) if instance else "", check_rank(rank))
            if len(self._targets) < 1024:
                self._targets[bootstrap, instance, rank] = target
        return target


def _checked_rank(memory: Memory, ranks: Instance | None, rank: int) -> int:
    """Which rank of an instance an engine is. Raises InvalidArgument unless it has what the instance says."""
    number = check_int("rank", rank, 0, 0 if ranks is None else len(ranks.ranks) - 1)
    if ranks is not None:
        words = differences(memory.layout, ranks.ranks[number].layout)
        if words:
            raise InvalidArgument("ranks", number, f"rank {number} is said to have other memory: {'; '.join(words)}")
    return number


TIMEOUTS = {
    "decode": ("bootstrap_timeout_s", "waiting_timeout_s", "moving_timeout_s", "cap_timeout_s"),
    "prefill": ("queued_timeout_s", "moving_timeout_s", "cap_timeout_s"),
}
"""The deadlines of a room on either side: `open` takes these there, and no others."""


def room_settings(settings: EngineSettings, timeouts: Mapping[str, object], side: str) -> EngineSettings:
    """The engine's settings with a room's own deadlines. Raises InvalidArgument naming the argument."""
    if not timeouts:
        return settings
    for name, value in timeouts.items():
        if name not in TIMEOUTS[side]:
            other = next((one for one, names in TIMEOUTS.items() if name in names), "")
            whose = f"is a deadline of the {other} side" if other else "is no argument of open()"
            raise InvalidArgument(name, value, f"{whose}; on {side} timeouts are {', '.join(TIMEOUTS[side])}")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise InvalidArgument(name, value, "must be a positive number of seconds")
    return msgspec.structs.replace(settings, **timeouts)
