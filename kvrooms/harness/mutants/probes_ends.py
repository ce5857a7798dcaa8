"""Probes of rooms that end: by their exits (L1), and by themselves where nothing goes wrong (L2)."""

from __future__ import annotations

from typing import Any

from ...protocol.errors import InvalidArgument
from ...protocol.events import ENDINGS, Declared, Fail, Landed, RoomEvent
from ...protocol.failure import Reason
from ...protocol.manifest import Declaration, Manifest
from ...protocol.notify import PartKind
from ...protocol.status import TERMINAL, Phase
from ...statemachine.rooms import DecodeRoom as DecodeMachine
from ...statemachine.rooms import PrefillRoom as PrefillMachine
from ...statemachine.rooms import decode_room, prefill_room, step_decode, step_prefill
from .probe import Play, probe
from .stage import Broken, Room, Shape, Stage

_EXITS = (RoomEvent.DEADLINE, RoomEvent.ABORT, RoomEvent.PEER_LOST)
SWA = Shape(indexed=1)
EMPTY = ("None", "[]", "[[]]", "[None]", "[[], []]", "()", "{}", "{'swa': []}", "(x for x in ())", "[[None]]")
"""Spellings of nothing, to be evaluated."""


# -- L1: every state has exits -----------------------------------------------------------------------------------------


@probe("L1", seeds=1)
def each_phase_ends_by_each_exit(play: Play) -> None:
    """From each phase, whatever the ledger holds, a deadline, an abort and the loss of the peer end a room."""
    manifest = Manifest(2, ((0, 2),), ("token",), (("swa", 1),))
    events: list[Any] = [Landed(0, PartKind.KV, 0, 0, 2), Landed(0, PartKind.AUX, 0, 0, 1)]
    machine = decode_room((manifest,))
    ledgers = [machine.ledger, *(machine.ledger.apply(event) for event in events)]
    sender = prefill_room()
    declared = Declared(Declaration(2, ("token",), (("swa", 1),)))
    sides = [sender.ledger, sender.ledger.apply(declared)]
    for phase in Phase:
        for event in _EXITS if phase not in TERMINAL else ():
            play.scenes += 1
            fail = Fail(event, Reason.ABORTED)
            after = [step_decode(DecodeMachine(phase, ledger), fail)[0].phase for ledger in ledgers]
            after += [step_prefill(PrefillMachine(phase, ledger), fail)[0].phase for ledger in sides]
            if set(after) != {Phase.FAILED}:
                raise Broken(f"{event.name} does not end a room in {phase.name}", phase=phase.name, event=event.name)
    assert set(_EXITS) < set(ENDINGS)


def _trickle(play: Play, **caps: dict[str, Any]) -> None:
    """A room whose pages come one a second has its longest life on one side."""
    stage = play.scene(pages=40)
    pages = list(range(30))
    receiver = stage.receive(pages=pages, **caps.get("decode", {}))
    sender = stage.offer(**caps.get("prefill", {}))
    room: Room = receiver if "decode" in caps else sender
    for page in range(12):
        if not sender.poll().terminal:
            stage.send(sender, [page])
        stage.pass_time(1.0)
    if not room.poll().terminal:
        raise Broken("a room with cap_timeout_s=8 makes progress for ever and has no deadline", at=stage.world.now)
    stage.fails(room, Reason.DEADLINE_CAP)


@probe("L1", seeds=1)
def a_room_on_decode_has_a_longest_life(play: Play) -> None:
    """The cap ends a room that always makes progress."""
    _trickle(play, decode={"cap_timeout_s": 8.0})


@probe("L1", seeds=1)
def a_room_on_prefill_has_a_longest_life(play: Play) -> None:
    """The cap ends a room that always makes progress."""
    _trickle(play, prefill={"cap_timeout_s": 8.0})


# -- L2: agreement ends by itself --------------------------------------------------------------------------------------


def _agree(stage: Stage, ours: object, theirs: object, *, first: str, **given: object) -> None:
    """Two callers who ask for the same end in DONE, without a timer."""
    try:
        if first == "decode":
            receiver, sender = stage.receive(state_indices=theirs), stage.offer()
        else:
            sender, receiver = stage.offer(), stage.receive(state_indices=theirs)
        stage.send(sender, [3, 9])
        stage.send(sender, [4], ours, last=True)
    except InvalidArgument as error:
        raise Broken(f"an argument of a room that agrees is refused: {error}", **given) from error
    try:
        stage.finish(receiver, sender)
        stage.done(receiver, sender)
    except Broken as broken:
        broken.given.update({name: str(value) for name, value in given.items()})
        raise


