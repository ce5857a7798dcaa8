"""Faults seen in other engines, about writes and memory, by their numbers in docs/faults.md, on the real ports."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from case_support import LIMIT_S, PAGES, Pair, Side, heard, opened, until
from traffic import Posts, traffic

from kvrooms import Buffer, DecodeEngine, InvalidArgument, Memory, PrefillEngine, Status
from kvrooms.protocol import notify
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.notify import Part, PartKind

pytestmark = pytest.mark.nixl
PIECE, BUFFERS, ITEMS = 64 << 10, 8, 32
TAKEN = 255
"""What memory holds that is its owner's again: no page that is sent has such bytes."""


class Large:
    """Memory of 16 MiB: rooms of megabytes, in as many writes as `PIECE` says."""

    def __init__(self, *, fill: bool) -> None:
        draw = np.random.default_rng(4)
        self.kv = draw.integers(1, 200, (BUFFERS, ITEMS, PIECE), np.uint8)
        self.kv[:] *= fill
        self.memory = Memory(4, kv=[Buffer(i, "kv", self.kv[i]) for i in range(BUFFERS)])


@pytest.fixture(scope="module")
def large() -> Iterator[Pair]:
    with opened(Large(fill=True), Large(fill=False), "cases-l", piece_bytes=PIECE, abort_retry_s=0.05) as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with opened(Side(fill=True), Side(fill=False), "cases-w", parked_ttl_s=0.3, abort_retry_s=0.05) as made:
        made.serve()
        yield made


@pytest.fixture(autouse=True)
def nothing_stays(pair: Pair) -> Iterator[None]:
    """After every case the engines serve an ordinary room, and hold nothing."""
    yield
    pair.serve()
    pair.at_rest()


def test_case_8_and_29_notifications_of_nobodys_rooms_are_counted_and_dropped(pair: Pair) -> None:
    from nixl._api import nixl_agent, nixl_agent_config

    room = pair.number()
    receiver, sender = pair.receive(room, [1]), pair.prefill.open(room)
    stranger = nixl_agent("stranger", nixl_agent_config(backends=["UCX"]))
    name = stranger.add_remote_agent(pair.decode._core.transport.metadata())
    before = pair.decode.counters()
    forged = notify.encode(1, 12345, (Part(PartKind.KV, 0, 0, 1),))
    for message in (b"7_kv_0_1_0", b"", b"\xff" * 40, forged, forged):
        stranger.send_notif(name, message)
    keys = ("notifications malformed", "notifications of no open grant")
    until(lambda: sum(pair.decode.counters().get(key, 0) - before.get(key, 0) for key in keys) >= 5)
    assert not receiver.poll().terminal
    sender.send([2], last=True)
    pair.ended(Status.DONE, receiver, sender)


def test_case_12_13_and_19_memory_comes_back_after_the_last_write_and_not_before(pair: Pair) -> None:
    for turn in range(30):
        room, pages = pair.number(), [10 + turn % 8, 20, 21]
        receiver, sender = pair.receive(room, pages), pair.prefill.open(room)
        heard(sender)
        sender.send([1, 2])
        if turn % 2:
            until(lambda receiver=receiver: receiver.poll() is Status.TRANSFERRING)
        receiver.abort()
        if not receiver.memory_free:
            try:
                pair.receive(pair.number(), pages).abort()
            except InvalidArgument as error:
                assert "memory is not free yet" in str(error)  # noqa: PT017 - the acknowledgement may be faster
        assert receiver.wait_memory_free(LIMIT_S)
        pair.target.kv[pages] = 77
        pair.ended(Status.FAILED, receiver, sender)
        pair.serve()
        assert (pair.target.kv[pages] == 77).all(), "a write of a dead room landed in memory that was handed back"


def test_case_20_a_prefill_engine_that_is_closed_fails_what_is_queued_and_gives_memory_back() -> None:
    source, target = Side(fill=True), Side(fill=False)
    with DecodeEngine(target.memory, name="left-behind") as decode:
        prefill = PrefillEngine(source.memory, name="leaves")
        receivers = [decode.open(n, bootstrap=prefill.bootstrap, pages=[n, n + 8]) for n in range(8)]
        senders = [prefill.open(n) for n in range(8)]
        until(lambda: all(room.phase != "METADATA" for room in receivers))
        for n, sender in enumerate(senders):
            sender.send([n])
        prefill.close()
        for room in (*receivers, *senders):
            assert room.wait(LIMIT_S) is Status.FAILED
            assert room.wait_memory_free(LIMIT_S), room.memory_status


