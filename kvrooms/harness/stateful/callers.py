"""The two callers of one room: what they wish for, what they have done, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st

from ...engine.decode import DecodeRoom
from ...engine.prefill import PrefillRoom
from ...engine.timers import Alarm
from ...protocol.errors import InvalidArgument, RoomClosed, RoomFailed
from ...protocol.failure import Reason
from ...protocol.status import TERMINAL, Status
from ..simulate.memory import ALWAYS, Side
from ..strategies import Spelling, nothing, spellings

if TYPE_CHECKING:
    from .stage import Stage

AnyRoom: TypeAlias = DecodeRoom | PrefillRoom

Who: TypeAlias = Literal["decode", "prefill"]
WHO: tuple[Who, Who] = ("decode", "prefill")
_PLAIN = Spelling("None", lambda: None)


class Wish(NamedTuple):
    """A room: pages of the prompt, those that decode has already, indices per component, aux or not.

    early: prefill's caller declares the number of pages at once. less: what prefill's caller sends too little of.
    nothing: how decode's caller writes that there are no indices at all.
    """

    pages: int = 2
    prefix: int = 0
    counts: tuple[int, int] = (0, 0)
    aux: bool = True
    early: bool = False
    less: Literal["", "pages", "state"] = ""
    nothing: Spelling = _PLAIN


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    """Rooms that agree, and some that do not."""
    pages = draw(st.sampled_from([2, 3, 1, 0]))
    counts = st.sampled_from([0, 2, 1])
    return Wish(
        pages,
        min(pages, draw(st.sampled_from([0, 0, 1, 2, 3]))),
        draw(st.tuples(counts, counts)),
        draw(st.sampled_from([True, True, False])),
        draw(st.booleans()),
        draw(st.sampled_from(["", "", "", "pages", "state"])),
        draw(nothing(tensors=False)),
    )


class Deal:
    """One room: the handles of both sides and what their callers have done with them."""

    def __init__(self, stage: Stage, wish: Wish, number: int, attempt: int, decode: int, *, clean: bool) -> None:
        self.stage = stage
        self.number = number
        self.attempt = attempt
        self.clean = clean
        self.left_early = False
        components = stage.shape.components
        state = {name: count for name, count in zip(("swa", "index"), wish.counts, strict=True) if name in components}
        self.plan = stage.plan(wish.pages, prefix=wish.prefix, aux=wish.aux, state=state, decode=decode)
        self.sides: dict[Who, Side] = {"decode": stage.decodes[decode], "prefill": stage.prefills[0]}
        self.dead: set[Who] = set()
        self.closed: set[Who] = set()
        self._wish = wish
        self._decode = decode
        self._rooms: dict[Who, AnyRoom] = {}
        self._ends: dict[Who, tuple[Status, Any]] = {}
        self._unsent = {part: list(items) for part, items in self.plan.source.items() if part != "aux"}
        self.agrees = not self._cheat(wish.less)
        self._complete = False

    def _cheat(self, less: str) -> bool:
        """Let prefill's caller have too little to send. Whether it has."""
        if less == "pages" and self._unsent["kv"]:
            self._unsent["kv"].pop()
            return True
        for name in self.stage.shape.components if less == "state" else ():
            if name not in ALWAYS and self._unsent[name]:
                self._unsent[name].pop()
                return True
        return False

    def __str__(self) -> str:
        return f"room {self.number}.{self.attempt}"

    # -- looking ---------------------------------------------------------------------------------------------------

    def room(self, side: Who) -> AnyRoom | None:
        """The handle of a side, once it is open and as long as its process lives."""
        return self._rooms.get(side) if side not in self.dead else None

    def rooms(self) -> list[AnyRoom]:
        """The handles of both sides."""
        return [room for side in WHO if (room := self.room(side)) is not None]

    @property
    def over(self) -> bool:
        """Whether both callers are finished with it, or dead."""
        return all(side in self.closed or side in self.dead for side in WHO)

    @property
    def well(self) -> bool:
        """Whether it is over, and was DONE on both sides."""
        return self.over and [end[0] for end in self._ends.values()] == [Status.DONE, Status.DONE]

    @property
    def sends(self) -> bool:
        """Whether prefill's caller has something to do."""
        room = self.room("prefill")
        return room is not None and not self._complete and "prefill" not in self.closed and not room.poll().terminal

    def stalled(self, side: Who) -> bool:
        """Whether the engine of a side stands still."""
        return self.sides[side].name in self.stage.stalled

    # -- doing -----------------------------------------------------------------------------------------------------

    def open(self, side: Who) -> None:
        """A caller opens."""
        if side in self._rooms or side in self.dead:
            return
        note, wish = self.stage.machine.note, self._wish
        if side == "prefill":
            early = wish.early and self.agrees
            self._rooms[side] = self.stage.offer(self.plan, self.number, attempt=self.attempt, early=early)
            note("prefill caller", "call", f"open {self}" + (f", {wish.pages} pages" if early else ""), "prefill")
            return
        state = self.plan.state(self.plan.target)
        given = {"state_indices": state} if any(state.values()) else wish.nothing.argument()
        options = {"attempt": self.attempt, "state_indices": None, **given}
        self._rooms[side] = self.stage.receive(self.plan, self.number, decode=self._decode, **options)
        spelled = state if any(state.values()) else wish.nothing.text
        words = f"open {self}: pages {self.plan.target['kv']} after {wish.prefix}, state {spelled}"
        note("decode caller", "call", words, self.sides[side].name)

    def send(self, data: st.DataObject) -> None:
        """Send some of what is left, in any spelling; once nothing is left, maybe say that it was the last."""
        some: dict[str, list[int]] = {}
        for part, items in self._unsent.items():
            count = data.draw(st.integers(0, len(items)), label=part)
            some[part], items[:] = items[:count], items[count:]
        last = not any(self._unsent.values()) and data.draw(st.booleans(), label="last")
        pages = some.pop("kv")
        spelling = data.draw(spellings(some, tensors=False), label="state_indices")
        room: Any = self._rooms["prefill"]
        note = self.stage.machine.note
        note("prefill caller", "call", f"{self}: send({pages}, {spelling.text}, last={last})", "prefill")
        room.send(pages, **spelling.argument(), last=last)
        self._complete = last

    def send_the_rest(self) -> None:
        """Send all that is left, and say that it was the last."""
        rest = {part: list(items) for part, items in self._unsent.items()}
        for items in self._unsent.values():
            items.clear()
        self._send(rest.pop("kv"), rest, last=True)

    def send_piecewise(self) -> None:
        """Send every page and every index by itself; the last of them is the last send."""
        while self.sends:
            part = next((part for part, items in self._unsent.items() if items), "kv")
            some = self._unsent[part][:1]
            del self._unsent[part][:1]
            self._send(
                some if part == "kv" else [], {} if part == "kv" else {part: some}, not any(self._unsent.values())
            )

    def _send(self, pages: list[int], state: dict[str, list[int]], last: bool) -> None:
        room: Any = self._rooms["prefill"]
        note = self.stage.machine.note
        note("prefill caller", "call", f"{self}: send({pages}, {state or None}, last={last})", "prefill")
        room.send(pages, state or None, last=last)
        self._complete = last

    def abort(self, side: Who) -> None:
        """A caller aborts."""
        self.left_early = self.left_early or not self._rooms[side].poll().terminal
        self.stage.machine.note(f"{side} caller", "call", f"abort {self}", self.sides[side].name)
        self._rooms[side].abort("changed my mind")

    def close(self, side: Who) -> None:
        """A caller is finished."""
        self.check_final()
        self.left_early = self.left_early or not self._rooms[side].poll().terminal
        self.stage.machine.note(f"{side} caller", "call", f"close {self}", self.sides[side].name)
        self._rooms[side].close()
        self.closed.add(side)

    def died(self, side: Side) -> None:
        """The process of a side is gone, and its caller with it."""
        self.dead |= {who for who, mine in self.sides.items() if mine is side}

    def finish(self) -> None:
        """Both callers do what they have not done yet."""
        for side in WHO:
            if side not in self.closed:
                self.open(side)
        if self.sends:
            self.send_the_rest()

    def leave(self) -> None:
        """A caller who waits for another who has left, or was never there, gives up; an orchestrator would tell it."""
        rooms = self.rooms()
        if len(rooms) == 2 and not any(room.poll().terminal for room in rooms):
            return
        for side in WHO:
            room = self.room(side)
            if room is not None and not room.poll().terminal and room.phase == "METADATA":
                self.abort(side)

    # -- judging ---------------------------------------------------------------------------------------------------

    def check_final(self) -> None:
        """What has ended stays as it ended."""
        check = self.stage.machine.check
        for side, room in self._rooms.items():
            now = (room.poll(), room.failure)
            if side in self._ends:
                check("S2", now == self._ends[side], f"{self} on {side} was {self._ends[side]}, and is {now}")
            elif now[0].terminal:
                self._ends[side] = now
                self.stage.machine.note(self.sides[side].name, "state", f"{self} is {now[0].name}: {now[1] or ''}")

    def check_deadlines(self) -> None:
        """A room that goes on has its cap and a phase deadline. No caller can see that, so the timer table is read."""
        for side in WHO:
            room = self.room(side)
            core = self.sides[side].engine._core  # noqa: SLF001
            if room is None or room.record is None or room.record not in core.open_records():
                continue
            phase, armed = room.record.room_phase, core._timers._entries  # noqa: SLF001
            for alarm in (Alarm.CAP, Alarm.PHASE) if phase not in TERMINAL else ():
                held = (room.record, alarm) in armed
                self.stage.machine.check("L1", held, f"{self} on {side} is in {phase.name}: {alarm.value} is not armed")

    def check_outcome(self, failures: int) -> None:
        """What must have come of it, if nothing happened to it."""
        ends = {side: self._ends.get(side) for side in WHO}
        if not self.clean or self.left_early or self.dead or None in ends.values():
            return
        check = self.stage.machine.check
        others = failures > sum(end is not None and end[0] is Status.FAILED for end in ends.values())
        for side, end in ends.items():
            assert end is not None
            (status, failure), words = end, f"{self} {'agrees' if self.agrees else 'does not agree'}, and on {side} is"
            if self.agrees:
                check("L4" if others else "L2", status is Status.DONE, f"{words} {status.name}: {failure}")
            elif not self._complete_without_the_last_send(side, status):
                mismatch = failure is not None and failure.reason is Reason.MISMATCH
                check("A1", mismatch, f"{words} {status.name}: {failure}")

    def _complete_without_the_last_send(self, side: Who, status: Status) -> bool:
        """Whether decode was DONE before the last send, which declares the totals: only aux has to wait for that."""
        return side == "decode" and status is Status.DONE and not self.plan.target["aux"]

    def misuse(self, how: int) -> tuple[str, str] | None:
        """Do what no caller may. The property and the words if it was not refused."""
        decode, prefill = self.room("decode"), self.room("prefill")
        taker, url = self.sides["decode"].engine, self.stage.prefill.bootstrap
        pages = self.plan.target["kv"]
        if how == 0 and decode is not None and "decode" not in self.closed:
            return self._refused("S4", "a second room of the same key was opened", lambda: taker.open(
                self.number, attempt=self.attempt, bootstrap=url, skip_state=True))  # fmt: skip
        if how == 1 and decode is not None and not decode.memory_free and pages:
            return self._refused("S3", "pages that a room still has were given to another", lambda: taker.open(
                99, bootstrap=url, pages=pages[:1], skip_state=True))  # fmt: skip
        # A room that owes nothing is DONE before its sends, and takes them.
        if how == 2 and isinstance(prefill, PrefillRoom) and (self._complete or prefill.poll() is Status.FAILED):
            return self._refused("S2", "something was sent after the end", lambda: prefill.send([0]))
        if how == 3 and "decode" not in self.dead:
            return self._refused("S5", "a page that is not there was taken", lambda: taker.open(
                99, bootstrap=url, pages=[9999], skip_state=True))  # fmt: skip
        return None

    def _refused(self, property_id: str, words: str, call: Callable[[], object]) -> tuple[str, str] | None:
        self.stage.machine.premise(property_id)
        try:
            call()
        except (InvalidArgument, RoomClosed):
            return None
        return property_id, words

    def raised(self, side: Who) -> RoomFailed | None:
        """Let a failure be raised."""
        self.closed.add(side)
        try:
            self._rooms[side].failure_exception()
        except RoomFailed as failed:
            return failed
        return None

    def raised_again(self, side: Who) -> bool:
        """Whether a failure is raised a second time."""
        try:
            self._rooms[side].failure_exception()
        except RoomClosed:
            return False
        except RoomFailed:
            return True
        return True
