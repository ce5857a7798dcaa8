"""The judge of a simulated run: what has touched each room tells what may be asked of it.

It shares no code with the engines. Of a room it asks its public status and failure; everything else it has seen pass:
the callers' acts, frames by their kind and grant, posts, landings, notifications, each fault when it happened.

- A room that nothing has touched must end as its callers' arguments say, without a timer (L2, A1; L4 if others failed).
- One that only announced faults have touched must end without a timer (L3). Where a connection was lost in between, the
  pause before it is made again is allowed for.
- A deadline may end a room only if a silent fault has touched it, or if its callers owed something at the time.
"""

from __future__ import annotations

import re
from collections import Counter

from ...protocol.failure import Failure
from ...protocol.status import Status
from ..evidence import Counterexample
from . import told
from .eyes import Eyes
from .lives import Caller, End, Life, Trouble
from .memory import Held
from .record import Record
from .swarm import Swarm

_TAG = re.compile(r"<(\d+)>")
_OBLIGATIONS = ("page", "aux", "indices")
_OPEN = re.compile(r"open: ([^;]*)")
FOUND_MAX = 12


class Judge(Eyes):
    """Eyes with an opinion: complaints are collected, and each room's end is held against what has touched it."""

    def __init__(self, seed: int, swarm: Swarm, record: Record | None = None) -> None:
        self.found: list[Counterexample] = []
        self.examples: Counter[str] = Counter()
        self.timers: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        super().__init__(seed, swarm, record)

    # -- complaints ------------------------------------------------------------------------------------------------

    def complain(self, property_id: str, words: str, *held: Held) -> None:
        """A property does not hold; what follows from it for the same rooms is not told again."""
        self.accuse(property_id, words, *(one.note[0] for one in held if one.note is not None))

    def accuse(self, property_id: str, words: str, *lives: Life) -> None:
        """As `complain`, for lives."""
        known = any(life.broken for life in lives)
        for life in lives:
            life.broken = True
        if known or len(self.found) >= FOUND_MAX:
            return
        if property_id in ("S1", "L2", "L4") and any(life.targeted for life in lives):
            property_id, words = "S5", f"{words} (a stranger has spoken of it)"
        inputs = lives[0].words() if lives else {"run": str(self.swarm)}
        self.found.append(Counterexample(property_id, words, f"simulation seed {self.seed}", inputs))
        self.note("wire", "fault", f"{property_id} does not hold: {words}", *lives)

    # -- rooms -----------------------------------------------------------------------------------------------------

    def ended(self, held: Held) -> None:
        """A room has ended, this very moment."""
        if held.note is None:  # one of the judge's own
            super().ended(held)
            return
        life, caller = held.note
        status, failure = held.room.poll(), held.room.failure
        caller.end, caller.ended_at = End(status, failure), self.world.now
        self.note(_side(life, caller), "state", f"{status.name} {failure or ''}", life)
        self.outcomes[f"{_side(life, caller)} {failure.reason.value if failure else status.name}"] += 1
        if status is Status.DONE:
            if life.agree:
                self.examples["S1"] += held.receives
                super().ended(held)
            elif not (held.receives and life.asks_nothing):
                self.accuse("A1", f"{held.room!r}, and its callers had asked for different things", life)
        elif failure is not None:
            self._failed(life, caller, failure)

    def _failed(self, life: Life, caller: Caller, failure: Failure) -> None:
        who, reason, other = _side(life, caller), failure.reason.value, life.other(caller)
        told.failure(self, life, caller, failure)
        if reason == "refused" and "too many such grants wait" in failure.detail:
            self.crowded(life)
        foreign = {int(tag) for tag in _TAG.findall(failure.detail)} - {life.serial}
        if foreign and not life.mixed:
            self.accuse("S4", f"{who} of {life} failed with the words of another: {failure}", life)
        deadline = reason.startswith("deadline")
        if deadline and failure.origin == "local":
            self._timer(life, who, failure)
        if life.trouble is Trouble.SILENT:
            return
        waits = not life.complete or other.absent
        if deadline:
            waits |= life.acted_at == self.world.now  # it had passed before the callers did their part
            never_asked = caller is life.sender and other.end is not None and reason == "deadline_bootstrap"
            if failure.origin == "local" and caller is life.sender and told.kept(self, life, failure):
                self.hangs(life, f"decode holds {life}, and prefill has given it up: {failure}")
            elif failure.origin == "local" and (waits or never_asked):
                life.touch(Trouble.ANNOUNCED, f"{who} has waited long enough")
            elif failure.origin == "local":
                self.hangs(life, f"only a deadline ended {who} of {life}: {failure}")
        elif life.trouble is Trouble.NONE and not waits:
            if life.agree:
                self.accuse(
                    "L4" if self.disturbed else "L2", f"nothing has touched {life}, and {who} failed: {failure}", life
                )
            elif reason != "mismatch":
                self.accuse("A1", f"the callers of {life} disagree, and {who} failed otherwise: {failure}", life)

    def crowded(self, life: Life) -> None:
        """A grant was refused because too many wait: announced, where there are limits that can be reached."""
        if self.settings.parked_total > 1000:
            self.accuse("L4", f"{life} is refused because too many grants wait, and there are places for all", life)
        self.touch(life, Trouble.ANNOUNCED, "too many grants wait")

    def hangs(self, life: Life, words: str) -> None:
        """A room did not end by itself although it should have."""
        self.accuse("L2" if life.trouble is Trouble.NONE else "L3", words, life)

    def _timer(self, life: Life, who: str, failure: Failure) -> None:
        closed = obligations(failure)
        if not closed:
            self.accuse("L3", f"a deadline of {who} does not say what was open: {failure}", life)
            return
        self.timers[f"{who} {failure.reason.value}: {closed}"] += 1

    @property
    def disturbed(self) -> bool:
        """Whether any room of the run has failed, or something was done to the world."""
        return bool(self.injected) or any(life.trouble or not life.agree for life in self.lives)

    def may_mix(self, given: Held, taken: Held) -> bool:
        """Two lives under one key, the first of which decode has not forgotten, cannot be told apart by prefill."""
        a, b = given.note, taken.note
        return a is not None and b is not None and a[0].key == b[0].key and (a[0].mixed or b[0].mixed)

    def freed(self, held: Held) -> None:
        """See `Bench.freed`."""
        self.examples["S3"] += 1
        if held.note is not None:
            self.note(_side(*held.note), "state", "memory free", held.note[0])
        super().freed(held)


def obligations(failure: Failure) -> str:
    """What a deadline says was open, by kind where it is a part of the manifest: "" if it says nothing."""
    found = _OPEN.search(failure.detail)
    if found is None:
        return ""
    return ", ".join(kind for kind in _OBLIGATIONS if kind in found[1]) or found[1]


def _side(life: Life, caller: Caller) -> str:
    return "decode" if caller is life.receiver else "prefill"
