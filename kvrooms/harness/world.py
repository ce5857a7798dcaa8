"""A simulated world: the ports of any number of engines, deterministic from one seed, on a virtual clock.

It replaces ports and nothing else: the code above them is the product's own. It knows bytes, addresses, connections; no
manifest, phase or lease. Writes land descriptor by descriptor in any order, a notification after its own write, and a
write lands whatever its target has forgotten meanwhile, as NIXL was seen to do. Messages take any time; those of one
connection keep their order unless `reorder` is set. What else may go wrong is in `Faults`, and in the methods below.

    world = World(seed=1)
    prefill = PrefillEngine(memory_p, assembly=world.assemble("prefill", memory_p, listen=True))
    decode = DecodeEngine(memory_d, assembly=world.assemble("decode", memory_d))
    ...
    world.run(lambda: room.poll().terminal)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..engine.core import EngineCore, Ports
from ..engine.host import Assembly, Place
from ..engine.settings import EngineSettings
from ..engine.thread import Core
from ..protocol.identity import agent_name
from ..protocol.layout import Instance
from ..protocol.memory import Memory
from ..protocol.registration import Registration
from .channel import SimChannel, nobody
from .faults import Faults
from .lanes import FOREVER, Choices, Lanes
from .ports import SimClock, SimIds, SimRegistry, SimTransport, Write
from .witness import Witness

__all__ = ["Faults", "SimRunner", "Stuck", "World"]

STEPS_MAX = 200_000


class Turned(Core, Protocol):
    """A core that the world can turn."""

    closing: bool

    def tables(self) -> dict[str, int]:
        """The number of entries of every table."""


class Killed(Protocol):
    """What dies with its process. post_error: why a write cannot be posted now; "" if it can."""

    post_error: str

    def kill(self) -> None:
        """The process is gone."""


class Stuck(AssertionError):
    """Nothing can happen any more without a timer, and what was waited for has not come: a hang."""


class World:
    """The world. `faults` and `witness` may be changed while it runs."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation, to be replayed
        self.faults = faults or Faults()
        self.witness = Witness()
        self.now = 0.0
        self.steps = 0
        self.registry: dict[tuple[str, str, int], Registration] = {}
        self.listeners: dict[str, SimChannel] = {}
        self.agents: dict[str, SimTransport] = {}
        self._choices = Choices()
        self._lanes = Lanes(self._choices)
        self._runners: list[SimRunner] = []
        self._numbers = 0

    def number(self) -> int:
        """A number that was not used before: ports, connections, handles."""
        self._numbers += 1
        return self._numbers

    def later(self, lane: object, action: Callable[[], None], *, ordered: bool = True) -> None:
        """Let `action` happen at some step; things of one ordered lane keep their order."""
        self._lanes.add(lane, action, ordered=ordered, write=isinstance(lane, Write))

    def hold(self, lane: object, seconds: float = FOREVER) -> None:
        """Let what is in a lane stand still for some time of the world, or until it heals."""
        self._lanes.hold(lane, self.now + seconds)

    def assemble(
        self,
        name: str,
        memory: Memory,
        settings: EngineSettings | None = None,
        *,
        listen: bool = False,
        place: Place | None = None,
        instance: Instance | None = None,
        rank: int = 0,
    ) -> Assembly:
        """The parts of an engine in this world. `listen` is for prefill engines.

        place: of a prefill rank, which registers as one of those called `name` up to its first blank. instance, rank:
        of a decode rank.
        """
        ids = SimIds(self.random)
        incarnation = ids.incarnation()
        channel = SimChannel(self, name)
        transport = SimTransport(self, agent_name(incarnation), name)
        source = transport.register(memory.layout, memory.regions)
        registry = SimRegistry(self)
        clock = SimClock(self)
        address = bootstrap = ""
        withdraw: Callable[[], None] = nobody
        if listen:
            address, bootstrap = channel.listen(), "http://world:1"
            entry = _entry(name, memory, address, incarnation, place)
            instance = None if place is None else Instance((place.member,), incarnation)
            registry.announce(bootstrap, entry)
            withdraw = partial(registry.withdraw, bootstrap, entry)
        ports = Ports(
            name=name,
            incarnation=incarnation,
            layout=memory.layout,
            regions=memory.regions,
            settings=settings or EngineSettings(),
            transport=transport,
            channel=channel,
            registry=registry,
            clock=clock,
            ids=ids,
            instance=instance,
            rank=rank,
        )
        runner = partial(self._run, channel, transport, registry, clock)
        return Assembly(ports, source, runner, partial(_leave, withdraw, channel), address, bootstrap)

    def _run(
        self,
        channel: SimChannel,
        transport: SimTransport,
        registry: SimRegistry,
        clock: SimClock,
        core: EngineCore,
        finish: Callable[[], None],
    ) -> SimRunner:
        made = self.turns(core, channel, transport, clock, finish)
        transport.owner = registry.owner = made.wake
        return made

    def turns(
        self, core: Turned, channel: SimChannel, transport: Killed, clock: SimClock, finish: Callable[[], None]
    ) -> SimRunner:
        """Turn a core from now on, when its channel has something for it or its time has come."""
        made = SimRunner(self, core, channel, transport, clock, finish)
        channel.owner = made.wake
        self._runners.append(made)
        made.wake()
        return made

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
                raise Stuck(self.state())
        raise Stuck(f"not over after {STEPS_MAX} steps; {self.state()}")

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let things happen, and time pass, until `until()`, or for so many seconds."""
        end = self.now + seconds
        while not until() and self.now < end:
            if not self.step(timers=True):
                return

    def settle(self) -> None:
        """Let everything happen that can happen without a timer."""
        while self.step():
            pass

    def step(self, *, timers: bool = False) -> bool:
        """Let one thing happen, drawn from all that can; with `timers`, else let time pass. False: nothing did."""
        self.steps += 1
        if timers and self.faults.delay and self.random.random() < self.faults.delay and self.pass_time():
            return True
        members = self._choices.members
        if not members:
            self._lanes.sweep()
            return timers and self.pass_time()
        members[int(self.random.random() * len(members))].happen(self.random)
        return True

    def pass_time(self) -> bool:
        """Let time pass until the next alarm of an engine, or until something goes on that stood still."""
        dues = [due for runner in self._runners if (due := runner.due()) is not None]
        release = self._lanes.next_release()
        if release is not None:
            dues.append(release)
        if not dues:
            return False
        self.now = max(self.now, min(dues))
        self.witness.time(self.now)
        self._lanes.release(self.now)
        for runner in self._runners:
            due = runner.due()
            if due is not None and due <= self.now:
                runner.wake()
        return True

    def state(self) -> str:
        """The tables of every engine, in words."""
        parts = [f"{runner.core.name}: {runner.core.tables()}" for runner in self._runners if not runner.gone]
        return f"at {self.now:.3f} s, step {self.steps}: " + "; ".join(parts)

    # -- faults --------------------------------------------------------------------------------------------------

    @property
    def writes_held(self) -> bool:
        """While true, no posted write lands."""
        return self._lanes.writes_held

    @writes_held.setter
    def writes_held(self, held: bool) -> None:
        self._lanes.hold_writes(held)

    @property
    def busy(self) -> bool:
        """Whether anything can happen without a timer."""
        return bool(self._choices.members)

    @property
    def writes(self) -> list[Write]:
        """The posted writes that have bytes under way."""
        return [key for key, lane in self._lanes.by_key.items() if isinstance(key, Write) and lane.queue]

    def finish(self, write: Write) -> None:
        """Let everything of a write land, now."""
        lane = self._lanes.by_key[write]
        while lane.queue:
            lane.happen(self.random)

    def queue(self, lane: object) -> list[Callable[[], None]]:
        """What a lane has to come."""
        found = self._lanes.by_key.get(lane)
        return found.queue if found is not None else []

    def lose(self, lane: object) -> None:
        """Let nothing of a lane happen."""
        found = self._lanes.by_key.pop(lane, None)
        if found is not None:
            self._choices.drop(found)

    def runner(self, name: str) -> SimRunner:
        """The runner of the engine that has this name now."""
        return next(runner for runner in reversed(self._runners) if runner.core.name == name and not runner.gone)

    def kill(self, name: str) -> None:
        """kill -9: the engine turns no more, its agent is gone, its connections are closed by its kernel."""
        for runner in self._runners:
            if runner.core.name == name and not runner.gone:
                self.witness.engine("killed", name)
                runner.end()
                runner.transport.kill()
                runner.channel.kill()

    def stall(self, name: str, *, stalled: bool = True) -> None:
        """SIGSTOP or SIGCONT: the engine turns no more, or again; whatever it posted goes on."""
        for runner in self._runners:
            if runner.core.name == name and not runner.gone and runner.turning is stalled:
                self.witness.engine("stalled" if stalled else "woken", name)
                runner.turning = not stalled
                if stalled:
                    self._choices.drop(runner)
                else:
                    runner.wake()

    def jump(self, name: str, seconds: float) -> None:
        """The clock of one engine jumps forward: its machine slept, or its time was put right."""
        self.witness.engine("its clock jumps", name)
        runner = self.runner(name)
        runner.clock.offset += seconds
        runner.wake()

    def heal(self) -> None:
        """Nothing goes wrong from here on, and what stood still goes on."""
        self.faults = Faults()
        self.writes_held = False
        self._lanes.release(FOREVER)
        for runner in self._runners:
            if not runner.gone:
                self.stall(runner.core.name, stalled=False)


def _leave(withdraw: Callable[[], None], channel: SimChannel) -> None:
    withdraw()
    channel.kill()


def _entry(name: str, memory: Memory, address: str, incarnation: int, place: Place | None) -> Registration:
    """What the registry is told of a prefill engine."""
    page_size, digest = memory.layout.page_size, memory.layout.digest.hex()
    if place is None:
        return Registration(name, 0, address, incarnation, page_size, digest, 30.0)
    called = name.partition(" ")[0]
    return Registration(
        called, place.rank, address, incarnation, page_size, digest, 30.0, ranks=place.ranks, member=place.member
    )


class SimRunner:
    """Turns a core when the world says so: after something arrived at it, and when an alarm of it is due."""

    def __init__(
        self,
        world: World,
        core: Turned,
        channel: SimChannel,
        transport: Killed,
        clock: SimClock,
        finish: Callable[[], None],
    ) -> None:
        self.core = core
        self.channel = channel
        self.transport = transport
        self.clock = clock
        self.turning = True
        self.gone = False
        self.woken = False
        self.place = -1
        self._world = world
        self._finish = finish

    def start(self) -> None:
        """See `Runner.start`."""

    def wake(self) -> None:
        """See `Runner.wake`."""
        self.woken = True
        if self.place < 0 and self.turning:
            self._world._choices.put(self)  # noqa: SLF001 - the world's own runner

    def due(self) -> float | None:
        """When its next alarm is due, on the world's clock."""
        if not self.turning:
            return None
        deadline = self.core.next_deadline()
        if deadline is None:
            return None
        offset = self.clock.offset
        due = deadline - offset
        return due if due + offset >= deadline else math.nextafter(due, math.inf)

    def happen(self, draw: random.Random) -> None:
        """It was drawn: a turn."""
        self.turn()

    def turn(self) -> bool:
        """One turn of the core; after one in which something happened there is another."""
        self.woken = False
        self._world._choices.drop(self)  # noqa: SLF001
        busy = self.core.turn()
        if busy:
            self.wake()
        return busy

    def end(self) -> None:
        """It turns no more."""
        self.turning, self.gone = False, True
        self._world._choices.drop(self)  # noqa: SLF001

    def stop(self, timeout_s: float) -> bool:
        """See `Runner.stop`. The world runs on until the core has drained, or `timeout_s` virtual seconds are over."""
        world, end = self._world, self._world.now + timeout_s
        self.core.submit(self.core.shutdown)
        self.wake()
        while not (self.core.closing and not self.core.undrained) and world.now <= end:
            if not world.step(timers=True):
                world.now = math.nextafter(end, math.inf)  # nothing will happen: that is the wait
        self._finish()
        self.end()
        return True
