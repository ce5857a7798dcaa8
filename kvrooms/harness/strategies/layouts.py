"""Layouts, manifests, declarations and lists of page indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ...protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed
from ...protocol.manifest import Declaration, Manifest, derive
from ..simulate.memory import Shape

NAMES = ("swa", "index", "conv", "ssm")
_KINDS = {"swa": "sliding_window", "index": "sparse_index", "conv": "mamba", "ssm": "mamba"}


def _component(name: str, owed: Owed) -> ComponentSpec:
    return ComponentSpec(name, _KINDS[name], owed, (BufferSpec(90, name, 16, "uint8"),))


@st.composite
def layouts(
    draw: st.DrawFn,
    *,
    components: SearchStrategy[int] | None = None,
    owed: Sequence[Owed] = tuple(Owed),
    kv: SearchStrategy[int] | None = None,
    aux: SearchStrategy[bool] | None = None,
) -> Layout:
    """Small layouts: dense, sliding windows, hybrids, and such as keep everything in components.

    components: how many state components (0 to 4; by default 0 to 3). owed: when each may be owed. kv: how many KV
    buffers (by default 0, 2 or 4). aux: whether there are aux buffers.

        @given(layouts(owed=[Owed.ALWAYS]))  # hybrids
        def test_it(layout): ...
    """
    count = draw(components if components is not None else st.integers(0, 3))
    buffers = draw(kv if kv is not None else st.sampled_from([2, 4, 0]))
    auxiliary = draw(aux if aux is not None else st.sampled_from([True, False]))
    return Layout(
        page_size=16,
        kv=tuple(BufferSpec(i // 2, "kv"[i % 2], 16, "uint8") for i in range(buffers)),
        aux=(AuxSpec("token", 4, "uint8"), AuxSpec("logprob", 8, "uint8")) if auxiliary else (),
        state=tuple(_component(name, draw(st.sampled_from(list(owed)))) for name in NAMES[:count]),
    )


def shapes() -> SearchStrategy[Shape]:
    """Small layouts for engines in a simulated world (`simulate.bench.Bench`). Shrinks to a dense one.

    @given(shapes())
    def test_it(shape):
        bench = Bench(seed=1, shape=shape)
    """
    return st.builds(
        lambda indexed, always, aux: Shape(indexed, always, layers=1, aux=aux),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from([True, False]),
    )


@st.composite
def manifests(draw: st.DrawFn, layout: Layout, *, pages: int = 3, indices: int = 2) -> Manifest:
    """Manifests that a room of this layout can have: up to so many pages and indices per component, any prefix.

    They are made by `protocol.manifest.derive`, as engines make them.

        @given(layouts().flatmap(manifests))
        def test_it(manifest): ...
    """
    total = draw(st.integers(0, pages)) if layout.kv else 0
    prefix = draw(st.integers(0, total))
    counts = [draw(st.integers(int(spec.owed is Owed.ALWAYS), indices)) for spec in layout.state]
    arrays = tuple(np.arange(count, dtype=np.int32) for count in counts)
    return derive(layout, total, prefix, arrays, bool(layout.aux) and draw(st.booleans()))


@st.composite
def declarations(draw: st.DrawFn, manifest: Manifest, layout: Layout, *, wrong: bool = True) -> Declaration:
    """What prefill's caller may declare beside a manifest: any of its items, right, or (if `wrong`) one of them wrong.

    @given(declarations(manifest, layout))
    def test_it(declaration): ...
    """
    pages: int | None = draw(st.sampled_from([manifest.pages, None]))
    aux = draw(st.sampled_from([manifest.aux, None]))
    state = draw(st.sampled_from([manifest.state, None]))
    match draw(st.sampled_from(["", "pages", "aux", "state"])) if wrong else "":
        case "pages":
            pages = manifest.pages + 1
        case "aux" if layout.aux:
            aux = () if manifest.aux else layout.aux_names
        case "state" if layout.state:
            name = draw(st.sampled_from(layout.component_names))
            counts = dict(manifest.state)
            counts[name] = counts.get(name, 0) + draw(st.sampled_from([1, -1]))
            state = tuple((other, counts[other]) for other in layout.component_names if counts.get(other, 0) > 0)
    return Declaration(pages, aux, state)


@st.composite
def index_lists(draw: st.DrawFn, items: int, *, size: int | None = None, max_size: int = 4) -> list[int]:
    """Lists of different page or slot indices below `items`, in any order; of exactly `size` if given.

    @given(index_lists(16, size=3))
    def test_it(pages):
        room = engine.open(7, bootstrap=url, pages=pages)
    """
    low, high = (0, min(max_size, items)) if size is None else (size, size)
    return draw(st.lists(st.integers(0, items - 1), min_size=low, max_size=high, unique=True))
