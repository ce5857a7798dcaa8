"""Ranks of a group in processes of their own, over real connections: killed, stopped, forked, and late."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from kvrooms import RoomGroup
from kvrooms.protocol.errors import GroupIncomplete

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 40.0
PATIENT = {"heartbeat_timeout_s": 100.0, "decision_timeout_s": 200.0}
"""With these no timer acts while a test runs: what ends, ends because a kernel or a rank has said something."""
HASTY = {"heartbeat_s": 0.1, "heartbeat_timeout_s": 1.0, "decision_timeout_s": 60.0}


class Rank:
    """One process."""

    def __init__(self, rank: int, size: int, leader: str, settings: dict[str, Any]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("group_process.py"))]
        arguments = [str(rank), str(size), leader, json.dumps(settings)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rank = rank
        self.outcomes: dict[int, tuple[str, str]] = {}
        self.aborted: dict[int, str] = {}
        self.problems = "()"
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("ended")

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hears(self, what: str) -> str:
        """The next line that begins with a word; outcomes, aborts and trouble before it are remembered."""
        end = time.monotonic() + LIMIT_S
        while True:
            line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            word, _, rest = line.partition(" ")
            if word == "outcome":
                room, status, detail = rest.split(" ", 2)
                assert int(room) not in self.outcomes, "told twice"
                self.outcomes[int(room)] = status, detail
            elif word == "abort":
                room, detail = rest.split(" ", 1)
                self.aborted[int(room)] = detail
            elif word == "trouble":
                self.problems = rest
            if word == what:
                return rest
            assert word != "ended", f"rank {self.rank} has ended"

    def outcome(self, room: int) -> str:
        """DONE or FAILED."""
        while room not in self.outcomes:
            self.hears("outcome")
        return self.outcomes[room][0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(LIMIT_S)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


class Ranks:
    """All ranks of a group."""

    def __init__(self, size: int, settings: dict[str, Any]) -> None:
        first = Rank(0, size, "", settings)
        self.leader = first.hears("address")
        self.ranks = [first, *(Rank(rank, size, self.leader, settings) for rank in range(1, size))]

    def __enter__(self) -> Self:
        self.joined = {rank.hears("joined") for rank in self.ranks}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.end()

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def enter(self, room: int) -> None:
        for rank in self:
            rank.tell("enter", room)

    def serve(self, room: int, *, first: bool = False) -> None:
        """Rooms from this number on become DONE: the first of them, or a later one, once a lost rank is back."""
        end = time.monotonic() + LIMIT_S
        for number in count(room):
            for rank in self:
                rank.tell("enter", number)
                rank.tell("done", number)
            (status,) = {rank.outcome(number) for rank in self}
            if status == "DONE":
                return
            assert not first, self[0].outcomes
            assert time.monotonic() < end, self[0].outcomes
            for rank in self:
                while rank.problems != "()":
                    rank.hears("trouble")


def test_processes_form_a_group_and_agree() -> None:
    with Ranks(3, {**PATIENT, "secret": "one secret for all of them"}) as ranks:
        assert len(ranks.joined) == 1
        assert next(iter(ranks.joined)).endswith(" rank 0,rank 1,rank 2")
        ranks.serve(1, first=True)
        ranks.enter(2)
        ranks[2].tell("done", 2)
        ranks[1].tell("fail", 2)
        assert [rank.outcome(2) for rank in ranks] == ["FAILED"] * 3
        words = "rank 1 of the group: send_error: the cable is cut"
        assert [rank.outcomes[2][1] for rank in ranks] == [words, "the cable is cut", words]
        assert ranks[0].aborted[2] == words
        ranks[1].tell("close")
        ranks[1].hears("closed")
        ranks[0].tell("enter", 3)
        assert ranks[0].hears("abort").startswith("3 rank 1 of the group: peer_lost: it has left the group")


def test_whoever_has_another_secret_stays_outside() -> None:
    first = Rank(0, 2, "", {**PATIENT, "secret": "the secret of this group", "timeout": 30})
    try:
        leader = first.hears("address")
        stranger = Rank(1, 2, leader, {**PATIENT, "secret": "some other secret of somebody", "timeout": 1})
        try:
            words = stranger.hears("refused")
            assert words.startswith("GroupIncomplete")
            assert "did not prove that it knows our secret" in words
        finally:
            stranger.end()
    finally:
        first.end()


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("forked", [False, True])
def test_the_kernel_tells_of_a_death_at_once(victim: int, forked: bool) -> None:
    """No timer runs. A fork of the dead process has copies of nothing that could hide its end."""
    with Ranks(3, PATIENT) as ranks:
        ranks.serve(1, first=True)
        ranks.enter(2)
        for rank in ranks:
            if rank.rank != victim:
                rank.tell("done", 2)
        fork = 0
        if forked:
            ranks[victim].tell("fork")
            fork = int(ranks[victim].hears("forked"))
        ranks[victim].signal(signal.SIGKILL)
        living = [rank for rank in ranks if rank.rank != victim]
        assert [rank.outcome(2) for rank in living] == ["FAILED"] * 2
        assert f"rank {victim} of the group: peer_lost" in living[0].outcomes[2][1]
        assert "its process has ended" in living[0].outcomes[2][1]
        assert [rank.outcomes[1][0] for rank in living] == ["DONE"] * 2
        for rank in living:
            rank.tell("enter", 3)
            rank.tell("done", 3)
        assert [rank.outcome(3) for rank in living] == ["FAILED"] * 2
        if fork:
            os.kill(fork, signal.SIGKILL)  # it lived until now, or this would fail


def test_a_rank_that_stands_still_is_lost_and_comes_back() -> None:
    with Ranks(3, HASTY) as ranks:
        ranks.serve(1)
        ranks.enter(500)
        ranks[1].tell("done", 500)
        ranks[2].signal(signal.SIGSTOP)
        ranks[0].tell("done", 500)
        assert [rank.outcome(500) for rank in (ranks[0], ranks[1])] == ["FAILED"] * 2
        assert "it has been silent for" in ranks[1].outcomes[500][1]
        ranks[2].signal(signal.SIGCONT)
        assert ranks[2].outcome(500) == "FAILED"
        ranks.serve(501)
        for rank in ranks:
            rank.tell("problems")
            assert rank.hears("problems") == "()"


def test_a_leader_that_stands_still_decides_later_and_nobody_before() -> None:
    with Ranks(3, HASTY) as ranks:
        ranks.serve(1)
        ranks.enter(500)
        ranks[0].tell("done", 500)
        ranks[1].tell("done", 500)
        ranks.serve(501)  # both have reported by now
        ranks[0].signal(signal.SIGSTOP)
        ranks[2].tell("done", 500)
        time.sleep(3.0)  # three times what makes a rank lost: the ranks wait all the same
        ranks[1].tell("problems")
        assert ranks[1].hears("problems") == "()"
        assert 500 not in ranks[1].outcomes
        ranks[0].signal(signal.SIGCONT)
        (status,) = {rank.outcome(500) for rank in ranks}
        assert status == "DONE"


def test_deadlines_that_fall_between_the_clocks_of_ranks() -> None:
    """Ranks fail by their own deadlines while others are DONE, and the leader's deadline falls among the reports."""
    rooms = 150
    draw = random.Random(3)
    settings = {"heartbeat_s": 0.1, "heartbeat_timeout_s": 1.0, "decision_timeout_s": 2.0}
    with Ranks(3, settings) as ranks:
        ranks.serve(1)
        begin = time.monotonic() + 0.2
        for room in range(1000, 1000 + rooms):
            moment = begin + draw.uniform(0, 1.0)
            for rank in ranks:
                rank.tell("enter", room)
                at = moment + draw.choice([0.0, draw.uniform(0, 0.002), draw.uniform(1.95, 2.05)])
                rank.tell("later", room, at, "FAILED" if rank.rank == 1 and draw.random() < 0.3 else "DONE")
        told = [{rank.outcome(room) for rank in ranks} for room in range(1000, 1000 + rooms)]
        assert all(len(outcomes) == 1 for outcomes in told)
        flat = [next(iter(outcomes)) for outcomes in told]
        reasons = {rank.outcomes[room][1] for rank in ranks for room in range(1000, 1000 + rooms)}
        assert flat.count("DONE") > 10
        assert any("its deadline has passed" in reason for reason in reasons)
        assert any("not reported on room" in reason for reason in reasons)


