"""The public methods on the real ports: threads, NIXL, TCP and HTTP; two engines of one process, and a killed one."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_engine_spellings import NOTHING, given

from kvrooms import Buffer, Component, DecodeEngine, EngineClosed, Memory, PrefillEngine, RoomFailed, Status, wait_any
from kvrooms.protocol.failure import Reason

PAGES, SLOTS, ITEM = 96, 24, 64
LIMIT_S = 40.0
FEW = ("absent", "None", "[]", "[[]]", "[None]", "[[], []]", "()", "generator", "numpy int64", "torch int64")


@dataclass
class Side:
    """One side's memory and arrays. `fill`: with bytes that tell page, layer and part apart."""

    memory: Memory
    kv: list[np.ndarray[Any, Any]]
    aux: np.ndarray[Any, Any]
    window: np.ndarray[Any, Any]
    conv: np.ndarray[Any, Any]


def side(*, fill: bool) -> Side:
    random = np.random.default_rng(5)

    def array(items: int) -> np.ndarray[Any, Any]:
        made = random.integers(1, 256, (items, ITEM), dtype=np.uint8)
        return made if fill else np.zeros_like(made)

    kv = [array(PAGES) for _ in range(4)]
    aux, window, conv = array(SLOTS), array(PAGES), array(SLOTS)
    memory = Memory(
        page_size=4,
        kv=[Buffer(i // 2, "kv"[i % 2], kv[i]) for i in range(4)],
        aux={"first": aux},
        state=[Component("window", "sliding_window", "when_indexed", [Buffer(9, "kv", window)])],
    )
    return Side(memory, kv, aux, window, conv)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Side, PrefillEngine, Side, DecodeEngine]]:
    source, target = side(fill=True), side(fill=False)
    with PrefillEngine(source.memory, name="real-p") as prefill, DecodeEngine(target.memory, name="real-d") as decode:
        yield source, prefill, target, decode


def same(source: Side, target: Side, sent: list[int], landed: list[int], slots: tuple[int, int]) -> bool:
    kv = all(np.array_equal(a[sent], b[landed]) for a, b in zip(source.kv, target.kv, strict=True))
    return kv and np.array_equal(source.aux[slots[0]], target.aux[slots[1]])


@pytest.mark.parametrize("spells", list(itertools.product(FEW, FEW)), ids=" and ".join)
def test_every_spelling_of_no_state_ends_done(pair, spells):
    source, prefill, target, decode = pair
    for array in (*target.kv, target.aux):
        array[:] = 0
    with (
        decode.open(1, bootstrap=prefill.bootstrap, pages=[7, 3, 9], aux_index=4, **given(spells[1])) as room,
        prefill.open(1, aux_index=2) as sender,
    ):
        sender.send([11, 5])
        sender.send([30], last=True, **given(spells[0]))
        assert room.wait(LIMIT_S) is Status.DONE, room.failure
        assert sender.wait(LIMIT_S) is Status.DONE, sender.failure
        assert same(source, target, [11, 5, 30], [7, 3, 9], (2, 4))
        assert room.wait_memory_free(LIMIT_S)
        assert sender.wait_memory_free(LIMIT_S)


def test_the_list_of_spellings_is_that_of_the_simulated_test():
    assert set(FEW) <= set(NOTHING)


def test_a_window_travels_and_a_different_count_fails_both_sides(pair):
    source, prefill, target, decode = pair
    room = decode.open(2, bootstrap=prefill.bootstrap, pages=[1], aux_index=0, state_indices=[[5, 6]])
    sender = prefill.open(2, pages=1, aux_index=0)
    sender.send([3], state_indices={"window": [8, 2]})
    assert room.wait(LIMIT_S) is Status.DONE, room.failure
    assert np.array_equal(source.window[[8, 2]], target.window[[5, 6]])
    room.close()
    sender.wait(LIMIT_S)
    sender.close()
    room = decode.open(3, bootstrap=prefill.bootstrap, pages=[1], aux_index=0, state_indices=[[5, 6]])
    sender = prefill.open(3, pages=1, aux_index=0)
    sender.send([3], state_indices=[[8]])
    for end in (room, sender):
        assert end.wait(LIMIT_S) is Status.FAILED
        with pytest.raises(RoomFailed, match=r"'window': prefill sends 1 indices, decode expects 2") as failed:
            end.failure_exception()
        assert failed.value.failure.reason is Reason.MISMATCH
    assert room.wait_memory_free(LIMIT_S)


