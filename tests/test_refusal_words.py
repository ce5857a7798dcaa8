"""Every refusal of layouts, regions, memories, shards, manifests and registrations, word for word.

This is what a caller reads in a traceback and an operator in a log: the field, what is wrong, and the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from samples import dense, huge, layout

from kvrooms.protocol.errors import InvalidArgument, WireError
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
)
from kvrooms.protocol.manifest import Manifest, check_manifest, page_indices, state_indices
from kvrooms.protocol.memory import Buffer, Component, Memory
from kvrooms.protocol.registration import (
    MAX_BODY,
    Registration,
    check_bootstrap,
    check_instance,
    check_rank,
    decode_announcement,
    decode_record,
    encode_announcement,
    encode_record,
    parse_address,
    parse_incarnation,
)
from kvrooms.protocol.shares import Covers
from kvrooms.protocol.split import check_shards, split

Refusals = dict[str, Callable[[], object]]

K = BufferSpec(0, "k", 64, "uint8")
TOKEN = AuxSpec("token", 4, "int32")
CONV = ComponentSpec("conv", "mamba", Owed.ALWAYS, (K,))
SHARD = Shard(0, 2, 16, 2, 8, 8, 0, 4)  # ends at 32 of 64


def of_shard(shard: Shard) -> Layout:
    """A layout whose only buffer has this shard."""
    return Layout(16, (replace(K, shards=(shard,)),), (), ())


LAYOUTS: Refusals = {
    "layout.kv: the same layer and role stand there twice": lambda: check_layout(Layout(16, (K, K), (), ())),
    "layout.state.conv: the same layer and role stand there twice": lambda: check_layout(
        Layout(16, (), (), (replace(CONV, buffers=(K, K)),))
    ),
    "layout.kv: layer 0 k: a shard ends at 65 of 64": lambda: check_layout(of_shard(replace(SHARD, offset=33))),
    "layout.kv: layer 0 k: unit 4 of 4 in all": lambda: check_layout(of_shard(replace(SHARD, first=3))),
    "layout.state.conv: layer 0 k: unit 9 of 4 in all": lambda: check_layout(
        Layout(16, (), (), (replace(CONV, buffers=(replace(K, shards=(SHARD, replace(SHARD, first=8))),)),))
    ),
    "layout.aux: a name stands twice in ['token', 'token']": lambda: check_layout(Layout(16, (), (TOKEN, TOKEN), ())),
    "layout.state: a name stands twice in ['conv', 'conv']": lambda: check_layout(Layout(16, (), (), (CONV, CONV))),
}

FITTED = layout(Owed.ALWAYS)
FIT = Regions((Region(0, 9),) * 2, (Region(10, 3),) * 2, ((Region(20, 5),),))


def regions(**changes: Any) -> None:
    """Look at the regions that fit, but for these changes."""
    check_regions(FITTED, replace(FIT, **changes))


REGIONS: Refusals = {
    "regions.state: 2 components, the layout has 1": lambda: regions(state=FIT.state * 2),
    f"regions: more than {ITEMS_MAX} items in all": lambda: regions(
        kv=(Region(0, ITEMS_MAX // 2 - 5), Region(0, ITEMS_MAX // 2 - 4))
    ),
    "regions.kv: 1 buffers, the layout has 2": lambda: regions(kv=FIT.kv[:1]),
    "regions.aux: 3 buffers, the layout has 2": lambda: regions(aux=FIT.aux[:1] * 3),
    "regions.state.conv: 0 buffers, the layout has 1": lambda: regions(state=((),)),
    "regions.kv: its buffers differ in items, memory or device": lambda: regions(kv=(Region(0, 9), Region(0, 8))),
    f"regions.kv: address {2**64 - 64 * 9} and 9 items leave the address space": lambda: regions(
        kv=(Region(0, 9), Region(2**64 - 64 * 9, 9))
    ),
}


def array(items: int = 4, width: int = 8) -> Any:
    return np.zeros((items, width), np.float32)


def tensor(kind: str = "cuda", index: int | None = 0, held: int | None = None, offset: int = 0) -> Any:
    """A tensor of 4 items of 16 bytes as it looks on a device; held: bytes of its storage."""
    storage = {} if held is None else {"untyped_storage": lambda: SimpleNamespace(nbytes=lambda: held)}
    return SimpleNamespace(
        data_ptr=lambda: 4096, is_contiguous=lambda: True, device=SimpleNamespace(type=kind, index=index),
        element_size=lambda: 2, dtype="torch.bfloat16", shape=(4, 8), storage_offset=lambda: offset,
        numel=lambda: 32, **storage,
    )  # fmt: skip


def kv(*buffers: Any, **more: Any) -> Memory:
    return Memory(16, [one if isinstance(one, Buffer) else Buffer(0, "k", one) for one in buffers], **more)


def component(name: Any = "conv", kind: Any = "mamba", owed: Any = "always", buffers: Any = None) -> Component:
    return Component(name, kind, owed, [Buffer(0, "k", array())] if buffers is None else buffers)


def several(count: int, make: Callable[[int], Any]) -> list[Any]:
    return [make(number) for number in range(count)]


READ_ONLY = array()
READ_ONLY.flags.writeable = False
LONG = f"must be a string of 1 to {NAME_MAX} characters"
OWED = 'must be "always" or "when_indexed"'
MEMORIES: Refusals = {
    "page_size: must be between 1 and 1048576 (got 0)": lambda: Memory(0),
    "page_size: must be between 1 and 1048576 (got 1048577)": lambda: Memory(2**20 + 1),
    "kv[layer 0 k]: the array is read-only (got (4, 8))": lambda: kv(READ_ONLY),
    "kv[layer 0 k]: must have a plain element type in native byte order (got '>i4')": lambda: kv(np.zeros(4, ">i4")),
    "kv[layer 0 k]: must have a plain element type in native byte order (got '|O')": lambda: kv(np.array([[None]])),
    "kv[layer 0 k]: only cpu and cuda tensors can be registered (got 'meta')": lambda: kv(tensor("meta")),
    "kv[layer 0 k]: the tensor's storage was freed, or has fewer bytes than it (got 63)": lambda: kv(tensor(held=63)),
    "kv[layer 0 k]: the tensor's storage was freed, or has fewer bytes than it (got 65)": lambda: kv(
        tensor(held=65, offset=1)
    ),
    "kv[layer 0 k]: must be a numpy array or a torch tensor (got 'list')": lambda: kv([1]),
    "aux[token]: must be a numpy array or a torch tensor (got 'NoneType')": lambda: Memory(1, aux={"token": None}),
    "kv[layer 0 k]: must be a numpy array or a torch tensor (got 'SimpleNamespace')": lambda: kv(
        SimpleNamespace(data_ptr=1)
    ),
    "kv[layer 0 k]: must have at least one item of at least one element (got ())": lambda: kv(np.zeros(())),
    "kv[layer 0 k]: must have at least one item of at least one element (got (3, 0))": lambda: kv(np.zeros((3, 0))),
    "kv[layer 0 k]: must be contiguous (got (2, 8))": lambda: kv(array()[::2]),
    f"kv[layer 0 k]: may have at most {ITEMS_MAX} items (got ({ITEMS_MAX + 1},))": lambda: kv(huge()),
    f"kv, aux, state: may have at most {ITEMS_MAX} items in all together (got {ITEMS_MAX + 1})": lambda: kv(
        huge()[:-1], aux={"token": array(1, 1)}
    ),
    f"kv: may have at most {BUFFERS_MAX} buffers (got {BUFFERS_MAX + 1})": lambda: kv(
        *several(BUFFERS_MAX + 1, lambda n: Buffer(n, "k", READ_ONLY))
    ),
    f"aux: may have at most {AUX_MAX} buffers (got {AUX_MAX + 1})": lambda: Memory(
        1, aux={str(n): READ_ONLY for n in range(AUX_MAX + 1)}
    ),
    f"state: may have at most {COMPONENTS_MAX} components (got {COMPONENTS_MAX + 1})": lambda: Memory(
        1, state=several(COMPONENTS_MAX + 1, lambda n: component(str(n)))
    ),
    "kv.layer: must be between 0 and 2147483648 (got -1)": lambda: kv(Buffer(-1, "k", array())),
    "kv.layer: must be between 0 and 2147483648 (got 2147483649)": lambda: kv(Buffer(2**31 + 1, "k", array())),
    f"kv.role: {LONG} (got '')": lambda: kv(Buffer(0, "", array())),
    f"kv.role: {LONG} (got 7)": lambda: kv(Buffer(0, 7, array())),  # type: ignore[arg-type]
    f"aux: {LONG} (got 7)": lambda: Memory(1, aux={7: array()}),  # type: ignore[dict-item]
    f"state.name: {LONG} (got '')": lambda: Memory(1, state=[component("")]),
    f"state[conv].kind: {LONG} (got None)": lambda: Memory(1, state=[component(kind=None)]),
    f"state[conv].role: {LONG} (got '')": lambda: Memory(1, state=[component(buffers=[Buffer(0, "", array())])]),
    f"state[conv].owed: {OWED} (got 'sometimes')": lambda: Memory(1, state=[component(owed="sometimes")]),
    "state[conv]: must have at least one buffer (got [])": lambda: Memory(1, state=[component(buffers=[])]),
    "state: names a component twice (got ['conv', 'conv'])": lambda: Memory(1, state=[component(), component()]),
    "kv: names the same layer and role twice (got ['layer 0 k', 'layer 0 k'])": lambda: kv(array(), array()),
    "kv[layer 0 v]: must have 4 items like the buffers beside it (got 5)": lambda: kv(
        array(4), Buffer(0, "v", array(5))
    ),
    "aux[b]: must have 4 items like the buffers beside it (got 5)": lambda: Memory(
        1, aux={"a": array(4), "b": array(5)}
    ),
    "kv[layer 0 v]: must live in VRAM 3 like the buffers beside it (got 'DRAM 0')": lambda: kv(
        tensor(index=3), Buffer(0, "v", array())
    ),
    "aux[b]: must live in VRAM 0 like the buffers beside it (got 'VRAM 1')": lambda: Memory(
        1, aux={"a": tensor(index=None), "b": tensor(index=1)}
    ),
    "kv[layer 0 k].shards: must be a tuple of Shard (got 5)": lambda: kv(Buffer(0, "k", array(), 5)),  # type: ignore[arg-type]
}

CELLS = np.zeros((7, 17, 4, 8), np.uint8)
GOOD = Shard(0, 16, 32, 4, 8, 8, 4, 8)


def shards(*some: Any, length: int = 512, page_size: int | None = 16) -> object:
    return check_shards("shards", some, length, page_size)


SHARDS: Refusals = {
    "axis: must be between 1 and 3 (got 0)": lambda: split(CELLS, 0),
    "axis: must be between 1 and 3 (got 4)": lambda: split(CELLS, 4),
    "rows: must be between 1 and 3 (got 0)": lambda: split(CELLS, 1, rows=0),
    "rows: must be between 1 and 3 (got 4)": lambda: split(CELLS, 1, rows=4),
    "rows: is the dimension that is split (got 2)": lambda: split(CELLS, 2, rows=2),
    "groups: are given with `first` or `total`, which each group has for itself (got [(4, 0, 4)])": lambda: split(
        CELLS, 2, total=0, groups=[(4, 0, 4)]
    ),
    "groups: must have 4 entries in all, as dimension 2 has (got 3)": lambda: split(CELLS, 2, groups=[(3, 0, 4)]),
    "array: must be a numpy array or a torch tensor (got 'list')": lambda: split([1, 2], 1),
    "array: must be a numpy array or a torch tensor (got 'SimpleNamespace')": lambda: split(
        SimpleNamespace(shape=(3, 4)), 1
    ),
    "array: must have items, and at least one dimension of an item (got (3,))": lambda: split(np.zeros(3), 1),
    "array: must have items, and at least one dimension of an item (got (0, 3))": lambda: split(np.zeros((0, 3)), 1),
    "groups[0]: must be (entries, first, total) (got 4)": lambda: split(CELLS, 2, groups=[4]),  # type: ignore[list-item]
    "groups[0]: must be (entries, first, total) (got 'abc')": lambda: split(CELLS, 2, groups=["abc"]),  # type: ignore[list-item]
    "groups[1]: must be (entries, first, total) (got (4, 0))": lambda: split(
        CELLS,
        2,
        groups=[(3, 0, 3), (4, 0)],  # type: ignore[list-item]
    ),
    f"groups[0]: entries: must be between 1 and {2**24} (got 0)": lambda: split(CELLS, 2, groups=[(0, 0, 4)]),
    f"groups[0]: entries: must be between 1 and {2**24} (got {2**24 + 1})": lambda: split(
        CELLS, 2, groups=[(2**24 + 1, 0, 4)]
    ),
    f"groups[0]: first: must be between 0 and {2**24} (got -1)": lambda: split(CELLS, 2, first=-1),
    f"groups[0]: first: must be between 0 and {2**24} (got {2**24 + 1})": lambda: split(CELLS, 2, first=2**24 + 1),
    f"groups[0]: total: must be between 1 and {2**24} (got 0)": lambda: split(CELLS, 2, total=0),
    f"groups[0]: total: must be between 1 and {2**24} (got {2**24 + 1})": lambda: split(CELLS, 2, total=2**24 + 1),
    "shards: shard 0.total: unit 8 of this rank is not one of so many (got 8)": lambda: split(
        CELLS, 2, rows=1, first=5, total=8
    ),
    "shards: must be a tuple of Shard (got (1,))": lambda: shards(1),
    f"shards: may have at most {SHARDS_MAX} shards (got {SHARDS_MAX + 1})": lambda: shards(*[GOOD] * (SHARDS_MAX + 1)),
    "shards: shard 1.offset: must be between 0 and 1099511627776 (got -1)": lambda: shards(
        replace(GOOD, rows=1), replace(GOOD, offset=-1)
    ),
    "shards: shard 0.total: unit 8 of this rank is not one of so many (got 7)": lambda: shards(
        replace(GOOD, first=5, total=7)
    ),
    "shards: shard 0: ends behind the 511 bytes of an item (got 512)": lambda: shards(GOOD, length=511),
    "shards: shard 0.rows: must be 8, a page's tokens, or 1 where it is the page as a whole (got 16)": lambda: shards(
        GOOD, page_size=8
    ),
    f"shards: shard 0: may have at most {2**22} cells in an item (got {2**22 + 1})": lambda: shards(
        Shard(0, 1, 0, 2**22 + 1, 1, 1, 0, 2**24), length=2**30
    ),
    "shards: is a byte of an item that begins a cell and lies in another (got 8)": lambda: shards(
        replace(GOOD, unit_bytes=9, rows=1)
    ),
    "shards: is a byte of an item that begins a cell and lies in another (got 16)": lambda: shards(
        Shard(0, 2, 16, 1, 0, 8, 0, 1), Shard(16, 1, 0, 1, 0, 8, 0, 1), page_size=None
    ),
}

TWO = layout(Owed.WHEN_INDEXED, Owed.ALWAYS)
SHARE = Covers(True, ("logprob",), ("swa",), cp_rank=1, cp_size=2)


def peer(*fields: Any, fitted: Layout = TWO, covers: Covers | None = None) -> None:
    check_manifest(fitted, Manifest(*fields), covers)


MANIFESTS: Refusals = {
    "manifest.kv: intervals must be sorted, disjoint, non-adjacent and not empty": lambda: peer(4, ((2, 2),), (), ()),
    "manifest.kv: position 4 of a prompt of 4 pages": lambda: peer(4, ((0, 1), (3, 5)), (), ()),
    "manifest.kv: pages are owed, but the layout has no KV buffers": lambda: peer(
        4, ((0, 4),), (), (), fitted=layout(kv=0)
    ),
    "manifest.kv: ((1, 4),) is not this rank's part of 4 pages": lambda: peer(4, ((1, 4),), (), (), covers=SHARE),
    "manifest.aux: ['token'] is not the layout's ['token', 'logprob']": lambda: peer(4, (), ("token",), ()),
    "manifest.aux: ['token'] is not the layout's ['logprob']": lambda: peer(4, (), ("token",), (), covers=SHARE),
    "manifest.state: ['swa', 'conv'] is not in the layout's order ['conv', 'swa']": lambda: peer(
        4, (), (), (("swa", 1), ("conv", 1))
    ),
    "manifest.state: ['conv'] is not in the layout's order ['swa']": lambda: peer(
        4, (), (), (("conv", 1),), covers=SHARE
    ),
    "pages: must be between 0 and 8 (got 9)": lambda: page_indices("pages", [0, 9], 9),
    "pages: must be between 0 and 8 (got -1)": lambda: page_indices("pages", np.array([-1, 9]), 9),
    "pages: there are no items (got 1)": lambda: page_indices("pages", [0, 1], 0),
    "pages: must be indices: an iterable of integers or None (got 5)": lambda: page_indices("pages", 5, 9),
    "pages: must be indices: an iterable of integers or None (got '5')": lambda: page_indices("pages", "5", 9),
    "pages: must be indices: an iterable of integers or None (got b'5')": lambda: page_indices("pages", b"5", 9),
    "pages: must have at least one dimension (got array(3))": lambda: page_indices("pages", np.array(3), 9),
    "pages: must be an integer (got 1.5)": lambda: page_indices("pages", [0, 1.5], 9),
    "pages: must be between 0 and 8 (got np.int64(9))": lambda: page_indices("pages", [np.int64(0), np.int64(9)], 9),
    "state_indices: indices were given although skip_state is set (got [[1]])": lambda: state_indices(
        dense(1), [[1]], (4,), skip_state=True
    ),
    "state_indices: component 'swa' is owed always and has no indices (skip_state unset) (got None)": lambda: (
        state_indices(TWO, [[1], []], (4, 4))
    ),
    "state_indices: no such component; the layout has ['conv', 'swa'] (got 'x')": lambda: state_indices(
        TWO, {"x": []}, (4, 4)
    ),
    "state_indices: flat indices need exactly one component, not 2 (got [0, 1])": lambda: state_indices(
        TWO, [0, 1], (4, 4)
    ),
    "state_indices[2]: the layout has 2 state components (got [7])": lambda: state_indices(
        TWO, [[0], [1], [7]], (4, 4)
    ),
    "state_indices[3]: the layout has 2 state components (got [7])": lambda: state_indices(
        TWO, [[0], [1], [], [7]], (4, 4)
    ),
    "state_indices[1]: must be indices: an iterable of integers or None (got 'a')": lambda: state_indices(
        TWO, [[0], "a"], (4, 4)
    ),
    "state_indices[swa]: must be indices: an iterable of integers or None (got 'a')": lambda: state_indices(
        TWO, {"swa": "a"}, (4, 4)
    ),
    "state_indices[swa]: must be between 0 and 4 (got 5)": lambda: state_indices(TWO, [[3], [5]], (4, 5)),
    "state_indices: must be indices: an iterable of integers or None (got 7)": lambda: state_indices(TWO, 7, (4, 5)),
}

ENGINE = Registration("p", 0, "host:1", 7, 16, "ab", 30.0)
RANK = Rank(Layout(16, (K,), (), ()))
PORT = "http://host:1"
ADDRESS = 'a control channel\'s "host:port" is expected, with a port from 1 to 65535'
HEX = "16 lower-case hexadecimal digits are expected, not all zero"


def announced(rank: int = 0, **changes: Any) -> object:
    """What a registry makes of an announcement with these changes."""
    said = json.loads(encode_announcement(ENGINE))
    return decode_announcement("p", rank, json.dumps({**said, **changes}).encode())


def recorded(**changes: Any) -> object:
    """What an engine makes of a registry's answer with these changes."""
    return decode_record(json.dumps({**json.loads(encode_record(ENGINE, 1.0)), **changes}).encode())


