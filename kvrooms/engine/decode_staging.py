"""Staging on decode: slots lent to grants, and what lands there scattered to where it belongs.

All of it happens on the engine's thread, in the step that takes a notification in, so a part has landed for the room
only once its bytes are in their pages. A slot belongs to its grant from METADATA until the grant's lease ends, like a
page: what may still be written there after a failure waits for the word of the writer. Meanwhile prefill writes to it
anew each time decode says that it is empty. A grant for which no slot is left gets none, and is written to directly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.grids import Side
from ..protocol.intervals import NOTHING, add, covers
from ..protocol.layout import Layout, Region, Regions
from ..protocol.notify import InSlot, Part, PartKind
from ..protocol.plan import Transfer
from ..protocol.shaped import PairTable
from ..protocol.staging import LENT_MAX, LENT_SHARE, RUNS_MIN, Slots, Staging, slot_bytes
from .core import Ports
from .decode_state import DecodeLink, Grant
from .holds import DecodeHolds
from .staging import Stage, make_stage


class DecodeStaging(DecodeHolds):
    """The part of a decode core that lends staging slots and empties them. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._stage: Stage | None = None

    def _slots_for(self, link: DecodeLink) -> Slots | None:
        """What a prefill rank is told of our slots; None where nothing of its share is to go through them."""
        share, settings = link.share, self.settings
        link.landing = None
        if share is None or not settings.staging_max_slice_bytes or settings.staging_bytes < 2:
            return None
        sender = self._expected(link)
        staging = Staging(settings.staging_max_slice_bytes, slot_bytes(settings.staging_bytes))
        pairs = PairTable(Side(sender, _nowhere(sender)), Side(self.layout, self.regions), share, staging)
        if not pairs.scattered:
            return None
        self._stage = self._stage or make_stage(self.transport, settings.staging_bytes, self.name)
        if self._stage is None:
            return None
        link.landing = pairs
        return Slots(self._stage.address, self._stage.slots, self._stage.slot_bytes, pairs.scattered)

    def _lend(self, link: DecodeLink, grant: Grant) -> bytes:
        """Slots for a grant, packed as METADATA carries them."""
        pairs, stage = link.landing, self._stage
        if pairs is None or stage is None:
            return b""
        runs, size = pairs.scattered_size(grant.manifest)
        if runs >= RUNS_MIN:
            most = min(LENT_MAX, max(1, stage.free // LENT_SHARE), -(-size // stage.slot_bytes))
            taken = [stage.take(grant) for _ in range(most)]
            grant.slots = tuple(slot for slot in taken if slot is not None)
            grant.landing = pairs
        return wire.pack_indices(np.array(grant.slots, dtype=np.int32))

    def _take_back(self, grant: Grant) -> None:
        """Nobody can write to the slots of a grant any more."""
        slots, grant.slots = grant.slots, ()
        for slot in slots:
            assert self._stage is not None
            self._stage.give(grant, slot)

    def _unpacked(self, grant: Grant, part: Part, staged: InSlot) -> list[Part]:
        """Scatter what lies in a slot; the positions that are whole with it. Raises WireError for what cannot be."""
        pairs, stage = grant.landing, self._stage
        if pairs is None or stage is None or staged.slot not in grant.slots:
            raise WireError("slot", f"{staged.slot} was not lent to this grant")
        name = grant.manifest.state[part.component][0] if part.kind is PartKind.STATE else ""
        transfer = _transfer(grant, part)
        packed = pairs.unpacking(transfer, name, staged.first, staged.stop, stage.slot_bytes)
        stage.scatter(staged.slot, packed)
        self.counters["pieces scattered"] += 1
        return list(_whole(grant, part, staged, pairs.count(part.kind, name)))

    def _emptied(self, grant: Grant, slot: int) -> None:
        """Tell the writer at once that it may write to a slot again: it fills it while we empty the next."""
        peer = grant.peer
        if slot in grant.slots and peer is not None and peer.link is not None:
            self._send(peer.link, wire.Emptied(grant.number, (slot,)))
            self.channel.flush()


def _whole(grant: Grant, part: Part, staged: InSlot, count: int) -> Iterator[Part]:
    """The positions of a part of which all buffers are there now."""
    if (staged.first, staged.stop) == (0, count):
        yield part
        return
    kind, component, first, size = part
    for position in range(first, first + size):
        key = kind, component, position
        there = add(grant.scattered.get(key, NOTHING), staged.first, staged.stop)
        if covers(there, 0, count):
            grant.scattered.pop(key, None)
            yield Part(kind, component, position, 1)
        else:
            grant.scattered[key] = there


def _transfer(grant: Grant, part: Part) -> Transfer:
    """A part as a transfer: where it goes. Where it comes from does not matter here."""
    kind, component, first, size = part
    to, source = grant.destination, np.zeros(size, dtype=np.int32)
    grid = grant.landing.grid(kind, "") if grant.landing is not None and kind is PartKind.KV else None
    if grid is not None and grid.source_tokens != grid.target_tokens:
        return Transfer(kind, component, 0, first, source, to.pages, to.first_page)
    return Transfer(kind, component, 0, first, source, to.items(grant.manifest, kind, component, first, first + size))


def _nowhere(layout: Layout) -> Regions:
    """Regions for a layout whose addresses do not matter."""
    here = Region(0, 1)
    state = tuple(tuple(here for _ in component.buffers) for component in layout.state)
    return Regions(tuple(here for _ in layout.kv), tuple(here for _ in layout.aux), state)
