"""What waits inside an engine is bounded: calls that its thread has not taken in, and rooms that are closed, not over.

In a simulated world an engine takes nothing in before it is turned: what its callers can pile up is seen exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from engine_bench import Bench, send_in
from mutants import Mutant, dies, named

from kvrooms import EngineClosed, InvalidArgument, Overloaded, RoomClosed, Status
from kvrooms.engine import decode, host, prefill
from kvrooms.engine.core import CONTEXT_MAX
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol.errors import KvroomsError
from kvrooms.protocol.failure import Reason

CALLS = 12
THREADS = 4


def waiting(engine: Any) -> int:
    """The calls that wait for an engine's thread."""
    return len(engine._core._inbox)


def at_once(*calls: Callable[[], Any]) -> list[BaseException]:
    """Calls, each by several threads at the same time. What they raise."""
    gate, raised = threading.Barrier(len(calls) * THREADS), list[BaseException]()

    def run(call: Callable[[], Any]) -> None:
        gate.wait()
        try:
            call()
        except KvroomsError as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


# -- calls -------------------------------------------------------------------------------------------------------------


def check_sends() -> None:
    """Sends beyond the limit are refused to their caller; what was taken arrives, and then the rest does."""
    bench = Bench(1, settings=EngineSettings(calls_max=CALLS), pages=70)
    plan = bench.plan(60)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    pages = iter(plan.source["kv"])
    taken, refused = [], []
    one_by_one = threading.Lock()

    def send() -> None:
        for _ in range(CALLS + 1):
            with one_by_one:  # so that pages are sent in order: which thread sends one does not matter
                page = refused.pop() if refused else next(pages)
                try:
                    sender.send([page])
                except Overloaded:
                    refused.append(page)
                    raise
                taken.append(page)

    raised = at_once(send)
    assert len(raised) == THREADS
    assert "12 calls wait for the thread of prefill-0, and calls_max is that" in str(raised[0])
    assert waiting(bench.prefill) == len(taken) == CALLS
    assert taken == plan.source["kv"][:CALLS], "what was refused is the next to be sent"
    for call in (lambda: bench.prefill.open(8), lambda: sender.send([])):
        with pytest.raises(Overloaded, match="calls_max"):
            call()
    bench.settle()
    assert not sender.poll().terminal
    sender.send(plan.source["kv"][CALLS:], last=True)
    bench.finish(receiver, sender)
    assert [room.poll() for room in (receiver, sender)] == [Status.DONE] * 2  # byte for byte: see `Bench.ended`
    bench.prefill.open(8).close()


def test_sends_that_the_engine_does_not_take_in_are_refused_and_none_is_lost() -> None:
    check_sends()


def check_decode() -> None:
    """`open`, `hold` and the word on a fence are refused; nothing has changed by that."""
    bench = Bench(2, settings=EngineSettings(calls_max=CALLS))
    plan, where = bench.plan(3), {"bootstrap": bench.prefill.bootstrap}
    held = [bench.decode.hold(n, **where) for n in range(CALLS)]
    before = bench.decode.tables()
    refused: tuple[Callable[[], Any], ...] = (
        lambda: bench.receive(plan),
        lambda: bench.decode.hold(99, **where),
        lambda: bench.decode.peer_fenced("prefill-0"),
    )
    for call in refused:
        with pytest.raises(Overloaded, match="12 calls wait for the thread of decode-0"):
            call()
    assert bench.decode.tables() == before
    for hold in held:
        at_once(lambda hold=hold: bench.decode.release(hold))
    assert waiting(bench.decode) == 2 * CALLS, "to release is never refused, and counts once"
    bench.settle()
    assert bench.decode.tables()["holds"] == 0
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [3])
    bench.finish(receiver, sender)
    assert receiver.poll() is Status.DONE


def test_what_decode_does_not_take_in_is_refused_and_nothing_has_changed() -> None:
    check_decode()


def check_ends() -> None:
    """However often a room is aborted and closed, by whatever threads, that is a few calls, and never refused."""
    bench = Bench(3, settings=EngineSettings(calls_max=CALLS))
    plan = bench.plan(3)
    rooms = bench.receive(plan), bench.offer(plan)
    bench.settle()
    full = [bench.prefill.open(100 + n) for n in range(CALLS)]
    assert waiting(bench.prefill) == CALLS
    assert not at_once(*[call for room in rooms for call in (room.abort, room.close)])
    assert waiting(bench.prefill) == CALLS + THREADS + 1
    assert waiting(bench.decode) == THREADS + 1
    for _ in range(CONTEXT_MAX):
        assert not at_once(rooms[0].abort)
    assert waiting(bench.decode) == (1 + CONTEXT_MAX) + 1, "more of them would not be remembered"
    assert not at_once(*[room.close for room in full])
    assert waiting(bench.prefill) == CALLS + THREADS + 1 + CALLS
    bench.settle()
    assert {room.poll() for room in rooms} == {Status.FAILED}
    assert {room.failure.reason for room in rooms if room.failure} <= {Reason.ABORTED, Reason.PEER_ABORTED}
    for engine in (bench.prefill, bench.decode):
        tables = engine.tables()
        assert (tables["rooms"], tables["keys"], tables["unfree"]) == (0, 0, 0)


def test_to_end_a_room_is_a_few_calls_however_often_it_is_ended() -> None:
    check_ends()