def test_ten_rooms_interleaved_from_threads_that_wait_in_every_way(pair):
    source, prefill, target, decode = pair
    rooms = {}

    def receive(number: int) -> None:
        pages = [number * 3 + i for i in range(3)]
        rooms[number] = decode.open(number, bootstrap=prefill.bootstrap, pages=pages, aux_index=number)

    threads = [threading.Thread(target=receive, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    senders = [prefill.open(number, pages=3, aux_index=number) for number in range(10)]
    for chunk in range(3):  # one page of each room in turn
        for number, sender in enumerate(senders):
            sender.send([60 + number * 3 + chunk])
    for thread in threads:
        thread.join(LIMIT_S)
    seen = set()
    while len(seen) < 5:
        seen |= {room.room for room in wait_any([r for r in rooms.values() if r.room not in seen], LIMIT_S)}

    async def the_rest() -> list[Status]:
        return await asyncio.wait_for(asyncio.gather(*(rooms[n]._ended() for n in rooms if n not in seen)), LIMIT_S)

    assert set(asyncio.run(the_rest())) <= {Status.DONE}
    for number, room in rooms.items():
        assert room.poll() is Status.DONE
        sent, landed = [60 + number * 3 + i for i in range(3)], [number * 3 + i for i in range(3)]
        assert same(source, target, sent, landed, (number, number))
        room.close()
        assert senders[number].wait(LIMIT_S) is Status.DONE
        senders[number].close()
        assert room.wait_memory_free(LIMIT_S)


def test_an_aborted_room_fails_there_too_and_its_pages_come_back(pair):
    _, prefill, _, decode = pair
    room = decode.open(20, bootstrap=prefill.bootstrap, pages=[0, 1], aux_index=0)
    sender = prefill.open(20, pages=2, aux_index=0)
    sender.send([4])
    while room.poll() is not Status.TRANSFERRING:
        assert not room.poll().terminal
    room.abort("changed my mind")
    assert sender.wait(LIMIT_S) is Status.FAILED
    assert sender.failure is not None
    assert (sender.failure.reason, sender.failure.detail) == (Reason.PEER_ABORTED, "changed my mind")
    assert room.wait_memory_free(LIMIT_S)
    room.close()
    sender.close()


VICTIM = """
import sys
import numpy as np
from kvrooms import Buffer, Memory, PrefillEngine

memory = Memory(page_size=4, kv=[Buffer(0, "kv", np.ones((8, 64), np.uint8))])
engine = PrefillEngine(memory, name="victim")
engine.open(1, pages=2).send([3])
print(engine.bootstrap, flush=True)
sys.stdin.read()
"""


def test_a_killed_prefill_fails_its_rooms_and_gives_their_pages_back():
    memory = Memory(page_size=4, kv=[Buffer(0, "kv", np.zeros((8, 64), np.uint8))])
    command = [sys.executable, "-P", "-c", VICTIM]
    with (
        DecodeEngine(memory, name="survivor") as decode,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        try:
            assert child.stdout is not None
            room = decode.open(1, bootstrap=child.stdout.readline().strip(), pages=[5, 6])
            while room.poll() is not Status.TRANSFERRING:
                assert not room.poll().terminal, room.failure
        finally:
            child.kill()
        assert room.wait(LIMIT_S) is Status.FAILED
        assert room.failure is not None
        assert room.failure.reason is Reason.PEER_LOST
        assert room.wait_memory_free(LIMIT_S)
    with pytest.raises(EngineClosed):
        decode.open(2, bootstrap="http://127.0.0.1:1", pages=[1])


def test_closing_an_engine_ends_its_rooms_on_both_sides():
    source, target = side(fill=True), side(fill=False)
    with DecodeEngine(target.memory, name="d") as decode:
        prefill = PrefillEngine(source.memory, name="p")
        room = decode.open(1, bootstrap=prefill.bootstrap, pages=[5, 6])
        sender = prefill.open(1, pages=2)
        sender.send([3])
        while room.poll() is not Status.TRANSFERRING:
            assert not room.poll().terminal, room.failure
        prefill.close()
        assert sender.poll() is Status.FAILED
        assert room.wait(LIMIT_S) is Status.FAILED
        assert room.wait_memory_free(LIMIT_S)


def test_a_drain_takes_no_new_rooms_lets_open_ones_end_and_reports_the_rest() -> None:
    source, target = side(fill=True), side(fill=False)
    with PrefillEngine(source.memory, name="drain-p") as prefill, DecodeEngine(target.memory, name="drain-d") as decode:
        ended = decode.open(1, bootstrap=prefill.bootstrap, pages=[0, 1])
        late = decode.open(2, bootstrap=prefill.bootstrap, pages=[2])
        with prefill.open(1) as sender:
            sender.send([0, 1], last=True)
            sender.wait(LIMIT_S)
        ended.wait(LIMIT_S)
        report = decode.drain(timeout=0.2)
        assert (report.done, report.failed, report.held) == (1, 1, 0)
        assert report.aborted == (repr(late).replace("FAILED", "METADATA"),)
        assert late.failure is not None
        assert late.failure.detail == "the engine was drained"
        with pytest.raises(EngineClosed, match="takes no new rooms"):
            decode.open(3, bootstrap=prefill.bootstrap, pages=[3])
        assert prefill.drain(timeout=5).aborted == ()
        with pytest.raises(EngineClosed, match="takes no new rooms"):
            prefill.open(3)
