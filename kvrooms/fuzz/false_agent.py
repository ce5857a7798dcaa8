"""Strikes at decode's transport: notifications from agents that have its blob and were never added by it."""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Any

from ..protocol import notify
from ..protocol.notify import Part, PartKind
from . import samples
from .mutate import changed, noise

_ALL = (Part(PartKind.KV, 0, 0, 1), Part(PartKind.AUX, 0, 0, 1))
_PARTS = (
    _ALL,
    (Part(PartKind.KV, 0, 0, 2**31 - 1),),
    (Part(PartKind.KV, 0, 1, 1),),
    (Part(PartKind.STATE, 63, 7, 1),),
    (Part(PartKind.AUX, 0, 1, 1),),
    _ALL * 64,
)


class FalseAgents:
    """A few agents under false names; one of them is that of the honest prefill engine."""

    def __init__(self, honest: str, blob: bytes, grants: deque[tuple[int, int]]) -> None:
        """grants: (grant, token) of rooms that decode opened with the attacker: the only tokens it has."""
        names = (honest, "attacker", "kvrooms-0000000000000001", "é\U0001f600 %s\n" + "n" * 200)
        self._agents = [_agent(name) for name in names]
        self._decode = [agent.add_remote_agent(blob) for agent in self._agents]
        self._valid = samples.notifications()
        self._grants = grants
        self.refused = 0

    def data(self, rng: random.Random) -> bytes:
        """One notification."""
        kind = rng.randrange(8)
        valid = self._valid[rng.randrange(len(self._valid))].whole
        if kind == 0:
            return noise(rng, valid)
        if kind == 1:
            return rng.choice((b"", b"K", b"7_kv_0_1_0", b"\0" * 8192, rng.randbytes(3000)))
        if kind in (2, 3):
            return changed(rng, valid, valid)
        if kind == 4 and self._grants:  # for a room that it has to do with, and what is not owed there
            grant, token = self._grants[rng.randrange(len(self._grants))]
            return notify.encode(grant, token, rng.choice(_PARTS))
        return notify.encode(rng.randrange(1, 3000), rng.getrandbits(64), rng.choice(_PARTS))

    def plan(self, rng: random.Random) -> tuple[bytes, int]:
        """One notification, and under which of the names."""
        return self.data(rng), rng.randrange(len(self._agents))

    def strike(self, data: bytes, at: int) -> None:
        """Send one."""
        try:
            self._agents[at].send_notif(self._decode[at], data)
        except Exception as error:  # noqa: BLE001 - whatever NIXL refuses is not sent, and that is all
            logging.getLogger("kvrooms.fuzz").debug("not sent: %s", error)
            self.refused += 1


def _agent(name: str) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
