"""A live attack on a group: a leader and two ranks that give rooms outcomes, and hostile frames to all of them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from .. import RoomGroup, Status
from ..engine.settings import load_settings
from ..protocol.identity import RoomKey
from .child import FAULTS
from .false_leader import FalseLeader
from .group_proxy import Proxy, stranger_data
from .sockets import Kept, connect, send
from .stranger import flood

_RANKS = 3
_SETTINGS: dict[str, float] = {
    "heartbeat_s": 0.5, "heartbeat_timeout_s": 5.0, "decision_timeout_s": 10.0, "handshake_timeout_s": 1.5,
    "parked_ttl_s": 1.5,
}  # fmt: skip
"""Shorter than the defaults, so that what an attack leaves behind is gone before the end of a run."""
_LIMIT_S = 30.0
_STRIDE_S = 0.002
_FLOOD = 300
"""More connections than a leader lets wait for their first word."""
_REST_S = 25.0


class GroupSiege:
    """See the module. Rank 2 reaches its leader through somebody who puts frames between theirs."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._kinds: Counter[str] = Counter()
        self._kept = Kept()
        self.done = self.failed = 0
        self.wrong: list[str] = []

    def start(self, seed: int) -> None:
        """Let all ranks join, and begin with the honest rooms."""
        self._seed = seed
        settings = load_settings(**_SETTINGS)
        leader = RoomGroup(0, _RANKS, "127.0.0.1:0", name="leader", settings=settings)
        self._proxy = Proxy(leader.address)
        self._leader = leader
        others = [
            RoomGroup(rank, _RANKS, where, name=f"rank-{rank}", settings=settings)
            for rank, where in ((1, leader.address), (2, self._proxy.address))
        ]
        self._groups = [leader, *others]
        joining = [threading.Thread(target=group.join) for group in others]
        for thread in joining:
            thread.start()
        leader.join()
        for thread in joining:
            thread.join()
        self._false = FalseLeader(seed)
        self._rest = [_tables(group) for group in self._groups]
        self._thread = threading.Thread(target=self._rooms, name="honest", daemon=True)
        self._thread.start()

    def _rooms(self) -> None:
        number = 0
        draw = random.Random(f"{self._seed} group rooms")
        while not self._stop.is_set():
            number += 1
            key = RoomKey(draw.getrandbits(63), 0)
            wanted = Status.FAILED if number % 5 == 0 else Status.DONE
            for group in self._groups:
                group.enter(key)
            for rank, group in enumerate(self._groups):
                group.report(key, wanted if rank == number % _RANKS else Status.DONE)
            try:
                outcomes = {group.wait_outcome(key, _LIMIT_S) for group in self._groups}
            except TimeoutError as error:
                self._fail(f"group: {error}")
                return
            if outcomes == {wanted}:
                self.done += 1
            else:
                said = sorted(one.name for one in outcomes)
                self._fail(f"group: {key} should be {wanted.name}: {said}; {self._leader.problems}")

    def _fail(self, words: str) -> None:
        self.failed += 1
        self.wrong = [*self.wrong, words][:5]

    def attack(self, first: int, count: int) -> int:
        """Strikes [first, first + count). Returns how many were made."""
        for number in range(first, first + count):
            self._strike(random.Random(self._seed << 41 | number))
            time.sleep(_STRIDE_S)
        return count

    def _strike(self, rng: random.Random) -> None:
        where = rng.random()
        if where < 0.4:
            self._kinds["strangers' frames to a leader"] += 1
            made = connect(self._leader.address)
            if made is not None:
                send(made, stranger_data(rng))
                self._kept.add(made)
        elif where < 0.7:
            self._kinds["frames between a rank and its leader"] += 1
            self._proxy.strike(rng)
        else:
            self._kinds["frames of a false leader"] += 1
            self._false.strike(rng)

    def finish(self) -> tuple[int, int, list[str], dict[str, int], dict[str, int]]:
        """End. Returns how many honest rooms ended as they should, and how many did not; what is wrong; counts."""
        self._kinds["connections at once to a leader"] += flood(self._leader.address, _FLOOD)
        self._kept.close()
        self._stop.set()
        self._thread.join(2 * _LIMIT_S)
        if self._thread.is_alive():
            self._fail("group: the caller's thread hangs")
        self.wrong += self._false.finish()
        self._wait_for_rest()
        counters: Counter[str] = Counter()
        for group in reversed(self._groups):
            counters.update(group.counters())
            group.close()
        self._proxy.close()
        self.wrong += [f"group logged: {text}" for text in FAULTS.first]
        return self.done, self.failed, self.wrong, dict(self._kinds), dict(counters)

    def _wait_for_rest(self) -> None:
        """When nobody strikes any more, nothing is left in any table."""
        end = time.monotonic() + _REST_S
        while (now := [_tables(group) for group in self._groups]) != self._rest and time.monotonic() < end:
            time.sleep(0.05)
        if now != self._rest:
            self.wrong.append(f"group: left in the tables after the attack: {now} and not {self._rest}")

    def close(self) -> None:
        """The process ends after it."""


def _tables(group: RoomGroup) -> dict[str, int]:
    """What must be as it was; timers of connections come and go."""
    return {name: count for name, count in group.tables().items() if name != "timers"}
