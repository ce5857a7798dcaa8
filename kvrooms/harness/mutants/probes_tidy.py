"""Probes of what must be left behind, and said, and agreed on: C1, C2, A1."""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import InvalidArgument, RoomClosed, RoomFailed
from ...protocol.failure import Reason
from .hand import HandDecode
from .probe import Play, probe
from .stage import Aside, Broken, Shape, Side, Stage

SWA = Shape(indexed=1)
_KEPT = ("links", "peers", "targets", "timers", "void")
"""What an engine keeps of the peers that it is connected to: nothing of a room."""


# -- C1: nothing stays behind ------------------------------------------------------------------------------------------


def clean(side: Side) -> None:
    """Raise Broken unless the tables of a side hold nothing of any room."""
    tables = side.engine.tables()
    left = {name: count for name, count in tables.items() if count and name not in _KEPT}
    if left:
        raise Broken(f"{side.name} still holds {left}, and every room is closed")
    if tables["timers"] > tables["links"]:
        raise Broken(f"{side.name} has {tables['timers']} alarms for {tables['links']} connections, and no room")
    if tables.get("void", 0) > tables["peers"]:
        raise Broken(f"{side.name} remembers {tables['void']} gaps of grants that are over")


def _all_clean(stage: Stage) -> None:
    for side in (*stage.decodes, *stage.prefills):
        clean(side)


@probe("C1", seeds=2)
def nothing_is_left_of_rooms_that_are_closed(play: Play) -> None:
    """DONE, aborted by either side, aborted before they were asked for, or with a METADATA that waited."""
    stage = play.scene(SWA)
    for number, how in enumerate(("done", "decode aborts", "prefill aborts", "early", "waited", "closed open")):
        if how == "waited":
            receiver = stage.receive(number, aux_index=0)
            stage.settle()
            sender = stage.offer(number)
        else:
            receiver, sender = stage.receive(number, aux_index=0), stage.offer(number)
        if how == "early":
            receiver.abort()
        stage.send(sender, [3, 9])
        if how != "early":
            stage.settle()
        if how == "decode aborts":
            receiver.abort()
        elif how == "prefill aborts":
            sender.abort()
        if how in ("done", "waited"):
            stage.send(sender, [4], last=True)
        stage.settle()
        for room in (receiver, sender):
            room.close()
        stage.settle()
        if not receiver.memory_free:
            raise Aside  # its lease remains
        try:
            _all_clean(stage)
        except Broken as broken:
            broken.given["room"] = how
            raise


@probe("C1", seeds=1)
def nothing_is_left_of_what_a_peer_asked_in_vain(play: Play) -> None:
    """METADATA for rooms that never come, aborted or expired; notifications and frames for rooms that are gone."""
    stage = play.scene(settings=EngineSettings(parked_ttl_s=5.0))
    hand = HandDecode(stage)
    for grant in range(1, 9):
        hand.say(hand.metadata(grant, room=grant))
    for grant in range(1, 5):
        hand.say(wire.Abort(grant, Reason.PEER_ABORTED, "", retryable=False))
    end = stage.world.now + 4
    stage.run(lambda: stage.world.now >= end, timers=True)
    hand.say(wire.Ping(1), wire.Pong(1), wire.Pong(2), wire.Pong(3), wire.Pong(4))
    stage.pass_time(2.0)
    clean(stage.prefills[0])


@probe("C1", seeds=1)
def nothing_is_left_of_a_peer_that_is_gone(play: Play) -> None:
    """A decode engine dies with a room open: when its room is closed, nothing of it is there."""
    stage = play.scene()
    _, sender = stage.pair()
    stage.settle()
    stage.world.kill("decode")
    stage.settle()
    sender.close()
    stage.settle()
    clean(stage.prefills[0])
    if stage.prefills[0].engine.tables()["peers"]:
        raise Broken("a decode engine that is proven dead is remembered")


# -- C2: one failure, once ---------------------------------------------------------------------------------------------


