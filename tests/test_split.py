"""Shards from the shape of a tensor, and the check of those that a caller gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from kvrooms import Buffer, Component, InvalidArgument, Memory, Shard, split
from kvrooms.protocol.identity import SHARDS_MAX
from kvrooms.shapes.build import Model, Side, prefill_instance
from kvrooms.shapes.judge import ill_formed


def specs(model: Model, side: Side, rank: int) -> dict[tuple[int, str], Any]:
    """What the table of shapes says of a rank's buffers; it was written without `split`."""
    layout = prefill_instance(model, side).ranks[rank].layout
    buffers = [*layout.kv, *(buffer for component in layout.state for buffer in component.buffers)]
    return {(buffer.layer, buffer.role): buffer for buffer in buffers}


def test_heads_token_by_token() -> None:
    wanted = specs(Model(), Side(tp=2), 1)[0, "k"]
    array = torch.zeros((7, 16, 4, 32), dtype=torch.bfloat16)
    shards = split(array, axis=2, first=4, total=8, rows=1)
    assert shards == wanted.shards
    memory = Memory(16, [Buffer(0, "k", array, shards)])
    assert memory.layout.kv == (wanted,)


def test_heads_page_by_page() -> None:
    wanted = specs(Model(), Side(tp=2, head_major=True), 0)[0, "v"]
    array = np.zeros((7, 4, 16, 64), np.uint8)
    assert split(array, axis=1, total=8, rows=2) == wanted.shards


def test_keys_and_values_in_one_tensor_are_two_shards() -> None:
    wanted = specs(Model(fused=True), Side(tp=4), 3)[0, "kv"]
    array = np.zeros((7, 2, 16, 2, 64), np.uint8)
    assert split(array, axis=3, first=6, total=8, rows=2) == wanted.shards


def test_a_token_with_keys_and_values_side_by_side() -> None:
    array = np.zeros((7, 16, 2, 4, 8), np.uint8)
    shards = split(array, axis=3, first=4, total=8, rows=1)
    assert shards == (Shard(0, 16, 64, 4, 8, 8, 4, 8), Shard(32, 16, 64, 4, 8, 8, 4, 8))


def test_the_groups_of_a_convolution_position_by_position() -> None:
    model = Model(attention=(), mamba=(0,))
    wanted = specs(model, Side(tp=2), 1)[0, "conv"]
    array = np.zeros((5, 3, 6, 32), np.uint8)
    assert split(array, axis=2, rows=1, groups=[(4, 4, 8), (1, 1, 2), (1, 1, 2)]) == wanted.shards


def test_the_groups_of_a_convolution_channel_by_channel() -> None:
    model = Model(attention=(), mamba=(0,), conv_rows=1)
    wanted = specs(model, Side(tp=2), 0)[0, "conv"]
    array = np.zeros((5, 6, 16, 3), np.float16)
    shards = split(array, axis=1, groups=((4, 0, 8), (1, 0, 2), (1, 0, 2)))
    assert shards == tuple(replace(shard, row_stride=0) for shard in wanted.shards)  # there is one row


def test_recurrent_state_by_head_is_one_shard_without_rows() -> None:
    wanted = specs(Model(attention=(), mamba=(0,)), Side(tp=4), 2)[0, "ssm"]
    array = np.zeros((5, 2, 8, 16), np.float32)
    (shard,) = split(array, 1, 4, 8)
    assert shard == replace(wanted.shards[0], row_stride=0)
    memory = Memory(16, state=[Component("mamba", "mamba", "always", [Buffer(0, "ssm", array, (shard,))])])
    assert memory.layout.state[0].buffers[0].shards == (shard,)


def test_a_rank_that_has_everything_needs_no_total() -> None:
    (shard,) = split(np.zeros((5, 3), np.uint8), axis=1)
    assert (shard.units, shard.first, shard.total) == (3, 0, 3)


