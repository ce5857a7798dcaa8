"""Probes of staging slots: ranks whose short runs are gathered and scattered, honest ones and one that lies.

Whoever has said that a slot is empty has nothing in it any more: the stage writes over it at that moment.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from ...engine.settings import EngineSettings
from ...protocol import notify, wire
from ...protocol.errors import KvroomsError, WireError
from ...protocol.identity import agent_name
from ...protocol.notify import InSlot, Part, PartKind
from ...protocol.staging import Slots
from ...protocol.status import Status
from ...shapes.build import Model, Side
from ...shapes.table import Case
from ...transport.ports import Arrival, CloseCause
from ..channel import SimChannel
from ..faults import Faults
from ..ports import Write
from .probe import Play, probe
from .probes_shapes import FOUR, ONE, TWO, shape
from .stage import Aside, Broken
from .stage_ranks import RankStage

_MODEL = Model(attention=(0, 1), kv_heads=4, head_bytes=8)
TO_ONE = shape(_MODEL, TWO, ONE, (16, 18))
"""Scattered on decode, from 32 bytes of each of four buffers a page."""
TO_SHORTER = shape(_MODEL, TWO, Side(page_size=1), (2, 2))
"""A room is one page of prefill, and two of decode."""
TO_TWO = shape(_MODEL, ONE, TWO, (16, 18), chunk=9)
"""Gathered on prefill."""
BY_LAYER = shape(_MODEL, TWO, ONE, (16, 18), layerwise=True)
TO_FOUR = shape(_MODEL, ONE, FOUR, (32, 34), layerwise=True, chunk=17)
"""Gathered on prefill, for more ranks than it may have slots."""
_THREE = shape(Model(attention=(0, 1, 2), kv_heads=4, head_bytes=8), TWO, ONE, (16, 18), layerwise=True, chunk=9)
_SLOT = 64
_MANY = 1 << 26
_GARBAGE = 0xEE
_KINDS = (
    (TO_ONE, 32, 2 * _SLOT),
    (TO_ONE, 256, _MANY),
    (TO_TWO, 64, _MANY),
    (TO_TWO, 1 << 20, 2 * _SLOT),
    (BY_LAYER, 64, _MANY),
    (BY_LAYER, 1 << 20, 2 * _SLOT),
    (TO_FOUR, 64, 2 * _SLOT),
)
"""Shapes, how long a piece is, and how long all slots are."""


class Staging(RankStage):
    """Ranks with staging slots, and a judge of what is written to them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.announced: dict[str, Slots] = {}
        self.lent: dict[tuple[str, int], str] = {}
        self.grants: dict[str, wire.Metadata] = {}
        """The latest METADATA, by the agent that it went to."""
        super().__init__(*arguments, **options)

    def sent(self, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.sent`."""
        super().sent(channel, connection, frame)
        try:
            received = wire.decode(frame)
        except WireError:
            return
        match received.body:
            case wire.Hello(staging=Slots() as slots):
                self.announced[channel.name] = slots
            case wire.Metadata() as body:
                self.grants[agent_name(received.target)] = body
                for slot in np.frombuffer(body.slots, dtype="<i4").tolist():
                    self._lending(channel.name, slot)
                    self.lent[channel.name, slot] = agent_name(received.target)
            case wire.Emptied(_, emptied):
                self._overwrite(channel.name, emptied)

    def _lending(self, name: str, slot: int) -> None:
        for write in self.world.writes:
            if write.target.name == name and any(self._slot_at(name, there) == slot for _, _, there in write.rows):
                raise Broken(f"{name} lends slot {slot} while a write to it is under way")

    def _overwrite(self, name: str, emptied: tuple[int, ...]) -> None:
        slots, held = self.announced[name], self.decodes[0].engine.tables()["staged"]
        self.note(name, "message", f"EMPTIED {emptied}, of {held} slots that are lent", "wire")
        for slot in emptied:
            if (name, slot) in self.lent:
                ctypes.memset(slots.address + slot * slots.length, _GARBAGE, _SLOT)

    def _slot_at(self, name: str, address: int) -> int | None:
        slots = self.announced.get(name)
        if slots is None or not slots.address <= address < slots.address + slots.count * slots.length:
            return None
        return (address - slots.address) // slots.length

    def posted(self, write: Write) -> None:
        """See `Witness.posted`."""
        super().posted(write)
        name = write.target.name
        for here, length, there in write.rows:
            slot, last = self._slot_at(name, there), self._slot_at(name, there + length - 1)
            if slot != last:
                raise Broken(f"{length} bytes at {there} go beyond slot {slot} of {name}")
            if slot is not None and self.lent.get((name, slot)) != write.source.agent:
                raise Broken(f"{write.source.name} writes to slot {slot} of {name}, which was not lent to it")
            self._reads(write, here, length)

    def _reads(self, write: Write, here: int, length: int) -> None:
        """What another write still reads of a sender's slots is not filled anew."""
        pools = [member.pool for member in self.members() if member.transport is write.source]
        if any(array.ctypes.data <= here < array.ctypes.data + len(array) for pool in pools for array in pool):
            return
        for other in self.world.writes:
            if other is write or other.source is not write.source:
                continue
            if any(at < here + length and here < at + size for at, size, _ in other.under_way(self.world)):
                raise Broken(f"{write.source.name} fills a slot of its own that a write is still read from")

    def slots_in_use(self) -> int:
        """Of all engines that live."""
        alive = [member for member in self.members() if not member.transport.dead]  # type: ignore[union-attr]
        return sum(member.engine.tables()["staged"] for member in alive)

    def pieces(self, how: str) -> int:
        """How many pieces were "gathered" or "scattered"."""
        return sum(member.engine.counters().get(f"pieces {how}", 0) for member in self.members())


def staging(play: Play, case: Case, *, seed: int = 0, start: bool = True, **settings: Any) -> Staging:
    """A stage for a probe, the same for the same play."""
    faults = settings.pop("faults", None)
    stage = Staging(case, play.seed * 1000 + seed, settings=EngineSettings(**settings), start=start)
    stage.world.faults = faults or stage.world.faults
    play.scenes += 1
    play.stage = stage
    return stage


def _played(play: Play, *, aside: bool) -> Iterator[Staging]:
    """Every shape, with its rooms at their end."""
    for number, (case, size, slots) in enumerate(_KINDS):
        stage = staging(play, case, seed=number, piece_bytes=size, staging_bytes=slots)
        try:
            stage.ended(aside=aside)
        except Aside:
            continue
        yield stage


@probe("L2", seeds=1)
def rooms_through_slots_end_by_themselves(play: Play) -> None:
    """Every rank is DONE without a timer, however few slots there are."""
    for stage in _played(play, aside=False):
        if stage.failures():
            raise Broken(stage.failures()[0])


@probe("S1", seeds=2)
def what_went_through_slots_is_in_place(play: Play) -> None:
    """At the moment at which a decode rank is DONE, its every byte is what the oracle says."""
    for stage in _played(play, aside=True):
        if stage.early:
            raise Broken(stage.early[0])


@probe("L2", seeds=1)
def slots_of_other_lengths_are_of_use(play: Play) -> None:
    """A sender whose slots are shorter than those of the receiver."""
    for case in (TO_ONE, BY_LAYER):
        stage = staging(play, case, start=False)
        for member in stage.members():
            stage.settings = EngineSettings(staging_bytes=2 * _SLOT if member.key[0] == "prefill" else _MANY)
            stage.start(member)
        try:
            stage.ended(aside=False)
        except ValueError as error:
            raise Broken(f"an engine ends of what it is asked for: {error}") from None
        if stage.failures():
            raise Broken(stage.failures()[0])


@probe("S1", seeds=2)
def layers_that_lie_apart_are_in_place(play: Play) -> None:
    """The first and the last layer are sent together, then the one between them."""
    stage = staging(play, _THREE)
    stage.receive(0, 0)
    for _, rank in stage.prefills:
        stage.offer(0, rank)
        first, _, last = stage.sends(0, rank)
        for call, layers in ((first, [0, 2]), (last, [1])):
            stage.prefills[0, rank].rooms[0].send(**{**call, "layers": layers})
    stage.settle()
    if stage.early:
        raise Broken(stage.early[0])


def _held(play: Play, case: Case, **settings: Any) -> Staging:
    """A room whose first writes are posted and do not land."""
    stage = staging(play, case, piece_bytes=128, **settings)
    stage.world.writes_held = True
    stage.call(0)
    stage.settle()
    return stage


@probe("S3", seeds=2)
def slots_that_may_still_be_written_to_are_lent_to_nobody(play: Play) -> None:
    """A room fails on decode, or its connection is cut, with a write to its slot under way; then comes another one."""
    for how in ("aborted", "cut off"):
        stage = _held(play, TO_ONE)
        decode = stage.decodes[0]
        if how == "aborted":
            decode.rooms[0].abort("its caller has changed its mind")
        else:
            decode.engine._core.channel.cut(CloseCause.TIMED_OUT)  # noqa: SLF001
        stage.settle()
        stage.pass_time(2.0)
        stage.call(1)  # `Staging.sent` looks at what it is lent
        stage.pass_time(2.0)


@probe("S3", seeds=2)
def slots_that_are_still_read_are_not_filled(play: Play) -> None:
    """`Staging.posted` looks at what is gathered while writes are under way."""
    for case in (TO_TWO, TO_ONE):
        stage = _held(play, case)
        stage.world.writes_held = False
        stage.ended(*[number for number in stage.rooms if number], aside=True)  # the first one is called for already


_Lie = Callable[[wire.Body], wire.Body]


def _told(play: Play, lie: _Lie, case: Case = TO_ONE) -> Staging:
    """Decode rank 0 says something else; both rooms are called for."""
    stage = staging(play, case, start=False, piece_bytes=64)
    stage.lies["decode", 0, 0] = lie
    for member in stage.members():
        stage.start(member)
    try:
        stage.call()
        stage.settle()
    except (KvroomsError, ArithmeticError, LookupError, ValueError) as error:
        raise Broken(f"the engine ends of what a peer says: {type(error).__name__}: {error}") from None
    return stage


@probe("S5", seeds=1)
def slots_that_a_peer_invents_are_not_written_to(play: Play) -> None:
    """Slots without an address, too short for what is to lie in them, or that were not announced."""
    changes: list[dict[str, int]] = [{"address": 2**64 - _SLOT}, {"length": 8}, {"address": 2**64 - 1, "length": 2**40}]
    for change in changes:

        def hello(body: wire.Body, change: dict[str, int] = change) -> wire.Body:
            if not isinstance(body, wire.Hello) or body.staging is None:
                return body
            return replace(body, staging=replace(body.staging, **change))

        _told(play, hello)
    for slots in ((1000,), (-1,), (3, 3)):

        def metadata(body: wire.Body, slots: tuple[int, ...] = slots) -> wire.Body:
            if not isinstance(body, wire.Metadata):
                return body
            return replace(body, slots=np.array(slots, dtype="<i4").tobytes())

        stage = _told(play, metadata)
        if any(room.poll() is Status.DONE for room in stage.decodes[0].rooms.values()):
            raise Broken(f"a grant with slots {slots} is taken")


@probe("S5", seeds=1)
def positions_without_a_page_are_not_written(play: Play) -> None:
    """A METADATA whose first page lies in the one that it asks for, and that names none; with a slot or without."""
    for slots in (b"", b"\0\0\0\0"):

        def metadata(body: wire.Body, slots: bytes = slots) -> wire.Body:
            return replace(body, first_page=1, pages=b"", slots=slots) if isinstance(body, wire.Metadata) else body

        stage = _told(play, metadata, TO_SHORTER)
        if any(room.poll() is not Status.FAILED for room in stage.decodes[0].rooms.values()):
            raise Broken("a grant is taken that names no page for a position")


def say_emptied(stage: Staging, grant: int, slots: tuple[int, ...]) -> None:
    """Decode rank 0 says to prefill rank 0 that slots of a grant are empty, whatever is in them."""
    core = stage.decodes[0].engine._core  # noqa: SLF001
    agent = stage.prefills[0, 0].transport.agent  # type: ignore[union-attr]
    link = next(peer.link for peer in core._peers.values() if peer.agent == agent)  # noqa: SLF001
    core._send(link, wire.Emptied(grant, slots))  # noqa: SLF001
    core.channel.flush()
    try:
        stage.settle()
    except (KvroomsError, ArithmeticError, LookupError, ValueError) as error:
        raise Broken(f"the engine ends of what a peer says: {type(error).__name__}: {error}") from None


def granted(stage: Staging) -> tuple[wire.Metadata, tuple[int, ...]]:
    """What was asked of prefill rank 0, and the slots that it was lent."""
    body = stage.grants[stage.prefills[0, 0].transport.agent]  # type: ignore[union-attr]
    return body, tuple(np.frombuffer(body.slots, dtype="<i4").tolist())


@probe("S5", seeds=1)
def slots_that_were_not_filled_are_not_empty(play: Play) -> None:
    """EMPTIED for slots that were not lent to that grant: another prefill rank's, nobody's, and what is none."""
    for slot in (9, 1000, 2**19):
        stage = _held(play, TO_ONE)
        grant, lent = granted(stage)
        for one in {slot, *(s for _, s in stage.lent if s not in lent)}:
            say_emptied(stage, grant.grant, (one,))


def arrive(stage: Staging, part: Part, staged: InSlot) -> None:
    """A notification of prefill rank 0 at decode rank 0, without a write."""
    grant, _ = granted(stage)
    prefill, decode = stage.prefills[0, 0].transport, stage.decodes[0].transport
    assert prefill is not None
    assert decode is not None
    message = notify.encode(grant.grant, grant.token, (part,), (), staged)
    decode._arrive(Arrival(prefill.agent, message))  # noqa: SLF001
    try:
        stage.settle()
    except (KvroomsError, ArithmeticError, LookupError, ValueError) as error:
        raise Broken(f"the engine ends of what a peer says: {type(error).__name__}: {error}") from None


@probe("S5", seeds=1)
def what_lies_in_no_slot_has_not_landed(play: Play) -> None:
    """A notification that names a slot which was not lent to its grant, or more than a slot can hold."""
    for slots in (_MANY, 2 * _SLOT):
        stage = _held(play, TO_ONE, staging_bytes=slots)
        _, lent = granted(stage)
        slot = lent[0] if slots == 2 * _SLOT else 9
        arrive(stage, Part(PartKind.KV, 0, 0, 8), InSlot(slot, 0, 4))
        if stage.decodes[0].rooms[0].poll() is not Status.FAILED:
            raise Broken(f"8 pages count as landed from slot {slot}; {lent} were lent")


@probe("C1", seeds=2)
def slots_come_back(play: Play) -> None:
    """However a room ends: none is in use once all have ended and nothing is under way."""
    faults = Faults(at_once=0.7)
    for how in ("done", "at once", "aborted", "refused", "broken"):
        for case in (TO_ONE, TO_TWO):
            stage = staging(play, case, piece_bytes=64, faults=faults if how == "at once" else None)
            prefill = [member.transport for member in stage.prefills.values()]
            if how == "refused":
                for one in prefill:
                    one.post_error = "no more descriptors"  # type: ignore[union-attr]
            stage.world.writes_held = how in ("aborted", "broken")
            stage.call()
            stage.settle()
            if how == "aborted":
                for room in stage.decodes[0].rooms.values():
                    room.abort("its caller has changed its mind")
            for write in list(stage.world.writes) if how == "broken" else ():
                write.source.fail(write, "broken")
            stage.world.writes_held = False
            stage.settle()
            members = stage.prefills.values() if how == "broken" else stage.members()  # decode waits for a proof
            used = sum(member.engine.tables()["staged"] for member in members)
            if used:
                raise Broken(f"{used} slots stay in use after rooms that are {how}")
