"""Chunkings: how a prompt's pages and state indices are spread over calls of `send`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st


class Chunk(NamedTuple):
    """One call of `send`: how many of the next pages, how many of the next indices of each component, is it the last.

    A chunk may be empty; the last one may have no pages.
    """

    pages: int
    state: tuple[int, ...] = ()
    last: bool = False


class Part(NamedTuple):
    """What one call of `send` takes: source pages, state indices by component (those that have any), is it the last."""

    pages: list[int]
    state: dict[str, list[int]]
    last: bool


@st.composite
def chunkings(
    draw: st.DrawFn, pages: int, state: Sequence[int] = (), *, chunks: int = 4, early_state: bool = True
) -> tuple[Chunk, ...]:
    """Every way to send so many pages, and so many indices per component, in up to `chunks` calls of `send`.

    early_state: indices may go before the last call; else all of them go with it. Shrinks to one call.

        @given(chunkings(pages=3, state=[2]))
        def test_it(chunking):
            for pages, state, last in split(chunking, [7, 8, 9], {"swa": [1, 4]}):
                room.send(pages, state, last=last)
    """
    count = draw(st.integers(1, chunks))
    sizes = _spread(draw, pages, count)
    indices = [_spread(draw, total, count) if early_state else [*[0] * (count - 1), total] for total in state]
    return tuple(Chunk(sizes[i], tuple(column[i] for column in indices), i == count - 1) for i in range(count))


def _spread(draw: st.DrawFn, total: int, count: int) -> list[int]:
    """`total` as a sum of `count` numbers, in order."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=count - 1, max_size=count - 1)))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]


def split(
    chunking: Sequence[Chunk], pages: Sequence[int], state: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Part]:
    """The arguments of each `send`. state: by component, in the order in which the chunking counts them."""
    at, positions = 0, dict.fromkeys(state or {}, 0)
    for chunk in chunking:
        some = {}
        for (name, indices), count in zip((state or {}).items(), chunk.state, strict=False):
            if count:
                some[name] = list(indices[positions[name] : positions[name] + count])
                positions[name] += count
        yield Part(list(pages[at : at + chunk.pages]), some, chunk.last)
        at += chunk.pages
