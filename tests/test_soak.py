"""What a soak's judgement rests on: plans that repeat, bytes, canaries, a channel that meddles, and the books."""

from __future__ import annotations

import io
import random
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from kvrooms.protocol import notify, wire
from kvrooms.protocol.failure import Reason
from kvrooms.protocol.manifest import Manifest, state_indices
from kvrooms.soak.arena import Arena
from kvrooms.soak.channel import FaultyChannel, Mark, hostile, poison
from kvrooms.soak.corrupt import CorruptingTransport
from kvrooms.soak.memory import Pools, spelled
from kvrooms.soak.messages import Ended
from kvrooms.soak.oracle import Oracle
from kvrooms.soak.plan import HARMLESS, PLAIN_FROM, ROOMS, Config, Fault, kill_numbers, plan_of
from kvrooms.soak.progress import Progress
from kvrooms.soak.tally import Carried, Incident, Tally
from kvrooms.transport.ports import Arrival, FrameIn

CONFIG = Config(seed=3, fault_rate=0.3)


def find(fault: Fault, config: Config = CONFIG, **wanted):
    """The first plan with this fault."""
    for number in range(100_000):
        plan = plan_of(config, number)
        injury = plan.injury
        if injury and injury.fault is fault and all(getattr(injury, k) == v for k, v in wanted.items()):
            return plan
    raise AssertionError(fault)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_plans_follow_from_seed_and_number_alone():
    assert [plan_of(CONFIG, n) for n in range(50)] == [plan_of(CONFIG, n) for n in range(50)]
    assert [plan_of(CONFIG, n) for n in range(50)] != [plan_of(Config(4, 0.3), n) for n in range(50)]


def test_the_share_of_faulty_rooms_is_the_rate_and_every_fault_occurs():
    injured = [plan.injury.fault for plan in (plan_of(CONFIG, n) for n in range(4000)) if plan.injury]
    assert 0.27 < len(injured) / 4000 < 0.33
    assert set(Counter(injured)) == set(Fault)
    assert not any(plan_of(Config(3, 0.0), n).injury for n in range(500))
    assert not any(plan_of(CONFIG, PLAIN_FROM + n).injury for n in range(500))


def test_without_freezes_processes_are_stopped_for_a_moment_only():
    faults = {p.injury.fault for p in (plan_of(Config(3, 0.5, freezes=False), n) for n in range(2000)) if p.injury}
    assert Fault.STALL in faults
    assert Fault.FREEZE not in faults


def test_chunks_make_up_the_pages_and_keys_do_not_repeat():
    plans = [plan_of(CONFIG, n) for n in range(2 * ROOMS)]
    assert all(plan.total >= plan.prefix and len(plan.gaps_s) == len(plan.chunks) for plan in plans)
    assert len({(plan.room, plan.attempt) for plan in plans}) == len(plans)


def test_what_must_not_hurt_a_room_is_known():
    assert all(find(fault).harmless and not find(fault).silent for fault in HARMLESS)
    assert find(Fault.REPEAT, abort=None).harmless
    assert not find(Fault.REPEAT, abort="decode").harmless
    assert find(Fault.LOSE).silent
    assert not find(Fault.FREEZE).silent


