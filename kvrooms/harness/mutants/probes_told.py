"""Probes of what callers and orchestrators are told, and of the word of the orchestrator itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...engine.settings import EngineSettings
from ...protocol.failure import Reason
from ...protocol.status import Status
from ...transport.ports import CloseCause
from ..faults import Faults
from .hand import HandDecode
from .probe import Play, probe
from .stage import Aside, Broken, Room, Shape, Stage

_QUICK = EngineSettings(heartbeat_timeout_s=2.0)
SWA = Shape(indexed=1)


# -- the word of the orchestrator --------------------------------------------------------------------------------------


def _writing(play: Play) -> tuple[Stage, Any]:
    """A room whose writes are posted and do not land."""
    stage = play.scene(settings=_QUICK)
    receiver, _ = stage.pair()
    stage.world.writes_held = True
    stage.fault("no write lands")
    stage.settle()
    if receiver.poll().terminal:
        raise Aside
    return stage, receiver


def _fence(stage: Stage) -> None:
    stage.note("orchestrator", "call", "an engine named prefill was fenced", "decode")
    stage.decodes[0].engine.peer_fenced("prefill")
    stage.settle()


def _cut(stage: Stage) -> None:
    stage.fault("the connection ends: the network timed out")
    stage.decodes[0].ports.channel.cut(CloseCause.TIMED_OUT)
    stage.settle()


@probe("S3", seeds=1)
def the_word_about_a_name_spares_who_lives(play: Play) -> None:
    """Its namesake was fenced. It goes on; it is cut off before or after it was heard of again; it falls silent."""
    for how in ("goes on", "cut off at once", "cut off later", "silent later"):
        stage, receiver = _writing(play)
        stage.pass_time(1.5)
        _fence(stage)
        if receiver.poll().terminal:
            raise Broken(f"a process that lives was taken for its namesake: {receiver.failure}", how=how)
        if how.endswith("later"):
            stage.pass_time(1.5)
        if how.startswith("cut off"):
            stage.world.registry.clear()  # it is not found again for a while
            _cut(stage)
            stage.pass_time(8.0 if how.endswith("later") else 0.3)
        elif how.startswith("silent"):
            stage.fault("stands still", "prefill")
            stage.world.stall("prefill")
            stage.pass_time(8.0)
        if receiver.memory_free:
            raise Broken("pages were handed back, and a process that lives writes to them", how=how)


@probe("L5", seeds=1)
def the_word_counts_whenever_it_is_said(play: Play) -> None:
    """The writer stands still and was fenced, before anybody noticed: its leases end soon, however that is noticed."""
    for how in ("silent", "cut off"):
        stage, receiver = _writing(play)
        stage.fault("stands still", "prefill")
        stage.world.stall("prefill")
        stage.pass_time(0.5)
        _fence(stage)
        if how == "cut off":
            _cut(stage)
        stage.pass_time(6.0)
        if not receiver.memory_free:
            raise Broken("its writer was fenced six seconds ago, and is silent, and the lease has not ended", how=how)


# -- health ------------------------------------------------------------------------------------------------------------

_BYTES = 3 * 2 * 16 + 4 + 8
"""What the room of `_stuck` has: three pages of two buffers, and an aux slot of two."""


def _stuck(play: Play, **settings: Any) -> tuple[Stage, Room]:
    """A room that was aborted on decode after a while, and whose writer stands still."""
    stage = play.scene(settings=EngineSettings(**settings))
    receiver = stage.receive()
    stage.offer()
    stage.settle()
    stage.pass_time(20.0)
    stage.fault("stands still", "prefill")
    stage.world.stall("prefill")
    stage.abort(receiver)
    stage.settle()
    if receiver.memory_free:
        raise Aside
    return stage, receiver


@probe("L5", seeds=1)
def a_lease_that_does_not_end_is_told(play: Play) -> None:
    """Health says so after `quarantine_warn_s`, or as soon as it is too much; with its figures, and no earlier."""
    stage, receiver = _stuck(play, quarantine_warn_s=20.0)
    stage.pass_time(12.0)
    early = stage.decodes[0].engine.health()
    stage.pass_time(12.0)
    said = stage.decodes[0].engine.health()
    if receiver.memory_free:
        raise Aside
    words = " ".join(said.problems)
    if said.ok or "prefill" not in words or (said.quarantined, said.quarantined_bytes) != (1, _BYTES):
        raise Broken(f"memory of a room has been held for 24 s by a writer that is silent, and health says {said}")
    if not early.ok or not 11.0 < early.quarantined_s < 19.0:
        raise Broken(f"memory of a room has been held for 12 s, which is no trouble yet, and health says {early}")
    stage, _ = _stuck(play, quarantine_share=0.01)
    if stage.decodes[0].engine.health().ok:
        raise Broken("a tenth of the memory is held for rooms that are over, and health says nothing")


# -- the answer to an abort --------------------------------------------------------------------------------------------


@probe("S3", seeds=1)
def the_answer_to_an_abort_is_true(play: Play) -> None:
    """Free, or held, and why: while writes are in flight, when they have settled, and where there never was one."""
    stage, receiver = _writing(play)
    receiver.abort()
    stage.settle()
    if receiver.poll() is not Status.FAILED:
        raise Aside
    said = receiver.memory_status
    if said.free or not said.why.startswith("held: a write may still land"):
        raise Broken(f"writes to a room that was aborted are in flight, and its memory is said to be {said.why!r}")
    stage.world.writes_held = False
    stage.settle()
    said = receiver.memory_status
    if said.free and "promised" not in said.why:
        raise Broken(f"the writer has acknowledged, and memory is said to be {said.why!r}")
    stage = play.scene()
    receiver = stage.receive()
    stage.abort(receiver)
    stage.settle()
    said = receiver.memory_status
    if said.free and "never advertised" not in said.why:
        raise Broken(f"nobody was ever asked to write, and memory is said to be {said.why!r}")


# -- what a failed room has got ----------------------------------------------------------------------------------------


def _moments(play: Play) -> Iterator[tuple[Stage, Any, Any]]:
    """A room with all kinds of parts, ended at many moments."""
    for moment in range(6, 60, 3):
        stage = play.scene(SWA, settings=EngineSettings(piece_bytes=40), seed=moment)
        receiver, sender = stage.receive(state_indices=[[2, 6]]), stage.offer()
        stage.send(sender, [3, 9])
        stage.send(sender, [4], [[5, 1]], last=True)
        for _ in range(moment):
            stage.world.step()
        yield stage, receiver, sender


@probe("S1", seeds=1)
def what_a_failed_room_calls_met_has_landed(play: Play) -> None:
    """Every page, slot and index that a failed room says it has got is there, on the word of either side."""
    for stage, receiver, sender in _moments(play):
        stage.abort(receiver)
        stage.settle()
        for room in (receiver, sender):
            met = room.met
            if room.poll() is not Status.FAILED or met is None:
                continue
            pages = [position for start, stop in met.pages for position in range(start, stop)]
            state = [position for start, stop in met.state.get("swa", ()) for position in range(start, stop)]
            there = [stage.landed("kv", [(3, 9, 4)[at]], [(8, 2, 5)[at]]) for at in pages]
            there += [stage.landed("swa", [(5, 1)[at]], [(2, 6)[at]]) for at in state]
            there += [stage.landed("aux", [1], [3])] if met.aux else []
            if not all(there):
                raise Broken(f"{room!r} says that it has got {met}, and it has not")


@probe("C2", seeds=1)
def what_has_landed_is_told_as_met(play: Play) -> None:
    """A failure that comes after some pages says which: a caller can compute the rest."""
    stage = play.scene()
    receiver, sender = stage.receive(), stage.offer()
    stage.send(sender, [3, 9])
    stage.settle()
    stage.abort(receiver)
    stage.settle()
    for room in (receiver, sender):
        if room.poll() is not Status.FAILED:
            raise Aside
        if room.met is None or room.met.pages != ((0, 2),):
            raise Broken(f"two pages of {room!r} have landed and were reported, and it says {room.met}")


# -- whether to try again ----------------------------------------------------------------------------------------------


def _failed(stage: Stage, how: str) -> list[Room]:
    """Rooms that failed in one way."""
    match how:
        case "mismatch":
            receiver, sender = stage.receive(pages=[8, 2]), stage.offer()
            stage.send(sender, [3, 9, 4], last=True)
            return [receiver, sender]
        case "refused":
            hand = HandDecode(stage)
            hand.say(hand.metadata(1))
            return [stage.receive()]
        case "abort" | "abort for now" | "abort for now on decode":
            receiver, sender = stage.receive(), stage.offer()
            stage.settle()
            (receiver if how.endswith("decode") else sender).abort("as it is told", again="for now" in how)
            stage.settle()
            return [receiver, sender]
        case "lost":
            receiver, sender = stage.receive(), stage.offer()
            stage.settle()
            _cut(stage)
            return [receiver, sender]
        case _:
            stage.world.faults = Faults(flips=1.0)
            return list(stage.pair())


@probe("C2", seeds=1)
def a_failure_says_whether_to_try_again(play: Play) -> None:
    """A mismatch and an abort would come again, if it is not said otherwise; a refusal and other trouble need not."""
    again = {"mismatch": False, "abort": False, "refused": True, "lost": True, "damaged": True}
    again |= {"abort for now": True, "abort for now on decode": True}
    for how, retryable in again.items():
        settings = EngineSettings(digest=int(how == "damaged"), parked_per_peer=1, parked_total=1)
        stage = play.scene(settings=settings)
        rooms = _failed(stage, how)
        stage.settle()
        if rooms[0].failure is None:
            raise Aside
        for room in rooms:
            if room.failure is not None and room.failure.retryable is not retryable:
                words = "need not come again" if retryable else "will come again"
                raise Broken(f"{room.failure} {words}, and its caller is told otherwise", how=how)


@probe("C2", seeds=1)
def whose_abort_it_was_is_told(play: Play) -> None:
    """To the side that did not abort it is the peer's, over whichever frame it comes."""
    for how in ("decode", "prefill", "held"):
        stage = play.scene(settings=EngineSettings(hold_renew_s=1.0))
        receiver, sender = None if how == "held" else stage.receive(), stage.offer()
        hold = stage.hold() if how == "held" else None
        stage.settle()
        stage.abort(receiver if how == "decode" and receiver is not None else sender)
        stage.pass_time(3.0)
        told = hold.lost if hold is not None else (sender if how == "decode" else receiver).failure  # type: ignore[union-attr]
        if told is None:
            raise Aside
        if (told.reason, told.origin) != (Reason.PEER_ABORTED, "peer"):
            raise Broken(f"the other side aborted the room, and this side is told {told}", who=how)


