"""Probes of rooms that faults end (L3)."""

from __future__ import annotations

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import TransportError, UncertainWrite
from ...protocol.failure import Reason
from ...transport.ports import CloseCause
from .hand import HandPrefill
from .probe import Play, probe
from .stage import Aside, Broken, Room, Shape, Stage

SWA = Shape(indexed=1)
_LATE_S = 1.0
"""How much later than its deadline a room may end: a tick, and a heartbeat or two."""


# -- L3: faults end rooms ----------------------------------------------------------------------------------------------


@probe("L3", seeds=3)
def an_abort_ends_both_sides(play: Play) -> None:
    """At every step, from either side, without a timer."""
    for who, whole in (("decode", True), ("decode", False), ("prefill", True), ("prefill", False)):
        for moment in range(0, 40, 3):
            stage = play.scene(settings=EngineSettings(piece_bytes=32))
            if whole:
                receiver, sender = stage.pair()
            else:
                receiver, sender = stage.receive(), stage.offer()
                stage.send(sender, [3, 9])
            for _ in range(moment):
                stage.world.step()
            stage.abort(receiver if who == "decode" else sender)
            stage.settle()
            asked = sender.phase != "METADATA" or who == "prefill"
            stage.finish(receiver, *([sender] if asked else []))


@probe("L3", seeds=1)
def a_grant_for_an_aborted_room_is_answered(play: Play) -> None:
    """Prefill aborted before decode asked: decode is told at once."""
    stage = play.scene()
    sender = stage.offer()
    stage.abort(sender)
    stage.settle()
    receiver = stage.receive()
    stage.finish(receiver)
    stage.fails(receiver)


@probe("L3", seeds=1)
def a_failed_post_ends_both_sides(play: Play) -> None:
    """A write that cannot be posted, or may be under way all the same, ends the room without a timer."""
    for error in (TransportError("no"), UncertainWrite("perhaps")):
        stage = play.scene()
        receiver, sender = stage.receive(), stage.offer()
        stage.settle()
        port = stage.prefills[0].ports.transport

        def post(*_: object, error: TransportError = error) -> None:
            raise error

        port.post = post
        stage.fault(f"no write can be posted: {error!r}", "prefill")
        stage.send(sender, [3, 9, 4], last=True)
        stage.finish(receiver, sender)
        stage.fails(receiver)
        stage.fails(sender)


@probe("L3", seeds=1)
def engines_that_do_not_fit_say_so(play: Play) -> None:
    """A refused handshake ends the rooms that wait for it, without a timer."""
    stage = play.scene()
    stage.decodes.append(stage.add_decode("other", Shape(layers=2)))
    receiver = stage.receive(decode=1)
    stage.finish(receiver)
    stage.fails(receiver, Reason.HANDSHAKE_REFUSED)


@probe("L3", seeds=1)
def a_handshake_that_prefill_refuses_ends_what_waits_for_it(play: Play) -> None:
    """The registry has said that they fit, and the engine itself says no: without a timer its rooms learn that."""
    stage = play.scene()
    hand = HandPrefill(stage)
    receiver = stage.receive(instance=hand.name)
    stage.settle()
    if not hand.heard(wire.Hello):
        raise Aside
    stage.fault("refuses the handshake", hand.name)
    hand.say(wire.Refuse(("not with you",), Reason.HANDSHAKE_REFUSED, retryable=False))
    stage.finish(receiver)
    stage.fails(receiver, Reason.HANDSHAKE_REFUSED)


@probe("L3", seeds=2)
def a_lost_connection_ends_both_sides(play: Play) -> None:
    """Whatever ended it, and whatever that proves of memory."""
    for cause in (CloseCause.TIMED_OUT, CloseCause.RESET):
        stage = play.scene()
        receiver, sender = stage.receive(), stage.offer()
        stage.send(sender, [3, 9])
        stage.settle()
        stage.fault(f"the connection ends: {cause.value}")
        stage.decodes[0].ports.channel.cut(cause)
        stage.settle()
        stage.finish(receiver, sender)
        stage.fails(receiver, Reason.PEER_LOST)
        stage.fails(sender, Reason.PEER_LOST)


def late(stage: Stage, room: Room, seconds: float, reason: Reason, *words: str) -> None:
    """A room must fail after so many seconds, and say what was open."""
    start = stage.world.now
    stage.run(lambda: room.poll().terminal or stage.world.now > start + seconds + _LATE_S, timers=True)
    if not room.poll().terminal:
        raise Broken(f"{room!r} is still open {stage.world.now - start:.1f} s later; its deadline is {seconds} s")
    stage.fails(room, reason)
    detail = room.failure.detail if room.failure else ""
    left_out = [word for word in words if word not in detail]
    if left_out:
        raise Broken(f"the failure does not say what was open ({', '.join(left_out)}): {detail!r}")


@probe("L3", seeds=1)
def a_silent_prefill_ends_the_room_within_its_deadlines(play: Play) -> None:
    """Nothing is heard; then nothing lands; then nothing lands any more."""
    stage = play.scene()
    receiver = stage.receive(bootstrap_timeout_s=9.0)
    late(stage, receiver, 9.0, Reason.DEADLINE_BOOTSTRAP, "METADATA")
    stage = play.scene(SWA)
    receiver, _ = stage.receive(waiting_timeout_s=7.0, state_indices=[[2]]), stage.offer()
    stage.settle()
    late(stage, receiver, 7.0, Reason.DEADLINE_WAITING, "pages 0 to 2 of 3", "aux", "1 of 1 indices of 'swa'")
    stage = play.scene(SWA)
    receiver, sender = stage.receive(moving_timeout_s=6.0, state_indices=[[2]]), stage.offer()
    stage.send(sender, [3, 9, 4])
    stage.settle()
    late(stage, receiver, 6.0, Reason.DEADLINE_MOVING, "aux", "1 of 1 indices of 'swa'")


@probe("L3", seeds=1)
def a_silent_decode_ends_the_room_within_its_deadlines(play: Play) -> None:
    """No METADATA comes; or the caller sends no more."""
    stage = play.scene()
    sender = stage.offer(queued_timeout_s=9.0)
    late(stage, sender, 9.0, Reason.DEADLINE_BOOTSTRAP, "METADATA")
    stage = play.scene()
    _, sender = stage.receive(), stage.offer(queued_timeout_s=6.0)
    stage.send(sender, [3, 9])
    stage.settle()
    late(stage, sender, 6.0, Reason.DEADLINE_WAITING, "page 2 of 3", "aux")
    stage = play.scene()
    stage.world.writes_held = True
    _, sender = stage.receive(), stage.offer(moving_timeout_s=6.0)
    stage.send(sender, [3, 9])
    stage.settle()
    late(stage, sender, 6.0, Reason.DEADLINE_MOVING, "pages 0 to 2 of 3", "aux")
