"""Probes of who waits for whom: holds, turns, places to wait in, limits, and engines that take no new rooms."""

from __future__ import annotations

from typing import Any

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import EngineClosed, InvalidArgument, Overloaded
from ...protocol.failure import Reason
from ...protocol.status import Status
from ..ports import SimTransport
from ..simulate.blocking import let_wait
from .hand import HandDecode, HandPrefill
from .probe import Play, probe
from .probes_faults import late
from .probes_rooms import control
from .probes_tidy import clean
from .stage import Aside, Broken, Room, Stage

_RENEWED = EngineSettings(hold_renew_s=2.0)
_PATIENCE = 1e6


# -- holds -------------------------------------------------------------------------------------------------------------


def _held(play: Play, **options: Any) -> tuple[Stage, Any, Any]:
    """A room that prefill has computed, and that decode has no memory for yet."""
    stage = play.scene(settings=_RENEWED)
    sender = stage.offer(**options)
    stage.send(sender, [3, 9, 4], last=True)
    hold = stage.hold()
    stage.settle()
    return stage, sender, hold


@probe("L2", seeds=1)
def a_room_that_is_held_waits_for_decode(play: Play) -> None:
    """Both callers have done all that they can; decode's queue is longer than prefill waits by itself."""
    stage, sender, hold = _held(play, queued_timeout_s=6.0)
    stage.pass_time(20.0)
    if sender.poll().terminal or hold.lost:
        raise Broken(f"decode holds the room, and it was given up: {sender.failure or hold.lost}")
    receiver = stage.receive()
    stage.finish(receiver, sender)
    stage.done(receiver, sender)


@probe("L3", seeds=1)
def the_end_of_a_room_that_is_held_is_told(play: Play) -> None:
    """Prefill gives the room up, it is too old, or had failed before: decode knows. Or the engines do not fit."""
    for how in ("abort", "cap"):
        stage, sender, hold = _held(play, cap_timeout_s=5.0 if how == "cap" else 100.0)
        if how == "abort":
            stage.abort(sender)
        stage.pass_time(9.0)
        wanted = Reason.PEER_ABORTED if how == "abort" else Reason.DEADLINE_CAP
        if hold.lost is None or (hold.lost.reason, hold.lost.origin) != (wanted, "peer"):
            raise Broken(f"prefill has given up a room that decode holds, and decode knows of {hold.lost}", how=how)
    stage = play.scene(settings=_RENEWED)
    sender = stage.offer()
    stage.abort(sender)
    hold = stage.hold()
    stage.settle()
    if hold.lost is None:
        raise Broken("decode holds a room that had failed before, and knows of nothing")
    stage = play.scene()
    stage.decodes[0] = stage.add_decode("other", stage.shape._replace(layers=2))
    hold = stage.hold()
    stage.settle()
    if hold.lost is None or hold.lost.reason is not Reason.HANDSHAKE_REFUSED:
        raise Broken(f"the engines do not fit, and who holds a room knows of {hold.lost}")


@probe("L3", seeds=1)
def a_hold_is_told_before_its_room_is_closed(play: Play) -> None:
    """Prefill's caller gives the room up and closes it, as whoever reads its failure does: no timer is needed."""
    stage, sender, hold = _held(play)
    stage.abort(sender)
    sender.close()
    stage.settle()
    if hold.lost is None:
        raise Broken("a room that decode holds has failed and is closed, and decode is not told")


@probe("C1", seeds=1)
def nothing_is_left_of_who_held_a_room_and_died(play: Play) -> None:
    """The room stays open; whoever held it is gone."""
    stage, sender, _ = _held(play)
    stage.world.kill(stage.decodes[0].name)
    stage.note("world", "fault", f"kill -9 of {stage.decodes[0].name}")
    stage.settle()
    held = stage.prefills[0].engine.tables()["holders"]
    if held and not sender.poll().terminal:
        raise Broken(f"a room is held by {held} peers, and there is none")


