"""Engines in processes of their own, for tests that stop and kill them; the other side lives in the test's process."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Any

from kvrooms import DecodeEngine, PrefillEngine
from kvrooms.engine.handle import Room
from kvrooms.soak.memory import Holding, Pools, spelled
from kvrooms.soak.messages import Abandon, Complaint, Ended, Figures, Look, Order, Ready, Rooms, Start
from kvrooms.soak.oracle import Oracle
from kvrooms.soak.plan import PLAIN_FROM, Config, Plan, plan_of
from kvrooms.soak.procs import Process, Processes

LIMIT_S = 40.0
CONFIG = Config(seed=7, fault_rate=0.0)
HASTY = {"heartbeat_s": 0.3, "heartbeat_timeout_s": 1.2}
"""Settings with which a stopped peer is given up soon. Failing sooner on a busy machine would change no test's end."""


@dataclass
class Carrying:
    """One room of ours."""

    plan: Plan
    room: Room
    holding: Holding


class Far:
    """An engine in a process of its own, driven by the plans of `CONFIG`."""

    def __init__(self, processes: Processes, role: str, registry: str, name: str, *, port: int = 0) -> None:
        self.name = name
        self.role = role
        self.process: Process = processes.start(name, Start(name, role, CONFIG, registry, port, HASTY))
        self.address = self.next(Ready).address
        self.ended: dict[int, Ended] = {}

    def next(self, kind: type[Any]) -> Any:
        """The next message of a kind; what ended before it is remembered."""
        while self.process.pipe.poll(LIMIT_S):
            message = self.process.heard()
            assert message is not None, f"{self.name} has ended"
            assert not isinstance(message, Complaint), message.text
            if isinstance(message, Ended):
                self.ended[message.number] = message
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} from {self.name} within {LIMIT_S} s")

    def carry(self, *numbers: int, prefill: str = "", address: str = "") -> None:
        """Tell it to open rooms. prefill: the name of the other side, where it sends."""
        self.process.tell(Rooms([Order(number, prefill, address) for number in numbers]))

    def end_of(self, number: int) -> Ended:
        """How a room ended there."""
        while number not in self.ended:
            self.next(Ended)
        return self.ended[number]

    def abandon(self, *numbers: int) -> None:
        """Tell it to end these rooms."""
        self.process.tell(Abandon(list(numbers)))

    def look(self) -> Figures:
        """What it holds, once that is nothing or it has waited long enough."""
        self.process.tell(Look())
        figures: Figures = self.next(Figures)
        return figures

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.process.signal(signal.SIGSTOP)
        while not self.process.stopped():
            time.sleep(0.001)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.signal(signal.SIGKILL)
        assert self.process.ended(LIMIT_S)


class Near:
    """What both sides of the test's own process share: pools between canaries, and rooms by plan."""

    def __init__(self) -> None:
        self.pools = Pools(Oracle(CONFIG.seed))
        self._next = PLAIN_FROM

    def plans(self, count: int) -> list[Plan]:
        """The next plans."""
        first, self._next = self._next, self._next + count
        return [plan_of(CONFIG, number) for number in range(first, first + count)]

    def _held(self, plan: Plan, pages: int) -> Holding:
        holding = self.pools.take(plan, pages)
        assert holding is not None
        return holding

    def hand_back(self, carried: Carrying) -> None:
        """The memory of a room is free: its ranges become canaries."""
        assert carried.room.memory_free
        self.pools.give_back(carried.holding)


class NearDecode(Near):
    """A decode engine in the test's process."""

    def __init__(self, registry: str) -> None:
        super().__init__()
        self.registry = registry
        self.engine = DecodeEngine(self.pools.memory, name="near-decode", **HASTY)

    def open(self, plan: Plan, far: str) -> Carrying:
        """Open a room of a plan with the prefill engine of that name."""
        holding = self._held(plan, plan.total - plan.prefix)
        room = self.engine.open(
            plan.room, attempt=plan.attempt, bootstrap=self.registry, instance=far, pages=holding.pages,
            prefix_pages=plan.prefix, aux_index=holding.aux[0] if plan.aux else None,
            state_indices=spelled(plan, holding), skip_state=not plan.conv,
        )  # fmt: skip
        return Carrying(plan, room, holding)


class NearPrefill(Near):
    """A prefill engine in the test's process, at a registry."""

    def __init__(self, registry: str, **settings: float) -> None:
        super().__init__()
        self.engine = PrefillEngine(self.pools.memory, name="near-prefill", registry=registry, **{**HASTY, **settings})

    def open(self, plan: Plan, *, send: bool = True) -> Carrying:
        """Open a room of a plan, and send all of it, or all but the last page and what goes with it."""
        holding = self._held(plan, plan.total)
        self.pools.fill(plan, holding)
        aux = holding.aux[0] if plan.aux else None
        room = self.engine.open(plan.room, attempt=plan.attempt, aux_index=aux, skip_state=not plan.conv)
        if send:
            room.send(holding.pages, state_indices=spelled(plan, holding), last=True)
        else:
            room.send(holding.pages[:-1])
        return Carrying(plan, room, holding)

    def finish(self, carried: Carrying) -> None:
        """Send what `open` kept back."""
        holding = carried.holding
        carried.room.send(holding.pages[-1:], state_indices=spelled(carried.plan, holding), last=True)
