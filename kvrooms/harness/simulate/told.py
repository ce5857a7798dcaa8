"""What callers are told beside a status, held against what the judge has seen: memory, what was met, whose fault it is.

Nothing here asks an engine's tables. A word that is too good is what breaks: memory that is free, a page that was met,
an abort that was one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.failure import Failure
from ...protocol.status import Status
from .lives import Trouble

if TYPE_CHECKING:
    from .judge import Judge
    from .lives import Caller, Life

FINAL = frozenset({"mismatch", "handshake_refused", "protocol", "aborted", "peer_aborted"})
"""Reasons that would come again if the same request were made again, unless whoever gives them says otherwise."""
FOR_NOW = " for now"
"""How a caller's words end who aborts a room that may be tried again."""
LATE_S = 1.0
"""How much later than its time something may happen: a tick and a heartbeat."""


def failure(judge: Judge, life: Life, caller: Caller, told: Failure) -> None:
    """A room has failed: is it told whose abort it was, whether to try again, and what it has got?"""
    judge.examples["C2"] += 1
    who = "decode" if caller is life.receiver else "prefill"
    if told.origin == "peer" and told.reason.value == "aborted":
        judge.accuse("C2", f"the other side aborted {life}, and {who} is told that it did so itself: {told}", life)
    final = told.reason.value in FINAL and not told.detail.endswith((FOR_NOW, "the engine was drained"))
    if told.retryable is final:
        again = "would come again" if final else "need not come again"
        judge.accuse("C2", f"{told} {again}, and {who} of {life} is told otherwise", life)
    if caller is life.receiver and life.agree and not life.mixed:
        wrong = _not_met(life, caller)
        judge.examples["S1"] += 1
        if wrong:
            judge.accuse(
                "S1", f"decode of {life} is told that it has got {caller.room.met}, and {wrong} is not there", life
            )


def _not_met(life: Life, caller: Caller) -> str:
    """What of that which a failed room calls met is not there: "" if everything is."""
    met, plan = caller.room.met, life.plan
    if met is None:
        return ""
    pages = [at - plan.prefix for start, stop in met.pages for at in range(start, stop)]
    said = {"kv": pages, "aux": [0] if met.aux else []}
    said |= {name: [at for start, stop in gaps for at in range(start, stop)] for name, gaps in met.state.items()}
    for part, places in said.items():
        targets = plan.target[part]
        if any(not 0 <= at < len(targets) for at in places):
            return f"position {places} of {part}"
        there = caller.side.pool.read(part, [targets[at] for at in places])
        for value, found in zip(plan.values[part], there, strict=True):
            if value[places].tobytes() != found.tobytes():
                return part
    return ""


def memory(judge: Judge, life: Life, caller: Caller) -> None:
    """What may be done with a room's memory, and why."""
    if caller.room is None or caller.gone or caller.held is None:
        return
    free, why = caller.room.memory_status
    judge.examples["S3"] += 1
    freed = caller.held.freed
    if free is not freed or free is not why.startswith("free: "):
        told = "has been told" if freed else "has not been told"
        judge.accuse("S3", f"{life}: its caller {told} that the memory is free, and now it is {why!r}", life)
    elif free and caller is life.receiver:
        wrong = _not_why(judge, life, why)
        if wrong:
            judge.accuse("S3", f"memory of {life} is {why!r}, and {wrong}", life)


def _not_why(judge: Judge, life: Life, why: str) -> str:
    """What speaks against a reason: "" if nothing does."""
    if "never advertised" in why and life.asked:
        return "prefill was asked for it"
    if "has landed" in why and life.receiver.room.poll() is not Status.DONE:
        return "it is not DONE"
    if "process is gone" in why and life.sender.side.name not in judge.died:
        return "no process of that name has ended"
    if "fenced" in why and life.sender.side.name not in judge.fenced:
        return "nobody has said so"
    return ""


def hold(judge: Judge, life: Life) -> None:
    """A hold ends, by release or because the room is opened: was decode told in time what became of the room?"""
    held, end, now = life.hold, life.sender.end, judge.world.now
    if held is None:
        return
    judge.examples["L3"] += 1
    renewed = judge.settings.hold_renew_s + LATE_S
    if held.lost is not None and life.sender.open and not life.trouble:
        judge.accuse("L3", f"{life} is kept by prefill, and decode is told that it is lost: {held.lost}", life)
    if (
        held.lost is None
        and end is not None
        and end.status is Status.FAILED
        and not (life.trouble > Trouble.ANNOUNCED or life.sender.gone or _too_late(life))
        and now - max(life.held_at, life.sender.ended_at) > renewed
    ):
        judge.accuse("L3", f"{life} has failed on prefill, and decode still thinks that it is kept", life)


def _too_late(life: Life) -> bool:
    """Whether prefill's caller may have closed the room before decode's word was there: it may be of its next life."""
    return life.sender.closed and life.held_at + LATE_S > life.sender.ended_at


def kept(judge: Judge, life: Life, told: Failure) -> bool:
    """Whether prefill has given up a room that nobody has asked for, although decode holds it."""
    renewed = judge.settings.hold_renew_s + LATE_S
    waits = life.hold is not None and life.receiver.room is None and not life.trouble
    return waits and told.reason.value == "deadline_bootstrap" and judge.world.now - life.held_at > renewed


def health(judge: Judge) -> None:
    """Memory that has been held for longer than `quarantine_warn_s` is told, and rooms that are open are no problem."""
    warn, now = judge.settings.quarantine_warn_s + LATE_S, judge.world.now
    for side in judge.decodes:
        held = [life for life in judge.lives if life.receiver.side is side and _is_held(life, now - warn)]
        said = side.engine.health()
        judge.examples["L5"] += 1
        if held and said.ok:
            judge.accuse("L5", f"memory of {held[0]} has been held for {warn} s, and health says {said}", held[0])


def _is_held(life: Life, since: float) -> bool:
    caller = life.receiver
    failed = caller.end is not None and caller.end.status is Status.FAILED
    return failed and not caller.free and caller.ended_at < since
