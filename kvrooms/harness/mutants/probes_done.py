"""Probes of what DONE and FAILED mean: every byte is there (S1), and nothing changes them (S2)."""

from __future__ import annotations

import itertools
from typing import Any

from ...engine.settings import EngineSettings
from ...protocol.errors import InvalidArgument
from ...protocol.notify import Part, PartKind
from ...protocol.status import Status
from ...transport.ports import CloseCause
from .hand import HandPrefill
from .probe import Play, probe
from .stage import Aside, Broken, Room, Shape, Stage

# -- S1: done means landed ---------------------------------------------------------------------------------------------


def watch_landing(stage: Stage, room: Room, places: dict[str, tuple[list[int], list[int]]]) -> None:
    """From the moment a room is DONE on decode, every byte of it is in place. places: part to (sources, targets)."""
    checked: list[bool] = []

    def look() -> None:
        if room.poll() is not Status.DONE or checked:
            return
        checked.append(True)
        for part, (sources, targets) in places.items():
            for source, target in zip(sources, targets, strict=True):
                if not stage.landed(part, [source], [target]):
                    raise Broken(f"{room!r} is DONE, and item {target} of {part} does not hold item {source}")

    stage.watchers.append(look)


@probe("S1", seeds=6)
def done_means_landed(play: Play) -> None:
    """Chunks, pieces and components in any order: DONE is not said before the last byte."""
    shapes = (Shape(), Shape(indexed=2), Shape(layers=2, aux=False))
    for i, (shape, piece_bytes) in enumerate(itertools.product(shapes, (1, 40, 64, 1 << 20))):
        stage = play.scene(shape, seed=i, settings=EngineSettings(piece_bytes=piece_bytes))
        state = {"swa": ([3, 5], [6, 1]), "index": ([2], [4])} if shape.indexed else {}
        receiver = stage.receive(state_indices={name: targets for name, (_, targets) in state.items()} or None)
        sender = stage.offer()
        places = {"kv": ([3, 9, 4], [8, 2, 5]), **state}
        if shape.aux:
            places["aux"] = ([1], [3])
        watch_landing(stage, receiver, places)
        chunk = play.draw.randrange(4)
        stage.send(sender, [3, 9, 4][:chunk])
        indices = {name: sources for name, (sources, _) in state.items()} or None
        stage.send(sender, [3, 9, 4][chunk:], indices, last=True)
        stage.finish(receiver)
        stage.look()


@probe("S1", seeds=3)
def done_means_landed_of_what_decode_has_not(play: Play) -> None:
    """Pages that decode holds already are not sent, and positions are not shifted by them."""
    stage = play.scene(settings=EngineSettings(piece_bytes=40))
    receiver, sender = stage.receive(pages=[8, 2], prefix_pages=1), stage.offer()
    watch_landing(stage, receiver, {"kv": ([9, 4], [8, 2]), "aux": ([1], [3])})
    stage.send(sender, [3, 9])
    stage.send(sender, [4], last=True)
    stage.finish(receiver)
    stage.look()


@probe("S1", seeds=2)
def done_means_landed_of_state_in_two_sends(play: Play) -> None:
    """Positions of a component are counted across sends."""
    stage = play.scene(Shape(indexed=1))
    receiver, sender = stage.receive(state_indices=[[6, 1, 2]]), stage.offer()
    watch_landing(stage, receiver, {"kv": ([3, 9, 4], [8, 2, 5]), "swa": ([3, 5, 4], [6, 1, 2])})
    stage.send(sender, [3, 9], [[3, 5]])
    stage.send(sender, [4], [[4]], last=True)
    stage.finish(receiver)
    stage.look()


@probe("S1", seeds=2)
def done_means_landed_of_many_pages(play: Play) -> None:
    """Enough pages to be merged where they are neighbours, on one side, both, or neither; and to need many pieces."""
    up, mixed = list(range(80)), [(i * 37) % 80 for i in range(80)]
    for i, (sources, targets) in enumerate(((up, up), (up, mixed), (mixed, up), (mixed, mixed))):
        for piece_bytes in (1 << 20, 64):
            settings = EngineSettings(piece_bytes=piece_bytes)
            stage = play.scene(seed=i, pages=80, settings=settings)
            receiver, sender = stage.receive(pages=targets), stage.offer()
            watch_landing(stage, receiver, {"kv": (sources, targets), "aux": ([1], [3])})
            stage.send(sender, sources, last=True)
            stage.finish(receiver)
            stage.look()


