"""Chunkings: how a prompt's pages and state indices are spread over calls of `send`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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


class LayerSend(NamedTuple):
    """One call of `send`: the KV of some layers, for `pages` positions from `first` on; is it the last call."""

    first: int
    pages: int
    layers: tuple[int, ...] = ()
    last: bool = False

    def arguments(self, pages: Sequence[int]) -> dict[str, Any]:
        """Those of the call, where these are all the pages that the rank sends."""
        some = {"layers": self.layers} if self.layers else {}
        return {"pages": list(pages[self.first : self.first + self.pages]), **some, "last": self.last}


@st.composite
def layer_schedules(draw: st.DrawFn, pages: int, layers: Sequence[int]) -> tuple[LayerSend, ...]:
    """Every order in which a rank may send so many pages layer by layer: each layer continues where it is.

    layers: the ids of the layers whose KV the rank has; none for a rank without KV. Shrinks to one call.

        @given(layer_schedules(pages=3, layers=[4, 5]))
        def test_it(schedule):
            for send in schedule:
                room.send(**send.arguments([7, 8, 9]))
    """
    reached = dict.fromkeys(layers, 0)
    sends: list[LayerSend] = []
    while reached and min(reached.values()) < pages:
        first = draw(st.sampled_from(sorted({at for at in reached.values() if at < pages})))
        there = [layer for layer, at in reached.items() if at == first]
        left_out = draw(st.sets(st.sampled_from(there), max_size=len(there) - 1))
        chosen = tuple(layer for layer in there if layer not in left_out)
        count = pages - first - draw(st.integers(0, pages - first - 1))
        reached.update(dict.fromkeys(chosen, first + count))
        sends.append(LayerSend(first, count, chosen))
    if not sends:
        return (LayerSend(0, pages, (), last=True),)
    if draw(st.booleans()):  # that nothing follows is known only afterwards
        return (*sends, LayerSend(pages, 0, (), last=True))
    return (*sends[:-1], sends[-1]._replace(last=True))
