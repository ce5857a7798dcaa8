"""A group of ranks in a simulated world, and what its callers see."""

from __future__ import annotations

from kvrooms.engine.group import RoomGroup
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.channel import SimChannel
from kvrooms.harness.groups import gather
from kvrooms.harness.world import World
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey
from kvrooms.protocol.status import Status

KEY = RoomKey(7, 0)
CUT = Failure(Reason.SEND_ERROR, "the cable is cut")
SETTINGS = EngineSettings(decision_timeout_s=60.0)
DONE, FAILED = Status.DONE, Status.FAILED


class User:
    """An engine as its group sees it."""

    def __init__(self, group: RoomGroup) -> None:
        self.outcomes: dict[RoomKey, tuple[Status, Failure | None]] = {}
        self.aborted: dict[RoomKey, Failure] = {}
        group.attach(self)

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        assert key not in self.outcomes
        self.outcomes[key] = status, failure

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        self.aborted[key] = failure


class Bench:
    """A world with a group in it."""

    def __init__(self, size: int = 3, seed: int = 1, settings: EngineSettings = SETTINGS) -> None:
        self.world = World(seed)
        self.groups = gather(self.world, size, settings)
        self.users = [User(group) for group in self.groups]

    def enter(self, *ranks: int, key: RoomKey = KEY) -> None:
        for rank in ranks or range(len(self.groups)):
            self.groups[rank].enter(key)

    def done(self, *ranks: int, key: RoomKey = KEY) -> None:
        for rank in ranks or range(len(self.groups)):
            self.groups[rank].report(key, DONE)

    def outcomes(self, key: RoomKey = KEY) -> list[Status | None]:
        return [group.outcome(key) for group in self.groups]

    def settle(self) -> None:
        self.world.settle()

    def wait(self, seconds: float) -> None:
        end = self.world.now + seconds
        self.world.run(lambda: self.world.now >= end, timers=True)
        self.settle()

    def until(self, *ranks: int, key: RoomKey = KEY, timers: bool = True) -> None:
        """Run until the ranks know the outcome."""
        self.world.run(lambda: all(self.groups[rank].outcome(key) for rank in ranks), timers=timers)

    def serves(self, number: int = 99) -> None:
        """A new room becomes DONE without a timer."""
        key = RoomKey(number, 0)
        self.enter(key=key)
        self.done(key=key)
        self.until(*range(len(self.groups)), key=key, timers=False)
        assert set(self.outcomes(key)) == {DONE}
        self.settle()
        assert all(not group.problems for group in self.groups)
        for group in self.groups:
            left = {name: count for name, count in group.tables().items() if name not in ("timers", "connections")}
            assert not any(left.values()), left

    def channel(self, rank: int) -> SimChannel:
        return self.world.runner(f"rank {rank}").channel
