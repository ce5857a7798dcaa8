"""A simulated world: the ports of any number of engines, deterministic from one seed, on a virtual clock.

It replaces ports and nothing else: the code above them is the product's own. It knows bytes, addresses, connections; no
manifest, phase or lease. Writes land descriptor by descriptor in any order, a notification after its own write, and a
write lands whatever its target has forgotten meanwhile, as NIXL was seen to do. Messages take any time; those of one
connection keep their order unless `reorder` is set.

    world = World(seed=1)
    prefill = PrefillEngine(memory_p, assembly=world.assemble("prefill", memory_p, listen=True))
    decode = DecodeEngine(memory_d, assembly=world.assemble("decode", memory_d))
    ...
    world.run(lambda: room.poll().terminal)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..engine.core import EngineCore, Ports
from ..engine.host import Assembly
from ..engine.settings import EngineSettings
from ..protocol.identity import agent_name
from ..protocol.memory import Memory
from ..protocol.registration import Registration
from .ports import SimChannel, SimClock, SimIds, SimRegistry, SimTransport, Write

STEPS_MAX = 200_000


class Stuck(AssertionError):
    """Nothing can happen any more without a timer, and what was waited for has not come: a hang."""


class Faults(NamedTuple):
    """What may go wrong.

    drop, repeat: probabilities per frame on the control channel. reorder: its frames come in any order. delay: where
    timers run, the probability per step that time passes first, so that anything may be slower than any timer.
    """

    drop: float = 0.0
    repeat: float = 0.0
    reorder: bool = False
    delay: float = 0.0


class _Lane:
    """Things that will happen: in order, or in any order."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.queue: deque[Callable[[], None]] = deque()