def _spelled(text: str) -> object:
    return eval(text, {"__builtins__": {}})  # noqa: S307 - spellings from this file


@probe("L2", seeds=1)
def nothing_in_any_spelling(play: Play) -> None:
    """An empty `state_indices`, in any spelling, on either side, never leaves decode waiting."""
    for shape in (Shape(), SWA, Shape(indexed=2)):
        for i, ours in enumerate(EMPTY):
            theirs = EMPTY[(i * 3 + shape.indexed) % len(EMPTY)]
            if not shape.indexed and "swa" in ours + theirs:
                continue
            stage = play.scene(shape, seed=i)
            spelled = {"prefill_state_indices": ours, "decode_state_indices": theirs}
            _agree(stage, _spelled(ours), _spelled(theirs), first=("decode", "prefill")[i % 2], **spelled)


@probe("L2", seeds=1)
def indices_in_any_spelling(play: Play) -> None:
    """The same indices, however they are spelled, are the same."""
    spellings = ("[[3, 5]]", "[3, 5]", "{'swa': [3, 5]}", "((3, 5),)", "(x for x in (3, 5))", "[(x for x in (3, 5))]")
    for i, theirs in enumerate(spellings):
        ours = "[[3, 5]]"
        spelled = {"prefill_state_indices": ours, "decode_state_indices": theirs}
        _agree(play.scene(SWA, seed=i), _spelled(ours), _spelled(theirs), first="decode", **spelled)


@probe("L2")
def rooms_that_agree_in_many_ways(play: Play) -> None:
    """State in two sends, totals known early, pages held already, first slots, no pages, no aux."""
    stage = play.scene(SWA)
    receiver, sender = stage.receive(state_indices=[[1, 2]]), stage.offer()
    stage.send(sender, [3, 9], [[4]])
    stage.send(sender, [4], [[6]], last=True)
    stage.finish(receiver, sender)
    stage.done(receiver, sender)
    stage = play.scene()
    receiver, sender = stage.receive(), stage.offer(pages=3)
    stage.send(sender, [3])
    stage.send(sender, [9, 4])
    stage.finish(receiver, sender)
    stage.done(receiver, sender)
    for options in (
        {"pages": [8], "prefix_pages": 2},
        {"pages": [], "prefix_pages": 3},
        {"aux_index": 0},
        {"pages": range(3)},
    ):
        stage = play.scene()
        receiver, sender = stage.receive(**options), stage.offer(aux_index=0)
        stage.send(sender, [3, 9, 4], last=True)
        stage.finish(receiver, sender)
        stage.done(receiver, sender)
    stage = play.scene()
    receiver, sender = stage.receive(aux_index=None), stage.offer(aux_index=None)
    stage.send(sender, [3, 9, 4], last=True)
    stage.finish(receiver, sender)
    stage.done(receiver, sender)


@probe("L2", seeds=1)
def rooms_that_disagree(play: Play) -> None:
    """Callers who ask for different things end in FAILED as a mismatch, both, without a timer."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any], object]] = [
        ("decode expects fewer pages", {"pages": [8, 2]}, {}, None),
        ("decode expects more pages", {"pages": [8, 2, 5, 6]}, {}, None),
        ("decode expects no aux", {"aux_index": None}, {}, None),
        ("prefill has no aux", {}, {"aux_index": None}, None),
        ("decode expects state", {"state_indices": [[3]]}, {}, None),
        ("prefill sends state", {}, {}, [[3]]),
        ("different lengths of state", {"state_indices": [[3]]}, {}, [[3, 4]]),
        ("pages known early", {"pages": [8, 2]}, {"pages": 3}, None),
    ]
    for i, (what, theirs, ours, state) in enumerate(cases):
        for first, late in (("decode", False), ("prefill", False), ("decode", True)):
            stage = play.scene(SWA, seed=i)
            if first == "decode":
                receiver, sender = stage.receive(**theirs), stage.offer(**ours)
            else:
                sender, receiver = stage.offer(**ours), stage.receive(**theirs)
            if late:
                stage.settle()
            if not sender.poll().terminal:
                stage.send(sender, [3, 9])
                stage.send(sender, [4], state, last=True)
            try:
                stage.finish(receiver, sender)
                stage.fails(receiver, Reason.MISMATCH)
                stage.fails(sender, Reason.MISMATCH)
            except Broken as broken:
                broken.given["callers"] = what
                raise
