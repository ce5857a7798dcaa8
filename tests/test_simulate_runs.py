"""Simulated runs: the engines pass them, every fault occurs in them, they replay exactly, planted faults are found."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from mutants import Mutant, named

from kvrooms.engine import account, decode_links, group_member
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.grants import GrantBook
from kvrooms.engine.handle import Room
from kvrooms.engine.holds import DecodeHolds
from kvrooms.engine.host import Engine
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.harness.evidence import PROPERTY_IDS, SMOKE
from kvrooms.harness.simulate.rank_swarm import is_ranked
from kvrooms.harness.simulate.run import Outcome, replay, run_seed, simulate
from kvrooms.harness.simulate.swarm import MISCHIEF
from kvrooms.statemachine import group as tables
from kvrooms.transport.ports import CloseCause

SEEDS = [seed for seed in range(103) if not is_ranked(seed)]
FAULTS = {
    "connection cut", "connection jammed", "delay", "engine closed", "engine drained", "engine its clock jumps",
    "engine killed", "engine stalled", "forged notification", "frame corrupted", "frame late", "frame lost",
    "frame repeated", "frame truncated", "namesake fenced", "post failed", "room refused", "stranger's frame",
    "write damaged", "write failed", "write slow", "write stuck",
}  # fmt: skip


def test_every_run_holds_and_every_property_has_examples() -> None:
    seen: dict[str, int] = {}
    injected: set[str] = set()
    outcomes: set[str] = set()
    for seed in SEEDS:
        outcome = run_seed(seed)
        assert not outcome.found, outcome.found[0].text()
        injected |= outcome.injected.keys()
        outcomes |= outcome.outcomes.keys()
        for property_id, examples in outcome.examples.items():
            seen[property_id] = seen.get(property_id, 0) + examples
    assert {name for name, n in seen.items() if n} == set(PROPERTY_IDS) - {SMOKE}
    assert injected == FAULTS
    for side in ("decode", "prefill"):
        for reason in (
            "DONE",
            "aborted",
            "mismatch",
            "peer_lost",
            "peer_aborted",
            "deadline_bootstrap",
            "shutdown",
            "corrupted",
        ):
            assert f"{side} {reason}" in outcomes


RANKED = [seed for seed in range(400) if is_ranked(seed)]
FAULTS_OF_RANKS = {
    "connection cut", "engine killed", "engine stalled", "frame corrupted", "frame late",
    "group's connection cut", "group's connection jammed", "group's frame corrupted", "group's frame late",
    "group's frame truncated", "group's rank killed", "write slow",
}  # fmt: skip


def test_runs_of_several_ranks_and_their_groups_hold() -> None:
    seen: set[str] = set()
    injected: set[str] = set()
    outcomes: set[str] = set()
    for seed in RANKED:
        outcome = run_seed(seed)
        assert not outcome.found, outcome.found[0].text()
        seen |= outcome.examples.keys()
        injected |= outcome.injected.keys()
        outcomes |= outcome.outcomes.keys()
    assert {"L1", "L2", "L3", "L4", "L5", "S1", "S2", "S3", "C1", "A1"} <= seen
    assert injected >= FAULTS_OF_RANKS, FAULTS_OF_RANKS - injected
    assert {f"{side} group {end}" for side in ("decode", "prefill") for end in ("DONE", "FAILED")} <= outcomes


def test_a_run_of_several_ranks_is_replayed() -> None:
    outcome = run_seed(RANKED[3])
    assert outcome == run_seed(RANKED[3])
    assert replay(RANKED[3]).timeline
    assert outcome.found == ()


@named(
    [
        Mutant(tables, "_open", "Votes.ALL_DONE if all(numbers)", "Votes.ALL_DONE if any(numbers)"),
        Mutant(group_member.Member, "link_up", "self._step(key, LinkUp())", "pass"),
        Mutant(Engine, "on_abort", "room = self._undecided.get(key)", "room = None"),
    ]
)
def test_a_planted_fault_of_groups_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    outcome = next(one for one in map(run_seed, RANKED * 4) if one.found)
    assert {one.property for one in outcome.found} & {"A1", "L2", "L3", "L4"}


@pytest.mark.deep
def test_many_runs() -> None:
    simulation = simulate(seed=100_000, rooms=300_000)
    assert not simulation.tally.broken, simulation.tally.counterexamples()[0].text()


def test_a_seed_is_the_same_run_in_every_process() -> None:
    code = "from kvrooms.harness.simulate.run import replay\nfor seed in (3, 8, 21): print(replay(seed).text())"
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout
        for hashing in ("0", "1", "4711")
    ]
    assert len(texts[0]) > 10_000
    assert texts[0] == texts[1] == texts[2]


def test_replaying_records_the_run_and_does_not_change_it() -> None:
    for seed in (1, 5, 9):
        outcome, run = run_seed(seed), replay(seed)
        assert run.tally.broken == frozenset()
        assert outcome == run_seed(seed)
        kinds = {step.kind for step in run.timeline}
        assert {"call", "message", "write", "notification", "state"} <= kinds
        assert run.text().startswith(f"simulation seed {seed}\n")


def test_runs_are_the_same_in_workers_and_add_up() -> None:
    told: list[str] = []
    here = simulate(seed=7, rooms=300, workers=0)
    there = simulate(seed=7, rooms=300, workers=2, progress=told.append)
    assert here._replace(seconds=0, tally=there.tally) == there._replace(seconds=0)
    assert here.rooms >= 300
    assert here.seeds > 3
    assert here.hours > 0
    assert here.faults == sum(here.injected.values()) + sum(
        n for k, n in here.outcomes.items() if k.endswith(" aborted")
    )
    for property_id in PROPERTY_IDS:
        assert here.tally.verdict(property_id) == there.tally.verdict(property_id)


def test_each_use_of_a_timer_names_what_it_closed() -> None:
    timers = simulate(rooms=1800, workers=0).timers
    assert any(name.startswith("decode deadline_bootstrap: the answer to METADATA") for name in timers)
    assert any(name.startswith("prefill deadline_bootstrap: its METADATA") for name in timers)
    assert any("deadline_waiting: " in name and "aux" in name for name in timers)
    assert not [name for name in timers if name.endswith(": ")]


def test_every_kind_of_mischief_is_drawn() -> None:
    assert {"stall", "cut", "jam", "jump", "fence", "kill prefill", "close decode", "drain prefill"} <= set(MISCHIEF)


# -- what the judge is worth -------------------------------------------------------------------------------------------


def find(first: int = 0, limit: int = 150) -> Outcome:
    """The first run from a seed on in which something is broken."""
    for seed in range(first, first + limit):
        outcome = run_seed(seed)
        if outcome.found:
            return outcome
    pytest.fail("no run has found it")


PLANTED = {
    Mutant(DecodeCore, "_acked", "self._lease(grant, LeaseEvent.ACKED)", "pass"): {"L5"},
    Mutant(PrefillCore, "_tell_failed", "for writer in record.writers:", "for writer in ():"): {"L3", "L2", "A1"},
    Mutant(PrefillCore, "_drain", "self._withdraw(writer)", "pass"): {"S3", "S4", "L4", "S5"},
    Mutant(GrantBook, "verdict", "return Verdict.OVER", "return Verdict.NEW"): {"S3", "S4", "L5", "L3", "L4", "S5"},
    Mutant(Room, "failure_exception", "self.close()", "pass"): {"C2"},
    Mutant(Room, "failure_exception", "raise RoomClosed(", "raise RuntimeError("): {"C2", "L4", "S5"},
    Mutant(DecodeCore, "_deadline", "self._fail(record, On.DEADLINE,", "(None and"): {"L1"},
    Mutant(DecodeHolds, "_renew", "self.settings.hold_renew_s", "1e6"): {"L2", "L3"},
    Mutant(decode_links.DecodeLinks, "_fenced", "if peer.link is not None:", "if False:"): {"S3", "L4"},
    Mutant(account, "met", "_without(whole.kv, missing.kv)", "whole.kv"): {"S1"},
    Mutant(Room, "memory_status", "if self.memory_free:", "if self._status.terminal:"): {"S3"},
    Mutant(DecodeCore, "_intact", "if digest == (self._digester.of(kind, place, items),):", "if digest:"): {"S1"},
    Mutant(Engine, "drain", "held = sum(", "held = 0 * sum("): {"S3"},
    Mutant(
        DecodeCore,
        "_send_abort",
        "*(failure or Failure(Reason.PEER_ABORTED)).told",
        "(failure or Failure(Reason.PEER_ABORTED)).reason, *(failure or Failure(Reason.PEER_ABORTED)).told[1:]",
    ): {"C2"},
    Mutant(Engine, "room_forgotten", "self._open_rooms.pop(room, None)", "pass"): {"L4", "C1", "S3"},
}


RARE = {"_fenced": 450}
"""From which seed on to look for what one run in some hundreds shows."""


@named(list(PLANTED))
def test_a_planted_fault_breaks_the_property_that_it_should(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    outcome = find(RARE.get(mutant.name, 0))
    found = {one.property for one in outcome.found}
    assert found & PLANTED[mutant], [one.summary for one in outcome.found]
    assert run_seed(outcome.seed).found == outcome.found


def test_more_than_a_proof_taken_for_one_is_found_with_a_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_links, "_PROOFS", (*decode_links._PROOFS, CloseCause.TIMED_OUT, CloseCause.LOCAL))
    outcome = find()
    assert {one.property for one in outcome.found} <= {"S3", "S4"}
    found = simulate(seed=outcome.seed, rooms=1, workers=0).tally.counterexamples()[0]
    assert found.source == f"simulation seed {outcome.seed}"
    assert any(words in found.summary for words in ("a write", "landed", "no process of that name has ended"))
    assert found.timeline
    assert "does not hold" in found.text()
