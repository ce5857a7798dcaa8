"""The named shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..protocol.layout import Instance
from .build import Model, Side, decode_instance, prefill_instance

EVERYTHING = 2**31
"""As a prefix: the whole prompt, whatever its length."""


@dataclass(frozen=True)
class Case:
    """One named shape: who splits what how, the prompts of its rooms, and how prefill sends them.

    `prompts` are lengths in tokens; `prefix_tokens` of each are on decode already (only whole pages of them count).
    `chunk` is how many pages a prefill rank hands over in one send; with `layerwise` each layer is sent by itself;
    with `staging` slices go through a staging buffer. `dp` prefill instances take the rooms in turn.
    """

    name: str
    shows: str
    model: Model
    prefill_side: Side
    decode_side: Side
    prompts: tuple[int, ...]
    prefix_tokens: int = 0
    chunk: int = 4
    layerwise: bool = False
    staging: bool = False
    dp: int = 1

    @cached_property
    def prefill(self) -> tuple[Instance, ...]:
        """The prefill instances."""
        return (prefill_instance(self.model, self.prefill_side),) * self.dp

    @cached_property
    def decode(self) -> Instance:
        """The decode instance."""
        return decode_instance(self.model, self.decode_side)

    @property
    def processes(self) -> int:
        """How many ranks there are in all."""
        return sum(len(instance.ranks) for instance in self.prefill) + len(self.decode.ranks)


def around(page_size: int, pages: int) -> tuple[int, ...]:
    """Prompts of one token, and of `pages` pages less a token, exactly, and with one token more."""
    return 1, pages * page_size - 1, pages * page_size, pages * page_size + 1


_MHA = Model()
_WIDE = Model(head_bytes=256, attention=(0, 1))
_GQA = Model(kv_heads=2, head_bytes=256)
_MLA = Model(latent_bytes=288)
_MLA_TOKENS = Model(latent_bytes=128, latent_split=True)
_DSA = Model(latent_bytes=64, latent_split=True, index=(0, 1, 2, 3), index_bytes=256, index_kv=True)
_FEW = Model(kv_heads=2, head_bytes=128)
_MAMBA = Model(attention=(2, 5), mamba=(0, 1, 3, 4))
_USUAL = around(16, 5)
_STAGES = ((0, 1), (2, 3))


def _mha(name: str, prefill: int, decode: int, shows: str, model: Model = _MHA) -> Case:
    return Case(name, shows, model, Side(tp=prefill), Side(tp=decode), _USUAL)


_PLAIN = (
    _mha("mha-tp1-1", 1, 1, "whole pages; hidden states as a third aux", Model(hidden=True)),
    _mha("mha-tp1-2", 1, 2, "each token's heads are cut in two"),
    _mha("mha-tp2-1", 2, 1, "two writers fill the halves of one page"),
    _mha("mha-tp2-2", 2, 2, "two independent pairs; heads of 256 bytes", _WIDE),
    Case(
        "mha-tp2-4",
        "pages by head on both sides: a head of a page is one run",
        _MHA,
        Side(tp=2, head_major=True),
        Side(tp=4, head_major=True),
        _USUAL,
    ),
    Case(
        "mha-tp4-2",
        "pages by token on prefill, by head on decode",
        _MHA,
        Side(tp=4),
        Side(tp=2, head_major=True),
        _USUAL,
    ),
    Case(
        "mha-tp1-4",
        "pages of decode end in padding, which nobody touches",
        _MHA,
        Side(),
        Side(tp=4, padding=64),
        _USUAL,
    ),
    _mha("mha-tp4-1", 4, 1, "four writers fill one page"),
    _mha("mha-tp4-4", 4, 4, "four independent pairs; heads of 256 bytes", _WIDE),
    _mha("gqa-rep-tp1-4", 1, 4, "two heads for four decode ranks: each head goes to two", _GQA),
    _mha("gqa-rep-tp4-1", 4, 1, "each head lies on two prefill ranks: one of them writes", _GQA),
    _mha(
        "gqa-rep-tp4-2",
        4,
        2,
        "as many writers as heads; K and V in one buffer",
        Model(kv_heads=2, head_bytes=256, fused=True),
    ),
    _mha("gqa-rep-tp2-4", 2, 4, "one writer for two decode ranks that hold the same", _GQA),
    _mha("mla-tp1-1", 1, 1, "one latent a token, pages opaque", _MLA),
    _mha("mla-tp2-1", 2, 1, "the latent is on both prefill ranks: one of them writes", _MLA),
    _mha("mla-tp1-2", 1, 2, "the latent goes whole to both", _MLA),
    _mha("mla-tp4-2", 4, 2, "two of four prefill ranks owe nobody anything", _MLA),
)

_PARALLEL = (
    Case("pp2-1", "two stages of equal length", _MHA, Side(stages=_STAGES), Side(), _USUAL),
    Case("pp2-uneven", "layers are paired by id: one and three", _MHA, Side(stages=((0,), (1, 2, 3))), Side(), _USUAL),
    Case(
        "pp2-pp2",
        "stages end at different layers on the two sides",
        _MHA,
        Side(stages=((0,), (1, 2, 3))),
        Side(stages=((0, 1, 2), (3,))),
        _USUAL,
    ),
    Case(
        "pp2-pp2-tp2",
        "stages end at different layers on the two sides, and decode cuts the heads",
        Model(head_bytes=128),
        Side(stages=((0,), (1, 2, 3))),
        Side(tp=2, stages=((0, 1, 2), (3,))),
        _USUAL,
    ),
    Case(
        "pp2-tp2-tp2",
        "two stages of two ranks; aux from the last stage alone",
        _MHA,
        Side(tp=2, stages=_STAGES),
        Side(tp=2),
        _USUAL,
    ),
    Case("cp2-1", "each prefill rank has half of the pages", _MHA, Side(cp=2), Side(), _USUAL),
    Case(
        "cp2-tp2-1",
        "halves of the pages, halves of the heads; state is on both parts",
        _MAMBA,
        Side(cp=2, tp=2),
        Side(),
        _USUAL,
    ),
    Case(
        "cp2-pp2-1",
        "each rank has half of the pages of its stage's layers",
        _MHA,
        Side(cp=2, stages=((0,), (1, 2, 3))),
        Side(),
        _USUAL,
    ),
    Case("dp2-1", "two prefill instances take the rooms in turn", _MHA, Side(), Side(), _USUAL, dp=2),
    Case("dp2-tp2-1", "each of the two instances has two ranks", _MHA, Side(tp=2), Side(), _USUAL, dp=2),
)

_STATE = (
    Case("state-mamba", "conv and recurrent state, one slot a room", _MAMBA, Side(), Side(), _USUAL),
    Case(
        "state-mamba-tp2-1",
        "x, B and C of the conv state are put together group by group",
        _MAMBA,
        Side(tp=2),
        Side(),
        _USUAL,
    ),
    Case(
        "state-mamba-tp1-2",
        "conv state by channel; one group of B and C for each rank",
        Model(attention=(2, 5), mamba=(0, 1, 3, 4), conv_rows=1),
        Side(),
        Side(tp=2),
        _USUAL,
    ),
    Case(
        "state-swa",
        "only the window's pages, heads cut",
        Model(attention=(0, 2), window=(1, 3)),
        Side(tp=2),
        Side(),
        _USUAL,
    ),
    Case(
        "state-dsa",
        "index keys page by page, beside a latent",
        Model(latent_bytes=288, index=(0, 1, 2, 3)),
        Side(tp=2),
        Side(tp=2),
        _USUAL,
    ),
    Case(
        "state-two",
        "a component's layers come from two stages",
        Model(attention=(2, 5), mamba=(0, 4), window=(1, 3)),
        Side(stages=((0, 1, 2), (3, 4, 5))),
        Side(),
        _USUAL,
    ),
    Case(
        "state-three",
        "three components, one group of B and C for four ranks",
        Model(attention=(2, 5), mamba=(0, 4), mamba_groups=1, window=(1, 3), index=(2, 5)),
        Side(tp=4),
        Side(tp=2),
        _USUAL,
    ),
)

_SENDING = (
    Case("prefix-part", "the first two pages are there already", _MHA, Side(tp=2), Side(), _USUAL, prefix_tokens=32),
    Case(
        "prefix-all",
        "no page is owed, aux and state are",
        _MAMBA,
        Side(),
        Side(),
        _USUAL,
        prefix_tokens=EVERYTHING,
    ),
    Case(
        "prefix-inside-page",
        "the prefix ends inside pages of both sides: decode's page comes whole, prefill's from its middle",
        _MHA,
        Side(page_size=64),
        Side(page_size=16),
        (*around(64, 2), 41),
        prefix_tokens=41,
    ),
    Case("layerwise", "each layer goes as soon as it is there", _MHA, Side(tp=2), Side(), _USUAL, layerwise=True),
    Case(
        "staging-tp2-1",
        "slices of 128 bytes, gathered, sent in one run, scattered",
        _FEW,
        Side(tp=2),
        Side(),
        _USUAL,
        staging=True,
    ),
    Case("staging-tp1-2", "the same, cut on prefill", _FEW, Side(), Side(tp=2), _USUAL, staging=True),
    Case("page1", "pages of one token", _MHA, Side(page_size=1), Side(page_size=1), around(1, 64), chunk=48),
    Case(
        "page64",
        "pages of 64 tokens, K and V in one buffer",
        Model(fused=True),
        Side(page_size=64),
        Side(page_size=64),
        around(64, 2),
    ),
    Case(
        "page16-64",
        "four pages become one; the last one of decode is filled in part",
        _MHA,
        Side(page_size=16),
        Side(page_size=64),
        (*around(64, 2), 16 * 6 + 1),
        chunk=3,
    ),
    Case(
        "mla-page16-64",
        "latents that are cut in tokens go into longer pages",
        _MLA_TOKENS,
        Side(page_size=16),
        Side(page_size=64),
        (*around(64, 2), 16 * 6 + 1),
        chunk=3,
    ),
    Case(
        "dsa-prefix",
        "index keys as KV, layer by layer: of pages that decode has already none travels",
        _DSA,
        Side(tp=2),
        Side(tp=2),
        _USUAL,
        prefix_tokens=32,
        layerwise=True,
    ),
    Case("dsa-cp2-1", "index keys as KV: each rank has half of them", _DSA, Side(cp=2), Side(), _USUAL),
    Case(
        "dsa-page16-64",
        "index keys as KV go into longer pages",
        _DSA,
        Side(page_size=16),
        Side(page_size=64),
        (*around(64, 2), 16 * 6 + 1),
        chunk=3,
    ),
)

CASES: dict[str, Case] = {case.name: case for case in (*_PLAIN, *_PARALLEL, *_STATE, *_SENDING)}
"""Every named shape, in the order of docs/topologies.md."""
