"""Instances of small models: which rank has which layers, heads, groups and parts of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Instance, Layout, Owed, Rank, Shard

_CONV_ROWS = 3


@dataclass(frozen=True)
class Model:
    """What is computed: layer ids by kind, and the sizes that no parallelism changes.

    With `latent_bytes` (of a token) attention is MLA: a page of latents is opaque, or with `latent_split` cut in
    tokens and elements, as `split` cuts it. Else attention has `kv_heads` heads of `head_bytes` each for K and for
    V; `fused` keeps both in one buffer. `conv_rows` is 3 where the conv state is kept position by position, and 1 where
    it is kept channel by channel. `conv_bytes` are those of one position of a head's or a group's channels, `ssm_bytes`
    those of a head's recurrent state, `index_bytes` those of a token's key. The keys are a component, or with
    `index_kv` further buffers of KV, cut in tokens.
    """

    attention: tuple[int, ...] = (0, 1, 2, 3)
    kv_heads: int = 8
    head_bytes: int = 64
    latent_bytes: int = 0
    latent_split: bool = False
    fused: bool = False
    mamba: tuple[int, ...] = ()
    mamba_heads: int = 8
    mamba_groups: int = 2
    conv_rows: int = _CONV_ROWS
    conv_bytes: int = 32
    ssm_bytes: int = 512
    window: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    index_bytes: int = 132
    index_kv: bool = False
    hidden: bool = False
    hidden_bytes: int = 512

    @property
    def layers(self) -> tuple[int, ...]:
        """All layer ids."""
        return tuple(sorted({*self.attention, *self.mamba, *self.window, *self.index}))


@dataclass(frozen=True)
class Side:
    """How one instance splits a model, and how its ranks arrange a page.

    `stages` lists the layers of each pipeline stage; none is one stage with all. Ranks are numbered stage by stage, in
    a stage by context parallel rank, then by tensor parallel rank. `head_major` puts all tokens of a head side by side,
    else all heads of a token are. `padding` bytes follow the cells of each KV item.
    """

    tp: int = 1
    cp: int = 1
    stages: tuple[tuple[int, ...], ...] = ()
    page_size: int = 16
    head_major: bool = False
    padding: int = 0


@dataclass(frozen=True)
class _Slice:
    """One tensor parallel rank's part of whatever is sliced."""

    rank: int
    size: int

    def of(self, total: int) -> tuple[int, int]:
        """The first global unit and the number of them; with fewer units than ranks, neighbours share one."""
        if total % self.size and self.size % total:
            raise ValueError(f"{total} units over {self.size} ranks: neither divides the other")
        if total < self.size:
            return self.rank * total // self.size, 1
        count = total // self.size
        return self.rank * count, count


def prefill_instance(model: Model, side: Side) -> Instance:
    """The ranks of a prefill instance: only the last stage computes aux."""
    stages = side.stages or (model.layers,)
    ranks = [
        Rank(
            _layout(model, side, layers, _Slice(tp, side.tp), _aux(model) if layers == stages[-1] else ()), cp, side.cp
        )
        for layers in stages
        for cp in range(side.cp)
        for tp in range(side.tp)
    ]
    return Instance(tuple(ranks))


def decode_instance(model: Model, side: Side) -> Instance:
    """The ranks of a decode instance: every one reads the first token, the last stage the other aux."""
    stages = side.stages or (model.layers,)
    ranks = [
        Rank(
            _layout(model, side, layers, _Slice(tp, side.tp), _aux(model) if layers == stages[-1] else _aux(model)[:1])
        )
        for layers in stages
        for tp in range(side.tp)
    ]
    return Instance(tuple(ranks))


def _aux(model: Model) -> tuple[AuxSpec, ...]:
    aux = (AuxSpec("first_token", 4, "int32"), AuxSpec("logprob", 4, "float32"))
    return (*aux, AuxSpec("hidden", model.hidden_bytes, "bfloat16")) if model.hidden else aux


