"""The fuzzer: what it feeds and to whom, that it repeats, that it finds what is there; and a small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvrooms import Status
from kvrooms.engine.group_leader import Leader
from kvrooms.fuzz import inputs, live, pool, samples
from kvrooms.fuzz.child import Faults
from kvrooms.fuzz.decoders import BY_NAME, DECODERS
from kvrooms.fuzz.false_leader import FalseLeader
from kvrooms.fuzz.group_siege import GroupSiege
from kvrooms.fuzz.honest_decode import HonestDecode
from kvrooms.fuzz.inputs import Tally
from kvrooms.fuzz.mutate import SIZE_MAX, Sample, mutated
from kvrooms.protocol import group, notify, registration, wire
from kvrooms.protocol.errors import WireError
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey

CUT = Failure(Reason.SEND_ERROR, "the cable is cut")
KVROOMS = str(Path(sys.executable).with_name("kvrooms"))
RESULT = {
    "ok", "inputs", "untyped_errors", "messages", "honest_rooms", "honest_failed", "rate_ratio", "errors", "decoders",
    "strikes", "counters",
}  # fmt: skip
GROUP_STRIKES = {
    "strangers' frames to a leader", "frames between a rank and its leader", "frames of a false leader",
    "connections at once to a leader",
}  # fmt: skip


def fuzz(*arguments, limit=100):
    return subprocess.run(
        [KVROOMS, "fuzz", *arguments], capture_output=True, text=True, timeout=limit, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


# -- what is fed -------------------------------------------------------------------------------------------------------


def test_there_is_a_sample_of_every_frame():
    kinds = {type(wire.decode(sample.whole).body) for sample in samples.frames()}
    assert kinds == set(wire.FRAMES)
    assert {type(group.decode(sample.whole).body) for sample in samples.group_frames()} == set(group.FRAMES)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_every_sample_is_valid_for_its_decoder(decoder):
    for sample in decoder.samples:
        decoder.check(sample.whole)
        if sample.encode is not None:
            assert sample.head + sample.encode(sample.tree) == sample.whole


def test_an_input_follows_from_seed_and_number():
    first = [inputs.make(7, number) for number in range(300)]
    assert first == [inputs.make(7, number) for number in range(300)]
    assert first != [inputs.make(8, number) for number in range(300)]
    assert len({data for _, data in first}) > 250
    assert {decoder.name for decoder, _ in first} == set(BY_NAME)
    assert max(len(data) for _, data in first) <= SIZE_MAX


def test_a_mutation_leaves_the_sample_as_it_is():
    import random

    tree = {"a": [1, [2, 3]], "b": "c"}
    sample = Sample(b"", tree, lambda value: json.dumps(value, default=repr).encode())
    for number in range(300):
        mutated(random.Random(number), sample, b"other")
    assert tree == {"a": [1, [2, 3]], "b": "c"}


def test_nothing_but_typed_errors_come_out_and_every_check_is_reached():
    tally = inputs.batch(seed=3, first=0, count=30_000)
    assert tally.inputs == 30_000
    assert not tally.findings, tally.findings[0].text(3)
    for name in BY_NAME:
        assert tally.accepted[name], name
        assert tally.refused[name], name
    blamed = set(tally.fields)
    assert {f"metadata.{field}" for field in wire.Metadata.__struct_fields__} <= blamed
    assert {f"hello.{field}" for field in wire.Hello.__struct_fields__} <= blamed
    assert {"version", "kind", "reserved", "length", "regions.kv", "manifest.kv", "manifest.state"} <= blamed


# -- what is found -----------------------------------------------------------------------------------------------------


def broken(monkeypatch, error):
    real = notify.decode

    def decode(message):
        if message[:1] == b"K" and len(message) % 2:
            raise error
        return real(message)

    monkeypatch.setattr(notify, "decode", decode)


def test_an_untyped_error_is_found_told_in_full_and_can_be_replayed(monkeypatch):
    broken(monkeypatch, KeyError("grant"))
    tally = inputs.batch(seed=1, first=0, count=2_000)
    assert tally.untyped > 1
    finding = tally.findings[0]
    assert finding.decoder == "notification"
    assert inputs.make(1, finding.number)[1] == finding.data
    text = finding.text(1)
    assert "KeyError: 'grant'" in text
    assert f"kvrooms fuzz --replay notification:{finding.data.hex()}" in text
    assert inputs.replay(f"notification:{finding.data.hex()}").untyped == 1
    monkeypatch.undo()
    assert not inputs.replay(f"notification:{finding.data.hex()}").untyped


def test_a_memory_error_is_found(monkeypatch):
    broken(monkeypatch, MemoryError())
    assert inputs.batch(1, 0, 2_000).untyped


def test_what_is_accepted_must_hold_good(monkeypatch):
    monkeypatch.setattr(wire, "unpack_indices", lambda field, data, count, items: samples.np.zeros(count + 1, "i4"))
    tally = inputs.batch(1, 0, 2_000)
    assert {finding.decoder for finding in tally.findings} == {"metadata"}
    assert "AssertionError" in tally.findings[0].error


def test_a_decoder_that_takes_too_long_is_found(monkeypatch):
    monkeypatch.setattr(inputs, "_SLOW_S", -1.0)
    tally = Tally()
    inputs.feed(tally, BY_NAME["prefix"], b"\0")
    assert tally.untyped == 1
    assert "it took" in tally.findings[0].error


def test_only_so_many_findings_are_kept_and_all_are_counted(monkeypatch):
    monkeypatch.setattr(registration, "decode_refusal", lambda body: 1 / 0)
    tally = inputs.batch(1, 0, 4_000)
    tally.add(inputs.batch(1, 4_000, 4_000))
    assert len(tally.findings) == 20 < tally.untyped
    assert tally.inputs == 8_000


def test_a_run_of_two_processes_is_what_one_process_does(monkeypatch):
    monkeypatch.setattr(inputs, "_BATCH", 300)
    said = []
    tally = inputs.run(seed=5, first=100, count=2_100, say=said.append)
    alone = inputs.batch(5, 100, 2_100)
    assert (tally.inputs, tally.accepted, tally.refused) == (alone.inputs, alone.accepted, alone.refused)
    assert said[-1] == 2_100


@pytest.mark.parametrize("given", ["frame", "nonsense:00", "frame:0g"])
def test_a_replay_that_is_none_is_refused(given):
    with pytest.raises(ValueError):
        inputs.replay(given)


# -- the honest sides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["failed", "page", "aux", "held", "none"])
def test_an_honest_room_that_is_not_whole_is_seen(damage):
    decode = HonestDecode()
    decode._pool = pool.Pool(1, fill=False)
    sent = pool.Pool(1, fill=True)
    decode._pool.kv[pool.target_page(9)] = sent.kv[pool.source_page(9)]
    decode._pool.aux[pool.slot(9)] = sent.aux[pool.slot(9)]
    if damage == "page":
        decode._pool.kv[pool.target_page(9), 4000] ^= 1
    if damage == "aux":
        decode._pool.aux[pool.slot(9), 0] ^= 1
    room = SimpleNamespace(
        poll=lambda: Status.FAILED if damage == "failed" else Status.DONE,
        failure=None, close=lambda: None, wait_memory_free=lambda limit: damage != "held",
    )  # fmt: skip
    decode._close(room, 9)
    assert decode.failed == (damage != "none")
    assert bool(decode.failures) == (damage != "none")


def test_a_byte_outside_of_every_room_is_seen():
    one = pool.Pool(1, fill=False)
    assert one.canaries() == 0
    one.kv[-1, -1] = 0
    one.window[3, 3] = 0
    assert one.canaries() == 2


def test_honest_rooms_never_share_a_page_or_slot_while_they_are_open():
    flying = 64  # more than either side has open at a time
    for page in (pool.source_page, pool.target_page):
        for first in range(0, 3000, 7):
            assert len({page(n) for n in range(first, first + flying)}) == flying
    assert len({pool.slot(n) for n in range(flying)}) == flying
    here, there = pool.Numbers(3), pool.Numbers(3)
    assert [here.following() for _ in range(9)] == [there.following() for _ in range(9)]


def test_an_error_that_is_logged_is_counted():
    import logging

    faults = Faults()
    log = logging.getLogger("kvrooms.somebody")
    log.addHandler(faults)
    log.warning("nothing")
    for n in range(9):
        log.error("a thread died: %d", n)
    log.removeHandler(faults)
    assert (faults.count, len(faults.first)) == (9, 5)
    assert "a thread died: 0" in faults.first[0]


def test_the_processes_of_a_siege_hear_what_is_logged_anywhere():
    script = """
