"""A stage with all ranks of a shape on it, and a timeline of what they say and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ...engine.core import Ports
from ...engine.decode import DecodeRoom
from ...engine.prefill import PrefillRoom
from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import WireError
from ...shapes.table import Case
from ...transport.ports import ControlChannel
from ..channel import SimChannel
from ..evidence import Step
from ..ports import Write
from ..ranks import Member, Ranks
from ..world import Stuck
from .stage import Aside, Broken, Hang

_TOLD = (wire.Metadata, wire.Accept, wire.Failed, wire.Reject, wire.Abort, wire.Ack, wire.Refuse)
_STEPS_MAX = 400


class RankStage(Ranks):
    """See the module. What goes wrong is raised by probes, as on any stage."""

    def __init__(
        self, case: Case, seed: int = 0, *, settings: EngineSettings | None = None, start: bool = True
    ) -> None:
        self.steps: list[Step] = []
        self.lies: dict[tuple[str, int, int], Callable[[wire.Body], wire.Body]] = {}
        """What decode ranks make of what they say, by the ranks' keys; to be set before they are started."""
        super().__init__(case, seed, settings=settings, start=start)

    def receive(self, number: int, rank: int, **options: Any) -> DecodeRoom:
        """See `Ranks.receive`."""
        name = self.decodes[rank].name
        self.note(f"{name} caller", "call", f"open({number})", name)
        return super().receive(number, rank, **options)

    def offer(self, number: int, rank: int, **options: Any) -> PrefillRoom:
        """See `Ranks.offer`."""
        name = self.prefills[self.rooms[number].instance, rank].name
        self.note(f"{name} caller", "call", f"open({number})", name)
        return super().offer(number, rank, **options)

    def meddle(self, member: Member, ports: Ports) -> None:
        """See `Ranks.meddle`."""
        lie = self.lies.get(member.key)
        if lie is not None:
            ports.channel = cast(ControlChannel, _Liar(ports.channel, lie))

    def ended(self, *numbers: int, aside: bool) -> None:
        """Play rooms to their end. Raises Hang if there is none; `aside`: Aside, which is nobody's fault."""
        try:
            self.play(*numbers)
        except Stuck as stuck:
            words = "without a timer nothing happens any more, and rooms have not ended"
            raise (Aside(str(stuck)) if aside else Hang(words)) from None

    def settle(self) -> None:
        """Let everything happen that needs no timer."""
        self.world.settle()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        end = self.world.now + seconds
        self.world.run(lambda: self.world.now >= end, timers=True)

    # -- the timeline ----------------------------------------------------------------------------------------------

    def note(self, who: str, kind: str, text: str, to: str = "") -> None:
        """A line of the timeline."""
        if len(self.steps) < _STEPS_MAX:
            self.steps.append(Step(round(self.world.now, 3), who, kind, text, to))

    def fault(self, text: str, who: str = "wire") -> None:
        """A fault, on the record."""
        self.note(who, "fault", text)

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.sent`."""
        try:
            body = wire.decode(frame).body
        except WireError:
            return
        if isinstance(body, _TOLD):
            grant = getattr(body, "grant", None)
            words = type(body).__name__.upper() + (f", grant {grant}" if grant is not None else "")
            self.note(channel.name, "message", words, "wire")

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        super().posted(write)
        for here, length, there in write.rows:
            for end, address in ((write.source, here), (write.target, there)):
                if not any(low <= address <= high - length for low, high in end._registered):  # noqa: SLF001
                    raise Broken(f"{length} bytes at {address} of {end.name} are not registered")
        size = sum(length for _, length, _ in write.rows)
        self.note(write.source.name, "write", f"{size} bytes in {len(write.rows)} runs", write.target.name)

    def open_ends(self) -> list[Step]:
        """What is left open: for the end of a timeline."""
        rooms = [(member, number, room) for member in self.members() for number, room in member.rooms.items()]
        return [self._end(*one) for one in rooms if not one[2].poll().terminal]

    def _end(self, member: Member, number: int, room: Any) -> Step:
        return Step(round(self.world.now, 3), member.name, "open", f"room {number} waits in {room.phase}")


class _Liar:
    """A control channel on which frames say something else."""

    def __init__(self, inner: ControlChannel, lie: Callable[[wire.Body], wire.Body]) -> None:
        self._inner, self._lie = inner, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        told = wire.decode(frame[wire.PREFIX_LENGTH :])
        said = self._lie(told.body)
        if said is not told.body:
            frame = wire.encode(said, told.source, told.target, told.floor)
        self._inner.send(connection, frame)
