"""The judge of a simulated run of several ranks: what each rank's callers are told, held against what went wrong.

It shares no code with engines and groups; bytes are compared with the oracle of the shapes. Of a room it holds:

- DONE on a decode rank means that every byte of that rank is in place (S1), and memory that came back is neither
  written nor read any more (S3).
- The ranks of a group are told one outcome, and DONE only if it is DONE on each (A1). A rank that was told nothing when
  its leader was lost has FAILED, whatever others were told; after that nothing becomes DONE.
- Once the room has ended on all ranks, or failed on one, each rank is told without a timer (L2, L3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ...engine.group import RoomGroup
from ...protocol.failure import Failure
from ...protocol.status import Status
from ...shapes import oracle
from ...transport.ports import CloseCause
from ..channel import SimChannel
from ..evidence import Counterexample
from ..groups import gather
from ..ports import SimTransport, Write
from ..ranks import Member, Ranks
from .judge import FOUND_MAX, obligations
from .lives import End, Trouble
from .rank_lives import Seat, Shared, Told
from .rank_swarm import RankSwarm
from .record import Record

_SPENT = 0xEE
_LEADER_LOST = "the leader is lost"


class Process(NamedTuple):
    """One rank's process: its engine's name in the world, and its group's ("" if it has none)."""

    engine: str
    group: str


