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
request. Such a subject keeps a dictionary from it to whatever its engine uses: vLLM's `request_id`, and the
`kv_transfer_params` (remote engine, host, port, block ids) that its prefill returns and its router hands to decode.
`Traits.room_numbers` False excludes what only a number that is used again can show. `Traits.decode_first` False says
that decode can be opened only after prefill's last `send`, because that is when the parameters exist; the suite then
opens in that order.

**Engines that pull** (vLLM's decode READs). `open` on decode starts the reads, `send` on prefill makes pages available
to be read, `poll` on prefill is done when it has been told that its blocks were read. `Traits.pulls` True only changes
words and arrows: what a caller puts in and what it must find afterwards are the same, and every property is stated over
those. Who must not hand memory back too early is then prefill as well: `memory_free` is asked on both sides.

**Engines that need a step function** call it in `poll`, or better in `settle`.

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
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ..evidence import Step

Side: TypeAlias = Literal["prefill", "decode"]
SIDES: Final[tuple[Side, Side]] = ("prefill", "decode")
Spelling: TypeAlias = Literal["absent", "None", "list", "tuple", "none_entry", "array", "mapping", "flat", "iterator"]
ALL_SPELLINGS: Final[frozenset[Spelling]] = frozenset(
    {"absent", "None", "list", "tuple", "none_entry", "array", "mapping", "flat", "iterator"}
)
_POLL_S = 0.002


class Unsupported(Exception):
    """The subject cannot do this; the text says what and why. The verdict is unknown."""


class Refused(Exception):
    """The implementation refused a call at once and in words: nothing waits because of it. The text is its reason."""


class _Absent:
    """The argument is not given at all."""

    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"  # one and the same in every process


ABSENT: Final = _Absent()
"""State indices that the caller does not pass: the call is made without the argument."""


class ComponentShape(NamedTuple):
    """One state component: bytes of one item (one slot, or one page of the component), items on each side.

    owed: "always" (one slot per room, as Mamba has it; the suite then always gives indices) or "when_indexed" (a
    sliding window or a sparse-attention index; the suite gives indices or spells that there are none).
    """

    name: str
    owed: Literal["always", "when_indexed"]
    item_bytes: int
    prefill_items: int
    decode_items: int


class Shape(NamedTuple):
    """The memory of both sides. page_bytes: of one page in all its layers together, 0 where there are no KV layers.

    A subject may split a page into layers and K and V as it likes: `read` and `fill` see the concatenation.
    aux_bytes: of one aux slot. state: the components, in order.
    """

    page_bytes: int
    prefill_pages: int
    decode_pages: int
    aux_bytes: int
    prefill_aux_slots: int
    decode_aux_slots: int
    state: tuple[ComponentShape, ...] = ()


class Item(NamedTuple):
    """One unit of memory: a KV page, an aux slot, or an item of state component number `component`."""

    kind: Literal["kv", "aux", "state"]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    component: int = 0


class Request(NamedTuple):
    """What a caller opens on one side.

    number, attempt: the name that both sides share; where the implementation has no attempts it sees only those with
    attempt 0. pages: on decode the destination pages in order; on prefill the source pages in order (the sends follow
    separately; an implementation that must be told the total when it opens takes `len(pages)`). aux_index: the slot.
    state_indices: on decode a Python value in one of the spellings that the traits allow, or ABSENT: pass it on exactly
    as it is. On prefill it is ABSENT, always: state goes with `send`.
    """

    number: int
    attempt: int
    pages: tuple[int, ...]
    aux_index: int
    state_indices: Any = ABSENT


class View(NamedTuple):
    """What one side believes of a room, for timelines. Words of the implementation where it has them, else "".

    phase: "Transferring", "KV". met: obligations that are met. waiting: the obligation it waits for ("the state
    notification of rank 0"). belief: anything else that helps ("expects 1 chunk, has seen 1; expects state").
    """

    phase: str
    met: str = ""
    waiting: str = ""
    belief: str = ""


class Traits(NamedTuple):
    """What the implementation is and what it allows. A property that needs more is unknown, with the reason.

    prefill_spellings, decode_spellings: forms in which each side can be given state indices by its own API (its type
    annotations or documentation count, not whether it copes): `absent` no argument; `None`; `list` a list with one list
    per component ([[3, 5]], [[]], [[], []], []); `tuple` the same as tuples; `none_entry` None for a component without
    indices ([None]); `array` numpy arrays in a list; `mapping` from component name; `flat` a flat list, one component;
    `iterator` something that can be read once.
    components: the largest number of state components, 0 where it moves no state. always: whether it has components
    that are owed always (Mamba), when_indexed: and such that are owed only if indexed.
    pulls: decode reads, instead of prefill writing. room_numbers: both sides name a room by a number that the caller
    chooses and may use again. attempts: that number has a second part that tells attempts at it apart.
    decode_first: decode may be opened before prefill is, and before anything was sent.
    chunks: pages may be sent in several sends. zero_pages: a room may own no pages (all of them are on decode already).
    aborts: sides on which a caller can abort a room. deadlines: sides whose rooms end by themselves if left alone,
    within about `start`'s deadline_s. failures: `failure` tells why. counts: `held` counts. frees: `memory_free` is a
    word of its own; otherwise it is the moment at which the engine around it hands the memory out again, usually the
    end of the room. kills: `kill` and `restart` work, for these sides. lost_messages: `lose` works. held_writes:
    `hold_writes` works. injects: `inject` can say something in these channels. failing_writes: `fail_writes` works.
    simulated: `settle` is exact; no real time passes, and patience means nothing.
    """

    prefill_spellings: frozenset[Spelling]
    decode_spellings: frozenset[Spelling]
    components: int = 1
    always: bool = True
    when_indexed: bool = True
    pulls: bool = False
    room_numbers: bool = True
    attempts: bool = False
    decode_first: bool = True
    chunks: bool = True
    zero_pages: bool = False
    aborts: frozenset[Side] = frozenset()
    deadlines: frozenset[Side] = frozenset()
    failures: bool = False
    counts: bool = False
    frees: bool = False
    kills: frozenset[Side] = frozenset()
    lost_messages: bool = False
    held_writes: bool = False
    failing_writes: bool = False
    injects: frozenset[Literal["control", "notification"]] = frozenset()
    simulated: bool = False


Handle: TypeAlias = Any
"""A room on one side, as the subject likes to hold it. The suite only hands it back."""
Status: TypeAlias = Literal["open", "done", "failed"]


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
        raise NotImplementedError

    def stop(self) -> None:
        """End both sides and all that belongs to them, whatever state they are in. Called after every `start`, also
        after one that raised. Idempotent."""
        raise NotImplementedError

    # -- memory --------------------------------------------------------------------------------------------------

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """Write one item of a side's memory, as the engine around the implementation does."""
        raise NotImplementedError

    def read(self, side: Side, item: Item) -> bytes:
        """The bytes of one item of a side's memory now."""
        raise NotImplementedError

    # -- a room --------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> Handle:
        """Open a room on one side. Must not block. Raises Refused if the implementation says no at once."""
        raise NotImplementedError

    def send(self, room: Handle, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """Prefill: the next source pages are computed. Must not block.

        state_indices: a Python value in an allowed spelling, or ABSENT; indices come with the last send only. Pass it
        on exactly as it is. last: nothing follows. Raises Refused if the implementation says no at once.
        """
        raise NotImplementedError

    def poll(self, room: Handle) -> Status:
        """How the room is. Must not block, is called often, and may do the implementation's work."""
        raise NotImplementedError

    def explain(self, room: Handle) -> View:
        """What this side believes of the room, for timelines. Called when something has gone wrong."""
        return View(self.poll(room))

    def abort(self, room: Handle) -> None:
        """The caller gives the room up. Must not block."""
        raise Unsupported(f"{self.name} cannot abort")

    def failure(self, room: Handle) -> str | None:
        """Do what a caller does to learn why a room failed; the text, or None if it is told nothing (any more).

        The suite calls it again to see whether the same failure surfaces twice, or another one.
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

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """Well-formed messages of the implementation's own protocol, for the suite to change and to inject.

        The text `{room}` in ASCII, where the number of a room stands in plain text, is replaced by one.
        """
        return ()