def check_greetings() -> None:
    """A send of nothing says that the caller is there: once is enough until it is taken in, and then again."""
    bench = Bench(4, settings=EngineSettings(queued_timeout_s=10.0))
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    for _ in range(4):
        for _ in range(100):
            sender.send([])
        assert waiting(bench.prefill) == 1
        bench.pass_time(7.0)
        assert not sender.poll().terminal, "each of them begins the deadline anew"
    at_once(lambda: sender.send([]))
    sender.send(plan.source["kv"], last=True)
    assert waiting(bench.prefill) == 2
    bench.finish(receiver, sender)
    assert receiver.poll() is Status.DONE
    with pytest.raises((RoomClosed, InvalidArgument)):
        sender.send([])


def test_sends_that_say_nothing_do_not_pile_up_and_count() -> None:
    check_greetings()


def test_by_default_as_many_rooms_as_there_may_be_can_make_a_few_calls_each() -> None:
    settings = EngineSettings()
    assert settings.calls_max >= 4 * settings.rooms_max
    bench = Bench(5, pages=1, slots=1)
    senders = [bench.prefill.open(n) for n in range(1000)]
    for sender in senders:
        sender.send([])
        sender.abort()
        sender.close()
    assert waiting(bench.prefill) == 4000
    bench.settle()
    assert {sender.poll() for sender in senders} == {Status.FAILED}


# -- rooms -------------------------------------------------------------------------------------------------------------


def check_leases() -> None:
    """Rooms of nothing are opened, aborted and closed against a prefill that stands still: their leases count."""
    bench = Bench(6, settings=EngineSettings(rooms_max=8))
    rooms = [bench.decode.open(1, bootstrap=bench.prefill.bootstrap)]
    bench.settle()
    bench.world.stall(bench.prefills[0].name)
    refused = []
    for number in range(2, 40):
        try:
            room = bench.decode.open(number, bootstrap=bench.prefill.bootstrap)
        except Overloaded as error:
            refused.append(str(error))
            continue
        rooms.append(room)
        bench.steps(20)
        room.abort()
        room.close()
        bench.steps(20)
    assert (len(rooms), len(refused)) == (8, 32 - 1)
    assert refused[0] == (
        "decode-0 has 1 rooms that are not closed and 7 closed ones whose memory is held; rooms_max is 8"
    )
    tables = bench.decode.tables()
    assert (tables["grants"], tables["unfree"], tables["keys"]) == (8, 7, 1)
    with pytest.raises(Overloaded):
        bench.decode.hold(99, bootstrap=bench.prefill.bootstrap)
    bench.world.stall(bench.prefills[0].name, stalled=False)
    rooms[0].close()
    bench.until_free(*rooms)
    bench.settle()
    assert bench.decode.tables()["unfree"] == 0
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan, 50), bench.offer(plan, 50)
    send_in(sender, plan, [3])
    bench.finish(receiver, sender)
    assert receiver.poll() is Status.DONE


def test_leases_of_closed_rooms_count_as_rooms() -> None:
    check_leases()


def check_drains() -> None:
    """So do closed rooms of prefill that posted writes still read."""
    bench = Bench(7, settings=EngineSettings(rooms_max=2))
    bench.world.writes_held = True
    for number in (1, 2):
        plan = bench.plan(3)
        receiver, sender = bench.receive(plan, number), bench.offer(plan, number)
        send_in(sender, plan, [3])
        bench.settle()
        sender.close()
        bench.settle()
        receiver.close()
        assert not sender.memory_free
    with pytest.raises(Overloaded, match="0 rooms that are not closed and 2 closed ones whose memory is held"):
        bench.prefill.open(3)
    bench.world.heal()
    bench.settle()
    bench.prefill.open(3).close()
    bench.settle()
    bench.check_clean()


def test_closed_rooms_that_are_still_read_count_as_rooms() -> None:
    check_drains()


def test_an_engine_that_is_closed_says_so_and_not_that_it_is_overloaded() -> None:
    bench = Bench(8, settings=EngineSettings(calls_max=1))
    bench.prefill.open(1)
    bench.prefill.close()
    with pytest.raises(EngineClosed):
        bench.prefill.open(2)


def check_all() -> None:
    """All of the above that a mistake can break."""
    for check in (check_sends, check_decode, check_ends, check_greetings, check_leases, check_drains):
        check()


@named(
    [
        Mutant(host.Engine, "_check_calls", "if waiting >= self.settings.calls_max:", "if False:"),
        Mutant(host.Engine, "_check_room", "self._check_calls()", "pass"),
        Mutant(prefill.PrefillEngine, "_send", "self._check_calls()", "pass"),
        Mutant(prefill.PrefillEngine, "_send", "if record.greeted:", "if False:"),
        Mutant(PrefillCore, "send", "record.greeted = False", "pass"),
        Mutant(host.Engine, "abort_room", " and room.aborts <= 1 + CONTEXT_MAX", ""),
        Mutant(host.Engine, "close_room", "None if room.closing else room.record", "room.record"),
        Mutant(decode.DecodeEngine, "peer_fenced", "self._check_calls()", "pass"),
        Mutant(host.Engine, "_check_room", "if opened + unfree >=", "if opened >="),
        Mutant(host.Engine, "room_freed", "self._unfree.pop(room, None)", "pass"),
        Mutant(host.Engine, "room_forgotten", "if not room._free.happened:", "if True:"),
    ]
)
def test_the_limits_find_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_all)