@probe("S1", seeds=1)
def done_means_that_each_position_was_reported(play: Play) -> None:
    """Pages one by one, state and aux, in every order: before the last of them is reported the room is not DONE."""
    parts = (*(Part(PartKind.KV, 0, page, 1) for page in range(3)), Part(PartKind.STATE, 0, 0, 1))
    parts = (*parts, Part(PartKind.AUX, 0, 0, 1))
    for order in itertools.permutations(parts):
        stage = play.scene(Shape(indexed=1))
        hand = HandPrefill(stage)
        receiver = stage.receive(instance=hand.name, state_indices=[[1]])
        hand.welcome()
        for part in order[:-1]:
            hand.notify(part)
        if receiver.poll() is Status.DONE:
            kind, _, first, _ = order[-1]
            raise Broken(f"{receiver!r} is DONE, and nobody has reported {kind.name} position {first}")
        hand.notify(order[-1])
        if receiver.poll() is not Status.DONE:
            raise Aside


@probe("S1", seeds=1)
def what_is_always_owed_lands(play: Play) -> None:
    """A room without the state that each room owes is no room: it is refused, or it does not end in DONE."""
    stage = play.scene(Shape(always=1))
    try:
        receiver, sender = stage.receive(), stage.offer()
        stage.send(sender, [3, 9, 4], last=True)
    except InvalidArgument:
        return
    stage.settle()
    if receiver.poll() is Status.DONE:
        raise Broken("a room is DONE without the component 'conv', which every room owes")


# -- S2: terminal states absorb ----------------------------------------------------------------------------------------


def _ended(room: Room) -> tuple[Any, ...]:
    return (room.poll(), room.phase, room.failure, str(room.failure))


def _same(before: dict[Room, tuple[Any, ...]], what: str) -> None:
    for room, was in before.items():
        now = _ended(room)
        if now != was:
            raise Broken(
                f"{what} has changed a room that had ended: it was {was[3]} ({was[1]}), it is {now[3]} ({now[1]})"
            )


def _disturb(stage: Stage, rooms: tuple[Room, ...], how: str) -> None:
    """Something that has nothing to say to rooms that have ended."""
    if how == "abort":
        for room in rooms:
            room.abort("too late")
    elif how == "cut":
        stage.decodes[0].ports.channel.cut(CloseCause.RESET)
    elif how == "kill":
        stage.world.kill("prefill")
    elif how == "close decode":
        stage.decodes[0].engine.close()
    elif how == "close prefill":
        stage.prefills[0].engine.close()
    stage.fault(how)
    stage.settle()


@probe("S2", seeds=1)
def nothing_changes_a_room_that_is_done(play: Play) -> None:
    """Aborts, lost connections, dead peers, engines that close."""
    for how in ("abort", "cut", "kill", "close decode", "close prefill"):
        stage = play.scene()
        receiver, sender = stage.pair()
        stage.finish(receiver, sender)
        if {receiver.poll(), sender.poll()} != {Status.DONE}:
            raise Aside
        before: dict[Room, tuple[Any, ...]] = {room: _ended(room) for room in (receiver, sender)}
        _disturb(stage, (receiver, sender), how)
        _same(before, how)


@probe("S2", seeds=1)
def nothing_changes_a_room_that_has_failed(play: Play) -> None:
    """The first cause stays, and no second end is reported."""
    for how in ("abort", "cut", "kill", "close decode", "close prefill"):
        for who in ("decode", "prefill"):
            stage = play.scene()
            receiver, sender = stage.receive(), stage.offer()
            stage.send(sender, [3])
            stage.settle()
            (receiver if who == "decode" else sender).abort("the first cause")
            stage.settle()
            if not (receiver.poll().terminal and sender.poll().terminal):
                raise Aside
            before: dict[Room, tuple[Any, ...]] = {room: _ended(room) for room in (receiver, sender)}
            _disturb(stage, (receiver, sender), how)
            _same(before, how)


@probe("S2", seeds=2)
def what_arrives_late_changes_nothing(play: Play) -> None:
    """Writes land after the room has failed: it does not come to life, and says what it said."""
    stage = play.scene(settings=EngineSettings(piece_bytes=40))
    stage.world.writes_held = True
    receiver, sender = stage.pair()
    stage.settle()
    receiver.abort("the first cause")
    stage.settle()
    if not (receiver.poll().terminal and sender.poll().terminal):
        raise Aside
    before: dict[Room, tuple[Any, ...]] = {room: _ended(room) for room in (receiver, sender)}
    stage.world.writes_held = False
    stage.fault("the writes land at last")
    stage.settle()
    _same(before, "a late write")