@probe("S5", seeds=1)
def nobody_else_ends_a_hold(play: Play) -> None:
    """Another prefill engine says that a room is lost which it has no part in."""
    stage = play.scene()
    hand = HandPrefill(stage)
    held = stage.hold(instance=stage.prefills[0].name)
    stage.receive(8, instance=hand.name)
    hand.welcome()
    hand.say(wire.HoldLost(7, 0, Reason.REFUSED, "it is mine", retryable=True))
    if held.lost is not None:
        raise Broken(f"who has no part in a room has ended the hold on it: {held.lost}")


@probe("L1", seeds=1)
def a_hold_does_not_keep_a_room_for_ever(play: Play) -> None:
    """The cap is the longest life of a room, whoever renews what."""
    stage, sender, _ = _held(play, queued_timeout_s=6.0, cap_timeout_s=9.0)
    stage.pass_time(14.0)
    if not sender.poll().terminal:
        raise Broken("a room with cap_timeout_s=9 is held for ever", at=stage.world.now)
    stage.fails(sender, Reason.DEADLINE_CAP)


@probe("C1", seeds=1)
def nothing_is_left_of_a_hold(play: Play) -> None:
    """Released, taken over by opening the room, or lost: decode asks no more, and has no alarm for it."""
    for how in ("release", "open", "lost"):
        stage, sender, hold = _held(play)
        engine, room = stage.decodes[0].engine, None
        if how == "release":
            engine.release(hold)
        elif how == "open":
            room = stage.receive()
        else:
            stage.abort(sender)
            stage.pass_time(5.0)
            if hold.lost is None:
                raise Aside
        stage.settle()
        for one in (sender, room):
            if one is not None:
                one.close()
        stage.settle()
        try:
            clean(stage.decodes[0])
        except Broken as broken:
            broken.given["the hold ended by"] = how
            raise


# -- turns -------------------------------------------------------------------------------------------------------------


@probe("L3", seeds=1)
def a_caller_that_computes_is_no_stuck_transfer(play: Play) -> None:
    """What was handed over has settled: from here on the caller's own time runs, all of it, and no other."""
    stage = play.scene()
    _, sender = stage.receive(), stage.offer(moving_timeout_s=3.0, queued_timeout_s=9.0)
    stage.send(sender, [3])
    stage.settle()
    stage.pass_time(6.0)
    if sender.poll().terminal:
        raise Broken(f"the caller has nine seconds to compute the next pages, and had six: {sender.failure}")
    late(stage, sender, 3.0, Reason.DEADLINE_WAITING, "pages 1 to 2 of 3")


@probe("L3", seeds=1)
def a_write_that_stands_still_is_no_caller_that_computes(play: Play) -> None:
    """Of two writes one has settled and one does not: that is the transport's time, not the caller's."""
    stage = play.scene(settings=EngineSettings(piece_bytes=32))
    receiver, sender = stage.receive(), stage.offer(moving_timeout_s=4.0, queued_timeout_s=60.0)
    stage.settle()
    stage.world.writes_held = True
    stage.fault("one write lands, no other does")
    stage.send(sender, [3])
    stage.send(sender, [9])
    stage.settle()
    stage.world.finish(stage.world.writes[0])
    stage.settle()
    if receiver.poll() is not Status.TRANSFERRING:
        raise Aside
    late(stage, sender, 4.0, Reason.DEADLINE_MOVING, "of 3")


@probe("L4", seeds=1)
def a_room_that_waits_for_its_turn_is_not_stuck(play: Play) -> None:
    """Twenty rooms share a network that carries a page a second: none of them is slow, the network is."""
    control(play)
    stage = play.scene(settings=EngineSettings(piece_bytes=32, inflight_per_peer_bytes=32), pages=40)
    stage.world.writes_held = True
    stage.fault("a page lands each second")
    rooms: list[Room] = []
    for number in range(20):
        pages = [number]
        receiver = stage.receive(number, pages=pages, aux_index=None)
        sender = stage.offer(number, aux_index=None, moving_timeout_s=4.0)
        stage.send(sender, pages, last=True)
        rooms += [receiver, sender]
    stage.settle()
    for _ in range(30):
        for write in stage.world.writes[:1]:
            stage.world.finish(write)
        stage.pass_time(1.0)
    stuck = [room for room in rooms if room.poll() is not Status.DONE]
    if stuck:
        raise Broken(f"{stuck[0]!r} waited for its turn behind others that moved, and ended: {stuck[0].failure}")


