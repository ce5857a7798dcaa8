"""Strategies for rooms between many ranks: models and topologies of two sides that work together, or perhaps do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ...protocol.layout import Instance
from ...shapes.table import Case
from ..topologies import any_case, spoiled

T = TypeVar("T")


@st.composite
def topologies(draw: DrawFn) -> Case:
    """A small model, how both sides split it, and the prompts of some rooms; `harness.ranks.Ranks` plays them."""

    def choose(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return any_case(choose)


@st.composite
def pairs(draw: DrawFn) -> tuple[Instance, Instance]:
    """The prefill and the decode instance of a shape after a change to some ranks of one of them."""

    def choose(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return spoiled(choose, any_case(choose))
