"""What both one-sided machines share: a room that anything may end, any number of times."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ...protocol.events import DEADLINE_REASON, Fail, RoomEvent
from ...protocol.status import TERMINAL, Phase
from .base import Machine
from .facts import REASONS, Facts, Judge


class RoomSide(Machine):
    """A machine with a room. patience: so many steps nothing ends it, so that later phases are seen too."""

    room: Any
    facts: Facts
    judge: Judge
    patience: int

    def _take(self, event: Any, text: str) -> None:
        """Step the room, and judge the step."""
        raise NotImplementedError

    @property
    def patient(self) -> bool:
        """Whether nothing may end the room yet."""
        return self.room.phase not in TERMINAL and len(self.timeline) < self.patience

    @precondition(lambda self: not self.patient)
    @rule(kind=st.sampled_from(sorted(REASONS, key=lambda event: event.name)))
    def ends(self, kind: RoomEvent) -> None:
        """Something ends the room."""
        self._take(Fail(kind, REASONS[kind]), kind.name)

    @precondition(lambda self: self.room.phase in TERMINAL and not self.facts.closed)
    @rule()
    def ends_again(self) -> None:
        """Everything that ends rooms happens to one that has ended."""
        for kind, reason in REASONS.items():
            self._take(Fail(kind, reason), f"{kind.name}, late")

    @precondition(lambda self: self.judge.armed and not self.patient)
    @rule(at=st.integers(0, 1))
    def deadline(self, at: int) -> None:
        """A deadline that is armed passes."""
        armed = sorted(self.judge.armed, key=lambda timer: timer.name)
        timer = armed[at % len(armed)]
        self._take(Fail(RoomEvent.DEADLINE, DEADLINE_REASON[timer]), f"the deadline {timer.name} passes")
        self.check(
            "L3", self.room.phase is Phase.FAILED, f"{timer.name} passed, and the room is {self.room.phase.name}"
        )
