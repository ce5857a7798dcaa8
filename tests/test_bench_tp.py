"""The benchmark of unequal tensor parallelism: which bytes it moves, that it looks at them, and its ratios."""

from dataclasses import replace

import pytest

from kvrooms.bench import tp
from kvrooms.bench.shapes import AUX_SLOTS
from kvrooms.bench.split import CUTS, RankPool, Split, split_of
from kvrooms.engine.ending import Ending
from kvrooms.protocol.shares import pair_up

WAYS = [(2, 1), (1, 2), (1, 1)]


def tiny(prefill, decode):
    return Split(prefill, decode, slice=16, pages=2, chunks=1, groups=3, buffers=4)


@pytest.mark.parametrize(("prefill", "decode"), tp.WAYS)
@pytest.mark.parametrize("size", tp.SLICES)
def test_a_room_has_64_mib(prefill, decode, size):
    split = split_of(prefill, decode, size)
    assert split.size == 64 * 2**20
    assert split.pages % split.chunks == 0


@pytest.mark.parametrize(("prefill", "decode"), WAYS)
def test_both_cuts_of_a_pool_have_the_same_bytes(prefill, decode):
    split = tiny(prefill, decode)
    for side in ("prefill", "decode"):
        for rank in range(split.ranks(side)):
            pool = RankPool(split, side, rank)
            memories = [pool.memory(cut) for cut in CUTS]
            first, total = (
                {memory.regions.kv[0].address for memory in memories},
                {
                    sum(
                        spec.item_length * region.items
                        for spec, region in zip(memory.layout.kv, memory.regions.kv, strict=True)
                    )
                    for memory in memories
                },
            )
            assert len(first) == len(total) == 1
            assert total.pop() * split.ranks(side) == split.size * split.groups


@pytest.mark.parametrize(("prefill", "decode"), tp.WAYS)
def test_heads_are_sliced_and_layers_are_not(prefill, decode):
    split = tiny(prefill, decode)
    for cut in CUTS:
        shares = pair_up(split.instance("prefill", cut), split.instance("decode", cut)).shares
        assert len(shares) == 2
        for share in shares.values():
            kv = [entry for entry in share.entries if not entry.name]
            assert len(kv) == split.buffers
            whole = {
                split.instance(side, cut).ranks[0].layout.kv[0].item_length == 16 * split.slice
                for side in ("prefill", "decode")
            }
            assert whole == ({True, False} if cut == "heads" else {True})


def carried(split, cut, room):
    """The pools of all decode ranks after a room that loops have copied, from the definition of the layouts."""
    senders = [RankPool(split, "prefill", rank) for rank in range(split.prefill)]
    receivers = [RankPool(split, "decode", rank) for rank in range(split.decode)]
    for pair, share in pair_up(split.instance("prefill", cut), split.instance("decode", cut)).shares.items():
        pools = senders[pair[0]], receivers[pair[1]]
        layouts = [pool.memory(cut).layout for pool in pools]
        arrays = [buffers(pool, cut) for pool in pools]
        for entry in share.entries:
            if entry.name:
                pools[1].aux[room % AUX_SLOTS] = pools[0].aux[room % AUX_SLOTS]
                continue
            shards = [
                layout.kv[index].shards[0] for layout, index in zip(layouts, (entry.source, entry.target), strict=True)
            ]
            for page in pools[0].group(room):
                for token in range(16):
                    for unit in range(entry.first, entry.stop):
                        cells = [token * s.row_stride + (unit - s.first) * s.unit_stride for s in shards]
                        source, target = arrays[0][entry.source][page], arrays[1][entry.target][page]
                        target[cells[1] : cells[1] + split.slice] = source[cells[0] : cells[0] + split.slice]
    return receivers


def buffers(pool, cut):
    return [buffer.array for buffer in pool.memory(cut)._arrays[0]]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("prefill", "decode"), WAYS)
def test_landed_is_true_for_what_was_copied(prefill, decode, cut):
    for pool in carried(tiny(prefill, decode), cut, 4):
        assert pool.landed(cut, 4)
        assert not pool.landed(cut, 5)
        buffers(pool, cut)[-1][pool.group(4)[1], 5] ^= 1
        assert not pool.landed(cut, 4)
        pool.wipe(cut, 4)
        assert not pool.landed(cut, 4)


def test_ratios_by_way():
    rows = [
        {"way": "2:1", "slice": 128, "ratio": 0.5},
        {"way": "1:2", "slice": 128, "ratio": 0.25},
        {"way": "2:1", "slice": 1024, "ratio": 0.75},
    ]
    assert tp.by_way(rows) == {"2:1": {"128": 0.5, "1024": 0.75}, "1:2": {"128": 0.25}}


@pytest.mark.nixl
def test_ranks_carry_rooms_over_nixl():
    with Ending() as ending, tp.Ranks(2, 1, ending) as ranks:
        row = tp.measure(ranks, replace(tiny(2, 1), groups=8), rooms=9, runs=1)
    assert set(row) == {"goodput_gb_s", "equal_goodput_gb_s", "ratio"}
    assert 0 < row["ratio"] < 100