def _layout(model: Model, side: Side, layers: tuple[int, ...], part: _Slice, aux: tuple[AuxSpec, ...]) -> Layout:
    attention = [layer for layer in layers if layer in model.attention]
    if model.latent_split:
        kv = [_tokens(side, layer, "latent", model.latent_bytes, "bfloat16", unit_bytes=2) for layer in attention]
    elif model.latent_bytes:
        kv = [BufferSpec(layer, "latent", side.page_size * model.latent_bytes, "bfloat16", ()) for layer in attention]
    elif model.fused:
        kv = [_heads(model, side, layer, "kv", part, grids=2) for layer in attention]
    else:
        kv = [_heads(model, side, layer, role, part) for layer in attention for role in ("k", "v")]
    if model.index_kv:
        length = model.index_bytes
        kv += [_tokens(side, n, "index", length, "uint8", unit_bytes=length) for n in layers if n in model.index]
    state = []
    for name, kind, owed, buffers in (
        ("mamba", "mamba", Owed.ALWAYS, _mamba(model, layers, part)),
        ("window", "sliding_window", Owed.WHEN_INDEXED, _window(model, side, layers, part)),
        ("index", "sparse_index", Owed.WHEN_INDEXED, [] if model.index_kv else _index(model, side, layers)),
    ):
        if buffers:
            state.append(ComponentSpec(name, kind, owed, tuple(buffers)))
    return Layout(side.page_size, tuple(kv), aux, tuple(state))


def _heads(model: Model, side: Side, layer: int, role: str, part: _Slice, grids: int = 1) -> BufferSpec:
    """Pages of K, of V, or (`grids` of 2) of K and then V."""
    first, count = part.of(model.kv_heads)
    strides = (model.head_bytes, side.page_size * model.head_bytes)
    row, unit = strides if side.head_major else (count * model.head_bytes, model.head_bytes)
    grid = side.page_size * count * model.head_bytes
    shards = [
        Shard(number * grid, side.page_size, row, count, unit, model.head_bytes, first, model.kv_heads)
        for number in range(grids)
    ]
    return BufferSpec(layer, role, grids * grid + side.padding, "bfloat16", tuple(shards))


def _tokens(side: Side, layer: int, role: str, token_bytes: int, dtype: str, *, unit_bytes: int) -> BufferSpec:
    """Pages of what every rank has whole: as `split(array, axis=2, rows=1)` of [pages, tokens, units, ...] gives it."""
    units = token_bytes // unit_bytes
    shard = Shard(0, side.page_size, token_bytes, units, unit_bytes, unit_bytes, 0, units)
    return BufferSpec(layer, role, side.page_size * token_bytes, dtype, (shard,))


def _mamba(model: Model, layers: tuple[int, ...], part: _Slice) -> list[BufferSpec]:
    """Slots of conv state, whose channels are grouped as x, B and C and sliced in each, and of recurrent state."""
    groups = [(model.mamba_heads, part.of(model.mamba_heads))] + [(model.mamba_groups, part.of(model.mamba_groups))] * 2
    row_bytes = sum(count for _total, (_first, count) in groups) * model.conv_bytes
    cell = model.conv_bytes * (_CONV_ROWS // model.conv_rows)
    shards, offset = [], 0
    for total, (first, count) in groups:
        shards.append(Shard(offset, model.conv_rows, row_bytes, count, cell, cell, first, total))
        offset += count * cell
    first, count = part.of(model.mamba_heads)
    recurrent = Shard(0, 1, count * model.ssm_bytes, count, model.ssm_bytes, model.ssm_bytes, first, model.mamba_heads)
    buffers = []
    for layer in layers:
        if layer in model.mamba:
            buffers.append(BufferSpec(layer, "conv", _CONV_ROWS * row_bytes, "bfloat16", tuple(shards)))
            buffers.append(BufferSpec(layer, "ssm", count * model.ssm_bytes, "float32", (recurrent,)))
    return buffers


def _window(model: Model, side: Side, layers: tuple[int, ...], part: _Slice) -> list[BufferSpec]:
    """Pages of a sliding window: heads as in attention."""
    return [_heads(model, side, layer, role, part) for layer in layers if layer in model.window for role in ("k", "v")]


def _index(model: Model, side: Side, layers: tuple[int, ...]) -> list[BufferSpec]:
    """Pages of sparse attention's keys, the same on every rank."""
    length = side.page_size * model.index_bytes
    return [BufferSpec(layer, "index_k", length, "uint8", ()) for layer in layers if layer in model.index]
