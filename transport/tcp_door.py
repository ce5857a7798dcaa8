"""Who is let in. Connections whose other end has yet to prove itself are few, and not there for long."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import time
from collections import Counter

from ..protocol.errors import WireError
from .tcp_auth import Proof
from .tcp_link import Link, Target

log = logging.getLogger("kvrooms.tcp")
ABROAD = "it is not an address of this machine, and there is no secret: set KVROOMS_SECRET here and there"


class Door:
    """What a control channel asks of a connection before its first frame.

    secret: what both ends must know; None: nothing is asked. seconds: for the proof. most: connections that were
    accepted and have not proven themselves; the next one takes the place of the oldest. anywhere: without a secret,
    dial other addresses than those of this machine as well.
    """

    def __init__(
        self, secret: bytes | None = None, *, seconds: float = 5.0, most: int = 256, anywhere: bool = True
    ) -> None:
        self._secret = secret
        self._seconds = seconds
        self._most = most
        self._anywhere = anywhere or secret is not None
        self._waiting: dict[Link, float] = {}
        self.counts: Counter[str] = Counter()
        """How many were turned away, by reason."""

    def forbidden(self, target: Target) -> str:
        """Why an address must not be dialled; "" if it may."""
        return "" if self._anywhere or is_here(str(target[1][0])) else ABROAD

    def receive(self, link: Link) -> list[Link]:
        """A connection is made. Asks for its proof where there is a secret; returns those that have to go for it."""
        if self._secret is None:
            return []
        link.proof = Proof(self._secret, os.urandom(32), inbound=link.inbound)
        self._waiting[link] = time.monotonic() + self._seconds
        with contextlib.suppress(WireError):  # if it is gone already, the first look at it will find out
            _say(link, link.proof.first)
        inbound = [other for other in self._waiting if other.inbound]
        return inbound[: -self._most] if link.inbound else []

    def hear(self, link: Link, data: bytes) -> bytes | None:
        """What an unproven end has said. Returns what follows its proof, None as long as it has not proven itself.

        Raises WireError: it is none of ours.
        """
        assert link.proof is not None
        _say(link, link.proof.take(data))
        if link.proof.session is None:
            return None
        rest = link.proof.rest
        link.prove(link.proof.session)
        self.forget(link)
        return rest

    def forget(self, link: Link) -> None:
        """It has proven itself, or it was closed by us."""
        link.proof = None
        self._waiting.pop(link, None)

    def turn_away(self, link: Link, why: str) -> str:
        """It has ended without a proof. Returns that in words."""
        self.forget(link)
        if not link.inbound:
            return f"{link.address} did not prove that it knows our secret: {why}"
        self.counts["connections not authenticated"] += 1
        times = self.counts["connections not authenticated"]
        if times & (times - 1) == 0:  # the first time, the second, the fourth, ...
            log.warning("%s was not let in: %s (%d so far)", link.address, why, times)
        return why

    def late(self) -> list[Link]:
        """Those that have taken too long."""
        if not self._waiting:
            return []
        now = time.monotonic()
        return [link for link, end in self._waiting.items() if now > end]

    def patience_s(self, timeout_s: float) -> float:
        """How much of `timeout_s` may be slept."""
        for end in self._waiting.values():  # the first is the earliest
            return min(timeout_s, max(0.0, end - time.monotonic()) + 0.001)
        return timeout_s


def is_here(host: str) -> bool:
    """Whether a numeric address is one that only this machine reaches."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _say(link: Link, words: bytes) -> None:
    """A few bytes into a buffer that is empty. Raises WireError."""
    assert link.socket is not None
    try:
        if words and link.socket.send(words) != len(words):
            raise WireError("authentication", "it does not read")
    except OSError as error:
        raise WireError("authentication", f"it is gone: {error.strerror or error}") from None
