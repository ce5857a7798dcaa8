"""What the oracle reads of a layout: attributes, and nothing else of the classes that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ShardView(Protocol):
    """A grid of cells inside each item of a buffer."""

    @property
    def offset(self) -> int:
        """From the item's first byte to cell (0, 0)."""
        ...

    @property
    def rows(self) -> int:
        """Rows of cells in an item."""
        ...

    @property
    def row_stride(self) -> int:
        """From one row to the next."""
        ...

    @property
    def units(self) -> int:
        """Cells in a row: the global units that this rank owns."""
        ...

    @property
    def unit_stride(self) -> int:
        """From one unit of a row to the next."""
        ...

    @property
    def unit_bytes(self) -> int:
        """Bytes of a cell."""
        ...

    @property
    def first(self) -> int:
        """The global number of unit 0."""
        ...

    @property
    def total(self) -> int:
        """How many global units there are, on all ranks."""
        ...


class BufferView(Protocol):
    """A buffer of KV or of state."""

    @property
    def layer(self) -> int:
        """The global layer id."""
        ...

    @property
    def role(self) -> str:
        """What it holds of that layer."""
        ...

    @property
    def item_length(self) -> int:
        """Bytes of an item: a page or a slot."""
        ...

    @property
    def dtype(self) -> str:
        """The element type."""
        ...

    @property
    def shards(self) -> Sequence[ShardView]:
        """Its grids; none stands for one cell that is the whole item."""
        ...


class AuxView(Protocol):
    """An aux buffer."""

    @property
    def name(self) -> str:
        """What it holds."""
        ...

    @property
    def item_length(self) -> int:
        """Bytes of a slot."""
        ...

    @property
    def dtype(self) -> str:
        """The element type."""
        ...


class ComponentView(Protocol):
    """A state component."""

    @property
    def name(self) -> str:
        """Its open name."""
        ...

    @property
    def buffers(self) -> Sequence[BufferView]:
        """Its buffers."""
        ...


class LayoutView(Protocol):
    """The memory of one rank."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def kv(self) -> Sequence[BufferView]:
        """The KV buffers."""
        ...

    @property
    def aux(self) -> Sequence[AuxView]:
        """The aux buffers."""
        ...

    @property
    def state(self) -> Sequence[ComponentView]:
        """The state components."""
        ...


class RankView(Protocol):
    """One rank of an instance."""

    @property
    def layout(self) -> LayoutView:
        """Its memory."""
        ...

    @property
    def cp_rank(self) -> int:
        """Which part of a prompt's pages it has."""
        ...

    @property
    def cp_size(self) -> int:
        """Of how many parts."""
        ...


class InstanceView(Protocol):
    """The ranks that serve a room together."""

    @property
    def ranks(self) -> Sequence[RankView]:
        """In the order of their numbers."""
        ...
