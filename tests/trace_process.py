"""A process with one NIXL agent, which does what it is told on stdin and answers with what passed its transport.

Run as `trace_process.py NAME FILE`. FILE is its registered memory, mapped, so that others see what has landed in it;
it is also what it writes from. Between two commands it does nothing, so their order is the order of events.
"""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kvrooms.harness.simulate.traces import RecordingTransport, Trace
from kvrooms.protocol.errors import TransportError
from kvrooms.protocol.layout import BufferSpec, Layout, Region, Regions
from kvrooms.protocol.plan import Piece
from kvrooms.transport.nixl import NixlTransport

ITEM, ITEMS, TURNS = 65536, 64, 50
LAYOUT = Layout(16, (BufferSpec(0, "k", ITEM, "uint8"),), (), ())


class Actor:
    """The agent, and what it can be told."""

    def __init__(self, name: str, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self.trace = Trace()
        self.nixl = NixlTransport(name)
        self.transport = RecordingTransport(self.nixl, self.trace)
        self.nixl.register(LAYOUT, self.regions(self.memory.ctypes.data))

    def regions(self, address: int) -> Regions:
        """Where an agent's items are."""
        return Regions((Region(address, ITEMS),), (), ())

    def meet(self, name: str, blob: str, address: int) -> None:
        """Make another agent writable."""
        self.transport.add_peer(name, bytes.fromhex(blob), LAYOUT, self.regions(address))

    def post(self, name: str, item: int, count: int, message: str, past: int = 0) -> None:
        """Write items to the same places of another. past: how many bytes behind its memory instead."""
        items = np.arange(item, item + count, dtype=np.int32)
        ours = theirs = None
        if past:
            rows = [(self.memory.ctypes.data + ITEM * int(one), ITEM, 0) for one in items]
            ours = np.array(rows, np.uint64)
            theirs = np.array([(past, ITEM, 0)] * count, np.uint64)
        try:
            self.transport.post(name, Piece((), "DRAM", "DRAM", items, items, ours, theirs, 0), message.encode())
        except TransportError:
            pass  # it stands in the trace

    def turn(self) -> None:
        """Drive what is under way, as an engine's thread does."""
        for _ in range(TURNS):
            self.transport.settled()
            self.transport.arrivals()

    def remove(self, name: str) -> None:
        """Forget another agent, as a decode engine does when a peer is lost."""
        self.transport.remove_peer(name)

    def deregister(self) -> None:
        """Take back what was registered, and nothing else."""
        self.nixl._deregister()
        self.trace.add(self.nixl.agent, "deregistered")

    def close(self) -> None:
        """The end of the agent, in a process that lives."""
        self.transport.close()


def main() -> None:
    """Introduce the agent, then obey until stdin ends."""
    actor = Actor(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps([actor.nixl.metadata().hex(), actor.memory.ctypes.data]), flush=True)
    told = 0
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        getattr(actor, what)(*arguments)
        steps: list[Any] = [step._replace(data=step.data.hex()) for step in actor.trace.steps[told:]]  # type: ignore[arg-type]
        told = len(actor.trace.steps)
        print(json.dumps(steps), flush=True)


if __name__ == "__main__":
    main()
