"""A small stage for probes: engines in a simulated world, memory whose every byte is known, and a timeline.

A probe drives public methods only, step by step, and looks at what a caller can see: statuses, failures, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.decode import DecodeEngine, DecodeRoom
from ...engine.holds import Hold
from ...engine.prefill import PrefillEngine, PrefillRoom
from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.memory import Buffer, Component, Memory
from ...protocol.status import Status
from ..evidence import Step
from ..world import World

STEPS_MAX = 20_000
UNTOUCHED, FREED, SPENT = 0xA5, 0x5A, 0xEE
Room: TypeAlias = DecodeRoom | PrefillRoom
Array = npt.NDArray[np.uint8]


class Broken(Exception):
    """The property of a probe does not hold: what broke, and what was put in."""

    def __init__(self, summary: str, **given: object) -> None:
        self.summary = summary
        self.given = {name: str(value) for name, value in given.items()}
        super().__init__(summary)


class Hang(Broken):
    """Nothing can happen any more without a timer, and what was waited for has not come."""


class Aside(Exception):
    """The scenario did not come as far as what the probe asks after: what broke is another property's business."""


class Shape(NamedTuple):
    """A layout: components owed when indexed ("swa", "index") and always ("conv"), layers of K and V, item bytes."""

    indexed: int = 0
    always: int = 0
    layers: int = 1
    aux: bool = True
    item: int = 16

    @property
    def components(self) -> tuple[str, ...]:
        """Their names, in the layout's order."""
        return (*("swa", "index")[: self.indexed], *("conv",)[: self.always])


class Pool:
    """One side's memory: per part ("kv", "aux", or a component) its buffers, each [items, bytes]."""

    def __init__(self, shape: Shape, make: Callable[[int, int], Array], pages: int, slots: int) -> None:
        roles = [(layer, role) for layer in range(shape.layers) for role in "kv"]
        self.parts: dict[str, list[Array]] = {"kv": [make(pages, shape.item) for _ in roles]}
        self.parts["aux"] = [make(slots, 4), make(slots, 8)] if shape.aux else []
        for name in shape.components:
            self.parts[name] = [make(slots, 8), make(slots, 12)]
        self.memory = Memory(
            page_size=16,
            kv=[Buffer(layer, role, a) for (layer, role), a in zip(roles, self.parts["kv"], strict=True)],
            aux=dict(zip(("token", "logprob"), self.parts["aux"], strict=False)),
            state=[self._component(name) for name in shape.components],
        )

    def _component(self, name: str) -> Component:
        buffers = [Buffer(90 + i, "s", array) for i, array in enumerate(self.parts[name])]
        return Component(name, "some", "always" if name == "conv" else "when_indexed", buffers)

    def fill(self, part: str, items: Sequence[int], byte: int) -> None:
        """Overwrite some items."""
        for buffer in self.parts[part]:
            buffer[list(items)] = byte

    def holds(self, part: str, items: Sequence[int], byte: int) -> bool:
        """Whether some items hold nothing but this byte."""
        return all(bool((buffer[list(items)] == byte).all()) for buffer in self.parts[part])


class Side(NamedTuple):
    """An engine and its memory, and the ports it runs on."""

    engine: Any
    pool: Pool
    ports: Any

    @property
    def name(self) -> str:
        """The engine's name."""
        return str(self.engine.name)


