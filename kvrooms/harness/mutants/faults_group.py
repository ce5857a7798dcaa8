"""Mistakes in how the ranks of one instance come to one outcome."""

from __future__ import annotations

from ...protocol.events import Do
from ...statemachine.group import Standing
from ...statemachine.table import fail, go, ignore
from .mutant import Mutant
from .plant import Cell, Opening, Text, Without

_DECISION = ("statemachine.group:DECISION", "_DECISION")
_STANDING = ("statemachine.group:STANDING", "_STANDING")

GROUP = (
    Mutant(
        "one-rank-speaks-for-all",
        "a room is DONE as soon as one rank has reported it",
        Text("statemachine.group:_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),
        ("A1",),
    ),
    Mutant(
        "decision-without-deadline",
        "a deadline left off: every rank reports some day",
        Opening(_DECISION[0], "ARM(DECISION)"),
        ("L1",),
    ),
    Mutant(
        "failure-is-no-report",
        "a rank that has failed is waited for like one that has not reported: it may try again",
        Cell(*_DECISION, "OPEN", "FAILED", (ignore(),)),
        ("L2", "L3"),
    ),
    Mutant(
        "lost-rank-is-waited-for",
        "a lost rank fails nothing: it may come back",
        Cell(*_DECISION, "OPEN", "LOST", (ignore(),)),
        ("L3",),
    ),
    Mutant(
        "lost-rank-must-acknowledge",
        "a room is forgotten when every rank has acknowledged it, also the lost ones",
        Cell(*_DECISION, "FAILED", "LOST", (ignore(),)),
        ("C1",),
    ),
    Mutant(
        "lost-rank-is-told-nothing",
        "what was decided while a rank was lost is not kept for it",
        Text("engine.group_leader:Leader._carry_out", "self._keep(event.rank, room)", "pass"),
        ("L3",),
    ),
    Mutant(
        "told-out-of-turn",
        "a rank that comes back is told what is decided just now before what it has missed, which it then ignores",
        Text("engine.group_hub:HubCore.tell", "if not seat.returning:", "if True:"),
        ("L3",),
    ),
    Mutant(
        "told-once-and-for-all",
        "an outcome that was sent is known: it is not said again on a new connection",
        Cell(*_DECISION, "DONE", "BACK", (ignore(),)),
        ("L3",),
    ),
    Mutant(
        "reported-once-and-for-all",
        "a report that was sent is known: it is not repeated on a new connection",
        Text("engine.group_member:Member.link_up", "self._step(key, LinkUp())", "pass"),
        ("L3",),
    ),
    Mutant(
        "impatient-rank",
        "a rank whose connection breaks decides by itself",
        Text(
            "engine.group_member:Member.link_down",
            "self.linked = False",
            'self.leader_lost(Failure(Reason.PEER_LOST, "no connection"))',
        ),
        ("A1",),
    ),
    Mutant(
        "reset-is-death",
        "a connection that is reset proves that the leader's process has ended",
        Text("engine.group_spoke:SpokeCore._closed", "self._dial()  # and see whether that is true", "self._lose(why)"),
        ("A1",),
    ),
    Mutant(
        "leader-does-not-fence-itself",
        "a leader that stood still counts the reports that lie in its sockets, whoever has given it up",
        Text("engine.group_hub:HubCore._look", "if seat.confirmed < limit", "if False"),
        ("A1",),
    ),
    Mutant(
        "own-rank-is-enough-for-done",
        "a rank that is lost to its leader keeps what it has reported itself",
        Cell(*_STANDING, "REPORTED", "LEADER_LOST", (go(Standing.DONE, Do.SHOW_OUTCOME, Do.FORGET),)),
        ("A1",),
    ),
    Mutant(
        "open-room-goes-on",
        "the outcome is FAILED, and the room that is open here is not ended",
        Without(*_STANDING, "OPEN", "TOLD_FAILED", Do.ABORT_ROOM),
        ("L3",),
    ),
    Mutant(
        "decided-and-not-forgotten",
        "a rank that was told the outcome keeps the room",
        Cell(*_STANDING, "FAILING", "TOLD_FAILED", (fail(Standing.FAILED, Do.SHOW_OUTCOME),)),
        ("C1",),
    ),
)