# -- places to wait in -------------------------------------------------------------------------------------------------


@probe("L3", seeds=1)
def a_grant_that_waits_in_vain_is_refused(play: Play) -> None:
    """Nobody opens the room on prefill: decode is told when the grant has waited for long enough."""
    stage = play.scene(settings=EngineSettings(parked_ttl_s=5.0, bootstrap_timeout_s=60.0))
    receiver = stage.receive()
    stage.settle()
    late(stage, receiver, 5.0, Reason.REFUSED)
    if not (receiver.failure and receiver.failure.origin == "peer"):
        raise Broken(f"a grant was refused, and decode takes that for its own failure: {receiver.failure}")


@probe("C1", seeds=1)
def only_so_many_grants_wait(play: Play) -> None:
    """Grants for rooms that nobody opens: no more than may wait are kept, and the others are refused."""
    stage = play.scene(settings=EngineSettings(parked_per_peer=2, parked_total=3))
    for hand in (HandDecode(stage), HandDecode(stage, "another")):
        for grant in range(1, 5):
            hand.say(hand.metadata(grant, room=grant))
        if len(hand.heard(wire.Reject)) < 2:
            raise Broken(f"{stage.prefills[0].engine.tables()['parked']} grants wait, and none was refused")
    waiting = stage.prefills[0].engine.tables()["parked"]
    if waiting > 3:
        raise Broken(f"{waiting} grants wait for rooms, and three may")


@probe("L4", seeds=1)
def nobody_takes_all_places(play: Play) -> None:
    """One peer asks for rooms that nobody opens; the other's grant finds a place to wait in."""
    control(play)
    stage = play.scene(settings=EngineSettings(parked_per_peer=2, parked_total=3))
    greedy = HandDecode(stage)
    for grant in range(1, 7):
        greedy.say(greedy.metadata(grant, room=100 + grant))
    receiver = stage.receive()
    stage.settle()
    if receiver.poll().terminal:
        raise Broken(f"another peer has taken all places to wait in: {receiver.failure}")
    sender = stage.offer()
    stage.send(sender, [3, 9, 4], last=True)
    stage.finish(receiver, sender)
    stage.done(receiver, sender)


# -- limits ------------------------------------------------------------------------------------------------------------


@probe("L4", seeds=1)
def nobody_takes_all_bytes_in_flight(play: Play) -> None:
    """What is posted to one decode engine never settles; there is enough left for the other."""
    control(play)
    settings = EngineSettings(piece_bytes=32, inflight_per_peer_bytes=64, inflight_bytes=96)
    stage = play.scene(decodes=2, settings=settings, pages=40)
    slow, sender = stage.receive(1, pages=list(range(20)), decode=0), stage.offer(1)
    stage.settle()
    port = stage.prefills[0].ports.transport
    post, agent = port.post, stage.decodes[0].ports.transport.agent
    stuck: list[int] = []

    def posted(to: str, piece: object, notification: bytes) -> int | None:
        """A write to the slow engine stays in progress."""
        if to != agent:
            return post(to, piece, notification)  # type: ignore[no-any-return]
        stuck.append(-1 - len(stuck))
        return stuck[-1]

    port.post = posted
    stage.fault("no write to it settles", "decode")
    stage.send(sender, list(range(20)))
    stage.settle()
    receiver, other = stage.receive(2, decode=1), stage.offer(2)
    stage.send(other, [3, 9, 4], last=True)
    stage.finish(receiver, other)
    stage.done(receiver, other)
    assert not slow.poll().terminal


