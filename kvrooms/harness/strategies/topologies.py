"""Strategies for rooms between many ranks: models and topologies of two sides that work together, or perhaps do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ...protocol.layout import Instance, Layout
from ...shapes.table import Case
from ..topologies import KINDS, Choose, any_case, spoiled

T = TypeVar("T")


def _choose(draw: DrawFn) -> Choose:
    def choose(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return choose


@st.composite
def topologies(
    draw: DrawFn,
    *,
    kinds: Sequence[str] = KINDS,
    prompts: SearchStrategy[tuple[int, ...]] | None = None,
    prefix_tokens: SearchStrategy[int] | None = None,
    layerwise: SearchStrategy[bool] | None = None,
) -> Case:
    """A small model, how both sides split it, and the prompts of some rooms; `harness.ranks.Ranks` plays them.

    Tensor parallelism of 1 to 4 on each side, any stages, context parallelism, up to two instances of prefill.
    kinds: of layers, from "attention", "mamba", "window", "index"; one that is named twice is drawn twice as often.
    prompts: their lengths in tokens. prefix_tokens: how many of each decode holds already; whole pages of decode count.
    layerwise: whether each layer is sent by itself. Shrinks to one layer, and a rank on each side.

        @given(topologies(kinds=("attention", "window"), prefix_tokens=st.just(0)))
        def test_it(case):
            ranks = Ranks(case)
            ranks.play()
            assert ranks.differs() == []
    """
    case = any_case(_choose(draw), kinds)
    others: dict[str, SearchStrategy[Any] | None] = {
        "prompts": prompts,
        "prefix_tokens": prefix_tokens,
        "layerwise": layerwise,
    }
    return replace(case, **{name: draw(some) for name, some in others.items() if some is not None})


@st.composite
def instances(draw: DrawFn, *, kinds: Sequence[str] = KINDS) -> tuple[Instance, Instance]:
    """A prefill and a decode instance that work together: of each rank its layout, and its part of every prompt.

    @given(instances())
    def test_it(both):
        pairing = pair_up(*both)
    """
    case = any_case(_choose(draw), kinds)
    return case.prefill[0], case.decode


@st.composite
def pairs(draw: DrawFn) -> tuple[Instance, Instance]:
    """The prefill and the decode instance of a shape after a change to some ranks of one of them.

    Some of them still work together. What does not is refused in words (`protocol.shares.pair_up`).
    """
    return spoiled(_choose(draw), any_case(_choose(draw)))


@st.composite
def rank_layouts(draw: DrawFn, *, kinds: Sequence[str] = KINDS) -> Layout:
    """The layout of one rank, with the shards that it has of the whole model: heads, channels, layers of its stage.

    @given(rank_layouts(kinds=("mamba",)))
    def test_it(layout): ...
    """
    prefill, decode = draw(instances(kinds=kinds))
    ranks = (*prefill.ranks, *decode.ranks)
    return ranks[draw(st.integers(0, len(ranks) - 1))].layout


def prefixes(tokens: int, page_size: int) -> SearchStrategy[int]:
    """How many whole pages decode may hold of a prompt already: none, some, or all of them. Shrinks to none.

    @given(prefixes(tokens=33, page_size=16))
    def test_it(prefix):
        room = engine.open(7, bootstrap=url, pages=[1, 2, 3][prefix:], prefix_pages=prefix, tokens=33)
    """
    return st.integers(0, -(-tokens // page_size))