class _Driven:
    """The moment at which an engine lets go of a room: who waits for it lets the world run meanwhile."""

    def __init__(self, inner: Any, stage: Stage) -> None:
        self._inner, self._stage = inner, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, lock: object, timeout: float | None) -> bool:
        """Without a thread beside the caller nothing would happen while it waits."""
        self._stage.settle()
        return bool(self._inner.happened)


def _drive(stage: Stage, *rooms: Any) -> None:
    for room in rooms:
        room._gone = _Driven(room._gone, stage)  # noqa: SLF001


@probe("C2", seeds=1)
def a_room_is_clean_before_its_failure_is_raised(play: Play) -> None:
    """When the caller reads the failure, no table holds the room any more; other rooms are where they were."""
    for who in ("decode", "prefill"):
        stage = play.scene()
        receiver, sender = stage.receive(), stage.offer()
        other, also = stage.receive(8, pages=[10], aux_index=4), stage.offer(8)
        stage.settle()
        (receiver if who == "decode" else sender).abort("the first cause")
        stage.settle()
        for side, room, beside in ((stage.decodes[0], receiver, other), (stage.prefills[0], sender, also)):
            _drive(stage, room)
            try:
                room.failure_exception()
            except RoomFailed as failed:
                rooms, keys = (side.engine.tables()[name] for name in ("rooms", "keys"))
                if (rooms, keys) != (1, 1):
                    raise Broken(f"the failure of {room!r} was raised, and {side.name} holds {rooms} rooms") from failed
                if "the first cause" not in str(failed):
                    raise Broken(f"the failure that was raised is not the first cause: {failed}") from failed
            else:
                raise Broken(f"no failure of {room!r} was raised")
            if beside.poll().terminal:
                raise Broken(f"reading the failure of {room!r} has ended {beside!r}")


@probe("C2", seeds=1)
def a_room_that_fails_waits_for_no_turn(play: Play) -> None:
    """It had more to post than may be in flight, in all or to its peer; what has filled that stands still."""
    for limit in ("inflight_bytes", "inflight_per_peer_bytes"):
        stage = play.scene(settings=msgspec.structs.replace(EngineSettings(), piece_bytes=1, **{limit: 1}))
        stage.world.writes_held = True
        _, sender = stage.pair()
        stage.settle()
        _drive(stage, sender)
        sender.abort()
        stage.settle()
        try:
            sender.failure_exception()
        except RoomFailed as failed:
            waiting = stage.prefills[0].engine.tables()["ready"]
            if waiting:
                raise Broken(f"the failure of {sender!r} was raised, and it waits for a turn", limit=limit) from failed


@probe("C2", seeds=1)
def a_failure_is_raised_once(play: Play) -> None:
    """The second time the caller is told that it was raised."""
    stage = play.scene()
    receiver = stage.receive()
    stage.settle()
    receiver.abort()
    stage.settle()
    _drive(stage, receiver)
    raised = []
    for _ in range(2):
        try:
            receiver.failure_exception()
        except (RoomFailed, RoomClosed) as error:
            raised.append(type(error).__name__)
    if raised != ["RoomFailed", "RoomClosed"]:
        raise Broken(f"the failure was raised as {raised}")


@probe("C2", seeds=1)
def the_first_cause_is_told_on_both_sides(play: Play) -> None:
    """What came after it, here or there, does not take its place; and each side knows whose it was."""
    for who in ("decode", "prefill"):
        stage = play.scene()
        stage.world.writes_held = True
        receiver, sender = stage.pair()
        stage.settle()
        first, second = (receiver, sender) if who == "decode" else (sender, receiver)
        first.abort("the first cause")
        stage.settle()
        second.abort("a later cause")
        first.abort("another later cause")
        stage.world.writes_held = False
        stage.settle()
        if not (first.poll().terminal and second.poll().terminal):
            raise Aside
        for side in (*stage.decodes, *stage.prefills):
            side.engine.close()
        for room, reason in ((first, Reason.ABORTED), (second, Reason.PEER_ABORTED)):
            failure = room.failure
            if failure is None or (failure.reason, failure.detail) != (reason, "the first cause"):
                raise Broken(f"{room!r} should say {reason.value}, the first cause; it says {failure}")


# -- A1: manifests agree -----------------------------------------------------------------------------------------------