def test_case_21_a_hold_that_ends_reaches_decode_as_a_failure(pair: Pair) -> None:
    room = pair.number()
    sender = pair.prefill.open(room, queued_timeout_s=0.1)
    sender.send([3], last=True)
    assert sender.wait(LIMIT_S) is Status.FAILED
    held = pair.decode.hold(room, bootstrap=pair.prefill.bootstrap)
    until(lambda: held.lost is not None)
    receiver = pair.receive(room, [1])
    assert receiver.wait(LIMIT_S) is Status.FAILED
    assert receiver.failure.reason is Reason.DEADLINE_BOOTSTRAP
    pair.ended(Status.FAILED, receiver, sender)


def test_case_18_small_and_large_writes_complete_whenever_they_do(pair: Pair, large: Pair) -> None:
    """Some are over when they are posted, others later, in one room of 8 MiB; what is DONE has landed either way.

    NIXL over UCX, as seen: a write of a few bytes with a notification is over later, always; one of 64 KiB or without a
    notification may be over at once. Small rooms are beside it; that both kinds are reported alike, whichever is the
    last, is shown in a simulated world.
    """
    for one in (1, PAGES - 8):
        room = pair.number()
        receiver, sender = pair.receive(room, list(range(one))), pair.prefill.open(room)
        sender.send(list(range(one)), last=True)
        pair.ended(Status.DONE, receiver, sender)
        assert np.array_equal(pair.source.kv[:one], pair.target.kv[:one])
    pages = list(range(16))
    with Posts(large.prefill) as posts:
        for _ in range(8):
            large.target.kv[:] = 0
            room = large.number()
            receiver, sender = large.receive(room, pages[::-1]), large.prefill.open(room)
            sender.send(pages, last=True)
            assert receiver.wait(LIMIT_S) is Status.DONE, receiver.failure
            assert np.array_equal(large.source.kv[:, pages], large.target.kv[:, pages[::-1]])
            large.ended(Status.DONE, receiver, sender)
            assert len(posts.notified) % len(pages) == 0, "each position is reported once"
    at_once = sum(count for (over, _), count in posts.kinds.items() if over)
    assert 0 < at_once < posts.kinds.total() == 8 * BUFFERS * len(pages), posts.kinds


@pytest.mark.parametrize("end", ["done", "aborted"])
def test_case_20_source_pages_are_held_until_the_last_write_is_over(large: Pair, end: str) -> None:
    """NIXL's word that writes are over is kept from prefill for a while: what it may still read is not free."""
    transport, told = large.prefill._core.transport, threading.Event()
    settled: Callable[[], Any] = transport.settled
    transport.settled = lambda: settled() if told.is_set() else ()  # type: ignore[method-assign]
    try:
        room, pages = large.number(), list(range(16))
        receiver, sender = large.receive(room, pages), large.prefill.open(room)
        heard(sender)
        sender.send(pages[:15])
        until(lambda: transport.in_flight)
        if end == "done":
            sender.send(pages[15:], last=True)
        else:
            sender.abort("evicted")
            assert sender.wait(LIMIT_S) is Status.FAILED
            assert receiver.wait(LIMIT_S) is Status.FAILED
            assert not receiver.memory_free, "prefill has not promised anything"
        assert not sender.memory_free
        assert sender.memory_status.why == "held: posted writes that read it have not settled" or end == "done"
        told.set()
        large.prefill._runner.wake()
        large.ended(Status.DONE if end == "done" else Status.FAILED, receiver, sender)
        assert not transport.in_flight
    finally:
        told.set()
        del transport.settled


def test_case_20_what_comes_back_to_prefill_is_read_no_more(large: Pair) -> None:
    """Pages are overwritten as soon as they are free, after a transfer or an abort in the middle of one."""
    kept, pages = large.source.kv.copy(), list(range(16))
    for turn in range(12):
        large.target.kv[:] = 0
        room = large.number()
        receiver, sender = large.receive(room, pages), large.prefill.open(room)
        heard(sender)
        sender.send(pages, last=turn % 3 == 0)
        if turn % 3:
            until(lambda turn=turn, room=receiver: turn % 3 == 1 or room.poll() is Status.TRANSFERRING)
            sender.abort("evicted")
        assert sender.wait_memory_free(LIMIT_S), sender.memory_status
        large.source.kv[:] = TAKEN
        assert receiver.wait(LIMIT_S) is (Status.FAILED if turn % 3 else Status.DONE), receiver.failure
        large.ended(receiver.poll(), receiver, sender)
        assert not (large.target.kv == TAKEN).any(), "pages were read that belong to somebody else by now"
        assert turn % 3 or np.array_equal(large.target.kv[:, pages], kept[:, pages])
        large.source.kv[:] = kept


