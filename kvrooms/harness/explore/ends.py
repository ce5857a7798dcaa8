"""How things must stand where nothing moves any more: what has ended, how, and what may still be held.

Two readings of a state. *Quiet*: nothing can happen without a timer. *Last*: not even a timer but the repeated ABORT
can change anything. What is excused is written down here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.failure import Reason
from ...protocol.status import TERMINAL, Phase
from . import decode_side, prefill_values
from .glue import DEAD, STALLED, UP, Broken
from .prefill_values import PARKED
from .system import Budget, State, System

HARMLESS, ANNOUNCED, SILENT = 1, 2, 3


class Scene:
    """A state with its values at hand."""

    def __init__(self, system: System, state: State) -> None:
        self.system = system
        self.decode: decode_side.DecodeSide = system.decodes.values[state[0]]
        self.budget: Budget = system.budgets.values[state[1]]
        lanes = range(system.lanes)
        self.prefills: list[prefill_values.PrefillSide] = [system.prefills.values[state[2 + 3 * i]] for i in lanes]
        self.plans = system.plans

    def untouched(self, use: int) -> bool:
        """Whether no fault concerned this use: the callers must get what they asked for."""
        # Uses that follow each other share their callers' patience; beside each other they share nothing.
        apart = self.budget.apart and self.budget.severity == ANNOUNCED and not self.system.setup.in_turn
        return self.budget.severity <= HARMLESS or (apart and use > 0)

    def open_words(self, use: int) -> str:
        """What each side of a use believes."""
        record = self.decode.records[use]
        sides = [f"decode {_phase(record)}"]
        sides += [f"prefill {_phase(side.records[use])}" for side in self.prefills]
        return ", ".join(sides)


def _phase(record: decode_side.Record | prefill_values.Record | None) -> str:
    if record is None:
        return "not opened"
    cause = f" ({record.last.cause.value})" if record.last.cause else ""
    return record.last.phase.value + cause


def quiet(system: System, state: State) -> Iterator[Broken]:
    """What is wrong with a state in which nothing can happen without a timer."""
    scene = Scene(system, state)
    for use in range(len(system.plans)):
        if scene.untouched(use):
            yield from _as_asked(scene, use)
        elif scene.budget.severity <= ANNOUNCED:
            yield from _ended(scene, use)
    if scene.budget.severity <= ANNOUNCED:
        yield from _leases(scene, waiting=False)
        yield from _nothing_left(scene)


def last(system: System, state: State) -> Iterator[Broken]:
    """What is wrong with a state in which not even a timer changes anything; leases apart, see `unreleased`."""
    scene = Scene(system, state)
    for use in range(len(system.plans)):
        decode = scene.decode.records[use]
        if scene.decode.run == UP and decode is not None and decode.last.phase not in TERMINAL:
            yield Broken("L3", f"no timer ends it: {scene.open_words(use)}")
        for side in scene.prefills:
            record = side.records[use]
            if side.run == UP and record is not None and record.last.phase not in TERMINAL:
                yield Broken("L3", f"no timer ends it: {scene.open_words(use)}")


def unreleased(system: System, state: State) -> list[Broken]:
    """The leases of a last state that no timer may end, and that nothing excuses."""
    return list(_leases(Scene(system, state), waiting=True))


def _as_asked(scene: Scene, use: int) -> Iterator[Broken]:
    """L2: the two callers get DONE if they asked for the same, a mismatch if not. Beside a failed room it is L4."""
    agree = scene.plans[use].request.agrees
    wanted = (Phase.DONE, None) if agree else (Phase.FAILED, Reason.MISMATCH)
    name = "L2" if scene.budget.severity <= HARMLESS else "L4"
    records = [scene.decode.records[use], *(side.records[use] for side in scene.prefills)]
    for record in records:
        if record is None or (record.last.phase, record.last.cause) != wanted:
            asked = "asked for the same" if agree else "did not ask for the same"
            ends = "hangs" if record is not None and record.last.phase not in TERMINAL else "ends otherwise"
            words = f"the callers {asked} and the room {ends}: {scene.open_words(use)}"
            if name == "L2" and not agree and _both_failed(records):
                yield Broken("A1", words)
            else:
                yield Broken(name, words)
            return


def _both_failed(records: list[decode_side.Record | prefill_values.Record | None]) -> bool:
    return all(record is not None and record.last.phase in TERMINAL for record in records)


def _ended(scene: Scene, use: int) -> Iterator[Broken]:
    """L3: a fault that announced itself has ended the room on every side that runs."""
    decode, key = scene.decode.records[use], scene.plans[use].key
    waits = scene.decode.run == UP and decode is not None and decode.last.phase not in TERMINAL
    if waits and not _not_asked_yet(scene, use):
        yield Broken("L3", f"only a timer can end it: {scene.open_words(use)}")
    asking = [
        scene.decode.run == UP and record is not None and record.last.phase not in TERMINAL
        for record, plan in zip(scene.decode.records, scene.plans, strict=True)
        if plan.key == key
    ]
    for side in scene.prefills:
        record = side.records[use]
        if side.run != UP or record is None or record.last.phase in TERMINAL:
            continue
        bound = any(writer.record == use for writer in side.writers)
        # Decode gave up before its METADATA came, or before this room was opened: nobody is left to tell prefill.
        if bound or record.last.phase is not Phase.METADATA or any(asking):
            yield Broken("L3", f"only a timer can end it: {scene.open_words(use)}")


def _not_asked_yet(scene: Scene, use: int) -> bool:
    """Whether decode waits for a prefill room that was closed before METADATA came (parked), or for a dead process."""
    record = scene.decode.records[use]
    assert record is not None
    if record.last.phase is not Phase.METADATA:
        return False
    for lane, side in enumerate(scene.prefills):
        parked = any(writer.use == use and writer.record == PARKED for writer in side.writers)
        if parked or (not record.grants[lane].number and side.run == DEAD):
            return True
    return False


def _leases(scene: Scene, *, waiting: bool) -> Iterator[Broken]:
    """L5. waiting: an ABORT may still be repeated, so only what can never come counts as an excuse."""
    if scene.decode.run != UP:
        return
    for use, record in enumerate(scene.decode.records):
        if record is None or record.last.phase not in TERMINAL:
            continue
        for lane, grant in enumerate(record.grants):
            if grant.freed or _excused(scene, lane, grant, waiting=waiting):
                continue
            words = f"grant {grant.number} of use {use + 1} is {grant.lease.name} for ever: {scene.open_words(use)}"
            yield Broken("L5", words)


def _excused(scene: Scene, lane: int, grant: decode_side.Grant, *, waiting: bool) -> bool:
    """Whether nobody can give the word that frees a lease: neither an acknowledgement nor a proof can come."""
    side = scene.prefills[lane]
    if grant.proven:
        return False  # the writer is known to be gone
    if side.run == STALLED and (waiting or scene.budget.severity == SILENT):
        return True
    if grant.number in side.doubtful:
        return True  # a write of it has failed: only the end of the writer's process is a proof
    unproven = not scene.decode.links[lane].up
    return unproven and (side.run == DEAD or side.life != grant.peer)


def _nothing_left(scene: Scene) -> Iterator[Broken]:
    """C1: every room is closed and every lease over, so nothing is held."""
    decode = scene.decode
    if decode.run != UP or any(r is None or not r.closed or not all(g.freed for g in r.grants) for r in decode.records):
        return
    for record in decode.records:
        assert record is not None
        if any(grant.retry for grant in record.grants):
            yield Broken("C1", "a lease is over, and its abort is still to be repeated")
    for side in scene.prefills:
        if side.run != UP or any(record is None or not record.closed for record in side.records):
            continue
        honest = [writer for writer in side.writers if writer.use < len(scene.plans)]
        if honest:
            yield Broken("C1", f"every room is closed, and prefill holds grant {honest[0].number}")
        if any(record is not None and not record.freed for record in side.records):
            yield Broken("C1", "every room is closed, and the source ranges of one are not its caller's again")
