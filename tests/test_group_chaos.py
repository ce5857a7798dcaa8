"""Groups of ranks in worlds where connections break, processes stand still and die, and frames are damaged.

The judge knows what each rank reported and what it was told, and nothing of the product.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import Mutant, dies, named

from kvrooms.engine import group_hub, group_leader, group_member
from kvrooms.engine.group import RoomGroup
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.faults import Faults
from kvrooms.harness.groups import gather
from kvrooms.harness.world import World
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Status
from kvrooms.statemachine import group as tables
from kvrooms.transport.ports import CloseCause

SETTINGS = EngineSettings(decision_timeout_s=40.0, parked_total=20, parked_per_peer=20)
BAD = Failure(Reason.SEND_ERROR, "it broke")
FENCED = 756
"""A leader that stands still for so long that a rank gives it up, with reports in its sockets."""
CAUSES = (CloseCause.TIMED_OUT, CloseCause.RESET, CloseCause.PEER_CLOSED)


class Caller:
    """What one rank's caller does and sees: rooms are opened, end here, end for all."""

    def __init__(self, rank: int, group: RoomGroup, world: World) -> None:
        self.rank, self.group, self.world = rank, group, world
        self.when: dict[RoomKey, float] = {}
        self.open: list[RoomKey] = []
        self.reported: dict[RoomKey, Status] = {}
        self.outcomes: dict[RoomKey, Status] = {}
        self.entered: set[RoomKey] = set()
        group.attach(self)

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        assert key not in self.outcomes, "told twice"
        assert (failure is None) == (status is Status.DONE)
        self.outcomes[key] = status
        self.when[key] = self.world.now
        if status is Status.FAILED and key in self.open:
            self.end(key, Status.FAILED)

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        if key in self.open:
            self.end(key, Status.FAILED)

    def enter(self, key: RoomKey) -> None:
        self.entered.add(key)
        self.open.append(key)
        self.group.enter(key)

    def end(self, key: RoomKey, status: Status) -> None:
        self.open.remove(key)
        self.reported[key] = status
        if key not in self.outcomes:
            self.group.report(key, status, None if status is Status.DONE else BAD)


