"""From arrays to layouts and regions: what is refused, what must be equal, and what a peer may claim."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from mutants import Mutant, dies, named
from samples import huge, layouts
from samples import layout as sample

from kvrooms.protocol import layout as lay
from kvrooms.protocol.errors import InvalidArgument, WireError
from kvrooms.protocol.identity import AUX_MAX, BUFFERS_MAX, COMPONENTS_MAX, ITEMS_MAX, NAME_MAX, U64_MAX
from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from kvrooms.protocol.memory import Buffer, Component, Memory


def array(items: int = 4, width: int = 8, dtype: Any = np.float32) -> Any:
    return np.zeros((items, width), dtype)


def fake_cuda(items: int, index: int | None) -> Any:
    """A tensor as it looks on a GPU."""
    return SimpleNamespace(
        data_ptr=lambda: 4096, is_contiguous=lambda: True, device=SimpleNamespace(type="cuda", index=index),
        element_size=lambda: 2, dtype="torch.bfloat16", shape=(items, 3, 5),
    )  # fmt: skip


def test_numpy_and_torch_say_the_same() -> None:
    ours, theirs = np.zeros((6, 2, 5), np.int16), torch.zeros((6, 2, 5), dtype=torch.int16)
    one, two = Memory(16, kv=[Buffer(0, "k", ours)]), Memory(16, kv=[Buffer(0, "k", theirs)])
    assert one.layout == two.layout == Layout(16, (BufferSpec(0, "k", 20, "int16"),), (), ())
    assert one.layout.digest == two.layout.digest
    assert one.regions.kv == (Region(ours.ctypes.data, 6, "DRAM", 0),)
    assert two.regions.kv == (Region(theirs.data_ptr(), 6, "DRAM", 0),)


def test_a_whole_memory() -> None:
    kv = [Buffer(layer, role, array(10)) for layer in (0, 1) for role in ("k", "v")]
    conv = Component("conv", "mamba", "always", [Buffer(2, "conv", array(3, 2)), Buffer(2, "ssm", array(3, 4))])
    swa = Component("swa", "sliding_window", "when_indexed", [Buffer(1, "k", array(7, 1))])
    memory = Memory(16, kv, {"token": array(5, 1, np.int32), "logprob": np.zeros(5, np.float64)}, [conv, swa])
    assert memory.layout.aux_names == ("token", "logprob")
    assert memory.layout.component_names == ("conv", "swa")
    assert [spec.item_length for spec in memory.layout.aux] == [4, 8]
    assert [spec.owed for spec in memory.layout.state] == [Owed.ALWAYS, Owed.WHEN_INDEXED]
    assert [spec.item_length for spec in memory.layout.state[0].buffers] == [8, 16]
    assert str(memory.layout.kv[3]) == "layer 1 v"
    regions = memory.regions
    assert (regions.pages, regions.aux_slots) == (10, 5)
    assert [regions.component_items(i) for i in range(2)] == [3, 7]
    assert [region.items for region in regions.in_order()] == [10] * 4 + [5] * 2 + [3] * 2 + [7]
    lay.check_regions(memory.layout, regions)
    empty = Memory(1)
    assert (empty.regions.pages, empty.regions.aux_slots, list(empty.regions.in_order())) == (0, 0, [])


def test_device_memory_is_told_by_the_tensor() -> None:
    memory = Memory(1, kv=[Buffer(0, "k", fake_cuda(4, 3))], aux={"token": fake_cuda(2, None)})
    assert memory.regions == Regions((Region(4096, 4, "VRAM", 3),), (Region(4096, 2, "VRAM", 0),), ())
    assert memory.layout.kv[0] == BufferSpec(0, "k", 30, "bfloat16")
    with pytest.raises(InvalidArgument, match=r"must live in VRAM 3") as caught:
        Memory(1, kv=[Buffer(0, "k", fake_cuda(4, 3)), Buffer(0, "v", array())])
    assert caught.value.field == "kv[layer 0 v]"


def freed(left: int) -> torch.Tensor:
    """A tensor of 128 bytes whose storage has been cut down."""
    tensor = torch.zeros(4, 8)
    tensor.untyped_storage().resize_(left)
    return tensor


def test_an_array_that_was_freed_or_moved_since_is_found() -> None:
    tensor, numbers = torch.zeros(4, 8), np.zeros((4, 8))
    kv = [Buffer(0, "k", tensor), Buffer(0, "v", numbers)]
    memory = Memory(1, kv=kv, aux={"first": array()}, state=[component()])
    memory.check_unmoved()
    before = tensor.untyped_storage()
    tensor.data = torch.zeros(4, 8)
    for look in (memory.check_unmoved, memory.check_kept):
        with pytest.raises(InvalidArgument) as caught:
            look()
        assert str(caught.value) == "memory: an array was moved or resized since it was described (got 4)"
    before.resize_(0)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument, match=r"^kv\[layer 0 k\]: the tensor's storage was freed"):
        memory.check_unmoved()


def test_arrays_that_stay_are_not_described_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_kept` is for every call of an engine: it asks tensors for their address, and no more."""
    memory = Memory(1, kv=[Buffer(0, "k", torch.zeros(4, 8)), Buffer(0, "v", np.zeros((4, 8)))])
    monkeypatch.setattr(Memory, "check_unmoved", lambda _: pytest.fail("all arrays were described anew"))
    memory.check_kept()