class Stage:
    """A world with `prefills` and `decodes`; `shape` is the layout of all of them."""

    def __init__(
        self,
        seed: int = 0,
        shape: Shape = Shape(),  # noqa: B008 - a value, never changed
        *,
        prefills: int = 1,
        decodes: int = 1,
        settings: EngineSettings | None = None,
        pages: int = 16,
        slots: int = 8,
    ) -> None:
        self.world = World(seed)
        self.shape = shape
        self.settings = settings or EngineSettings()
        self.sizes = (pages, slots)
        self.steps: list[Step] = []
        self.rooms: list[tuple[str, Room]] = []
        self.watchers: list[Callable[[], None]] = []
        self._seen: dict[int, tuple[str, bool]] = {}
        draw = np.random.default_rng(seed + 1)
        self.prefills = [self.add_prefill(f"prefill{_tail(i)}", draw) for i in range(prefills)]
        self.decodes = [self.add_decode(f"decode{_tail(i)}") for i in range(decodes)]

    def add_prefill(self, name: str, draw: np.random.Generator | None = None, shape: Shape | None = None) -> Side:
        """A prefill engine whose memory is full of different bytes, none of them one of those a probe fills with."""
        numbers = draw or np.random.default_rng(7)
        made = Pool(shape or self.shape, lambda n, m: numbers.integers(0, 80, (n, m), dtype=np.uint8), *self.sizes)
        assembly = self.world.assemble(name, made.memory, self.settings, listen=True)
        self._watch(name, assembly.ports)
        return Side(PrefillEngine(made.memory, settings=self.settings, assembly=assembly), made, assembly.ports)

    def add_decode(self, name: str, shape: Shape | None = None) -> Side:
        """A decode engine whose memory nobody has written to."""
        made = Pool(shape or self.shape, lambda n, m: np.full((n, m), UNTOUCHED, dtype=np.uint8), *self.sizes)
        assembly = self.world.assemble(name, made.memory, self.settings)
        self._watch(name, assembly.ports)
        return Side(DecodeEngine(made.memory, settings=self.settings, assembly=assembly), made, assembly.ports)

    def _watch(self, name: str, ports: Any) -> None:
        ports.channel = _Heard(ports.channel, self, name)
        ports.transport = _Posted(ports.transport, self, name)

    # -- rooms ---------------------------------------------------------------------------------------------------

    def receive(self, room: int = 7, *, decode: int = 0, prefill: int = 0, **options: Any) -> DecodeRoom:
        """Open a room on decode: pages 8, 2, 5 and slot 3, unless said otherwise."""
        side, target = self.decodes[decode], self.prefills[prefill]
        given: dict[str, Any] = {"pages": [8, 2, 5], "aux_index": 3 if self.shape.aux else None, **options}
        given.setdefault("instance", target.name if len(self.prefills) > 1 else "")
        self.note(f"{side.name} caller", "call", f"open({room}, {_words(options)})", side.name)
        opened: DecodeRoom = side.engine.open(room, bootstrap=target.engine.bootstrap, **given)
        self.rooms.append((side.name, opened))
        return opened

    def hold(self, room: int = 7, *, instance: str = "") -> Hold:
        """Ask the first prefill engine, or the one of that name, to keep a room for the first decode engine."""
        side = self.decodes[0]
        self.note(f"{side.name} caller", "call", f"hold({room})", side.name)
        held: Hold = side.engine.hold(room, bootstrap=self.prefills[0].engine.bootstrap, instance=instance)
        return held

    def offer(self, room: int = 7, *, prefill: int = 0, **options: Any) -> PrefillRoom:
        """Open a room on prefill: slot 1, unless said otherwise."""
        side = self.prefills[prefill]
        given: dict[str, Any] = {"aux_index": 1 if self.shape.aux else None, **options}
        self.note(f"{side.name} caller", "call", f"open({room}, {_words(options)})", side.name)
        opened: PrefillRoom = side.engine.open(room, **given)
        self.rooms.append((side.name, opened))
        return opened

    def send(self, room: PrefillRoom, pages: object, state: object = None, *, last: bool | None = None) -> None:
        """Send, on the record."""
        who = next(name for name, one in self.rooms if one is room)
        self.note(f"{who} caller", "call", f"send({_short(pages)}, {_short(state)}, last={last})", who)
        room.send(pages, state, last=last)

    def abort(self, room: Room, detail: str = "changed my mind") -> None:
        """Abort, on the record."""
        who = next(name for name, one in self.rooms if one is room)
        self.note(f"{who} caller", "call", f"abort({room.room})", who)
        room.abort(detail)

    def pair(self, room: int = 7, **options: Any) -> tuple[DecodeRoom, PrefillRoom]:
        """A room that agrees, opened on both sides, with all three pages sent."""
        receiver, sender = self.receive(room, **options), self.offer(room)
        self.send(sender, [3, 9])
        self.send(sender, [4], last=True)
        return receiver, sender

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, timers: bool = False, waited: str = "") -> None:
        """Let things happen until `until()`. Raises Hang if nothing can happen any more."""
        for _ in range(STEPS_MAX):
            self.look()
            if until():
                return
            if not self.world.step(timers=timers):
                self.look()
                if until():
                    return
                break
        raise Hang(waited or "nothing can happen any more without a timer, and a room has not ended")

    def finish(self, *rooms: Room, timers: bool = False) -> None:
        """Run until rooms have ended."""
        words = ", ".join(map(repr, rooms))
        wait = f"without a timer nothing happens any more, and not all have ended of {words}"
        self.run(lambda: all(room.poll().terminal for room in rooms), timers=timers, waited=wait)

    def settle(self) -> None:
        """Let everything happen that needs no timer."""
        for _ in range(STEPS_MAX):
            self.look()
            if not self.world.step():
                self.look()
                return
        raise Hang("without a timer the engines go on for ever")

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        end = self.world.now + seconds
        self.run(lambda: self.world.now >= end, timers=True, waited="no timer is armed any more")

    def look(self) -> None:
        """Note what has changed for the callers, and let the watchers look."""
        for who, room in self.rooms:
            now = (room.phase, room.memory_free)
            before = self._seen.get(id(room), ("", False))
            if now != before:
                self._seen[id(room)] = now
                why = f": {room.failure}" if room.failure and now[0] != before[0] else ""
                free = ", memory free" if now[1] else ""
                self.note(who, "state", f"room {room.room} is {now[0]}{why}{free}")
        for watcher in self.watchers:
            watcher()

    def note(self, who: str, kind: str, text: str, to: str = "") -> None:
        """A line of the timeline."""
        self.steps.append(Step(round(self.world.now, 3), who, kind, text, to))

    def fault(self, text: str, who: str = "wire") -> None:
        """A fault, on the record."""
        self.note(who, "fault", text)

    def open_ends(self) -> list[Step]:
        """What is left open: for the end of a timeline."""
        left = [(who, room) for who, room in self.rooms if not room.poll().terminal]
        return [
            Step(round(self.world.now, 3), who, "open", f"room {room.room} waits in {room.phase}") for who, room in left
        ]

    # -- bytes ---------------------------------------------------------------------------------------------------

    def landed(self, part: str, sources: Sequence[int], targets: Sequence[int], *, decode: int = 0) -> bool:
        """Whether these items of the first prefill engine lie in these places of a decode engine."""
        pairs = zip(self.prefills[0].pool.parts[part], self.decodes[decode].pool.parts[part], strict=True)
        return all(bool((source[list(sources)] == target[list(targets)]).all()) for source, target in pairs)

    def fails(self, room: Room, *reasons: Any) -> None:
        """Raise Broken unless a room is FAILED for one of these reasons."""
        failure = room.failure
        if room.poll() is not Status.FAILED or failure is None or (reasons and failure.reason not in reasons):
            wanted = " or ".join(reason.value for reason in reasons) or "a failure"
            raise Broken(f"{room!r} should have failed ({wanted}); it says {failure or room.poll().value}")

    def done(self, *rooms: Room) -> None:
        """Raise Broken unless rooms are DONE."""
        for room in rooms:
            if room.poll() is not Status.DONE:
                raise Broken(f"{room!r} should be DONE; it says {room.failure or room.poll().value}")


