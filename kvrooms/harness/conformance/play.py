"""Playing a plan on a stage: whose turn it is, what callers do, what happens in between."""

from __future__ import annotations

from .plan import Act, Plan, RoomPlan
from .stage import Broken, Live, Stage
from .subject import GuestSays, Request, Side, Unsupported


def play(stage: Stage, plan: Plan, *, rooms: tuple[RoomPlan, ...] | None = None, barrier: bool = False) -> list[Live]:
    """Make all calls of a plan (of these rooms of it), and let nothing run but where the plan says so."""
    lives = [stage.room(room) for room in (plan.rooms if rooms is None else rooms)]
    weave(stage, plan, lives, barrier=barrier)
    return lives


def weave(stage: Stage, plan: Plan, lives: list[Live], *, barrier: bool = False) -> None:
    """The calls of several rooms, woven as the plan says."""
    queues = [(live, live.plan.acts(barrier=barrier)) for live in lives]
    if plan.held:
        stage.hold()
    step = 0
    while waiting := [(live, acts) for live, acts in queues if acts]:
        turn = plan.weave[step] if step < len(plan.weave) else 0
        live, acts = waiting[turn % len(waiting)]
        perform(stage, live, acts.pop(0), insist=live.plan.cut is not None and live.plan.cut.then)
        if step < len(plan.noise):
            say(stage, plan, step)
        if step < len(plan.rests) and plan.rests[step]:
            stage.rest(plan.rests[step])
        step += 1
    for index in range(step, len(plan.noise)):
        say(stage, plan, index)


def release(stage: Stage) -> None:
    """Let writes that were held back happen, unless who posted them is dead."""
    if ("decode" if stage.subject.traits.pulls else "prefill") in stage.killed:
        return
    stage.note("wire", "fault", "writes happen again")
    stage.subject.hold_writes(held=False)


def say(stage: Stage, plan: Plan, index: int) -> None:
    """What a stranger says."""
    channel, side, parts = plan.noise[index]
    shown = ", ".join(repr(part[:40]) for part in parts)
    stage.note("stranger", "message", f"{channel}: {shown}", to=side)
    stage.subject.inject(side, channel, parts)


GUEST_WORDS: dict[GuestSays, str] = {
    "claim": "asks prefill for the room, with memory of its own",
    "grant": "says to prefill that what decode has asked for is given up",
    "notification": "says to decode that everything has arrived",
}


def lie(stage: Stage, live: Live, saying: GuestSays) -> None:
    """A peer that was let in says something of a room that is not its own."""
    given = live.given["decode"]
    stage.note(
        "guest", "message", f"{GUEST_WORDS[saying]} ({live})", to="decode" if saying == "notification" else "prefill"
    )
    state = [list(some) for some in given.state]
    stage.subject.guest(saying, Request(live.number, live.attempt, given.pages, given.aux, state))


def perform(stage: Stage, live: Live, act: Act, *, insist: bool = False) -> None:
    """One call of a room's caller. A caller that does not insist looks before it sends."""
    match act.verb:
        case "open":
            stage.open(live, act.side)
        case "send":
            if "prefill" not in live.handles:
                return
            if insist:
                _send_late(stage, live, act.index)
            else:
                stage.look()
                if live.state["prefill"] == "open":
                    stage.send(live, act.index)
        case "abort":
            stage.abort(live, act.side)
        case "close":
            stage.close(live, act.side)
        case "kill":
            stage.kill(act.side)
        case "fail":
            stage.note("wire", "fault", "writes fail from here on")
            stage.dirty = True
            stage.subject.fail_writes(failing=True)
        case "rest":
            stage.rest(long=True)  # for what comes after it, both must have heard of the room


def _send_late(stage: Stage, live: Live, index: int) -> None:
    """A caller that sends whatever has become of the room: to be told that it is wrong is an answer, too."""
    try:
        stage.send(live, index)
    except Broken as broken:
        stage.look()
        if live.state["prefill"] == "open":
            raise
        stage.note("prefill", "state", broken.summary)


def end(stage: Stage, lives: list[Live], *, close: bool = True) -> None:
    """What callers do with rooms that are over or that they give up."""
    sides: tuple[Side, Side] = ("prefill", "decode")
    for live in lives:
        for side in sides:
            if live.state[side] == "open" and side in stage.subject.traits.aborts:
                stage.abort(live, side)
            if close:
                stage.close(live, side)


def hung(stage: Stage, lives: list[Live], why: str) -> Broken:
    """The words for rooms that nothing but a timer will end."""
    stage.look()
    live = next(live for live in lives if not live.ended)
    sides = " and ".join(live.open_sides)
    others = "; ".join(
        f"{side} is {state}" + (f": {live.said_at_refusal[side]}" if side in live.said_at_refusal else "")
        for side, state in live.state.items()
        if state != "open"
    )
    waits = "wait" if len(live.open_sides) > 1 else "waits"
    return Broken(
        f"{why}: {sides} {waits}, and nothing but a timer can end it" + (f" ({others})" if others else ""), live
    )


def must_end(
    stage: Stage, lives: list[Live], why: str, *, timers: bool = False, patience_s: float | None = None
) -> None:
    """Raise Broken unless every side that is open ends."""
    if not stage.settle(lambda: all(live.ended for live in lives), timers=timers, patience_s=patience_s):
        raise hung(stage, lives, why)


def must_be_done(stage: Stage, live: Live, why: str, *, whole: bool) -> None:
    """Raise Broken unless the room is done on both sides (and, if `whole`, has the right bytes)."""
    for side, state in live.state.items():
        if state != "done":
            raise Broken(f"{why}, but {side} says {state}{_reason(stage, live, side)}", live)
    if whole and live.wrong_at_done is not None:
        raise Broken(f"{why} and decode says done, but {live.wrong_at_done}", live)


def _reason(stage: Stage, live: Live, side: Side) -> str:
    said = live.said_at_refusal.get(side)
    if said is None and live.state[side] == "failed":
        try:
            said = stage.subject.failure(live.handles[side])
        except Unsupported:
            said = None
    return f": {said}" if said else ""