@probe("L4", seeds=2)
def a_write_that_failed_takes_no_place(play: Play) -> None:
    """The bytes of a write that ended with an error are not in flight any more: the next room is served."""
    control(play)
    stage = play.scene()
    receiver, sender = stage.receive(1), stage.offer(1)
    stage.settle()
    stage.world.writes_held = True
    stage.send(sender, [3, 9, 4], last=True)
    stage.settle()
    for write in list(stage.world.writes):
        transport: SimTransport = write.source
        transport.fail(write, "the network broke")
        stage.world.lose(write)
    stage.fault("every write in flight ends with an error", "prefill")
    stage.world.writes_held = False
    stage.settle()
    stage.finish(sender, receiver)
    receiver, sender = stage.receive(2, pages=[10, 11, 12], aux_index=4), stage.offer(2)
    stage.send(sender, [3, 9, 4], last=True)
    stage.finish(receiver, sender)
    stage.done(receiver, sender)


@probe("C1", seeds=1)
def nothing_is_left_of_a_room_that_was_refused(play: Play) -> None:
    """An engine has as many rooms as it may have: another is refused, and can be opened once there is a place."""
    stage = play.scene(settings=EngineSettings(rooms_max=1))
    receiver, sender = stage.pair(1)
    for call in (lambda: stage.receive(2, pages=[10], aux_index=4), lambda: stage.offer(2)):
        try:
            call()
        except Overloaded:
            continue
        raise Aside
    stage.finish(receiver, sender)
    receiver.close()
    sender.close()
    stage.settle()
    try:
        rooms = [stage.receive(2, pages=[10], aux_index=4), stage.offer(2)]
    except (InvalidArgument, Overloaded) as error:
        raise Broken(f"the one room is closed, and a room that was refused before cannot be opened: {error}") from error
    for room in rooms:
        room.close()
    stage.settle()
    for side in (*stage.decodes, *stage.prefills):
        clean(side)


# -- engines that take no new rooms ------------------------------------------------------------------------------------


def _drained(stage: Stage, side: Any, *rooms: Room) -> Any:
    """Drain an engine that has these rooms, with all the patience of the world: nothing in it takes time."""
    for room in rooms:
        let_wait(room, stage.world)
    stage.note(f"{side.name} caller", "call", "drain()", side.name)
    return side.engine.drain(_PATIENCE)


@probe("L1", seeds=1)
def a_drain_ends_every_room(play: Play) -> None:
    """What has not ended by itself is aborted; and no room comes after it."""
    for who in ("decode", "prefill"):
        stage = play.scene()
        receiver, sender = stage.receive(), stage.offer()
        stage.settle()
        side, room = (stage.decodes[0], receiver) if who == "decode" else (stage.prefills[0], sender)
        try:
            said = _drained(stage, side, room)
        except TimeoutError as error:
            raise Broken(f"an engine was drained, and a room of it does not end: {error}", engine=who) from error
        if not room.poll().terminal or len(said.aborted) != 1:
            raise Broken(f"an engine was drained, and {room!r} is open; it says {said}", engine=who)
        try:
            late_one = stage.receive(8, pages=[10], aux_index=4) if who == "decode" else stage.offer(8)
        except EngineClosed:
            continue
        raise Broken(f"an engine was drained, and {late_one!r} was opened: nobody will end it", engine=who)


@probe("L3", seeds=1)
def a_drained_engine_refuses_at_once(play: Play) -> None:
    """Rooms that prefill will never open: decode is told, without a timer, of those that wait and those that come."""
    stage = play.scene()
    early = stage.receive(1)
    stage.settle()
    _drained(stage, stage.prefills[0])
    stage.finish(early)
    stage.fails(early, Reason.REFUSED)
    late_one = stage.receive(2, pages=[10], aux_index=4)
    stage.finish(late_one)
    stage.fails(late_one, Reason.REFUSED)


@probe("S3", seeds=1)
def a_drain_tells_what_may_still_be_written(play: Play) -> None:
    """A room is over when its engine is drained, and a write to it is in flight."""
    stage = play.scene()
    stage.world.writes_held = True
    receiver, _ = stage.pair()
    stage.settle()
    said = _drained(stage, stage.decodes[0], receiver)
    if not receiver.poll().terminal:
        raise Aside
    if receiver.memory_free or said.held != 1:
        raise Broken(f"a write to {receiver!r} is in flight, and the drain says {said}")