def usual_traffic(pair: Pair) -> Counter[str]:
    """What twenty rooms take, carried one after another."""
    with traffic(pair.prefill, pair.decode) as count:
        for _ in range(20):
            pair.serve()
        pair.at_rest()
    return count


def together(*calls: Callable[[], None]) -> None:
    """Do some things at once, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))

    def do(call: Callable[[], None]) -> None:
        barrier.wait(LIMIT_S)
        call()

    threads = [threading.Thread(target=do, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_case_27_after_a_storm_of_aborts_everything_is_back(pair: Pair) -> None:
    """As many rooms as there are pages, aborted at once from both sides, several times; rooms then go as before.

    Some have not been heard of on the other side, some wait, some are moving or over. A room takes as many writes and
    frames as before; what it takes of the processor is counted in a simulated world.
    """
    usual = usual_traffic(pair)
    assert usual["posts"] == 20
    before = pair.prefill.tables(), pair.decode.tables()
    for turn in range(8):
        rooms = []
        for page in range(PAGES):
            number = pair.number()
            rooms.append((pair.receive(number, [page]), pair.prefill.open(number)))
        if turn % 2:
            for _, sender in rooms:
                heard(sender)
        for _, sender in rooms[::2]:
            sender.send([3], last=False)
        mine = rooms if turn % 4 < 2 else rooms[::2]
        theirs = rooms if turn % 4 < 2 else rooms[1::2]
        together(
            lambda mine=mine: [receiver.abort("a storm") for receiver, _ in mine],
            lambda theirs=theirs: [sender.abort("a storm") for _, sender in theirs],
        )
        for receiver, sender in rooms:
            if sender.phase == "METADATA":  # decode gave it up before prefill had heard of it: nobody will ask
                sender.abort()
            pair.ended(Status.FAILED, receiver, sender)
    pair.at_rest()
    assert usual_traffic(pair) == usual
    assert (pair.prefill.tables(), pair.decode.tables()) == before


@pytest.mark.parametrize("end", ["done", "aborted"])
def test_case_29_a_completion_that_is_said_again_changes_nothing(pair: Pair, end: str) -> None:
    """The very notifications of a room, sent again by the same agent: at once, when it has ended, when its memory is
    somebody else's, and when its number is used again.
    """
    other = pair.number()
    waiting = pair.receive(other, [60]), pair.prefill.open(other)  # decode listens while a room is open
    room, pages = pair.number(), [30, 31]

    def dropped() -> int:
        counters = pair.decode.counters()
        return sum(counters.get(name, 0) for name in ("room events ignored", "notifications of no open grant"))

    def again() -> None:
        before = dropped()
        count = posts.say_again()
        assert count
        until(lambda: dropped() >= before + count, lambda: f"{count} said again: {dropped() - before} dropped")
        assert dropped() == before + count

    with Posts(pair.prefill) as posts:
        receiver, sender = pair.receive(room, pages), pair.prefill.open(room)
        sender.send([5])
        until(lambda: receiver.poll() is Status.TRANSFERRING)
        again()
        assert receiver.poll() is Status.TRANSFERRING
        assert receiver.phase == "KV", "one page of two, said twice"
        if end == "done":
            sender.send([6], last=True)
        else:
            receiver.abort("changed its mind")
        status = Status.DONE if end == "done" else Status.FAILED
        assert receiver.wait(LIMIT_S) is status
        assert sender.wait(LIMIT_S) is status
        failure = receiver.failure
        again()
        assert (receiver.poll(), receiver.failure) == (status, failure)
        pair.ended(status, receiver, sender)
        pair.target.kv[pages] = 77
        again()
        receiver, sender = pair.receive(room, pages), pair.prefill.open(room)
        heard(sender)
        again()
        assert receiver.phase == "KV"
        assert receiver.poll() is not Status.TRANSFERRING, "nothing of this life has landed"
        assert (pair.target.kv[pages] == 77).all()
    sender.send([8, 9], last=True)
    pair.ended(Status.DONE, receiver, sender)
    assert np.array_equal(pair.source.kv[[8, 9]], pair.target.kv[pages])
    waiting[1].send([1], last=True)
    pair.ended(Status.DONE, *waiting)
