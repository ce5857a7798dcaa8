"""What is still accepted: layouts, memories, shards and registrations at their limits, and what is read from them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from samples import huge, layout

from kvrooms.protocol.errors import WireError
from kvrooms.protocol.identity import AUX_MAX, BUFFERS_MAX, COMPONENTS_MAX, ITEMS_MAX, NAME_MAX, SHARDS_MAX
from kvrooms.protocol.layout import (
    AuxSpec,
    BufferSpec,
    ComponentSpec,
    Layout,
    Owed,
    Rank,
    Region,
    Regions,
    Shard,
    check_layout,
    check_regions,
    differences,
)
from kvrooms.protocol.memory import Buffer, Component, Memory
from kvrooms.protocol.registration import (
    Registration,
    check_bootstrap,
    check_rank,
    decode_announcement,
    decode_record,
    decode_refusal,
    encode_announcement,
    encode_record,
    parse_address,
    parse_incarnation,
    printable,
)
from kvrooms.protocol.split import check_shards, split

SHARD = Shard(3, 2, 100, 5, 10, 4, 7, 12)  # rows at 3 and 103; units at 0, 10, 20, 30, 40; the last ends at 147
K = BufferSpec(0, "k", 147, "uint8", (SHARD,))
TOKEN = AuxSpec("token", 4, "int32")
CONV = ComponentSpec("conv", "mamba", Owed.ALWAYS, (K,))
WHOLE = Layout(16, (K,), (TOKEN,), (CONV,))


# -- layouts and regions ---------------------------------------------------------------------------------------------


def test_where_a_shard_ends_and_what_is_in_no_cell() -> None:
    assert SHARD.end == 147
    assert K.padding == 147 - 2 * 5 * 4
    assert K.parts == (SHARD,)
    plain = replace(K, shards=())
    assert plain.parts == (Shard(0, 1, 0, 1, 0, 147, 0, 1),)
    assert plain.padding == 0
    two = replace(K, item_length=90, shards=(replace(SHARD, rows=1), replace(SHARD, rows=1, offset=50)))
    assert two.padding == 90 - 2 * 5 * 4


def test_a_layout_is_padded_where_one_of_its_buffers_is() -> None:
    plain = replace(K, shards=())
    assert WHOLE.padded
    assert replace(WHOLE, kv=(plain,)).padded
    assert replace(WHOLE, state=(replace(CONV, buffers=(plain, K)),), kv=()).padded
    assert not replace(WHOLE, kv=(plain,), state=(replace(CONV, buffers=(plain,)),)).padded


def test_a_shard_may_end_with_its_item_and_with_the_units_there_are() -> None:
    check_layout(WHOLE)
    check_layout(Layout(16, (K, replace(K, layer=1), replace(K, role="v")), (), ()))  # one of layer and role may recur
    assert len(WHOLE.digest) == 16


def test_regions_on_the_host() -> None:
    host, device = Region(0, 4), Region(0, 4, "VRAM")
    assert Regions((host,), (host,), ((host,),)).on_host
    for one in (((device,), (), ()), ((), (host, device), ()), ((), (), ((host,), (device,)))):
        assert not Regions(*one).on_host


def test_as_many_items_as_there_may_be() -> None:
    pages = (ITEMS_MAX - 5) // 2
    full = Regions((Region(0, pages),) * 2, (Region(0, 1),) * 2, ((Region(0, 3),),))
    assert sum(region.items for region in full.in_order()) == ITEMS_MAX
    check_regions(layout(Owed.ALWAYS), full)


def test_the_slots_of_one_aux_buffer() -> None:
    one = Regions((), (Region(0, 3),), ())
    assert (one.aux_slots, one.pages) == (3, 0)


def test_what_differs_is_said_in_full() -> None:
    v = replace(K, role="v", shards=())
    other = Layout(32, (replace(K, shards=()), v), (TOKEN, AuxSpec("logprob", 8, "float64")), ())
    assert differences(WHOLE, other) == (
        "page size: ours is 16 tokens, the peer's 32",
        "kv: we have 1 buffers, the peer 2",
        "aux: ours is [token: int32, 4 bytes], the peer's [token: int32, 4 bytes, logprob: float64, 8 bytes]",
        "state components: ours are ['conv'], the peer's []",
    )
    state = replace(CONV, kind="conv", owed=Owed.WHEN_INDEXED, buffers=(replace(K, layer=1),))
    assert differences(WHOLE, replace(WHOLE, kv=(replace(K, shards=()),), state=(state,))) == (
        f"kv layer 0 k: our shards are {(SHARD,)}, the peer's ()",
        "state component 'conv': our kind is 'mamba', the peer's 'conv'",
        "state component 'conv': we owe it always, the peer when_indexed",
        "state component 'conv': our layer 0 k stands where the peer has layer 1 k",
    )
    longer, wider = (replace(WHOLE, kv=(replace(K, **one),)) for one in ({"item_length": 148}, {"dtype": "int8"}))
    assert differences(WHOLE, longer) == ("kv layer 0 k: our items have 147 bytes, the peer's 148",)
    assert differences(WHOLE, wider) == ("kv layer 0 k: our element type is uint8, the peer's int8",)


# -- memories --------------------------------------------------------------------------------------------------------


def array(items: int = 4) -> Any:
    return np.zeros((items, 8), np.float32)


def test_a_memory_of_as_many_buffers_as_there_may_be() -> None:
    one = array()
    assert len(Memory(1, [Buffer(n, "k", one) for n in range(BUFFERS_MAX)]).layout.kv) == BUFFERS_MAX
    assert len(Memory(1, aux={str(n): one for n in range(AUX_MAX)}).layout.aux) == AUX_MAX
    state = [Component(str(n), "m", "always", [Buffer(0, "k", one)]) for n in range(COMPONENTS_MAX)]
    assert len(Memory(1, state=state).layout.state) == COMPONENTS_MAX


def test_a_memory_with_the_longest_names_and_the_largest_numbers() -> None:
    name = "n" * NAME_MAX
    state = [Component(name, name, "when_indexed", [Buffer(2**31, name, array())])]
    memory = Memory(2**20, [Buffer(0, "k", array())], {name: array()}, state)
    assert memory.layout == Layout(
        2**20,
        (BufferSpec(0, "k", 32, "float32"),),
        (AuxSpec(name, 32, "float32"),),
        (ComponentSpec(name, name, Owed.WHEN_INDEXED, (BufferSpec(2**31, name, 32, "float32"),)),),
    )
    assert Memory(1, [Buffer(0, "k", array(1))]).regions.pages == 1
    assert Memory(1, [Buffer(0, "k", huge()[:-1])]).regions.pages == ITEMS_MAX


def test_a_tensor_whose_storage_ends_with_it() -> None:
    """As many bytes as it needs, and not one more; and one of a kind that tells nothing of its storage."""

    def tensor(**more: Any) -> Any:
        return SimpleNamespace(
            data_ptr=lambda: 4096, is_contiguous=lambda: True, device=SimpleNamespace(type="cuda", index=3),
            element_size=lambda: 2, dtype="torch.bfloat16", shape=(4, 3, 5), storage_offset=lambda: 2,
            numel=lambda: 60, **more,
        )  # fmt: skip

    exact = {"untyped_storage": lambda: SimpleNamespace(nbytes=lambda: 124)}
    for one in (tensor(), tensor(**exact)):
        memory = Memory(1, [Buffer(0, "k", one)])
        assert memory.layout.kv == (BufferSpec(0, "k", 30, "bfloat16"),)
        assert memory.regions.kv == (Region(4096, 4, "VRAM", 3),)


# -- shards ----------------------------------------------------------------------------------------------------------


def test_shards_at_their_limits() -> None:
    single = Shard(0, 1, 0, 1, 0, 1, 0, 2**24)
    for one in (replace(single, first=2**24 - 1), replace(single, unit_bytes=2**40), replace(single, offset=2**40)):
        assert check_shards("shards", (one,), 2**42) == (one,)
    apart = Shard(0, 2, 2**40, 2, 2**39, 2**39, 0, 2)  # cells that touch, two to a row
    assert check_shards("shards", [apart], apart.end) == (apart,)
    most = [replace(single, offset=n) for n in range(SHARDS_MAX)]
    assert check_shards("shards", most, SHARDS_MAX) == tuple(most)
    rows = Shard(0, 16, 32, 4, 8, 8, 4, 8)
    assert check_shards("shards", (rows,), 512, 16) == (rows,)
    assert check_shards("shards", (replace(rows, rows=1),), 512, 16) == (replace(rows, rows=1),)
    cells = Shard(0, 1, 0, 2**22, 1, 1, 0, 2**22)
    assert check_shards("shards", (cells,), 2**22) == (cells,)
    assert check_shards("shards", (), 1) == ()


def test_dimensions_before_and_behind_the_one_that_is_split() -> None:
    """Of [items, 2, rows, 3, axis, 5]: every index of the other dimensions before the inner one has its shard."""
    tensor = np.zeros((7, 2, 4, 3, 6, 5), np.int16)
    strides = tensor.strides
    found = split(tensor, 4, first=6, total=18, rows=2)
    assert found == tuple(
        Shard(i * strides[1] + j * strides[3], 4, strides[2], 6, strides[4], strides[4], 6, 18)
        for i in range(2)
        for j in range(3)
    )
    groups = split(tensor, 2, rows=4, groups=((1, 0, 2), (3, 3, 9)))
    assert groups[0] == Shard(0, 6, strides[4], 1, strides[2], strides[4], 0, 2)
    assert groups[6] == Shard(strides[2], 6, strides[4], 3, strides[2], strides[4], 3, 9)
    assert [shard.offset for shard in groups[6:8]] == [strides[2], strides[2] + strides[3]]
    assert len(groups) == 2 * 2 * 3


# -- registrations ---------------------------------------------------------------------------------------------------


MEMBER = Rank(WHOLE, 1, 2)
ENGINE = Registration("prefill", 3, "host:1", 0xFEDCBA9876543210, 16, "ab:12", 0.5, 4, MEMBER)


def test_a_registration_of_one_of_several_ranks_on_the_wire() -> None:
    said, record = json.loads(encode_announcement(ENGINE)), json.loads(encode_record(ENGINE, 1.5))
    assert {**said, "member": None} == {
        "address": "host:1", "incarnation": "fedcba9876543210", "page_size": 16, "layout_digest": "ab:12",
        "ttl_s": 0.5, "ranks": 4, "member": None,
    }  # fmt: skip
    assert record == {**said, "instance": "prefill", "rank": 3, "expires_in_s": 1.5}
    assert decode_announcement("prefill", 3, encode_announcement(ENGINE)) == ENGINE
    assert decode_record(encode_record(ENGINE, 1.5)) == ENGINE
    assert json.loads(encode_record(ENGINE, -0.25))["expires_in_s"] == 0
    alone = replace(ENGINE, ranks=1, rank=9, member=None)
    assert decode_announcement("prefill", 9, encode_announcement(alone)) == alone


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": "host:0"}, "address: "),
        ({"incarnation": "0" * 16}, "incarnation: "),
        ({"ranks": 3}, "member: rank 3 of 3 must say what it has"),
        ({"member": None}, "member: rank 3 of 4 must say what it has"),
    ],
)
def test_an_announcement_and_a_record_are_looked_at_alike(change: dict[str, Any], words: str) -> None:
    said, record = (json.loads(one) for one in (encode_announcement(ENGINE), encode_record(ENGINE, 1.5)))
    for look in (
        lambda: decode_announcement("prefill", 3, json.dumps({**said, **change}).encode()),
        lambda: decode_record(json.dumps({**record, **change}).encode()),
    ):
        with pytest.raises(WireError) as caught:
            look()
        assert str(caught.value).startswith(words)


def test_values_of_a_registration_at_their_limits() -> None:
    assert [check_rank(rank) for rank in (0, 65_535)] == [0, 65_535]
    assert [parse_address(one) for one in ("h:1", "h:65535")] == [("h", 1), ("h", 65_535)]
    assert parse_incarnation("0" * 15 + "1") == 1
    assert check_bootstrap("http://~!:1") == "http://~!:1"
    assert printable("x" * 299 + "\n" + "y") == "x" * 299 + "?"
    assert decode_refusal(b'{"error":"no\\u0007"}') == "no?"


def test_the_samples_are_well_formed() -> None:
    check_layout(layout(Owed.ALWAYS, Owed.WHEN_INDEXED))
