"""A peer of kvrooms that was let in and means ill: it has shaken hands as a decode engine does, and then it lies."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

import numpy as np

from ...protocol import notify, wire
from ...protocol.failure import Reason
from ...protocol.identity import agent_name
from ...protocol.manifest import Manifest
from ...protocol.memory import Memory
from ...protocol.notify import Part, PartKind
from ...protocol.registration import parse_address
from .own_pool import blank
from .subject import Request, Shape

NAME = "conformance-guest"
_GUESSES = 6
"""Grants that it says something of: decode counts from 1. It asks for its own under later numbers."""
_WAIT_S = 10.0


class Guest:
    """What it says, as frames. blob: of the agent `agent_name(incarnation)`, which has registered the memory."""

    def __init__(self, memory: Memory, incarnation: int, blob: bytes) -> None:
        self.memory = memory
        self.incarnation = incarnation
        self._blob = blob
        self._grants = _GUESSES
        self.prefill = 0

    def hello(self) -> bytes:
        """Its handshake, which is in order."""
        body = wire.Hello(NAME, agent_name(self.incarnation), self.memory.layout, self.memory.regions, self._blob)
        return wire.encode(body, self.incarnation, 0)

    def claim(self, request: Request) -> bytes:
        """It asks for a room of somebody else, with memory of its own."""
        self._grants += 1
        names = self.memory.layout.component_names
        state = [(name, some) for name, some in zip(names, request.state_indices, strict=False) if some]
        pages = len(request.pages)
        body = wire.Metadata(
            request.number,
            request.attempt,
            self._grants,
            self._grants,
            Manifest(pages, ((0, pages),) if pages else (), ("aux",), tuple((name, len(some)) for name, some in state)),
            _packed(request.pages),
            request.aux_index,
            tuple(_packed(some) for _, some in state),
        )
        return self._frame(body)

    def meddle(self, victim: int = 0) -> list[bytes]:
        """It gives up, fails and acknowledges grants that are not its own; under its victim's name, if it knows it."""
        found = []
        for source in (self.incarnation, *([victim] if victim else [])):
            for number in range(1, _GUESSES + 1):
                bodies = (
                    wire.Abort(number, Reason.ABORTED, "says somebody else", retryable=False),
                    wire.Ack(number),
                    wire.Failed(number, Reason.ABORTED, "says somebody else", retryable=False),
                )
                found += [wire.encode(body, source, self.prefill) for body in bodies]
        return found

    def _frame(self, body: wire.Body) -> bytes:
        return wire.encode(body, self.incarnation, self.prefill)


def false_completion(body: wire.Metadata) -> bytes:
    """A notification that says that all of a grant has landed, with the grant's own token."""
    pages = len(body.pages) // 4
    parts = [Part(PartKind.KV, 0, body.manifest.kv[0][0], pages)] if pages else []
    parts.append(Part(PartKind.AUX, 0, 0, 1))
    parts += [Part(PartKind.STATE, number, 0, len(some) // 4) for number, some in enumerate(body.state)]
    return notify.encode(body.grant, body.token, tuple(parts))


class TcpGuest:
    """A guest on real NIXL, in the suite's own process."""

    def __init__(self, shape: Shape, address: str) -> None:
        from ...transport.nixl import NixlTransport

        incarnation = random.SystemRandom().getrandbits(64) | 1
        self._pool = blank(shape, "decode")
        memory = self._pool.memory()
        self._agent = NixlTransport(agent_name(incarnation))
        self._agent.register(memory.layout, memory.regions)
        self._guest = Guest(memory, incarnation, self._agent.metadata())
        self._address = address
        self._socket: socket.socket | None = None

    def says(self, saying: str, request: Request) -> None:
        """Say something of a room. Raises OSError where it is not let in."""
        if self._socket is None:
            self._join()
        frames = [self._guest.claim(request)] if saying == "claim" else self._guest.meddle()
        assert self._socket is not None
        try:
            self._socket.sendall(b"".join(frames))
        except OSError:  # it was thrown out for what it said before
            self._socket.close()
            self._socket = None

    def _join(self) -> None:
        self._socket = made = socket.create_connection(parse_address(self._address), _WAIT_S)
        made.sendall(self._guest.hello())
        prefix = made.recv(wire.PREFIX_LENGTH, socket.MSG_WAITALL)
        welcome = wire.decode(made.recv(wire.frame_length(prefix), socket.MSG_WAITALL))
        if not isinstance(welcome.body, wire.Welcome):
            raise OSError(f"it was not let in: {welcome.body}")
        self._guest.prefill = welcome.source

    def close(self) -> None:
        """Hang up; the agent ends."""
        if self._socket is not None:
            self._socket.close()
        self._agent.close()


def _packed(indices: Sequence[int]) -> bytes:
    return wire.pack_indices(np.asarray(indices, np.int32))
