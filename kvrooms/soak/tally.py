"""The books of a soak: which rooms ended how, and whether what was done to them explains it."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .messages import Ended
from .plan import Fault, Plan, Side

KILL_LIMIT_S = 2.0
"""Within what time of a kill the 99th percentile of the survivor's rooms must have failed."""
_AFTER_KILL_S = 1.0
_AFTER_FREEZE_S = 3.0
_SHOWN = 20
_BUSY_S = 1.0


@dataclass
class Incident:
    """A process was killed, or stopped for longer than the others wait.

    died: when the kernel had ended it; on a machine with too much to do that comes late. over: it serves again.
    """

    kind: str
    process: str
    began: float
    over: float = math.inf
    died: float = -math.inf
    served: bool = False
    """Whether it has carried a room with each process of the other side since."""

    def explains(self, room: Carried) -> bool:
        """Whether a room may have failed of it."""
        margin = _AFTER_KILL_S if self.kind == "kill" else _AFTER_FREEZE_S
        return self.process in room.processes and room.issued < self.over + margin and room.ended_at > self.began


@dataclass
class Carried:
    """A room under way, or over. waiting: the sides that have not said how it ended. lost: those that never will."""

    plan: Plan
    prefill: str
    decode: str
    issued: float
    waiting: set[Side] = field(default_factory=lambda: {"prefill", "decode"})
    lost: set[Side] = field(default_factory=set)
    ends: list[Ended] = field(default_factory=list)

    @property
    def processes(self) -> tuple[str, str]:
        """The names of its two processes."""
        return self.prefill, self.decode

    @property
    def ended_at(self) -> float:
        """When its last side ended."""
        return max((end.ended for end in self.ends), default=math.inf)

    @property
    def failed(self) -> bool:
        """Whether a side that can still speak says that it failed, or did not end."""
        return any(end.status != "done" for end in self.ends)


@dataclass
class Tally:
    """The figures so far."""

    rooms: int = 0
    done: int = 0
    failed: int = 0
    injected: int = 0
    collateral: int = 0
    hung: int = 0
    corrupt: int = 0
    cut_off: signal.Signals | None = None
    """The second signal, if one ended the run where it stood."""
    canaries: int = 0
    leaks: int = 0
    kills: int = 0
    stalls: int = 0
    incidents: list[Incident] = field(default_factory=list)
    failed_after_s: list[float] = field(default_factory=list)
    """From each kill to the failure of each of the survivors' rooms with that process."""
    _after_death_s: list[float] = field(default_factory=list)
    by_fault: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    late_s: float = 0.0
    """By how much the conductor was woken late, at most: how busy the machine was."""
    slow: list[str] = field(default_factory=list)
    """Rooms that failed late after a kill, in words."""
    wrongs: list[str] = field(default_factory=list)
    """What makes the run not ok, in words."""

    def wrong(self, words: str) -> None:
        """Something must not have happened."""
        self.wrongs.append(words)

    def take(self, room: Carried) -> None:
        """A room is over."""
        plan = room.plan
        self.rooms += 1
        for end in room.ends:
            self.hung += end.status == "hung"
            self.corrupt += end.wrong > 0
            if end.status == "hung" or end.wrong:
                self.wrong(f"{_words(room)}: {end.role} is {end.status}, {end.wrong} items are wrong")
        self._measure_kill(room)
        fault = plan.injury.fault.value if plan.injury else "none"
        if not room.failed:
            self.done += 1
            self.by_fault[fault, "done"] += 1
            return
        self.failed += 1
        self.reasons.update(end.reason or end.status for end in room.ends if end.status != "done")
        # What the plan does to a room itself comes first; a room that must survive it can still be collateral.
        if not plan.harmless:
            self.injected += 1
            self.by_fault[fault, "failed"] += 1
        elif any(incident.explains(room) for incident in self.incidents):
            self.collateral += 1
            self.by_fault[fault, "collateral"] += 1
        else:
            self.by_fault[fault, "unexplained"] += 1
            self.wrong(f"{_words(room)} failed, and nothing was done that explains it")

    def take_plain(self, room: Carried) -> None:
        """A room is over to which nothing was done, between processes that were well: it counts only if it failed."""
        if room.failed or any(end.wrong for end in room.ends):
            self.wrong(f"plain {_words(room)} must be done")
            self.hung += any(end.status == "hung" for end in room.ends)
            self.corrupt += any(end.wrong for end in room.ends)

    def _measure_kill(self, room: Carried) -> None:
        """How long after its peer's death a room failed: every room that knew that peer.

        Decode knows it when it has sent METADATA, prefill when it has accepted one. Before that a room waits for
        whoever comes, and be it under the name of the dead.
        """
        for kill in self.incidents:
            if kill.kind == "kill" and kill.process in room.processes and room.plan.harmless:
                for end in room.ends:
                    knew = end.met > 0 and max(end.met, end.opened) < kill.began < end.ended
                    if knew and end.status == "failed":
                        self._failed_after(kill, end, room)

    def _failed_after(self, kill: Incident, end: Ended, room: Carried) -> None:
        """Counted from the kill, judged from the death: until then the survivors have nothing to notice."""
        self.failed_after_s.append(end.ended - kill.began)
        self._after_death_s.append(end.ended - max(kill.began, kill.died))
        if self.failed_after_s[-1] >= KILL_LIMIT_S:
            died = f"which the kernel took {kill.died - kill.began:.2f} s to end"
            self.slow.append(
                f"{_words(room)}, {self.failed_after_s[-1]:.2f} s after the kill of {kill.process}, {died}"
            )

    @property
    def kill_p99_s(self) -> float | None:
        """99th percentile of the time from a kill to the failure of a survivor's room with that process."""
        return _p99(self.failed_after_s)

    def ok(self) -> bool:
        """Whether everything held."""
        slow = (_p99(self._after_death_s) or 0.0) >= KILL_LIMIT_S
        bad = self.hung or self.corrupt or self.canaries or self.leaks or self.wrongs
        return not (slow or bad)

    def table(self) -> list[str]:
        """What was done to rooms and what became of them, one line per fault."""
        lines = []
        for fault in ["none", *(fault.value for fault in Fault)]:
            counts = {how: self.by_fault[fault, how] for how in ("done", "failed", "collateral", "unexplained")}
            if any(counts.values()):
                lines.append(f"{fault:18} " + ", ".join(f"{count} {how}" for how, count in counts.items() if count))
        lines.append("reasons: " + ", ".join(f"{reason} {count}" for reason, count in self.reasons.most_common()))
        return lines

    def complaints(self) -> Iterable[str]:
        """The first of `slow` and `wrongs`, and what to make of them on a machine with too much to do."""
        if self.late_s > _BUSY_S and (self.slow or self.wrongs):
            yield f"busy: this process was woken {self.late_s:.1f} s late once; engines may seem dead on such a machine"
        yield from (f"late: {words}" for words in self.slow[:_SHOWN])
        yield from (f"WRONG: {words}" for words in self.wrongs[:_SHOWN])
        if len(self.wrongs) > _SHOWN:
            yield f"... and {len(self.wrongs) - _SHOWN} more"


def _p99(times: list[float]) -> float | None:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1] if times else None


def _words(room: Carried) -> str:
    injury = room.plan.injury
    ends = "; ".join(f"{end.role}: {end.status} {end.detail}" for end in room.ends)
    what = f" ({injury.fault.value} on {injury.side} {injury.frame})" if injury else ""
    return f"room {room.plan.number}{what} of {room.prefill} and {room.decode} [{ends}]"
