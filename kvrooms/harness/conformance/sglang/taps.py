"""Taps on what SGLang says and writes: they tell what happened, and can lose a message or hold or fail a write.

Installed in the driver only. A tap calls the real method with the same arguments and changes nothing, except while the
suite has asked for a fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_EVENTS_MAX = 4096
_SAYINGS_MAX = 8
_POLLS = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")


class Taps:
    """One process's taps. events: (monotonic time, kind, to the other side?, text), oldest first. Any thread."""

    def __init__(self, other: str) -> None:
        self.other = other
        self.regions: list[tuple[int, int, str]] = []
        """Registered memory: first address, end, and what it holds."""
        self.losing = False
        self.failing = False
        self.sayings: dict[str, list[bytes]] = {}
        """The first message of each kind that this process sent and that names a room: kind to parts."""
        self.strangers: list[Any] = []
        """Sockets that do not speak for this side."""
        self._lock = threading.Lock()
        self._events: list[tuple[float, str, str, str]] = []
        self._holding = False
        self._held: dict[int, tuple[Any, Any, Callable[..., Any], str]] = {}
        self._posted: dict[int, str] = {}
        self._broken: set[int] = set()
        self._labels: dict[int, str] = {}

    def note(self, kind: str, text: str, to: str = "") -> None:
        """One event. Beyond a bound the oldest are dropped."""
        with self._lock:
            self._events.append((time.monotonic(), kind, to, text))
            del self._events[:-_EVENTS_MAX]

    def drain(self) -> list[tuple[float, str, str, str]]:
        """The events since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    # -- control messages ----------------------------------------------------------------------------------------

    def on_zmq(self, socket_class: Any) -> None:
        """Every multipart message that this process sends is seen, and lost while `losing`."""
        send = socket_class.send_multipart

        def send_multipart(sock: Any, parts: Sequence[Any], *arguments: Any, **named: Any) -> Any:
            if sock in self.strangers:
                return send(sock, parts, *arguments, **named)
            frames = [bytes(part) for part in parts]
            kind, text = describe(frames)
            self.note("message", f"{text}{' (lost)' if self.losing else ''}", self.other)
            if kind and len(self.sayings) < _SAYINGS_MAX:
                self.sayings.setdefault(kind, frames)
            return None if self.losing else send(sock, parts, *arguments, **named)

        socket_class.send_multipart = send_multipart

    # -- writes and notifications --------------------------------------------------------------------------------

    def on_nixl(self, agent_class: Any) -> None:
        """Every write that this process makes, posts and sees done, and every notification that it reads."""
        self._on_making(agent_class)
        transfer, check = agent_class.transfer, agent_class.check_xfer_state
        notifications = agent_class.get_new_notifs

        def post(agent: Any, handle: Any, *arguments: Any, **named: Any) -> Any:
            label = self._labels.pop(id(handle), "a write")
            if self.failing:
                self.note("fault", f"{label} cannot be posted", self.other)
                raise _backend_error()
            with self._lock:
                if self._holding:
                    self._held[id(handle)] = (agent, handle, transfer, label)
                    return "PROC"
            self.note("write", label, self.other)
            state = transfer(agent, handle, *arguments, **named)
            if state == "DONE":
                self.note("state", f"write done: {label}")
            else:
                self._posted[id(handle)] = label
            return state

        def state_of(agent: Any, handle: Any) -> Any:
            with self._lock:
                if id(handle) in self._held:
                    return "PROC"
            state = "ERR" if id(handle) in self._broken else check(agent, handle)
            if state != "PROC" and id(handle) in self._posted:
                self.note("state", f"write {'done' if state == 'DONE' else state}: {self._posted.pop(id(handle))}")
            return state

        def read_notifications(agent: Any, *arguments: Any, **named: Any) -> Any:
            found = notifications(agent, *arguments, **named)
            for tags in found.values():
                for tag in tags:
                    self.note("notification", f"sees {tag.decode(errors='replace')!r}")
            return found

        agent_class.transfer, agent_class.check_xfer_state = post, state_of
        agent_class.get_new_notifs = read_notifications

    def _on_making(self, agent_class: Any) -> None:
        """What a write holds is known when it is made, not when it is posted."""
        initialize, prepped = agent_class.initialize_xfer, agent_class.make_prepped_xfer

        def make(agent: Any, operation: str, local: Any, remote: Any, peer: Any, *more: Any, **named: Any) -> Any:
            handle = initialize(agent, operation, local, remote, peer, *more, **named)
            notification = next((value for value in (*more, *named.values()) if isinstance(value, bytes)), b"")
            self._labels[id(handle)] = _label(self._region(local), notification)
            return handle

        def make_prepped(agent: Any, operation: str, local: Any, indices: Any, *more: Any, **named: Any) -> Any:
            handle = prepped(agent, operation, local, indices, *more, **named)
            notification = next((value for value in (*more, *named.values()) if isinstance(value, bytes)), b"")
            self._labels[id(handle)] = _label(f"{len(indices)} pieces of KV pages", notification)
            return handle

        agent_class.initialize_xfer, agent_class.make_prepped_xfer = make, make_prepped

    def _region(self, descriptors: Any) -> str:
        try:
            address, count = int(descriptors[0][0]), int(descriptors.descCount())
        except (IndexError, TypeError, AttributeError):
            return "a write"
        for start, end, what in self.regions:
            if start <= address < end:
                return f"{count} pieces of {what}"
        return "a write"

    def hold(self, *, held: bool) -> None:
        """While held, what is posted stays unposted and looks in progress; afterwards it is posted, in order."""
        with self._lock:
            self._holding = held
            waiting = [] if held else list(self._held.items())
        for key, (agent, handle, transfer, label) in waiting:
            self.note("write", f"{label} (held back until now)", self.other)
            try:
                transfer(agent, handle)
            except Exception as error:  # noqa: BLE001 - whatever NIXL says of a write whose maker is gone
                self.note("fault", f"{label}: {error}")
                self._broken.add(key)
            self._posted[key] = label
            # Only now: until it is posted, NIXL has no state of it to tell.
            with self._lock:
                del self._held[key]


def describe(frames: Sequence[bytes]) -> tuple[str, str]:
    """A control message: its kind if it names a room, else "", and a line for the timeline."""
    words = [frame.decode("ascii", errors="replace") for frame in frames]
    if words[0] == "NixlMsgGuard" and len(words) > 8:
        if words[1] == "None":
            return "", "registers its memory"
        # Four bytes a page index; a packed list of lists starts with the number of lists.
        state = f"state frame of {len(frames[8])} bytes" if frames[8] else "state frame empty"
        return "METADATA", f"METADATA, room {words[1]}: {len(frames[5]) // 4} pages, aux slot {words[6]}, {state}"
    if words[0] == "KV_STATUS" and len(words) > 3:
        status = _POLLS[int(words[2])] if words[2].isdigit() and int(words[2]) < len(_POLLS) else words[2]
        return "KV_STATUS", f"KV_STATUS, room {words[1]}: {status}{f' ({words[4]})' if words[4:] and words[4] else ''}"
    if words[0].startswith("ABORT") and len(words) > 1:
        return words[0], f"{words[0]}, room {words[1]}"
    return "", f"a message of {len(frames)} parts, {words[0][:24]!r} first"


def _label(what: str, notification: bytes) -> str:
    return what + (f", to notify {notification.decode(errors='replace')!r}" if notification else "")


def _backend_error() -> Exception:
    from nixl._bindings import nixlBackendError

    error: Exception = nixlBackendError("NIXL_ERR_BACKEND")
    return error