def test_a_view_of_a_part_of_a_larger_storage_is_fine() -> None:
    assert Memory(1, kv=[Buffer(0, "k", torch.zeros(10, 8)[2:6])]).regions.pages == 4


READ_ONLY = array()
READ_ONLY.flags.writeable = False
REFUSED: dict[str, tuple[Any, str]] = {
    "list": ([1, 2], "numpy array or a torch tensor"),
    "None": (None, "numpy array or a torch tensor"),
    "columns": (array()[:, ::2], "contiguous"),
    "every second row": (array()[::2], "contiguous"),
    "Fortran order": (np.asfortranarray(array()), "contiguous"),
    "transposed tensor": (torch.zeros(4, 8).t(), "contiguous"),
    "expanded tensor": (torch.zeros(1, 8).expand(4, 8), "contiguous"),
    "read only": (READ_ONLY, "read-only"),
    "no items": (np.zeros((0, 8)), "at least one item"),
    "empty items": (np.zeros((8, 0)), "at least one item"),
    "no dimension": (np.zeros(()), "at least one item"),
    "tensor without dimension": (torch.tensor(1), "at least one item"),
    "objects": (np.array([[None]]), "plain element type"),
    "foreign byte order": (np.zeros(4, ">i4"), "native byte order"),
    "meta tensor": (torch.empty((4, 8), device="meta"), "only cpu and cuda"),
    "freed tensor": (freed(0), "storage was freed"),
    "shrunk tensor": (freed(100), "storage was freed"),
    "too many items": (huge(), "at most"),
}


PLACES: dict[str, Any] = {
    "kv[layer 3 k]": lambda wrong: Memory(1, kv=[Buffer(3, "k", wrong)]),
    "aux[token]": lambda wrong: Memory(1, aux={"token": wrong}),
    "state[conv][layer 3 k]": lambda wrong: Memory(1, state=[component(buffers=[Buffer(3, "k", wrong)])]),
}


@pytest.mark.parametrize("label", REFUSED)
@pytest.mark.parametrize("place", PLACES)
def test_wrong_arrays_are_named(label: str, place: str) -> None:
    wrong, words = REFUSED[label]
    with pytest.raises(InvalidArgument, match=words) as caught:
        PLACES[place](wrong)
    assert caught.value.field == place


def buffer(layer: Any = 0, role: Any = "k") -> Buffer:
    return Buffer(layer, role, array())


