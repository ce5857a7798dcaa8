"""Probes of what callers hand over: arrays that are theirs again, calls that were refused, totals that come late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...protocol.errors import InvalidArgument
from ...protocol.failure import Reason
from .probe import Play, probe
from .probes_done import watch_landing
from .stage import Broken, Shape, Stage

_NEITHER_PAGES_NOR_AUX: dict[str, Any] = {"pages": [], "prefix_pages": 3, "aux_index": None}


@probe("S1", seeds=2)
def what_was_handed_over_is_the_callers_again(play: Play) -> None:
    """Indices come in arrays that are filled anew after each call: each call has meant what stood there."""
    for kind in (np.int32, np.int64, np.uint8):
        stage = play.scene(Shape(indexed=1), pages=80)
        mine, theirs = np.array([3, 9, 4], dtype=kind), np.array([8, 2, 5], dtype=kind)
        slots, places = np.array([3, 5], dtype=kind), np.array([6, 1], dtype=kind)
        receiver = stage.receive(pages=theirs, state_indices=[places])
        watch_landing(stage, receiver, {"kv": ([3, 9, 4], [8, 2, 5]), "swa": ([3, 5], [6, 1]), "aux": ([1], [3])})
        sender = stage.offer()
        for chunk in (slice(0, 2), slice(2, 3)):
            stage.send(sender, mine[chunk], [slots[chunk]] if chunk.start == 0 else None, last=chunk.start == 2)
            mine[chunk], slots[:] = 7, 7
        theirs[:], places[:] = 0, 0
        stage.note("callers", "call", "use their arrays for something else")
        stage.finish(receiver)
        stage.look()


def _refused(call: Callable[[], None], stage: Stage, what: str) -> bool:
    """Whether a call that cannot be meant is refused; where it is not, that is another property's business."""
    try:
        call()
    except InvalidArgument as error:
        stage.note("prefill caller", "state", f"{what} is refused: {error}")
        return True
    return False


@probe("L2", seeds=1)
def a_refused_send_has_said_nothing(play: Play) -> None:
    """A caller corrects what it was told is wrong: the room is as it was before, and ends like any other."""
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any], tuple[Any, ...], dict[str, Any]], ...] = (
        ("a last send without the state that is always owed", {"always": 1}, {}, ([3, 9, 4],), {"last": True}),
        ("a last send of fewer pages than were announced", {}, {"pages": 3}, ([3],), {"last": True}),
        ("a send of more pages than were announced", {}, {"pages": 3}, ([3, 9, 4, 5],), {}),
        ("a page that is not there", {}, {}, ([3, 99],), {}),
        ("an index that is not there", {"indexed": 1}, {}, ([3], [[99]]), {}),
        ("state that the layout does not have", {}, {}, ([3], [[1]]), {}),
        ("a word that is neither yes nor no", {}, {}, ([3],), {"last": 1}),
    )
    for i, (what, shape, ours, given, how) in enumerate(cases):
        for earlier in ([], [3]):
            stage = play.scene(Shape(**shape), seed=i)
            state = [[2]] if shape else None
            receiver, sender = stage.receive(state_indices=state), stage.offer(**ours)
            if earlier:
                stage.send(sender, earlier)
            wrong = given if not earlier else ([99], *given[1:]) if given[0][-1] == 99 else given
            if not _refused(partial(stage.send, sender, *wrong, **how), stage, what):
                continue
            try:
                stage.send(sender, [3, 9, 4][len(earlier) :], state, last=True)
                stage.finish(receiver, sender)
                stage.done(receiver, sender)
            except (Broken, InvalidArgument) as error:
                words = f"{what} was refused, and then the right one does not end the room: {error}"
                raise Broken(words, refused=what) from error


@probe("S3", seeds=1)
def an_index_has_one_owner(play: Play) -> None:
    """Slots of a component stay its room's, whichever other components either room has indices for."""
    both: dict[str, list[int]] = {"swa": [1], "index": [2]}
    for theirs, ours in (({"index": [2]}, both), (both, {"index": [2]}), ({"swa": [1]}, both), (both, {"swa": [1]})):
        stage = play.scene(Shape(indexed=2))
        stage.world.writes_held = True
        receiver, sender = stage.receive(state_indices=theirs), stage.offer()
        stage.send(sender, [3, 9, 4], {name: [5] for name in theirs}, last=True)
        stage.settle()
        stage.abort(receiver)
        stage.settle()
        try:
            stage.receive(8, pages=[], aux_index=None, state_indices=ours)
        except InvalidArgument:
            continue
        raise Broken(
            f"slots of {ours} were given to another room, and writes to {theirs} of {receiver!r} are in flight"
        )


@probe("A1", seeds=1)
def nothing_is_complete_before_the_totals_are_compared(play: Play) -> None:
    """All that decode asks for is there, or nothing was asked for; what prefill's caller says last may still differ."""
    cases: tuple[tuple[str, dict[str, Any], list[int]], ...] = (
        ("nothing is owed", _NEITHER_PAGES_NOR_AUX, [3, 9, 4]),
        ("all pages are there", {"pages": [8, 2, 5], "aux_index": None}, [3, 9, 4]),
    )
    for what, theirs, pages in cases:
        for first in ("decode", "prefill"):
            stage = play.scene(Shape(indexed=1))
            if first == "decode":
                receiver, sender = stage.receive(**theirs), stage.offer(aux_index=None)
            else:
                sender, receiver = stage.offer(aux_index=None), stage.receive(**theirs)
            stage.settle()
            stage.send(sender, pages)
            stage.settle()
            stage.send(sender, [], [[1]], last=True)
            stage.settle()
            for room in (receiver, sender):
                if room.failure is None or room.failure.reason is not Reason.MISMATCH:
                    raise Broken(
                        f"prefill sends an index that decode does not expect, and {room!r} ended first", given=what
                    )
