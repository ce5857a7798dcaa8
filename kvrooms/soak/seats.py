"""The engines' places in a soak: each has a name, a role and an address that stay, and a process that may not."""

from __future__ import annotations

import enum
import signal
import time

from .messages import Start
from .plan import Config, Side
from .procs import Process, ProcessError, Processes
from .sides import control_port

_STOP_LIMIT_S = 5.0
_END_LIMIT_S = 30.0


class State(enum.Enum):
    """What a router would know of an engine."""

    STARTING = "starting"
    UP = "up"
    STOPPED = "stopped"
    RECOVERING = "recovering"
    ENDED = "ended"


class Seat:
    """One engine's place."""

    def __init__(self, role: Side, index: int) -> None:
        self.role = role
        self.index = index
        self.name = f"soak-{role}-{index}"
        self.state = State.STARTING
        self.process: Process | None = None
        self.address = ""
        self.killed = False

    @property
    def running(self) -> Process:
        """Its process."""
        assert self.process is not None
        return self.process


class Seats:
    """All places, and the registry."""

    def __init__(self, processes: Processes, config: Config, settings: dict[str, int | float]) -> None:
        self._processes = processes
        self._config = config
        self._settings = settings
        self.prefills = [Seat("prefill", i) for i in range(config.prefills)]
        self.decodes = [Seat("decode", i) for i in range(config.decodes)]
        self.all = [*self.prefills, *self.decodes]
        self.registry = ""

    def start_registry(self) -> None:
        """Start the registry. Raises ProcessError."""
        process = self._processes.start("soak-registry", Start("soak-registry", "registry", self._config, ""))
        ready = process.heard()
        if ready is None or not hasattr(ready, "address"):
            raise ProcessError("the registry did not start")
        self.registry = ready.address

    def start(self, seat: Seat) -> None:
        """Start a process for a seat, under its name and, after the first time, at its address. Raises ProcessError."""
        port = control_port(seat.address) if seat.address else 0
        digest: dict[str, int | float] = (
            {"digest": 1} if seat.role == "decode" and seat.index == self._config.digesting else {}
        )
        settings = {**digest, **self._settings}
        start = Start(seat.name, seat.role, self._config, self.registry, port, settings)
        seat.state = State.STARTING
        seat.process = self._processes.start(seat.name, start)

    def kill(self, seat: Seat) -> tuple[float, float]:
        """SIGKILL, and wait for the end. Returns when it was sent and when it had worked, in monotonic seconds."""
        seat.state, seat.killed = State.STARTING, True
        began = time.monotonic()
        seat.running.signal(signal.SIGKILL)
        seat.running.ended(_END_LIMIT_S)
        return began, time.monotonic()

    def stop(self, seat: Seat) -> float:
        """SIGSTOP, and wait until the kernel says so. Returns when the signal was sent, in monotonic seconds."""
        began = time.monotonic()
        seat.running.signal(signal.SIGSTOP)
        while not seat.running.stopped() and time.monotonic() < began + _STOP_LIMIT_S:
            time.sleep(0.001)
        return began
