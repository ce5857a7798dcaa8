"""A transport under which a byte that has landed is another one by the time that decode looks: it wraps NIXL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..protocol import notify
from ..protocol.errors import WireError
from ..transport.ports import Arrival, Transport
from .channel import FaultyChannel, Room
from .oracle import Bytes


class CorruptingTransport:
    """See the module. Everything but `arrivals` is the inner transport's. Any thread may call `mark` and `unmark`."""

    def __init__(self, inner: Transport, channel: FaultyChannel) -> None:
        self._inner = inner
        self._rooms = channel.tokens
        self._done: Counter[str] = channel.done
        self._marks: dict[Room, Callable[[notify.Part], Bytes]] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def mark(self, room: Room, landed: Callable[[notify.Part], Bytes]) -> None:
        """Change a byte of the next part that lands for a room. landed: the memory of a part's first item."""
        self._marks[room] = landed

    def unmark(self, room: Room) -> None:
        """Leave a room alone."""
        self._marks.pop(room, None)

    def arrivals(self) -> Sequence[Arrival]:
        """See `Transport.arrivals`."""
        arrivals = self._inner.arrivals()
        if self._marks:
            for arrival in arrivals:
                self._corrupt(arrival.message)
        return arrivals

    def _corrupt(self, message: bytes) -> None:
        try:
            _, token, parts, _, _ = notify.decode(message)
        except WireError:
            return
        landed = self._marks.pop(self._rooms.get(token, (-1, 0)), None)
        if landed is not None:
            landed(parts[0])[-1] ^= 0xFF
            self._done["byte corrupted"] += 1
