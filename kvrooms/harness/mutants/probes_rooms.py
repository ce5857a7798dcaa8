"""Probes of rooms beside each other (L4), and of what they leave to their leases (L5)."""

from __future__ import annotations

from ...engine.decode import DecodeRoom
from ...engine.prefill import PrefillRoom
from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import InvalidArgument
from ...protocol.failure import Reason
from ...protocol.identity import RoomKey
from ...protocol.status import Status
from ...transport.ports import CloseCause
from ..faults import Faults
from .hand import HandPrefill
from .probe import Play, probe
from .stage import Aside, Broken, Room, Stage

# -- L4: rooms do not touch each other ---------------------------------------------------------------------------------


def control(play: Play) -> None:
    """Where not even one room beside no other is served, nothing can be said of rooms beside each other."""
    stage = play.scene()
    receiver, sender = stage.pair()
    stage.settle()
    if {receiver.poll(), sender.poll()} != {Status.DONE}:
        raise Aside


@probe("L4", seeds=1)
def many_failures_leave_no_trace(play: Play) -> None:
    """Rooms that waited on prefill, were aborted or refused: the next one is served, with few places to wait in."""
    control(play)
    stage = play.scene(settings=EngineSettings(parked_per_peer=2, parked_total=2))
    for number in range(6):
        receiver = stage.receive(number)
        stage.settle()
        if number % 2:
            stage.abort(receiver)
            stage.settle()
            sender = stage.offer(number)
        else:
            sender = stage.offer(number)
            stage.settle()
            stage.abort(sender)
        stage.settle()
        for room in (receiver, sender):
            room.close()
        stage.settle()
    receiver = stage.receive(90)
    stage.settle()
    if receiver.poll().terminal:
        raise Broken(f"after six failed rooms the next is refused: {receiver.failure}")
    sender = stage.offer(90)
    stage.send(sender, [3, 9, 4], last=True)
    stage.finish(receiver, sender)
    stage.done(receiver, sender)


@probe("L4", seeds=1)
def closing_a_room_does_not_touch_the_next_of_its_number(play: Play) -> None:
    """The key that a closed room gives back is its own, also when it is closed twice, and forgotten late."""
    control(play)
    stage = play.scene()
    first = stage.receive(pages=[1, 2], aux_index=0)
    stage.abort(first)
    stage.settle()
    first.close()
    second, sender = stage.receive(), stage.offer()
    first.close()
    stage.settle()
    try:
        third = stage.decodes[0].engine.open(7, bootstrap=stage.prefills[0].engine.bootstrap, pages=[10])
    except InvalidArgument:
        pass
    else:
        raise Broken(f"{third!r} could be opened while {second!r} is open", key=RoomKey(7, 0))
    rooms = stage.decodes[0].engine.tables()["rooms"]
    if rooms != 1:
        raise Broken(f"closing a failed room twice has taken another out of the tables: {rooms} rooms are left")
    stage.send(sender, [3, 9, 4], last=True)
    stage.finish(second, sender)
    stage.done(second, sender)


@probe("L4", seeds=4)
def a_stalled_peer_delays_nobody(play: Play) -> None:
    """One decode engine takes nothing any more; another's room is served without a timer."""
    control(play)
    settings = EngineSettings(piece_bytes=32, inflight_per_peer_bytes=32, heartbeat_timeout_s=3.0)
    stage = play.scene(decodes=2, settings=settings)
    slow, sender = stage.receive(1, decode=0), stage.offer(1)
    stage.settle()
    stage.world.stall("decode")
    stage.fault("stands still", "decode")
    port = stage.prefills[0].ports.transport
    post, agent = port.post, stage.decodes[0].ports.transport.agent

    def stuck(to: str, piece: object, notification: bytes) -> int | None:
        """A write to the engine that stands still stays in progress."""
        return -1 if to == agent else post(to, piece, notification)

    port.post = stuck
    stage.send(sender, [3, 9])
    stage.settle()
    receiver, other = stage.receive(2, decode=1), stage.offer(2)
    stage.send(other, [3, 9, 4], last=True)
    stage.finish(receiver, other)
    stage.done(receiver, other)
    assert not slow.poll().terminal


@probe("L4", seeds=2)
def the_loss_of_one_peer_fails_its_rooms_only(play: Play) -> None:
    """One decode engine dies; the other's room goes on."""
    control(play)
    stage = play.scene(decodes=2)
    first, second = stage.receive(1, decode=0), stage.receive(2, decode=1)
    one, two = stage.offer(1), stage.offer(2)
    stage.send(one, [3])
    stage.send(two, [3])
    stage.settle()
    stage.fault("is killed", "decode")
    stage.world.kill("decode")
    stage.settle()
    stage.send(two, [9, 4], last=True)
    stage.finish(second, two)
    stage.done(second, two)
    assert not first.poll().terminal


