"""Ranks of a group with real engines: told to end, their open rooms get their outcome first, the same on every rank.

Many rooms leave nothing behind. And the example of docs/groups.md, which is two such processes.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]
ROOT = Path(__file__).parent.parent
LIMIT_S = 60.0


class Rank:
    """One process."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self._watch = threading.Timer(LIMIT_S, self.process.kill)  # then `hears` finds the end of its output
        self._watch.start()

    def asks(self, *words: object) -> str:
        """Tell it something; the answer."""
        self.tells(*words)
        return self.hears()

    def tells(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hears(self) -> str:
        """The next line; what it was told to end by may have been answered in between."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, f"it has ended after {self.said}"
            self.said.append(line.strip())
            if not line.startswith("drained"):
                return line.strip()

    def told_to_end(self) -> None:
        """Send SIGTERM, and come back when it has been heard: no room is opened any more."""
        self.process.send_signal(signal.SIGTERM)
        while "is being drained" not in self.asks("probe"):
            pass

    def ends(self) -> tuple[int, str]:
        """Its exit status and its last line."""
        assert self.process.stdout is not None
        self.said += self.process.stdout.read().splitlines()
        return self.process.wait(LIMIT_S), self.said[-1]

    def close(self) -> None:
        self._watch.cancel()
        self.process.kill()
        self.process.communicate()


@contextmanager
def ranks(drain_s: float) -> Iterator[tuple[Rank, Rank]]:
    """Both ranks of a group, with their engines."""
    script = ROOT / "tests" / "group_engine_process.py"
    pair = Rank(script, 0, drain_s), Rank(script, 1, drain_s)
    try:
        leader = pair[0].asks("").split()[1]
        assert pair[1].asks(leader) == "address"
        assert {rank.hears() for rank in pair} == {"joined"}
        yield pair
    finally:
        for rank in pair:
            rank.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_is_told_to_end(victim: int) -> None:
    """It stays until its rooms are decided, however long the other takes; further rooms of the other fail at once."""
    words = ["the leader is lost: it has left", "rank 1 of the group: peer_lost: it has left the group"][victim]
    with ranks(LIMIT_S) as pair:
        ending, other = pair[victim], pair[1 - victim]
        for rank in pair:
            assert rank.asks("open", 1) == rank.asks("open", 2) == "opened"
        assert ending.asks("send", 1) == "sent DONE DONE"
        ending.told_to_end()
        assert ending.asks("send", 2) == "sent DONE DONE"
        for room in (1, 2):  # the rest of both only now
            assert other.asks("send", room) == "sent DONE DONE"
            assert other.asks("outcome", room) == "outcome DONE"
        assert ending.ends() == (143, "drained 2 0 0")
        assert other.asks("open", 3) == "opened"
        answer = other.asks("outcome", 3)
        assert answer.startswith("outcome FAILED")
        assert words in answer
        assert "'undecided': 0" in other.asks("tables")


def test_all_ranks_are_told_to_end_at_once() -> None:
    """As a service manager does. A room that only one of them has opened fails, and not because of a limit."""
    with ranks(LIMIT_S) as pair:
        for rank in pair:
            assert rank.asks("open", 1) == "opened"
        assert pair[1].asks("open", 2) == pair[1].asks("open", 3) == "opened"
        assert pair[1].asks("send", 2) == "sent DONE DONE"
        for rank in pair:
            rank.told_to_end()
        for rank in pair:
            assert rank.asks("send", 1) == "sent DONE DONE"
        assert pair[0].ends() == (143, "drained 1 0 0")
        assert pair[1].ends() == (143, "drained 1 2 0")


def test_what_does_not_end_in_time_fails_everywhere() -> None:
    """A room that nobody sends is aborted when the limit has passed, and the rank that goes on learns why."""
    with ranks(0.2) as (first, second):
        for rank in (first, second):
            assert rank.asks("open", 1) == "opened"
        assert first.asks("send", 1) == "sent DONE DONE"
        second.process.send_signal(signal.SIGTERM)
        assert second.ends() == (143, "drained 0 1 1")
        answer = first.asks("outcome", 1)
        assert answer.startswith("outcome FAILED")
        assert "the engine was drained" in answer
        first.process.send_signal(signal.SIGTERM)
        assert first.ends() == (143, "drained 0 1 0")


def test_a_thousand_rooms_leave_nothing_behind() -> None:
    """A tenth of them fails on one rank, and so on both. What was said last is acknowledged a moment later."""
    with ranks(LIMIT_S) as pair:
        for rank in pair:
            rank.tells("many", 1, 100)
        assert [rank.hears() for rank in pair] == ["many 90"] * 2
        for rank in pair:
            rests(rank)
        for rank in pair:
            rank.tells("many", 101, 1000)
        assert [rank.hears() for rank in pair] == ["many 900"] * 2
        for rank in pair:
            rests(rank)


def test_deadlines_of_rooms_that_fall_between_two_ranks() -> None:
    """Each rank's room has a deadline of its own, so that one rank is often DONE where the other was too late."""
    rooms = 150
    with ranks(LIMIT_S) as pair:
        for rank in pair:
            rank.tells("race", 1, rooms)
        ends = [[end.split("/") for end in rank.hears().split()[1:]] for rank in pair]
        for mine, theirs in zip(*ends, strict=True):
            assert mine[0] == theirs[0], ends
        outcomes = [outcome for outcome, _ in ends[0]]
        assert len(outcomes) == rooms
        assert {"DONE", "FAILED"} == set(outcomes)
        assert all(here == "DONE" for rank in ends for outcome, here in rank if outcome == "DONE")
        for rank in pair:
            rests(rank)


STANDING = {"links": 1, "timers": 1, "peers": 1, "targets": 1, "connections": 1}
"""What two engines and their group hold when no room is open."""


def rests(rank: Rank) -> None:
    """Its tables when nothing is left of any room; its time limit ends it otherwise."""
    while True:
        tables = rank.asks("tables")
        found = ast.literal_eval(tables.removeprefix("tables "))
        if {name: count for name, count in found.items() if count} == STANDING:
            return


def test_the_document_shows_the_example_to_the_letter() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "groups.md").read_text(), flags=re.DOTALL)
    assert (ROOT / "examples" / "group.py").read_text() in shown


def test_the_example_runs() -> None:
    script = ROOT / "examples" / "group.py"
    pair = [Rank(script, 0, "127.0.0.1:0")]
    try:
        address = pair[0].hears().rpartition(" ")[2]
        pair.append(Rank(script, 1, address))
        assert [rank.ends()[0] for rank in pair] == [0, 0]
        for rank in pair:
            assert rank.said[1:3] == ["rank 0 and rank 1 are there", "room 1 is DONE: on both ranks"]
            assert re.fullmatch("room 2 is FAILED: .*: out of memory", rank.said[3])
        assert "rank 1 of the group" in pair[0].said[3]
    finally:
        for rank in pair:
            rank.close()
