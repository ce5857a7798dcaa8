"""Paged memory of the demo: who holds which page, and where a token's bytes go."""

from __future__ import annotations

import pytest
import torch

from kvrooms.demo.layout import CONV, KV, WINDOW, Extent, Layout, Part, steps
from kvrooms.demo.pages import CANARY, Allocator, Pools, read, write_tokens

PAGE = 4


def layout(*, full: bool = True, window: int | None = None, state: bool = False) -> Layout:
    parts = []
    for group, there in ((KV, full), (WINDOW, window is not None)):
        if there:
            parts += [Part(group, 0, role, (PAGE, 2, 3), torch.float32) for role in "kv"]
    if state:
        parts.append(Part(CONV, 1, CONV, (5, 4), torch.bfloat16))
    return Layout(PAGE, window, tuple(parts))


def test_allocator_hands_out_a_shuffled_order_and_takes_items_back() -> None:
    allocator = Allocator(8, "seed")
    first = allocator.take(5)
    assert first != sorted(first)
    assert allocator.used == frozenset(first)
    with pytest.raises(MemoryError, match="4 items asked for, 3 free"):
        allocator.take(4)
    allocator.give(first[:2])
    assert set(allocator.take(5)) == set(range(8)) - set(first[2:])
    with pytest.raises(ValueError, match="item 99 is not allocated"):
        allocator.give([99])


def test_every_token_of_every_chunk_finds_its_place() -> None:
    values = torch.randn(2, 11, 3)
    pool = torch.zeros(6, PAGE, 2, 3)
    pages = [4, 0, 5]
    for start, end in ((0, 3), (3, 4), (4, 9), (9, 11)):
        write_tokens(pool, pages, 0, start, values[:, start:end])
    flat = pool[pages].flatten(0, 1)
    assert torch.equal(flat[:11], values.transpose(0, 1))
    assert not flat[11:].any()
    assert not pool[[1, 2, 3]].any()


@pytest.mark.parametrize("cut", range(1, 14))
def test_tokens_before_the_window_have_no_page(cut: int) -> None:
    values = torch.randn(2, 14, 3)
    pool = torch.zeros(4, PAGE, 2, 3)
    write_tokens(pool, [3, 1], 2, 0, values[:, :cut])
    write_tokens(pool, [3, 1], 2, cut, values[:, cut:])
    assert torch.equal(pool[[3, 1]].flatten(0, 1)[:6], values.transpose(0, 1)[8:])


@pytest.mark.parametrize("chunk", [1, 3, 4, 6, 50])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 17, 40])
@pytest.mark.parametrize(("full", "window"), [(True, None), (False, 9), (True, 9), (False, 100)])
def test_the_chunks_of_a_prompt_send_each_page_once_and_in_order(
    tokens: int, chunk: int, full: bool, window: int | None
) -> None:
    plan = layout(full=full, window=window)
    extent = Extent.of(plan, tokens)
    todo = steps(plan, tokens, chunk)
    assert [step.start for step in todo] == list(range(0, tokens, chunk))
    assert [step.last for step in todo] == [False] * (len(todo) - 1) + [True]
    for pages, spans in (
        (extent.kv_pages, [step.kv for step in todo]),
        (extent.window_pages, [step.window for step in todo]),
    ):
        sent = [page for low, high in spans for page in range(low, high)]
        assert sent == list(range(pages))
    for step in todo:
        if extent.kv_pages and not step.last:
            assert step.kv[1] == step.end // PAGE


def test_window_pages_cover_the_window_and_begin_in_it() -> None:
    plan = layout(full=False, window=9)
    for tokens in range(1, 60):
        extent = Extent.of(plan, tokens)
        first_needed = max(0, tokens - 8)
        assert extent.window_first * PAGE <= first_needed < (extent.window_first + 1) * PAGE
        assert (extent.window_first + extent.window_pages) * PAGE >= tokens


def test_what_is_read_is_a_copy_in_order_of_position() -> None:
    plan = layout(window=9, state=True)
    extent = Extent.of(plan, 10)
    pools = Pools.create(plan, [extent], seed="s", fill=CANARY)
    table = pools.take(extent)
    pools.clear(table)
    for part, pool in pools.parts.items():
        for position, page in enumerate(table.pages(part.group)):
            pool[page] = position + 1
    landed = read(pools, table)
    assert landed["kv/0/k"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert landed["conv/1/conv"].shape == (1, 5, 4)
    landed["kv/0/k"][:] = 9
    assert read(pools, table)["kv/0/k"][0, 0, 0, 0] == 1


def test_a_byte_outside_what_was_granted_is_a_stray() -> None:
    plan = layout(state=True)
    extent = Extent.of(plan, 10)
    pools = Pools.create(plan, [extent], seed="s", fill=CANARY)
    table = pools.take(extent)
    pools.clear(table)
    pools.give(table)
    assert pools.strays() == []
    part, pool = next(iter(pools.parts.items()))
    free = next(page for page in range(pool.shape[0]) if page not in table.kv)
    pool[free].view(torch.uint8)[-1] = 0
    assert pools.strays() == [part.name]
    pools.aux["logprob"][(table.slot + 1) % pools.aux["logprob"].shape[0]] = 1.0
    assert pools.strays() == [part.name, "aux/logprob"]
