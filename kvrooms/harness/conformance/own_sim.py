"""kvrooms in the simulated world, as a subject: every fault, exact waiting, and no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ... import __version__
from ...engine.decode import DecodeEngine
from ...engine.group import RoomGroup
from ...engine.host import Assembly, Place
from ...engine.prefill import PrefillEngine
from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.layout import Rank
from ...transport.ports import Arrival, Closed, FrameIn, Opened
from ..channel import SimChannel
from ..evidence import Step
from ..groups import gather
from ..ports import SimTransport, Write
from ..witness import Witness
from ..world import World
from .own_guest import NAME as GUEST
from .own_guest import Guest, false_completion
from .own_pool import Pool, blank, instance_of, whole
from .own_ranks import OwnRanks
from .own_side import DECODE, PREFILL, TRAITS, OwnSide, Sayings, settings
from .subject import GuestSays, Item, Request, Shape, Side, Status, Subject, Unsupported, View

_NAMES: dict[Side, str] = {"prefill": PREFILL, "decode": DECODE}
_STEPS_MAX = 200_000


class _Watch(Witness):
    """The timeline of messages, writes and notifications."""

    def __init__(self, sides: dict[str, tuple[str, str]]) -> None:
        """sides: of each name in the world, its side, and what its words begin with, where a side has several."""
        self.steps: list[Step] = []
        self.overheard: dict[tuple[int, int], wire.Metadata] = {}
        """What decode has asked for last, by room and attempt."""
        self._sides = sides

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.sent`."""
        if channel.name == DECODE and isinstance(body := wire.decode(frame).body, wire.Metadata):
            self.overheard[body.room, body.attempt] = body
        far = channel.far(connection)
        self._add(channel.name, "message", f"sends {_words(frame)}", "" if far is None else far.name)

    def delivered(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.delivered`."""
        self._add(channel.name, "message", f"has received {_words(frame)}")

    def spoiled(self, how: str, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.spoiled`."""
        self._add(channel.name, "fault", f"{how}: {_words(frame)}")

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        size = sum(length for _, length, _ in write.rows)
        self._add(write.source.name, "write", f"posts write {write.handle}, {size} bytes", write.target.name)

    def settled(self, write: Write, error: str | None) -> None:
        """See `Witness.settled`."""
        self._add(write.source.name, "write", f"write {write.handle} has settled{f': {error}' if error else ''}")

    def notified(self, transport: SimTransport, agent: str, message: bytes) -> None:
        """See `Witness.notified`."""
        self._add(transport.name, "notification", f"has a notification of {len(message)} bytes")

    def _add(self, name: str, kind: str, text: str, to: str = "") -> None:
        who, rank = self._sides.get(name, (name or "stranger", ""))
        self.steps.append(Step(0.0, who, kind, f"{rank}{text}", self._sides.get(to, (to, ""))[0]))


def _words(frame: bytes) -> str:
    try:
        return type(wire.decode(frame).body).__name__.upper()
    except WireError:
        return f"{len(frame)} bytes"


class _SimGuest:
    """A guest's agent and connection in the world."""

    def __init__(self, world: World, shape: Shape, address: str) -> None:
        self._pool = blank(shape, "decode")
        memory = self._pool.memory()
        ports = world.assemble(GUEST, memory).ports
        assert isinstance(ports.channel, SimChannel)
        self.words = Guest(memory, ports.incarnation, ports.transport.metadata())
        self.agent = ports.transport.agent
        self._world, self._channel, self._address = world, ports.channel, address

    def says(self, frames: Callable[[], Sequence[bytes]]) -> None:
        """Say it, after a handshake if it is not connected (any more)."""
        connections = self._channel.connections
        if not connections:
            connection = self._channel.dial(self._address)
            self._world.run(lambda: bool(self._channel.connections))
            connections = [connection]
            self._channel.send(connection, self.words.hello())
            self._channel.flush()
            self._world.run(self._welcomed)
        for frame in frames():
            self._channel.send(connections[0], frame)
        self._channel.flush()

    def _welcomed(self) -> bool:
        for event in self._channel.poll():
            if isinstance(event, FrameIn) and isinstance((heard := wire.decode(event.frame)).body, wire.Welcome):
                self.words.prefill = heard.source
                return True
        return False


class KvroomsSim(Subject):
    """`kvrooms conformance kvrooms-sim`."""

    name = "kvrooms-sim"
    version = __version__
    traits = TRAITS._replace(
        lost_messages=True,
        held_writes=True,
        failing_writes=True,
        injects=frozenset({"control", "notification"}),
        guests=frozenset({"claim", "grant", "notification"}),
        ranks=TRAITS.ranks | {(4, 1), (1, 4), (4, 2)},
        simulated=True,
    )

    def __init__(self) -> None:
        self._world = World()
        self._shape = Shape(0, 0, 0, 0, 0, 0)
        self._sides: dict[Side, OwnRanks] = {}
        self._owns: dict[Side, list[OwnSide]] = {}
        self._pools: dict[Side, list[Pool]] = {}
        self._parts: dict[Side, list[Assembly]] = {}
        self._lost: set[Side] = set()
        self._strangers: list[SimChannel] = []
        self._guest: _SimGuest | None = None
        self._watch = _Watch({})

    def start(self, shape: Shape, *, deadline_s: float | None = None, seed: int = 0) -> None:
        """See `Subject.start`."""
        self._world, self._lost, self._strangers, self._guest = World(seed), set(), [], None
        self._shape, self._settings = shape, settings(deadline_s)
        self._world.witness = self._watch = _Watch(self._lines())
        for side in _NAMES:
            self._begin(side)

    def _names(self, side: Side) -> list[str]:
        """What the ranks of a side are called in the world."""
        if self._shape.ranks == (1, 1):
            return [_NAMES[side]]
        return [f"{_NAMES[side]} {rank}" for rank in range(self._shape.ranks_of(side))]

    def _lines(self) -> dict[str, tuple[str, str]]:
        if self._shape.ranks == (1, 1):
            return {name: (side, "") for side, name in _NAMES.items()}
        return {
            f"{name}{group} {rank}": (side, f"rank {rank}{group}: ")
            for side, name in _NAMES.items()
            for rank in range(self._shape.ranks_of(side))
            for group in ("", " group")
        }

    def _begin(self, side: Side) -> None:
        ranks, alone = range(self._shape.ranks_of(side)), self._shape.ranks == (1, 1)
        self._pools[side] = [blank(self._shape, side, rank) for rank in ranks]
        groups: list[RoomGroup | None] = [None]
        if not alone:
            groups = [*gather(self._world, len(ranks), self._settings, f"{_NAMES[side]} group")]
        self._parts[side] = []
        self._owns[side] = [self._rank(side, rank, groups[rank]) for rank in ranks]
        calls = [partial(_called, own) for own in self._owns[side]]
        self._sides[side] = OwnRanks(calls, (lambda: None) if alone else self._wander)

    def _rank(self, side: Side, rank: int, group: RoomGroup | None) -> OwnSide:
        shape, name, memory = self._shape, self._names(side)[rank], self._pools[side][rank].memory()
        engine: PrefillEngine | DecodeEngine
        if side == "prefill":
            place = None if shape.alike else Place(rank, shape.ranks_of(side), Rank(memory.layout))
            parts = self._world.assemble(name, memory, self._settings, listen=True, place=place)
            engine = PrefillEngine(memory, settings=self._settings, assembly=parts, group=group)
        else:
            instance = instance_of(shape, side, 0 if group is None else group.id)
            parts = self._world.assemble(name, memory, self._settings, instance=instance, rank=rank)
            engine = DecodeEngine(memory, settings=self._settings, assembly=parts, group=group)
        self._parts[side].append(parts)
        return OwnSide(side, engine, self._parts["prefill"][0].bootstrap, group)

    def _wander(self) -> None:
        """Callers of several ranks come at any time."""
        for _ in range(self._world.random.randrange(4)):
            self._world.step()

    def stop(self) -> None:
        """See `Subject.stop`. Nothing of a world outlives it."""
        self._sides.clear()
        self._owns.clear()

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """See `Subject.fill`."""
        for pool in self._pools[side]:
            pool.fill(item, data)

    def read(self, side: Side, item: Item) -> bytes:
        """See `Subject.read`."""
        return whole(self._pools[side], item)

    # -- rooms ---------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> tuple[Side, tuple[int, ...]]:
        """See `Subject.open`."""
        return side, self._sides[side].open(request)

    def send(self, room: Any, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """See `Subject.send`."""
        self._sides[room[0]].send(room[1], pages, state_indices, last)

    def send_layers(
        self, room: Any, layers: Sequence[int], pages: Sequence[int], state_indices: Any, *, last: bool
    ) -> None:
        """See `Subject.send_layers`."""
        self._sides[room[0]].send(room[1], pages, state_indices, last, layers)

    def poll(self, room: Any) -> Status:
        """See `Subject.poll`."""
        return self._sides[room[0]].poll(room[1])

    def explain(self, room: Any) -> View:
        """See `Subject.explain`."""
        return self._sides[room[0]].explain(room[1])

    def abort(self, room: Any) -> None:
        """See `Subject.abort`."""
        self._sides[room[0]].each(room[1], "abort")

    def failure(self, room: Any) -> str | None:
        """See `Subject.failure`. It waits for the engine to let go of the room, so the room is closed first."""
        self.close(room)
        self._drain()
        return self._sides[room[0]].failure(room[1])

    def _drain(self) -> None:
        """The engines take in what their callers have said, as their threads would at once."""
        for name in (name for side in self._sides for name in self._names(side)):
            self._world.runner(name).turn()

    def close(self, room: Any) -> None:
        """See `Subject.close`."""
        self._sides[room[0]].each(room[1], "close")

    def memory_free(self, room: Any) -> bool:
        """See `Subject.memory_free`."""
        return all(self._sides[room[0]].each(room[1], "memory_free"))

    def held(self, side: Side) -> Mapping[str, int]:
        """See `Subject.held`."""
        return self._sides[side].held()

    def settle(
        self, until: Callable[[], bool], view: Callable[[], object], *, patience_s: float, timers: bool = False
    ) -> bool:
        """See `Subject.settle`: exact. Heartbeats never end, so with timers it ends after very many steps."""
        for _ in range(_STEPS_MAX):
            self._lose()
            if until():
                return True
            if not self._world.step(timers=timers):
                return until()
        return False

    def steps(self) -> Sequence[Step]:
        """See `Subject.steps`."""
        steps, self._watch.steps = self._watch.steps, []
        return steps

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, side: Side) -> None:
        """See `Subject.kill`."""
        for name in self._names(side):
            self._world.kill(name)
        for rank in range(self._shape.ranks_of(side)):
            self._world.kill(f"{_NAMES[side]} group {rank}")

    def restart(self, side: Side) -> None:
        """See `Subject.restart`."""
        if self._shape.ranks != (1, 1):
            raise Unsupported("a side of several ranks is not started again")
        self._begin(side)

    def lose(self, side: Side, *, lost: bool) -> None:
        """See `Subject.lose`."""
        (self._lost.add if lost else self._lost.discard)(side)

    def _lose(self) -> None:
        for parts in (one for side in self._lost for one in self._parts[side]):
            channel = parts.ports.channel
            assert isinstance(channel, SimChannel)
            for connection in channel.connections:
                self._world.lose((channel, connection))

    def hold_writes(self, *, held: bool) -> None:
        """See `Subject.hold_writes`."""
        self._world.writes_held = held

    def fail_writes(self, *, failing: bool) -> None:
        """See `Subject.fail_writes`."""
        for parts in self._parts["prefill"]:
            transport = parts.ports.transport
            assert isinstance(transport, SimTransport)
            transport.post_error = "the post was refused" if failing else ""

    def inject(self, side: Side, channel: Literal["control", "notification"], parts: Sequence[bytes]) -> None:
        """See `Subject.inject`. A message of the world is a frame: each part is one."""
        if channel == "notification":
            self._tell(side, Arrival("stranger", parts[0]))
        elif address := self._parts[side][0].address:
            self._visit(address, parts)

    def _visit(self, address: str, parts: Sequence[bytes]) -> None:
        stranger = SimChannel(self._world)
        self._strangers.append(stranger)
        connection = stranger.dial(address)
        events: list[object] = []

        def connected() -> bool:
            events.extend(stranger.poll())
            return any(isinstance(event, (Opened, Closed)) for event in events)

        self._world.run(connected)
        for part in parts:
            stranger.send(connection, part if len(part) >= wire.PREFIX_LENGTH else bytes(wire.PREFIX_LENGTH) + part)
        stranger.flush()

    def guest(self, saying: GuestSays, request: Request) -> None:
        """See `Subject.guest`. It has overheard what it needs for a completion: all but the name of prefill's agent."""
        if self._guest is None:
            self._guest = _SimGuest(self._world, self._shape, self._parts["prefill"][0].address)
        guest, words = self._guest, self._guest.words
        if saying == "claim":
            guest.says(lambda: [words.claim(request)])
        elif saying == "grant":
            guest.says(lambda: words.meddle(self._parts["decode"][0].ports.incarnation))
        elif (body := self._watch.overheard.get((request.number, request.attempt))) is not None:
            self._tell("decode", Arrival(guest.agent, false_completion(body)))

    def _tell(self, side: Side, arrival: Arrival) -> None:
        transport = self._parts[side][0].ports.transport
        self._world.later(transport, lambda: transport._arrive(arrival))  # type: ignore[attr-defined]  # noqa: SLF001

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """See `Subject.sayings`."""
        if channel == "notification":
            return []
        memory = blank(Shape(1024, 1, 1, 64, 1, 1), "decode").memory()
        return [[frame] for frame in Sayings(memory.layout, memory.regions).frames()]


def _called(own: OwnSide, method: str, *arguments: Any) -> Any:
    return getattr(own, method)(*arguments)