import logging
from kvrooms.fuzz import child
child.listen_for_faults()
logging.getLogger("kvrooms.engine").critical("the engine's thread died")
logging.getLogger("asyncio").error("a task failed")
logging.getLogger("kvrooms.engine").warning("a peer said what it should not")
print(child.FAULTS.count)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("2\n", "")


def test_a_siege_is_ok_only_if_nothing_is_wrong_and_rooms_were_served():
    assert live.Siege(honest_rooms=5).ok
    assert not live.Siege().ok
    assert not live.Siege(honest_rooms=5, honest_failed=1).ok
    assert not live.Siege(honest_rooms=5, logged=1).ok
    assert not live.Siege(honest_rooms=5, errors=["x"]).ok
    siege = live.Siege(quiet=[(10, 1.0), (30, 1.0)], attacked=[(10, 1.0), (6, 1.0)])
    assert (siege.rate, siege.rate_attacked) == (20.0, 8.0)


def test_an_outcome_that_contradicts_is_seen():
    false = FalseLeader(1)
    first, second, third = (RoomKey(n, 0) for n in range(3))
    false._failed.add(second)
    for key, status, failure in (
        (first, Status.DONE, None), (second, Status.DONE, None),
        (first, Status.FAILED, CUT), (third, Status.FAILED, None),
    ):  # fmt: skip
        false.on_outcome(key, status, failure)
    false.victim.enter(RoomKey(9, 0))
    false._opened = 10
    assert false.finish() == [
        "room 1 has failed on this rank, and its outcome is DONE",
        "room 0 was told DONE, and then FAILED",
        "room 2 is FAILED: None",
        "6 rooms of a rank with a false leader have no outcome",
    ]


