"""What a failed room says: which obligations were met, which were open, and what to look at."""

from __future__ import annotations

import numpy as np
import pytest
from engine_bench import Bench, Shape
from mutants import Mutant, dies, named

from kvrooms import RoomFailed, Status
from kvrooms.engine import account
from kvrooms.protocol.manifest import Manifest
from kvrooms.protocol.notify import PartKind
from kvrooms.statemachine.ledger import owed

STATEFUL = Shape(indexed=1, always=1)


def part_of_a_room(seed: int, sent: int = 2) -> tuple[Bench, object, object, object]:
    """A room of four pages of which some have been sent and have settled, and nothing else is coming."""
    bench = Bench(seed, STATEFUL)
    plan = bench.plan(4, state={"swa": 2})
    receiver, sender = bench.receive(plan), bench.offer(plan)
    sender.send(plan.source["kv"][:sent])
    bench.settle()
    return bench, plan, receiver, sender


def check_met(seed: int) -> None:
    bench, plan, receiver, sender = part_of_a_room(seed)
    assert receiver.met is None
    side = bench.decodes[0]
    for value, found in zip(plan.values["kv"], side.pool.read("kv", plan.target["kv"]), strict=True):
        np.testing.assert_array_equal(found[:2], value[:2])  # the oracle: what has landed
    receiver.abort("had enough")
    bench.settle()
    for room in (receiver, sender):
        assert room.met == account.Met(((0, 2),), False, {"swa": (), "conv": ()})
    receiver.close()
    bench.settle()
    with pytest.raises(RoomFailed) as failed:
        receiver.failure_exception()
    assert failed.value.met == receiver.met


@pytest.mark.parametrize("seed", range(5))
def test_a_failed_room_says_what_was_met_on_both_sides(seed):
    check_met(seed)


@named([
    Mutant(account, "met", "_without(whole.kv, missing.kv)", "missing.kv"),
    Mutant(account, "met", "bool(whole.aux) and not missing.aux", "bool(whole.aux)"),
    Mutant(account, "_without", "remove(left, *gap)", "left"),
])  # fmt: skip
def test_the_check_of_what_was_met_notices(mutant, monkeypatch):
    mutant.plant(monkeypatch)
    dies(lambda: check_met(1))


def test_a_room_that_nobody_answered_has_met_nothing():
    bench = Bench(1)
    plan = bench.plan(2)
    sender, receiver = bench.offer(plan), bench.receive(bench.plan(2), room=8)
    bench.settle()
    for room in (sender, receiver):
        room.abort()
    bench.settle()
    assert sender.met == account.NOTHING_MET
    assert receiver.met == account.Met((), False, {})


def test_a_room_that_is_done_has_nothing_left_to_say():
    bench = Bench(1)
    plan = bench.plan(2)
    sender, receiver = bench.offer(plan), bench.receive(plan)
    sender.send(plan.source["kv"], last=True)
    bench.settle()
    assert receiver.poll() is Status.DONE
    assert receiver.met is None


def test_a_passed_deadline_says_what_was_open_and_for_how_long():
    bench, _plan, receiver, sender = part_of_a_room(3)
    bench.finish(receiver, sender, timers=True)
    words = [room.failure.detail for room in (receiver, sender)]
    first = next(text for text in words if "was in KV after" in text)
    for part in ("pages 2 to 3 of 4", "aux", "2 of 2 indices of 'swa'", "1 of 1 indices of 'conv'", "no progress for"):
        assert part in first


KV, AUX, STATE = PartKind
MANIFEST = Manifest(9, ((1, 9),), ("t",), (("swa", 3), ("conv", 1)))


@pytest.mark.parametrize(
    ("landed", "words"),
    [
        ([], "pages 1 to 8 of 9, aux, 3 of 3 indices of 'swa', 1 of 1 indices of 'conv'"),
        ([(KV, 0, 2, 9), (AUX, 0, 0, 1)], "page 1 of 9, 3 of 3 indices of 'swa', 1 of 1 indices of 'conv'"),
        ([(KV, 0, 1, 9), (STATE, 0, 0, 2), (STATE, 1, 0, 1)], "aux, 1 of 3 indices of 'swa'"),
    ],
)  # fmt: skip
def test_what_is_open_is_said_in_words(landed, words):
    missing = owed(MANIFEST)
    for part in landed:
        missing = missing.without(*part)
    assert account.open_words(MANIFEST, missing) == words


def test_words_stay_short_and_are_never_empty():
    many = Manifest(99, tuple((a, a + 1) for a in range(0, 40, 2)), (), ())
    assert account.open_words(many, owed(many)) == "pages 0, 2, 4, 6, ... of 99"
    nothing = Manifest(0, (), (), ())
    assert account.open_words(nothing, owed(nothing)) == "nothing but the other side's word"
