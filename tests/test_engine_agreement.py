"""Where the two sides do not agree, both learn it in words, at once, and nobody else notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from engine_bench import Bench, Plan, Shape, send_in, serve_another
from mutants import Mutant, dies, named

from kvrooms.engine import prefill_posting, sends
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.protocol.failure import Reason
from kvrooms.statemachine import ledger

TWO = Shape(indexed=2)
WITHOUT_AUX: dict[str, Any] = {"aux_index": None}


def disagree(bench: Bench, receiver: DecodeRoom, sender: PrefillRoom, words: str) -> None:
    """Both rooms fail with these words, without a timer; the memory comes back; the next room is served."""
    bench.finish(receiver, sender)
    for room in (receiver, sender):
        assert room.failure is not None, room
        assert room.failure.reason is Reason.MISMATCH, room.failure
        assert words in room.failure.detail, room.failure
        assert not room.failure.retryable
    assert receiver.failure.origin == "peer"
    assert receiver.failure.detail == sender.failure.detail
    bench.settle()
    assert receiver.memory_free
    assert sender.memory_free
    for room in (receiver, sender):
        room.close()
    serve_another(bench)
    bench.check_clean()
    assert bench.world.now == 0


def in_both_orders(bench: Bench, receive: Callable[[], Any], send: Callable[[], Any], order: int) -> tuple[Any, Any]:
    """Decode first; prefill first; or decode first and its METADATA there before prefill opens."""
    if order == 1:
        sender = send()
        return receive(), sender
    receiver = receive()
    if order == 2:
        bench.settle()
    return receiver, send()


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
@pytest.mark.parametrize(
    ("has", "wants", "prefix"), [(2, 3, 0), (3, 2, 0), (0, 1, 0), (1, 0, 0), (4, 3, 3), (16, 12, 0)]
)
def test_numbers_of_pages_that_differ(has: int, wants: int, prefix: int, early: bool) -> None:
    for seed, order in itertools.product(range(8), range(3)):
        bench = Bench(seed, pages=20)
        plan = bench.plan(max(has, wants), prefix=prefix)

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            sender = bench.offer(plan, pages=has if early else None)
            send_in(sender, plan, [has], last=None if early and has else True)
            return sender

        def receive(bench: Bench = bench, plan: Plan = plan) -> DecodeRoom:
            return bench.receive(plan, pages=plan.target["kv"][: wants - prefix])

        receiver, sender = in_both_orders(bench, receive, send, order)
        disagree(bench, receiver, sender, f"pages: prefill has {has}, decode expects {wants}")


def check_nothing_completes_before_the_totals() -> None:
    """Decode has all that it asked for before the last send, and prefill's caller has more: nobody is DONE."""
    for seed, order in itertools.product(range(6), range(3)):
        bench = Bench(seed)
        plan = bench.plan(3)

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            sender = bench.offer(plan, **WITHOUT_AUX)
            for page in plan.source["kv"][:2]:
                sender.send([page])
                bench.settle()
            return sender

        def receive(bench: Bench = bench, plan: Plan = plan) -> DecodeRoom:
            return bench.receive(plan, pages=plan.target["kv"][:2], **WITHOUT_AUX)

        receiver, sender = in_both_orders(bench, receive, send, order)
        bench.settle()
        assert not receiver.poll().terminal
        sender.send(plan.source["kv"][2:], last=True)
        disagree(bench, receiver, sender, "pages: prefill has 3, decode expects 2")


def check_nothing_asked_for() -> None:
    """Decode holds the whole prompt and asks for nothing, and prefill's caller has a page more."""
    for seed, order in itertools.product(range(4), range(3)):
        bench = Bench(seed)
        plan = bench.plan(3)

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            return bench.offer(plan, **WITHOUT_AUX)

        def receive(bench: Bench = bench, plan: Plan = plan) -> DecodeRoom:
            return bench.receive(plan, pages=[], prefix_pages=2, **WITHOUT_AUX)

        receiver, sender = in_both_orders(bench, receive, send, order)
        bench.settle()
        assert not receiver.poll().terminal
        sender.send(plan.source["kv"], last=True)
        disagree(bench, receiver, sender, "pages: prefill has 3, decode expects 2")