class World:
    """The world. `faults` may be changed while it runs."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation, to be replayed
        self.faults = faults or Faults()
        self.now = 0.0
        self.steps = 0
        self.registry: dict[tuple[str, str], Registration] = {}
        self.listeners: dict[str, SimChannel] = {}
        self.agents: dict[str, SimTransport] = {}
        self.writes_held = False
        """While true, no posted write lands."""
        self._lanes: dict[object, _Lane] = {}
        self._runners: list[SimRunner] = []
        self._numbers = 0

    def number(self) -> int:
        """A number that was not used before: ports, connections, handles."""
        self._numbers += 1
        return self._numbers

    def later(self, lane: object, action: Callable[[], None], *, ordered: bool = True) -> None:
        """Let `action` happen at some step; things of one ordered lane keep their order."""
        found = self._lanes.get(lane)
        if found is None or not found.queue:
            found = self._lanes[lane] = _Lane(ordered=ordered)
        found.queue.append(action)

    def assemble(
        self, name: str, memory: Memory, settings: EngineSettings | None = None, *, listen: bool = False
    ) -> Assembly:
        """The parts of an engine in this world. `listen` is for prefill engines."""
        ids = SimIds(self.random)
        incarnation = ids.incarnation()
        channel = SimChannel(self)
        transport = SimTransport(self, agent_name(incarnation))
        source = transport.register(memory.layout, memory.regions)
        registry = SimRegistry(self)
        address = bootstrap = ""
        if listen:
            address, bootstrap = channel.listen(), "http://world:1"
            registry.announce(
                bootstrap,
                Registration(name, 0, address, incarnation, memory.layout.page_size, memory.layout.digest.hex(), 30.0),
            )
        ports = Ports(
            name=name,
            incarnation=incarnation,
            layout=memory.layout,
            regions=memory.regions,
            settings=settings or EngineSettings(),
            transport=transport,
            channel=channel,
            registry=registry,
            clock=SimClock(self),
            ids=ids,
        )

        def runner(core: EngineCore, finish: Callable[[], None]) -> SimRunner:
            made = SimRunner(self, core, channel, transport, finish)
            self._runners.append(made)
            return made

        return Assembly(ports, source, runner, lambda: None, address, bootstrap)

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, timers: bool = False) -> None:
        """Let things happen, in an order that the seed draws, until `until()`.

        timers: when nothing else can happen, let time pass until the next alarm; otherwise raise Stuck.
        Heartbeats are not needed by anything here, so without `timers` no time passes at all.
        """
        for _ in range(STEPS_MAX):
            if until():
                return
            if not self.step(timers=timers):
                if until():
                    return
                raise Stuck(self._state())
        raise Stuck(f"not over after {STEPS_MAX} steps; {self._state()}")

    def settle(self) -> None:
        """Let everything happen that can happen without a timer."""
        while self.step():
            pass

    def step(self, *, timers: bool = False) -> bool:
        """Let one thing happen, drawn from all that can; with `timers`, else let time pass. False: nothing did."""
        if timers and self.faults.delay and self.random.random() < self.faults.delay and self._pass_time():
            return True
        return self._step() or (timers and self._pass_time())

    def _step(self) -> bool:
        self.steps += 1
        runners = [runner for runner in self._runners if runner.turning and runner.woken]
        lanes = self._open_lanes()
        choices = len(runners) + len(lanes)
        if not choices:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane.queue}
            return sum(runner.turn() for runner in self._runners if runner.turning) > 0
        chosen = self.random.randrange(choices)
        if chosen < len(runners):
            runners[chosen].turn()
            return True
        lane = lanes[chosen - len(runners)]
        if not lane.ordered:
            lane.queue.rotate(self.random.randrange(len(lane.queue)))
        lane.queue.popleft()()
        return True

    def _open_lanes(self) -> list[_Lane]:
        if self.writes_held:
            return [lane for key, lane in self._lanes.items() if lane.queue and not isinstance(key, Write)]
        return [lane for lane in self._lanes.values() if lane.queue]

    def _pass_time(self) -> bool:
        deadlines = [runner.core.next_deadline() for runner in self._runners if runner.turning]
        due = [deadline for deadline in deadlines if deadline is not None]
        if not due:
            return False
        self.now = max(self.now, min(due))
        for runner in self._runners:
            runner.woken = True
        return True

    def wake(self) -> None:
        """Something arrived somewhere: every core may want to look."""
        for runner in self._runners:
            runner.woken = True

    def _state(self) -> str:
        parts = [f"{runner.core.name}: {runner.core.tables()}" for runner in self._runners]
        return f"at {self.now:.3f} s, step {self.steps}: " + "; ".join(parts)

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """kill -9: the engine turns no more, its agent is gone, its connections are closed by its kernel."""
        for runner in self._runners:
            if runner.core.name == name and not runner.gone:
                runner.turning, runner.gone = False, True
                runner.transport.kill()
                runner.channel.kill()

    def stall(self, name: str, *, stalled: bool = True) -> None:
        """SIGSTOP or SIGCONT: the engine turns no more, or again; whatever it posted goes on."""
        for runner in self._runners:
            if runner.core.name == name and not runner.gone:
                runner.turning = not stalled


class SimRunner:
    """Turns a core when the world says so."""

    def __init__(
        self,
        world: World,
        core: EngineCore,
        channel: SimChannel,
        transport: SimTransport,
        finish: Callable[[], None],
    ) -> None:
        self.core = core
        self.channel = channel
        self.transport = transport
        self.turning = True
        self.gone = False
        self.woken = True
        self._world = world
        self._finish = finish

    def start(self) -> None:
        """See `Runner.start`."""

    def wake(self) -> None:
        """See `Runner.wake`."""
        self.woken = True

    def turn(self) -> bool:
        """One turn of the core; the world's other cores may have something to look at after it."""
        self.woken = False
        busy = self.core.turn()
        if busy:
            self.woken = True
        return busy

    def stop(self, timeout_s: float) -> bool:
        """See `Runner.stop`. The world runs on until the core has drained, or `timeout_s` virtual seconds are over."""
        world, end = self._world, self._world.now + timeout_s
        self.core.submit(self.core.shutdown)
        self.woken = True
        world.run(lambda: (self.core.closing and not self.core.undrained) or world.now > end, timers=True)
        self._finish()
        self.turning, self.gone = False, True
        return True
