"""What two engines on the real ports put on their way, counted: a busy machine changes seconds, and none of this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvrooms import DecodeEngine, PrefillEngine
from kvrooms.protocol import wire


class Posts:
    """What a prefill engine posts through NIXL: to whom, with which notification, and whether it was over at once."""

    def __init__(self, engine: PrefillEngine) -> None:
        self.engine = engine
        self.transport: Any = engine._core.transport
        self.notified: list[tuple[str, bytes]] = []
        self.kinds: Counter[tuple[bool, bool]] = Counter()
        self.bytes: Counter[str] = Counter()
        self._post = self.transport.post

    def __enter__(self) -> Posts:
        self.transport.post = self._posted
        return self

    def __exit__(self, *_: object) -> None:
        del self.transport.post

    def _posted(self, agent: str, piece: Any, message: bytes) -> int | None:
        handle: int | None = self._post(agent, piece, message)
        self.kinds[handle is None, bool(message)] += 1
        self.bytes[agent] += piece.bytes
        if message:
            self.notified.append((agent, message))
        return handle

    def say_again(self) -> int:
        """Send all notifications once more, with the same agent. Returns how many there are."""
        for agent, message in self.notified:
            self.engine._core.submit(self.transport._wrapper.send_notif, agent, message)
        self.engine._runner.wake()
        return len(self.notified)


@contextmanager
def traffic(prefill: PrefillEngine, decode: DecodeEngine) -> Iterator[Counter[str]]:
    """Counts what happens inside: writes, and frames of each kind, heartbeats apart."""
    count: Counter[str] = Counter()
    channels: list[Any] = [engine._core.channel for engine in (prefill, decode)]

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(connection: int, frame: bytes) -> Any:
            kind = type(wire.decode(bytes(frame)[wire.PREFIX_LENGTH :]).body)
            if kind not in (wire.Ping, wire.Pong):
                count[kind.__name__] += 1
            return send(connection, frame)

        return sent

    for channel in channels:
        channel.send = counted(channel.send)
    try:
        with Posts(prefill) as posts:
            yield count
        count["posts"] = posts.kinds.total()
    finally:
        for channel in channels:
            del channel.send
