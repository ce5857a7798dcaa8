"""Layouts that are wrong in themselves, and pairs of instances that cannot work together: named, with both values."""

from __future__ import annotations

import pytest
from shapes_support import Aux, Buffer, Component, Instance, Layout, Rank, Shard, conv, heads, instance

from kvrooms.shapes.judge import ill_formed
from kvrooms.shapes.oracle import Pair
from kvrooms.shapes.refusals import refusals


def test_cells_that_overlap_or_leave_their_item_are_named():
    assert ill_formed(Layout(2, (heads(0, 2, 2), heads(0, 2, 2, padding=1), Buffer(1, "k", 4)))) == []
    assert ill_formed(Layout(1, state=(Component("mamba", (conv(0, 4, 0, 2),)),))) == []
    shard = Shard(0, 2, 4, 2, 2, 2, 0, 2)
    for change, words in (
        ({"offset": 1}, "leaves the item of 8 bytes"),
        ({"offset": -1}, "leaves the item"),
        ({"row_stride": 3}, "overlap"),
        ({"unit_stride": 1}, "overlap"),
        ({"first": 1}, "units 1 to 2 of 2"),
    ):
        found = ill_formed(Layout(2, (Buffer(0, "k", 8, "uint8", (shard._replace(**change),)),)))
        assert any(words in one for one in found), (change, found)
    twice = Buffer(0, "k", 8, "uint8", (shard, shard))
    assert ill_formed(Layout(2, (twice,))) == ["layer 0 k shard 1: cells overlap"]


GOOD = Layout(
    2,
    (heads(0, 2, 2), Buffer(1, "latent", 6)),
    (Aux("token", 4),),
    (Component("mamba", (conv(0, 4, 0, 2),)),),
)


def test_pairs_that_can_work_are_not_refused():
    two = instance(Layout(2, (heads(0, 1, 2),)), Layout(2, (heads(1, 1, 2),)))
    assert refusals(Pair(two, instance(Layout(2, (heads(0, 2, 2),))))) == []
    assert refusals(Pair(instance(GOOD), instance(GOOD))) == []
    assert refusals(Pair(instance(GOOD), instance(Layout(2, aux=GOOD.aux)))) == []
    by_token = Pair(instance(Layout(1, (heads(0, 1, 1, page=1),))), instance(Layout(4, (heads(0, 1, 1, page=4),))))
    assert refusals(by_token) == []
    parts = Instance((Rank(GOOD, 0, 2), Rank(Layout(2, GOOD.kv[:1]), 1, 2), Rank(Layout(2, GOOD.kv[1:]), 1, 2)))
    assert refusals(Pair(parts, instance(GOOD))) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (GOOD._replace(kv=(heads(0, 1, 2), GOOD.kv[1])), "shard 0: no prefill ranks have unit 1 of a whole prompt"),
        (GOOD._replace(kv=(heads(0, 2, 4), GOOD.kv[1])), "shard 0 total is 2, on prefill 4"),
        (GOOD._replace(kv=(heads(0, 2, 2, width=4), GOOD.kv[1])), "shard 0 unit_bytes is 2, on prefill 4"),
        (GOOD._replace(kv=(GOOD.kv[0], Buffer(1, "latent", 8))), "shard 0 unit_bytes is 6, on prefill 8"),
        (GOOD._replace(kv=(GOOD.kv[0], Buffer(1, "latent", 6, "int8"))), "dtype is uint8, on prefill int8"),
        (GOOD._replace(kv=GOOD.kv[:1]), "kv layer 1 latent: no prefill rank has it"),
        (
            GOOD._replace(kv=(GOOD.kv[0]._replace(shards=GOOD.kv[0].shards * 2), GOOD.kv[1])),
            "number of shards is 1, on",
        ),
        (
            GOOD._replace(page_size=4, kv=(heads(0, 2, 2, page=4), GOOD.kv[1])),
            "kv layer 1 latent: page_size of pages without rows (shard 0) is 2, on prefill 4",
        ),
        (GOOD._replace(kv=(Buffer(0, "k", 2, "uint8", (Shard(0, 1, 0, 1, 2, 2, 0, 2),)), GOOD.kv[1])), "rows is 2, on"),
        (GOOD._replace(aux=()), "aux token: no prefill rank has it"),
        (GOOD._replace(aux=(Aux("token", 8),)), "aux token: item_length is 4, on prefill 8"),
        (GOOD._replace(aux=(Aux("token", 4, "float32"),)), "aux token: dtype is int32, on prefill float32"),
        (GOOD._replace(state=()), "state mamba layer 3 conv: no prefill rank has it"),
        (
            GOOD._replace(state=(Component("memory", GOOD.state[0].buffers),)),
            "state mamba layer 3 conv: no prefill rank",
        ),
        (
            GOOD._replace(
                state=(
                    Component(
                        "mamba",
                        (
                            conv(0, 4, 0, 2)._replace(
                                shards=(Shard(0, 1, 0, 4, 2, 2, 0, 4), conv(0, 4, 0, 2).shards[1])
                            ),
                        ),
                    ),
                )
            ),
            "state mamba layer 3 conv: shard 0 rows is 2, on prefill 1",
        ),
    ],
)
def test_pairs_that_cannot_work_are_refused_with_the_field_and_both_values(changed, words):
    found = refusals(Pair(instance(changed), instance(GOOD)))
    assert any(words in one for one in found), found


def test_a_unit_that_only_one_part_of_a_prompt_has_is_refused():
    first, second = Layout(2, (heads(0, 2, 2),)), Layout(2, (heads(0, 1, 2),))
    pair = Pair(Instance((Rank(first, 0, 2), Rank(second, 1, 2))), instance(first))
    assert refusals(pair) == ["decode rank 0, kv layer 0 k shard 0: no prefill ranks have unit 1 of a whole prompt"]
    assert refusals(Pair(instance(first), Instance((Rank(first, 0, 2),))))[0].endswith("cp_size is 2, it must be 1")