# -- damaged bytes -----------------------------------------------------------------------------------------------------


class _Damage:
    """The n-th descriptor that lands lands with a wrong byte."""

    def __init__(self, stage: Stage, at: int) -> None:
        self.left = at
        world = stage.world
        inner = world.witness.landed

        def landed(*told: Any) -> None:
            self.left -= 1
            world.faults = Faults(flips=float(self.left == 1))
            inner(*told)

        world.faults = Faults(flips=float(at == 1))
        world.witness.landed = landed  # type: ignore[assignment, method-assign]


@probe("S1", seeds=1)
def a_damaged_byte_is_never_done(play: Play) -> None:
    """With digests, one wrong byte anywhere in what was sent: the room on decode fails, and says why."""
    for piece in (40, 1 << 20):
        for at in range(1, 16):
            stage = play.scene(SWA, settings=EngineSettings(digest=1, piece_bytes=piece), seed=at)
            damage = _Damage(stage, at)
            receiver, sender = stage.receive(pages=[8, 9, 5], state_indices=[[2, 6]]), stage.offer()
            stage.send(sender, [3, 4])
            stage.send(sender, [9], [[5, 1]], last=True)
            stage.settle()
            if damage.left > 0:
                continue
            if receiver.poll() is Status.DONE:
                raise Broken(f"a byte of descriptor {at} that landed is wrong, and the room is DONE")
            if receiver.failure is not None and receiver.failure.reason is not Reason.CORRUPTED:
                raise Broken(f"a byte of descriptor {at} that landed is wrong, and the room says {receiver.failure}")


