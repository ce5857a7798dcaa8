"""Which rooms are open and whose the destination ranges are: checked in the caller's thread, before a room exists.

A destination page or slot belongs to one room from `open` until its lease is over. Handing it to a second room before
that is how one request's bytes end up in another's answer; here it is an InvalidArgument that names the page.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..protocol.errors import InvalidArgument
from ..protocol.identity import RoomKey
from ..protocol.layout import Layout, Regions
from ..protocol.manifest import Indices

_FEW = 32


class Claims:
    """Open room keys and claimed items. Not thread-safe: the caller holds the engine's lock."""

    def __init__(self, layout: Layout, regions: Regions) -> None:
        self._keys: set[RoomKey] = set()
        self._pages = bytearray(regions.pages)
        self._aux = bytearray(regions.aux_slots)
        self._state = [bytearray(regions.component_items(i)) for i in range(len(layout.state))]
        self._names = layout.component_names

    def take_key(self, key: RoomKey) -> None:
        """Raises InvalidArgument when the key is in use."""
        if key in self._keys:
            raise InvalidArgument("room", key.room, f"{key} is open already; close it first, or use another attempt")
        self._keys.add(key)

    def drop_key(self, key: RoomKey) -> None:
        """The key can be used again."""
        self._keys.discard(key)

    def take(self, pages: Indices, aux_index: int, state: tuple[Indices, ...]) -> None:
        """Claim items, all or none. Raises InvalidArgument naming an item that is claimed, or named twice."""
        wanted = [("pages", self._pages, pages)]
        for name, claimed, indices in zip(self._names, self._state, state, strict=False):
            wanted.append((f"state_indices[{name}]", claimed, indices))
        for field, claimed, indices in wanted:
            _check(field, claimed, indices)
        if aux_index >= 0 and self._aux[aux_index]:
            raise InvalidArgument("aux_index", aux_index, "the slot belongs to a room whose memory is not free yet")
        for _field, claimed, indices in wanted:
            _set(claimed, indices, 1)
        if aux_index >= 0:
            self._aux[aux_index] = 1

    def give_back(self, pages: Indices, aux_index: int, state: tuple[Indices, ...]) -> None:
        """The items are nobody's again."""
        _set(self._pages, pages, 0)
        for claimed, indices in zip(self._state, state, strict=False):
            _set(claimed, indices, 0)
        if aux_index >= 0:
            self._aux[aux_index] = 0

    def __len__(self) -> int:
        """How many items are claimed."""
        return sum(sum(claimed) for claimed in (self._pages, self._aux, *self._state))


def _view(claimed: bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(claimed, dtype=np.uint8)


def check_once(field: str, indices: Indices) -> None:
    """Raise InvalidArgument naming the field and an item that is named twice."""
    if len(indices) <= _FEW and len(set(indices.tolist())) == len(indices):
        return
    ordered = np.sort(indices)
    same = ordered[1:] == ordered[:-1]
    if same.any():
        raise InvalidArgument(field, int(ordered[1:][same][0]), "names an item twice")


def _check(field: str, claimed: bytearray, indices: Indices) -> None:
    check_once(field, indices)
    if len(indices) <= _FEW:  # plain bytes beat numpy's overhead for a handful
        listed = indices.tolist()
        taken = [index for index in listed if claimed[index]]
    else:
        taken = indices[_view(claimed)[indices] != 0].tolist()
    if taken:
        raise InvalidArgument(field, taken[0], "it belongs to a room whose memory is not free yet")


def _set(claimed: bytearray, indices: Indices, value: int) -> None:
    if len(indices) <= _FEW:
        for index in indices.tolist():
            claimed[index] = value
    elif len(indices):
        _view(claimed)[indices] = value
