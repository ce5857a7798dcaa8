"""What a caller may do wrong: it raises at once, nothing has changed, and the rooms that are open go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from engine_bench import Bench, Shape, send_in

from kvrooms import Buffer, Component, InvalidArgument, Memory, PrefillEngine, RoomClosed, Security, Status
from kvrooms.protocol.failure import Reason

SHAPE = Shape(indexed=1)


def state_of(bench: Bench) -> list[dict[str, int]]:
    engines = [side.engine for side in (*bench.prefills, *bench.decodes)]
    return [table for engine in engines for table in (engine.tables(), engine.counters())]


@contextmanager
def open_rooms(seed: int = 0) -> Iterator[tuple[Bench, Any, Any, Any]]:
    """Two rooms in the middle of their transfer; what was done wrong to the first must not keep either from DONE."""
    bench = Bench(seed, SHAPE)
    plans = [bench.plan(4, state={"swa": 2}) for _ in range(2)]
    rooms = [(bench.receive(plan, n), bench.offer(plan, n)) for n, plan in enumerate(plans, 7)]
    for (_, sender), plan in zip(rooms, plans, strict=True):
        sender.send(plan.source["kv"][:2])
    bench.settle()
    yield bench, *rooms[0], plans[0]
    for (_, sender), plan in zip(rooms, plans, strict=True):
        sender.send(plan.source["kv"][2:], plan.state(plan.source), last=True)
    bench.finish(*(room for pair in rooms for room in pair))
    for receiver, sender in rooms:
        assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
        receiver.close()
        sender.close()
    bench.settle()
    bench.check_bytes()
    bench.check_clean()


WRONG_PAGES: dict[str, Any] = {
    "out_of_range": [16],
    "far_out_of_range": [2**40],
    "negative": [-1],
    "float": [0.0],
    "float_array": np.zeros(1),
    "float_tensor": torch.zeros(1),
    "bool": [True],
    "bool_array": np.array([True]),
    "text": "1",
    "number": 1,
    "nested": [[1]],
    "unsigned_array_out_of_range": np.array([2**63], np.uint64),
    "none_among_others": [1, None],
}


@pytest.mark.parametrize("pages", WRONG_PAGES)
def test_pages_out_of_range_or_of_a_wrong_type_to_send(pages: str) -> None:
    with open_rooms() as (bench, _, sender, _):
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^pages: "):
            sender.send(WRONG_PAGES[pages])
        assert state_of(bench) == before


@pytest.mark.parametrize("pages", WRONG_PAGES)
def test_pages_out_of_range_or_of_a_wrong_type_to_open(pages: str) -> None:
    with open_rooms() as (bench, *_):
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^pages: "):
            bench.decode.open(70, bootstrap=bench.prefill.bootstrap, pages=WRONG_PAGES[pages])
        assert state_of(bench) == before


def test_twice_the_same_page_in_one_room() -> None:
    with open_rooms() as (bench, *_):
        free = bench.decodes[0].take("kv", 2)
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^pages: names an item twice"):
            bench.decode.open(70, bootstrap=bench.prefill.bootstrap, pages=[free[0], free[1], free[0]])
        assert state_of(bench) == before


def test_twice_the_same_page_in_two_rooms() -> None:
    with open_rooms() as (bench, _, _, plan):
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^pages: it belongs to a room whose memory is not free"):
            bench.decode.open(70, bootstrap=bench.prefill.bootstrap, pages=[plan.target["kv"][0]])
        assert state_of(bench) == before


def test_twice_the_same_room() -> None:
    with open_rooms() as (bench, *_):
        before = state_of(bench)
        for engine, more in ((bench.decode, {"bootstrap": bench.prefill.bootstrap}), (bench.prefill, {})):
            with pytest.raises(InvalidArgument, match=r"^room: room 7 is open already"):
                engine.open(7, **more)
        assert state_of(bench) == before


def test_too_many_pages_and_too_many_indices() -> None:
    with open_rooms() as (bench, _, sender, _):
        room = bench.prefill.open(70, pages=3, aux_index=0)
        room.send([1, 2])
        before = state_of(bench)
        for pages in ([1, 2], [1, 2, 3]):
            with pytest.raises(InvalidArgument, match=r"^pages: 2 of 3 pages were sent before: too many"):
                room.send(pages)
        with pytest.raises(InvalidArgument, match=r"^state_indices\[1\]: the layout has 1 state components"):
            sender.send([1], [[0], [1]])
        assert state_of(bench) == before
        room.close()


def test_the_last_send_with_pages_missing() -> None:
    with open_rooms() as (bench, *_):
        room = bench.prefill.open(70, pages=3, aux_index=0)
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^last: only 1 of 3 pages were sent"):
            room.send([1], last=True)
        assert state_of(bench) == before
        room.close()


@pytest.mark.parametrize(("sent", "wanted"), [(4, 3), (3, 4), (1, 0), (0, 1)])
def test_fewer_destination_than_source_pages_or_more(sent: int, wanted: int) -> None:
    """Neither side alone can know: both fail at once, saying both numbers, and nothing is written."""
    with open_rooms() as (bench, *_):
        source = bench.plan(sent)
        target = bench.plan(wanted)
        receiver = bench.receive(target, 70)
        sender = bench.offer(source, 70)
        send_in(sender, source, [sent])
        bench.finish(receiver, sender)
        for room in (receiver, sender):
            assert room.failure.reason is Reason.MISMATCH
            assert room.failure.detail == f"pages: prefill has {sent}, decode expects {wanted}"
        receiver.close()
        sender.close()
        bench.settle()


def test_after_the_last_send_and_after_the_end() -> None:
    bench = Bench(1, SHAPE)
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan, 70), bench.offer(plan, 70)
    send_in(sender, plan, [2])
    before = state_of(bench)
    with pytest.raises(InvalidArgument, match=r"^send: the last send of this room was made before"):
        sender.send([1])
    assert state_of(bench) == before
    bench.finish(receiver, sender)
    before = state_of(bench)
    with pytest.raises(RoomClosed, match="everything was sent"):
        sender.send([1])
    assert state_of(bench) == before
    sender.close()
    bench.settle()
    before = state_of(bench)
    with pytest.raises(RoomClosed):
        sender.send([1])
    sender.close()
    sender.abort()
    assert state_of(bench) == before
    assert receiver.poll() is sender.poll() is Status.DONE
    bench.check_bytes()


def wrong_arrays() -> dict[str, tuple[Callable[[], Any], str]]:
    def freed() -> torch.Tensor:
        tensor = torch.zeros(8, 64, dtype=torch.uint8)
        tensor.untyped_storage().resize_(0)
        return tensor

    return {
        "not_contiguous_array": (lambda: np.zeros((8, 128), np.uint8)[:, ::2], "contiguous"),
        "not_contiguous_tensor": (lambda: torch.zeros(64, 8).t(), "contiguous"),
        "freed_tensor": (freed, "storage was freed"),
        "objects": (lambda: np.array([[None]]), "element type"),
        "read_only": (lambda: np.broadcast_to(np.zeros(64, np.uint8), (8, 64)), "contiguous|read-only"),
        "no_array": (lambda: [[1, 2]], "numpy array or a torch tensor"),
    }


@pytest.mark.parametrize("label", wrong_arrays())
def test_memory_that_is_not_contiguous_or_was_freed_or_has_no_plain_type(label: str) -> None:
    make, words = wrong_arrays()[label]
    with pytest.raises(InvalidArgument, match=words):
        Memory(page_size=4, kv=[Buffer(0, "kv", make())])


def test_a_tensor_that_is_freed_between_its_description_and_the_engine() -> None:
    tensor = torch.zeros(8, 64, dtype=torch.uint8)
    memory = Memory(page_size=4, kv=[Buffer(0, "kv", tensor)])
    tensor.untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument, match=r"^kv\[layer 0 kv\]: the tensor's storage was freed"):
        PrefillEngine(memory, name="p", security=Security())


@pytest.mark.parametrize("which", ["kv", "aux", "state"])
def test_a_tensor_that_is_freed_while_its_engine_runs(which: str) -> None:
    """Every call that would read or write it raises at once; nothing has changed, and rooms that are open go on."""
    with open_rooms() as (bench, _, sender, _):
        tensors = {name: torch.zeros(16, 64, dtype=torch.uint8) for name in ("kv", "aux", "state")}
        memory = Memory(
            page_size=4,
            kv=[Buffer(0, "kv", tensors["kv"])],
            aux={"answer": tensors["aux"]},
            state=[Component("swa", "sliding_window", "when_indexed", [Buffer(1, "kv", tensors["state"])])],
        )
        memory.check_kept()
        tensors[which].untyped_storage().resize_(0)
        before = state_of(bench)
        sides = (bench.prefill, bench.decode)
        kept = [engine.memory for engine in sides]
        for engine in sides:
            engine.memory = memory
        for call in (
            lambda: sender.send([1]),
            lambda: bench.prefill.open(70),
            lambda: bench.decode.open(70, bootstrap=bench.prefill.bootstrap, pages=[1]),
        ):
            with pytest.raises(InvalidArgument, match="the tensor's storage was freed"):
                call()
        for engine, usual in zip(sides, kept, strict=True):
            engine.memory = usual
        assert state_of(bench) == before


@pytest.mark.parametrize("view", [False, True])
def test_an_array_that_is_registered_cannot_be_resized(view: bool) -> None:
    """numpy would free what a peer writes to; it refuses where somebody refers to the array, whatever it is asked."""
    array = np.zeros((2, 8, 64), np.uint8)
    memory = Memory(page_size=4, kv=[Buffer(0, "kv", array[1] if view else array)])
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize((4000, 8, 64), refcheck=False)
    memory.check_unmoved()
    del memory
    array.resize((4000, 8, 64), refcheck=False)


def test_sends_of_nothing_are_not_kept_however_many_they_are() -> None:
    with open_rooms() as (bench, _, sender, _):
        for _ in range(500):
            sender.send([])
            sender.send([], [[]])
        bench.settle()
        assert len(sender.record.sends) == 1


@pytest.mark.parametrize("last", ["yes", 0, 1, 2.0])
def test_last_is_a_bool(last: object) -> None:
    with open_rooms() as (bench, _, sender, _):
        before = state_of(bench)
        with pytest.raises(InvalidArgument, match=r"^last: "):
            sender.send([1], last=last)
        assert state_of(bench) == before


def test_a_wrong_engine_setting_starts_no_engine() -> None:
    memory = Memory(page_size=4, kv=[Buffer(0, "kv", np.zeros((8, 64), np.uint8))])
    for wrong in ({"heartbeat_s": -1}, {"hartbeat_s": 1}, {"port": 70000}, {"port": "x"}, {"name": "two words"}):
        with pytest.raises(InvalidArgument):
            PrefillEngine(memory, **wrong)


# Use after a fork is in test_fork.py.
