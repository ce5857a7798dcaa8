"""What the two callers of a room ask for, and what the product's own functions make of it.

A `Request` is the question, in numbers and spellings; a `Plan` is the answer of the running code: the manifest, the
declarations, the METADATA, the pieces that prefill posts. What must land is told here once more, from the request
alone: the judge of "done means landed" shares no code with the ledgers that it judges.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from ...engine import sends
from ...protocol import manifest as agreement
from ...protocol import plan as planning
from ...protocol import wire
from ...protocol.errors import KvroomsError
from ...protocol.identity import RoomKey
from ...protocol.intervals import size
from ...protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from ...protocol.manifest import Declaration, Manifest
from ...protocol.plan import DescriptorTable, Piece

COMPONENTS = ("swa", "index", "conv")
ITEMS = 8
"""Items of every buffer. Use number n of a room has its items from ITEMS_PER_USE * n on."""
ITEMS_PER_USE = 4
KV_BYTES, SMALL_BYTES = 64, 128
TOKEN = 100


class Request(NamedTuple):
    """What the callers ask for in one use of a room.

    pages, prefix: on decode, of the whole prompt and held already. aux: decode wants the aux buffers. state: indices
    per component on decode. chunks: pages of each send on prefill. gives_aux, gives_state: what prefill hands over with
    its last send. total: prefill says the number of pages when it opens. spelled: how each caller writes its
    `state_indices` where all its counts are zero (decode, prefill).
    """

    pages: int
    chunks: tuple[int, ...]
    prefix: int = 0
    aux: bool = True
    state: tuple[int, ...] = ()
    gives_aux: bool = True
    gives_state: tuple[int, ...] = ()
    total: bool = False
    spelled: tuple[str, str] = ("absent", "absent")

    @property
    def agrees(self) -> bool:
        """Whether the callers want the same. Said of the numbers alone, whatever their spelling."""
        same_pages = self.pages == sum(self.chunks)
        same_state = _padded(self.state) == _padded(self.gives_state)
        return same_pages and self.aux == self.gives_aux and same_state

    @property
    def text(self) -> dict[str, str]:
        """For people, as a counterexample shows its input."""
        decode, prefill = _value(self.state, self.spelled[0]), _value(self.gives_state, self.spelled[1])
        wants, has = "wants" if self.aux else "wants no", "has" if self.gives_aux else "has no"
        return {
            "decode_pages": f"{self.pages}, of which {self.prefix} are held already",
            "prefill_sends": " and ".join(map(str, self.chunks)) + " pages",
            "aux": f"decode {wants} aux, prefill {has} aux",
            "decode_state_indices": self.spelled[0] if not any(self.state) else repr(decode),
            "prefill_state_indices": self.spelled[1] if not any(self.gives_state) else repr(prefill),
        }


def _padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    return (*counts, *(0 for _ in range(len(COMPONENTS) - len(counts))))


_NOTHING: dict[str, Any] = {
    "absent": None,
    "None": None,
    "[]": [],
    "[[]]": [[]],
    "[None]": [None],
    "[[], []]": [[], []],
    "()": (),
    "{}": {},
}
NOTHINGS = tuple(_NOTHING)


def spelling(spelled: str) -> Any:
    """Nothing, as a caller writes it."""
    return _NOTHING[spelled]


def _value(counts: tuple[int, ...], spelled: str) -> Any:
    """`state_indices` as a caller writes them: these many indices per component, or nothing, in this spelling."""
    if not any(counts):
        return _NOTHING[spelled]
    return [list(range(count)) for count in counts]


def layout_of(components: int) -> Layout:
    """Two KV buffers (so that a page is two bytes' worth), one aux buffer, and so many components of one buffer."""
    kv = tuple(BufferSpec(0, role, KV_BYTES, "float16") for role in "kv")
    state = tuple(
        ComponentSpec(name, "sliding_window", Owed.WHEN_INDEXED, (BufferSpec(i, name, SMALL_BYTES, "float16"),))
        for i, name in enumerate(COMPONENTS[:components])
    )
    return Layout(16, kv, (AuxSpec("token", SMALL_BYTES, "int32"),), state)


def regions_of(layout: Layout) -> Regions:
    """Addresses that nobody reads."""
    addresses = itertools.count(4096, 4096)

    def some(number: int) -> tuple[Region, ...]:
        return tuple(Region(next(addresses), ITEMS) for _ in range(number))

    return Regions(some(len(layout.kv)), some(len(layout.aux)), tuple(some(len(s.buffers)) for s in layout.state))


class Write(NamedTuple):
    """One piece that prefill posts: what its notification reports, and which descriptors of decode it fills."""

    piece: Piece
    fills: frozenset[int]


class Plan:
    """One use of a room, as the running code understands the request. number: which use it is."""

    def __init__(self, request: Request, number: int, key: RoomKey, components: int, piece_bytes: int) -> None:
        self.request = request
        self.number = number
        self.key = key
        self.layout = layout = layout_of(components)
        self.regions = regions_of(layout)
        self._table = DescriptorTable(layout, self.regions)
        self._piece_bytes = piece_bytes
        self._writes: dict[int, tuple[Write, ...]] = {}
        base = ITEMS_PER_USE * number
        self.manifest = self._derived()
        self._pages = np.arange(base + request.prefix, base + request.pages, dtype=np.int32)
        self._aux_index = base if request.aux else -1
        self._state = tuple(np.arange(base, base + count, dtype=np.int32) for _, count in self.manifest.state)
        self.opening, self.sends = self._offered()
        self.owed = self._owed()

    def _derived(self) -> Manifest:
        request, items = self.request, (ITEMS,) * len(self.layout.state)
        value = _value(request.state, request.spelled[0])
        indices = agreement.state_indices(self.layout, value, items)
        return agreement.derive(self.layout, request.pages, request.prefix, indices, aux=request.aux)

    def _offered(self) -> tuple[Declaration, tuple[sends.Send, ...]]:
        """What prefill's public methods make of the caller's arguments: the opening declaration and each send."""
        request, names = self.request, self.layout.component_names
        items, total = (ITEMS,) * len(names), sum(request.chunks)
        aux = self.layout.aux_names if request.gives_aux else ()
        opening = Declaration(total if request.total else None, aux, None if names else ())
        made, first, last = [], 0, len(request.chunks) - 1
        for i, count in enumerate(request.chunks):
            value = _value(request.gives_state, request.spelled[1]) if i == last else None
            state = agreement.state_indices(self.layout, value, items, complete=False)
            counts = tuple(len(some) for some in state) or (0,) * len(names)
            declared = Declaration(total, None, agreement.counts_of(names, counts)) if i == last else Declaration()
            pages = np.arange(first, first + count, dtype=np.int32)
            slot = 0 if i == last and request.gives_aux else None
            made.append(sends.Send(first, pages, tuple((0, some) for some in state), slot, declared))
            first += count
        return opening, tuple(made)

    def _owed(self) -> frozenset[int]:
        """The descriptors that must be filled, from the request alone: buffer after buffer, item after item."""
        request, base = self.request, ITEMS_PER_USE * self.number
        pages = range(base + request.prefix, base + request.pages)
        owed = [buffer * ITEMS + page for buffer in range(len(self.layout.kv)) for page in pages]
        at = len(self.layout.kv)
        owed += [at * ITEMS + base] if request.aux else []
        at += len(self.layout.aux)
        for component, count in enumerate(request.state):
            owed += [(at + component) * ITEMS + base + i for i in range(count)]
        return frozenset(owed)

    def metadata(self, grant: int) -> wire.Metadata:
        """What decode sends for this use, under a grant number."""
        return wire.Metadata(
            room=self.key.room,
            attempt=self.key.attempt,
            grant=grant,
            token=TOKEN + self.number,
            manifest=self.manifest,
            pages=wire.pack_indices(self._pages),
            aux_index=self._aux_index,
            state=tuple(map(wire.pack_indices, self._state)),
        )

    @property
    def bound(self) -> Manifest:
        """The manifest as prefill has it, once METADATA has arrived."""
        return self.wanted(self.metadata(1)).manifest

    def wanted(self, body: wire.Metadata) -> sends.Wanted:
        """What prefill makes of a METADATA. Raises WireError."""
        return sends.wanted_of(self.layout, self.regions, self.regions, body)

    @property
    def owed_items(self) -> int:
        """Positions of all parts in what prefill was asked for."""
        bound = self.bound
        return size(bound.kv) + bool(bound.aux) + sum(count for _, count in bound.state)

    @property
    def all_writes(self) -> tuple[Write, ...]:
        """The pieces of all sends."""
        try:
            return self.writes(len(self.sends))
        except (AssertionError, LookupError, ValueError, KvroomsError):  # the two do not fit: nothing may be posted
            return ()

    def writes(self, handed: int) -> tuple[Write, ...]:
        """The pieces of the first `handed` sends for this use's grant, in the order in which they are posted."""
        if handed not in self._writes:
            wanted = self.wanted(self.metadata(1))
            made: list[Write] = []
            for send in self.sends[:handed]:
                todo = sends.transfers(self.layout, wanted, send)
                cut = planning.pieces(self._table, self._table, todo, self._piece_bytes)
                made += [Write(piece, frozenset(piece.destination_indices.tolist())) for piece in cut]
            self._writes[handed] = tuple(made)
        return self._writes[handed]
