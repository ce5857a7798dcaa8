"""A child process of the benchmark: one side, which does what its parent asks, call by call.

`python -m kvrooms.bench.worker prefill|decode|sender-N|receiver-N FD`, where FD is the child's end of a pipe. The
process ends with its parent: a thread sits on the pipe, and its end is the end.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..engine.draining import Drainer
from .engines import EngineDecode, EnginePrefill
from .figures import Run
from .floor import FloorDecode, FloorPrefill
from .pair import DRAIN
from .ranks import Receiver, Sender
from .shapes import AUX_SLOTS, Pool, Shape

PARENT_GONE = 3
_DRAIN_S = 3.0  # prefill keeps rooms open ahead that decode asks for no more
Engines = TypeVar("Engines", EnginePrefill, EngineDecode)
Floor = TypeVar("Floor", FloorPrefill, FloorDecode)


class _Side(Generic[Engines, Floor]):
    """What both sides can be asked, beside the methods of `engines` and `floor`."""

    pool: Pool
    engines: Engines
    floor: Floor

    def memory(self) -> int:
        """Resident bytes of this process, garbage collected."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Close the engine, and the floor where there is one."""
        self.engines.engine.close()
        if hasattr(self, "floor"):
            self.floor.close()


class PrefillSide(_Side[EnginePrefill, FloorPrefill]):
    """The child that sends."""

    def start(self, shape: Shape) -> str:
        """Make pool and engine. Returns the bootstrap URL."""
        self.pool = Pool(shape, fill=True)
        self.engines = EnginePrefill(self.pool)
        return self.engines.engine.bootstrap

    def start_floor(self) -> tuple[bytes, int]:
        """Make the floor. Returns what decode's `floor.connect` needs."""
        self.floor = FloorPrefill(self.pool)
        return self.floor.metadata()


class DecodeSide(_Side[EngineDecode, FloorDecode]):
    """The child that receives and measures."""

    def start(self, shape: Shape, bootstrap: str) -> None:
        """Make pool and engine."""
        self.pool = Pool(shape, fill=False)
        self.engines = EngineDecode(self.pool, bootstrap)

    def start_floor(self) -> tuple[bytes, int]:
        """Make the floor. Returns what prefill's `floor.connect` needs."""
        self.floor = FloorDecode(self.pool)
        return self.floor.metadata()

    def floor_run(self, rooms: int, in_flight: int, limit_s: float) -> Run:
        """One run of the floor; the bytes of its last room are compared."""
        with self._compared(rooms - 1):
            return self.floor.run(rooms, in_flight, limit_s)

    def run(self, first: int, rooms: int, in_flight: int, limit_s: float) -> Run:
        """One run of the engines; the bytes of its last room are compared."""
        with self._compared(first + rooms - 1):
            return self.engines.run(first, rooms, in_flight, limit_s)

    @contextmanager
    def _compared(self, room: int) -> Iterator[None]:
        """Wipe the memory of a room before, and compare it after."""
        self.pool.wipe(room, room % AUX_SLOTS)
        yield
        if not self.pool.landed(room, room % AUX_SLOTS):
            raise RuntimeError(f"room {room} is DONE, but its memory is not what prefill sent")


_SIDES = {"prefill": PrefillSide, "decode": DecodeSide, "sender": Sender, "receiver": Receiver}


def _listen(
    pipe: Connection[Any, Any], calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]], drainer: Drainer
) -> None:
    try:
        while True:
            call = pipe.recv()
            if call[0] == DRAIN:
                drainer.ask()
            else:
                calls.put(call)
    except (EOFError, OSError):
        os._exit(PARENT_GONE)


def main(role: str, descriptor: int) -> None:
    """Answer calls (method, arguments) with (True, result) or (False, traceback), until the call `close`.

    Told to end, by a signal or the call `drain`, it drains its engine (`Drainer`) and sends (None, report).
    """
    logging.basicConfig(level=logging.WARNING, format=f"{role}: %(message)s")  # what an engine complains of is seen
    pipe: Connection[Any, Any] = Connection(descriptor)
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    speaking = threading.Lock()

    def say(what: tuple[bool | None, Any]) -> None:
        with speaking:
            pipe.send(what)

    drainer = Drainer(lambda found: say((None, found)), _DRAIN_S)
    threading.Thread(target=_listen, args=(pipe, calls, drainer), name="bench-parent", daemon=True).start()
    side = _SIDES[role.partition("-")[0]]()
    method = ""
    while method != "close":
        method, arguments = calls.get()
        try:
            say((True, attrgetter(method)(side)(*arguments)))
        except Exception:  # noqa: BLE001 - whatever it is, the parent shows it and ends the benchmark
            drainer.finish()
            say((False, traceback.format_exc()))
            return
    drainer.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
