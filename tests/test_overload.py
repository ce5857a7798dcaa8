"""Too much at once, on real NIXL: a thousand rooms, a storm of aborts, a large room beside small ones, a slow peer."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from process_peers import LIMIT_S, Far, NearDecode, NearPrefill
from traffic import Posts, traffic

from kvrooms import Buffer, DecodeEngine, Memory, Overloaded, PrefillEngine, Status
from kvrooms.protocol.failure import Reason
from kvrooms.soak.messages import Ready, Start
from kvrooms.soak.plan import Config
from kvrooms.soak.procs import Processes

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(200)]
PAGE = 64 * 1024
PAGES = 1024 + 64
ROOMS = 1000
BIG, SMALL = 1024, 8
"""Pages: 64 MiB and 512 KiB."""
IN_FLIGHT = 2048
"""Bytes that a decode engine which stands still may keep in flight."""


class Pair:
    """Two engines of this process with pools of 1,088 pages of 64 KiB, and room numbers that nobody has used."""

    def __init__(self) -> None:
        self.source = np.random.default_rng(1).integers(1, 256, (PAGES, PAGE), dtype=np.uint8)
        self.target = np.zeros_like(self.source)
        memories = [Memory(page_size=4, kv=[Buffer(0, "kv", array)]) for array in (self.source, self.target)]
        self.prefill = PrefillEngine(memories[0], name="overload", rooms_max=1200)
        self.decode = DecodeEngine(memories[1], name="overload-d", rooms_max=1200, backlog_bytes=32 << 20)
        self._number = 0

    def open(self, pages: list[int]) -> tuple[Any, Any]:
        """A room on both sides that lands in the very pages that it is read from."""
        self._number += 1
        receiver = self.decode.open(self._number, bootstrap=self.prefill.bootstrap, pages=pages)
        return receiver, self.prefill.open(self._number, pages=len(pages))

    def done(self, receiver: Any, sender: Any, pages: list[int]) -> None:
        """The room has arrived, byte for byte; close it."""
        for room in (receiver, sender):
            assert room.wait(LIMIT_S) is Status.DONE, room.failure
        assert np.array_equal(self.target[pages], self.source[pages])
        self.target[pages] = 0
        self.closed(receiver, sender)

    def closed(self, *rooms: Any) -> None:
        """Close rooms, and wait for their memory."""
        for room in rooms:
            room.close()
            assert room.wait_memory_free(LIMIT_S), room.memory_status

    def at_rest(self) -> dict[str, int]:
        """The tables of both engines, once nothing of any room is left in them."""
        gate, tables = threading.Event(), {}
        names = ("rooms", "grants", "keys", "claims", "parked", "ready", "posted", "tokens", "in_flight")
        for _ in range(4000):
            both = (("prefill", self.prefill.tables()), ("decode", self.decode.tables()))
            tables = {f"{side} {name}": count for side, table in both for name, count in table.items()}
            if not any(count for name, count in tables.items() if name.partition(" ")[2] in names):
                return tables
            gate.wait(0.005)
        raise AssertionError(f"what was closed does not leave: {tables}")

    def serve(self, count: int) -> Counter[str]:
        """Carry rooms one after another; the writes and frames that they have taken."""
        with traffic(self.prefill, self.decode) as taken:
            for n in range(count):
                page = [n % 64]
                receiver, sender = self.open(page)
                sender.send(page, last=True)
                self.done(receiver, sender, page)
            self.at_rest()
        return taken


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    made.serve(20)
    yield made
    made.decode.close()
    made.prefill.close()


def test_what_may_wait_for_a_peer_that_does_not_read_is_a_setting(pair: Pair) -> None:
    """What happens beyond it is shown where connections are tested."""
    channels: Any = [engine._core.channel for engine in (pair.prefill, pair.decode)]
    assert [channel._backlog_limit for channel in channels] == [128 << 20, 32 << 20]


def test_a_thousand_rooms_that_are_opened_at_once_all_arrive(pair: Pair) -> None:
    before = pair.at_rest()
    for prefill_first in (False, True):
        rooms = {n: pair.open([n]) for n in range(ROOMS)}
        assert pair.decode.health().rooms > 0
        order = list(rooms)
        for n in reversed(order) if prefill_first else order:
            rooms[n][1].send([n], last=True)
        for n, (receiver, sender) in rooms.items():
            pair.done(receiver, sender, [n])
    assert pair.at_rest() == before


def test_rooms_beyond_the_limit_are_refused_to_their_caller_and_the_others_arrive(pair: Pair) -> None:
    senders = []
    with pytest.raises(Overloaded, match="rooms_max"):  # noqa: PT012 - one of them is the first too many
        for n in range(1300):
            senders.append(pair.prefill.open(10_000 + n))
    assert len(senders) == 1200
    pair.closed(*senders)
    pair.at_rest()
    pair.serve(5)


def storm(pair: Pair) -> None:
    """A thousand rooms, half of them moving, all aborted at once; who aborts alternates."""
    rooms = [pair.open([n]) for n in range(ROOMS)]
    for n, (_, sender) in enumerate(rooms):
        if n % 2:
            sender.send([n], last=True)
    for n, both in enumerate(rooms):
        both[n // 2 % 2].abort("a storm")
    for receiver, sender in rooms:
        assert receiver.wait(LIMIT_S).terminal
        if sender.phase == "METADATA":  # decode gave its room up before prefill had heard of it: nobody will ask
            sender.abort()
        assert sender.wait(LIMIT_S).terminal
        pair.closed(receiver, sender)


def test_after_a_storm_of_aborts_rooms_cost_what_they_did_before(pair: Pair) -> None:
    """As many writes and frames, and tables are as they were: nothing of the storm is looked at again.

    What a room takes of the processor is counted in a simulated world (`test_engine_turns.py`), and how many go in a
    second is measured by `benchmarks/overload.py`.
    """
    usual = pair.serve(100)
    assert usual["posts"] == usual["Metadata"] == 100
    before = pair.at_rest()
    storm(pair)
    assert pair.at_rest() == before
    assert pair.serve(100) == usual
    assert pair.prefill.health().problems == pair.decode.health().problems == ()


def test_rooms_of_512_kib_do_not_wait_for_the_end_of_one_of_64_mib(pair: Pair) -> None:
    """Which of them is over first is noted on the engine's thread: how late the callers wake does not count.

    Nor does how far apart they call: prefill's thread waits until all have sent, the large one first. A caller that is
    kept from its processor would else send what is small when what is large has gone.
    """
    sizes = {"large": list(range(BIG))}
    sizes |= {f"small {n}": list(range(BIG + n * SMALL, BIG + (n + 1) * SMALL)) for n in range(6)}
    for _ in range(5):
        order: list[str] = []
        rooms = {name: pair.open(pages) for name, pages in sizes.items()}
        for name, (receiver, _) in rooms.items():
            receiver._end.call(pair.decode.lock, functools.partial(order.append, name))
        while any(sender.phase == "METADATA" for _, sender in rooms.values()):
            pass
        sent = threading.Event()
        pair.prefill._submit(sent.wait)
        for name, (_, sender) in rooms.items():
            sender.send(sizes[name], last=True)
        sent.set()
        for name, (receiver, sender) in rooms.items():
            pair.done(receiver, sender, sizes[name])
        assert order[-1] == "large"


def test_a_decode_engine_that_stands_still_holds_up_no_room_of_another(processes: Processes) -> None:
    process = processes.start("registry", Start("registry", "registry", Config(0, 0.0), ""))
    ready = process.heard()
    assert isinstance(ready, Ready)
    small: dict[str, float] = {"piece_bytes": IN_FLIGHT, "inflight_per_peer_bytes": IN_FLIGHT}
    sending, receiving = NearPrefill(ready.address, heartbeat_timeout_s=30, **small), NearDecode(ready.address)
    slow = Far(processes, "decode", ready.address, "slow-decode")
    with sending.engine, receiving.engine, Posts(sending.engine) as posts:
        kept = [sending.open(plan, send=False) for plan in sending.plans(24) if plan.total > plan.prefix]
        slow.carry(*(one.plan.number for one in kept), prefill="near-prefill", address=sending.engine.address)
        while not posts.bytes or any(one.room.phase == "METADATA" for one in kept):
            assert not any(one.room.poll().terminal for one in kept)
        slow.stop()
        (its_agent,) = posts.bytes
        posted = posts.bytes[its_agent]
        for one in kept:
            sending.finish(one)  # all of it goes to one who does not look
        for plan in sending.plans(60):
            if plan.total <= plan.prefix:
                continue
            sender, receiver = sending.open(plan), receiving.open(plan, "near-prefill")
            assert receiver.room.wait(LIMIT_S) is Status.DONE, receiver.room.failure
            assert sender.room.wait(LIMIT_S) is Status.DONE, sender.room.failure
            assert receiving.pools.wrong(plan, receiver.holding) == 0
            for near, one in ((sending, sender), (receiving, receiver)):
                one.room.close()
                assert one.room.wait_memory_free(LIMIT_S)
                near.hand_back(one)
        assert not all(one.room.poll().terminal for one in kept), "they went by while the others stood"
        more = posts.bytes[its_agent] - posted
        assert more <= 2 * IN_FLIGHT, "of all that is posted meanwhile, what may be in flight and what was just then"
        assert posts.bytes.total() - posts.bytes[its_agent] > 20 * IN_FLIGHT
        slow.go_on()
        for one in kept:
            assert slow.end_of(one.plan.number).status in {"done", "failed"}
            ended = one.room.wait(LIMIT_S)
            assert ended is Status.DONE or one.room.failure.reason is Reason.PEER_LOST, one.room.failure
            one.room.close()
            assert one.room.wait_memory_free(LIMIT_S)
            sending.hand_back(one)
    slow.kill()