class RankJudge(Ranks):
    """All ranks of a run, its groups, and what was found out about them."""

    def __init__(self, seed: int, swarm: RankSwarm, record: Record | None = None) -> None:
        self.seed = seed
        self.swarm = swarm
        self.record = record
        self.found: list[Counterexample] = []
        self.examples: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.timers: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.lives: list[Shared] = []
        self.groups: dict[str, list[RoomGroup]] = {}
        self.dead: dict[str, set[int]] = {"decode": set(), "prefill": set()}
        self.ended: set[int] = set()
        """The prefill ranks of which a process has ended, whoever is in its place now."""
        self.worst = self.worst_of_groups = Trouble.NONE
        super().__init__(swarm.case, seed, settings=swarm.settings, start=False)
        for side in swarm.grouped:
            size = len(self.decodes if side == "decode" else self.prefills)
            self.groups[side] = gather(self.world, size, swarm.settings, f"{side} group")
        for member in self.members():
            self.start(member)

    def group_of(self, member: Member) -> RoomGroup | None:
        """See `Ranks.group_of`."""
        side, _, rank = member.key
        return self.groups[side][rank] if side in self.groups else None

    def process_of(self, member: Member) -> Process:
        """What runs in one process with an engine."""
        side, _, rank = member.key
        return Process(member.name, f"{side} group {rank}" if side in self.groups else "")

    def living(self, side: str) -> Iterator[Member]:
        """The ranks of a side whose processes live."""
        members = self.decodes.values() if side == "decode" else self.prefills.values()
        return (member for member in members if member.key[2] not in self.dead[side])

    # -- complaints ------------------------------------------------------------------------------------------------

    def accuse(self, property_id: str, words: str, *lives: Shared) -> None:
        """A property does not hold; what follows from it for the same room is not told again."""
        known = any(life.broken for life in lives)
        for life in lives:
            life.broken = True
        if known or len(self.found) >= FOUND_MAX:
            return
        inputs = lives[0].words() if lives else {}
        self.found.append(
            Counterexample(
                property_id, words, f"simulation seed {self.seed}", {**inputs, "groups": ", ".join(self.groups)}
            )
        )
        self.note("wire", "fault", f"{property_id} does not hold: {words}", *lives)

    def note(self, who: str, kind: str, text: str, *lives: Shared, to: str = "") -> None:
        """A line of the timeline, if there is one."""
        if self.record is not None:
            self.record.add(self.world.now, who, kind, text, to, lives)

    def touch(self, trouble: Trouble, why: str, *lives: Shared) -> None:
        """Something goes wrong for some rooms; for none: for all that are not over, and if it lasts those to come."""
        for life in lives or [one for one in self.lives if not one.over]:
            life.touch(trouble, why)
        if not lives and trouble > Trouble.ANNOUNCED:
            self.worst = max(self.worst, trouble)

    # -- what is seen ----------------------------------------------------------------------------------------------

    def spoiled(self, how: str, channel: SimChannel, connection: int, frame: bytes) -> None:
        """See `Witness.spoiled`."""
        self._meddled(f"frame {how}", channel.name, Trouble.SILENT)

    def broken(self, how: str, channel: SimChannel, connection: int) -> None:
        """See `Witness.broken`."""
        self._meddled(f"connection {how}", channel.name, Trouble.RECONNECTING if how == "cut" else Trouble.SILENT)

    def over(self, channel: SimChannel, connection: int, cause: CloseCause) -> None:
        """See `Witness.over`."""
        self.note(channel.name, "message", f"connection {connection} is over: {cause.value}")

    def _meddled(self, what: str, name: str, trouble: Trouble) -> None:
        of_group = " group " in name
        self.injected[f"group's {what}" if of_group else what] += 1
        self.note(name, "fault", what)
        if of_group:
            self.worst_of_groups = max(self.worst_of_groups, trouble)
        self.touch(trouble, f"{name}: {what}")

    def engine(self, what: str, name: str) -> None:
        """See `Witness.engine`."""
        self.note(name, "fault", what)
        of_group = " group " in name
        if what == "woken":
            return
        if not of_group:
            self.injected[f"engine {what}"] += 1
        elif what == "killed":
            self.injected["group's rank killed"] += 1
        if of_group and what != "killed":
            self.worst_of_groups = Trouble.SILENT
        self.touch(Trouble.SILENT, f"{name}: {what}")

    def refused(self, transport: SimTransport, agent: str, source: int) -> None:
        """See `Witness.refused`."""
        self.injected["post failed"] += 1
        self.touch(Trouble.ANNOUNCED, f"{transport.name}: a write cannot be posted")

    def disturbs(self, how: str, write: Write) -> None:
        """See `Witness.disturbs`."""
        self.injected[f"write {how}"] += 1
        self.touch(Trouble.SILENT, f"{write.source.name}: a write is {how}")

    def posted(self, write: Write) -> None:
        """See `Witness.posted`: a run is long, and its bytes are compared instead."""

    def time(self, now: float) -> None:
        """See `Witness.time`. Where time passes although something could happen, all is slower than any timer."""
        if self.world.busy and self.world.faults.delay:
            self.injected["delay"] += 1
            self.worst_of_groups = Trouble.SILENT
            self.touch(Trouble.SILENT, "time passes, and something could happen")

    # -- rooms -----------------------------------------------------------------------------------------------------

    def watch(self, life: Shared, seat: Seat) -> None:
        """A rank has opened the room."""
        room, lock = seat.room, seat.member.engine.lock
        room._end.call(lock, lambda: self._end(life, seat))  # noqa: SLF001 - where `wait` waits, too
        room._free.call(lock, lambda: self._freed(life, seat))  # noqa: SLF001
        if room._decided is not None:  # noqa: SLF001
            room._decided.call(lock, lambda: self._told(life, seat))  # noqa: SLF001

    def _end(self, life: Shared, seat: Seat) -> None:
        status, failure = seat.room.poll(), seat.room.failure
        seat.end = End(status, failure)
        self.note(seat.name, "state", f"{status.name} {failure or ''}", life)
        self.outcomes[f"{seat.side} {failure.reason.value if failure else status.name}"] += 1
        if self.early:
            self.accuse("S1", self.early.pop(), life)
            self.early.clear()
        elif status is Status.DONE:
            self.examples["S1"] += seat.side == "decode"
        if failure is not None and failure.reason.value.startswith("deadline") and failure.origin == "local":
            self._timer(seat, failure)

    def _timer(self, seat: Seat, failure: Failure) -> None:
        self.timers[f"{seat.side} of several ranks {failure.reason.value}: {obligations(failure) or 'a report'}"] += 1

    def _told(self, life: Shared, seat: Seat) -> None:
        """A rank's caller learns the outcome."""
        status, failure = seat.room.outcome, seat.room.outcome_failure
        seat.told = Told(status, failure, self.world.now)
        self.outcomes[f"{seat.side} group {status.name}"] += 1
        self.note(f"{seat.side} group {seat.rank}", "state", f"the outcome is {status.name} {failure or ''}", life)
        if status is Status.DONE:
            ends = [one.end.status if one.end else None for one in life.of(seat.side)]
            if ends != [Status.DONE] * len(ends):
                self.accuse("A1", f"{seat.name} is told that {life} is DONE, and the ranks' rooms are {ends}", life)
        elif failure is None or status is not Status.FAILED:
            self.accuse("C2", f"{seat.name} is told {status.name} of {life}, because of {failure}", life)

    def agreed(self, life: Shared) -> None:
        """All is over for a room: the ranks of each group were told the same."""
        for side in self.groups:
            told = {one.rank: one.told for one in life.of(side) if one.told is not None}
            self.examples["A1"] += bool(told)
            done = {rank: one.at for rank, one in told.items() if one.status is Status.DONE}
            failed = {rank: one.at for rank, one in told.items() if rank not in done}
            if not done or not failed:
                continue
            apart = {rank for rank in failed if rank in self.dead[side] or self._lost_leader(side, rank)}
            if set(failed) - apart:
                words = f"{life} is DONE for ranks {sorted(done)} of {side} and FAILED for {sorted(failed)}"
                self.accuse("A1", words, life)
            elif any(min(done.values()) > failed[rank] for rank in apart - self.dead[side]):
                self.accuse("A1", f"{side} ranks {sorted(apart)} gave up {life}, and then it was DONE for others", life)

    def is_lost(self, side: str) -> bool:
        """Whether a group has lost a rank for good, so that no room of it becomes DONE any more."""
        return bool(self.dead[side]) or any(self._lost_leader(side, rank) for rank in range(len(self.groups[side])))

    def _lost_leader(self, side: str, rank: int) -> bool:
        """Whether a rank may decide alone: its leader is dead, or something silent stood between the two."""
        excuse = 0 in self.dead[side] or self.worst_of_groups >= Trouble.SILENT
        return excuse and any(one.startswith(_LEADER_LOST) for one in self.groups[side][rank].problems)

    def absorbs(self, life: Shared, seat: Seat) -> None:
        """What a room was when it ended is what it is when it is closed."""
        room = seat.room
        if seat.end is not None:
            self.examples["S2"] += 1
            if (room.poll(), room.failure) != seat.end:
                self.accuse("S2", f"{seat.name} of {life} ended as {seat.end}, and now is {room.failure}", life)
        if seat.told is not None and (room.outcome, room.outcome_failure) != seat.told[:2]:
            self.accuse("S2", f"{seat.name} of {life} was told {seat.told}, and now {room.outcome}", life)

    # -- memory ----------------------------------------------------------------------------------------------------

    def _freed(self, life: Shared, seat: Seat) -> None:
        """Nobody writes a rank's pages any more, and nobody reads them: it makes them useless for this room."""
        self.examples["S3"] += 1
        seat.freed = True
        self.note(seat.name, "state", "memory free", life)
        if not seat.room.poll().terminal:
            self.accuse("S3", f"memory of {seat.name} of {life} is said to be free, and it goes on", life)
        receives, pool = seat.side == "decode", seat.member.pool
        spots = [(pool[at].ctypes.data + first, size) for at, first, size in self._spots(life, seat)]
        for write in self.world.writes:
            for source, length, target in write.under_way(self.world) if receives or write.error is None else ():
                at = target if receives else source
                if any(first < at + length and at < first + size for first, size in spots):
                    words = f"memory of {seat.name} of {life} is said to be free, and a write of it is in flight"
                    self.accuse("S3", words, life)
        for at, first, size in self._spots(life, seat):
            pool[at][first : first + size] = seat.member.wanted[at][first : first + size] if receives else _SPENT

    def _spots(self, life: Shared, seat: Seat) -> Iterator[tuple[int, int, int]]:
        """The buffer, offset and length of all that a rank has of a room."""
        room, instance = self.rooms[life.number], self.prefill[0]
        if seat.side == "decode":
            spots = oracle.due_spots(oracle.Pair(instance, self.decode), seat.rank, room)
        else:
            spots = oracle.source_spots(instance, seat.rank, room)
        return ((spot.buffer, spot.offset, spot.length) for spot in spots)

    def paint(self, life: Shared) -> None:
        """Prefill computes the room's pages (again)."""
        for seat in life.of("prefill"):
            oracle.paint(self.prefill[0], seat.rank, seat.member.pool, self.rooms[life.number])

    def untouched(self) -> None:
        """Every byte of decode's pools that no room has is what it was in the beginning."""
        spoilt = {seat.name for life in self.lives for seat in life.seats if seat.gone}
        for member in self.living("decode"):
            if member.name not in spoilt:
                for at, (found, wanted) in enumerate(zip(member.pool, member.wanted, strict=True)):
                    if (found != wanted).any():
                        self.accuse("S3", f"{member.name}, buffer {at}: changed after it was free")