def test_a_group_that_decides_wrongly_is_seen(monkeypatch):
    """Every report is counted as DONE: a room that has failed on a rank has the wrong outcome, and is named."""
    real = Leader.report
    monkeypatch.setattr(Leader, "report", lambda self, rank, key, number, _failure: real(self, rank, key, number, None))
    siege = GroupSiege()
    siege.start(1)
    while not siege.failed:
        siege.attack(0, 1)
    _done, failed, wrong, _kinds, _counters = siege.finish()
    assert failed
    assert "should be FAILED" in wrong[0]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_replays():
    valid = samples.notifications()[0].whole
    assert fuzz("--replay", f"notification:{valid.hex()}").stdout == "accepted\n"
    refused = fuzz("--replay", "frame:00")
    assert (refused.returncode, refused.stdout) == (0, "refused, as it should be (length)\n")
    wrong = fuzz("--replay", "frame")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "DECODER:HEX" in wrong.stderr


@pytest.mark.nixl
def test_a_small_run_of_everything():
    """The figures of a rate are left to longer runs: here only what must hold."""
    done = fuzz("--inputs", "20000", "--messages", "800", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert set(result) >= RESULT
    assert result["ok"]
    assert (result["untyped_errors"], result["honest_failed"], result["errors"]) == (0, 0, [])
    assert result["inputs"] == 20_000
    assert result["messages"] >= 800
    assert result["honest_rooms"] > 0
    assert set(result["strikes"]) >= {"frames", "notifications", "connections", "requests"} | GROUP_STRIKES
    said = {name.partition(": ")[2] for name in result["counters"]}
    assert {"frames malformed", "frames unexpected", "frames of another incarnation"} <= said
    assert {name.partition(": ")[0] for name in result["counters"]} == {"prefill", "decode", "group"}


def test_errors_that_are_typed_are_the_ones_that_engines_catch():
    """The core catches WireError alone; the names of a registry's request may be refused as an argument too."""
    for decoder in DECODERS:
        assert WireError in decoder.typed
        assert (len(decoder.typed) == 1) == (decoder.name not in {"instance", "url"})