def test_decode_is_not_done_before_the_totals_were_compared() -> None:
    check_nothing_completes_before_the_totals()
    check_nothing_asked_for()


@pytest.mark.parametrize("order", range(3))
def test_a_room_that_asks_for_nothing_is_done_with_the_totals(order: int) -> None:
    bench = Bench(order)
    plan = bench.plan(2, prefix=2, aux=False)
    receive, send = partial(bench.receive, plan, **WITHOUT_AUX), partial(bench.offer, plan, **WITHOUT_AUX)
    receiver, sender = in_both_orders(bench, receive, send, order)
    bench.settle()
    send_in(sender, plan, [2])
    bench.finish(receiver, sender)
    assert (receiver.failure, sender.failure) == (None, None)


def test_the_check_of_rooms_that_ask_for_nothing_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(PrefillCore, "_accept", "(writer.unposted or record.room.ledger.declared.complete)", "True").plant(
        monkeypatch
    )
    dies(check_nothing_asked_for)


@named([
    Mutant(prefill_posting, "_completes_too_early", "not record.room.ledger.declared.complete", "False"),
    Mutant(PrefillPosting, "_post", "writer.unposted -= sum(part.size for part in piece.parts)", "pass"),
])  # fmt: skip
def test_the_check_of_totals_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_nothing_completes_before_the_totals)


@pytest.mark.parametrize("order", range(3))
def test_more_pages_than_decode_expects_fail_before_the_last_send(order: int) -> None:
    for seed in range(10):
        bench = Bench(seed)
        plan = bench.plan(3)

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            sender = bench.offer(plan)
            sender.send(plan.source["kv"][:2])
            sender.send(plan.source["kv"][2:])
            return sender

        def receive(bench: Bench = bench, plan: Plan = plan) -> DecodeRoom:
            return bench.receive(plan, pages=plan.target["kv"][:2])

        receiver, sender = in_both_orders(bench, receive, send, order)
        disagree(bench, receiver, sender, "pages: prefill has 3, decode expects 2")


@pytest.mark.parametrize("prefill_has_it", [True, False])
@pytest.mark.parametrize("order", range(3))
def test_aux_on_one_side_only(order: int, prefill_has_it: bool) -> None:
    for seed in range(10):
        bench = Bench(seed)
        plan = bench.plan(2)

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            return bench.offer(plan, **({} if prefill_has_it else WITHOUT_AUX))

        def receive(bench: Bench = bench, plan: Plan = plan) -> DecodeRoom:
            return bench.receive(plan, **(WITHOUT_AUX if prefill_has_it else {}))

        receiver, sender = in_both_orders(bench, receive, send, order)
        names = ["token", "logprob"]
        sends, expects = (names, []) if prefill_has_it else ([], names)
        disagree(bench, receiver, sender, f"aux: prefill sends {sends}, decode expects {expects}")


