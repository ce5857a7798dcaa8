"""What a peer says of staging slots is not believed: counted or refused, nothing is changed, and other rooms go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvrooms import Status
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.mutants.probe import Play
from kvrooms.harness.mutants.probes_staging import (
    TO_FOUR,
    TO_ONE,
    TO_SHORTER,
    TO_TWO,
    Staging,
    arrive,
    granted,
    say_emptied,
    staging,
)
from kvrooms.protocol import wire
from kvrooms.protocol.errors import TransportError
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.notify import InSlot, Part, PartKind

NOT_FILLED = "slots emptied that were not filled"
KV = PartKind.KV


def held(**settings: Any) -> Staging:
    """Room 0 has been asked for; its first writes are posted, and do not land."""
    stage = staging(Play(0), TO_ONE, piece_bytes=128, **settings)
    stage.world.writes_held = True
    stage.call(0)
    stage.settle()
    return stage


def ends_well(stage: Staging, *numbers: int) -> None:
    """What was begun, and these rooms, end as if nothing had been said."""
    stage.world.writes_held = False
    stage.call(*numbers)
    rooms = [member.rooms[number] for member in stage.members() for number in numbers]
    stage.world.run(lambda: all(room.poll().terminal for room in rooms))
    stage.settle()
    for member in stage.members():
        assert all(member.rooms[number].poll() is Status.DONE for number in numbers), stage.failures()
    assert stage.early == []
    for member in stage.members():
        for room in member.rooms.values():
            room.close()
    stage.settle()
    assert stage.slots_in_use() == 0


def prefill(stage: Staging) -> Any:
    return stage.prefills[0, 0].engine


def test_it_stages() -> None:
    for case, how in ((TO_ONE, "scattered"), (TO_TWO, "gathered"), (TO_FOUR, "gathered")):
        stage = staging(Play(0), case)
        ends_well(stage, 0, 1)
        assert stage.pieces(how) > 0


# -- EMPTIED -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [(9,), (1000,), (2**20 - 1,), (9, 10, 11), "another's"])
def test_slots_that_are_not_lent_to_a_grant_are_not_emptied(slots: Any) -> None:
    stage = held()
    grant, lent = granted(stage)
    if slots == "another's":
        slots = tuple(slot for _, slot in stage.lent if slot not in lent)
        assert slots
    say_emptied(stage, grant.grant, slots)
    assert prefill(stage).counters()[NOT_FILLED] == len(slots)
    ends_well(stage, 1)


def test_slots_of_a_grant_that_is_over_or_never_was_are_not_emptied() -> None:
    stage = staging(Play(0), TO_ONE)
    ends_well(stage, 0)
    before = stage.pieces("gathered")
    grant, lent = granted(stage)
    for number in (grant.grant, grant.grant + 77):
        say_emptied(stage, number, lent)
    assert prefill(stage).counters()[NOT_FILLED] == 2 * len(lent)
    assert stage.pieces("gathered") == before
    ends_well(stage, 1)


def test_a_slot_is_emptied_once() -> None:
    """The first time is too early as well, but it is filled then: decode lies about its own memory."""
    stage = held()
    grant, lent = granted(stage)
    say_emptied(stage, grant.grant, lent + lent)
    assert prefill(stage).counters()[NOT_FILLED] == len(lent)
    assert stage.decodes[0].rooms[0].poll() is not Status.DONE
    stage.decodes[0].rooms[0].abort("it has lied")
    ends_well(stage, 1)


# -- notifications -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "staged"),
    [
        (Part(KV, 0, 0, 1), InSlot(9, 0, 4)),
        (Part(KV, 0, 0, 1), InSlot(2**32 - 1, 0, 4)),
        (Part(KV, 0, 0, 1), InSlot(-1, 0, 4)),
        (Part(KV, 0, 0, 1), InSlot(-1, 3, 5)),
        (Part(KV, 0, 0, 8), InSlot(-1, 0, 4)),
        (Part(KV, 0, 7, 2), InSlot(-1, 0, 4)),
        (Part(KV, 0, 2**20, 1), InSlot(-1, 0, 4)),
        (Part(PartKind.AUX, 0, 0, 1), InSlot(-1, 0, 1)),
        (Part(PartKind.STATE, 0, 0, 1), InSlot(-1, 0, 1)),
    ],
)
def test_what_cannot_lie_in_a_slot_fails_its_room(part: Part, staged: InSlot) -> None:
    """-1: the slot that another prefill rank was lent for the room, or where that does not matter our own."""
    stage = held(staging_bytes=128)
    _, lent = granted(stage)
    if staged.slot == -1:
        others = [slot for _, slot in stage.lent if slot not in lent]
        own = part != Part(KV, 0, 0, 1) or staged.stop > 4
        staged = staged._replace(slot=(lent if own else others)[0])
    before = [array.copy() for array in stage.decodes[0].pool]
    arrive(stage, part, staged)
    room = stage.decodes[0].rooms[0]
    assert room.poll() is Status.FAILED
    assert room.failure.reason is Reason.PROTOCOL
    assert all(np.array_equal(a, b) for a, b in zip(before, stage.decodes[0].pool, strict=True))
    ends_well(stage, 1)


# -- HELLO and METADATA ------------------------------------------------------------------------------------------------


def told(change: Any, kind: type[wire.Body], **settings: Any) -> Staging:
    """Decode says something else, in its HELLO or in each METADATA of room 0."""
    stage = staging(Play(0), TO_ONE, start=False, piece_bytes=128, **settings)

    def lie(body: wire.Body) -> wire.Body:
        return change(body) if isinstance(body, kind) and getattr(body, "room", 0) == 0 else body

    stage.lies["decode", 0, 0] = lie
    for member in stage.members():
        stage.start(member)
    return stage


@pytest.mark.parametrize(
    "change", [{"address": 2**64 - 64}, {"length": 8}, {"address": 2**64 - 2**60, "length": 2**40}]
)
def test_slots_that_cannot_be_are_refused_in_words(change: dict[str, int]) -> None:
    def hello(body: wire.Hello) -> wire.Hello:
        changed = {**change, "count": 2**20} if "length" in change and change["length"] > 8 else change
        return replace(body, staging=replace(body.staging, **changed))

    stage = told(hello, wire.Hello)
    stage.call(0)
    stage.settle()
    room = stage.decodes[0].rooms[0]
    assert room.poll() is Status.FAILED
    assert room.failure.reason is Reason.HANDSHAKE_REFUSED
    assert "hello.staging" in room.failure.detail
    assert prefill(stage).tables()["grants"] == 0
    assert stage.writes == []


@pytest.mark.parametrize("change", [{"length": 0}, {"count": 0}, {"address": -1}])
def test_slots_that_are_none_are_no_hello(change: dict[str, int]) -> None:
    stage = staging(Play(0), TO_ONE)
    stage.settle()
    slots = wire.Slots(4096, 2, 64, ((KV, ""),))
    hello = wire.Hello("d", "a", stage.decodes[0].layout, stage.decodes[0].memory.regions, b"", None, slots)
    frame = wire.encode(replace(hello, staging=replace(slots, **change)), 1, 0)
    with pytest.raises(wire.WireError):
        wire.decode(frame[wire.PREFIX_LENGTH :])


@pytest.mark.parametrize("slots", [(16,), (-1,), (3, 3), (0, 1, 2**31 - 1)])
def test_slots_that_were_not_announced_or_twice_are_refused(slots: tuple[int, ...]) -> None:
    stage = told(lambda body: replace(body, slots=np.array(slots, dtype="<i4").tobytes()), wire.Metadata)
    stage.call(0)
    stage.settle()
    room = stage.decodes[0].rooms[0]
    assert room.poll() is Status.FAILED
    assert room.failure.reason.mirrored is Reason.PROTOCOL or room.failure.reason is Reason.PROTOCOL
    assert "metadata.slots" in room.failure.detail
    assert stage.writes == []
    ends_well(stage, 1)


def test_slots_outside_of_what_is_registered_fail_their_room_alone() -> None:
    """The transport refuses such a write, as NIXL does. A grant without slots is written to directly."""
    outside = np.zeros(16 * 4096, dtype=np.uint8)
    stage = told(
        lambda body: replace(body, staging=replace(body.staging, address=outside.ctypes.data, length=4096)), wire.Hello
    )
    for member in stage.prefills.values():
        refuse_unregistered(member.transport)
    stage.call(0)
    stage.settle()
    assert prefill(stage).tables()["staged"] == 0
    assert stage.decodes[0].rooms[0].poll() is Status.FAILED
    failed = [room for one in stage.prefills.values() if (room := one.rooms[0]).poll() is Status.FAILED]
    assert any(room.failure.reason is Reason.SEND_ERROR for room in failed)
    assert not outside.any()
    stage.decodes[0].rooms[0].close()
    stage.settle()
    assert stage.slots_in_use() == 0


def refuse_unregistered(transport: Any) -> None:
    """A post names memory that its target has registered, or is refused."""
    post = transport.post

    def checked(agent: str, piece: Any, notification: bytes) -> int | None:
        registered = transport._world.agents[agent]._registered
        for _, length, there in transport._rows(agent, piece):
            if not any(low <= there and there + length <= high for low, high in registered):
                raise TransportError(f"{agent} has not registered {length} bytes at {there}")
        return post(agent, piece, notification)

    transport.post = checked


def test_a_hello_that_is_refused_changes_no_plan() -> None:
    """The same incarnation comes back: first with slots that are too short, then with them and all else as before."""
    stage = staging(Play(0), TO_ONE)
    ends_well(stage, 0)
    core = prefill(stage)._core
    peer = next(iter(core._peers.values()))
    good = wire.Hello(peer.engine, peer.agent, peer.layout, peer.regions, peer.blob, peer.share, peer.staging)
    before = (peer.share, peer.staging, peer.pairs, peer.covers, peer.table)
    bad = replace(good, staging=replace(good.staging, length=8))
    for _ in range(2):
        with pytest.raises(wire.WireError):
            core._terms(peer, bad)
        assert (peer.share, peer.staging, peer.pairs, peer.covers, peer.table) == before
    ends_well(stage, 1)


@pytest.mark.parametrize("slots", [b"", b"\0\0\0\0"])
def test_a_position_without_any_page_ends_its_room_and_nothing_else(slots: bytes) -> None:
    """Decode's pages are shorter: a METADATA whose first page lies in ours, and that names none."""
    stage = staging(Play(0), TO_SHORTER)
    core = stage.decodes[0].engine._core
    send = core._send

    def lie(link: Any, body: Any) -> None:
        if isinstance(body, wire.Metadata):
            body = replace(body, first_page=1, pages=b"", slots=slots)
        send(link, body)

    core._send = lie
    stage.call(0)
    stage.settle()
    failure = stage.decodes[0].rooms[0].failure
    assert failure.reason is Reason.PROTOCOL
    assert "0 pages of 1 tokens" in failure.detail
    core._send = send
    ends_well(stage, 1)


# -- slots of other lengths --------------------------------------------------------------------------------------------


def test_settings_of_both_sides_differ() -> None:
    """Slots of prefill are shorter than what decode's can hold: layers go without, and report as they would with."""
    for seed in range(3):
        stage = staging(Play(seed), TO_FOUR, piece_bytes=64, staging_bytes=128)
        ends_well(stage, 0, 1)
    for size in (128, 1 << 26):
        stage = staging(Play(1), TO_ONE, start=False)
        for member in stage.members():
            stage.settings = EngineSettings(staging_bytes=size if member.key[0] == "prefill" else 1 << 26)
            stage.start(member)
        ends_well(stage, 0, 1)


def test_digests_are_not_taken_of_what_is_staged() -> None:
    """They are refused where ranks share items, so nothing has both a digest and a slot."""
    stage = staging(Play(0), TO_ONE, digest=1)
    stage.call(0)
    stage.settle()
    room = stage.decodes[0].rooms[0]
    assert room.poll() is Status.FAILED
    assert "whole items" in room.failure.detail
    assert stage.writes == []
    room.close()
    stage.settle()
    assert stage.slots_in_use() == 0