def member(rank: int, ranks: int, one: Rank | None) -> object:
    return decode_announcement("p", rank, encode_announcement(replace(ENGINE, ranks=ranks, member=one)))


REGISTRATIONS: Refusals = {
    "instance: 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or a digit (got '-')": lambda: check_instance("-"),
    "rank: must be between 0 and 65535 (got 65536)": lambda: check_rank(65_536),
    "rank: must be between 0 and 65535 (got -1)": lambda: check_rank(-1),
    f"incarnation: {HEX}": lambda: parse_incarnation("0" * 16),
    f"address: {ADDRESS}": lambda: parse_address("host:0"),
    "bootstrap: no URL: Port out of range 0-65535 (got 'http://host:65536')": lambda: check_bootstrap(
        "http://host:65536"
    ),
    "bootstrap: a URL like http://host:port is expected (got 'host:1')": lambda: check_bootstrap("host:1"),
    "bootstrap: the URL names no host (got 'http://:1')": lambda: check_bootstrap("http://:1"),
    "bootstrap: port 0 cannot be reached (got 'http://host:0')": lambda: check_bootstrap("http://host:0"),
    "bootstrap: the URL must not carry a user or a password (got 'http://me@host:1')": lambda: check_bootstrap(
        "http://me@host:1"
    ),
    "bootstrap: the URL must end after the port (got 'http://host:1/v1')": lambda: check_bootstrap(f"{PORT}/v1"),
    "bootstrap: the URL must end after the port (got 'http://host:1/?x=1')": lambda: check_bootstrap(f"{PORT}/?x=1"),
    "bootstrap: the URL must be printable ASCII without spaces (got 'http://ho st:1')": lambda: check_bootstrap(
        "http://ho st:1"
    ),
    "bootstrap: the URL must be printable ASCII without spaces (got 'http://ho\\x7fst:1')": lambda: check_bootstrap(
        "http://ho\x7fst:1"
    ),
    "member: rank 2 of 2 must say what it has": lambda: member(2, 2, RANK),
    "member: rank 1 of 2 must say what it has": lambda: member(1, 2, None),
    "member: part 2 of 2 of a prompt": lambda: member(0, 1, Rank(RANK.layout, 2, 2)),
    "layout.kv: the same layer and role stand there twice": lambda: member(0, 1, Rank(Layout(16, (K, K), (), ()))),
    "address: Expected `str`, got `int` - at `$.address`": lambda: announced(address=5),
    "page_size: Expected `int` >= 1 - at `$.page_size`": lambda: announced(page_size=0),
    "x: Object contains unknown field `x`": lambda: announced(x=1),
    "body: Expected `object`, got `array`": lambda: decode_record(b"[]"),
    "address: Object missing required field `address`": lambda: decode_announcement("p", 0, b"{}"),
    "rank: Expected `int` >= 0 - at `$.rank`": lambda: recorded(rank=-1),
    f"body: longer than {MAX_BODY} bytes": lambda: decode_record(b" " * (MAX_BODY + 1)),
    "body: no JSON: Input data was truncated": lambda: decode_record(b" " * MAX_BODY),
}


ALL = [
    pytest.param(call, words, id=words)
    for table in (LAYOUTS, REGIONS, MEMORIES, SHARDS, MANIFESTS, REGISTRATIONS)
    for words, call in table.items()
]


@pytest.mark.parametrize(("call", "words"), ALL)
def test_what_is_refused_and_in_which_words(call: Callable[[], object], words: str) -> None:
    with pytest.raises((InvalidArgument, WireError)) as caught:
        call()
    assert str(caught.value) == words
