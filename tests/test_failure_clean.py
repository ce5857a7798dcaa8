"""When a failure reaches its caller, the engine holds nothing of its room: only leases and drains keep a trace of it.

Every object that an engine's core holds is looked through, whatever it is called: a table that comes later counts too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from mutants import Mutant, named
from test_first_cause import DECODE, PREFILL, SETTINGS, Cause, Scene

from kvrooms import RoomClosed, RoomFailed, Status
from kvrooms.engine.decode_core import DecodeCore
from kvrooms.engine.prefill_core import PrefillCore
from kvrooms.engine.prefill_posting import PrefillPosting
from kvrooms.engine.settings import EngineSettings
from kvrooms.protocol import wire
from kvrooms.protocol.identity import RoomKey

MEMORY = re.compile(r"\.grants|\.drains|\._posted|\._unfree|_timers.*<Grant>")
"""Leases, with the timer that repeats the ABORT, drains, and the count of their rooms: they end by acknowledgement or
proof, after their room."""
_PLAIN = (int, float, str, bytes, bool, type(None), type, range)


def paths(root: Any, wanted: tuple[Any, ...]) -> Iterator[str]:
    """How to come from an object to any of some others: the shortest way to each holder of one, past all memory."""
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque([("core", root)])
    while todo:
        path, one = todo.popleft()
        if MEMORY.search(path):
            continue
        if any(one is some or (type(one) is type(some) is RoomKey and one == some) for some in wanted):
            yield path
            continue
        if id(one) in seen or isinstance(one, _PLAIN):
            continue
        seen.add(id(one))
        match one:
            case dict():
                todo += [(f"{path}{{}}", key) for key in one]
                todo += [(f"{path}[]", value) for value in one.values()]
            case list() | tuple() | set() | frozenset() | deque():
                todo += [(f"{path}[]", value) for value in one]
            case _ if type(one).__module__.startswith("kvrooms.") and ".harness" not in type(one).__module__:
                slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
                inside = {**{name: getattr(one, name, None) for name in slots}, **getattr(one, "__dict__", {})}
                todo += [(f"{path}<{type(one).__name__}>.{name}", value) for name, value in inside.items()]


ALL_AT_ONCE = SETTINGS
NOTHING_MORE = msgspec.structs.replace(SETTINGS, piece_bytes=1, inflight_bytes=1)
NOTHING_MORE_TO_IT = msgspec.structs.replace(SETTINGS, piece_bytes=1, inflight_per_peer_bytes=1)
"""A page at a time: what else the room has to send waits for its turn, or is set aside, when the room fails."""


def check(side: str, cause: Cause, settings: EngineSettings = ALL_AT_ONCE) -> None:
    """One room of two fails; what is left of it when its exception comes, and whether the other goes on."""
    scene = Scene(side, settings)
    bench, core = scene.bench, scene.core
    other = bench.plan(3)
    beside = bench.receive(other, 8), bench.offer(other, 8)
    bench.settle()
    record, key = scene.room.record, scene.room._key
    assert list(paths(core, (record,))), "the walk finds a room that is open"
    cause(scene)
    core.turn()
    with pytest.raises(RoomFailed):
        scene.room.failure_exception()
    left = list(paths(core, (record, key)))
    assert not left, (side, cause.__name__, left)
    assert key not in scene.engine._claims._keys
    assert scene.room not in scene.engine._open_rooms
    with pytest.raises(RoomClosed, match="is closed"):
        scene.room.failure_exception()
    if cause in {Scene.lost, Scene.late}:
        return  # these are about more than one room
    bench.world.writes_held = False
    beside[1].send(other.source["kv"], last=True)
    bench.finish(*beside, timers=True)
    assert [room.poll() for room in beside] == [Status.DONE, Status.DONE]


def check_all() -> None:
    """Every cause, on both sides, with and without something left to post."""
    for settings in (ALL_AT_ONCE, NOTHING_MORE, NOTHING_MORE_TO_IT):
        for side, causes in (("prefill", PREFILL), ("decode", DECODE)):
            for cause in causes:
                check(side, cause, settings)


def test_of_what_waits_for_its_turn_there_is_some_when_a_room_fails() -> None:
    for settings, queued, aside in ((ALL_AT_ONCE, 0, 0), (NOTHING_MORE, 1, 0), (NOTHING_MORE_TO_IT, 0, 1)):
        core = Scene("prefill", settings).core
        (peer,) = core._peers.values()
        assert (len(core._ready), len(peer.aside)) == (queued, aside)


def test_a_slot_that_is_emptied_after_its_room_has_failed_brings_nothing_back() -> None:
    scene = Scene("prefill", NOTHING_MORE)
    (peer,) = scene.core._peers.values()
    scene.held.filled.add(3)
    scene.room.abort()
    scene.core.turn()
    with pytest.raises(RoomFailed):
        scene.room.failure_exception()
    scene.core._emptied(peer, wire.Emptied(scene.grant, (3,)))
    assert not scene.core._ready


def test_a_failure_comes_when_nothing_of_its_room_is_left_and_others_are_as_before() -> None:
    check_all()


@named(
    [
        Mutant(DecodeCore, "_step", "self._by_token.pop(grant.token, None)", "pass"),
        Mutant(DecodeCore, "_carry_out", "del self._rooms[record.key]", "pass"),
        Mutant(DecodeCore, "_carry_out", "self._timers.disarm(record, Alarm.CAP)", "pass"),
        Mutant(PrefillCore, "_carry_out", "self._timers.disarm(record, Alarm.PHASE)", "pass"),
        Mutant(PrefillCore, "_carry_out", "del self._rooms[record.key]", "pass"),
        Mutant(PrefillCore, "_drain", "self._withdraw(writer)", "pass"),
        Mutant(PrefillPosting, "_withdraw", "self._ready.pop(writer, None)", "pass"),
    ]
)
def test_what_stays_behind_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all()
