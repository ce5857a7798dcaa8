"""Causes that reach an engine in one round: the one that wins is that of `first_cause`, whatever came in first.

Several things can be waiting for an engine when its thread looks: a write that has failed, a call of the room's caller,
frames of the peer, the end of the connection, a deadline. An engine takes them in one after another and the first ends
the room, so what is shown here is that it takes them in the right order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from engine_bench import Bench, Plan
from mutants import Mutant, named

from kvrooms import RoomFailed, Status
from kvrooms.engine import core, decode_core, prefill_core
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import notify, wire
from kvrooms.protocol.errors import TransportError
from kvrooms.protocol.failure import Failure, Reason, first_cause
from kvrooms.protocol.notify import Part, PartKind
from kvrooms.transport.ports import Arrival, CloseCause, Closed, FrameIn

SETTINGS = EngineSettings(piece_bytes=4096, moving_timeout_s=5, heartbeat_timeout_s=1000, heartbeat_s=1000)


class Scene:
    """A room in the middle of its transfer. `engine`: the one to which everything comes at once."""

    def __init__(self, side: str, settings: EngineSettings = SETTINGS) -> None:
        self.bench = bench = Bench(1, settings=settings)
        bench.complain = lambda *_: None  # type: ignore[method-assign]  # acknowledgements are forged here
        plan: Plan = bench.plan(6)
        rooms = {"decode": bench.receive(plan), "prefill": bench.offer(plan)}
        rooms["prefill"].send(plan.source["kv"][:2])
        bench.settle()
        bench.world.writes_held = True
        rooms["prefill"].send(plan.source["kv"][2:4])
        bench.settle()
        assert bench.world.writes
        self.room: Any = rooms[side]
        self.engine: Any = bench.prefill if side == "prefill" else bench.decode
        self.core: Any = self.engine._core
        (self.link,) = self.core._links.values()
        (peer,) = self.core._peers.values()
        ((self.grant, self.held),) = (peer.drains if side == "prefill" else peer.grants).items()

    def frame(self, body: wire.Body) -> None:
        """Let a frame of the peer wait at the engine."""
        frame = wire.encode(body, self.link.incarnation, self.core.incarnation, 0)
        self.core.channel._event(FrameIn(self.link.connection, frame[wire.PREFIX_LENGTH :]))

    # -- what ends a room; each returns the cause that it is ----------------------------------------------------------

    def write_failed(self) -> Failure:
        for write in self.bench.world.writes:
            self.core.transport.fail(write, "broken")
        return Failure(Reason.TRANSPORT_ERROR)

    def aborted(self) -> Failure:
        self.room.abort("here")
        return Failure(Reason.ABORTED)

    def aborted_there(self) -> Failure:
        self.frame(wire.Abort(self.grant, Reason.PEER_ABORTED, "there", False))
        return Failure(Reason.PEER_ABORTED, origin="peer")

    def not_owed(self) -> Failure:
        message = notify.encode(self.grant, self.held.token, (Part(PartKind.KV, 0, 90, 1),))
        self.core.transport._arrived.append(Arrival(self.held.peer.agent, message))
        return Failure(Reason.PROTOCOL, origin="peer")

    def failed_there(self) -> Failure:
        self.frame(wire.Failed(self.grant, Reason.SEND_ERROR, "there", True))
        return Failure(Reason.SEND_ERROR, origin="peer")

    def acknowledged(self) -> Failure:
        self.frame(wire.Ack(self.grant))
        return Failure(Reason.PEER_FAILED, origin="peer")

    def lost(self) -> Failure:
        self.core.channel._event(Closed(self.link.connection, CloseCause.TIMED_OUT, ""))
        return Failure(Reason.PEER_LOST)

    def late(self) -> Failure:
        self.bench.world.now += 10
        return Failure(Reason.DEADLINE_MOVING)


Cause = Callable[[Scene], Failure]
PREFILL: list[Cause] = [Scene.write_failed, Scene.aborted, Scene.aborted_there, Scene.lost, Scene.late]
DECODE: list[Cause] = [Scene.not_owed, Scene.aborted, Scene.failed_there, Scene.acknowledged, Scene.lost, Scene.late]


def check(side: str, causes: tuple[Cause, ...]) -> None:
    """All of them come at once, in this order: one turn, and the room says the one that wins.

    Among equals that is the first which the engine takes in: completions, then calls, then the peer's, then time.
    """
    scene = Scene(side)
    given = {cause: cause(scene) for cause in causes}
    in_time = [given[cause] for cause in (PREFILL if side == "prefill" else DECODE) if cause in given]
    wins = first_cause(in_time)
    (runner,) = [runner for runner in scene.bench.world._runners if runner.core is scene.core]
    runner.core.turn()
    assert scene.room.poll() is Status.FAILED
    names = [cause.__name__ for cause in causes]
    assert (scene.room.failure.reason, scene.room.failure.origin) == (wins.reason, wins.origin), names
    told = {one.reason for one in scene.room._context}
    assert told <= {one.reason for one in in_time} - {wins.reason}, "a cause that did not come, or the winner again"


def orders(causes: list[Cause]) -> list[tuple[Cause, ...]]:
    """Every two and three of them in any order, and all at once; after a connection's end nothing comes of it."""
    many = [*itertools.permutations(causes, 2), *itertools.permutations(causes, 3), tuple(causes)]
    peer = {Scene.aborted_there, Scene.failed_there, Scene.acknowledged}
    return [some for some in many if Scene.lost not in some or not peer & set(some[some.index(Scene.lost) :])]