class _Heard:
    """A control channel that notes the frames which are sent on it."""

    def __init__(self, inner: Any, stage: Stage, who: str) -> None:
        self._inner, self._stage, self._who = inner, stage, who

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        try:
            body = wire.decode(frame[wire.PREFIX_LENGTH :]).body
        except WireError as error:
            self._stage.note(self._who, "message", f"a frame that cannot be read: {error}", "wire")
        else:
            if not isinstance(body, (wire.Ping, wire.Pong, wire.Hello, wire.Welcome)):
                grant = getattr(body, "grant", None)
                words = type(body).__name__.upper() + (f", grant {grant}" if grant is not None else "")
                self._stage.note(self._who, "message", words, "wire")
        self._inner.send(connection, frame)


class _Posted:
    """A transport that notes the writes which are posted on it."""

    def __init__(self, inner: Any, stage: Stage, who: str) -> None:
        self._inner, self._stage, self._who = inner, stage, who

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def post(self, agent: str, piece: Any, notification: bytes) -> int | None:
        """See `Transport.post`."""
        parts = ", ".join(f"{part.kind.name} {part.first} to {part.first + part.size - 1}" for part in piece.parts)
        self._stage.note(self._who, "write", f"{piece.bytes} bytes, reports {parts or 'nothing'}", "wire")
        handle: int | None = self._inner.post(agent, piece, notification)
        return handle


def _tail(number: int) -> str:
    return f" {number}" if number else ""


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in options.items())
