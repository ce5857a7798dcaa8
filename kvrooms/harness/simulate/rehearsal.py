"""The question whether the simulated ports could have produced a trace.

The world is only as good as its ports: of what the real ones do and it cannot do, it shows nothing. So each trace of a
real run is rehearsed in a world without chance: every post is posted there, peers are met and removed, agents end and
die, and whenever the trace says that a write has settled, that a notification has arrived or that bytes are there, the
world must have just that among the things that can happen next. An error needs a cause in the trace: a write fails
after its target has died or ended, a post to one that has died, ended or was removed. A post may be refused at any time
(`SimTransport.post_error`); of such a post nothing may be seen afterwards. `rehearse` tells the first step that the
world cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...protocol.errors import PeerGone, TransportError
from ...protocol.layout import BufferSpec, Layout, Region, Regions
from ...protocol.plan import Piece
from ...transport.ports import Arrival
from ..faults import Faults
from ..ports import SimTransport, Write
from ..witness import Witness
from ..world import World
from .traces import Seen

_FRAMES = ("opened", "sent", "received", "closed")
_REFUSED = TransportError.__name__
_LAYOUT = Layout(1, (BufferSpec(0, "k", 1, "uint8"),), (), ())
_ITEMS = 64


def rehearse(steps: Sequence[Seen]) -> str:
    """Follow a trace in a simulated world. "" if the world can do all of it, else the first step that it cannot do."""
    writes, frames = _Writes(steps), _Frames()
    for number, step in enumerate(steps):
        actor = frames if step.kind in _FRAMES else writes
        trouble = "its process is dead" if writes.dead(step) else actor.follow(step)
        if trouble:
            return f"step {number} ({step.at:.6f} s, {step.agent}, {step.kind} {step.number}): {trouble}"
    return ""


class _Posted(Witness):
    """Every write that begins, also those that are over when their post returns."""

    def __init__(self) -> None:
        self.begun: list[Write] = []

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        self.begun.append(write)


class _Writes:
    """Writes and notifications of a trace, in a world whose transports bear the names of the real ones."""

    def __init__(self, steps: Sequence[Seen]) -> None:
        self._world = World()
        self._witness = self._world.witness = _Posted()
        self._memory = np.zeros(_ITEMS, dtype=np.uint8)
        self._regions = Regions((Region(int(self._memory.ctypes.data), _ITEMS),), (), ())
        self._transports: dict[str, SimTransport] = {}
        for name in dict.fromkeys(name for step in steps for name in (step.agent, step.peer) if name):
            self._transports[name] = SimTransport(self._world, name)
            self._transports[name].register(_LAYOUT, self._regions)
        self._handles: dict[tuple[str, int], Write] = {}
        self._unseen: list[Write] = []
        self._by_message: dict[tuple[str, str, bytes], Write] = {}

    def dead(self, step: Seen) -> bool:
        """Whether its process can have done nothing any more. Its memory may be looked at."""
        return step.kind != "looked" and self._transports[step.agent].killed

    def follow(self, step: Seen) -> str:
        """Do a step in the world; what is impossible about it."""
        ours = self._transports[step.agent]
        match step.kind:
            case "posted":
                return self._post(step)
            case "settled":
                return self._settle(step)
            case "arrived":
                return self._arrive(step)
            case "looked":
                return self._look(step)
            case "met":
                ours.add_peer(step.peer, self._transports[step.peer].metadata(), _LAYOUT, self._regions)
            case "removed":
                ours.remove_peer(step.peer)
            case "deregistered":
                ours._registered.clear()  # noqa: SLF001 - no engine does this alone, and no write under way asks
            case "ended":
                ours.close()
            case _:
                ours.kill()
        return ""

    def _post(self, step: Seen) -> str:
        source, wanted = self._transports[step.agent], (step.error or "").partition(":")[0]
        at = int(self._memory.ctypes.data)
        none, rows = np.empty(0, np.int32), np.array([(at, 1, 0)] * max(step.rows, 1), np.uint64)
        self._witness.begun.clear()
        self._world.faults = Faults(at_once=float(step.number == 0))
        source.post_error = wanted if wanted == _REFUSED else ""
        happened = ""
        try:
            source.post(step.peer, Piece((), "DRAM", "DRAM", none, none, rows, rows, 0), step.data)
        except PeerGone as error:
            happened = PeerGone.__name__ if wanted else f"the world refuses it: {error}"
        except TransportError:
            happened = _REFUSED
        if happened != wanted:
            return happened or "nothing has happened that would fail this post so"
        if not self._witness.begun:
            return ""
        write = self._witness.begun.pop()
        self._unseen.append(write)
        self._by_message[step.agent, step.peer, step.data] = write
        if step.number > 0:
            if (step.agent, step.number) in self._handles:
                return "the handle belongs to another write"
            self._handles[step.agent, step.number] = write
        return ""

    def _settle(self, step: Seen) -> str:
        write = self._handles.pop((step.agent, step.number), None)
        if write is None:
            return "no write with this handle is in flight"
        source, failed = write.source, step.error is not None
        if failed and not write.target.dead:
            return "nothing has happened that would fail this write"
        self._land(write)
        settled = source.settled()
        if not settled:
            trouble = self._happens(
                (source, "settlements"),
                lambda action: action.args[0] is write and (action.args[1] is not None) == failed,
            )
            settled = source.settled()
            if trouble:
                return trouble
        if failed == (settled[0].error is not None):
            return ""
        return f"in the world it fails: {settled[0].error}"

    def _arrive(self, step: Seen) -> str:
        target, wanted = self._transports[step.agent], Arrival(step.peer, step.data)
        for write in self._unseen:
            if write.target is target and Arrival(write.source.agent, write.message) == wanted:
                self._unseen.remove(write)
                self._land(write)
                return self._happens((target, "notifications"), lambda action: action.args[0] == wanted)
        return "no write that was posted carries this notification, or it has arrived before"

    def _look(self, step: Seen) -> str:
        write = self._by_message.get((step.peer, step.agent, step.data))
        if write is None:
            return "bytes of a write that was never posted" if step.rows else ""
        there = len(write.rows) - write.left
        if step.rows < there:
            return f"{step.rows} of its pieces are there, and must be {there}"
        queue = self._world.queue(write)
        for _ in range(min(step.rows - there, len(queue))):
            queue.pop()()
        if len(write.rows) - write.left != step.rows:
            return f"{step.rows} of its pieces are there, and in the world no more than {there} can be"
        return ""

    def _land(self, write: Write) -> None:
        if write.left and write in self._world.writes:
            self._world.finish(write)

    def _happens(self, lane: tuple[SimTransport, str], wanted: Callable[[partial[Any]], bool]) -> str:
        """Let the wanted thing of a lane happen."""
        queue = self._world.queue(lane)
        for action in queue:
            if isinstance(action, partial) and wanted(action):
                queue.remove(action)
                action()
                return ""
        return "the world has nothing of the kind to come"


class _Frames:
    """Frames of a trace: what is received at one end of a connection is what was sent at the other, in order."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], list[bytes]] = {}
        self._far: dict[tuple[str, int], tuple[str, int]] = {}
        self._taken: dict[tuple[str, int], int] = {}
        self._over: set[tuple[str, int]] = set()

    def follow(self, step: Seen) -> str:
        """Take in a step; what is impossible about it."""
        end = (step.agent, step.number)
        match step.kind:
            case "sent":
                self._sent.setdefault(end, []).append(step.data)
            case "closed":
                self._over.add(end)
            case "received":
                return self._received(end, step.data)
        return ""

    def _received(self, end: tuple[str, int], frame: bytes) -> str:
        if end in self._over:
            return "the connection is over"
        far = self._far.get(end)
        if far is None:
            free = [one for one in self._sent if one not in self._far.values() and one[0] != end[0]]
            far = next((one for one in free if self._sent[one][0] == frame), None)
            if far is None:
                return "nobody has sent this frame first on a connection"
            self._far[end] = far
        taken = self._taken.get(end, 0)
        sent = self._sent[far]
        if taken >= len(sent) or sent[taken] != frame:
            return "it is not the next frame that was sent on this connection"
        self._taken[end] = taken + 1
        return ""
