"""Probes of what peers say: of another life (S4), or against the truth (S5)."""

from __future__ import annotations

from typing import Any

from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.failure import Reason
from ...protocol.manifest import Manifest
from ...protocol.notify import Part, PartKind
from ...protocol.status import Status
from .hand import HandDecode, HandPrefill
from .probe import Play, probe
from .stage import UNTOUCHED, Aside, Broken, Shape, Stage

SWA = Shape(indexed=1)


# -- S4: generations do not mix ----------------------------------------------------------------------------------------


def _offered(stage: Stage) -> Any:
    sender = stage.offer()
    stage.send(sender, [3, 9, 4], last=True)
    stage.settle()
    return sender


def _not_bound(sender: Any, hand: HandDecode, what: str) -> None:
    if sender.phase != "METADATA" or any(hand.written("kv", page) for page in (8, 2, 5)):
        raise Broken(f"{what} has reached a room of a later life: {sender!r}")


@probe("S4", seeds=1)
def a_grant_that_is_over_stays_over(play: Play) -> None:
    """Below the floor, void, or done: a METADATA that comes again finds no room."""
    stage = play.scene()
    hand = HandDecode(stage)
    hand.say(wire.Ping(1), floor=5)
    hand.say(wire.Ping(2), floor=1)
    hand.say(hand.metadata(3), floor=1)
    _not_bound(_offered(stage), hand, "a METADATA below the floor")
    stage = play.scene()
    hand = HandDecode(stage)
    hand.say(wire.Abort(1, Reason.PEER_ABORTED, "", retryable=False), hand.metadata(1))
    _not_bound(_offered(stage), hand, "a METADATA whose ABORT has overtaken it")
    for how in ("done", "aborted"):
        stage = play.scene()
        hand = HandDecode(stage)
        hand.say(hand.metadata(1))
        first = _offered(stage)
        if how == "aborted":
            first.abort()
        stage.settle()
        first.close()
        stage.settle()
        hand.pool.fill("kv", [8, 2, 5], UNTOUCHED)
        again = _offered(stage)
        hand.say(hand.metadata(1))
        _not_bound(again, hand, f"the METADATA of a room that was {how}")


@probe("S4", seeds=1)
def an_older_grant_does_not_end_a_newer(play: Play) -> None:
    """Whatever order they come in."""
    stage = play.scene()
    hand = HandDecode(stage)
    sender = stage.offer()
    hand.say(hand.metadata(2))
    hand.say(hand.metadata(1))
    if sender.poll().terminal:
        raise Broken(f"a METADATA of an earlier grant has ended the room of a later one: {sender.failure}")


@probe("S4", seeds=1)
def attempts_are_different_rooms(play: Play) -> None:
    """What is asked of one attempt does not reach another."""
    stage = play.scene()
    hand = HandDecode(stage)
    sender = stage.offer(attempt=1)
    stage.send(sender, [3, 9, 4], last=True)
    hand.say(hand.metadata(1))
    _not_bound(sender, hand, "a METADATA of attempt 0")


@probe("S4", seeds=1)
def frames_of_another_incarnation_reach_nobody(play: Play) -> None:
    """An earlier life of the peer, or of ours, is not listened to."""
    for wrong in ({"source": 0xDEAD}, {"target": 0xDEAD}):
        stage = play.scene()
        hand = HandDecode(stage)
        sender = stage.offer()
        hand.say(hand.metadata(1))
        hand.say(wire.Abort(1, Reason.PEER_ABORTED, "from another life", retryable=False), **wrong)
        if sender.poll().terminal:
            raise Broken("a frame of another incarnation has ended a room", **wrong)
        stage = play.scene()
        other = HandPrefill(stage)
        receiver = stage.receive(instance=other.name)
        other.welcome()
        other.say(wire.Failed(other.grant().grant, Reason.PEER_FAILED, "from another life", retryable=True), **wrong)
        if receiver.poll().terminal:
            raise Broken("a frame of another incarnation has ended a room", **wrong)


@probe("S4", seeds=3)
def the_next_life_waits_for_the_last_to_be_closed(play: Play) -> None:
    """Decode opens a room's number again while prefill has not closed its last life, DONE: it waits for the next."""
    stage = play.scene()
    first, sender = stage.pair()
    stage.finish(first, sender)
    first.close()
    stage.settle()
    second = stage.receive(pages=[10, 11, 12], aux_index=4)
    stage.settle()
    if second.poll().terminal:
        raise Broken(f"the room's last life has answered for the next: {second.failure}")


