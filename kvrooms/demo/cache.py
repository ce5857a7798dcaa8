"""Between a transformers cache and paged memory, both ways."""

from __future__ import annotations

from typing import Any

import torch

from .layout import AUX_FIRST_TOKEN, AUX_LOGPROB, CONV, KV, WINDOW, Layout
from .pages import Landed, Pools, Table, write_tokens


def paging_cache(config: Any, pools: Pools, table: Table) -> Any:
    """An empty `DynamicCache` that also writes the K and V of each layer into `pools`, as the model computes them.

    Of the heads, those that the pools have.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    plain = cache.update
    targets: dict[int, list[tuple[torch.Tensor, list[int], int, slice]]] = {}
    for part, pool in pools.parts.items():
        if part.paged:
            first = table.extent.window_first if part.group == WINDOW else 0
            targets.setdefault(part.layer, []).append((pool, table.pages(part.group), first, part.here))

    def update(keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        start = cache.layers[layer].get_seq_length()
        for tensor, (pool, pages, first, heads) in zip((keys, values), targets[layer], strict=True):
            write_tokens(pool, pages, first, start, tensor[0, heads])
        return plain(keys, values, layer, *args, **kwargs)

    cache.update = update
    return cache


def write_states(cache: Any, pools: Pools, table: Table) -> None:
    """Copy the linear-attention states of `cache` into the request's slot: the channels that the pools have."""
    for part, pool in pools.parts.items():
        if not part.paged:
            layer = cache.layers[part.layer]
            states = layer.conv_states if part.group == CONV else layer.recurrent_states
            pool[table.slot] = states[part.index][0, part.here]


def write_aux(pools: Pools, table: Table, token: int, logprob: float) -> None:
    """Put the first generated token and its log-probability into the request's slot."""
    pools.aux[AUX_FIRST_TOKEN][table.slot] = token
    pools.aux[AUX_LOGPROB][table.slot] = logprob


def read_aux(landed: Landed) -> tuple[int, float]:
    """The first generated token and its log-probability."""
    return int(landed[f"aux/{AUX_FIRST_TOKEN}"][0, 0]), float(landed[f"aux/{AUX_LOGPROB}"][0, 0])


def build_cache(config: Any, layout: Layout, table: Table, landed: Landed) -> Any:
    """A `DynamicCache` as if this process had run the prompt, made of nothing but `landed` (see `pages.read`)."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    extent = table.extent
    for part in layout.group(KV):
        if part.role == "k":
            keys, values = (_tokens(landed[f"{KV}/{part.layer}/{role}"], 0, extent.tokens) for role in "kv")
            cache.layers[part.layer].update(keys, values)
    base = extent.window_first * layout.page_size
    for part in layout.group(WINDOW):
        if part.role == "k":
            layer = cache.layers[part.layer]
            start = max(0, extent.tokens - layer.sliding_window + 1)
            pair = (landed[f"{WINDOW}/{part.layer}/{role}"] for role in "kv")
            keys, values = (_tokens(pages, start - base, extent.tokens - base) for pages in pair)
            layer.update(keys, values)
            layer.cumulative_length = extent.tokens  # the layer was given the window only
    for part in layout.parts:
        if not part.paged:
            update = cache.update_conv_state if part.group == CONV else cache.update_recurrent_state
            more = {"conv_kernel_size": part.shape[-1]} if part.group == CONV else {}
            update(landed[part.name].clone(), part.layer, state_idx=part.index, **more)
    return cache


def _tokens(pages: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """`[pages, page_size, heads, head_dim]` to `[1, heads, end - start, head_dim]`, contiguous."""
    return pages.flatten(0, 1)[start:end].transpose(0, 1).unsqueeze(0).contiguous()
