"""One process of a soak: an engine on real NIXL, and a caller that does to its rooms what their plans say."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..engine.draining import drain_all, words
from ..engine.ending import SIGNALS, leave, status_of
from ..protocol.registration import parse_address
from .messages import (
    Abandon,
    Complaint,
    End,
    Figures,
    FromWorker,
    Look,
    Ready,
    Rooms,
    Start,
    Told,
    ToWorker,
    encode,
    to_worker,
)
from .sides import DecodeSide, PrefillSide, Side

CONDUCTOR_GONE = 3
_LOOK_LIMIT_S = 20.0
_LOOK_EVERY_S = 0.1


def main(descriptor: int) -> int:
    """Be what the first message says, until told to end by the conductor. Returns the exit status.

    A first signal goes on to the conductor, which ends all processes in order; a second ends an engine's at once. The
    registry has to outlive the rooms of others: it hears no signals.
    """
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(descriptor)
    start = to_worker(pipe.recv_bytes())
    assert isinstance(start, Start)
    logging.basicConfig(level=logging.ERROR, format=f"{start.name}: %(message)s", stream=sys.stderr, force=True)
    if start.role == "registry":
        return _registry(pipe, start)
    return asyncio.run(Worker(pipe, start).run())


def _registry(pipe: Connection[Any, Any], start: Start) -> int:
    """Serve a registry until the pipe closes."""
    from ..transport.registry import RegistryServer

    with RegistryServer(port=start.port) as server:
        pipe.send_bytes(encode(Ready(server.url)))
        try:
            while True:
                pipe.recv_bytes()
        except (EOFError, OSError):
            return 0


class Worker:
    """Takes orders from the pipe and answers on it. Everything but the engine's own threads runs on one event loop."""

    def __init__(self, pipe: Connection[Any, Any], start: Start) -> None:
        self._pipe = pipe
        self._start = start
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[int] | None = None
        self._side: Side | None = None
        self._signals = 0

    def _told(self, sign: signal.Signals) -> None:
        if self._signals:
            leave(status_of(sign))
        self._signals += 1
        self.say(Told(sign.name))

    async def run(self) -> int:
        """Serve. Returns the exit status."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        sides = {"prefill": PrefillSide, "decode": DecodeSide}
        self._side = side = sides[self._start.role](self._start, self.say)
        threading.Thread(target=self._listen, args=(loop,), name="soak-conductor", daemon=True).start()
        for sign in SIGNALS:
            loop.add_signal_handler(sign, self._told, sign)
        self.say(Ready(side.address))
        status = await self._over
        await loop.run_in_executor(None, self._drain, side)
        return status

    def _drain(self, side: Side) -> None:
        """No room should be open by now; one that is does not go unsaid."""
        for name, drained in drain_all([side.engine]).items():
            if drained.aborted or drained.held:
                self.say(Complaint("; ".join(words({name: drained}))))
        side.close()

    def say(self, message: FromWorker) -> None:
        """Tell the conductor something."""
        try:
            self._pipe.send_bytes(encode(message))
        except OSError:
            os._exit(CONDUCTOR_GONE)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread of its own, because it must notice the conductor's end whatever the loop is busy with."""
        try:
            while True:
                loop.call_soon_threadsafe(self._take, to_worker(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            os._exit(CONDUCTOR_GONE)
        except RuntimeError:  # the loop has ended, and with it this process in a moment
            return

    def _take(self, message: ToWorker) -> None:
        side = self._side
        assert side is not None
        match message:
            case Rooms(orders):
                for order in orders:
                    self._begin(side.carry(order), f"room {order.number}")
            case Abandon(numbers):
                for number in numbers:
                    side.abandon(number)
            case Look(tables):
                self._begin(self._look(side, tables), "look")
            case End():
                if self._over is not None and not self._over.done():
                    self._over.set_result(0)
            case Start():
                self.say(Complaint(f"{self._start.name} was started twice"))

    def _begin(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            import traceback

            self.say(Complaint(f"{self._start.name}, {task.get_name()}: {''.join(traceback.format_exception(error))}"))

    async def _look(self, side: Side, wanted: dict[str, int]) -> None:
        """Report once the tables are as wanted; what was closed last takes its time, with the peer's heartbeat."""
        end = time.monotonic() + _LOOK_LIMIT_S
        before: dict[str, int] | None = None
        while time.monotonic() < end:
            tables = side.engine.tables()
            if not side.held and not tables["keys"] and tables == (wanted or before):
                break
            before = tables
            await asyncio.sleep(_LOOK_EVERY_S)
        side.pools.scan()
        self.say(
            Figures(
                tables=side.engine.tables(),
                canaries=side.pools.hits,
                held=side.held,
                descriptors=_descriptors(self._start.registry),
                threads=_threads(),
                counters={**side.engine.counters(), **{f"injected: {k}": v for k, v in side.channel.done.items()}},
            )
        )


def _descriptors(registry: str) -> dict[str, int]:
    """Open files by kind: a path, "anon_inode", "socket", or the state of a TCP socket, as the kernel numbers it.

    Connections to the registry are left out: the client keeps up to 16 of them for the next question.
    """
    states = _tcp_states(parse_address(urlsplit(registry).netloc)[1])
    kinds: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the one that lists them
            continue
        kind, _, inode = target.partition(":")
        kinds[states.get(inode.strip("[]"), kind)] += 1
    kinds.pop("", None)
    return dict(kinds)


def _tcp_states(registry: int) -> dict[str, str]:
    """What each TCP socket of this machine is, by inode; "" for one that leads to the registry's port."""
    states = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, _, far, state, *rest = line.split()
            to_registry = int(far.rpartition(":")[2], 16) == registry
            states[rest[5]] = "" if to_registry else f"TCP socket in state {state}"
    return states


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