@probe("S4", seeds=3)
def a_room_aborted_before_it_was_asked_for_is_not_asked_for(play: Play) -> None:
    """Aborted before the connection is up, as early as that may be: no METADATA of it is ever sent."""
    for moment in range(12):
        stage = play.scene(seed=moment)
        receiver = stage.receive()
        for _ in range(moment):
            stage.world.step()
        stage.abort(receiver)
        receiver.close()
        stage.settle()
        waiting = stage.prefills[0].engine.tables()["parked"]
        if waiting:
            raise Broken(f"{waiting} grants wait on prefill, and no room is open on decode", steps=moment)


# -- S5: peers are not believed ----------------------------------------------------------------------------------------


@probe("S5", seeds=1)
def a_metadata_cannot_point_outside(play: Play) -> None:
    """Indices that are negative, too large, or too many, or slots that are not there, are refused."""
    aux = tuple(play.scene().prefills[0].pool.memory.layout.aux_names)
    cases: dict[str, dict[str, Any]] = {
        "a negative page": {"pages": (8, -1, 5)},
        "a page that is not there": {"pages": (8, 16, 5)},
        "an aux slot that is not there": {"aux_index": 8},
        "more pages than its manifest owes": {"pages": (8, 2, 5), "manifest": Manifest(3, ((0, 2),), aux, ())},
    }
    for what, changes in cases.items():
        stage = play.scene()
        hand = HandDecode(stage)
        sender = _offered(stage)
        try:
            hand.say(hand.metadata(1, **changes))
        except (IndexError, WireError) as error:
            raise Broken(f"{what} was believed, and has ended the engine's thread: {error}") from error
        if not hand.heard(wire.Reject) or sender.poll() is Status.DONE:
            raise Broken(f"{what} was believed: {sender!r}")


@probe("S5", seeds=1)
def a_stranger_cannot_end_or_take_a_room(play: Play) -> None:
    """A second decode engine asks for a room that is another's: it is refused, and the room goes on."""
    stage = play.scene()
    receiver, sender = stage.receive(), stage.offer()
    stage.send(sender, [3])
    stage.settle()
    hand = HandDecode(stage)
    hand.say(hand.metadata(9))
    if sender.poll().terminal or receiver.poll().terminal:
        raise Broken(f"a stranger's METADATA has ended a room that is another's: {sender.failure}")
    hand.say(wire.Abort(1, Reason.PEER_ABORTED, "a stranger's", retryable=False))
    if sender.poll().terminal or receiver.poll().terminal:
        raise Broken(f"a stranger's ABORT has ended a room that is another's: {sender.failure}")


@probe("S5", seeds=1)
def a_notification_is_believed_only_from_the_writer(play: Play) -> None:
    """One that comes under another name completes nothing, though it knows grant and token."""
    for agent in ("somebody", None):
        stage = play.scene()
        hand = HandPrefill(stage)
        receiver = stage.receive(instance=hand.name)
        hand.welcome()
        hand.notify(Part(PartKind.KV, 0, 0, 3), agent=agent)
        landed = receiver.poll() not in (Status.WAITING, Status.BOOTSTRAPPING)
        if landed and agent is not None:
            raise Broken("a notification under a stranger's name was believed")
        if not landed and agent is None:
            raise Aside


@probe("S5", seeds=1)
def a_notification_cannot_say_more_than_is_owed(play: Play) -> None:
    """Positions that nobody asked for are a fault of the peer, not a room that is complete."""
    for part in (Part(PartKind.KV, 0, 0, 9), Part(PartKind.AUX, 0, 0, 4), Part(PartKind.STATE, 3, 0, 1)):
        stage = play.scene(SWA)
        hand = HandPrefill(stage)
        receiver = stage.receive(instance=hand.name, state_indices=[[1]])
        hand.welcome()
        try:
            hand.notify(part)
        except (IndexError, WireError) as error:
            raise Broken(f"{part} was believed, and has ended the engine's thread: {error}") from error
        failure = receiver.failure
        if failure is None or failure.reason is not Reason.PROTOCOL:
            raise Broken(f"a notification of {part} was believed, and three pages and one index are owed: {receiver!r}")


@probe("S5", seeds=1)
def one_peer_cannot_be_named_as_another(play: Play) -> None:
    """A HELLO under the agent name of another incarnation is refused: it would be written to in its place."""
    stage = play.scene()
    honest = HandDecode(stage)
    liar = HandDecode(stage, "a liar", joins=False)
    regions = honest.pool.memory.regions
    liar.say(wire.Hello("x", honest.transport.agent, liar.layout, regions, honest.transport.metadata()), target=0)
    if liar.heard(wire.Welcome):
        raise Broken("a HELLO was accepted under the agent name of another incarnation")
