"""Limits in seconds, words, names and flags that cannot be meant: they raise at once, and change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_bench import Bench, Shape, send_in
from group_bench import Bench as GroupBench
from mutants import Mutant, dies, named
from test_misuse import open_rooms, state_of

from kvrooms import InvalidArgument, Status, wait_any
from kvrooms.engine import claims, draining, handle, host, prefill
from kvrooms.engine.decode import TIMEOUTS
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey

NO_SECONDS: dict[str, Any] = {
    "text": "1",
    "nan": math.nan,
    "numpy_nan": np.float32("nan"),
    "bool": True,
    "list": [1],
    "two_numbers": np.array([1.0, 2.0]),
    "complex": 1j,
}
NO_LIMITS = {**NO_SECONDS, "negative": -1, "a_little_negative": -1e-9, "minus_infinity": -math.inf}


def refuses(bench: Bench, call: Callable[[], object], field: str) -> None:
    """The call raises, naming the argument, and nothing has changed."""
    before = state_of(bench)
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        call()
    bench.settle()
    assert state_of(bench) == before


def check_limits(value: Any) -> None:
    with open_rooms() as (bench, receiver, sender, _):
        for engine in (bench.decode, bench.prefill):
            refuses(bench, lambda engine=engine: engine.drain(value), "timeout")
            refuses(bench, lambda engine=engine: engine.close(value), "timeout")
            refuses(bench, lambda engine=engine: draining.drain_all([engine], value), "limit_s")
        for room in (receiver, sender):
            refuses(bench, lambda room=room: room.abort(timeout=value), "timeout")
        refuses(bench, lambda: draining.Drainer(print, value), "limit_s")
        bench.prefill.open(70).close()  # which it would not, if the refused drain had begun
        bench.settle()


def check_waits(value: Any) -> None:
    with open_rooms() as (bench, receiver, sender, _):
        for room in (receiver, sender):
            calls = [list(moment._calls or ()) for moment in (room._end, room._free)]
            for wait in (room.wait, room.wait_outcome, room.wait_memory_free):
                refuses(bench, lambda wait=wait: wait(value), "timeout")
            assert [list(moment._calls or ()) for moment in (room._end, room._free)] == calls, "it is waited for still"
        refuses(bench, lambda: wait_any([receiver, sender], value), "timeout")


@pytest.mark.parametrize("label", NO_LIMITS)
def test_a_limit_that_is_no_number_of_seconds(label: str) -> None:
    check_limits(NO_LIMITS[label])


@pytest.mark.parametrize("label", NO_SECONDS)
def test_a_wait_that_is_no_number_of_seconds(label: str) -> None:
    check_waits(NO_SECONDS[label])


@named([
    Mutant(host.Engine, "drain", 'check_limit("timeout", timeout)', "timeout"),
    Mutant(host.Engine, "close", 'check_limit("timeout", timeout)', "timeout"),
    Mutant(handle.Room, "abort", 'check_limit("timeout", timeout)', "timeout"),
    Mutant(handle.Room, "wait", 'check_left("timeout", timeout)', "timeout"),
    Mutant(handle.Room, "wait_outcome", 'check_left("timeout", timeout)', "timeout"),
    Mutant(handle.Room, "wait_memory_free", 'check_left("timeout", timeout)', "timeout"),
])  # fmt: skip
def test_the_checks_of_limits_notice(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)

    def both() -> None:
        check_limits("1")
        check_waits("1")

    dies(both)


@pytest.mark.parametrize("left", [0, -1, -math.inf, np.float32(-0.5)])
def test_a_wait_whose_time_is_up_is_over_at_once(left: float) -> None:
    with open_rooms() as (_, receiver, sender, _):
        for room in (receiver, sender):
            for wait in (room.wait, room.wait_outcome):
                with pytest.raises(TimeoutError):
                    wait(left)
            assert not room.wait_memory_free(left)
        with pytest.raises(TimeoutError):
            wait_any([receiver, sender], left)


@pytest.mark.parametrize("ever", [math.inf, 1e300, 10**300, None])
def test_a_wait_longer_than_any_clock(ever: float | None) -> None:
    bench = Bench(1)
    plan = bench.plan(1)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [1])
    bench.finish(receiver, sender)
    assert receiver.wait(ever) is Status.DONE
    assert wait_any([receiver, sender], ever)
    assert sender.wait_memory_free(ever)


# -- words and flags ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [5, None, b"x", "half \ud800"], ids=repr)
def test_the_reason_of_an_abort_is_text(words: Any) -> None:
    """It goes to the engine's thread and to the other side: neither may trip over it."""
    with open_rooms() as (bench, receiver, sender, _):
        for room in (receiver, sender):
            refuses(bench, lambda room=room: room.abort(words), "detail")


@pytest.mark.parametrize("flag", ["yes", 1, None, np.int64(1)], ids=repr)
def test_a_flag_is_true_or_false(flag: Any) -> None:
    with open_rooms() as (bench, receiver, _, _):
        refuses(bench, lambda: receiver.abort(again=flag), "again")
        refuses(bench, lambda: bench.prefill.open(70, skip_state=flag), "skip_state")
        refuses(bench, lambda: bench.decode.open(70, bootstrap=bench.prefill.bootstrap, skip_state=flag), "skip_state")


