"""Any order: of arrivals, of the two sides, of rooms beside and after each other, of engines beside each other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from engine_bench import Bench, Plan, Shape, send_in
from mutants import Mutant, dies, named

from kvrooms import InvalidArgument, Status
from kvrooms.engine import sends
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.ports import SimTransport
from kvrooms.harness.world import Faults
from kvrooms.protocol.failure import Reason
from kvrooms.statemachine import ledger

RICH = Shape(indexed=1, always=1)
SEEDS = range(60)


def both(bench: Bench, plan: Plan, room: int = 7, *, decode_first: bool = True, **options: Any) -> Any:
    """Open a room on both sides, in this order."""
    opened: dict[bool, DecodeRoom | PrefillRoom] = {}
    for receives in (decode_first, not decode_first):
        opened[receives] = bench.receive(plan, room, **options) if receives else bench.offer(plan, room, **options)
    return opened[True], opened[False]


def all_done(*rooms: DecodeRoom | PrefillRoom) -> None:
    """Every room has ended DONE."""
    assert {room.poll() for room in rooms} == {Status.DONE}, [str(room.failure) for room in rooms]


@pytest.mark.parametrize("small_pieces", [False, True], ids=["whole", "item by item"])
@pytest.mark.parametrize("decode_first", [True, False], ids=["decode first", "prefill first"])
def test_arrivals_come_in_any_order(decode_first: bool, small_pieces: bool) -> None:
    """Pieces, and the descriptors of one piece, land in any order; with 1-byte pieces every item is its own."""
    settings = EngineSettings(piece_bytes=1) if small_pieces else None
    for seed in SEEDS:
        bench = Bench(seed, RICH, settings=settings)
        plan = bench.plan(5, state={"swa": 2})
        receiver, sender = both(bench, plan, decode_first=decode_first)
        send_in(sender, plan, [2, 1, 2])
        bench.finish(receiver, sender)
        all_done(receiver, sender)
        for room in (receiver, sender):
            room.close()
        bench.settle()
        bench.check_clean()
        assert bench.world.now == 0


@pytest.mark.parametrize("seed", range(30))
def test_repeated_notifications_are_counted_and_change_nothing(seed: int) -> None:
    """Every notification is delivered twice, the second time at any later moment."""
    bench = Bench(seed, RICH, settings=EngineSettings(piece_bytes=1))
    transport = bench.decode._core.transport
    arrive = transport._arrive

    def twice(arrival: Any) -> None:
        arrive(arrival)
        bench.world.later("again", lambda: arrive(arrival), ordered=False)

    transport._arrive = twice
    rooms = []
    for room in range(3):
        plan = bench.plan(3, state={"swa": 2})
        receiver, sender = both(bench, plan, room)
        send_in(sender, plan, [1, 2])
        rooms += [receiver, sender]
    bench.finish(*rooms)
    all_done(*rooms)
    for room in rooms:
        room.close()
    bench.settle()
    bench.check_clean()
    counters = bench.decode.counters()
    assert counters["room events ignored"] + counters["notifications of no open grant"] > 0
    assert set(counters) <= {"room events ignored", "notifications of no open grant"}


@pytest.mark.parametrize("seed", range(30))
def test_frames_repeated_and_out_of_order_do_no_harm_to_rooms_that_agree(seed: int) -> None:
    bench = Bench(seed, RICH, faults=Faults(repeat=0.3, reorder=True))
    rooms = []
    for room in range(4):
        plan = bench.plan(2, state={"swa": room % 2})
        receiver, sender = both(bench, plan, room, decode_first=bool(room % 2))
        send_in(sender, plan, [1, 1])
        rooms.append((receiver, sender))
    bench.finish(*itertools.chain(*rooms))
    for receiver, sender in rooms:
        all_done(sender)  # a METADATA that is repeated after prefill is DONE is refused: decode may lose that race
        assert receiver.poll() is Status.DONE or receiver.failure.reason is Reason.REFUSED
    for room in itertools.chain(*rooms):
        room.close()
    bench.settle()
    bench.check_bytes()


@pytest.mark.parametrize("decode_first", [True, False])
def test_chunks_as_they_are_computed(decode_first: bool) -> None:
    """Each chunk is sent only when the one before has landed: phases move on with it."""
    for seed in range(20):
        bench = Bench(seed, Shape())
        bench.overwrites = False
        plan = bench.plan(6)
        receiver, sender = both(bench, plan, decode_first=decode_first)
        assert receiver.poll() is Status.BOOTSTRAPPING
        bench.reach(receiver, "KV")
        assert receiver.poll() is Status.WAITING
        for at in range(0, 6, 2):
            sender.send(plan.source["kv"][at : at + 2], last=None if at < 4 else True)
            landed = {page: bench.decodes[0].pool.parts["kv"][0][page].copy() for page in plan.target["kv"]}
            bench.world.settle()
            for position, page in enumerate(plan.target["kv"]):
                changed = bool((landed[page] != bench.decodes[0].pool.parts["kv"][0][page]).any())
                assert changed == (at <= position < at + 2)
            assert receiver.poll() is (Status.TRANSFERRING if at < 4 else Status.DONE)
        all_done(receiver, sender)


def test_a_room_whose_pages_are_known_early_needs_no_last() -> None:
    for seed in range(20):
        bench = Bench(seed, Shape(indexed=1))
        plan = bench.plan(4, state={"swa": 1})
        receiver, sender = bench.receive(plan), bench.offer(plan, early=True)
        send_in(sender, plan, [1, 3], last=None)
        bench.finish(receiver, sender)
        all_done(receiver, sender)


@pytest.mark.parametrize("seed", range(20))
def test_ten_rooms_interleaved(seed: int) -> None:
    bench = Bench(seed, RICH, pages=40, slots=12)
    draw, senders, receivers, steps = bench.world.random, [], [], []
    for room in range(10):
        plan = bench.plan(draw.randrange(5), state={"swa": draw.randrange(3) if room < 4 else 0})
        receiver, sender = both(bench, plan, room, decode_first=draw.random() < 0.5)
        senders.append(sender)
        receivers.append(receiver)
        for page in plan.source["kv"]:
            steps.append((room, lambda s=sender, p=page: s.send([p])))
        steps.append((room, lambda s=sender, p=plan: s.send([], p.state(p.source), last=True)))
    order = [room for room, _ in steps]
    draw.shuffle(order)
    queues = {room: iter([step for of, step in steps if of == room]) for room in range(10)}
    for room in order:  # sends of one room in order, those of different rooms in any
        next(queues[room])()
        bench.steps(draw.randrange(12))
    bench.finish(*senders, *receivers)
    all_done(*senders, *receivers)
    for room in (*senders, *receivers):
        room.close()
    bench.settle()
    bench.check_clean()
    assert bench.world.now == 0


# -- room numbers and attempts used again ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_a_room_number_is_used_again_after_done_and_after_failed(seed: int) -> None:
    """Either attempt or number stays; each life is judged by itself, also where the other side lags behind."""
    bench = Bench(seed, RICH)
    for life in range(8):
        plan = bench.plan(2, state={"swa": 1})
        receiver, sender = both(bench, plan, 7, decode_first=bool(life % 2), attempt=(life // 4) % 2)
        if life % 3 == 2:
            receiver.abort("enough")
            bench.finish(receiver, sender)
            assert receiver.failure.reason is Reason.ABORTED
            assert sender.failure.reason in (Reason.PEER_ABORTED, Reason.REFUSED)
        else:
            send_in(sender, plan, [1, 1])
            bench.finish(receiver, sender)
            all_done(receiver, sender)
        for room in (receiver, sender):
            room.close()
        bench.settle()
        bench.check_clean()


@pytest.mark.parametrize("seed", range(30))
def test_the_next_life_may_begin_on_decode_before_prefill_has_closed_the_last(seed: int) -> None:
    bench = Bench(seed)
    first, second = bench.plan(2), bench.plan(2)
    receiver, sender = both(bench, first)
    send_in(sender, first, [2])
    bench.finish(receiver)
    receiver.close()
    bench.run(lambda: not bench.decode.tables()["keys"])
    again = bench.receive(second)
    bench.settle()
    assert again.poll() is Status.BOOTSTRAPPING, again.failure
    sender.close()
    bench.run(lambda: not bench.prefill.tables()["keys"])
    sender_again = bench.offer(second)
    send_in(sender_again, second, [1, 1])
    bench.finish(again, sender_again)
    all_done(again, sender_again)
    bench.check_bytes()


def test_a_key_is_in_use_until_its_room_is_closed() -> None:
    bench = Bench(3)
    plan, other = bench.plan(1), bench.plan(1)
    receiver, sender = both(bench, plan)
    for open_again in (lambda: bench.receive(other), lambda: bench.offer(other)):
        with pytest.raises(InvalidArgument, match=r"room 7 is open already"):
            open_again()
    send_in(sender, plan, [1])
    bench.finish(receiver, sender)
    with pytest.raises(InvalidArgument, match=r"room 7 is open already"):
        bench.offer(other)
    receiver_two, sender_two = both(bench, other, attempt=1)
    send_in(sender_two, other, [1])
    bench.finish(receiver_two, sender_two)
    all_done(receiver_two, sender_two)


# -- pages that decode holds already -----------------------------------------------------------------------------------


@pytest.mark.parametrize("aux", [True, False])
@pytest.mark.parametrize(("pages", "prefix"), [(0, 0), (1, 0), (1, 1), (5, 0), (5, 1), (5, 3), (5, 5)])
def test_pages_are_paired_by_position(pages: int, prefix: int, aux: bool) -> None:
    for seed, chunks in enumerate([[pages], [0, pages], [pages // 2, pages - pages // 2], [1] * pages or [0]]):
        for decode_first in (True, False):
            bench = Bench(seed, Shape(indexed=1))
            plan = bench.plan(pages, prefix=prefix, aux=aux)
            receiver, sender = both(bench, plan, decode_first=decode_first)
            send_in(sender, plan, chunks)
            bench.finish(receiver, sender)
            all_done(receiver, sender)
            for room in (receiver, sender):
                room.close()
            bench.settle()
            bench.check_clean()
            assert bench.world.now == 0


# -- several engines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_many_engines_on_both_sides(seed: int) -> None:
    """Every decode engine has a room with every prefill engine, under the same number at every pair of engines."""
    bench = Bench(seed, RICH, prefills=2, decodes=3)
    rooms: list[DecodeRoom | PrefillRoom] = []
    for prefill, decode in itertools.product(range(2), range(3)):
        where = {"prefill": prefill, "attempt": prefill}
        plan = bench.plan(2, state={"swa": 1}, prefill=prefill, decode=decode)
        sender = bench.offer(plan, decode, **where)
        rooms += [bench.receive(plan, decode, decode=decode, **where), sender]
        send_in(sender, plan, [1, 1])
    bench.finish(*rooms)
    all_done(*rooms)
    for room in rooms:
        room.close()
    bench.settle()
    bench.check_clean()
    assert bench.world.now == 0


@pytest.mark.parametrize("opened_first", [True, False], ids=["prefill open", "both parked"])
def test_two_decode_engines_ask_for_the_same_room_and_one_is_refused_in_words(opened_first: bool) -> None:
    for seed in range(40):
        bench = Bench(seed, RICH, decodes=2)
        plans = [bench.plan(2, decode=0, state={"swa": 1}), bench.plan(3, decode=1, state={"swa": 0})]
        sender = bench.offer(plans[0]) if opened_first else None
        receivers = [bench.receive(plan, decode=i) for i, plan in enumerate(plans)]
        if sender is None:
            bench.settle()
            sender = bench.offer(plans[0])
        bench.settle()  # both have asked: whoever asks for a room that is DONE waits for its next life
        send_in(sender, plans[0], [2])
        bench.finish(sender, *receivers)
        if receivers[0].poll() is Status.DONE:
            all_done(sender)
            assert receivers[1].failure.reason is Reason.REFUSED
            assert "room 7 is bound to decode-0" in receivers[1].failure.detail or "not open" in str(
                receivers[1].failure
            )
        else:  # the other one came first: its pages do not agree with the room's
            assert sender.failure.reason is Reason.MISMATCH
            assert receivers[1].failure.reason is Reason.MISMATCH
        for room in (sender, *receivers):
            room.close()
        bench.settle()
        bench.check_bytes()


# -- the checks can fail -----------------------------------------------------------------------------------------------


def check_order() -> None:
    """The tests above that have no parameters of their own, on fewer seeds."""
    for seed in range(6):
        test_repeated_notifications_are_counted_and_change_nothing(seed)
        test_ten_rooms_interleaved(seed)
        test_many_engines_on_both_sides(seed)
        test_the_next_life_may_begin_on_decode_before_prefill_has_closed_the_last(seed)
    test_arrivals_come_in_any_order(decode_first=True, small_pieces=True)
    test_pages_are_paired_by_position(5, 3, aux=True)
    test_two_decode_engines_ask_for_the_same_room_and_one_is_refused_in_words(opened_first=False)


def test_the_checks_pass_without_a_mutant() -> None:
    check_order()


@named(
    [
        Mutant(sends, "transfers", "send.pages[low - first : high - first]", "send.pages[: high - low]"),
        Mutant(ledger.Missing, "without", "remove(self.kv, start, stop)", "remove(self.kv, 0, stop)"),
        Mutant(ledger, "_earlier", "if missing.aux:", "if False:"),
        Mutant(PrefillCore, "_place", "if stranger is not None:", "if False:"),
        Mutant(PrefillCore, "_place", " or record.room.phase is Phase.DONE", ""),
        Mutant(
            SimTransport, "_land", "if write.left or write.error is not None:", "if False:"
        ),  # the world's own: notified too soon
    ]
)
def test_the_checks_find_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_order)
