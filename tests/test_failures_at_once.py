"""Many rooms that fail at the same time in several threads: each failure surfaces once, with its first cause, when the
engine holds nothing of its room; rooms that do not fail never notice. Real engines, real threads, real NIXL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, RoomClosed, RoomFailed, Status
from kvrooms.protocol.failure import Reason

pytestmark = pytest.mark.nixl
PAGES, LIMIT_S = 256, 40.0
CAUSES = ("abort decode", "abort prefill", "too many pages", "deadline", "close decode", "none", "none")


class Engines:
    """Two engines, and room numbers and pages that nobody has."""

    def __init__(self) -> None:
        self.source = np.random.default_rng(1).integers(1, 256, (PAGES, 64), dtype=np.uint8)
        self.target = np.zeros_like(self.source)
        memories = [Memory(page_size=4, kv=[Buffer(0, "kv", array)]) for array in (self.source, self.target)]
        self.prefill, self.decode = PrefillEngine(memories[0], name="at-once"), DecodeEngine(memories[1])
        self.rooms = 0

    def at_rest(self) -> None:
        """Nothing of any room is left."""
        until(lambda: not any(table[n] for table in self.tables() for n in ("rooms", "grants", "keys", "claims")))

    def tables(self) -> list[dict[str, int]]:
        return [self.prefill.tables(), self.decode.tables()]

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    made = Engines()
    yield made
    made.close()


def until(what: Any) -> None:
    """Wait for something that an engine's thread does."""
    gate = threading.Event()
    for _ in range(4000):
        if what():
            return
        gate.wait(0.005)
    raise AssertionError("it does not come")


class Case:
    """One room on both sides, how it ends, and what the threads that ask for its failure are told."""

    def __init__(self, engines: Engines, number: int, place: int, cause: str) -> None:
        self.cause, self.engines, self.place = cause, engines, place
        options = {"moving_timeout_s": 0.05, "waiting_timeout_s": 0.05} if cause == "deadline" else {}
        bootstrap = engines.prefill.bootstrap
        self.receiver = engines.decode.open(number, bootstrap=bootstrap, pages=[place, place + 1], **options)
        self.sender = engines.prefill.open(number)
        until(lambda: self.receiver.phase != "METADATA" and self.sender.phase != "METADATA")
        self.said: dict[str, list[Any]] = {"receiver": [], "sender": []}

    def go(self) -> None:
        """Do what ends the room."""
        pages = [self.place, self.place + 1]
        match self.cause:
            case "none":
                self.sender.send(pages[:1])
                self.sender.send(pages[1:], last=True)
            case "too many pages":
                self.sender.send([*pages, (self.place + 2) % PAGES], last=True)
            case "abort decode":
                self.sender.send(pages[:1])
                self.receiver.abort("on decode")
            case "abort prefill":
                self.sender.send(pages[:1])
                self.sender.abort("on prefill")
            case "close decode":
                self.receiver.close()
            case "deadline":
                pass

    def ask(self, which: str) -> None:
        """Wait for an end and ask for the failure, as any number of threads may."""
        room, engine = getattr(self, which), self.engines.decode if which == "receiver" else self.engines.prefill
        room.wait(LIMIT_S)
        try:
            room.failure_exception()
        except RoomFailed as error:
            held = room._key in engine._core._rooms or room in engine._open_rooms or room.record is not None
            self.said[which].append(("failed", error.failure, held))
        except RoomClosed:
            self.said[which].append(("closed", None, False))
        else:
            self.said[which].append(("fine", None, False))

    def judge(self) -> None:
        """What must have been said."""
        for which, room in (("receiver", self.receiver), ("sender", self.sender)):
            words = sorted(kind for kind, _, _ in self.said[which])
            if self.cause == "none":
                assert room.poll() is Status.DONE, (self.cause, room.failure)
                assert words == ["fine", "fine"]
                continue
            assert room.poll() is Status.FAILED
            assert words == ["closed", "failed"], (self.cause, which, self.said[which])
            failure, held = next((failure, held) for kind, failure, held in self.said[which] if kind == "failed")
            assert not held, f"{self.cause}: the engine still held the room when its failure surfaced"
            assert failure == room.failure
            assert failure.reason in REASONS[self.cause], (self.cause, which, failure)
        if self.cause == "none":
            rows = [self.place, self.place + 1]
            assert np.array_equal(self.engines.target[rows], self.engines.source[rows])


def all_go(cases: list[Case]) -> None:
    for case in cases:
        case.go()


REASONS = {
    "abort decode": {Reason.ABORTED, Reason.PEER_ABORTED},
    "abort prefill": {Reason.ABORTED, Reason.PEER_ABORTED},
    "close decode": {Reason.ABORTED, Reason.PEER_ABORTED},
    "too many pages": {Reason.MISMATCH},
    "deadline": {Reason.DEADLINE_WAITING, Reason.DEADLINE_MOVING},
}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(CAUSES), min_size=6, max_size=24))
def test_each_failure_surfaces_once_and_clean(engines: Engines, causes: list[str]) -> None:
    cases = [Case(engines, engines.rooms + i, i * 8, cause) for i, cause in enumerate(causes)]
    engines.rooms += len(causes)
    askers = [(case, which) for case in cases for which in ("receiver", "sender") for _ in range(2)]
    threads = [threading.Thread(target=case.ask, args=(which,)) for case, which in askers]
    goers = [
        threading.Thread(target=lambda part=part: [case.go() for case in part]) for part in (cases[::2], cases[1::2])
    ]
    for thread in (*threads, *goers):
        thread.start()
    for thread in (*threads, *goers):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    for case in cases:
        case.judge()
        for room in (case.receiver, case.sender):
            room.close()
            assert room.wait_memory_free(LIMIT_S), (room, case.cause, room.memory_status, engines.tables())
    engines.at_rest()