def component(name: Any = "conv", kind: Any = "mamba", owed: Any = "always", buffers: Any = None) -> Component:
    return Component(name, kind, owed, [Buffer(0, "k", array())] if buffers is None else buffers)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"page_size": 0}, "page_size"),
        ({"page_size": 2**20 + 1}, "page_size"),
        ({"page_size": 1.5}, "page_size"),
        ({"kv": [buffer(-1)]}, "kv.layer"),
        ({"kv": [buffer("a")]}, "kv.layer"),
        ({"kv": [buffer(role="")]}, "kv.role"),
        ({"kv": [buffer(role=7)]}, "kv.role"),
        ({"kv": [buffer(role="k" * (NAME_MAX + 1))]}, "kv.role"),
        ({"kv": [Buffer(0, "k", array()), Buffer(0, "k", array())]}, "kv"),
        ({"kv": [Buffer(0, "k", array(4)), Buffer(0, "v", array(5))]}, "kv[layer 0 v]"),
        ({"kv": [Buffer(i, "k", READ_ONLY) for i in range(BUFFERS_MAX + 1)]}, "kv"),
        ({"aux": {"a": array(4), "b": array(5)}}, "aux[b]"),
        ({"aux": {"": array(4)}}, "aux"),
        ({"aux": {str(i): array(1, 1) for i in range(AUX_MAX + 1)}}, "aux"),
        ({"state": [component(name="")]}, "state.name"),
        ({"state": [component(kind=None)]}, "state[conv].kind"),
        ({"state": [component(owed="sometimes")]}, "state[conv].owed"),
        ({"state": [component(buffers=[])]}, "state[conv]"),
        ({"state": [component(), component()]}, "state"),
        ({"state": [component(str(i)) for i in range(COMPONENTS_MAX + 1)]}, "state"),
        ({"kv": [Buffer(i, "k", huge()[: 2**30]) for i in range(2)]}, "kv, aux, state"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_memories_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Memory(**{"page_size": 16, **arguments})
    assert caught.value.field == field


# -- layouts: equal or different, in words -------------------------------------------------------------------------


def variants() -> dict[str, Layout]:
    """A layout, and layouts that differ from it in one thing each, by the words that must come up."""
    k, v = BufferSpec(0, "k", 64, "float16"), BufferSpec(0, "v", 64, "float16")
    token, conv = AuxSpec("token", 4, "int32"), ComponentSpec("conv", "mamba", Owed.ALWAYS, (k, v))
    base = Layout(16, (k, v), (token,), (conv,))
    new = msgspec.structs.replace
    return {
        "": base,
        "page size: ours is 16 tokens, the peer's 32": new(base, page_size=32),
        "kv: we have 2 buffers, the peer 1": new(base, kv=(k,)),
        "kv: our layer 0 k stands where the peer has layer 1 k": new(base, kv=(new(k, layer=1), v)),
        "kv: our layer 0 v stands where the peer has layer 0 w": new(base, kv=(k, new(v, role="w"))),
        "kv layer 0 v: our element type is float16, the peer's bfloat16": new(base, kv=(k, new(v, dtype="bfloat16"))),
        "kv layer 0 v: our items have 64 bytes, the peer's 32": new(base, kv=(k, new(v, item_length=32))),
        "aux: ours is [token: int32, 4 bytes], the peer's []": new(base, aux=()),
        "the peer's [token: int64, 4 bytes]": new(base, aux=(new(token, dtype="int64"),)),
        "state components: ours are ['conv'], the peer's []": new(base, state=()),
        "state components: ours are ['conv'], the peer's ['ssm']": new(base, state=(new(conv, name="ssm"),)),
        "state component 'conv': our kind is 'mamba', the peer's 'other'": new(base, state=(new(conv, kind="other"),)),
        "state component 'conv': we owe it always, the peer when_indexed": new(
            base, state=(new(conv, owed=Owed.WHEN_INDEXED),)
        ),
        "state component 'conv': we have 2 buffers, the peer 1": new(base, state=(new(conv, buffers=(k,)),)),
        "state component 'conv' layer 0 v: our items have 64 bytes, the peer's 32": new(
            base, state=(new(conv, buffers=(k, new(v, item_length=32))),)
        ),
    }


def check_words() -> None:
    found = variants()
    base = found.pop("")
    for words, other in found.items():
        said = lay.differences(base, other)
        assert len(said) == 1, words
        assert words in said[0]
        assert len(lay.differences(other, base)) >= 1
    assert len(lay.differences(base, Layout(32, (), (), ()))) == 4


def check_equal(ours: Layout, theirs: Layout) -> None:
    same = ours == theirs
    assert (ours.digest == theirs.digest) == same
    assert (lay.differences(ours, theirs) == ()) == same
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(theirs), type=Layout)
    assert again == theirs
    assert again.digest == theirs.digest


