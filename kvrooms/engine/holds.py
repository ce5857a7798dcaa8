"""Holds: decode has no memory for a room yet, and asks prefill to keep what it has computed.

Prefill keeps an unasked room for `queued_timeout_s`. While decode queues, its engine renews that; when it does not, the
room ends at prefill, and whoever asks for it later is told so: nobody reads pages that belong to another request.
"""

from __future__ import annotations

from ..protocol import wire
from ..protocol.failure import Failure
from ..protocol.identity import RoomKey
from .core import Ports
from .decode_links import DecodeLinks
from .decode_state import DecodeLink, Target
from .timers import Alarm


class Hold:
    """A room that prefill is asked to keep. Made by `DecodeEngine.hold`; ended by `release`, or by opening the room."""

    def __init__(self, key: RoomKey, target: Target) -> None:
        self.key = key
        self.target = target
        self._lost: Failure | None = None

    def __repr__(self) -> str:
        return f"<Hold {self.key} {self._lost or 'kept'}>"

    @property
    def lost(self) -> Failure | None:
        """Why prefill has the room no more, once it said so; the request has to be computed again then."""
        return self._lost

    def end(self, failure: Failure) -> None:
        """The room is lost (engine's thread)."""
        self._lost = failure


class DecodeHolds(DecodeLinks):
    """The part of a decode core that renews holds. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._holds: dict[RoomKey, Hold] = {}

    def hold(self, hold: Hold) -> None:
        """Ask for a room to be kept, again and again."""
        self._holds[hold.key] = hold
        self._source(hold.target)
        self._link(hold.target).holds[hold] = None
        self._renew(hold)

    def release(self, hold: Hold) -> None:
        """Ask no more. Idempotent."""
        if self._holds.get(hold.key) is not hold:
            return
        del self._holds[hold.key]
        self._timers.disarm(hold, Alarm.HOLD)
        for link in self._by_target.values():
            link.holds.pop(hold, None)

    def _renew(self, hold: Hold) -> None:
        for link in self._senders(hold):
            link.holds[hold] = None
            if link.up and not link.dropped:
                self._send(link, wire.Hold(*hold.key))
        self._timers.arm(hold, Alarm.HOLD, self.now + self.settings.hold_renew_s)

    def _senders(self, hold: Hold) -> list[DecodeLink]:
        """The links to the ranks that keep a room, as far as they are known."""
        source = self._sources.get(hold.target)
        routes = source.routes if source is not None else None
        targets = [route.target for route in routes] if routes else [hold.target]
        return [self._by_target[target] for target in targets if target in self._by_target]

    def _hold_lost(self, body: wire.HoldLost, link: DecodeLink) -> None:
        hold = self._holds.get(RoomKey(body.room, body.attempt))
        if hold is not None and hold in link.holds:
            hold.end(Failure.heard(body.reason, body.detail, body.retryable))
            self.release(hold)
        else:  # released, or opened, while the word was on its way
            self.counters["losses of no open hold"] += 1

    def _linked(self, link: DecodeLink) -> None:
        for hold in list(link.holds):
            self._renew(hold)

    def _refused(self, link: DecodeLink, failure: Failure) -> None:
        super()._refused(link, failure)
        for hold in list(link.holds):
            hold.end(failure)
            self.release(hold)