@contextmanager
def gathering(size: int) -> Iterator[tuple[RoomGroup, Callable[..., Rank]]]:
    """A leader in this process, and what starts another rank."""
    with ExitStack() as stack:
        leader = stack.enter_context(RoomGroup(0, size, "127.0.0.1:0", b"rank 0", **PATIENT))

        def start(rank: int, size: int = size, timeout: float = LIMIT_S) -> Rank:
            made = Rank(rank, size, leader.address, {**PATIENT, "timeout": timeout})
            stack.callback(made.end)
            return made

        yield leader, start


def wait_until_missing(leader: RoomGroup, *ranks: int) -> None:
    """Until these, and no others, are missing."""
    end = time.monotonic() + LIMIT_S
    missing: tuple[int, ...] = ()
    while missing != ranks:
        assert time.monotonic() < end, missing
        with pytest.raises(GroupIncomplete) as caught:
            leader.join(0.01)
        missing = caught.value.missing


def test_who_may_join_and_what_the_others_are_told() -> None:
    with gathering(3) as (leader, start):
        misled = start(1, size=4)
        assert misled.hears("refused") == "HandshakeRefused this group has 3 ranks, and you were told 4"
        first = start(1)
        wait_until_missing(leader, 2)
        twice = start(1)
        assert twice.hears("refused").startswith("HandshakeRefused rank 1 has joined already, from 127.0.0.1:")
        first.signal(signal.SIGKILL)
        wait_until_missing(leader, 1, 2)  # not all were there: the place is free again
        hasty = start(1, timeout=0.5)
        assert re.fullmatch(r"GroupIncomplete .* after 0.5 s rank 2 had not joined.*", hasty.hears("refused"))
        again, second = start(1), start(2)
        number = leader.join(LIMIT_S).id
        for rank in (again, second):
            assert rank.hears("joined") == f"{number} rank 0,rank 1,rank 2"
        again.signal(signal.SIGKILL)
        restarted = start(1)
        words = restarted.hears("refused")
        assert "you are not the rank 1 that has joined it; a process that has ended cannot be replaced" in words
        second.tell("enter", 1)
        assert second.outcome(1) == "FAILED"
        assert "rank 1 of the group: peer_lost: its process has ended" in second.outcomes[1][1]
        for rank in (misled, twice, hasty, restarted):
            assert rank.process.wait(LIMIT_S) == 0, "nothing is left that could hold it up"
        assert leader.counters()["ranks refused"] == 3


