"""Shapes that nobody has thought of: models and topologies drawn at random, small enough to look at every byte.

What chooses is a function from some options to one of them: `random.choice`, or hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from ..protocol.layout import BufferSpec, Instance, Layout, Rank
from ..shapes.build import Model, Side
from ..shapes.table import EVERYTHING, Case

T = TypeVar("T")


class Choose(Protocol):
    """Takes one of some options."""

    def __call__(self, options: Sequence[T], /) -> T:
        """One of them."""


KINDS = ("attention", "attention", "mamba", "window", "index")
"""What a layer may be: attention, Mamba, a sliding window, attention with the keys of sparse attention."""


def any_case(choose: Choose, kinds: Sequence[str] = KINDS) -> Case:
    """A shape whose two sides work together. kinds: of layers."""
    model = _model(choose, kinds)
    totals = [model.mamba_heads, model.mamba_groups, *[model.kv_heads] * (not model.latent_bytes or bool(model.window))]
    sizes = [tp for tp in (1, 2, 3, 4) if all(total % tp == 0 or tp % total == 0 for total in totals)]
    page = choose((1, 2, 3, 4))
    opaque = bool(model.latent_bytes and not model.latent_split), bool(model.index and not model.index_kv)
    uniform = any(opaque) or bool(model.window)  # pages or rows that only their like can be paired with
    other = page if uniform else choose((page, page, 1, 2, 4, 6))
    prefill = _side(choose, model, sizes, page, cp=choose((1, 1, 2, 3)))
    decode = _side(choose, model, sizes, other, cp=1)
    longest = 2 * max(page, other) + 1
    return Case(
        name="drawn",
        shows="",
        model=model,
        prefill_side=prefill,
        decode_side=decode,
        prompts=tuple(choose(range(1, longest + 1)) for _ in range(choose((1, 1, 2, 3)))),
        prefix_tokens=choose((0, 0, 1, other, other + 1, EVERYTHING)),
        chunk=choose((1, 2, 9)),
        layerwise=choose((False, False, True)),
        dp=choose((1, 1, 1, 2)),
    )


def _model(choose: Choose, kinds: Sequence[str]) -> Model:
    layers = range(choose((1, 2, 3, 4)))
    chosen = [choose(kinds) for _ in layers]

    def of(*names: str) -> tuple[int, ...]:
        return tuple(layer for layer, kind in zip(layers, chosen, strict=True) if kind in names)

    latent = choose((0, 0, 4))
    return Model(
        attention=of("attention", "index"),
        kv_heads=choose((1, 2, 4, 6)),
        head_bytes=choose((1, 2, 3)),
        latent_bytes=latent,
        latent_split=latent > 0 and choose((False, True)),
        fused=choose((False, True)),
        mamba=of("mamba"),
        mamba_heads=choose((2, 4)),
        mamba_groups=choose((1, 2)),
        conv_rows=choose((1, 3)),
        conv_bytes=2,
        ssm_bytes=5,
        window=of("window"),
        index=of("index"),
        index_bytes=2,
        index_kv=choose((False, True)),
        hidden=choose((False, True)),
        hidden_bytes=6,
    )


def _side(choose: Choose, model: Model, sizes: Sequence[int], page: int, cp: int) -> Side:
    """Stages are runs of layers, however long; the last one computes aux."""
    layers, stages = model.layers, []
    while layers:
        length = choose(range(1, len(layers) + 1))
        stages.append(layers[:length])
        layers = layers[length:]
    return Side(choose(sizes), cp, tuple(stages), page, choose((False, True)), choose((0, 0, 1)))


def spoiled(choose: Choose, case: Case) -> tuple[Instance, Instance]:
    """The two instances of a shape after a change to one rank, or to all of a side: they may work together or not."""
    sides = [case.prefill[0], case.decode]
    which = choose((0, 1))
    ranks = list(sides[which].ranks)
    name = choose(tuple(_CHANGES))
    change = _CHANGES[name]
    one = choose(range(len(ranks)))
    for number in range(len(ranks)) if name in _OF_ALL or choose((False, True)) else (one,):
        ranks[number] = change(choose, ranks[number])
    sides[which] = Instance(tuple(ranks))
    return sides[0], sides[1]


def _layout(change: Callable[[Choose, Layout], Layout]) -> Callable[[Choose, Rank], Rank]:
    def changed(choose: Choose, rank: Rank) -> Rank:
        return replace(rank, layout=change(choose, rank.layout))

    return changed


def _buffer(change: Callable[[Choose, BufferSpec], BufferSpec | None]) -> Callable[[Choose, Rank], Rank]:
    """A change to one buffer of KV or state; None leaves it out."""

    def changed(choose: Choose, layout: Layout) -> Layout:
        groups: list[list[BufferSpec]] = [list(layout.kv), *(list(one.buffers) for one in layout.state)]
        group = choose(groups)
        if not group:
            return layout
        place = choose(range(len(group)))
        new = change(choose, group[place])
        group[place : place + 1] = [] if new is None else [new]
        state = [replace(one, buffers=tuple(some)) for one, some in zip(layout.state, groups[1:], strict=True)]
        return replace(layout, kv=tuple(groups[0]), state=tuple(one for one in state if one.buffers))

    return _layout(changed)


def _shard(field: str, values: Sequence[int]) -> Callable[[Choose, Rank], Rank]:
    """Another number in one shard of one buffer."""

    def changed(choose: Choose, spec: BufferSpec) -> BufferSpec:
        parts: list[Any] = list(spec.parts)
        place = choose(range(len(parts)))
        parts[place] = replace(parts[place], **{field: choose(values)})
        return replace(spec, shards=tuple(parts))

    return _buffer(changed)


_CHANGES: dict[str, Callable[[Choose, Rank], Rank]] = {
    "nothing": lambda _, rank: rank,
    "another element type": _buffer(lambda _, spec: replace(spec, dtype="float64")),
    "no shards": _buffer(lambda _, spec: replace(spec, shards=())),
    "a shard twice": _buffer(lambda _, spec: replace(spec, shards=spec.parts * 2)),
    "a buffer less": _buffer(lambda *_: None),
    "another layer": _buffer(lambda _, spec: replace(spec, layer=9)),
    "another role": _buffer(lambda _, spec: replace(spec, role="q")),
    "other rows": _shard("rows", (1, 2, 3)),
    "units of another size": _shard("unit_bytes", (1, 2, 4)),
    "another total": _shard("total", (1, 8)),
    "other units": _shard("first", (0, 1, 2)),
    "fewer units": _shard("units", (1, 2)),
    "smaller pages": _layout(lambda _, layout: replace(layout, page_size=1)),
    "no aux": _layout(lambda _, layout: replace(layout, aux=())),
    "less aux": _layout(lambda _, layout: replace(layout, aux=layout.aux[1:])),
    "longer aux": _layout(
        lambda _, layout: replace(
            layout, aux=tuple(replace(aux, item_length=aux.item_length + 1) for aux in layout.aux)
        )
    ),
    "no state": _layout(lambda _, layout: replace(layout, state=())),
    "a part of the prompt": lambda _, rank: replace(rank, cp_rank=0, cp_size=2),
}
_OF_ALL = ("smaller pages", "a part of the prompt")
"""What all ranks of a side have alike."""