def _mismatch(stage: Stage, *rooms: Any, words: tuple[str, ...] = ()) -> None:
    """Both have failed by now, without a timer and with nothing more said by a caller, and say what differs."""
    stage.settle()
    for room in rooms:
        failure = room.failure
        if failure is None or failure.reason is not Reason.MISMATCH:
            raise Broken(f"both sides know that they differ, and {room!r} has not failed: {failure}")
        left_out = [word for word in words if word not in failure.detail]
        if left_out:
            raise Broken(f"the failure does not name {left_out}: {failure.detail!r}")


@probe("A1", seeds=1)
def a_difference_is_told_in_words(play: Play) -> None:
    """Both sides name the item and both counts."""
    stage = play.scene(SWA)
    receiver, sender = stage.receive(state_indices=[[3]]), stage.offer()
    stage.send(sender, [3, 9, 4], [[5, 6]], last=True)
    _mismatch(stage, receiver, sender, words=("'swa'", "prefill sends 2", "decode expects 1"))
    stage = play.scene()
    receiver, sender = stage.receive(pages=[8, 2]), stage.offer()
    stage.send(sender, [3, 9, 4], last=True)
    _mismatch(stage, receiver, sender, words=("prefill has 3", "decode expects 2"))


@probe("A1", seeds=1)
def to_send_too_much_is_a_difference_at_once(play: Play) -> None:
    """More than decode expects can never be right: nobody waits for the last send to say so."""
    for first in ("decode", "prefill"):
        stage = play.scene(SWA)
        if first == "decode":
            receiver, sender = stage.receive(pages=[8, 2], state_indices=[[1]]), stage.offer()
            stage.settle()
            stage.send(sender, [3, 9, 4])
        else:
            sender = stage.offer()
            stage.send(sender, [3, 9, 4])
            stage.settle()
            receiver = stage.receive(pages=[8, 2], state_indices=[[1]])
        _mismatch(stage, receiver, sender, words=("prefill has 3", "decode expects 2"))


@probe("A1", seeds=1)
def what_is_known_early_is_compared_early(play: Play) -> None:
    """Totals and aux that prefill declares when it opens a room are compared with the METADATA, before any send."""
    cases: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"pages": 4}, {}),
        ({"aux_index": None}, {}),
        ({}, {"aux_index": None}),
        ({"skip_state": True}, {"state_indices": [[2]]}),
    )
    for ours, theirs in cases:
        for first in ("decode", "prefill"):
            stage = play.scene(SWA)
            if first == "decode":
                receiver, sender = stage.receive(**theirs), stage.offer(**ours)
            else:
                sender, receiver = stage.offer(**ours), stage.receive(**theirs)
            try:
                _mismatch(stage, receiver, sender)
            except Broken as broken:
                broken.given["callers"] = f"prefill {ours}, decode {theirs}"
                raise


@probe("A1", seeds=1)
def what_is_known_late_is_compared_late(play: Play) -> None:
    """Totals that the last send declares are compared then."""
    cases: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"pages": [8, 2]}, None),
        ({"pages": [8, 2, 5, 6]}, None),
        ({"state_indices": [[3]]}, None),
        ({}, [[3]]),
    )
    for theirs, state in cases:
        stage = play.scene(SWA)
        receiver, sender = stage.receive(**theirs), stage.offer()
        stage.settle()
        stage.send(sender, [3, 9, 4], state, last=True)
        _mismatch(stage, receiver, sender)


@probe("A1", seeds=1)
def an_argument_out_of_range_is_refused(play: Play) -> None:
    """What cannot be meant is refused by the method it was given to, and nothing has changed."""
    stage = play.scene(SWA)
    cases: tuple[dict[str, Any], ...] = (
        {"pages": [16]}, {"pages": [-1]}, {"pages": [2, 2]}, {"aux_index": 8}, {"state_indices": [[8]]},
        {"state_indices": [[1]], "skip_state": True},
    )  # fmt: skip
    for options in cases:
        try:
            stage.receive(**options)
        except InvalidArgument:
            continue
        raise Broken(f"decode has opened a room with {options}")
