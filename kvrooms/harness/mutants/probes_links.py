"""Probes of connections: of one that takes another's place, of what a peer is called, and of what it says it has."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from ...engine.settings import EngineSettings
from ...protocol import wire
from ...protocol.errors import WireError
from ...protocol.failure import Reason
from ...protocol.layout import Layout
from ...protocol.manifest import Manifest
from ...transport.ports import CloseCause
from .hand import HandDecode, HandPrefill
from .probe import Play, probe
from .probes_memory import in_flight, land
from .probes_rooms import control
from .probes_tidy import clean
from .stage import FREED, Aside, Broken, Shape, Stage

S = TypeVar("S", bound=msgspec.Struct)
_REDIALS_S = 2.0
"""Within so long a connection that is still needed is dialled again."""


def _cut(stage: Stage) -> None:
    stage.fault("the connection ends: the network timed out")
    stage.decodes[0].ports.channel.cut(CloseCause.TIMED_OUT)
    stage.settle()


# -- one after another -------------------------------------------------------------------------------------------------


@probe("L4", seeds=2)
def a_peer_that_comes_back_is_served_as_before(play: Play) -> None:
    """The connection was lost, with rooms or without, however often: the next room is served as the first was."""
    control(play)
    for how in ("done", "open", "waiting"):
        stage = play.scene()
        for number in range(3):
            receiver = stage.receive(number)
            sender = stage.offer(number) if how != "waiting" else None
            if sender is not None:
                stage.send(sender, [3, 9, 4][: 3 if how == "done" else 1], last=how == "done")
            stage.settle()
            _cut(stage)
            stage.pass_time(_REDIALS_S)  # what is quarantined is acknowledged over the next connection
            receiver.close()
            if sender is not None:
                sender.close()
            stage.settle()
            if not receiver.memory_free:
                raise Aside  # its lease remains
        receiver, sender = stage.pair(90)
        try:
            stage.finish(receiver, sender)
            stage.done(receiver, sender)
        except Broken as broken:
            broken.given["the rooms when the connection was lost"] = how
            raise


@probe("L5", seeds=1)
def what_an_earlier_connection_said_goodbye_to_is_past(play: Play) -> None:
    """A writer says GOODBYE, comes back on another connection, and dies: that is proof, as of any other."""
    stage = play.scene()
    hand = HandPrefill(stage)
    receiver = stage.receive(instance=hand.name)
    hand.welcome()
    grant = hand.grant()
    hand.say(wire.Accept(grant.grant), wire.Goodbye((grant.grant,)))
    hand.channel.close(hand.connection)
    stage.settle()
    stage.pass_time(_REDIALS_S)
    hand.welcome()
    if receiver.memory_free or not hand.heard(wire.Abort):
        raise Aside
    stage.fault("is killed", hand.name)
    hand.channel.kill()
    words = "the writer is back after a GOODBYE and has died, and that does not end the lease"
    stage.run(lambda: receiver.memory_free, waited=words)


@probe("S4", seeds=2)
def a_grant_of_a_lost_peer_finds_no_room(play: Play) -> None:
    """A METADATA waits on prefill, and its connection ends, or its sender dies: the room that comes is not its."""
    for how in ("cut", "killed"):
        stage = play.scene()
        stage.receive()
        stage.settle()
        if stage.prefills[0].engine.tables()["parked"] != 1:
            raise Aside
        if how == "cut":
            _cut(stage)
        else:
            stage.fault("is killed", "decode")
            stage.world.kill("decode")
            stage.settle()
        sender = stage.offer()
        stage.settle()
        if sender.phase != "METADATA":
            raise Broken(f"{sender!r} has taken a grant for its own that was over before it was opened", peer=how)


@probe("C1", seeds=1)
def a_hold_that_was_released_is_not_asked_for_again(play: Play) -> None:
    """Not by the connection either that takes the place of the one which it was asked for on."""
    stage = play.scene(settings=EngineSettings(hold_renew_s=1.0))
    engine, bootstrap = stage.decodes[0].engine, stage.prefills[0].engine.bootstrap
    hold = engine.hold(7, bootstrap=bootstrap)
    kept = engine.hold(8, bootstrap=bootstrap)
    stage.settle()
    engine.release(hold)
    stage.settle()
    _cut(stage)
    stage.pass_time(_REDIALS_S)
    engine.release(kept)
    stage.settle()
    clean(stage.decodes[0])
    _cut(stage)
    stage.pass_time(_REDIALS_S)
    if engine.tables()["links"]:
        raise Broken("no room is open and none is held, and a lost connection was opened again")


# -- names -------------------------------------------------------------------------------------------------------------


@probe("L4", seeds=3)
def an_engine_may_have_two_names(play: Play) -> None:
    """One is found by its name, and as the only one there is: rooms of both names go on beside each other."""
    control(play)
    for settles in (True, False):
        stage = play.scene()
        first, one = stage.receive(1, instance=""), stage.offer(1)
        if settles:
            stage.send(one, [3])
            stage.settle()
        second, other = stage.receive(2, pages=[10, 11, 12], aux_index=4, instance="prefill"), stage.offer(2)
        stage.settle()
        for room in (first, one):
            if room.poll().terminal:
                raise Broken(
                    f"a room that names the same engine otherwise was opened, and {room!r} ended: {room.failure}"
                )
        stage.send(one, [9, 4] if settles else [3, 9, 4], last=True)
        stage.send(other, [3, 9, 4], last=True)
        stage.finish(first, one, second, other)
        stage.done(first, one, second, other)


@probe("S3", seeds=2)
def whoever_s_link_a_room_waits_at_it_is_not_advertised_after_its_end(play: Play) -> None:
    """Two names share a link to an engine that dies; then both are another's, whose own link is not up yet."""
    stage = play.scene(prefills=2)
    registry, gone, there = stage.world.registry, stage.prefills[0], stage.prefills[1]
    by_name = {name: (url, one) for (url, name, _), one in registry.items()}
    url, first = by_name[gone.name]
    for side in (gone, there):
        stage.world.stall(side.name)
    registry[url, "a", 0] = registry[url, "b", 0] = first
    registry[url, "c", 0] = by_name[there.name][1]
    rooms = [stage.receive(1, pages=[1], aux_index=None, instance="c")]
    rooms += [
        stage.receive(number, pages=[number], aux_index=None, instance=name) for number, name in ((2, "a"), (3, "b"))
    ]
    stage.settle()
    registry[url, "a", 0] = registry[url, "b", 0] = by_name[there.name][1]
    stage.fault("dies, and its names are now those of the other one", gone.name)
    stage.world.kill(gone.name)
    stage.pass_time(_REDIALS_S)
    for room in rooms:
        stage.abort(room)
    stage.settle()
    if not all(room.memory_free for room in rooms):
        raise Aside
    stage.decodes[0].pool.fill("kv", [1, 2, 3], FREED)
    stage.world.heal()
    for number in (1, 2, 3):
        stage.send(stage.offer(number, prefill=1, aux_index=None), [3], last=True)
    stage.pass_time(_REDIALS_S)
    if not stage.decodes[0].pool.holds("kv", [1, 2, 3], FREED):
        raise Broken("memory was written to that had gone back to its caller: its room was advertised after its end")


