"""A leader that lies: a rank has joined it, and is told whatever could be said, in any order and again."""

from __future__ import annotations

import random
import socket
import threading
import time

from .. import RoomGroup, Status
from ..protocol import group, wire
from ..protocol.errors import WireError
from ..protocol.failure import Failure, Reason
from ..protocol.identity import RoomKey
from . import samples
from .group_proxy import end_server, framed, read_frame
from .mutate import mutated

_ROOMS = 4
_CLOSE_S = 1.0


class FalseLeader:
    """The leader of a group of two, and its victim, rank 1."""

    def __init__(self, seed: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        host, port = self._server.getsockname()
        self._incarnation = random.Random(f"{seed} false leader").getrandbits(64) | 1
        self._member = 0
        self._socket: socket.socket | None = None
        self._writing = threading.Lock()
        self._hearing: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.victim = RoomGroup(1, 2, f"{host}:{port}", name="victim").join()
        self.victim.attach(self)
        self._told: dict[RoomKey, Status] = {}
        self._failed: set[RoomKey] = set()
        self._opened = 0
        self.wrong: list[str] = []

    # -- the victim's user -----------------------------------------------------------------------------------------

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        """An outcome, once, and never DONE for what has failed here."""
        if key in self._told:
            self.wrong.append(f"{key} was told {self._told[key].name}, and then {status.name}")
        if status is Status.DONE and key in self._failed:
            self.wrong.append(f"{key} has failed on this rank, and its outcome is DONE")
        if (status is Status.DONE) != (failure is None):
            self.wrong.append(f"{key} is {status.name}: {failure}")
        self._told[key] = status

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        """Nothing is open."""

    # -- the wire --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            while True:
                made, _ = self._server.accept()
                self._socket = made
                thread = threading.Thread(target=self._hear, args=(made,), daemon=True)
                thread.start()
                self._hearing = [*(one for one in self._hearing if one.is_alive()), thread]
        except OSError:
            pass  # closed

    def _hear(self, one: socket.socket) -> None:
        """Answer as a leader would; what is asked is answered, or the victim would go."""
        try:
            while frame := read_frame(one):
                received = group.decode(frame)
                self._member = received.source
                match received.body:
                    case group.Join():
                        self._say(one, group.Present(0, b""), group.Present(1, b""), group.Ready(7))
                        self._say(one, group.Welcome(0, ()))
                    case group.Resume():
                        self._say(one, group.Welcome(0, ()))
                    case group.Ask(number):
                        self._say(one, group.Answer(number))
        except (OSError, WireError):
            pass
        one.close()

    def _say(self, one: socket.socket, *bodies: wire.Body) -> None:
        with self._writing:
            for body in bodies:
                one.sendall(wire.encode(body, self._incarnation, self._member))

    # -- strikes ---------------------------------------------------------------------------------------------------

    def strike(self, rng: random.Random) -> bytes:
        """Say one thing. Returns it. Now and then a room begins or ends on the victim."""
        if rng.random() < 0.2:
            self._room(rng)
        data = self._data(rng)
        one = self._socket
        try:
            if one is not None:
                with self._writing:
                    one.sendall(data)
        except OSError:
            pass  # the victim has hung up, and will be back
        return data

    def _room(self, rng: random.Random) -> None:
        key = RoomKey(self._opened, 0)
        self._opened += 1
        self.victim.enter(key)
        if rng.random() < 0.4:
            self._failed.add(key)
            self.victim.report(key, Status.FAILED)
        elif rng.random() < 0.7:
            self.victim.report(key, Status.DONE)

    def _data(self, rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            sample = rng.choice(samples.group_frames())
            return framed(mutated(rng, sample, sample.whole)[: wire.FRAME_MAX])
        source, target = self._incarnation, self._member
        if rng.random() < 0.03:
            source, target = rng.choice(((source, 1), (1, target), (target, source)))
        return wire.encode(self._body(rng), source, target)

    def _body(self, rng: random.Random) -> wire.Body:
        room, attempt = max(0, self._opened - rng.randrange(_ROOMS)), int(rng.random() < 0.1)
        number, serial = rng.choice((0, self._opened, rng.randrange(99))), rng.randrange(1, 200)
        reason, detail = rng.choice(tuple(Reason)), rng.choice(("", "no", "x" * 1024))
        bodies: tuple[wire.Body, ...] = (
            group.OutcomeDone(room, attempt, serial, max(1, number)),
            group.OutcomeFailed(room, attempt, serial, number, rng.randrange(3), reason, detail, rng.random() < 0.5),
            group.OutcomeFailed(room, attempt, serial, 0, 0, reason, detail, reason.retryable),
            group.RankLost(rng.randrange(3), reason, detail, rng.random() < 0.5),
            group.RankBack(rng.randrange(3)),
            group.Welcome(rng.randrange(5), (0,) if rng.random() < 0.5 else ()),
            group.Ready(9),
            group.Present(1, b"again"),
            group.Gathering((1,)),
            group.Join(0, 2, b""),
            group.ReportDone(room, attempt, 1),
            group.Acknowledge(room, attempt, serial),
            group.Answer(serial),
            group.Leave(final=False, detail=detail),
        )
        return rng.choice(bodies)

    def finish(self) -> list[str]:
        """Close the victim: it must not wait for ever for a leader that says nothing it could believe."""
        began = time.monotonic()
        self.victim.close(_CLOSE_S)
        if not self.victim.closed or time.monotonic() - began > 10 * _CLOSE_S:
            self.wrong.append("a rank with a false leader does not close")
        untold = [n for n in range(self._opened) if RoomKey(n, 0) not in self._told]
        if untold:
            self.wrong.append(f"{len(untold)} rooms of a rank with a false leader have no outcome")
        end_server(self._server)
        self._thread.join()
        for thread in self._hearing:
            thread.join()
        return self.wrong[:5]