def check_all_variants() -> None:
    for ours, theirs in itertools.product(variants().values(), repeat=2):
        check_equal(ours, theirs)


def test_every_difference_has_words() -> None:
    check_words()


def test_digest_and_words_agree_with_equality() -> None:
    check_all_variants()


test_digest_and_words_agree_for_any_layouts = given(ours=layouts, theirs=layouts)(check_equal)


@named(
    [
        Mutant(lay, "_buffers_differ", "a.dtype != b.dtype", "False"),
        Mutant(lay, "_buffers_differ", "a.item_length != b.item_length", "a.item_length > b.item_length"),
        Mutant(lay, "_buffers_differ", "(a.layer, a.role) != (b.layer, b.role)", "a.layer != b.layer"),
        Mutant(lay, "differences", "a.owed is not b.owed", "False"),
        Mutant(lay, "differences", "a.kind != b.kind", "False"),
        Mutant(lay, "differences", "ours.aux != theirs.aux", "ours.aux_names != theirs.aux_names"),
        Mutant(lay, "differences", "ours.component_names != theirs.component_names", "False"),
    ]
)
def test_mutants_of_the_words_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_all_variants)


# -- a peer's regions ----------------------------------------------------------------------------------------------


def fitting() -> Regions:
    """Regions that fit `sample(ALWAYS)`: two KV buffers, two aux buffers, a component of one buffer."""
    return Regions((Region(0, 9),) * 2, (Region(10, 3),) * 2, ((Region(20, 5),),))


def check_peers_regions() -> None:
    spec, new = sample(Owed.ALWAYS), msgspec.structs.replace
    good = fitting()
    edge = Region(U64_MAX - 64 * 9, 9)
    for one in (good, new(good, kv=(edge, edge)), new(good, kv=(Region(0, ITEMS_MAX // 2 - 9),) * 2)):
        lay.check_regions(spec, one)
    bad = [
        (new(good, kv=good.kv[:1]), "regions.kv"),
        (new(good, kv=()), "regions.kv"),
        (new(good, kv=(*good.kv, good.kv[0])), "regions.kv"),
        (new(good, aux=()), "regions.aux"),
        (new(good, state=()), "regions.state"),
        (new(good, state=((),)), "regions.state.conv"),
        (new(good, state=(*good.state, *good.state)), "regions.state"),
        (new(good, kv=(Region(0, 9), Region(0, 8))), "regions.kv"),
        (new(good, kv=(Region(0, 9), Region(0, 9, "VRAM"))), "regions.kv"),
        (new(good, aux=(Region(0, 3, "VRAM", 1), Region(0, 3, "VRAM", 2))), "regions.aux"),
        (new(good, kv=(edge, new(edge, address=edge.address + 1))), "regions.kv"),
        (new(good, state=((Region(2**64 - 1, 5),),)), "regions.state.conv"),
        (new(good, kv=(Region(0, ITEMS_MAX // 2),) * 2), "regions"),
    ]
    for one, field in bad:
        with pytest.raises(WireError) as caught:
            lay.check_regions(spec, one)
        assert caught.value.field == field


def test_a_peers_regions_must_fit() -> None:
    check_peers_regions()


@named(
    [
        Mutant(lay, "check_regions", "len(group) != len(lengths)", "len(group) < len(lengths)"),
        Mutant(lay, "check_regions", "region.items * length > U64_MAX", "region.items * length > U64_MAX + 1"),
        Mutant(lay, "check_regions", "region.items * length > U64_MAX", "region.items > U64_MAX"),
        Mutant(lay, "check_regions", "region.items != group[0].items or", ""),
        Mutant(lay, "check_regions", " or region.device != group[0].device", ""),
        Mutant(lay, "check_regions", "len(regions.state) != len(layout.state)", "False"),
        Mutant(lay, "check_regions", "> ITEMS_MAX", "> 2 * ITEMS_MAX"),
    ]
)
def test_mutants_of_the_fit_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_peers_regions)