def test_one_kill_in_each_full_so_many_rooms():
    kills = kill_numbers(CONFIG, 1000, 300)
    assert [number // 300 for number in sorted(kills)] == [0, 1, 2]
    assert set(kill_numbers(CONFIG, 20_000, 300).values()) == {"prefill", "decode"}
    assert kill_numbers(CONFIG, 299, 300) == {}


# -- bytes and canaries ------------------------------------------------------------------------------------------------


def test_each_position_has_bytes_of_its_own():
    oracle = Oracle(1)
    seen = {oracle.item(n, part, at, 64).tobytes() for n in range(9) for part in ("0/k", "0/v") for at in range(9)}
    assert len(seen) == 9 * 2 * 9
    assert np.array_equal(oracle.item(1, "x", 2, 64), Oracle(1).item(1, "x", 2, 64))
    assert not np.array_equal(oracle.item(1, "x", 2, 64), Oracle(2).item(1, "x", 2, 64))
    with pytest.raises(ValueError, match="item"):
        oracle.item(1, "x", 0, 2**20)


@pytest.fixture
def arena():
    return Arena(("k", "v"), 16, blocks=4, per_block=2)


def test_an_untouched_arena_has_no_hits(arena):
    claim = arena.take(3)
    assert claim.items == [1, 2, 4]
    for array in arena.arrays.values():
        array[claim.items] = 7
    arena.give_back(claim, claim.items)
    arena.scan()
    assert arena.hits == 0
    assert arena.take(9) is None


@pytest.mark.parametrize("item", [0, 3, 6])
def test_a_write_beside_a_range_is_found_when_it_comes_back(arena, item):
    claim = arena.take(3)
    arena.arrays["v"][item, 15] ^= 1
    arena.give_back(claim, claim.items)
    assert arena.hits == 1
    arena.scan()
    assert arena.hits == 1, "each is counted once"


def test_a_write_to_the_part_of_a_block_that_the_room_did_not_need_is_found(arena):
    claim = arena.take(3)
    arena.arrays["k"][5, 0] = 1
    arena.give_back(claim, claim.items)
    assert arena.hits == 1


def test_a_write_to_a_range_that_was_handed_back_is_found_when_it_is_handed_on_or_looked_at(arena):
    claim = arena.take(2)
    arena.give_back(claim, claim.items)
    arena.arrays["k"][1, 3] = 1
    while arena.take(2).items != claim.items:
        assert arena.hits == 0
    assert arena.hits == 1
    arena.arrays["k"][9, 3] = 1
    arena.scan()
    assert arena.hits == 2


def test_pools_know_wrong_bytes_whatever_part_they_are_in():
    here, there = Pools(Oracle(1)), Pools(Oracle(1))
    plan = next(p for p in (plan_of(CONFIG, n) for n in range(500)) if p.prefix and p.conv and p.window and p.aux)
    sent, landed = here.take(plan, plan.total), there.take(plan, plan.total - plan.prefix)
    here.fill(plan, sent)
    assert there.wrong(plan, landed) > 0
    for ours, theirs, a, b in zip(here.arenas, there.arenas, sent.used, landed.used, strict=True):
        for name, array in ours.arrays.items():
            theirs.arrays[name][b] = array[a[len(a) - len(b) :]]
    assert there.wrong(plan, landed) == 0
    for arena, used in zip(there.arenas, landed.used, strict=True):
        row = next(iter(arena.arrays.values()))[used[0]]
        row[-1] ^= 1
        assert there.wrong(plan, landed) == 1
        row[-1] ^= 1
    there.give_back(landed)
    there.scan()
    assert there.hits == 0


def test_pools_that_are_too_small_give_everything_back():
    pools = Pools(Oracle(1))
    plan = next(p for p in (plan_of(CONFIG, n) for n in range(500)) if p.conv and p.aux and not p.window)
    held = [pools.take(plan, 4) for _ in range(128)]
    assert None not in held
    assert pools.take(plan, 4) is None, "there are 128 slots"
    pools.give_back(held.pop())
    assert pools.take(plan, 4) is not None


def test_every_spelling_says_the_same():
    pools = Pools(Oracle(1))
    items = tuple(pools.memory.regions.component_items(i) for i in range(2))
    for conv, window in ((True, 3), (True, 0), (False, 0)):
        plan = replace(plan_of(CONFIG, 1), conv=conv, window=window)
        holding = pools.take(plan, 1)
        for spelling in range(6):
            one = replace(plan, spelling=spelling)
            read = state_indices(pools.memory.layout, spelled(one, holding), items, skip_state=not conv)
            assert [some.tolist() for some in read] == [holding.conv, holding.window]


# -- the channel -------------------------------------------------------------------------------------------------------


class Wire:
    """A control channel that remembers what was sent, and delivers what it is given."""

    def __init__(self):
        self.sent, self.events = [], []

    def send(self, connection, frame):
        self.sent.append((connection, frame))

    def poll(self):
        events, self.events = self.events, []
        return events

    def names(self):
        return [type(wire.decode(frame[4:]).body).__name__ for _, frame in self.sent]


def frame(body):
    return wire.encode(body, 11, 22, 1)


def metadata(room=7, grant=1):
    return wire.Metadata(room, 0, grant, 99, Manifest(1, ((0, 1),), (), ()), b"\0\0\0\0", -1, ())


def test_the_first_of_a_rooms_frames_is_lost_and_the_next_is_not():
    inner = Wire()
    channel = FaultyChannel(inner)
    channel.mark((7, 0), "abort", Mark(copies=0))
    abort = frame(wire.Abort(1, Reason.ABORTED, "", False))
    for one in (frame(metadata()), abort, frame(wire.Ping(1)), abort):
        channel.send(5, one)
    assert inner.names() == ["Metadata", "Ping", "Abort"]
    assert channel.done == {"abort lost": 1}


def test_frames_of_other_rooms_and_connections_pass():
    inner = Wire()
    channel = FaultyChannel(inner)
    channel.mark((7, 0), "ack", Mark(copies=3))
    inner.events = [FrameIn(5, frame(metadata(7, 1))[4:]), FrameIn(5, frame(metadata(8, 2))[4:]), FrameIn(5, b"\1")]
    assert len(channel.poll()) == 3
    for connection, grant in ((5, 2), (6, 1), (5, 1)):
        channel.send(connection, frame(wire.Ack(grant)))
    assert [connection for connection, _ in inner.sent] == [5, 6, 5, 5, 5]
    channel.mark((7, 0), "ack", Mark(copies=3))
    channel.unmark((7, 0))
    channel.send(5, frame(wire.Ack(1)))
    assert len(inner.sent) == 6


def test_a_room_knows_its_peer_from_the_metadata_that_was_sent_or_accepted():
    decode, prefill = FaultyChannel(Wire()), FaultyChannel(Wire())
    decode.send(5, frame(metadata()))
    assert set(decode.met) == {(7, 0)}
    prefill._inner.events = [FrameIn(5, frame(metadata())[4:])]
    prefill.poll()
    assert not prefill.met, "it may be parked, and refused"
    prefill.send(5, frame(wire.Accept(1)))
    assert set(prefill.met) == {(7, 0)}


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("seed", range(20))
def test_hostile_frames_are_never_what_the_other_side_may_act_on(side, seed):
    original = frame(metadata() if side == "decode" else wire.Accept(1))
    for one in hostile(random.Random(seed), side)(original):
        assert wire.frame_length(one[:4]) == len(one) - 4
        try:
            received = wire.decode(one[4:])
        except wire.WireError:
            continue
        answers_of_decode = (wire.Metadata, wire.Abort)
        wrong_side = isinstance(received.body, wire.Refuse) or (
            isinstance(received.body, answers_of_decode) is (side == "prefill")
        )
        assert received.source != 11 or wrong_side


def test_a_poisoned_metadata_names_the_same_grant_and_no_page_that_exists():
    inner = Wire()
    channel = FaultyChannel(inner)
    channel.mark((7, 0), "metadata", Mark(before=poison))
    channel.send(5, frame(metadata()))
    bad, good = (wire.decode(sent[4:]).body for _, sent in inner.sent)
    assert bad.grant == good.grant
    assert bad.pages != good.pages


# -- the books ---------------------------------------------------------------------------------------------------------


def carried(plan, *ends, prefill="p1", decode="d1", issued=10.0):
    return Carried(plan, prefill, decode, issued, ends=list(ends))


def end(role, status, at=11.0, *, opened=10.0, met=10.1, wrong=0, reason="peer_lost"):
    return Ended(1, role, status, reason if status != "done" else "", "", opened, at, met, wrong)


PLAIN = plan_of(CONFIG, PLAIN_FROM)


def test_a_room_that_is_done_on_both_sides_is_done():
    tally = Tally()
    tally.take(carried(PLAIN, end("prefill", "done"), end("decode", "done")))
    assert (tally.rooms, tally.done, tally.failed, tally.ok()) == (1, 1, 0, True)


def test_a_failure_that_nothing_explains_is_not_ok():
    tally = Tally()
    tally.take(carried(PLAIN, end("prefill", "done"), end("decode", "failed")))
    assert (tally.failed, tally.injected, tally.collateral, tally.ok()) == (1, 0, 0, False)
    assert "nothing was done that explains it" in tally.wrongs[0]


@pytest.mark.parametrize(("fault", "good"), [(Fault.ABORT, True), (Fault.STALL, False), (Fault.STRANGER, False)])
def test_a_fault_of_its_own_explains_a_failure_only_if_it_may_do_harm(fault, good):
    tally = Tally()
    tally.take(carried(find(fault), end("prefill", "failed"), end("decode", "failed")))
    assert (tally.injected == 1) is tally.ok() is good


@pytest.mark.parametrize(
    ("process", "began", "over", "good"),
    [
        ("p1", 10.5, 10.9, True),
        ("d1", 5.0, 9.5, True),
        ("p0", 10.5, 10.9, False),
        ("p1", 12.0, 13.0, False),
        ("p1", 5.0, 6.0, False),
    ],
)
def test_an_incident_explains_the_failures_of_its_process_at_its_time(process, began, over, good):
    tally = Tally()
    tally.incidents.append(Incident("kill", process, began, over))
    tally.take(carried(PLAIN, end("prefill", "failed"), end("decode", "failed")))
    assert (tally.collateral == 1) is tally.ok() is good


def test_hung_and_corrupt_rooms_are_never_ok_whatever_was_done_to_them():
    for bad in (end("decode", "hung"), end("decode", "done", wrong=2)):
        tally = Tally()
        tally.take(carried(find(Fault.ABORT), end("prefill", "done"), bad))
        assert not tally.ok()
        assert tally.hung + tally.corrupt == 1


def test_plain_rooms_are_not_counted_and_must_be_done():
    tally = Tally()
    tally.take_plain(carried(PLAIN, end("prefill", "done"), end("decode", "done")))
    assert tally.ok()
    assert tally.rooms == 0
    tally.take_plain(carried(PLAIN, end("prefill", "failed"), end("decode", "done")))
    assert not tally.ok()


def test_the_time_from_a_kill_counts_the_rooms_that_had_found_their_peer():
    tally = Tally()
    tally.incidents.append(Incident("kill", "p1", 10.5, 11.5))
    rooms = [
        (end("decode", "failed", 10.52), True),
        (end("decode", "failed", 13.4), True),  # it had been advertised: it should have failed at once
        (end("decode", "failed", 13.4, met=11.8), False),  # to the one that came back
        (end("prefill", "failed", 13.4, met=0.0), False),  # nobody had asked for it
        (end("prefill", "failed", 13.4, met=10.6), False),
        (end("decode", "done", 10.52), False),
        (end("decode", "failed", 10.4), False),
    ]
    for one, counts in rooms:
        before = len(tally.failed_after_s)
        tally.take(carried(PLAIN, one))
        assert (len(tally.failed_after_s) > before) is counts, one
    assert tally.kill_p99_s == pytest.approx(2.9)
    assert not tally.ok()
    assert "after the kill of p1" in tally.slow[0]


def test_rooms_are_judged_from_the_death_that_the_kernel_may_be_late_with():
    tally = Tally()
    tally.incidents.append(Incident("kill", "p1", 10.5, 15.5, died=13.3))
    tally.take(carried(PLAIN, end("decode", "failed", 13.4)))
    assert tally.kill_p99_s == pytest.approx(2.9)
    assert tally.ok()
    assert "took 2.80 s to end" in next(iter(tally.complaints()))


def test_progress_and_table_speak_of_everything():
    stream = io.StringIO()
    tally = Tally()
    with Progress(stream, 10, plain=True) as progress:
        progress.show(tally)
        assert stream.getvalue() == "", "there is nothing to say yet"
        tally.take(carried(PLAIN, end("prefill", "done"), end("decode", "failed")))
        progress.show(tally)
        progress.show(tally)
        assert stream.getvalue().count("1 of 10 rooms") == 1, "again only after some seconds"
        for line in [*tally.table(), *tally.complaints()]:
            progress.say(line)
    assert "1 unexplained" in stream.getvalue()
    assert "peer_lost 1" in stream.getvalue()
    tally.wrongs *= 30
    assert list(tally.complaints())[-1] == "... and 10 more"
    tally.late_s = 3.0
    assert "3.0 s late" in next(iter(tally.complaints()))


# -- a byte that changes -----------------------------------------------------------------------------------------------


class Landing:
    """A transport that delivers what it is given."""

    backend = "test"

    def __init__(self, *arrivals):
        self.waiting = list(arrivals)

    def arrivals(self):
        waiting, self.waiting = self.waiting, []
        return waiting


def test_one_byte_of_the_first_part_that_lands_is_changed_once():
    inner, channel = Landing(), FaultyChannel(Wire())
    transport = CorruptingTransport(inner, channel)
    channel.send(5, frame(metadata()))
    row = np.zeros(4, np.uint8)
    seen = []
    transport.mark((7, 0), lambda part: seen.append(part) or row)
    part = notify.Part(notify.PartKind.KV, 0, 0, 1)
    inner.waiting = [Arrival("x", message) for message in (b"nonsense", notify.encode(1, 98, (part,)))]
    assert len(transport.arrivals()) == 2
    assert not row.any(), "these were of no room, or of another one"
    for _ in range(2):
        inner.waiting = [Arrival("x", notify.encode(1, 99, (part,)))]
        assert len(transport.arrivals()) == 1
        assert row.tolist() == [0, 0, 0, 255]
    assert seen == [part]
    assert transport.backend == "test"
    transport.mark((7, 0), lambda _: row)
    transport.unmark((7, 0))
    inner.waiting = [Arrival("x", notify.encode(1, 99, (part,)))]
    transport.arrivals()
    assert row.tolist() == [0, 0, 0, 255]


def test_a_part_that_has_landed_is_found_in_memory():
    pools = Pools(Oracle(1))
    plan = next(p for p in (plan_of(CONFIG, n) for n in range(500)) if p.prefix and p.conv and p.window and p.aux)
    holding = pools.take(plan, plan.total - plan.prefix)
    parts = (
        (notify.PartKind.KV, 0, plan.prefix + 1, pools.pages, holding.pages[1]),
        (notify.PartKind.AUX, 0, 0, pools.aux, holding.aux[0]),
        (notify.PartKind.STATE, 0, 0, pools.conv, holding.conv[0]),
        (notify.PartKind.STATE, 1, plan.window - 1, pools.window, holding.window[-1]),
    )
    for kind, component, first, arena, item in parts:
        pools.landed_item(plan, holding, notify.Part(kind, component, first, 1))[:] = 77
        assert (next(iter(arena.arrays.values()))[item] == 77).all()


def test_only_the_decode_that_asks_for_digests_has_bytes_changed():
    assert {plan_of(CONFIG, n).decode for n in range(99)} == {0, 1}
    assert find(Fault.CORRUPT).decode == CONFIG.digesting == 1
    assert not find(Fault.CORRUPT).harmless
