"""The attacker's process: which strike follows from seed and number, and how they are spread over time."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias
from urllib.parse import urlsplit

from ..protocol.identity import agent_name
from .false_agent import FalseAgents
from .false_decode import FalseDecode
from .false_prefill import FalsePrefill
from .pool import INSTANCE
from .stranger import Stranger, WebStranger

_STRIDE_S = 0.004
_PEERS = 3
_REMEMBERED = 60
_FLOOD = 1100
"""More than an engine's `max_connections`."""
_MEETING_S = 20.0

Strike: TypeAlias = tuple[str, bytes, Callable[[], None]]
"""What it is called, what is sent, and the call that does it."""


class Attacker:
    """See the module."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._ready: list[Strike] = []
        self._last: deque[tuple[str, bytes]] = deque(maxlen=_REMEMBERED)

    def start(self, seed: int, bootstrap: str, address: str) -> str:
        """Look around and shake hands. Returns the URL of a registry that decode should be lured to."""
        self._seed = seed
        rng = random.Random(f"{seed} attacker")
        self._peers = [FalseDecode(rng, address) for _ in range(_PEERS)]
        for peer in self._peers:
            peer.join()
        first = self._peers[0]
        self._honest = first.prefill
        web = urlsplit(bootstrap).netloc
        self._stranger = Stranger(address, first.layout, first.regions, first.blob)
        self._web = WebStranger(web, INSTANCE)
        self._prefill = FalsePrefill(seed, first.layout, self._honest, web)
        return self._prefill.bootstrap

    def meet(self) -> bool:
        """Wait until decode has come and handed over its blob; whether it has."""
        if not self._prefill.met.wait(_MEETING_S):
            return False
        self._agents = FalseAgents(agent_name(self._honest), self._prefill.decode[2], self._prefill.grants)
        return True

    def prepare(self, first: int, count: int) -> None:
        """Think of strikes [first, first + count): what that costs is not to be taken from the honest rooms."""
        self._ready = [self._plan(number) for number in range(first, first + count)]

    def attack(self, seconds: float, flood: bool) -> int:
        """What was prepared, spread evenly; once a flood of connections. Returns how many strikes were made."""
        began = time.perf_counter()
        count = len(self._ready)
        stride = max(1, int(count / seconds * _STRIDE_S))
        before = self._prefill.messages
        extra = 0
        for at in range(0, count, stride):
            wait_s = began + seconds * at / count - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            for name, data, strike in self._ready[at : at + stride]:
                strike()
                self._kinds[name.partition(", ")[2]] += 1
                self._last.append((name, data))
            if flood and at >= count // 2:
                flood = False
                room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300
                extra = self._stranger.flood(min(_FLOOD, room))
                self._kinds["connections at once"] += extra
        left = began + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return count + extra + self._prefill.messages - before

    def _plan(self, number: int) -> Strike:
        """The strike with this number."""
        rng = random.Random(self._seed << 40 | number)
        where = rng.random()
        if where < 0.62:
            peer = self._peers[rng.randrange(_PEERS)]
            data, hang_up = peer.plan(rng)
            return f"strike {number}, frames", data, partial(peer.strike, data, hang_up)
        if where < 0.90:
            data, at = self._agents.plan(rng)
            return f"strike {number}, notifications", data, partial(self._agents.strike, data, at)
        if where < 0.96:
            data = self._stranger.data(rng)
            return f"strike {number}, connections", data, partial(self._stranger.strike, data)
        data = self._web.data(rng)
        return f"strike {number}, requests", data, partial(self._web.strike, data)

    def last(self) -> list[str]:
        """The last strikes, for people."""
        return [f"{name}: {data[:400].hex()}{'...' if len(data) > 400 else ''}" for name, data in self._last]

    def kinds(self) -> dict[str, int]:
        """How many strikes of each kind there were."""
        answers = {"answers and frames to decode": self._prefill.messages, "not sent": self._agents.refused}
        return dict(self._kinds) | {name: count for name, count in answers.items() if count}

    def close(self) -> None:
        """Hang up everywhere. The process ends after it, and its agents with it."""
        self._prefill.close()
        self._stranger.close()
        self._web.close()
        for peer in self._peers:
            peer.close()
