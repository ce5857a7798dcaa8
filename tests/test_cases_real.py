"""Faults seen in other engines, each a test by its number in docs/faults.md, on the real ports: NIXL, TCP, threads.

The same kinds are shown at the lowest layer that can show them by the tests that docs/faults.md names. Those about
writes and memory are in `test_cases_writes.py`, those about several ranks in `test_cases_ranks.py`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from case_support import LIMIT_S, Pair, Side, heard, opened, until

from kvrooms import DecodeEngine, PrefillEngine, RoomClosed, RoomFailed, Status
from kvrooms.protocol.failure import Reason

pytestmark = pytest.mark.nixl


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with opened(Side(fill=True), Side(fill=False), "cases", parked_ttl_s=0.3, abort_retry_s=0.05) as made:
        made.serve()
        yield made


@pytest.fixture(autouse=True)
def nothing_stays(pair: Pair) -> Iterator[None]:
    """After every case the engines serve an ordinary room, and hold nothing."""
    yield
    pair.serve()
    pair.at_rest()


EMPTY = {"1": [], "2": None, "3": [[]], "3 [None]": [None], "3 [[], []]": [[], []]}


@pytest.mark.parametrize("sent", EMPTY)
@pytest.mark.parametrize("asked", EMPTY)
def test_case_1_to_3_no_state_however_it_is_spelled(pair: Pair, sent: str, asked: str) -> None:
    room = pair.number()
    receiver = pair.receive(room, [3], aux_index=2, state_indices=EMPTY[asked])
    sender = pair.prefill.open(room, aux_index=3)
    sender.send([9], EMPTY[sent], last=True)
    pair.ended(Status.DONE, receiver, sender)
    assert np.array_equal(pair.source.aux[3], pair.target.aux[2])


def test_case_4_after_an_abort_and_after_a_deadline_of_decode_the_next_room_is_served(pair: Pair) -> None:
    for options in ({}, {"waiting_timeout_s": 0.1}):
        room = pair.number()
        receiver, sender = pair.receive(room, [1], **options), pair.prefill.open(room)
        heard(sender)
        if not options:
            receiver.abort()
        pair.ended(Status.FAILED, receiver, sender)
        pair.serve()


STRAY = (b"GET / HTTP/1.1\r\n\r\n", b"", b"\x00\x00\x00\x00", b"abc", struct.pack("<I", 2**31) + b"x", b"\xff" * 333)


@pytest.mark.parametrize("stray", STRAY, ids=lambda some: some[:8].hex() or "nothing")
def test_case_5_stray_bytes_on_the_control_socket_are_nobodys_business(pair: Pair, stray: bytes) -> None:
    host, port = pair.prefill.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(stray)
        pair.serve()


def test_case_6_and_26_a_failed_sender_is_told_and_clean_before_the_exception(pair: Pair) -> None:
    room, other = pair.number(), pair.number()
    receiver, sender = pair.receive(room, [1]), pair.prefill.open(room)
    bystanders = pair.receive(other, [2]), pair.prefill.open(other)
    sender.send([4])
    sender.abort("the worker raised")
    until(lambda: sender.poll().terminal)
    with pytest.raises(RoomFailed, match="the worker raised"):
        sender.failure_exception()
    assert pair.prefill.tables()["rooms"] == 1  # the bystander
    with pytest.raises(RoomClosed):
        sender.failure_exception()
    assert receiver.wait(LIMIT_S) is Status.FAILED
    assert (receiver.failure.reason, receiver.failure.detail) == (Reason.PEER_ABORTED, "the worker raised")
    receiver.close()
    bystanders[1].send([7], last=True)
    pair.ended(Status.DONE, *bystanders)


def test_case_7_and_25_metadata_for_rooms_that_nobody_opens_is_refused_and_leaves_nothing(pair: Pair) -> None:
    rooms = [pair.receive(pair.number(), [page]) for page in range(20)]
    for receiver in rooms:
        assert receiver.wait(LIMIT_S) is Status.FAILED
        assert receiver.failure.reason is Reason.REFUSED
        assert receiver.failure.retryable
    pair.ended(Status.FAILED, *rooms)


@pytest.mark.parametrize(
    ("sent", "asked"), [([[]], [[3]]), ([[4]], [[3, 5]]), ([[4, 5]], [[3]]), ([[4], []], [[], [3]])]
)
def test_case_9_state_that_differs_fails_both_sides_and_names_the_component(pair: Pair, sent: Any, asked: Any) -> None:
    room = pair.number()
    receiver, sender = pair.receive(room, [1], state_indices=asked), pair.prefill.open(room)
    sender.send([1], sent, last=True)
    for end in (receiver, sender):
        assert end.wait(LIMIT_S) is Status.FAILED
        assert end.failure.reason is Reason.MISMATCH
        assert "state component 'window': prefill sends" in end.failure.detail
    pair.ended(Status.FAILED, receiver, sender)


def test_case_10_fewer_destination_pages_than_source_pages_is_a_precise_failure(pair: Pair) -> None:
    room = pair.number()
    receiver, sender = pair.receive(room, list(range(12))), pair.prefill.open(room)
    sender.send(list(range(16)), last=True)
    for end in (receiver, sender):
        assert end.wait(LIMIT_S) is Status.FAILED
        assert "pages: prefill has 16, decode expects 12" in end.failure.detail
    pair.ended(Status.FAILED, receiver, sender)


def test_case_11_one_of_two_components_is_not_both(pair: Pair) -> None:
    room = pair.number()
    receiver = pair.receive(room, [1], state_indices=[[3], [4]])
    sender = pair.prefill.open(room)
    sender.send([1], [[5], []])
    until(lambda: receiver.phase == "STATE")
    sender.send([], [[], [6]], last=True)
    pair.ended(Status.DONE, receiver, sender)
    assert np.array_equal(pair.source.index[6], pair.target.index[4])


def test_case_14_a_room_number_is_used_again_after_a_failure(pair: Pair) -> None:
    room = pair.number()
    for attempt in (0, 0, 1):
        receiver, sender = pair.receive(room, [1, 2], attempt=attempt), pair.prefill.open(room, attempt=attempt)
        heard(sender)
        sender.send([3])
        receiver.abort()
        pair.ended(Status.FAILED, receiver, sender)
    pair.target.kv[1] = 0
    receiver, sender = pair.receive(room, [1]), pair.prefill.open(room)
    sender.send([3], last=True)
    pair.ended(Status.DONE, receiver, sender)
    assert np.array_equal(pair.source.kv[3], pair.target.kv[1])


def test_case_15_a_prefill_engine_that_comes_back_is_served_without_a_restart_of_decode(pair: Pair) -> None:
    from kvrooms.transport.registry import RegistryServer

    server = RegistryServer(host="127.0.0.1", port=0)
    bootstrap = server.start()
    try:
        for _ in range(2):
            with PrefillEngine(pair.source.memory, name="comes-back", registry=bootstrap) as again:
                room = pair.number()
                receiver = pair.decode.open(room, bootstrap=bootstrap, instance="comes-back", pages=[1])
                sender = again.open(room)
                sender.send([3], last=True)
                pair.ended(Status.DONE, receiver, sender)
                left = pair.decode.open(pair.number(), bootstrap=bootstrap, instance="comes-back", pages=[2])
                until(lambda left=left: left.phase != "METADATA" or again.tables()["parked"])
            assert left.wait(LIMIT_S) is Status.FAILED  # the old rooms fail promptly, and new ones work
            pair.ended(Status.FAILED, left)
    finally:
        server.close()


UNLIKE = {
    "16, a kind of state that the other side does not have": ({"kind": "mamba"}, "mamba"),
    "22, another page size": ({"page_size": 8}, "pages of 8"),
    "22, another element type": ({"dtype": np.int8}, "int8"),
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_case_16_and_22_layouts_that_differ_are_refused_at_the_handshake(pair: Pair, unlike: str) -> None:
    options, word = UNLIKE[unlike]
    with DecodeEngine(Side(fill=False, **options).memory, name="unlike") as decode:
        receiver = decode.open(pair.number(), bootstrap=pair.prefill.bootstrap, pages=[1])
        assert receiver.wait(LIMIT_S) is Status.FAILED
        assert receiver.failure.reason is Reason.HANDSHAKE_REFUSED
        assert word in receiver.failure.detail
        assert receiver.wait_memory_free(LIMIT_S)


def test_case_28_a_deadline_comes_although_nothing_else_does(pair: Pair) -> None:
    room = pair.number()
    receiver, sender = pair.receive(room, [1, 2], moving_timeout_s=0.2), pair.prefill.open(room)
    sender.send([1])
    assert receiver.wait(LIMIT_S) is Status.FAILED
    assert receiver.failure.reason is Reason.DEADLINE_MOVING
    assert "page 1 of 2" in receiver.failure.detail
    pair.ended(Status.FAILED, receiver, sender)


def test_case_30_what_failed_is_not_received(pair: Pair) -> None:
    room = pair.number()
    receiver, sender = pair.receive(room, [1, 2]), pair.prefill.open(room)
    sender.send([1])
    until(lambda: receiver.poll() is Status.TRANSFERRING)
    sender.abort()
    for _ in range(3):
        assert receiver.wait(LIMIT_S) is Status.FAILED
    assert receiver.met.pages == ((0, 1),)
    pair.ended(Status.FAILED, receiver, sender)


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("pages", [0, 1, 4])
def test_case_32_prompts_that_are_all_prefix_or_a_page_more(pair: Pair, prefix: int, pages: int) -> None:
    room, aux = pair.number(), 5
    pair.target.kv[20:24] = 0
    receiver = pair.receive(room, list(range(20, 20 + pages)), prefix_pages=prefix, aux_index=aux)
    sender = pair.prefill.open(room, aux_index=6)
    sender.send(list(range(30, 30 + prefix + pages)), last=True)
    pair.ended(Status.DONE, receiver, sender)
    assert np.array_equal(pair.source.kv[30 + prefix : 30 + prefix + pages], pair.target.kv[20 : 20 + pages])
    assert np.array_equal(pair.source.aux[6], pair.target.aux[aux])