def test_a_flag_of_numpy_is_one() -> None:
    bench = Bench(1)
    plan = bench.plan(1)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    receiver.abort("later", again=np.bool_(True))
    bench.settle()
    assert receiver.failure.again is True
    assert sender.failure.retryable


def test_whom_to_fence_and_what_to_release() -> None:
    with open_rooms() as (bench, *_):
        for wrong in (5, None, "", b"prefill"):
            refuses(bench, lambda wrong=wrong: bench.decode.peer_fenced(wrong), "engine")
            refuses(bench, lambda wrong=wrong: bench.decode.release(wrong), "hold")


# -- deadlines of the other side ---------------------------------------------------------------------------------------

EVERY = sorted({name for names in TIMEOUTS.values() for name in names})


@pytest.mark.parametrize("side", TIMEOUTS)
@pytest.mark.parametrize("name", EVERY)
def test_a_side_takes_the_deadlines_that_it_has(side: str, name: str) -> None:
    """Each one that `open` takes ends a room that nobody answers, or may: none is taken and forgotten."""
    with open_rooms() as (bench, *_):
        engine = getattr(bench, side)
        more: dict[str, Any] = {"bootstrap": bench.prefill.bootstrap} if side == "decode" else {}
        if name in TIMEOUTS[side]:
            room = engine.open(70, **more, **{name: 12.5})
            assert getattr(room.record.settings, name) == 12.5
            room.close()
            bench.settle()
            return
        refuses(bench, lambda: engine.open(70, **more, **{name: 12.5}), name)
        with pytest.raises(InvalidArgument, match=rf"is a deadline of the (pre|de).* side; on {side} timeouts are "):
            engine.open(70, **more, **{name: 12.5})


# -- twice the same page to send ---------------------------------------------------------------------------------------

TWICE: dict[str, Any] = {
    "of_two": [3, 3],
    "of_a_few": [5, 4, 3, 5],
    "an_array": np.array([5, 4, 5]),
}


def check_twice(pages: Any) -> None:
    with open_rooms() as (bench, _, sender, plan):
        refuses(bench, lambda: sender.send(pages), "pages")
        sent = plan.source["kv"][1]
        with pytest.raises(InvalidArgument, match="an earlier send of this room has named it"):
            sender.send([plan.source["kv"][2], sent])
        with pytest.raises(InvalidArgument, match="an earlier send of this room has named it"):
            sender.send([sent], last=True)


@pytest.mark.parametrize("label", TWICE)
def test_twice_the_same_page_to_send(label: str) -> None:
    check_twice(TWICE[label])


@pytest.mark.parametrize("count", [2, 32, 33, 128, 1000])
def test_one_page_twice_among_any_number(count: int) -> None:
    pages = np.random.default_rng(count).permutation(5000)[:count].astype(np.int32)
    claims.check_once("pages", pages)
    pages[-1] = pages[0]
    with pytest.raises(InvalidArgument, match=rf"^pages: names an item twice \(got {pages[0]}\)"):
        claims.check_once("pages", pages)


@named([
    Mutant(prefill.PrefillEngine, "_send", 'check_once("pages", some)', "pass"),
    Mutant(prefill, "_note_items", "before.update(listed)", "pass"),
    Mutant(prefill, "_note_items", "(last and not before)", "last"),
])  # fmt: skip
def test_the_check_of_pages_sent_twice_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(lambda: check_twice([3, 3]))


def test_a_rank_without_kv_says_how_many_pages_however_it_names_them() -> None:
    bench = Bench(1, Shape(layers=0, indexed=1))
    plan = bench.plan(0, state={"swa": 2})
    receiver = bench.receive(plan, pages=[0] * 4)
    sender = bench.offer(plan)
    sender.send([7, 7])
    sender.send([7, 7], plan.state(plan.source), last=True)
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE


def test_what_a_room_has_named_is_forgotten_with_its_last_send() -> None:
    bench = Bench(1)
    for number in (7, 8):
        sender = bench.prefill.open(number)
        sender.send([1, 2])
        sender.send([3])
        assert sender._sent_items == {1, 2, 3}
        sender.send([4], last=True)
        assert not sender._sent_items
        sender.close()
        bench.settle()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_what_a_group_is_told_is_checked_before_it_is_heard() -> None:
    bench = GroupBench(2)
    group = bench.groups[1]
    key = RoomKey(7, 0)
    before = group.tables()
    for value in NO_LIMITS.values():
        for call in (lambda value=value: group.join(value), lambda value=value: group.close(value)):
            with pytest.raises(InvalidArgument, match=r"^timeout: "):
                call()
    for value in NO_SECONDS.values():
        with pytest.raises(InvalidArgument, match=r"^timeout: "):
            group.wait_outcome(key, value)
    for wrong in ("7", 7, (7, 0), None):
        with pytest.raises(InvalidArgument, match=r"^key: "):
            group.enter(wrong)
    with pytest.raises(InvalidArgument, match=r"^status: "):
        group.report(key, "DONE")
    with pytest.raises(InvalidArgument, match=r"^failure: "):
        group.report(key, Status.FAILED, Failure(Reason.ABORTED, "half \ud800"))
    assert group.tables() == before
    assert not group._closing
