"""SGLang's NIXL classes as a `Subject`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ...evidence import Step
from ..subject import SIDES, Item, Request, Shape, Side, Spelling, Status, Subject, Traits, Unsupported, View
from .install import Wheel, WheelUnavailableError, prepare
from .pipe import pack_indices
from .process import Driver, DriverError, SglangRaised, SideProcess
from .rooms import FAILED, SUCCESS

# `state_indices: Optional[List]`, and per component what SGLang's own schedulers pass: a list, an array or None.
_SPELLINGS: frozenset[Spelling] = frozenset({"absent", "None", "list", "none_entry", "array"})
_DEFERRED = "def is_abort_release_safe("
_TRAITS = Traits(
    prefill_spellings=_SPELLINGS,
    decode_spellings=_SPELLINGS,
    components=3,
    zero_pages=True,
    aborts=frozenset(SIDES),
    deadlines=frozenset(SIDES),
    failures=True,
    counts=True,
    kills=frozenset(SIDES),
    lost_messages=True,
    held_writes=True,
    failing_writes=True,
    injects=frozenset({"control", "notification"}),
)


class Room(NamedTuple):
    """The suite's handle: a room on one side, in one life of that side's process."""

    side: Side
    key: int
    number: int
    process: SideProcess


class SglangSubject(Subject):
    """One prefill and one decode of one rank each, in processes of their own, over real NIXL in host memory.

    A version is downloaded and unpacked when it is first needed; so is a wheel file. Nothing of SGLang is installed.
    """

    name = "sglang"

    def __init__(self, version: str | None = None, wheel: str | None = None) -> None:
        if (version is None) == (wheel is None):
            raise ValueError("give either a version of SGLang or a wheel file")
        self._source = (version, wheel)
        self.version = version or "unknown"
        self._wheel: Wheel | WheelUnavailableError | None = None
        self._driver: Driver | None = None
        self._sides: dict[Side, SideProcess] = {}
        self._shape: dict[str, Any] = {}
        self._deadline_s: float | None = None
        self._address = ""
        self._keys = 0

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """What the wheel can do: versions with deferred release have a word on when memory is free."""
        try:
            package = self._prepared().package
        except WheelUnavailableError:
            return _TRAITS
        manager = package / "sglang/srt/disaggregation/common/conn.py"
        return _TRAITS._replace(frees=_DEFERRED in manager.read_text(encoding="utf-8"))

    def _prepared(self) -> Wheel:
        if self._wheel is None:
            try:
                self._wheel = prepare(*self._source)
                self.version = self._wheel.version
            except WheelUnavailableError as error:
                self._wheel = error  # every property asks again, and an answer costs seconds
        if isinstance(self._wheel, WheelUnavailableError):
            raise self._wheel
        return self._wheel

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, shape: Shape, *, deadline_s: float | None = None, seed: int = 0) -> None:
        """Fork both sides from the driver; the first time, load SGLang. A child that dies of it is tried once more."""
        self._shape = shape._asdict() | {"state": [part._asdict() for part in shape.state]}
        self._deadline_s = deadline_s
        try:
            try:
                self._begin()
            except DriverError:
                self.close_driver()
                self._begin()
        except (WheelUnavailableError, DriverError) as error:
            raise Unsupported(str(error)) from error

    def _begin(self) -> None:
        if self._driver is None:
            self._driver = Driver(self._prepared())
        for side in SIDES:
            self._fork(side, "")
        for side in SIDES:
            self._sides[side].wait_ready()
        self._address = self._sides["prefill"].address

    def _fork(self, side: Side, address: str) -> None:
        assert self._driver is not None
        request = {"side": side, "address": address, "shape": self._shape, "deadline_s": self._deadline_s}
        self._sides[side] = self._driver.fork(request)

    def stop(self) -> None:
        """Kill both sides; the driver stays for the next start, and ends with this object or this process."""
        for side in list(self._sides):
            self._end(side)

    def _end(self, side: Side) -> None:
        process = self._sides.pop(side, None)
        if process is not None and self._driver is not None:
            self._driver.kill(process)

    def close_driver(self) -> None:
        """End the driver too. Idempotent."""
        self.stop()
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def kill(self, side: Side) -> None:
        """SIGKILL to the side's process."""
        self._end(side)

    def restart(self, side: Side) -> None:
        """A fresh process; prefill's bootstrap server is where it was."""
        self._fork(side, self._address)
        self._sides[side].wait_ready()

    # -- memory --------------------------------------------------------------------------------------------------

    def fill(self, side: Side, item: Item, data: bytes) -> None:
        """Write one item."""
        self._item(side, item, base64.b64encode(data).decode())

    def read(self, side: Side, item: Item) -> bytes:
        """Read one item."""
        return base64.b64decode(self._item(side, item, None))

    def _item(self, side: Side, item: Item, data: str | None) -> str:
        answer: str = self._sides[side].call("item", data=data, **item._asdict())
        return answer

    # -- a room --------------------------------------------------------------------------------------------------

    def open(self, side: Side, request: Request) -> Room:
        """A sender or a receiver."""
        self._keys += 1
        process = self._sides[side]
        words: dict[str, Any] = {"number": request.number, "pages": request.pages, "aux_index": request.aux_index}
        words["address"] = self._address
        process.call("open", key=self._keys, request=words, state=pack_indices(request.state_indices))
        return Room(side, self._keys, request.number, process)

    def send(self, room: Room, pages: Sequence[int], state_indices: Any, *, last: bool) -> None:
        """The next chunk."""
        room.process.call("send", key=room.key, pages=list(pages), state=pack_indices(state_indices), last=last)

    def poll(self, room: Room) -> Status:
        """KVPoll, in the suite's words."""
        status = room.process.call("poll", key=room.key)
        return "done" if status == SUCCESS else "failed" if status == FAILED else "open"

    def explain(self, room: Room) -> View:
        """What the side's classes hold of the room."""
        try:
            return View(**room.process.call("explain", key=room.key))
        except (SglangRaised, DriverError) as error:
            return View("unknown", belief=str(error))

    def abort(self, room: Room) -> None:
        """The scheduler's answer to a request to abort."""
        room.process.call("abort", key=room.key)

    def failure(self, room: Room) -> str | None:
        """What `failure_exception` raises."""
        answer: str | None = room.process.call("failure", key=room.key)
        return answer

    def close(self, room: Room) -> None:
        """What the scheduler does with a room that has ended."""
        room.process.call("close", key=room.key)

    def memory_free(self, room: Room) -> bool:
        """Whether the scheduler would hand the room's memory out again."""
        return bool(room.process.call("free", key=room.key))

    # -- the whole -----------------------------------------------------------------------------------------------

    def held(self, side: Side) -> Mapping[str, int]:
        """Entries that name a room, per table of the manager."""
        counts: dict[str, int] = self._sides[side].call("held")
        return counts

    def ailments(self, side: Side) -> Sequence[str]:
        """Threads that have died."""
        try:
            found: list[str] = self._sides[side].call("ailments") if side in self._sides else []
        except DriverError as error:
            return [str(error)]
        return found

    def steps(self) -> Sequence[Step]:
        """Messages, writes and notifications of both sides, by the machine's monotonic clock."""
        steps = []
        for side, process in self._sides.items():
            try:
                events = process.call("steps")
            except DriverError:
                continue
            steps += [Step(at, side, kind, text, to) for at, kind, to, text in events]
        return sorted(steps, key=lambda step: step.at)

    # -- faults --------------------------------------------------------------------------------------------------

    def lose(self, side: Side, *, lost: bool) -> None:
        """ZeroMQ messages that the side sends."""
        self._sides[side].call("lose", lost=lost)

    def hold_writes(self, *, held: bool) -> None:
        """NIXL transfers of prefill are not posted until released."""
        self._sides["prefill"].call("hold", held=held)

    def fail_writes(self, *, failing: bool) -> None:
        """NIXL's `transfer` raises."""
        self._sides["prefill"].call("fail", failing=failing)

    def inject(self, side: Side, channel: Literal["control", "notification"], parts: Sequence[bytes]) -> None:
        """A ZeroMQ message to the side's socket, or a NIXL notification from another agent."""
        words = [base64.b64encode(part).decode() for part in parts]
        self._sides[side].call("inject", channel=channel, parts=words)

    def sayings(self, channel: Literal["control", "notification"]) -> Sequence[Sequence[bytes]]:
        """Control messages that the sides have sent by now; the notifications of a room of one chunk."""
        if channel == "notification":
            return [[b"{room}_kv_0_1_0"], [b"{room}_aux"], [b"{room}_state_0_0"]]
        found = []
        for process in self._sides.values():
            for frames in process.call("sayings"):
                parts = [base64.b64decode(frame) for frame in frames]
                place = 1 if len(parts) > 1 and parts[1].isdigit() else 0
                found.append([*parts[:place], b"{room}", *parts[place + 1 :]])
        return found