@probe("S5", seeds=1)
def who_welcomes_in_anothers_name_is_not_believed(play: Play) -> None:
    """An engine at another address gives itself out for one that decode is connected to, and speaks of its rooms."""
    lies = (
        wire.Failed(1, Reason.PEER_FAILED, "a lie", retryable=True),
        wire.Reject(1, Reason.REFUSED, "a lie", retryable=True),
        wire.Ack(1),
        wire.Goodbye(),
    )
    for lie in lies:
        stage = play.scene()
        honest, hand = stage.prefills[0], HandPrefill(stage)
        receiver, sender = stage.receive(instance=honest.name), stage.offer()
        stage.send(sender, [3])
        stage.settle()
        stage.receive(8, pages=[10], aux_index=4, instance=hand.name)
        stage.settle()
        hand.heard(wire.Hello)
        name, source = honest.ports.transport.agent, honest.ports.incarnation
        hand.say(wire.Welcome(honest.name, name, hand.layout), source=source)
        hand.say(lie, source=source)
        if receiver.poll().terminal or receiver.memory_free:
            raise Broken(f"a stranger that gave itself out for the writer has ended {receiver!r}", lie=lie)


@probe("S3", seeds=1)
def who_is_connected_is_not_fenced(play: Play) -> None:
    """The orchestrator means a dead process of this name: the one that is connected is heard of, lives, and writes."""
    for aborted in (True, False):
        stage, receiver, _ = in_flight(play)
        if aborted:
            stage.abort(receiver)
            stage.settle()
        stage.note("orchestrator", "call", "peer_fenced('prefill')", "decode")
        stage.decodes[0].engine.peer_fenced("prefill")
        stage.settle()
        stage.pass_time(3.0)
        land(stage)


