"""Ranks of two sides in the test's own process, on the real ports: their memory, their engines, how rooms must end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from kvrooms import Buffer, Component, DecodeEngine, Instance, Memory, PrefillEngine, Rank, Status, split

PAGES, TOKENS, HEAD, LIMIT_S = 8, 4, 16, 40.0
HEADS = 4
GROUPS = ((8, 8), (2, 2), (2, 2))
"""Of the conv state of a Mamba layer: channels of x, B and C, each numbered by itself: (here, in all)."""


class Part:
    """What one rank has: some heads of the cache, beginning at `first`.

    conv: also a share of that state. window: also pages of a sliding window. aux: whether it computes the first token.
    """

    def __init__(
        self, first: int, heads: int, *, of: int = HEADS, conv: tuple[int, int] | None = None, window: bool = False,
        aux: bool = True,
    ) -> None:  # fmt: skip
        self.k = np.zeros((PAGES, TOKENS, heads, HEAD), np.uint8)
        self.aux = np.zeros((4, 8), np.uint8)
        self.heads = range(first, first + heads)
        state = []
        if conv is not None:
            share, shares = conv
            groups = [(total // shares, share * (total // shares), total) for _, total in GROUPS]
            self.channels = [range(low, low + here) for here, low, _ in groups]
            self.conv = np.zeros((4, sum(here for here, _, _ in groups), 2), np.uint8)
            shards = split(self.conv, 1, groups=groups)
            state = [Component("conv", "mamba", "always", [Buffer(1, "conv", self.conv, shards)])]
        self.window = np.zeros((PAGES, 32), np.uint8)
        if window:
            state.append(Component("window", "sliding_window", "when_indexed", [Buffer(2, "k", self.window)]))
        kv = [Buffer(0, "k", self.k, split(self.k, 2, first, of, rows=1))]
        self.memory = Memory(TOKENS, kv=kv, aux={"token": self.aux} if aux else {}, state=state)

    def fill(self) -> None:
        """What a model would compute: a byte tells position, token, head and where in it."""
        for head, mine in zip(self.heads, range(len(self.heads)), strict=True):
            for page in range(PAGES):
                for token in range(TOKENS):
                    self.k[page, token, mine] = _key(page, token, head)
        self.window[:] = np.arange(1, PAGES + 1, dtype=np.uint8)[:, None]
        self.aux[:] = np.arange(101, 105, dtype=np.uint8)[:, None]
        if hasattr(self, "conv"):
            numbered = [(kind, channel) for kind, mine in enumerate(self.channels) for channel in mine]
            for at, (kind, channel) in enumerate(numbered):
                self.conv[:, at] = _channel(kind, channel)

    def landed(self, pages: Sequence[int], source: Sequence[int], slot: int | None = None) -> None:
        """Every byte of it is that of its own head, token and page; every channel that of its own group."""
        for page, came in zip(pages, source, strict=True):
            for token in range(TOKENS):
                for mine, head in enumerate(self.heads):
                    assert np.array_equal(self.k[page, token, mine], _key(came, token, head)), (page, token, head)
        if slot is not None:
            numbered = [(kind, channel) for kind, mine in enumerate(self.channels) for channel in mine]
            for at, (kind, channel) in enumerate(numbered):
                assert (self.conv[slot, at] == _channel(kind, channel)).all(), (kind, channel)


def _key(page: int, token: int, head: int) -> Any:
    return (np.arange(HEAD) + 1 + 31 * page + 7 * token + 101 * head) % 251


def _channel(kind: int, channel: int) -> int:
    return 1 + 40 * kind + channel


def prefills(
    stack: ExitStack, registry: str, parts: Sequence[Part | None], name: str = "prefill"
) -> list[PrefillEngine]:
    """An instance: an engine for each part; None: that rank is elsewhere."""
    here = [(i, part) for i, part in enumerate(parts) if part is not None]
    for _, part in here:
        part.fill()
    return [
        stack.enter_context(PrefillEngine(part.memory, name=name, registry=registry, rank=i, ranks=len(parts)))
        for i, part in here
    ]


def decodes(stack: ExitStack, parts: Sequence[Part], groups: Sequence[Any] = (), **options: Any) -> list[DecodeEngine]:
    """An instance: an engine for each part."""
    ranks = Instance(tuple(Rank(part.memory.layout) for part in parts), id=7)
    own = [{"group": group} for group in groups] or [{}] * len(parts)
    return [
        stack.enter_context(DecodeEngine(part.memory, name=f"decode-{i}", ranks=ranks, rank=i, **mine, **options))
        for i, (part, mine) in enumerate(zip(parts, own, strict=True))
    ]


def until(what: Any, words: Any = str) -> None:
    """Wait for something that an engine's thread does."""
    gate = threading.Event()
    for _ in range(4000):
        if what():
            return
        gate.wait(0.005)
    raise AssertionError(words())


def over(status: Status, *rooms: Any) -> None:
    """The rooms end so, and their memory comes back."""
    for room in rooms:
        assert room.wait(LIMIT_S) is status, (room, room.failure)
        room.close()
        assert room.wait_memory_free(LIMIT_S), room.memory_status
