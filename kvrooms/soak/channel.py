"""A control channel that loses, repeats and adds frames: a wrapper around the real one, in the process of a soak.

Which frame belongs to which room it learns from the METADATA that pass through it, in either direction.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..protocol import wire
from ..protocol.errors import WireError
from ..protocol.failure import Reason
from ..transport.ports import ChannelEvent, Closed, ControlChannel, FrameIn

Room: TypeAlias = tuple[int, int]
"""Room number and attempt."""
_KIND_AT = wire.PREFIX_LENGTH + 1
_GRANTS = 4096
_NAMES: dict[int, str] = {
    cls.KIND: cls.__name__.lower()
    for cls in (wire.Metadata, wire.Accept, wire.Reject, wire.Failed, wire.Abort, wire.Ack)
}


class Mark(NamedTuple):
    """What is to be done with the next frame of a kind that belongs to a room.

    copies: how many times it is sent instead of once. before: frames that are made from it and sent before it.
    """

    copies: int = 1
    before: Callable[[bytes], Sequence[bytes]] | None = None


class FaultyChannel:
    """See the module. The engine's thread calls all but `mark`, which any thread may call."""

    def __init__(self, inner: ControlChannel) -> None:
        self._inner = inner
        self._marks: dict[tuple[Room, str], list[Mark]] = {}
        self._rooms: dict[int, dict[int, Room]] = {}
        self.tokens: dict[int, Room] = {}
        """The room of each token that was sent or received lately."""
        self.met: dict[Room, float] = {}
        """When a room came to know its peer, in monotonic seconds: decode sent a METADATA, prefill an ACCEPT."""
        self.done: Counter[str] = Counter()
        """How often something was done to a frame, by kind of frame and deed."""

    def mark(self, room: Room, frame: str, *marks: Mark) -> None:
        """Do this to the next frames of that kind ("metadata", "ack", ...) of a room, one mark each."""
        self._marks[room, frame] = list(marks)

    def unmark(self, room: Room) -> None:
        """Forget what was not done to a room."""
        for key in [key for key in list(self._marks) if key[0] == room]:
            self._marks.pop(key, None)

    # -- the port ----------------------------------------------------------------------------------------------------

    def dial(self, address: str) -> int:
        """See `ControlChannel.dial`."""
        return self._inner.dial(address)

    def flush(self) -> None:
        """See `ControlChannel.flush`."""
        self._inner.flush()

    def close(self, connection: int) -> None:
        """See `ControlChannel.close`."""
        self._inner.close(connection)

    def poll(self) -> Sequence[ChannelEvent]:
        """See `ControlChannel.poll`."""
        events = self._inner.poll()
        for event in events:
            match event:
                case FrameIn(connection, frame) if len(frame) > 1 and frame[1] == wire.Metadata.KIND:
                    self._learn(connection, frame)
                case Closed(connection):
                    self._rooms.pop(connection, None)
        return events

    def send(self, connection: int, frame: bytes) -> None:
        """See `ControlChannel.send`."""
        name = _NAMES.get(frame[_KIND_AT])
        if name is None:
            self._inner.send(connection, frame)
            return
        if name == "metadata":
            self._learn(connection, frame[wire.PREFIX_LENGTH :])
        knows = name in {"metadata", "accept"}
        room = self._room_of(connection, frame) if knows or self._marks else None
        if knows and room is not None:
            self.met.setdefault(room, time.monotonic())
            if len(self.met) > _GRANTS:
                del self.met[next(iter(self.met))]
        mark = self._mark_of(room, name)
        if mark is None:
            self._inner.send(connection, frame)
            return
        if mark.before is not None:
            for extra in mark.before(frame):
                self.done["hostile frames"] += 1
                self._inner.send(connection, extra)
        if mark.copies != 1:
            self.done[f"{name} {'repeated' if mark.copies else 'lost'}"] += 1
        for _ in range(mark.copies):
            self._inner.send(connection, frame)

    def _room_of(self, connection: int, frame: bytes) -> Room | None:
        body = wire.decode(frame[wire.PREFIX_LENGTH :]).body
        return self._rooms.get(connection, {}).get(getattr(body, "grant", 0))

    def _mark_of(self, room: Room | None, name: str) -> Mark | None:
        marks = self._marks.get((room, name)) if room is not None else None
        if room is None or not marks:
            return None
        mark = marks.pop(0)
        if not marks:
            self._marks.pop((room, name), None)
        return mark

    def _learn(self, connection: int, frame: bytes) -> None:
        try:
            body = wire.decode(frame).body
        except WireError:
            return
        if isinstance(body, wire.Metadata):
            rooms = self._rooms.setdefault(connection, {})
            rooms[body.grant] = self.tokens[body.token] = (body.room, body.attempt)
            if len(rooms) > _GRANTS:
                del rooms[next(iter(rooms))]
            if len(self.tokens) > _GRANTS:
                del self.tokens[next(iter(self.tokens))]


def hostile(draw: random.Random, side: str) -> Callable[[bytes], Sequence[bytes]]:
    """Frames that no honest peer sends, in the name of an honest peer that sends `side`'s frames: each must be ignored.

    None of them is a valid frame of a live grant: what a peer says of its own grants it may say.
    """

    def frames(frame: bytes) -> Sequence[bytes]:
        header = bytearray(frame[wire.PREFIX_LENGTH : wire.PREFIX_LENGTH + wire.HEADER_LENGTH])
        body = frame[wire.PREFIX_LENGTH + wire.HEADER_LENGTH :]
        received = wire.decode(frame[wire.PREFIX_LENGTH :])
        strange = bytearray(header)
        strange[draw.choice((0, 1, 2))] = draw.randint(100, 255)  # version, kind, reserved
        stranger = bytearray(header)
        stranger[4:12] = draw.randbytes(8)  # the sender's incarnation
        wrong: wire.Body = (
            wire.Ack(2**60) if side == "decode" else wire.Abort(2**60, Reason.ABORTED, "", retryable=False)
        )
        every = [
            _framed(bytes(header) + b"\xc1" + draw.randbytes(draw.randint(1, 64))),  # no MessagePack begins like this
            _framed(bytes(header) + body[: draw.randint(1, len(body) - 1)] if len(body) > 1 else bytes(header) + b"\0"),
            _framed(bytes(strange) + body),
            _framed(bytes(stranger) + body),
            wire.encode(wrong, received.source, received.target, received.floor),
            wire.encode(
                wire.Refuse(("go away",), Reason.HANDSHAKE_REFUSED, retryable=False),
                received.source,
                received.target,
                received.floor,
            ),
        ]
        return draw.sample(every, draw.randint(1, len(every)))

    return frames


def poison(frame: bytes) -> Sequence[bytes]:
    """A METADATA of the same grant that asks for pages which do not exist: it voids its own grant, and no other."""
    received = wire.decode(frame[wire.PREFIX_LENGTH :])
    body = received.body
    assert isinstance(body, wire.Metadata)
    bad = wire.Metadata(
        room=body.room,
        attempt=body.attempt,
        grant=body.grant,
        token=body.token,
        manifest=body.manifest,
        pages=b"\xff\xff\xff\x7f" * (len(body.pages) // 4 + 1),
        aux_index=2**31 - 1,
        state=body.state,
    )
    return [wire.encode(bad, received.source, received.target, received.floor)]


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(wire.PREFIX_LENGTH, "little") + content
