"""What real ports were seen to do, the simulated ones can do; and what they cannot do is noticed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_bench import Bench, Shape, send_in
from mutants import Mutant

from kvrooms import Buffer, Component, DecodeEngine, Memory, PrefillEngine, Status
from kvrooms.engine.real import assemble
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.faults import Faults
from kvrooms.harness.ports import SimTransport
from kvrooms.harness.simulate.rehearsal import rehearse
from kvrooms.harness.simulate.traces import Kind, Seen, Trace, record_ports

ROOMS = 24


def memory(items: int = 64) -> tuple[Memory, list[np.ndarray[Any, Any]]]:
    draw = np.random.default_rng(3)
    arrays = [draw.integers(1, 256, (items, 256), dtype=np.uint8) for _ in range(4)]
    state = [Component("swa", "sliding_window", "when_indexed", [Buffer(5, "kv", arrays[3])])]
    made = Memory(
        page_size=4, kv=[Buffer(0, "k", arrays[0]), Buffer(0, "v", arrays[1])], aux={"t": arrays[2]}, state=state
    )
    return made, arrays


@pytest.fixture(scope="module")
def real_trace() -> list[Seen]:
    """Rooms over real NIXL and TCP: some whole, some in pieces, some aborted in the middle."""
    trace = Trace()
    settings = EngineSettings(piece_bytes=512)
    (ours, _), (theirs, _) = memory(), memory()
    sending = assemble("trace-p", ours, settings, listen=("127.0.0.1", 0))
    receiving = assemble("trace-d", theirs, settings)
    record_ports(sending.ports, trace)
    record_ports(receiving.ports, trace)
    with (
        PrefillEngine(ours, settings=settings, assembly=sending) as prefill,
        DecodeEngine(theirs, settings=settings, assembly=receiving) as decode,
    ):
        for room in range(ROOMS):
            pages = list(range(8))
            sender = prefill.open(room, aux_index=1)
            receiver = decode.open(room, bootstrap=prefill.bootstrap, pages=pages, aux_index=2, state_indices=[[4, 5]])
            sender.send(pages[:3])
            if room % 6 == 5:
                receiver.abort()
            else:
                sender.send(pages[3:], [[1, 2]], last=True)
            ended = receiver.wait(timeout=30)
            assert ended is (Status.FAILED if room % 6 == 5 else Status.DONE)
            assert receiver.wait_memory_free(timeout=30)
            if room % 6 != 5:
                assert sender.wait(timeout=30) is Status.DONE
            sender.close()
            receiver.close()
    return trace.steps


@pytest.mark.nixl
def test_the_simulated_ports_can_do_what_the_real_ones_did(real_trace: list[Seen]) -> None:
    kinds = {step.kind for step in real_trace}
    assert kinds >= {"posted", "arrived", "opened", "sent", "received", "closed"}
    assert sum(step.kind == "arrived" for step in real_trace) >= ROOMS
    assert rehearse(real_trace) == ""


def moved(steps: list[Seen], kind: str, place: int, draw: random.Random) -> list[Seen]:
    """A trace with one step of a kind somewhere else."""
    at = draw.choice([i for i, step in enumerate(steps) if step.kind == kind])
    rest = [*steps[:at], *steps[at + 1 :]]
    return [*rest[:place], steps[at], *rest[place:]]


@pytest.mark.nixl
@pytest.mark.parametrize("kind", ["arrived", "received"])
def test_a_real_trace_with_an_effect_before_its_cause_is_not_admitted(real_trace: list[Seen], kind: str) -> None:
    draw = random.Random(1)
    for _ in range(20):
        assert rehearse(moved(real_trace, kind, 0, draw))


@pytest.mark.nixl
@pytest.mark.parametrize("kind", ["arrived", "received"])
def test_a_real_trace_with_something_twice_is_not_admitted(real_trace: list[Seen], kind: str) -> None:
    again = next(step for step in real_trace if step.kind == kind)
    assert rehearse([*real_trace, again])


@pytest.mark.parametrize("at_once", [0.0, 0.5, 1.0])
def test_simulated_runs_are_admitted(at_once: float) -> None:
    for seed in range(10):
        trace = Trace()
        bench = Bench(seed, Shape(indexed=1), faults=Faults(at_once=at_once), settings=EngineSettings(piece_bytes=32))
        for side in (*bench.prefills, *bench.decodes):  # the cores hold the ports by name: before anything was said
            core = side.engine._core
            record_ports(core, trace)
        for room in range(3):
            plan = bench.plan(3, state={"swa": 2})
            receiver, sender = bench.receive(plan, room), bench.offer(plan, room)
            send_in(sender, plan, [1, 2])
            bench.finish(receiver, sender)
            assert receiver.poll() is sender.poll() is Status.DONE
            receiver.close()
            sender.close()
        bench.settle()
        assert rehearse(trace.steps) == ""
        assert any(step.kind == "posted" and step.number == 0 for step in trace.steps) == bool(at_once)


MET = Seen(0.0, "a", "met", peer="b")
REMOVED = Seen(0.0, "a", "removed", peer="b")
FORGOTTEN = [Seen(0.0, "b", "removed", peer="a"), Seen(0.0, "b", "deregistered")]


def post(number: int, message: bytes = b"", **what: Any) -> Seen:
    return Seen(0.0, "a", "posted", number=number, peer="b", data=message, rows=2, **what)


def end(agent: str, kind: Kind = "died") -> Seen:
    return Seen(0.0, agent, kind)


def look(rows: int, message: bytes = b"x") -> Seen:
    return Seen(0.0, "b", "looked", peer="a", data=message, rows=rows)


def settle(number: int, error: str | None = None) -> Seen:
    return Seen(0.0, "a", "settled", number=number, error=error)


def arrive(message: bytes, agent: str = "b", peer: str = "a") -> Seen:
    return Seen(0.0, agent, "arrived", peer=peer, data=message)


GONE, PLAIN = "PeerGone: b", "TransportError: no more"


@pytest.mark.parametrize(
    "steps",
    [
        [post(1, b"x"), settle(1), arrive(b"x")],
        [post(1, b"x"), arrive(b"x"), settle(1)],
        [post(1, b"x"), post(2, b"y"), arrive(b"y"), settle(2), arrive(b"x"), settle(1)],
        [post(0, b"x"), look(2), arrive(b"x")],
        [post(1, b"x"), post(2, b"x"), arrive(b"x"), arrive(b"x")],
        [post(1, b"x"), look(0), look(1), look(1), look(2), settle(1)],
        [post(1, b"x"), look(1), end("b"), look(1), settle(1, "gone"), look(1)],
        [post(1, b"x"), look(2), end("b"), settle(1, "gone"), look(2)],
        [post(1, b"x"), look(2), end("b"), settle(1), look(2)],
        [post(1, b"x"), end("b", "ended"), settle(1, "gone"), look(0)],
        [post(1, b"x"), look(1), end("a"), look(1)],
        [post(1, b"x"), look(2), end("a"), arrive(b"x")],
        [post(1, b"x"), look(0), *FORGOTTEN, look(2), arrive(b"x"), settle(1), post(2, b"y"), look(2, b"y"), settle(2)],
        [post(1, b"x"), REMOVED, post(-1, b"y", error=GONE), look(2), settle(1), look(0, b"y")],
        [end("b"), post(-1, b"x", error=GONE), look(0)],
        [post(-1, b"x", error=PLAIN), look(0), post(1, b"y"), settle(1)],
    ],
)
def test_possible(steps: list[Seen]) -> None:
    assert rehearse([MET, *steps]) == ""


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([arrive(b"x"), post(1, b"x")], "step 1"),
        ([post(1, b"x"), arrive(b"x"), arrive(b"x")], "has arrived before"),
        ([post(1, b"x"), arrive(b"y")], "no write that was posted"),
        ([post(1, b"x"), arrive(b"x", agent="c")], "no write that was posted"),
        ([post(1, b"x"), arrive(b"x", peer="c")], "no write that was posted"),
        ([post(1, b"x"), arrive(b"x"), look(1)], "must be 2"),
        ([post(0, b"x"), look(1)], "must be 2"),
        ([post(1, b"x"), look(2), look(1)], "must be 2"),
        ([post(1, b"x"), look(3)], "no more than"),
        ([settle(3)], "no write with this handle"),
        ([post(1), settle(1), settle(1)], "no write with this handle"),
        ([post(1, b"x"), settle(1), look(1)], "must be 2"),
        ([post(1), post(1)], "another write"),
        ([post(1), settle(1, "cable out")], "nothing has happened"),
        ([post(1), *FORGOTTEN, settle(1, "removed")], "nothing has happened"),
        ([post(1), REMOVED, settle(1, "removed")], "nothing has happened"),
        ([post(1, b"x"), look(1), end("b"), settle(1)], "in the world it fails"),
        ([post(1, b"x"), end("b"), look(1)], "no more than"),
        ([post(1, b"x"), end("b", "ended"), settle(1, "gone"), look(1)], "no more than"),
        ([post(1, b"x"), end("b"), arrive(b"x")], "dead"),
        ([post(1, b"x"), look(2), end("a"), settle(1)], "dead"),
        ([post(1, b"x"), look(1), end("a"), look(2)], "no more than"),
        ([post(1, b"x"), look(1), end("a"), arrive(b"x")], "nothing of the kind"),
        ([post(-1, b"x", error=GONE)], "nothing has happened"),
        ([*FORGOTTEN, post(-1, b"x", error=GONE)], "nothing has happened"),
        ([post(-1, b"x", error="UncertainWrite: status 7")], "nothing has happened"),
        ([end("b"), post(1, b"x")], "the world refuses it"),
        ([REMOVED, post(1, b"x")], "the world refuses it"),
        ([post(-1, b"x", error=PLAIN), arrive(b"x")], "no write that was posted"),
        ([post(-1, b"x", error=PLAIN), look(1)], "never posted"),
    ],
)
def test_impossible(steps: list[Seen], words: str) -> None:
    assert words in rehearse([MET, *steps])


@pytest.mark.parametrize(
    ("method", "old", "new", "steps"),
    [
        ("close", "not other.dead", "False", [post(1, b"x"), look(2), end("b"), settle(1, "gone")]),
        ("_land", "if target.dead:", "if target.dead or not target._registered:", [post(1), *FORGOTTEN, settle(1)]),
        ("_land", "if self.killed:", "if self.dead:", [post(1, b"x"), end("a", "ended"), look(2), arrive(b"x")]),
        ("post", "target is None or target.dead", "target is None", [end("b"), post(-1, error=GONE)]),
        ("post", "agent not in self._peers", "False", [REMOVED, post(-1, error=GONE)]),
    ],
)
def test_a_simulated_transport_that_cannot_do_it_is_noticed(
    method: str, old: str, new: str, steps: list[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rehearse([MET, *steps]) == ""
    Mutant(SimTransport, method, old, new).plant(monkeypatch)
    assert rehearse([MET, *steps])


def frame(kind: str, agent: str, number: int, data: bytes = b"") -> Seen:
    return Seen(0.0, agent, kind, number=number, data=data)  # type: ignore[arg-type]


A1, A2, B1 = frame("sent", "a", 1, b"1"), frame("sent", "a", 1, b"2"), frame("received", "b", 9, b"1")


@pytest.mark.parametrize(
    ("steps", "possible"),
    [
        ([A1, A2, B1, frame("received", "b", 9, b"2")], True),
        ([A1, B1, frame("sent", "b", 9, b"3"), frame("received", "a", 1, b"3")], True),
        ([B1, A1], False),
        ([A1, A2, frame("received", "b", 9, b"2")], False),
        ([A1, B1, B1], False),
        ([A1, A2, frame("closed", "b", 9), B1], False),
        ([frame("sent", "b", 9, b"1"), B1], False),
    ],
)
def test_frames(steps: list[Seen], possible: bool) -> None:
    assert (rehearse(steps) == "") == possible
