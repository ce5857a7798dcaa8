"""Which parts a model's cache has, and which pages and slots hold them.

transformers keeps one cache layer per model layer. The demo carries four of them:

- full attention: K and V of every token, paged, in the memory's `kv`;
- sliding window: K and V of the last `window - 1` tokens, paged, in the component `swa` (owed when indexed): only
  pages that reach into the window travel;
- linear attention (Mamba): a convolution state and a recurrent state, one slot per request, in the components `conv`
  and `recurrent` (owed always);
- a layer that shares another one's cache, or has none: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .jobs import Kind, ModelJob

AUX_FIRST_TOKEN = "first_token"
AUX_LOGPROB = "logprob"
KV = "kv"
WINDOW = "swa"
CONV = "conv"
RECURRENT = "recurrent"


@dataclass(frozen=True)
class Part:
    """One tensor that a request owns per page or per slot.

    `group` is `kv`, `swa`, `conv` or `recurrent`, `role` names the tensor within its layer. `shape` is one page's
    `[page_size, heads, head_dim]` or one slot's shape. `index` is the state's number within the layer. A rank of a
    split model has heads or channels from `first` on, of `total` in the whole model (None: it has all).
    """

    group: str
    layer: int
    role: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: int = 0
    first: int = 0
    total: int | None = None

    @property
    def name(self) -> str:
        """The name under which the bytes of this part are compared."""
        return f"{self.group}/{self.layer}/{self.role}"

    @property
    def paged(self) -> bool:
        """Is it stored in pages (else in slots)?"""
        return self.group in (KV, WINDOW)

    @property
    def axis(self) -> int:
        """The dimension of `shape` that ranks share: heads, or channels."""
        return 1 if self.paged else 0

    @property
    def units(self) -> int:
        """How many heads or channels there are here."""
        return self.shape[self.axis]

    @property
    def here(self) -> slice:
        """The heads or channels of the whole model that are here."""
        return slice(self.first, self.first + self.units)


@dataclass(frozen=True)
class Layout:
    """The parts of one model's cache; `window` is the widest sliding window in tokens, None without one."""

    page_size: int
    window: int | None
    parts: tuple[Part, ...]

    def group(self, name: str) -> tuple[Part, ...]:
        """The parts of one group, in the order of the model's layers."""
        return tuple(part for part in self.parts if part.group == name)

    @property
    def states(self) -> tuple[str, ...]:
        """The groups that are stored in slots, in a fixed order."""
        return tuple(name for name in (CONV, RECURRENT) if self.group(name))


@dataclass(frozen=True)
class Extent:
    """What a prompt of `tokens` tokens occupies: `kv_pages` pages from the first position on, and `window_pages`
    pages of the window, the first of which begins at token `window_first * page_size`."""

    tokens: int
    kv_pages: int
    window_first: int
    window_pages: int

    @staticmethod
    def of(layout: Layout, tokens: int) -> Extent:
        """The extent of a prompt in `layout`."""
        pages = -(-tokens // layout.page_size)
        first = max(0, tokens - layout.window + 1) // layout.page_size if layout.window is not None else pages
        return Extent(tokens, pages if layout.group(KV) else 0, first, pages - first)


@dataclass(frozen=True)
class Step:
    """One chunk of a prefill: tokens `start` to `end`, and the pages (positions in the request's own tables) that are
    complete after it and not before: `kv` and `window` are half-open intervals."""

    start: int
    end: int
    kv: tuple[int, int]
    window: tuple[int, int]
    last: bool


def steps(layout: Layout, tokens: int, chunk: int) -> list[Step]:
    """The chunks of a prompt. A page is sent with the chunk that fills it, or with the last one."""
    extent = Extent.of(layout, tokens)
    result: list[Step] = []
    full = 0
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        last = end == tokens
        before, full = full, -(-end // layout.page_size) if last else end // layout.page_size
        kv = (before, full) if extent.kv_pages else (0, 0)
        low, high = (max(0, page - extent.window_first) for page in (before, full))
        result.append(Step(start, end, kv, (low, high) if extent.window_pages else (0, 0), last))
    return result


def describe(config: Any) -> tuple[Kind, int | None]:
    """The kind of a model and its narrowest sliding window, from its configuration alone.

    Raises ValueError if a layer's cache is of a sort that the demo cannot carry.
    """
    from transformers import DynamicCache

    sorts = [_sort(layer) for layer in DynamicCache(config=config).layers]
    windows = [layer.sliding_window for layer in DynamicCache(config=config).layers if _sort(layer) == WINDOW]
    if windows and min(windows) < 2:
        raise ValueError("a sliding window of one token keeps no cache")
    kind: Kind = "hybrid" if "state" in sorts else "sliding" if WINDOW in sorts else "dense"
    return kind, min(windows, default=None)


def probe(model: Any, job: ModelJob) -> Layout:
    """The layout of `model`'s cache, found by running it on two tokens.

    Raises ValueError if a layer's cache is of a sort that the demo cannot carry.
    """
    from transformers import DynamicCache

    from .generate import forward

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        forward(model, cache, [0, 1])
    parts: list[Part] = []
    window: int | None = None
    for index, layer in enumerate(cache.layers):
        sort = _sort(layer)
        if sort == WINDOW:
            window = max(window or 0, int(layer.sliding_window))
        if sort in (KV, WINDOW):
            for role, tensor in (("k", layer.keys), ("v", layer.values)):
                shape = (job.page_size, tensor.shape[1], tensor.shape[3])
                parts.append(Part(sort, index, role, shape, tensor.dtype))
        elif sort == "state":
            parts.extend(_state_parts(index, layer))
    return Layout(job.page_size, window, tuple(parts))


def _state_parts(index: int, layer: Any) -> list[Part]:
    parts = []
    for group, states in ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states)):
        for number, tensor in states.items():
            if tensor is not None:
                role = group if number == 0 else f"{group}{number}"
                parts.append(Part(group, index, role, tuple(tensor.shape[1:]), tensor.dtype, number))
    return parts


def _sort(layer: Any) -> str:
    """`kv`, `swa`, `state` or `none`."""
    from transformers import cache_utils

    sorts = {
        cache_utils.DynamicLayer: KV,
        cache_utils.DynamicSlidingWindowLayer: WINDOW,
        cache_utils.LinearAttentionLayer: "state",
        cache_utils.DummyLayer: "none",
    }
    found = sorts.get(type(layer))
    if found is None:
        raise ValueError(f"the demo does not carry a cache layer of type {type(layer).__name__}")
    return found