def test_a_leader_that_nobody_comes_to_and_a_rank_whose_leader_never_was() -> None:
    lonely = Rank(0, 3, "", {**PATIENT, "timeout": 0.1})
    lost = Rank(1, 2, "127.0.0.1:1", {**PATIENT, "timeout": 0.1})
    try:
        assert re.fullmatch(r"GroupIncomplete .* after 0.1 s ranks 1, 2 had not joined.*", lonely.hears("refused"))
        words = lost.hears("refused")
        assert "the leader had not joined: the leader, rank 0, cannot be reached at 127.0.0.1:1: " in words
        assert lonely.process.wait(LIMIT_S) == lost.process.wait(LIMIT_S) == 0
    finally:
        lonely.end()
        lost.end()


def test_the_leader_is_killed_among_many_outcomes() -> None:
    """Two ranks differ only where one was told DONE, and the other was told nothing: never by another cause."""
    rooms, later = range(1, 301), range(301, 311)
    with Ranks(3, PATIENT) as ranks:
        living = ranks.ranks[1:]
        for room in rooms:
            for rank in ranks:
                rank.tell("enter", room)
                rank.tell("fail" if rank.rank == room % 6 else "done", room)
        assert living[0].outcome(3) == "DONE"
        ranks[0].signal(signal.SIGKILL)  # outcomes of many others are under way, or not decided
        for room in later:
            for rank in living:
                rank.tell("enter", room)
                rank.tell("done", room)
        for room in (*rooms, *later):
            both = {rank.outcome(room) for rank in living}
            if len(both) == 2:
                (failed,) = [rank for rank in living if rank.outcomes[room][0] == "FAILED"]
                assert "the leader is lost: its process has ended" in failed.outcomes[room][1]
            if room % 6 < 3 or room in later:
                assert both == {"FAILED"}, "one rank had failed, or nobody was there to decide"
