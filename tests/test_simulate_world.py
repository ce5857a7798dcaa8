"""The simulated ports by themselves: each fault does what it says, is told to whoever looks on, and can be switched."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_bench import Bench, Broken, send_in, serve_another
from hypothesis import given
from hypothesis import strategies as st

from kvrooms import Status
from kvrooms.engine.settings import EngineSettings
from kvrooms.harness.channel import SimChannel
from kvrooms.harness.faults import Faults, corrupted, told_apart, truncated
from kvrooms.harness.lanes import FOREVER, Choices, Lanes
from kvrooms.harness.simulate.blocking import WorldMoment
from kvrooms.harness.world import World
from kvrooms.protocol import wire
from kvrooms.protocol.errors import TransportError, WireError
from kvrooms.protocol.failure import Reason
from kvrooms.transport.ports import CloseCause, Closed, FrameIn, Opened

frames = st.sampled_from(
    [
        wire.Ping(3),
        wire.Accept(7),
        wire.Ack(2**40),
        wire.Goodbye((1, 5)),
        wire.Failed(9, Reason.MISMATCH, "words", False),
    ]
)


def ends(world: World) -> tuple[SimChannel, int, SimChannel, int]:
    """Two connected channels and the connection's number at each."""
    near, far = SimChannel(world, "near"), SimChannel(world, "far")
    near.dial(far.listen())
    world.settle()
    (here,), (there,) = near.poll(), far.poll()
    assert isinstance(here, Opened)
    assert isinstance(there, Opened)
    return near, here.connection, far, there.connection


def say(channel: SimChannel, connection: int, *words: bytes) -> None:
    for word in words:
        channel.send(connection, bytes(wire.PREFIX_LENGTH) + word)
    channel.flush()


def heard(channel: SimChannel) -> list[bytes]:
    return [event.frame for event in channel.poll() if isinstance(event, FrameIn)]


@given(frames, st.integers(0, 2**32))
def test_a_damaged_frame_can_be_told_from_what_was_sent(body: wire.Body, seed: int) -> None:
    frame = wire.encode(body, 11, 22, 3)[wire.PREFIX_LENGTH :]
    for damage in (corrupted, truncated):
        damaged = damage(frame, random.Random(seed))
        assert damaged != frame
        assert told_apart(frame, damaged)
    with pytest.raises(WireError):
        wire.decode(truncated(frame, random.Random(seed)))
    assert not told_apart(frame, frame)


def test_frames_keep_their_order_unless_they_must_not() -> None:
    for reorder in (False, True):
        orders = set()
        for seed in range(30):
            world = World(seed, Faults(reorder=reorder))
            near, here, far, _ = ends(world)
            say(near, here, b"1", b"2", b"3")
            world.settle()
            orders.add(tuple(heard(far)))
        assert len(orders) == (6 if reorder else 1)


@pytest.mark.parametrize(
    ("faults", "arrive"),
    [
        (Faults(drop=1.0), []),
        (Faults(repeat=1.0), [b"word", b"word"]),
        (Faults(late=1.0, late_s=5.0), [b"word"]),
        (Faults(), [b"word"]),
    ],
)
def test_what_happens_to_frames(faults: Faults, arrive: list[bytes]) -> None:
    world = World(1)
    near, here, far, _ = ends(world)
    world.faults = faults
    say(near, here, b"word")
    world.settle()
    late = heard(far)
    world.pass_time()
    world.settle()
    assert late + heard(far) == arrive
    assert bool(late) == (bool(arrive) and not faults.late)
    assert (world.now > 0) == bool(faults.late)


def test_a_jammed_end_hears_no_more_and_the_other_sees_nothing_until_it_is_closed() -> None:
    world = World(1)
    near, here, far, there = ends(world)
    near.jam(here)
    assert near.poll() == [Closed(here, CloseCause.OVERFLOW, "")]
    say(far, there, b"hello?")
    world.settle()
    assert not near.poll()
    assert not far.poll()
    assert near.jammed
    near.close(here)
    world.settle()
    assert far.poll() == [Closed(there, CloseCause.PEER_CLOSED, "")]
    assert not near.jammed


def test_a_killed_process_is_heard_of_after_what_it_said() -> None:
    world = World(2)
    near, here, far, there = ends(world)
    say(near, here, b"last words")
    near.kill()
    world.settle()
    assert far.poll() == [FrameIn(there, b"last words"), Closed(there, CloseCause.PEER_CLOSED, "")]


# -- clocks, lanes, writes ---------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_is_one_engines_own() -> None:
    bench = Bench(1)
    serve_another(bench)
    before = bench.decode._core.clock.now()
    bench.world.jump("prefill-0", 100.0)
    assert bench.prefill._core.clock.now() == before + 100
    assert bench.decode._core.clock.now() == before
    bench.settle()
    bench.pass_time(3)
    serve_another(bench)


