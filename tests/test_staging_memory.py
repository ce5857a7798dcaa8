"""Staging memory: registered while an engine is open, deregistered with it, and let go of when nobody can touch it."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from typing import Any

import pytest
from rank_support import PAGES, Part, decodes, over, prefills

from kvrooms import Status
from kvrooms.engine.staging import _IN_USE, Stage, make_stage
from kvrooms.harness.mutants.probe import Play
from kvrooms.harness.mutants.probes_staging import TO_ONE, TO_TWO, staging
from kvrooms.protocol.errors import TransportError
from kvrooms.transport.registry import RegistryServer


def test_a_stage_stays_while_a_slot_of_it_is_in_use() -> None:
    """Its engine may be closed and forgotten: what a peer was lent it may still write to."""
    stage = Stage(8192)
    slots = [stage.take("one"), stage.take("two")]
    assert None not in slots
    known = weakref.ref(stage)
    del stage
    for owner, slot in zip(("one", "two"), slots, strict=True):
        gc.collect()
        assert known() is not None
        known().give(owner, slot)
    gc.collect()
    assert known() is None


class Refuses:
    """A transport without room for more."""

    def register_staging(self, address: int, length: int) -> None:
        raise TransportError(f"{length} bytes at {address} are too many")


def test_without_a_registration_there_is_no_stage() -> None:
    transport: Any = Refuses()
    assert make_stage(transport, 1 << 20, "prefill") is None


@pytest.mark.parametrize("case", [TO_ONE, TO_TWO])
def test_an_engine_registers_its_slots_once_and_has_none_in_use_at_its_end(case: Any) -> None:
    stage = staging(Play(0), case)
    stage.play(0)
    before = [list(member.transport._registered) for member in stage.members()]
    assert any(len(one) > len(_own(member)) for member, one in zip(stage.members(), before, strict=True))
    stage.play(1)
    assert [member.transport._registered for member in stage.members()] == before
    stages = [core._stage for member in stage.members() if (core := member.engine._core)._stage is not None]
    for member in stage.members():
        for room in member.rooms.values():
            room.close()
        member.engine.close()
        assert member.engine.tables()["staged"] == 0
    assert stages
    assert not any(one in _IN_USE for one in stages)


def _own(member: Any) -> list[Any]:
    """The buffers of a rank."""
    return list(member.pool)


@pytest.mark.nixl
@pytest.mark.parametrize(("senders", "receivers"), [(2, 1), (1, 2)])
def test_nixl_has_nothing_of_it_once_the_engines_are_closed(
    senders: int, receivers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvrooms.protocol.shaped.RUNS_MIN", 1)
    monkeypatch.setattr("kvrooms.engine.decode_staging.RUNS_MIN", 1)
    before = len(_IN_USE)
    sent = [Part(4 // senders * i, 4 // senders) for i in range(senders)]
    received = [Part(4 // receivers * i, 4 // receivers) for i in range(receivers)]
    pages = list(range(PAGES))
    with ExitStack() as stack:
        registry = stack.enter_context(RegistryServer()).url
        engines = [*prefills(stack, registry, sent), *decodes(stack, received)]
        ours, theirs = engines[:senders], engines[senders:]
        for number in range(3):
            rooms = [one.open(number, bootstrap=registry, pages=pages[::-1], aux_index=1) for one in theirs]
            handed = [one.open(number, aux_index=0) for one in ours]
            for room in handed:
                room.send(pages, last=True)
            over(Status.DONE, *rooms, *handed)
        for part in received:
            part.landed(pages[::-1], pages)
        how, side = ("scattered", theirs) if receivers == 1 else ("gathered", ours)
        assert sum(one.counters().get(f"pieces {how}", 0) for one in side) > 0
        cores = [one._core for one in engines]
        used = [core for core in cores if core._stage is not None]
        transports = [core.transport for core in used]
        assert all(len(one._registered) > 1 for one in transports)
        known = [weakref.ref(core._stage) for core in used]
    assert known
    assert not any(one._registered for one in transports)
    assert all(one.tables()["staged"] == 0 for one in engines)
    assert len(_IN_USE) == before
    del engines, ours, theirs, rooms, handed, room, side, cores, used, stack
    gc.collect()
    assert not any(one() for one in known), "nobody has its memory any more"