class Chaos:
    """One world, one group, and what goes wrong."""

    def __init__(self, seed: int, *, deaths: bool = True, size: int = 3) -> None:
        self.draw = random.Random(seed)
        self.world = World(seed)
        self.size = size
        self.groups = gather(self.world, size, SETTINGS)
        self.callers = [Caller(rank, group, self.world) for rank, group in enumerate(self.groups)]
        self.dead: set[int] = set()
        self.stalled: dict[int, float] = {}
        self.deaths = deaths
        self.rooms = 0
        self.trouble = "fault" if self.draw.random() < 0.7 else "steps"

    def run(self, rooms: int = 25) -> None:
        late: list[tuple[int, RoomKey]] = []
        while self.rooms < rooms:
            self.rooms += 1
            key = RoomKey(self.rooms, 0)
            for rank in self.living():
                if self.draw.random() < 0.2:
                    late.append((rank, key))
                elif self.draw.random() < 0.97:
                    self.callers[rank].enter(key)
            if late and self.draw.random() < 0.4:
                rank, key = late.pop(self.draw.randrange(len(late)))
                if rank not in self.dead:
                    self.callers[rank].enter(key)
            for _ in range(self.draw.randrange(6)):
                self.act()
        self.finish()

    def living(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.dead]

    def act(self) -> None:
        draw, world = self.draw, self.world
        match draw.choice(["end", "end", "end", "end", "end", "steps", "steps", "steps", "time", self.trouble]):
            case "end":
                rank = draw.choice(self.living())
                if self.callers[rank].open:
                    key = draw.choice(self.callers[rank].open)
                    self.callers[rank].end(key, Status.FAILED if draw.random() < 0.1 else Status.DONE)
            case "steps":
                for _ in range(draw.randrange(20)):
                    world.step()
            case "time":
                self.pass_time(draw.choice([0.1, 1, 3]))
            case "fault":
                self.fault()

    def pass_time(self, seconds: float) -> None:
        end, steps = self.world.now + seconds, self.world.steps
        while self.world.now < end and self.world.step(timers=True):
            assert self.world.steps < steps + 100_000, "they talk and talk, and no time passes"
        for rank, until in list(self.stalled.items()):
            if self.world.now >= until:
                del self.stalled[rank]
                self.world.stall(f"rank {rank}", stalled=False)

    def fault(self) -> None:
        draw, world = self.draw, self.world
        rank = draw.choice(self.living())
        channel = world.runner(f"rank {rank}").channel
        match draw.choice(["cut", "cut", "jam", "stall", "stall", "frames", "jump", "kill"]):
            case "cut":
                channel.cut(draw.choice(CAUSES))
            case "jam":
                if channel.connections:
                    channel.jam(draw.choice(channel.connections))
            case "stall":
                if rank not in self.stalled:
                    self.stalled[rank] = world.now + draw.choice([0.5, 3, 8, 25, 70])
                    world.stall(f"rank {rank}")
            case "frames":
                world.faults = Faults(corrupt=0.05, truncate=0.05, late=0.1, late_s=4)
            case "jump":
                world.jump(f"rank {rank}", draw.choice([2, 8, 30]))
            case "kill":
                if self.deaths and not self.dead and draw.random() < 0.3:
                    self.dead.add(rank)
                    self.stalled.pop(rank, None)
                    world.kill(f"rank {rank}")

    def finish(self) -> None:
        """Nothing goes wrong any more; every room ends where it is open, and has an outcome in bounded time."""
        self.world.heal()
        self.stalled.clear()
        for rank in self.living():
            for key in list(self.callers[rank].open):
                self.callers[rank].end(key, Status.DONE)
        self.pass_time(200)
        for rank in self.living():
            caller = self.callers[rank]
            assert caller.outcomes.keys() == caller.entered, f"rank {rank} knows no outcome of some rooms"
        self.judge()
        for rank in self.living():
            left = {
                name: count
                for name, count in self.groups[rank].tables().items()
                if name not in ("timers", "connections", "kept outcomes")
            }
            assert not any(left.values()), left

    def exempt(self) -> set[int]:
        """Ranks that have lost their leader: what they were not told has failed for them."""
        gave_up = {
            rank for rank in self.living() if " ".join(self.groups[rank].problems).startswith("the leader is lost")
        }
        return self.dead | gave_up

    def judge(self) -> None:
        apart = self.exempt()
        for number in range(1, self.rooms + 1):
            key = RoomKey(number, 0)
            told = {caller.rank: caller.outcomes[key] for caller in self.callers if key in caller.outcomes}
            if Status.DONE in told.values():
                reported = [caller.reported.get(key) for caller in self.callers]
                assert reported == [Status.DONE] * self.size, f"{key} is DONE, and was reported as {reported}"
                failed = {rank for rank, status in told.items() if status is Status.FAILED}
                assert not failed - apart, f"{key} is DONE for some and FAILED for ranks {failed - apart}"
                first = min(self.callers[rank].when[key] for rank in told if rank not in failed)
                for rank in failed - self.dead:
                    words = f"rank {rank} has given its leader up, and then {key} was DONE for others"
                    assert first <= self.callers[rank].when[key], words

    def serves(self) -> None:
        if self.exempt():
            return
        self.rooms += 1
        key = RoomKey(self.rooms, 0)
        for caller in self.callers:
            caller.enter(key)
            caller.end(key, Status.DONE)
        self.pass_time(10)
        assert {caller.outcomes.get(key) for caller in self.callers} == {Status.DONE}
        assert all(not group.problems for group in self.groups)


@given(st.integers(0, 2**32))
def test_outcomes_agree_whatever_goes_wrong(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run()
    chaos.serves()


@given(st.integers(0, 2**32))
def test_a_group_without_deaths_is_whole_again(seed: int) -> None:
    chaos = Chaos(seed, deaths=False)
    chaos.run(12)
    chaos.serves()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_very_many_worlds() -> None:
    for seed in range(4000):
        chaos = Chaos(seed, size=2 + seed % 3)
        chaos.run()
        chaos.serves()


def test_chaos_is_chaos() -> None:
    """What goes wrong does go wrong, and not everything fails because of it."""
    done = failed = exempt = lost = 0
    for seed in range(60):
        chaos = Chaos(seed)
        chaos.run()
        outcomes = [status for caller in chaos.callers for status in caller.outcomes.values()]
        done += outcomes.count(Status.DONE)
        failed += outcomes.count(Status.FAILED)
        exempt += bool(chaos.exempt() - chaos.dead)
        lost += bool(chaos.dead)
    assert done > 100
    assert failed > 100
    assert exempt >= 1
    assert lost >= 3


def many_worlds() -> None:
    for seed in (*range(40), FENCED):
        chaos = Chaos(seed)
        chaos.run()
        chaos.serves()


@named(
    [
        Mutant(group_member.Member, "link_down", "self.linked = False", "self.leader_lost(Failure(Reason.ABORTED))"),
        Mutant(group_member.Member, "link_up", "self._step(key, LinkUp())", "pass"),
        Mutant(group_leader.Leader, "_carry_out", "self._keep(event.rank, room)", "pass"),
        Mutant(group_leader.Leader, "_begin", "for cause in self.absent.values():", "for cause in ():"),
        Mutant(group_hub.HubCore, "_look", "if seat.confirmed < limit", "if False"),
        Mutant(tables, "_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),
    ]
)
def test_mutants_of_groups_die(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    dies(many_worlds)