def test_held_lanes_go_on_when_their_time_has_come_or_all_is_released() -> None:
    lanes, done = Lanes(Choices()), []
    for name, until in (("a", 3.0), ("b", FOREVER)):
        lanes.add(name, lambda name=name: done.append(name), ordered=True)
        lanes.hold(name, until)
    draw = random.Random(0)
    assert lanes.next_release() == 3.0
    lanes.release(2.0)
    assert not lanes._choices.members
    lanes.release(3.0)
    lanes._choices.members[0].happen(draw)
    assert done == ["a"]
    assert lanes.next_release() is None
    lanes.release(FOREVER)
    lanes._choices.members[0].happen(draw)
    assert done == ["a", "b"]


@given(st.lists(st.integers(-8, 8), max_size=60))
def test_choices_are_a_set(changes: list[int]) -> None:
    class One:
        place = -1

    ones = [One() for _ in range(9)]
    choices, expected = Choices(), set()
    for change in changes:
        one: Any = ones[abs(change)]
        if change < 0:
            choices.drop(one)
            expected.discard(one)
        else:
            choices.put(one)
            expected.add(one)
    assert set(choices.members) == expected
    assert len(choices.members) == len(expected)
    assert all(choices.members[one.place] is one for one in expected)


def begun(faults: Faults, seed: int = 3) -> tuple[Bench, Any, Any]:
    """A room whose writes are about to be posted."""
    bench = Bench(seed, settings=EngineSettings(piece_bytes=32))
    plan = bench.plan(3)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    bench.settle()
    bench.world.faults = faults
    send_in(sender, plan, [3])
    return bench, receiver, sender


def test_a_post_that_fails() -> None:
    bench, receiver, sender = begun(Faults(post_fails=1.0))
    bench.finish(receiver, sender)
    assert sender.failure.reason is Reason.SEND_ERROR
    bench.world.heal()
    bench.settle()
    assert receiver.memory_free


def test_writes_that_are_over_when_their_post_returns() -> None:
    bench, receiver, sender = begun(Faults(at_once=1.0))
    bench.finish(receiver, sender)
    assert receiver.poll() is sender.poll() is Status.DONE


def test_a_stuck_write_goes_on_when_the_world_heals() -> None:
    bench, receiver, sender = begun(Faults(write_stuck=1.0))
    bench.settle()
    assert not receiver.poll().terminal
    assert bench.world.writes
    bench.world.heal()
    bench.finish(receiver, sender)
    assert receiver.poll() is Status.DONE


def test_a_slow_write_takes_time() -> None:
    bench, receiver, sender = begun(Faults(write_slow=1.0, late_s=9.0))
    bench.settle()
    assert not receiver.poll().terminal
    bench.finish(receiver, sender, timers=True)
    assert receiver.poll() is Status.DONE
    assert 0 < bench.world.now <= 27


def test_what_a_failed_write_had_under_way_still_lands_with_the_bytes_that_it_had_read() -> None:
    landed = 0
    for seed in range(20):
        bench, _, sender = begun(Faults(write_fails=1.0), seed)
        bench.run(lambda sender=sender: sender.poll().terminal)
        if sender.poll() is Status.FAILED:
            writes = [write for write in bench.world.writes if write.error is not None]
            landed += sum(write.left for write in writes)
        bench.world.heal()
        bench.settle()
        assert not bench.world.writes
    assert landed


def test_memory_that_a_peer_has_not_registered_is_no_peers() -> None:
    bench = Bench(1, decodes=2)
    one, other = bench.decodes
    transport = bench.prefill._core.transport
    theirs, blob = one.pool.memory, one.engine._core.transport.metadata()
    agent = one.engine._core.transport.agent
    transport.add_peer(agent, blob, theirs.layout, theirs.regions)
    with pytest.raises(TransportError, match="has not registered the memory"):
        transport.add_peer(agent, blob, theirs.layout, other.pool.memory.regions)
    with pytest.raises(TransportError, match="not that of"):
        transport.add_peer("stranger", blob, theirs.layout, theirs.regions)


# -- the bench ---------------------------------------------------------------------------------------------------------


def test_the_bench_names_what_is_broken() -> None:
    bench = Bench(5)
    bench.world.writes_held = True
    plan = bench.plan(2)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [2])
    bench.settle()
    held = next(held for held in bench.held if held.room is receiver)
    with pytest.raises(Broken, match="goes on") as found:
        bench.freed(held)
    assert found.value.property_id == "S3"
    bench.world.writes_held = False
    with pytest.raises(Broken, match=r"landed in the memory of .*, which was free"):
        bench.settle()


def test_who_blocks_lets_the_world_run() -> None:
    bench = Bench(6)
    plan = bench.plan(1)
    receiver, sender = bench.receive(plan), bench.offer(plan)
    send_in(sender, plan, [1])
    moment = WorldMoment(bench.world)
    receiver._end.call(bench.decode.lock, lambda: moment.happen(bench.decode.lock))
    assert moment.wait(bench.decode.lock, 1.0)
    assert receiver.poll() is Status.DONE
    never = WorldMoment(bench.world)
    assert not never.wait(bench.decode.lock, 1.0)