# -- what a peer says it has -------------------------------------------------------------------------------------------


def _joins(stage: Stage, layout: Layout | None = None, *, fewer: int = 0) -> HandDecode | None:
    """A peer that says it has this layout, and of its last component only so many items; None if it is turned away."""
    hand = HandDecode(stage, joins=False)
    regions = hand.pool.memory.regions
    if fewer:
        last = tuple(_changed(region, items=fewer) for region in regions.state[-1])
        regions = _changed(regions, state=(*regions.state[:-1], last))
    hello = wire.Hello(hand.name, hand.transport.agent, layout or hand.layout, regions, hand.transport.metadata())
    hand.say(hello, target=0)
    return hand if hand.heard(wire.Welcome) else None


@probe("S5", seeds=1)
def a_peer_with_other_items_is_turned_away(play: Play) -> None:
    """Its items are shorter than ours, of pages, aux or a component: what we write would not end where they do."""
    shape = Shape(indexed=2)
    layout = play.scene(shape).prefills[0].pool.memory.layout
    shorter = {
        "pages": _changed(layout, kv=(layout.kv[0], _changed(layout.kv[1], item_length=8))),
        "aux": _changed(layout, aux=(layout.aux[0], _changed(layout.aux[1], item_length=4))),
    }
    for at, component in enumerate(layout.state):
        buffers = (component.buffers[0], _changed(component.buffers[1], item_length=4))
        state = list(layout.state)
        state[at] = _changed(component, buffers=buffers)
        shorter[f"the component {component.name!r}"] = _changed(layout, state=tuple(state))
    for what, theirs in shorter.items():
        if _joins(play.scene(shape), theirs) is not None:
            raise Broken(
                f"a peer whose items of {what} are shorter than ours was welcomed: we would write past their ends"
            )
    if _joins(play.scene(shape)) is None:
        raise Aside


@probe("S5", seeds=1)
def an_index_is_bounded_by_its_own_component(play: Play) -> None:
    """The one component that a METADATA asks for is the layout's second, and has fewer items than the first."""
    for index, there in ((3, True), (6, False)):
        stage = play.scene(Shape(indexed=2))
        hand = _joins(stage, fewer=4)
        if hand is None:
            raise Aside
        sender = stage.offer()
        stage.send(sender, [3, 9, 4], {"index": [1]}, last=True)
        manifest = Manifest(3, ((0, 3),), hand.layout.aux_names, (("index", 1),))
        try:
            hand.say(hand.metadata(1, manifest=manifest, state=(np.array([index], dtype="<i4").tobytes(),)))
        except (IndexError, WireError) as error:
            raise Broken(
                f"an index that is not there was believed, and has ended the engine's thread: {error}"
            ) from error
        if bool(hand.heard(wire.Reject)) is there:
            raise Broken(f"index {index} of a component of four items was {'refused' if there else 'believed'}")


def _changed(value: S, **changes: object) -> S:
    return msgspec.structs.replace(value, **changes)
