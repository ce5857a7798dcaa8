"""What an implementation must offer to be tested: `Subject`, the smallest interface the conformance suite can drive.

A subject is two sides, `"prefill"` and `"decode"`, in one process or several: that is the subject's business. The suite
calls every method from one thread, and only between `start` and `stop` (except for `name`, `version` and `traits`). It
starts a subject many times: after an example that left something hanging it stops it and starts it anew, so `stop` must
end everything that `start` began, hung threads included as far as possible (a subject that cannot end its threads does
best to keep each side in a child process and to kill it).

What a method cannot do it answers with `Unsupported`, and `traits` says so beforehand: the verdict of a property that
needs it is then *unknown*, which is no pass.

How other kinds of engine fit
-----------------------------
**Engines that know no room numbers** (vLLM). `Request.number` and `Request.attempt` are the suite's own name for a
request. Such a subject (`examples/conformance_pull.py`) keeps a dictionary from it to whatever its engine uses: vLLM's
`request_id`, and the `kv_transfer_params` (remote engine, host, port, block ids) that its prefill returns and its
router hands to decode. `Traits.room_numbers` False excludes what only a number that is used again can show.
`Traits.decode_first` False says that decode can be opened only after prefill's last `send`, because that is when the
parameters exist; the suite then opens in that order.

**Engines that pull** (vLLM's decode READs). `open` on decode starts the reads, `send` on prefill makes pages available
to be read, `poll` on prefill is done when it has been told that its blocks were read. `Traits.pulls` True only changes
words and arrows: what a caller puts in and what it must find afterwards are the same, and every property is stated over
those. Who must not hand memory back too early is then prefill as well: `memory_free` is asked on both sides.

**Engines that need a step function** call it in `poll`, or better in `settle`.

**Engines whose sides have several ranks** say in `Traits.ranks` with how many they can be started, and stay two sides
for the suite. `open`, `send`, `abort` and `close` are done on every rank, in whatever order and with whatever between;
`poll` is open until every rank knows how the room has ended for all of them, and done only if it is on each. Items are
whole: `fill` gives each rank its part of a page, `read` puts the parts together, so that the suite need not know how
anything is split and can still compare every byte. What several ranks have (aux) must be the same on each. A subject
that can give one rank's caller other arguments than the rest says so in `Traits.odd_ranks`, and finds them in
`Request.odd`.

Real time and simulated time
----------------------------
A wait is a hang only if nothing but a timer can end it. A simulated subject knows that exactly and overrides `settle`.
A real one cannot, so the suite's *patience* decides: all prerequisites are met, and nothing that can be seen has
changed for that long. Such a subject sets its own deadlines far longer (`start(..., deadline_s=None)`), and the suite
repeats the smallest example with a longer patience before it calls a property false.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ..evidence import Step
from .shape import (
    ABSENT,
    ALL_SPELLINGS,
    SIDES,
    ComponentShape,
    GuestSays,
    Item,
    OddRank,
    Request,
    Shape,
    Side,
    Spelling,
    Traits,
    View,
)

__all__ = [
    "ABSENT",
    "ALL_SPELLINGS",
    "SIDES",
    "ComponentShape",
    "GuestSays",
    "Handle",
    "Item",
    "OddRank",
    "Refused",
    "Request",
    "Shape",
    "Side",
    "Spelling",
    "Status",
    "Subject",
    "Traits",
    "Unsupported",
    "View",
]

_POLL_S = 0.002


class Unsupported(Exception):
    """The subject cannot do this; the text says what and why. The verdict is unknown."""


class Refused(Exception):
    """The implementation refused a call at once and in words: nothing waits because of it. The text is its reason."""


Handle: TypeAlias = Any
"""A room on one side, as the subject likes to hold it. The suite only hands it back."""
Status: TypeAlias = Literal["open", "done", "failed"]


def _required(subject: Subject, method: str) -> Unsupported:
    return Unsupported(f"{subject.name} does not define {method}, which is required")


class Subject:
    """An implementation under test. Override what it can do; what is left raises Unsupported.

    Required: `name`, `version`, `traits`, `start`, `stop`, `fill`, `read`, `open`, `send`, `poll`. With these SMOKE,
    L2, S1 and A1 can be judged; the rest makes more properties decidable.

    The command makes a subject by `Class(**options)`, the options being those of `--option NAME=VALUE` as text; a class
    that needs none has no such parameters.
    """

    name: str = "unnamed"
    version: str = ""
    traits: Traits = Traits(frozenset({"absent"}), frozenset({"absent"}))

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, shape: Shape, *, deadline_s: float | None = None, seed: int = 0) -> None:
        """Start both sides with memory of this shape, connected as far as they are before a room.

        deadline_s: after how long a room that is left alone shall end by itself; None: far longer than anything the
        suite does (at least ten minutes), so that a wait which only a timer ends is seen as such. seed: for subjects
        that draw anything. Raises Unsupported if the shape is not possible.
        """
        raise _required(self, "start")

    def stop(self) -> None:
        """End both sides and all that belongs to them, whatever state they are in. Called after every `start`, also
        after one that raised. Idempotent."""
        raise _required(self, "stop")

    # -- memory --------------------------------------------------------------------------------------------------

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """Write one item of a side's memory, as the engine around the implementation does."""
        raise _required(self, "fill")

    def read(self, side: Side, item: Item) -> bytes:
        """The bytes of one item of a side's memory now."""
        raise _required(self, "read")

    # -- a room --------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> Handle:
        """Open a room on one side. Must not block. Raises Refused if the implementation says no at once."""
        raise _required(self, "open")

    def send(self, room: Handle, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """Prefill: the next source pages are computed. Must not block.

        state_indices: a Python value in an allowed spelling, or ABSENT; indices come with the last send only. Pass it
        on exactly as it is. last: nothing follows. Raises Refused if the implementation says no at once.
        """
        raise _required(self, "send")

    def send_layers(
        self, room: Handle, layers: Sequence[int], pages: Sequence[int], state_indices: Any, *, last: bool
    ) -> None:
        """As `send`, where some layers only of these pages are computed (`Traits.layers`); must not block.

        The other layers follow, in any order, in sends of their own of the same pages. Each layer goes through the
        pages in order, and may be ahead of others. last: nothing follows, of any layer.
        """
        raise Unsupported(f"{self.name} cannot send some layers only")

    def poll(self, room: Handle) -> Status:
        """How the room is. Must not block, is called often, and may do the implementation's work."""
        raise _required(self, "poll")

    def explain(self, room: Handle) -> View:
        """What this side believes of the room, for timelines. Called when something has gone wrong."""
        return View(self.poll(room))

    def abort(self, room: Handle) -> None:
        """The caller gives the room up. Must not block."""
        raise Unsupported(f"{self.name} cannot abort")

    def failure(self, room: Handle) -> str | None:
        """Do what a caller does to learn why a room failed; the text, or None if it is told nothing (any more).

        The suite calls it again to see whether the same failure surfaces twice, or another one. Afterwards nothing may
        be held of the room (C2, `Traits.counts`): where callers close a room that they have asked, close it here.
        """
        raise Unsupported(f"{self.name} does not say why a room has failed")

    def close(self, room: Handle) -> None:
        """The caller is finished with the room. On rooms in any state; idempotent."""

    def memory_free(self, room: Handle) -> bool:
        """Whether the room's pages, aux slot and state items may be used for something else now, on its side.

        Where the implementation has no such word: whether the engine around it would hand them out again now.
        """
        return self.poll(room) != "open"

    # -- the whole -----------------------------------------------------------------------------------------------

    def settle(
        self,
        until: Callable[[], bool],
        view: Callable[[], object],
        *,
        patience_s: float,
        timers: bool = False,
    ) -> bool:
        """Let both sides run until `until()` (True), or until nothing changes any more (False).

        view: all that the suite can see; it polls the rooms. Here: nothing changes any more if `view()` has been the
        same for `patience_s`. A simulated subject overrides this, ignores view and patience, and returns False exactly
        when nothing but a timer can happen; with `timers`, time passes too, and False means that no timer is left.
        """
        seen, since = view(), time.monotonic()
        while not until():
            now, sight = time.monotonic(), view()
            if sight != seen:
                seen, since = sight, now
            elif now - since > patience_s:
                return until()
            time.sleep(_POLL_S)
        return True

    def held(self, side: Side) -> Mapping[str, int]:
        """The number of entries in everything a side keeps per room: tables, sets, handles, records, timers.

        Not what it keeps per peer. The suite compares with the figures after the first room of a start.
        """
        raise Unsupported(f"{self.name} cannot count what it holds")

    def ailments(self, side: Side) -> Sequence[str]:
        """What is visibly broken on a side: a thread that has died, with its exception. For timelines."""
        return ()

    def steps(self) -> Sequence[Step]:
        """What the subject saw happen since this was last called (messages, writes, notifications), for timelines.

        `Step.at` is `time.monotonic()` of the moment (the same in all processes of a Linux host); for a simulated
        subject anything that keeps the order: the suite numbers the steps.
        """
        return ()

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, side: Side) -> None:
        """End a side as SIGKILL does: it says nothing more. Its rooms' handles are of no use after it."""
        raise Unsupported(f"{self.name} cannot kill a side")

    def restart(self, side: Side) -> None:
        """Start a killed side again, under the same name, with fresh memory of the same shape."""
        raise Unsupported(f"{self.name} cannot restart a side")

    def lose(self, side: Side, *, lost: bool) -> None:
        """While true, control messages that `side` sends are lost, silently."""
        raise Unsupported(f"{self.name} cannot lose messages")

    def hold_writes(self, *, held: bool) -> None:
        """While true, posted writes (or reads) do not move their bytes; afterwards they do."""
        raise Unsupported(f"{self.name} cannot hold writes")

    def fail_writes(self, *, failing: bool) -> None:
        """While true, whoever moves the bytes is told that it cannot (a post that raises)."""
        raise Unsupported(f"{self.name} cannot make writes fail")

    def inject(self, side: Side, channel: Literal["control", "notification"], parts: Sequence[bytes]) -> None:
        """A stranger says something to a side: a message of these parts on its control socket, as a new peer, or a
        notification (of one part). Must not block for longer than it takes to hand it over.

        Where the channel is a byte stream, the parts are written one after another, unframed. A side that listens
        nowhere hears nothing.
        """
        raise Unsupported(f"{self.name} has no way for a stranger to speak")

    def guest(self, saying: GuestSays, request: Request) -> None:
        """A peer that was let in, as a decode side of its own, says something of a room that is not its own. It is
        connected as such a peer is; to say it must not block for long.

        "claim": it asks prefill for the room of `request` (the indices are a list per component), with memory of its
        own. "grant": it says to prefill, in every way that the protocol has, that what decode has asked for is given
        up, has failed, is acknowledged. "notification": it tells decode that everything has arrived.
        """
        raise Unsupported(f"{self.name} has nobody who is let in and lies")

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """Well-formed messages of the implementation's own protocol, for the suite to change and to inject.

        The text `{room}` in ASCII, where the number of a room stands in plain text, is replaced by one.
        """
        return ()
