"""Mistakes in the public methods, and in what they rest on."""

from __future__ import annotations

from ...transport.ports import CloseCause
from .mutant import Mutant
from .plant import Text

_HEARTBEAT = (CloseCause.PEER_CLOSED, CloseCause.RESET, CloseCause.LOCAL)
_TIMED_OUT = (CloseCause.PEER_CLOSED, CloseCause.RESET, CloseCause.TIMED_OUT)

PUBLIC = (
    Mutant(
        "aux-guarded-by-state",
        "the aux buffers go with the state of the last send, if it has any",
        Text(
            "engine.prefill:_next",
            "room._aux_index if last else None",
            "room._aux_index if last and any(counted) else None",
        ),
        ("L2",),
    ),
    Mutant(
        "totals-of-the-last-send",
        "the last send declares its own indices, not those of earlier sends with it",
        Text(
            "engine.prefill:_next",
            "counts_of(names, counted)) if last",
            "counts_of(names, tuple(map(len, state or (_NONE,) * len(before))))) if last",
        ),
        ("L2",),
    ),
    Mutant(
        "last-must-be-said",
        "a send that reaches the declared number of pages is not taken for the last",
        Text(
            "engine.prefill:_next", "(total is not None and reached == total) if last is None", "False if last is None"
        ),
        ("L2",),
        only=True,
    ),
    Mutant(
        "slot-0-is-none",
        "aux slot 0 is no slot",
        Text(
            "engine.decode:DecodeEngine.open", "slot = -1 if aux_index is None else", "slot = -1 if not aux_index else"
        ),
        ("L2",),
    ),
    Mutant(
        "source-slot-0-is-none",
        "aux slot 0 of the source is no slot",
        Text("engine.sends:transfers", "if send.aux_index is not None and", "if send.aux_index and"),
        ("L2",),
        also=("hunt",),
    ),
    Mutant(
        "callers-are-answered-first",
        "what callers ask for comes first in a round; completions wait until nobody asks for anything",
        Text("engine.core:EngineCore.turn", "busy = self._take_in()", "busy = not self._inbox and self._take_in()"),
        ("C2",),
    ),
    Mutant(
        "failure-raised-before-cleanup",
        "the failure is raised at once: the caller closes the room in time",
        Text(
            "engine.handle:Room.failure_exception",
            "if not self._gone.wait(self._desk.lock, _FORGET_TIMEOUT_S):",
            "if False:",
        ),
        ("C2",),
        only=True,
        also=("simulate",),
    ),
    Mutant(
        "failure-raised-twice",
        "whoever asks again is told again",
        Text("engine.handle:Room.failure_exception", "if surfaced:", "if False:"),
        ("C2",),
        only=True,
        also=("simulate",),
    ),
    Mutant(
        "cleanup-gives-anothers-key-back",
        "a room gives its key back when it is closed and when it is forgotten, though it may be another's by then",
        Text("engine.host:Engine._give_key_back", "if not room.key_free:", "if True:"),
        ("L4",),
        only=True,
    ),
    Mutant(
        "closing-fails-what-is-done",
        "an engine that closes ends all its rooms as FAILED, also those that had ended",
        Text("engine.host:Engine._finish", "if not room.poll().terminal:", "if room.poll() is not Status.FAILED:"),
        ("S2",),
        only=True,
    ),
    Mutant(
        "quarantined-page-handed-out",
        "a page is checked for being named twice, not for belonging to another room",
        Text("engine.claims:_check", "taken = [index for index in listed if claimed[index]]", "taken: list[int] = []"),
        ("S3",),
        only=True,
        also=("hunt",),
    ),
    Mutant(
        "quarantined-slot-handed-out",
        "aux slots are not claimed: they are small",
        Text("engine.claims:Claims.take", "if aux_index >= 0 and self._aux[aux_index]:", "if aux_index < -1:"),
        ("S3",),
        only=True,
    ),
    Mutant(
        "slot-0-is-never-given-back",
        "aux slot 0 stays claimed",
        Text("engine.claims:Claims.give_back", "if aux_index >= 0:", "if aux_index > 0:"),
        ("C1",),
    ),
    Mutant(
        "many-pages-belong-to-nobody",
        "a handful of pages is compared with those of other rooms; many at once are only compared with each other",
        Text("engine.claims:_check", "taken = indices[_view(claimed)[indices] != 0].tolist()", "taken: list[int] = []"),
        ("S3",),
    ),
    Mutant(
        "waits-for-the-first-room",
        "whoever waits for any of several rooms is woken by the first of them",
        Text(
            "engine.handle:wait_any",
            "for room in rooms:\n        room._end.call(",
            "for room in rooms[:1]:\n        room._end.call(",
        ),
        ("L2",),
    ),
    Mutant(
        "await-wakes-no-loop",
        "the engine's thread resolves the future of an event loop that sleeps, and does not wake it",
        Text("engine.handle:_asynchronously", "loop.call_soon_threadsafe(done)", "loop.call_soon(done)"),
        ("L2",),
    ),
    Mutant(
        "end-between-look-and-wait",
        "a caller that looked before the room ended, and says afterwards that it waits, is not called any more",
        Text("engine.handle:_Moment.call", "if not self.happened:", "if True:"),
        ("L2",),
    ),
    Mutant(
        "memory-is-free-when-the-room-ends",
        "whoever awaits the memory of a room awaits its end",
        Text(
            "engine.handle:Room.memory_freed",
            "await _asynchronously(self._free,",
            "await _asynchronously(self._end,",
        ),
        ("S3",),
    ),
    Mutant(
        "outcome-is-ones-own-end",
        "whoever waits for the outcome of a room is woken by the room's end on its own rank",
        Text("engine.handle:Room.wait_outcome", "(self._decided or self._end)", "self._end"),
        ("A1",),
    ),
    Mutant(
        "decided-is-ones-own-end",
        "whoever awaits the outcome of a room is woken by the room's end on its own rank",
        Text("engine.handle:Room.decided", "self._decided or self._end", "self._end"),
        ("A1",),
    ),
    Mutant(
        "decided-and-nobody-woken",
        "an outcome is there to be read, and whoever waits for it is not woken",
        Text("engine.handle:Room.decide", "self._decided.happen(self._desk.lock)", "pass"),
        ("L2",),
    ),
)
