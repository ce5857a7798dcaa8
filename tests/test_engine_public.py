"""What callers hold: arguments checked before anything changes, three ways to wait, and endings told once."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from engine_bench import Bench, Shape, send_in

from kvrooms import EngineClosed, InvalidArgument, RoomClosed, RoomFailed, Status
from kvrooms.protocol.failure import Reason

RICH = Shape(indexed=1, always=1)


def everything(bench: Bench) -> list[dict[str, int]]:
    """All tables and counters of all engines."""
    engines = [side.engine for side in (*bench.prefills, *bench.decodes)]
    return [table for engine in engines for table in (engine.tables(), engine.counters())]


# -- arguments ---------------------------------------------------------------------------------------------------------

BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"room": -1}, "room"),
    ({"room": 2**63}, "room"),
    ({"room": 1.0}, "room"),
    ({"room": True}, "room"),
    ({"room": "7"}, "room"),
    ({"room": None}, "room"),
    ({"attempt": -1}, "attempt"),
    ({"attempt": 2**32}, "attempt"),
    ({"attempt": None}, "attempt"),
    ({"aux_index": 8}, "aux_index"),
    ({"aux_index": -1}, "aux_index"),
    ({"aux_index": False}, "aux_index"),
    ({"moving_timeout_s": 0}, "moving_timeout_s"),
    ({"cap_timeout_s": float("inf")}, "cap_timeout_s"),
    ({"cap_timeout_s": float("nan")}, "cap_timeout_s"),
    ({"cap_timeout_s": "5"}, "cap_timeout_s"),
    ({"heartbeat_s": 1}, "heartbeat_s"),
    ({"movingtimeout": 1}, "movingtimeout"),
]
BAD_DECODE: list[tuple[dict[str, Any], str]] = [
    ({"pages": [16]}, "pages"),
    ({"pages": [-1]}, "pages"),
    ({"pages": [0, 0]}, "pages"),
    ({"pages": list(range(16)) + [3] * 20}, "pages"),
    ({"pages": [0.5]}, "pages"),
    ({"pages": [[0]]}, "pages"),
    ({"pages": "0"}, "pages"),
    ({"pages": 0}, "pages"),
    ({"pages": np.zeros((2, 2), np.int32)}, "pages"),
    ({"pages": [True]}, "pages"),
    ({"prefix_pages": -1}, "prefix_pages"),
    ({"prefix_pages": 2**24}, "prefix_pages"),
    ({"prefix_pages": 0.0}, "prefix_pages"),
    ({"state_indices": {"conv": [0, 0]}}, r"state_indices\[conv\]"),
    ({"state_indices": {"conv": [8]}}, r"state_indices\[conv\]"),
    ({"state_indices": {}}, "state_indices"),
    ({"skip_state": True}, "state_indices"),
    ({"bootstrap": "world:1"}, "bootstrap"),
    ({"bootstrap": ""}, "bootstrap"),
    ({"bootstrap": "http://user@world:1"}, "bootstrap"),
    ({"instance": "two words"}, "instance"),
    ({"rank": -1}, "rank"),
]
BAD_PREFILL: list[tuple[dict[str, Any], str]] = [
    ({"pages": -1}, "pages"),
    ({"pages": 2**24 + 1}, "pages"),
    ({"pages": [1, 2]}, "pages"),
    ({"pages": True}, "pages"),
]


@pytest.mark.parametrize(("bad", "field"), BAD_KEYS + BAD_DECODE)
def test_a_wrong_argument_of_decode_open_is_named_and_changes_nothing(bad: dict[str, Any], field: str) -> None:
    bench = Bench(0, RICH)
    good = {"room": 7, "bootstrap": bench.prefill.bootstrap, "pages": [1, 2], "state_indices": {"conv": [3]}}
    before = everything(bench)
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        bench.decode.open(**{**good, **bad})
    assert everything(bench) == before
    assert bench.decode.open(**good).poll() is Status.BOOTSTRAPPING  # nothing of it is claimed


@pytest.mark.parametrize(("bad", "field"), BAD_KEYS + BAD_PREFILL)
def test_a_wrong_argument_of_prefill_open_is_named_and_changes_nothing(bad: dict[str, Any], field: str) -> None:
    bench = Bench(0, RICH)
    before = everything(bench)
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        bench.prefill.open(**{"room": 7, **bad})
    assert everything(bench) == before
    assert bench.prefill.open(7).poll() is Status.BOOTSTRAPPING


def test_a_wrong_send_is_named_and_the_room_is_as_before() -> None:
    for seed in range(5):
        bench = Bench(seed, RICH)
        plan = bench.plan(3)
        receiver, sender = bench.receive(plan), bench.offer(plan, early=True)
        sender.send(plan.source["kv"][:1])
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"pages": [99]}, "pages"),
            ({"pages": plan.source["kv"]}, "pages"),
            ({"pages": [1], "last": True}, "last"),
            ({"pages": [1, 2]}, "state_indices"),
            ({"pages": [1], "state_indices": {"conv": [-1]}}, r"state_indices\[conv\]"),
            ({"pages": [1], "state_indices": {"convolution": [1]}}, "state_indices"),
            ({"pages": None, "state_indices": [[], [], [1]]}, r"state_indices\[2\]"),
        ]
        for arguments, field in wrong:
            with pytest.raises(InvalidArgument, match=f"^{field}: "):
                sender.send(**arguments)
        sender.send(plan.source["kv"][1:], plan.state(plan.source))
        with pytest.raises(InvalidArgument, match=r"^send: the last send of this room was made before"):
            sender.send([1])
        bench.finish(receiver, sender)
        assert receiver.poll() is sender.poll() is Status.DONE, (receiver.failure, sender.failure)
        bench.check_bytes()
        with pytest.raises(RoomClosed, match="everything was sent"):
            sender.send([1])


def test_a_room_that_owes_nothing_is_done_before_its_sends_and_takes_them_all_the_same() -> None:
    """Its caller computes the whole prompt, and does not know what decode holds."""
    bench = Bench(1)
    plan = bench.plan(3, prefix=3, aux=False)
    receiver, sender = bench.receive(plan), bench.offer(plan, early=True)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE
    with pytest.raises(InvalidArgument, match="too many"):
        sender.send([0, 1, 2, 3])
    with pytest.raises(InvalidArgument, match="only 1 of 3 pages"):
        sender.send([0], last=True)
    sender.send([0, 1])
    sender.send([2], last=True)
    bench.settle()
    with pytest.raises(RoomClosed, match="everything was sent"):
        sender.send([3])
    bench.check_bytes()


def test_a_room_that_has_ended_or_was_closed_takes_no_send() -> None:
    bench = Bench(1)
    ended, closed = bench.prefill.open(1), bench.prefill.open(2)
    ended.abort("why")
    bench.settle()
    with pytest.raises(RoomClosed, match="aborted"):
        ended.send([1])
    closed.close()
    bench.settle()
    with pytest.raises(RoomClosed):
        closed.send([1])
    for room in (ended, closed):
        room.close()
        room.abort()
    bench.settle()
    bench.check_clean()


def test_arrays_that_a_caller_uses_again_are_copied() -> None:
    bench = Bench(2)
    plan = bench.plan(3)
    ours, theirs = np.array(plan.source["kv"]), np.array(plan.target["kv"], dtype=np.int32)
    receiver = bench.receive(plan, pages=theirs)
    sender = bench.offer(plan)
    sender.send(ours, last=True)
    ours[:] = theirs[:] = 0
    bench.finish(receiver, sender)
    bench.check_bytes()


def test_a_page_belongs_to_one_room_until_its_memory_is_free() -> None:
    bench = Bench(3, RICH)
    plan = bench.plan(2, state={"swa": 1})
    receiver = bench.receive(plan)
    where = {"bootstrap": bench.prefill.bootstrap}
    free = bench.decodes[0].take("conv", 1)
    for taken, field in [
        ({"pages": [plan.target["kv"][1]]}, "pages: it belongs to a room whose memory is not free"),
        ({"aux_index": plan.target["aux"][0]}, "aux_index: the slot belongs to a room"),
        ({"state_indices": {"conv": free, "swa": plan.target["swa"]}}, r"state_indices\[swa\]: it belongs to"),
        ({"state_indices": {"conv": plan.target["conv"]}}, r"state_indices\[conv\]: it belongs to"),
    ]:
        before = everything(bench)
        with pytest.raises(InvalidArgument, match=f"^{field}"):
            bench.decode.open(8, **{"state_indices": {"conv": free}, **where, **taken})
        assert everything(bench) == before
    receiver.abort()
    bench.settle()
    bench.decode.open(8, pages=plan.target["kv"], state_indices={"conv": free}, **where)


# -- how a room's end is told ------------------------------------------------------------------------------------------


def test_a_failure_is_raised_once_when_the_engine_holds_nothing_of_the_room() -> None:
    bench = Bench(4)
    receiver, sender = bench.receive(bench.plan(2)), bench.offer(bench.plan(3), early=True)
    bench.finish(receiver, sender)
    receiver.abort("later")
    bench.settle()
    for room, origin in ((receiver, "peer"), (sender, "local")):
        room.close()
        bench.settle()
        with pytest.raises(
            RoomFailed, match=r"^room 7: mismatch \(\w+\): pages: prefill has 3, decode expects 2"
        ) as caught:
            room.failure_exception()
        assert caught.value.failure == room.failure
        assert (caught.value.failure.reason, caught.value.failure.origin) == (Reason.MISMATCH, origin)
        with pytest.raises(RoomClosed, match="its failure was raised before"):
            room.failure_exception()
    assert not bench.decode.tables()["rooms"]


def test_later_causes_are_context_of_the_first() -> None:
    bench = Bench(5)
    sender = bench.prefill.open(7)
    for n in range(12):
        sender.abort(f"reason {n}")
    bench.settle()
    sender.close()
    bench.settle()
    with pytest.raises(RoomFailed) as caught:
        sender.failure_exception()
    assert caught.value.failure.detail == "reason 0"
    assert [failure.detail for failure in caught.value.context] == [f"reason {n}" for n in range(1, 9)]


def test_a_room_that_has_not_failed_raises_nothing() -> None:
    bench = Bench(6)
    plan = bench.plan(1)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    receiver.failure_exception()
    send_in(sender, plan, [1])
    bench.finish(receiver, sender)
    receiver.failure_exception()
    assert receiver.failure is None


def test_leaving_the_block_of_a_room_aborts_it_and_closing_twice_is_closing_once() -> None:
    bench = Bench(7)
    plan = bench.plan(1)
    with bench.offer(plan) as sender, bench.receive(plan) as receiver:
        bench.reach(receiver, "KV")
    bench.finish(sender, receiver)
    assert {sender.failure.reason, receiver.failure.reason} <= {Reason.ABORTED, Reason.PEER_ABORTED}
    sender.close()
    receiver.close()
    bench.settle()
    bench.check_clean()
    with bench.decode, bench.prefill:
        pass
    with pytest.raises(EngineClosed, match="decode-0 is closed"):
        bench.decode.open(1, bootstrap=bench.prefill.bootstrap)
    with pytest.raises(EngineClosed, match="prefill-0 is closed"):
        bench.prefill.open(1)
    bench.decode.close()


def test_a_handle_says_what_it_is() -> None:
    bench = Bench(8)
    room = bench.prefill.open(7, attempt=3)
    assert (room.room, room.attempt, room.phase, room.memory_free) == (7, 3, "METADATA", False)
    assert repr(room) == "<PrefillRoom room 7 attempt 3 METADATA>"
    assert bench.prefill.transport == "simulated"


# -- nothing is left ---------------------------------------------------------------------------------------------------


def test_tables_are_equal_after_one_room_and_after_two_hundred() -> None:
    bench = Bench(10, RICH)
    after: dict[int, Any] = {}
    for room in range(1, 201):
        plan = bench.plan(room % 4, state={"swa": room % 3})
        receiver, sender = bench.receive(plan, room), bench.offer(plan, room)
        send_in(sender, plan, [room % 4])
        bench.finish(receiver, sender)
        assert receiver.poll() is sender.poll() is Status.DONE
        receiver.close()
        sender.close()
        bench.settle()
        bench.check_clean()
        after[room] = [side.engine.tables() for side in (*bench.decodes, *bench.prefills)]
    assert after[200] == after[1]
    assert bench.prefill.counters() == {}, "nothing was ignored, refused or malformed"
    late = {"room events ignored", "acceptances of no open grant"}
    assert set(bench.decode.counters()) <= late, "at most an ACCEPT after its first notification, or its last"
    kept = Counter(type(thing).__name__ for thing in reached(bench))
    assert kept["PrefillEngine"], "the walk gets there"
    left = {kind: kept[kind] for kind in ("DecodeRecord", "PrefillRecord", "Writer", "Outbox")}
    assert max(left.values()) <= 4, left


def reached(root: object) -> Iterator[object]:
    """All that an object keeps alive by way of other objects; not what other tests have left in this process."""
    seen: dict[int, object] = {}
    ahead = [root]
    while ahead:
        thing = ahead.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType)):
            continue
        seen[id(thing)] = thing
        yield thing
        if isinstance(thing, FunctionType):
            ahead += thing.__closure__ or ()  # its module is everybody's
        else:
            ahead += gc.get_referents(thing)