@probe("L2", seeds=1)
def with_digests_a_room_is_done_as_without(play: Play) -> None:
    """Nothing is damaged: pages that are no neighbours, a prefix that decode has, indices in two sends."""
    for piece in (40, 1 << 20):
        stage = play.scene(SWA, settings=EngineSettings(digest=1, piece_bytes=piece))
        receiver = stage.receive(pages=[8, 2, 5], prefix_pages=1, state_indices=[[2, 6]])
        sender = stage.offer()
        stage.send(sender, [3, 9], [[5]])
        stage.send(sender, [4, 7], [[1]], last=True)
        stage.finish(receiver, sender)
        stage.done(receiver, sender)


# -- causes that come at once ------------------------------------------------------------------------------------------


@probe("C2", seeds=1)
def of_causes_that_come_at_once_the_transports_wins(play: Play) -> None:
    """A write has failed, its caller aborts, and decode is gone: prefill learns all of it in one step."""
    for also in ("aborted", "cut off", "both"):
        stage = play.scene()
        _, sender = stage.pair()
        stage.world.writes_held = True
        stage.settle()
        if sender.poll().terminal or not stage.world.writes:
            raise Aside
        stage.fault("writes fail, and more at the same time", "prefill")
        stage.world.stall("prefill")
        if also != "cut off":
            sender.abort("its caller has changed its mind")
        if also != "aborted":
            stage.prefills[0].ports.channel.cut(CloseCause.TIMED_OUT)
        for write in list(stage.world.writes):
            stage.prefills[0].ports.transport.fail(write, "broken")
        stage.world.stall("prefill", stalled=False)
        stage.settle()
        if sender.poll() is not Status.FAILED:
            raise Aside
        failure = sender.failure
        if failure is None or failure.reason is not Reason.TRANSPORT_ERROR:
            raise Broken(f"a write of {sender!r} had failed, and it says {failure}", also=also)
