"""What a judge sees of a simulated run: which rooms each fault has touched.

Told from the kinds and grants of frames, from addresses and from connections. Nothing here judges or asks an engine.
"""

from __future__ import annotations

from collections import Counter

from ...protocol import wire
from ...protocol.errors import WireError
from ...transport.ports import CloseCause
from ..channel import SimChannel
from ..ports import SimTransport, Write
from .bench import Bench
from .lives import Caller, Key, Life, Trouble
from .memory import Side
from .record import Record, words_of, words_of_write
from .swarm import Swarm

_ROOM_FRAMES = (wire.Metadata, wire.Accept, wire.Reject, wire.Failed, wire.Abort, wire.Ack)
_HEARTBEATS = (wire.Ping, wire.Pong)
_METADATA, _WELCOME, _PONG = wire.Metadata.KIND, wire.Welcome.KIND, wire.Pong.KIND
_HEARD_MAX = 64
_ROOMY = 1 << 20
"""As many bytes in flight are no limit to rooms as small as these."""

Link = tuple[str, str]
"""The names of a decode and a prefill engine."""


class Eyes(Bench):
    """A bench that knows what has gone wrong, and for whom."""

    every_room = True

    def __init__(self, seed: int, swarm: Swarm, record: Record | None = None) -> None:
        self.seed = seed
        self.swarm = swarm
        self.record = record
        self.lives: list[Life] = []
        self.injected: Counter[str] = Counter()
        self.heard: list[tuple[SimTransport, str, bytes]] = []
        self.current: dict[tuple[Side, Key], Life] = {}
        self.channels: dict[SimChannel, Side] = {}
        self._grants: dict[tuple[SimChannel, SimChannel, int], Life] = {}
        self._links: dict[Link, Trouble] = {}
        self._quiet: set[Link] = set()
        self._still: set[str] = set()
        self._mends: set[Link] = set()
        self._crowded: set[str] = set()
        self._late: dict[Link, float] = {}
        self._left: set[tuple[SimChannel, int]] = set()
        self._welcomed: dict[tuple[SimChannel, SimChannel], int] = {}
        self._opened: list[Caller] = []
        self.died: set[str] = set()
        self.fenced: set[str] = set()
        self.heard_of: Counter[tuple[SimChannel, SimChannel]] = Counter()
        super().__init__(
            seed,
            swarm.shape,
            prefills=swarm.prefills,
            decodes=swarm.decodes,
            settings=swarm.settings,
            pages=swarm.pages,
            slots=swarm.slots,
        )

    def add_prefill(self, name: str, seed: int = 0) -> Side:
        """See `Bench.add_prefill`."""
        return self._known(super().add_prefill(name, seed))

    def add_decode(self, name: str) -> Side:
        """See `Bench.add_decode`."""
        return self._known(super().add_decode(name))

    def _known(self, side: Side) -> Side:
        self.channels[side.channel] = side
        return side

    def note(self, who: str, kind: str, text: str, *lives: Life, to: str = "") -> None:
        """A line of the timeline, if there is one."""
        if self.record is not None:
            self.record.add(self.world.now, who, kind, text, to, lives)

    # -- rooms -----------------------------------------------------------------------------------------------------

    def enter(self, life: Life, caller: Caller) -> None:
        """A caller has opened its room."""
        held = self.hold(caller.room, caller.side, life.plan, receives=caller is life.receiver)
        held.note = (life, caller)
        self._opened.append(caller)
        caller.held = held
        self.current[caller.side, life.key] = life
        link = (life.receiver.side.name, life.sender.side.name)
        trouble = self._links.get(link, Trouble.NONE)
        if (
            self._still.intersection(link)
            or link in self._mends
            or link in self._quiet
            or link[1] in self._crowded
            or self._late.get(link, -1.0) >= self.world.now
        ):
            trouble = Trouble.SILENT
        if self.world.faults.reorder:
            life.touch(Trouble.RECONNECTING, "frames come in any order")
        if trouble:
            life.touch(trouble, "it was opened while its connection was not well")

    def rooms_of(self, side: Side) -> list[Caller]:
        """The callers of the rooms that an engine has not forgotten yet, closed or not."""
        return [caller for caller in self.places_of(side) if caller.room.record is not None]

    def places_of(self, side: Side) -> list[Caller]:
        """The callers of these rooms, and of those that are forgotten while their memory is held."""
        self._opened = [one for one in self._opened if not one.gone and (one.room.record is not None or not one.free)]
        return [caller for caller in self._opened if caller.side is side]

    # -- what touches rooms ----------------------------------------------------------------------------------------

    def touch(self, life: Life, trouble: Trouble, why: str, lease: Trouble | None = None) -> None:
        """Something goes wrong for a room."""
        if life.trouble < trouble or (lease or trouble) > life.lease_trouble:
            self.note("wire", "fault", why, life)
        life.touch(trouble, why, lease)

    def between(self, decode: Side, prefill: Side) -> list[Life]:
        """The lives of a pair of engines that are not over. A prefill engine that comes back inherits decode's part."""
        name = prefill.name
        return [life for life in self.lives if life.receiver.side is decode and life.sender.side.name == name]

    def trouble_link(self, decode: Side, prefill: Side, trouble: Trouble, why: str) -> None:
        """Something is wrong with the connection of two engines, until it is made again."""
        link = (decode.name, prefill.name)
        self._links[link] = max(self._links.get(link, Trouble.NONE), trouble)
        for life in self.between(decode, prefill):
            self.touch(life, trouble, why)

    def break_link(self, decode: Side, prefill: Side, why: str) -> None:
        """The connection of two engines ends; what was granted over it fails, and what waits for it waits on."""
        granted = {id(life) for (d, p, _), life in self._grants.items() if d is decode.channel and p is prefill.channel}
        link = (decode.name, prefill.name)
        self._links[link] = max(self._links.get(link, Trouble.NONE), Trouble.RECONNECTING)
        established = self._welcomed.pop((decode.channel, prefill.channel), None) is not None
        for life in self.between(decode, prefill):
            life.cut_off |= not established
            told = established and id(life) in granted and life.receiver.room is not None
            self.touch(life, Trouble.ANNOUNCED if told else Trouble.RECONNECTING, why, Trouble.RECONNECTING)

    def pair(self, channel: SimChannel, connection: int) -> tuple[Side, Side] | None:
        """The decode and the prefill side of a connection; None for a stranger's."""
        far = channel.far(connection)
        here, there = self.channels.get(channel), self.channels.get(far) if far is not None else None
        if here is None or there is None:
            return None
        return (here, there) if here in self.decodes or there in self.prefills else (there, here)

    def engine(self, what: str, name: str) -> None:
        """See `Witness.engine`."""
        side = next((one for one in (*self.decodes, *self.prefills) if one.name == name), None)
        self.note(name, "fault", what)
        self._still.discard(name)
        if side is None:
            return
        if what == "stalled":
            self._still.add(name)
        decode = side in self.decodes
        pairs = [(side, other) if decode else (other, side) for other in (self.prefills if decode else self.decodes)]
        if what == "woken":  # a peer that was started meanwhile may have waited too long for its WELCOME
            for link in [(d.name, p.name) for d, p in pairs if not self.established(d, p)]:
                self._links[link] = max(self._links.get(link, Trouble.NONE), Trouble.RECONNECTING)
            return
        self.injected[f"engine {what}"] += 1
        for pair in pairs:
            if what in ("killed", "closed"):
                self.break_link(*pair, f"{name} is {what}")
            else:
                self.trouble_link(*pair, Trouble.SILENT, f"{name}: {what}")
        if what in ("killed", "closed"):
            self.died.add(name)
            for life in self.lives:
                for caller in life.callers:
                    caller.gone = caller.gone or caller.side is side

    def established(self, decode: Side, prefill: Side) -> bool:
        """Whether the handshake of two engines is complete, and nothing has happened to their connection since."""
        return (decode.channel, prefill.channel) in self._welcomed

    # -- Witness ---------------------------------------------------------------------------------------------------

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.sent`."""
        if channel in self.channels and frame[1] == _METADATA:
            body = wire.decode(frame).body
            far = channel.far(connection)
            life = self.current.get((self.channels[channel], (body.room, body.attempt)))  # type: ignore[union-attr]
            if life is not None:
                life.asked = True
                life.unheard = far is None or far.dead
                if far is not None:
                    self._grants[channel, far, body.grant] = life  # type: ignore[union-attr]
        if self.record is not None:
            self._note_frame(False, channel, connection, frame)  # noqa: FBT003

    def delivered(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.delivered`."""
        far, kind = channel.far(connection), frame[1] if len(frame) > 1 else 0
        if far is not None:
            self.heard_of[channel, far] += 1
        if kind in (_WELCOME, _PONG) and (channel, connection) not in self._left:
            pair = self.pair(channel, connection)
            if pair is not None:
                link = (pair[0].name, pair[1].name)
                self._quiet.discard(link)
                if kind == _WELCOME and _intact(frame) and not self._still.intersection(link):
                    if self.swarm.named in (0.0, 1.0):  # else decode may still look for it under the other name
                        self._links.pop(link, None)
                    self._welcomed[pair[0].channel, pair[1].channel] = connection
        if self.record is not None:
            self._note_frame(True, channel, connection, frame)  # noqa: FBT003

    def spoiled(self, how: str, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.spoiled`."""
        self.injected[f"frame {how}"] += 1
        pair = self.pair(channel, connection)
        if pair is None or (how == "repeated" and frame[1] != _METADATA):
            return
        body = wire.decode(frame).body
        why = f"{type(body).__name__.upper()} {how}"
        if how == "late":
            self._late[pair[0].name, pair[1].name] = self.world.now + self.world.faults.late_s
            for life in self.between(*pair):
                self.touch(life, Trouble.SILENT, why)
        elif isinstance(body, _ROOM_FRAMES):
            whose = self._life_of(channel, connection, body.grant)
            # A METADATA that comes again when everything of its grant was posted is refused, as one that is over.
            trouble = Trouble.ANNOUNCED if how == "repeated" else Trouble.SILENT
            if whose is not None:
                self.touch(whose, trouble, f"{why} (grant {body.grant})")
        elif isinstance(body, (wire.Hold, wire.HoldLost)):
            for life in self.between(*pair):
                if life.key == (body.room, body.attempt):
                    self.touch(life, Trouble.SILENT, why)
        elif isinstance(body, _HEARTBEATS):
            self._quiet.add((pair[0].name, pair[1].name))
            for life in self.between(*pair):
                self.touch(life, Trouble.SILENT, why)
        else:
            self.trouble_link(*pair, Trouble.SILENT, why)

    def broken(self, how: str, channel: SimChannel, connection: int) -> None:
        """See `Witness.broken`."""
        pair = self.pair(channel, connection)
        self.injected[f"connection {how}"] += 1
        if pair is not None:
            if how == "jammed":
                self.died.add(
                    pair[1].name
                )  # over it no GOODBYE can go: after the last write its end looks like a death
            self.break_link(*pair, f"connection {how} at {channel.name}")
            if how == "jammed" and channel is pair[1].channel:  # decode is not told as long as writes may be in flight
                self.trouble_link(*pair, Trouble.SILENT, "and decode is not told")

    def left(self, channel: SimChannel, connection: int) -> None:
        """See `Witness.left`."""
        self._left.add((channel, connection))
        pair = self.pair(channel, connection)
        if pair is not None:
            key = (pair[0].channel, pair[1].channel)
            theirs = connection if channel is key[0] else channel.number_there(connection)
            if self._welcomed.get(key) == theirs:
                del self._welcomed[key]

    def over(self, channel: SimChannel, connection: int, cause: CloseCause) -> None:
        """See `Witness.over`."""
        if self.record is not None:
            self.note(channel.name, "message", f"connection {connection} is over: {cause.value}")

    def refused(self, transport: SimTransport, agent: str, source: int) -> None:
        """See `Witness.refused`."""
        self.injected["post failed"] += 1
        side = self.by_agent.get(transport.agent)
        owner = side.owners.get(source) if side is not None else None
        if owner is not None and owner[0].note is not None:
            self.touch(owner[0].note[0], Trouble.ANNOUNCED, "a post failed")

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        if self.record is not None:
            life = self._whose(write)
            self.note(
                write.source.name, "write", words_of_write(write), *([life] if life else []), to=write.target.name
            )

    def landed(self, write: Write, source: int, destination: int, length: int) -> None:
        """See `Witness.landed`."""
        super().landed(write, source, destination, length)
        if self.record is not None and not write.left:
            life = self._whose(write)
            self.note(write.target.name, "write", f"write {write.handle} has landed", *([life] if life else []))

    def _whose(self, write: Write) -> Life | None:
        side = self.by_agent.get(write.source.agent)
        owner = side.owners.get(write.rows[0][0]) if side is not None else None
        return owner[0].note[0] if owner is not None and owner[0].note is not None else None

    def disturbs(self, how: str, write: Write) -> None:
        """See `Witness.disturbs`."""
        self.injected[f"write {how}"] += 1
        life = self._whose(write)
        if life is None:
            return
        if how == "damaged":
            life.damaged = True
            self.touch(life, Trouble.ANNOUNCED, f"bytes of write {write.handle} are damaged")
            return
        if how in ("stuck", "slow") and self.settings.inflight_bytes < _ROOMY:
            self._crowded.add(life.sender.side.name)
            for decode in self.decodes:
                for other in self.between(decode, life.sender.side):
                    self.touch(other, Trouble.SILENT, f"a write is {how}, and takes the place of others")
        if how == "failed":
            # Prefill posts nothing to that peer until all writes to it are over, then makes the connection anew.
            life.in_doubt = True
            link, waits = (life.receiver.side.name, life.sender.side.name), Trouble.RECONNECTING
            if self.world.faults.write_slow or self.world.faults.write_stuck:
                self._mends.add(link)
                waits = Trouble.SILENT
            self.trouble_link(life.receiver.side, life.sender.side, waits, "a write to its peer failed")
        self.touch(life, Trouble.ANNOUNCED if how == "failed" else Trouble.SILENT, f"write {write.handle} {how}")

    def notified(self, transport: SimTransport, agent: str, message: bytes) -> None:
        """See `Witness.notified`."""
        self.heard.append((transport, agent, message))
        if len(self.heard) > 64:
            del self.heard[:32]
        if self.record is not None:
            self.note(agent, "notification", words_of(message), to=transport.name)

    def time(self, now: float) -> None:
        """See `Witness.time`. Where time passes although something could happen, all is slower than any timer."""
        if self.world.busy and self.world.faults.delay:
            self.injected["delay"] += 1
            for life in self.lives:
                life.touch(Trouble.SILENT, "time passed while it waited for its turn")
            for decode in self.decodes:
                self._links.update({(decode.name, prefill.name): Trouble.SILENT for prefill in self.prefills})

    def _life_of(self, channel: SimChannel, connection: int, grant: int) -> Life | None:
        far = channel.far(connection)
        if far is None:
            return None
        return self._grants.get((channel, far, grant)) or self._grants.get((far, channel, grant))

    def _note_frame(self, arrives: bool, channel: SimChannel, connection: int, frame: bytes) -> None:
        far = channel.far(connection)
        ends = (channel.name, far.name if far is not None else "?")
        who, to = reversed(ends) if arrives else ends
        try:
            body = wire.decode(frame).body
        except WireError as error:
            self.note(who, "message", f"malformed: {error}", to=to)
            return
        life = self._life_of(channel, connection, body.grant) if isinstance(body, _ROOM_FRAMES) else None
        text = f"{words_of(body)}{' arrives' if arrives else ''}"
        self.note(who, "message", text, *([life] if life else []), to=to)


def _intact(frame: bytes) -> bool:
    try:
        wire.decode(frame)
    except WireError:
        return False
    return True
