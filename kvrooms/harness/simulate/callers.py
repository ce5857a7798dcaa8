"""What callers of a simulated room intend, and how they do it through the public methods."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...protocol.errors import EngineClosed, InvalidArgument, Overloaded, RoomClosed, RoomFailed
from ...protocol.status import Status
from . import told
from .judge import Judge
from .lives import Caller, End, Key, Life, Trouble
from .memory import Items, Plan, Shape
from .swarm import WAITING_S, Swarm

Sends = deque[dict[str, Any]]
QUEUES_S = (0.0, 7.0, 1.5 * WAITING_S)
"""For how long a room that is held may queue on decode: not at all, beyond a renewal, longer than prefill waits."""


def make_life(serial: int, key: Key, plan: Plan, judge: Judge, where: tuple[int, int]) -> Life:
    """A life with callers that intend to do everything right, or not: by the habits of the swarm. where: the indices of

    its decode and its prefill side.
    """
    draw, swarm = judge.world.random, judge.swarm
    decode, prefill = judge.decodes[where[0]], judge.prefills[where[1]]
    asks = {
        "bootstrap": prefill.engine.bootstrap,
        "instance": prefill.name if len(judge.prefills) > 1 or draw.random() < swarm.named else "",
        "pages": plan.target["kv"],
        "aux_index": next(iter(plan.target["aux"]), None),
        "state_indices": spelled(draw, swarm.shape, plan.state(plan.target)),
        "prefix_pages": plan.prefix,
    }
    gives: dict[str, Any] = {"aux_index": next(iter(plan.source["aux"]), None)}
    if draw.random() < 0.3:
        gives["pages"] = plan.pages
    receiver, sender = Caller(decode, asks), Caller(prefill, gives)
    disagrees = draw.random() < swarm.callers["disagree"] and _disagree(draw, swarm.shape, plan, asks, gives)
    life = Life(serial, key, plan, receiver, sender, agree=not disagrees)
    stateless = asks.get("skip_state") or not any(plan.state(plan.target).values())
    life.asks_nothing = not asks["pages"] and asks["aux_index"] is None and stateless
    life.sends = chunks(draw, swarm.shape, plan)
    receiver.intends.extend(("open", "close"))
    sender.intends.extend(("open", *["send"] * len(life.sends), "close"))
    _habits(draw, swarm, life)
    if receiver.intends and draw.random() < swarm.callers["hold"]:
        receiver.intends.extendleft(("release", "hold") if draw.random() < 0.3 else ("hold",))
    return life


def _habits(draw: random.Random, swarm: Swarm, life: Life) -> None:
    """What is special about these callers."""
    for caller in life.callers:
        if draw.random() < swarm.callers["abort"] / 2:
            caller.intends.insert(draw.randrange(1, len(caller.intends)), "abort")
        if draw.random() < swarm.callers["hasty"] / 2:
            caller.intends.insert(draw.randrange(1, len(caller.intends)), "hasty close")
        if draw.random() < swarm.callers["misuse"]:
            what = draw.choice(("open again", "send after the end" if caller is life.sender else "open again"))
            at = len(caller.intends) if what == "send after the end" else draw.randrange(1, len(caller.intends))
            caller.intends.insert(at, what)
    if draw.random() < swarm.callers["vanish"]:
        caller = draw.choice(life.callers)
        kept = draw.randrange(len(caller.intends))
        while len(caller.intends) > kept:
            caller.intends.pop()


def _disagree(draw: random.Random, shape: Shape, plan: Plan, asks: dict[str, Any], gives: dict[str, Any]) -> bool:
    """Let decode ask for something else. False: there is nothing to disagree about."""
    ways = ["aux"] if plan.target["aux"] else []
    ways += ["pages", "more pages"] if plan.target["kv"] else []
    ways += ["state"] if any(plan.target[name] for name in shape.components) else []
    if not ways:
        return False
    match draw.choice(ways):
        case "aux":
            draw.choice((asks, gives))["aux_index"] = None
        case "pages":
            asks["pages"] = plan.target["kv"][:-1]
        case "more pages":
            asks["prefix_pages"] = plan.prefix + 1
        case "state":
            state = plan.state(plan.target)
            name = draw.choice([name for name, some in state.items() if some])
            if len(state[name]) == 1 and name in ("conv", "ssm"):
                asks |= {"skip_state": True, "state_indices": None}
            else:
                asks["state_indices"] = {**state, name: state[name][:-1]}
    return True


def spelled(draw: random.Random, shape: Shape, state: Items) -> Any:
    """State indices as somebody may write them."""
    names = shape.components
    if not any(state.values()):
        return draw.choice((None, [], {}, [None for _ in names], [[] for _ in names], tuple([] for _ in names)))
    listed = [state[name] for name in names]
    return draw.choice((state, listed, tuple(listed), [some or None for some in listed], iter(listed)))


def chunks(draw: random.Random, shape: Shape, plan: Plan) -> Sends:
    """The sends of a plan: pages and state in any chunks, empty ones too; the last one says so."""
    cuts = sorted(draw.randrange(plan.pages + 1) for _ in range(draw.randrange(4)))
    state = plan.state(plan.source)
    sends: Sends = deque()
    early = draw.random() < 0.3
    for start, stop in zip([0, *cuts], [*cuts, plan.pages], strict=True):
        last = len(sends) == len(cuts)
        now = {
            name: some if last else some[: draw.randrange(len(some) + 1)] if early else []
            for name, some in state.items()
        }
        state = {name: some[len(now[name]) :] for name, some in state.items()}
        indices = spelled(draw, shape, now)
        sends.append({"pages": plan.source["kv"][start:stop], "state_indices": indices, "last": last})
    return sends


@contextmanager
def lent(life: Life, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Arguments of a call. In every third life the pages stand in an array that its caller fills anew afterwards."""
    pages = given.get("pages")
    if life.serial % 3 or not isinstance(pages, list):
        yield given
        return
    array = np.array(pages, dtype=np.int32)
    yield {**given, "pages": array}
    array.fill(0)