# -- L5: leases end ----------------------------------------------------------------------------------------------------

_PATIENT = EngineSettings(abort_retry_s=100.0, abort_retry_max_s=200.0, heartbeat_timeout_s=5.0)
"""With so long a pause between two ABORTs, what ends within seconds was not ended by repeating one."""


def _free(stage: Stage, room: Room, words: str) -> None:
    stage.run(lambda: room.memory_free, waited=words)


@probe("L5", seeds=3)
def an_abort_with_writes_in_flight_ends_by_an_acknowledgement(play: Play) -> None:
    """When the writes have settled prefill says so, without being asked again."""
    for aborts in ("decode", "prefill"):
        stage = play.scene()
        receiver, sender = _held(stage)
        stage.abort(receiver if aborts == "decode" else sender)
        stage.settle()
        stage.fault("the writes land at last")
        stage.world.writes_held = False
        _free(stage, receiver, "without a timer the lease of a failed room does not end")


def _held(stage: Stage) -> tuple[DecodeRoom, PrefillRoom]:
    """A room whose writes are posted and do not land."""
    stage.world.writes_held = True
    stage.fault("no write lands")
    receiver, sender = stage.pair()
    stage.settle()
    return receiver, sender


@probe("L5", seeds=2)
def a_lost_abort_is_said_again(play: Play) -> None:
    """A silent fault: the ABORT is lost. The lease ends when its repetition is acknowledged."""
    stage = play.scene()
    receiver, _ = _held(stage)
    stage.world.faults = Faults(drop=1.0)
    stage.abort(receiver)
    stage.settle()
    stage.fault("the ABORT is lost")
    stage.world.faults = Faults()
    stage.world.writes_held = False
    end = stage.world.now + 10
    stage.run(lambda: receiver.memory_free or stage.world.now > end, timers=True)
    if not receiver.memory_free:
        raise Broken("ten seconds later the lost ABORT was not repeated, and the lease has not ended")


@probe("L5", seeds=2)
def a_reconnect_says_the_abort_again(play: Play) -> None:
    """The connection ends with writes in flight: as soon as it is up again, the lease ends."""
    stage = play.scene(settings=_PATIENT)
    receiver, _ = _held(stage)
    stage.fault("the connection ends: the network timed out")
    stage.decodes[0].ports.channel.cut(CloseCause.TIMED_OUT)
    stage.settle()
    stage.world.writes_held = False
    end = stage.world.now + 20
    stage.run(lambda: receiver.memory_free or stage.world.now > end, timers=True)
    if not receiver.memory_free:
        raise Broken("twenty seconds after a lost connection, long since up again, the lease has not ended")


@probe("L5", seeds=2)
def death_ends_a_lease(play: Play) -> None:
    """The prefill process is gone: its kernel says so, and that ends what is quarantined, and what is granted."""
    for aborted in (True, False):
        stage = play.scene()
        receiver, _ = _held(stage)
        if aborted:
            stage.world.faults = Faults(drop=1.0)
            stage.abort(receiver)
            stage.settle()
            stage.world.faults = Faults()
        stage.fault("is killed", "prefill")
        stage.world.kill("prefill")
        _free(stage, receiver, "a proof of death does not end the lease")


@probe("L5", seeds=1)
def the_word_of_the_orchestrator_ends_a_lease(play: Play) -> None:
    """The writer is silent and its connection was given up: only the word that it was fenced helps, and it does."""
    stage = play.scene(settings=EngineSettings(heartbeat_timeout_s=2.0))
    receiver, _ = _held(stage)
    stage.fault("stands still", "prefill")
    stage.world.stall("prefill")
    stage.pass_time(8.0)
    stage.decodes[0].engine.peer_fenced("prefill")
    _free(stage, receiver, "the orchestrator's word does not end the lease")


@probe("L5", seeds=1)
def a_refusal_ends_a_lease(play: Play) -> None:
    """Reject is an acknowledgement too."""
    stage = play.scene()
    hand = HandPrefill(stage)
    receiver = stage.receive(instance=hand.name)
    hand.welcome()
    hand.say(wire.Reject(hand.grant().grant, Reason.REFUSED, "no", retryable=True))
    _free(stage, receiver, "a refused grant's lease does not end")