def check_all() -> None:
    """Every order, on both sides."""
    for side, causes in (("prefill", PREFILL), ("decode", DECODE)):
        for some in orders(causes):
            check(side, some)


def test_of_causes_that_come_at_once_the_right_one_wins() -> None:
    assert (len(orders(PREFILL)), len(orders(DECODE))) == (71, 127)
    check_all()


def test_a_write_that_cannot_be_posted_never_meets_another_cause() -> None:
    """Nothing is posted for a room that has failed, and a post comes last in its round."""
    for cause in PREFILL[:-1]:  # a send begins the deadline anew
        scene = Scene("prefill")
        scene.room.send(scene.bench.prefills[0].take("kv", 1))
        scene.core.transport.post_error = "no more descriptors"
        cause(scene)
        scene.core.turn()
        assert scene.room.failure.reason is not Reason.SEND_ERROR
        assert not [one for one in scene.room._context if one.reason is Reason.SEND_ERROR]


def raised(scene: Scene) -> RoomFailed:
    """What the room raises."""
    scene.core.turn()
    with pytest.raises(RoomFailed) as caught:
        scene.room.failure_exception()
    return caught.value


def test_what_the_transport_raised_is_chained_and_what_came_later_is_noted() -> None:
    scene = Scene("prefill")
    scene.room.send(scene.bench.prefills[0].take("kv", 1))
    scene.core.transport.post_error = "no more descriptors"
    error = raised(scene)
    assert isinstance(error.__cause__, TransportError)
    assert str(error.__cause__) == error.failure.detail == "no more descriptors"
    scene = Scene("prefill")
    for cause in (Scene.write_failed, Scene.aborted):
        cause(scene)
    error = raised(scene)
    assert (type(error.__cause__), str(error.__cause__)) == (TransportError, "broken")
    assert error.__notes__ == ["then: aborted (local): here"]
    assert error.failure.reason is Reason.TRANSPORT_ERROR


def test_a_cause_that_is_no_exception_has_none_chained_though_one_came_later() -> None:
    scene = Scene("prefill")
    scene.aborted()
    scene.core.turn()
    scene.write_failed()
    error = raised(scene)
    assert error.failure.reason is Reason.ABORTED
    assert error.__cause__ is None
    assert any("broken" in note for note in error.__notes__)


@named(
    [
        Mutant(core.EngineCore, "turn", "busy = self._take_in()", "busy = False"),
        Mutant(decode_core.DecodeCore, "_frame", "self._acks.append((peer, number))",
               "self._peer_failed(peer, number, Failure(Reason.PEER_FAILED, '', 'peer'))"),
        Mutant(prefill_core.PrefillCore, "_step", "record.add_context(failure)",
               "record.watcher.ended(room.phase, failure, [])"),
    ]
)  # fmt: skip
def test_the_check_finds_an_engine_that_takes_things_in_another_order(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all()