STATE_PAIRS = [(a, b) for a in itertools.product(range(3), repeat=2) for b in itertools.product(range(3), repeat=2)]


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("how", ["with the last send", "before the last send"])
def test_numbers_of_state_indices_that_differ_name_the_component_and_both_counts(order: int, how: str) -> None:
    for seed, (has, wants) in enumerate(pair for pair in STATE_PAIRS if pair[0] != pair[1]):
        bench = Bench(seed, TWO)
        most = {name: max(a, b) for name, a, b in zip(TWO.components, has, wants, strict=True)}
        plan = bench.plan(1, state=most)
        source = {name: plan.source[name][:n] for name, n in zip(TWO.components, has, strict=True)}
        target = {name: plan.target[name][:n] for name, n in zip(TWO.components, wants, strict=True)}

        def send(bench: Bench = bench, plan: Plan = plan, source: dict[str, list[int]] = source) -> PrefillRoom:
            sender = bench.offer(plan)
            sender.send(state_indices=source if how == "before the last send" else None)
            sender.send(plan.source["kv"], source if how == "with the last send" else None, last=True)
            return sender

        def receive(bench: Bench = bench, plan: Plan = plan, target: dict[str, list[int]] = target) -> DecodeRoom:
            return bench.receive(plan, state_indices=target)

        receiver, sender = in_both_orders(bench, receive, send, order)
        bench.finish(receiver, sender)
        name, a, b = next((n, a, b) for n, a, b in zip(TWO.components, has, wants, strict=True) if a != b)
        if how == "before the last send" and a < b:  # what is too much is known before what is too little
            name, a, b = next(
                ((n, a, b) for n, a, b in zip(TWO.components, has, wants, strict=True) if a > b), (name, a, b)
            )
        disagree(bench, receiver, sender, f"state component {name!r}: prefill sends {a} indices, decode expects {b}")


@pytest.mark.parametrize("order", range(3))
def test_more_state_than_decode_expects_fails_before_the_last_send(order: int) -> None:
    """The send that is too much may come before METADATA, while the totals are not declared."""
    for seed, wanted in itertools.product(range(10), range(3)):
        bench = Bench(seed, TWO)
        plan = bench.plan(1, state={"swa": 3, "index": 1})

        def send(bench: Bench = bench, plan: Plan = plan) -> PrefillRoom:
            sender = bench.offer(plan)
            sender.send(state_indices={"swa": plan.source["swa"]})
            return sender

        def receive(bench: Bench = bench, plan: Plan = plan, wanted: int = wanted) -> DecodeRoom:
            return bench.receive(
                plan, state_indices={"swa": plan.target["swa"][:wanted], "index": plan.target["index"]}
            )

        receiver, sender = in_both_orders(bench, receive, send, order)
        words = f"state component 'swa': prefill sends 3 indices, decode expects {wanted}"
        disagree(bench, receiver, sender, words)
        assert "index" not in sender.failure.detail, "nothing is known of that component yet"


def check_everything() -> None:
    """All of the above, in one order of the two sides each."""
    for early in (True, False):
        test_numbers_of_pages_that_differ(3, 2, 0, early)
        test_numbers_of_pages_that_differ(2, 3, 0, early)
    for order in range(3):
        test_more_pages_than_decode_expects_fail_before_the_last_send(order)
        test_more_state_than_decode_expects_fails_before_the_last_send(order)
        test_aux_on_one_side_only(order, prefill_has_it=order == 0)
    test_numbers_of_state_indices_that_differ_name_the_component_and_both_counts(0, "with the last send")


def test_the_checks_pass_without_a_mutant() -> None:
    check_everything()


@named(
    [
        Mutant(
            ledger,
            "differences",
            "if ours.get(name, 0) != theirs.get(name, 0)",
            "if (name in ours) != (name in theirs)",
        ),
        Mutant(ledger, "differences", "declared.pages != wanted.pages:", "declared.pages < wanted.pages:"),
        Mutant(ledger, "differences", "declared.pages != wanted.pages:", "declared.pages > wanted.pages:"),
        Mutant(ledger, "differences", "declared.aux != wanted.aux:", "not wanted.aux:"),
        Mutant(PrefillCore, "_bind", "self._declare(record, record.sends[-1])", "pass"),
        Mutant(sends, "too_much", "sent[name] <= expected.get(name, 0)", "bool(sent[name]) <= (name in expected)"),
        Mutant(PrefillCore, "_tell_failed", "self._tell(writer, ", "repr("),
        Mutant(DecodeCore, "_peer_failed", "grant is not None and", "grant is None and"),
    ]
)
def test_the_checks_find_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(check_everything)
