"""A lease and a drain by themselves: every event in every state, also those that an engine never lets happen."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from ...protocol.events import Do, DrainEvent, LeaseEvent, Timer
from ...statemachine import memory
from ...statemachine.memory import DrainValue
from .base import Machine

PROOFS = (LeaseEvent.ACKED, LeaseEvent.WRITER_GONE, LeaseEvent.FENCED)

BEGINNINGS: tuple[tuple[LeaseEvent, ...], ...] = (
    (),
    (LeaseEvent.ADVERTISED,),
    (LeaseEvent.ADVERTISED, LeaseEvent.FAILED),
    (LeaseEvent.ADVERTISED, LeaseEvent.LANDED),
)


class LeaseAlone(Machine):
    """A lease: it comes back once, when nobody can write any more, and until then somebody asks."""

    NAME: ClassVar[str] = "lease"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L5", "S3")

    @initialize(first=st.sampled_from(BEGINNINGS))
    def begin(self, first: tuple[LeaseEvent, ...]) -> None:
        """A grant, not advertised yet; or further on."""
        self.began = True
        self.lease = memory.LEASE.initial
        self.advertised = self.failed = self.freed = self.asks = False
        for event in first:
            self.happens(event)

    @rule(event=st.sampled_from(sorted(LeaseEvent, key=lambda event: event.name)))
    def happens(self, event: LeaseEvent) -> None:
        """Any event."""
        self.visit("lease", self.lease, event)
        waiting = self.advertised and self.failed and not self.freed
        proof = self.advertised and (event in PROOFS or (event is LeaseEvent.LANDED and not self.failed))
        proof = proof or (event is LeaseEvent.FAILED and not self.advertised)
        self.lease, row = memory.step_lease(self.lease, event)
        done = [do for do, _ in row.commands]
        self.note(
            "decode", "message", f"{event.name}: {self.lease.name}, {', '.join(map(str, row.commands)) or 'nothing'}"
        )
        if Do.FREE in done:
            self.check("S3", not self.freed, f"{event.name} gives memory back a second time")
            self.check("S3", proof, f"{event.name} gives memory back, and a write may still land")
        self.check(
            "L5", self.freed or not proof or Do.FREE in done, f"after {event.name} nobody can write: nothing is freed"
        )
        self.freed = self.freed or Do.FREE in done
        self.failed = self.failed or event is LeaseEvent.FAILED
        self.advertised = self.advertised or (event is LeaseEvent.ADVERTISED and not self.failed)
        self.asks = (self.asks or (Do.ARM, Timer.ABORT_RETRY) in row.commands) and Do.DISARM not in done
        self.check("L5", self.asks == (self.advertised and self.failed and not self.freed), "an ABORT is asked for "
                   "exactly as long as memory waits for its answer")  # fmt: skip
        if waiting and event in (LeaseEvent.RETRY, LeaseEvent.LINK_UP):
            self.check("L5", Do.SEND_ABORT in done, f"{event.name} does not repeat the ABORT")


class DrainAlone(Machine):
    """A drain: it promises, and gives memory back once, when nothing is in flight and nothing will be."""

    NAME: ClassVar[str] = "drain"
    PROPERTIES: ClassVar[tuple[str, ...]] = ("L5", "S3")

    @initialize()
    def begin(self) -> None:
        """A grant of which nothing is posted."""
        self.began = True
        self.drain = DrainValue()
        self.flying = 0
        self.over = self.freed = self.finished = False

    @rule(event=st.sampled_from(sorted(DrainEvent, key=lambda event: event.name)))
    def happens(self, event: DrainEvent) -> None:
        """Any event; nothing is posted for a grant that is void, and nothing settles that was not posted."""
        if event is DrainEvent.POSTED and not self.over:
            self.flying += 1
        elif event is DrainEvent.SETTLED and self.flying:
            self.flying -= 1
        self.visit("drain", self.drain.state, event)
        self.over = self.over or event in (DrainEvent.VOIDED, DrainEvent.FINISHED)
        self.finished = self.finished or (event is DrainEvent.FINISHED and not self.freed)
        still = self.over and not self.flying
        self.drain, row = memory.step_drain(self.drain, event)
        done = [do for do, _ in row.commands]
        self.note(
            "prefill",
            "write",
            f"{event.name}: {self.drain.state.name}, {', '.join(map(str, row.commands)) or 'nothing'}",
        )
        if Do.FREE in done:
            self.check("S3", not self.freed, f"{event.name} gives memory back a second time")
        self.check(
            "S3", still or not done, f"{event.name}: {', '.join(do.name for do in done)} with {self.flying} in flight"
        )
        self.check(
            "S3", self.drain.posted == self.flying, f"{self.flying} writes are in flight, {self.drain.posted} counted"
        )
        promise = Do.SEND_ACK in done
        self.check("L5", promise or not (still and event is DrainEvent.VOIDED), "an ABORT is not acknowledged")
        self.check(
            "L5", promise or self.freed or self.finished or not still, f"{event.name}: the last write is not told"
        )
        self.freed = self.freed or Do.FREE in done
        self.check("L5", self.freed or not still, f"after {event.name} nothing is in flight: nothing is freed")