def test_numbers_of_numpy_become_plain_ones() -> None:
    (shard,) = split(np.zeros((5, 3), np.uint8), np.int64(1), np.int32(3), np.int64(9))
    assert [type(value) for value in (shard.first, shard.total, shard.units)] == [int, int, int]
    (given,) = Memory(1, [Buffer(0, "k", np.zeros((5, 3), np.uint8), [replace(shard, first=np.int64(3))])]).layout.kv
    assert type(given.shards[0].first) is int


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"axis": 0}, "axis"),
    ({"axis": 4}, "axis"),
    ({"axis": 2.0}, "axis"),
    ({"axis": 2, "rows": 2}, "rows"),
    ({"axis": 2, "rows": 0}, "rows"),
    ({"axis": 2, "rows": 1, "first": 5, "total": 8}, r"shards: shard 0\.total"),
    ({"axis": 2, "first": -1}, r"groups\[0\]: first"),
    ({"axis": 2, "total": 0}, r"groups\[0\]: total"),
    ({"axis": 2, "rows": 1, "total": 3}, r"shards: shard 0\.total"),
    ({"axis": 2, "groups": [(4, 0, 4)], "total": 8}, "groups"),
    ({"axis": 2, "groups": [(4, 0, 4)], "first": 1}, "groups"),
    ({"axis": 2, "groups": [(3, 0, 4)]}, "groups"),
    ({"axis": 2, "groups": [(4, 0)]}, r"groups\[0\]"),
    ({"axis": 2, "groups": [4]}, r"groups\[0\]"),
    ({"axis": 2, "groups": ["abc"]}, r"groups\[0\]"),
    ({"axis": 2, "groups": [(0, 0, 4), (4, 0, 4)]}, r"groups\[0\]: entries"),
    ({"axis": 3, "rows": 2}, "shards"),  # 1 * 16 shards of one token each would be
    ({"axis": 1, "array": [1, 2]}, "array"),
    ({"axis": 1, "array": np.zeros(3)}, "array"),
    ({"axis": 1, "array": np.zeros((3, 0))}, "array"),
]


@pytest.mark.parametrize(("arguments", "field"), WRONG)
def test_what_does_not_fit_the_tensor_is_refused_by_name(arguments: dict[str, Any], field: str) -> None:
    array = np.zeros((7, 17, 4, 8), np.uint8)
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        split(**{"array": array, **arguments})


GOOD = Shard(0, 16, 32, 4, 8, 8, 4, 8)
SHARDS: list[tuple[Any, str]] = [
    ("k", ""),
    (GOOD, ""),
    ([(0, 16, 32, 4, 8, 8, 4, 8)], ""),
    (None, ""),
    ([replace(GOOD, units=1, unit_bytes=1, offset=i) for i in range(SHARDS_MAX + 1)], ""),
    ([replace(GOOD, offset=-1)], r": shard 0\.offset"),
    ([replace(GOOD, units=0)], r": shard 0\.units"),
    ([replace(GOOD, unit_bytes=8.0)], r": shard 0\.unit_bytes"),
    ([replace(GOOD, row_stride=True)], r": shard 0\.row_stride"),
    ([replace(GOOD, rows=2**21)], r": shard 0\.rows"),
    ([GOOD, replace(GOOD, first=5)], r": shard 1\.total"),
    ([replace(GOOD, offset=1)], ": shard 0"),
    ([replace(GOOD, row_stride=33)], ": shard 0"),
    ([replace(GOOD, unit_stride=2, unit_bytes=1, row_stride=1)], ""),
    ([replace(GOOD, rows=8)], r": shard 0\.rows"),
    ([GOOD, GOOD], ""),
    ([replace(GOOD, unit_stride=4)], ""),
    ([replace(GOOD, units=3, total=7), replace(GOOD, offset=23, units=1, first=0)], ""),
    ([Shard(0, 1, 0, 2**23, 0, 1, 0, 2**23)], ": shard 0"),
]


@pytest.mark.parametrize(("shards", "field"), SHARDS)
def test_shards_that_make_no_sense_are_refused_by_name(shards: Any, field: str) -> None:
    array = np.zeros((7, 16, 4, 8), np.uint8)
    with pytest.raises(InvalidArgument, match=rf"^kv\[layer 3 k\]\.shards{field}: "):
        Memory(16, [Buffer(3, "k", array, shards)])


def test_shards_that_are_accepted_are_well_formed() -> None:
    """By the judgement of the shapes, which knows nothing of this check."""
    array = np.zeros((7, 600), np.uint8)
    for shard in (GOOD, replace(GOOD, offset=88), replace(GOOD, rows=1), Shard(3, 16, 2, 4, 40, 1, 0, 4)):
        memory = Memory(16, [Buffer(3, "k", array, (shard,))])
        assert ill_formed(memory.layout) == []
    both = (replace(GOOD, row_stride=36), replace(GOOD, offset=32, row_stride=36, unit_stride=1, unit_bytes=1))
    assert ill_formed(Memory(16, [Buffer(3, "k", array, both)]).layout) == []


def test_rows_of_state_may_be_any_number() -> None:
    array = np.zeros((7, 3, 4), np.uint8)
    component = Component("conv", "mamba", "always", [Buffer(0, "conv", array, split(array, axis=2, rows=1))])
    assert Memory(16, state=[component]).layout.state[0].buffers[0].shards[0].rows == 3


@pytest.mark.nixl
@pytest.mark.timeout(60)
def test_the_example_in_the_docs_runs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "topologies.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, "docs/topologies.md", "exec"), {})
