"""Any rooms on the real ports: threads, NIXL and TCP, one pair of engines for all of them; and every byte is looked at.

Few examples, because each waits for real engines. What this adds to the simulated world is that nothing is simulated.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from kvrooms import DecodeEngine, PrefillEngine, Status
from kvrooms.harness import strategies as rooms
from kvrooms.harness.simulate.memory import Pool, Shape, source_pool, target_pool
from kvrooms.harness.stateful.base import Account, current
from kvrooms.harness.stateful.stage import cells_of_engines
from kvrooms.protocol.failure import Reason

pytestmark = pytest.mark.nixl
LIMIT_S = 30.0
PAGES, SLOTS = 24, 8
SHAPE = Shape(indexed=2)
NAMES = ("swa", "index")
few = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Pair:
    """Two engines, their memory, and room numbers that were not used before."""

    def __init__(self, prefill: PrefillEngine, source: Pool, decode: DecodeEngine, target: Pool) -> None:
        self.prefill, self.source, self.decode, self.target = prefill, source, decode, target
        self.number = 0

    def landed(self, part: str, sent: list[int], at: list[int]) -> bool:
        pairs = zip(self.source.read(part, sent), self.target.read(part, at), strict=True)
        return all(a.tobytes() == b.tobytes() for a, b in pairs)

    @contextmanager
    def opened(self, decode_first: bool, target: dict[str, Any], source: dict[str, Any]) -> Iterator[list[Any]]:
        """A room on both sides: [decode's, prefill's]; closed at the end, and its memory back."""
        self.number += 1
        number, rooms = self.number, {}
        for side in ("decode", "prefill") if decode_first else ("prefill", "decode"):
            if side == "decode":
                rooms[side] = self.decode.open(number, bootstrap=self.prefill.bootstrap, **target)
            else:
                rooms[side] = self.prefill.open(number, **source)
        both = [rooms["decode"], rooms["prefill"]]
        try:
            yield both
        finally:
            for room in both:
                room.close()
            back = [room.wait_memory_free(LIMIT_S) and room._gone.wait(room._desk.lock, LIMIT_S) for room in both]
        assert all(back), "its memory does not come back, or the engine still knows it"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    source, target = source_pool(SHAPE, 5, pages=PAGES, slots=SLOTS), target_pool(SHAPE, pages=PAGES, slots=SLOTS)
    with (
        PrefillEngine(source.memory, name="property-p") as prefill,
        DecodeEngine(target.memory, name="property-d") as decode,
    ):
        yield Pair(prefill, source, decode, target)
        for engine in (prefill, decode):
            left = {name: n for name, n in engine.tables().items() if name in ("rooms", "keys", "claims", "grants")}
            assert not any(left.values()), left


@few
@given(
    prefill_says=rooms.nothing(NAMES),
    decode_says=rooms.nothing(NAMES),
    chunking=rooms.chunkings(pages=3),
    first=st.booleans(),
)
def test_no_spelling_of_nothing_leaves_decode_waiting(pair, prefill_says, decode_says, chunking, first):
    target = {"pages": [8, 2, 5], "aux_index": 4, **decode_says.argument()}
    with pair.opened(first, target, {"aux_index": 1}) as (receiver, sender):
        for pages, _, last in rooms.split(chunking, [3, 9, 6]):
            sender.send(pages, last=last, **prefill_says.argument())
        assert receiver.wait(LIMIT_S) is Status.DONE, receiver.failure
        assert sender.wait(LIMIT_S) is Status.DONE, sender.failure
        assert pair.landed("kv", [3, 9, 6], [8, 2, 5])
        assert pair.landed("aux", [1], [4])


@few
@given(data=st.data(), first=st.booleans())
def test_any_room_ends_as_its_callers_agree(pair, data, first):
    counts = st.tuples(st.integers(0, 2), st.integers(0, 2))
    sent, wanted = data.draw(counts, label="sent"), data.draw(counts, label="wanted")
    wanted = data.draw(st.sampled_from([sent, wanted]), label="decode wants")
    pages = data.draw(st.integers(0, 3), label="pages")
    ours = {name: data.draw(rooms.index_lists(SLOTS, size=n)) for name, n in zip(NAMES, sent, strict=True)}
    theirs = {name: data.draw(rooms.index_lists(SLOTS, size=n)) for name, n in zip(NAMES, wanted, strict=True)}
    source, target = [data.draw(rooms.index_lists(PAGES, size=pages)) for _ in range(2)]
    decode_says = data.draw(rooms.spellings(theirs), label="decode says")
    sends = []
    for some, state, last in rooms.split(data.draw(rooms.chunkings(pages, sent), label="chunking"), source, ours):
        says = data.draw(rooms.spellings({name: state.get(name, []) for name in NAMES}), label="prefill says")
        sends.append((some, says, last))
    arguments = {"pages": target, "aux_index": 0, **decode_says.argument()}
    with pair.opened(first, arguments, {"aux_index": 7}) as (receiver, sender):
        for some, says, last in sends:
            if not sender.poll().terminal:  # what was sent before may have been too much already
                sender.send(some, last=last, **says.argument())
        ends = [receiver.wait(LIMIT_S), sender.wait(LIMIT_S)]
        if sent == wanted:
            assert ends == [Status.DONE, Status.DONE], (receiver.failure, sender.failure)
            assert pair.landed("kv", source, target)
            assert pair.landed("aux", [7], [0])
            assert all(pair.landed(name, ours[name], theirs[name]) for name in NAMES)
        else:
            assert [room.failure.reason for room in (receiver, sender)] == [Reason.MISMATCH, Reason.MISMATCH]


@few
@given(who=st.sampled_from(["decode", "prefill"]), how=st.sampled_from(["abort", "close"]), sent=st.integers(0, 3))
def test_whoever_leaves_takes_the_other_along_and_memory_comes_back(pair, who, how, sent):
    with pair.opened(True, {"pages": [0, 1, 2], "aux_index": 1}, {"pages": 3, "aux_index": 1}) as (receiver, sender):
        while sender.phase == "METADATA":  # until they know each other: before, nobody could tell the other
            assert not sender.poll().terminal
        for page in range(sent):
            sender.send([page])
        leaver, other = (receiver, sender) if who == "decode" else (sender, receiver)
        getattr(leaver, how)()
        status = other.wait(LIMIT_S)
        if status is Status.FAILED:
            assert other.failure.reason is Reason.PEER_ABORTED
        else:
            assert sent == 3, "DONE, and not everything was sent"
        if receiver.poll() is Status.DONE:
            assert pair.landed("kv", [0, 1, 2], [0, 1, 2])


class Real(RuleBasedStateMachine):
    """Up to four rooms at a time, opened, sent page by page, aborted and closed in any order."""

    pair: Pair

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, list[Any]] = {}
        self.unsent: dict[int, list[int]] = {}
        self.left: set[int] = set()

    @rule(place=st.integers(0, 3), first=st.booleans())
    def begin(self, place: int, first: bool) -> None:
        if place not in self.open:
            pair, pages = self.pair, [3 * place, 3 * place + 1, 3 * place + 2]
            pair.number += 1
            number, source = pair.number, list(reversed(pages))
            opens = [
                lambda: pair.decode.open(number, bootstrap=pair.prefill.bootstrap, pages=pages, aux_index=place),
                lambda: pair.prefill.open(number, pages=3, aux_index=place),
            ]
            rooms = [call() for call in (opens if first else reversed(opens))]
            self.open[place], self.unsent[place] = rooms if first else rooms[::-1], source

    @rule(place=st.integers(0, 3))
    def send(self, place: int) -> None:
        if self.unsent.get(place) and not self.open[place][1].poll().terminal:
            self.open[place][1].send([self.unsent[place].pop(0)])

    @rule(place=st.integers(0, 3), side=st.integers(0, 1))
    def abort(self, place: int, side: int) -> None:
        if place in self.open:
            self.left.add(place)
            self.open[place][side].abort()

    @rule(place=st.integers(0, 3))
    def end(self, place: int) -> None:
        """The caller of prefill sends the rest; the room ends as its callers wished, and is closed."""
        if place not in self.open:
            return
        receiver, sender = rooms = self.open.pop(place)
        source = self.unsent.pop(place)
        if place not in self.left:
            for page in source:
                sender.send([page])
            assert [room.wait(LIMIT_S) for room in rooms] == [Status.DONE, Status.DONE], [r.failure for r in rooms]
        if receiver.poll() is Status.DONE:
            pages = [3 * place, 3 * place + 1, 3 * place + 2]
            assert self.pair.landed("kv", pages[::-1], pages)
            assert self.pair.landed("aux", [place], [place])
        self.left.discard(place)
        for room in rooms:
            room.close()
        assert all(room.wait_memory_free(LIMIT_S) and room._gone.wait(room._desk.lock, LIMIT_S) for room in rooms)

    def teardown(self) -> None:
        for place in list(self.open):
            self.end(place)


class Visited:
    """Counts the cells that the engines' threads visit; they count in the report of the state machines, too."""

    def __init__(self) -> None:
        self.account, self._lock = Account(), threading.Lock()

    def visit(self, table: str, state: enum.Enum, event: enum.Enum) -> None:
        with self._lock:
            self.account.visit(table, state, event)
            current().visit(table, state, event)


def test_any_sequence_of_calls(pair):
    Real.pair, visited = pair, Visited()
    with cells_of_engines(visited):
        run_state_machine_as_test(Real, settings=settings(max_examples=25, stateful_step_count=20, deadline=None))
    assert all(seen > 0 for seen, _ in visited.account.coverage().values())
    for cell in ("decode room: KV x LANDED", "prefill room: KV x SETTLED"):
        assert visited.account.cells[cell] > 0, cell