class Callers:
    """Does what callers intend, and looks at what they get for it. scarce: rooms have to queue for memory."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.world = judge.world
        self.scarce = True

    def may(self, caller: Caller) -> bool:
        """Whether the next thing that a caller intends can be done now."""
        if caller.gone or not caller.intends or (self.scarce and caller.queues_until > self.world.now):
            return False
        act = caller.intends[0]
        return act in ("open", "hold", "release") or (
            caller.room is not None and (act != "close" or caller.end is not None)
        )

    def act(self, life: Life, caller: Caller) -> None:
        """Do the next thing."""
        what = caller.intends.popleft()
        self.judge.note(f"{who(life, caller)} caller", "call", what, life)
        match what:
            case "open":
                self._open(life, caller)
            case "hold":
                self._hold(life, caller)
            case "release":
                self._release(life, caller)
            case "open again":
                self._open_again(life, caller)
            case "send":
                self._send(life, caller)
            case "send after the end":
                self._send_after(life, caller)
            case "abort":
                self._abort(life, caller)
            case _:
                self.close(life, caller)

    def _open(self, life: Life, caller: Caller) -> None:
        try:
            with lent(life, caller.arguments) as given:
                caller.room = caller.side.engine.open(life.key[0], attempt=life.key[1], **given)
        except InvalidArgument as error:
            self.judge.accuse(
                "C1", f"{life} cannot be opened, although nothing is left of the life before: {error}", life
            )
            caller.intends.clear()
            return
        except Overloaded as error:
            self._overloaded(life, caller, error)
            return
        if caller is life.receiver:
            told.hold(self.judge, life)
            life.hold = None
        self.judge.enter(life, caller)
        life.touched_by_callers(self.world.now)

    def _overloaded(self, life: Life, caller: Caller, error: Overloaded) -> None:
        """There are as many rooms as there may be, not forgotten yet or with memory that is held: it gives up."""
        rooms = len(self.judge.places_of(caller.side))
        if rooms < self.judge.settings.rooms_max:
            self.judge.accuse("L4", f"{life} is refused, and there are {rooms} rooms: {error}", life)
        self.judge.injected["room refused"] += 1
        caller.intends.clear()
        if caller is life.receiver:
            self._release(life, caller)

    def _hold(self, life: Life, caller: Caller) -> None:
        """Ask prefill to keep the room: decode has no memory for it yet."""
        where = {name: caller.arguments[name] for name in ("bootstrap", "instance")}
        try:
            life.hold = caller.side.engine.hold(life.key[0], attempt=life.key[1], **where)
        except Overloaded:
            return
        life.held_at = self.world.now
        caller.queues_until = self.world.now + self.world.random.choice(QUEUES_S)

    def _release(self, life: Life, caller: Caller) -> None:
        if life.hold is not None:
            told.hold(self.judge, life)
            caller.side.engine.release(life.hold)
            life.hold = None

    def _open_again(self, life: Life, caller: Caller) -> None:
        if caller.closed:
            return
        try:
            caller.side.engine.open(
                life.key[0], attempt=life.key[1], **({} if caller is life.sender else {"bootstrap": "x"})
            )
        except (InvalidArgument, Overloaded):
            return
        self.judge.accuse("S4", f"{life} is open, and could be opened again", life)

    def _send(self, life: Life, caller: Caller) -> None:
        send = life.sends.popleft()
        try:
            if life.serial % 3 == 1:
                self._send_wrongly(life, caller, send)
            with lent(life, send) as given:
                caller.room.send(**given)
        except InvalidArgument as error:
            self.judge.accuse("L2", f"what is left of {life} is refused, and nothing is wrong with it: {error}", life)
            caller.intends.clear()
            return
        except RoomClosed:
            if caller.end is None and not caller.closed:
                self.judge.accuse("L4", f"{life} goes on, and prefill takes no more of it", life)
            return
        life.sent_all = not life.sends
        life.touched_by_callers(self.world.now)
        if caller.end is not None and caller.end.status is not Status.DONE:  # one that owes nothing is DONE at once
            self.judge.accuse("S2", f"{life} has ended, and prefill takes more of it", life)

    def _send_wrongly(self, life: Life, caller: Caller, send: dict[str, Any]) -> None:
        """A last send that does not reach the pages which were announced is refused, and has said nothing."""
        if caller.arguments.get("pages") is None or not any(later["pages"] for later in life.sends):
            return
        try:
            caller.room.send(send["pages"], last=True)
        except InvalidArgument:
            return
        self.judge.accuse("A1", f"prefill has taken fewer pages of {life} than it was told it would get", life)

    def _send_after(self, life: Life, caller: Caller) -> None:
        if caller.room is None:
            return
        try:
            caller.room.send([], last=True)
        except (RoomClosed, InvalidArgument):
            return
        self.judge.accuse("S2", f"everything of {life} was sent, and prefill takes more of it", life)

    def _abort(self, life: Life, caller: Caller) -> None:
        if caller.end is None:
            self.judge.touch(life, Trouble.ANNOUNCED, f"{who(life, caller)} aborts")
        again = life.serial % 2 == 1
        caller.room.abort(f"{life.tag} its caller changed its mind{told.FOR_NOW if again else ''}", again=again)
        runner = self.world.runner(caller.side.name)
        if runner.turning and not caller.closed and self.world.random.random() < 0.3:
            runner.turn()
            self.judge.examples["L1"] += 1
            if caller.end is None:
                self.judge.accuse("L1", f"an abort does not end {who(life, caller)} of {life}", life)
        told.memory(self.judge, life, caller)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, life: Life, caller: Caller) -> None:
        """Finish with a room, asking for its failure first or not."""
        if caller.closed:
            return
        if caller.end is None:
            self.judge.touch(life, Trouble.ANNOUNCED, f"{who(life, caller)} closes it while it is open")
        else:
            self.absorbs(life, caller)
        turning = self.world.runner(caller.side.name).turning
        failed = caller.end is not None and caller.end.status is Status.FAILED
        if failed and turning and self.world.random.random() < 0.5:
            self._surface(life, caller)
        caller.room.close()
        caller.closed = True

    def absorbs(self, life: Life, caller: Caller) -> None:
        """A room that has ended is as it was when it ended."""
        if caller.end is not None and not caller.gone:
            now = End(caller.room.poll(), caller.room.failure)
            self.judge.examples["S2"] += 1
            if now != caller.end:
                self.judge.accuse("S2", f"{who(life, caller)} of {life} had ended as {caller.end} and is {now}", life)
            told.memory(self.judge, life, caller)

    def _surface(self, life: Life, caller: Caller) -> None:
        room, end = caller.room, caller.end
        assert end is not None
        self.judge.examples["C2"] += 1
        try:
            room.failure_exception()
        except RoomFailed as error:
            if error.failure != end.failure:
                self.judge.accuse(
                    "C2", f"{life} failed because of {end.failure}, and its caller is told {error.failure}", life
                )
            if room.record is not None:
                self.judge.accuse("C2", f"the failure of {life} was raised while the engine still held the room", life)
        except EngineClosed:
            self.judge.accuse("C2", f"{life} failed, and the engine does not let go of it", life)
        else:
            self.judge.accuse("C2", f"{life} failed, and no exception is raised", life)
        try:
            room.failure_exception()
        except (RoomClosed, EngineClosed):
            return
        except RoomFailed:
            pass
        self.judge.accuse("C2", f"the failure of {life} is raised a second time", life)


def who(life: Life, caller: Caller) -> str:
    """Which side's caller it is."""
    return "decode" if caller is life.receiver else "prefill"
