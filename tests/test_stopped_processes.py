"""Engines that are really stopped in the middle of rooms: what fails, what stays quarantined, and what comes back."""

from __future__ import annotations

import random
import time

import pytest
from process_peers import LIMIT_S, Carrying, Far, NearDecode, NearPrefill

from kvrooms import Status
from kvrooms.protocol.failure import Reason
from kvrooms.soak.messages import Ready, Start
from kvrooms.soak.plan import Config
from kvrooms.soak.procs import Processes

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def registry(processes: Processes) -> str:
    process = processes.start("registry", Start("registry", "registry", Config(0, 0.0), ""))
    ready = process.heard()
    assert isinstance(ready, Ready)
    return ready.address


def serves(near: NearDecode, far: Far) -> None:
    """A room ends well, byte for byte. On a busy machine a peer may seem dead for a moment: then once more."""
    for plan in near.plans(5):
        far.carry(plan.number)
        one = near.open(plan, far.name)
        status = one.room.wait(LIMIT_S)
        wrong = near.pools.wrong(plan, one.holding)
        one.room.close()
        assert one.room.wait_memory_free(LIMIT_S)
        near.hand_back(one)
        if status is Status.DONE:
            assert wrong == 0
            return
        assert one.room.failure.reason is Reason.PEER_LOST, one.room.failure
    raise AssertionError(one.room.failure)


def still_kept(rooms: list[Carrying]) -> bool:
    """Whether the memory of none of these rooms comes back, for as long as any honest answer would take."""
    return not rooms or (not rooms[0].room.wait_memory_free(0.5) and not any(one.room.memory_free for one in rooms))


@pytest.mark.parametrize("seed", range(2))
def test_a_prefill_that_stands_still_and_goes_on(processes: Processes, registry: str, seed: int) -> None:
    """Its rooms fail after the heartbeat, not the deadline; what it could still write to is kept until it says so."""
    draw = random.Random(seed)
    near, far = NearDecode(registry), Far(processes, "prefill", registry, f"stopped-{seed}")
    with near.engine:
        serves(near, far)
        plans = near.plans(32)
        far.carry(*(plan.number for plan in plans))
        rooms = [near.open(plan, far.name) for plan in plans]
        time.sleep(draw.uniform(0, 0.03))  # chance is the point: anywhere in the lives of these rooms
        far.stop()
        for one in rooms:
            if one.room.wait(LIMIT_S) is Status.FAILED:
                assert one.room.failure.reason is Reason.PEER_LOST
            else:
                assert near.pools.wrong(one.plan, one.holding) == 0
        kept = [one for one in rooms if not one.room.memory_free]
        for one in rooms:
            if one not in kept:
                near.hand_back(one)  # a canary from here on: nothing may land in it
        assert still_kept(kept), "it has not said that it will not write"
        far.go_on()
        for one in kept:
            assert one.room.wait_memory_free(LIMIT_S)
            near.hand_back(one)
        for one in rooms:
            one.room.close()
        serves(near, far)
        far.abandon(*(plan.number for plan in plans))  # those that decode never came for
        figures = far.look()
        assert figures.held == figures.canaries == 0
        near.pools.scan()
        assert near.pools.hits == 0
    far.kill()


def test_a_decode_that_stands_still_and_goes_on(processes: Processes, registry: str) -> None:
    """Prefill gives it up; when it goes on, its rooms fail, its ranges come back, and the pair works as before."""
    near = NearPrefill(registry)
    far = Far(processes, "decode", registry, "stopped-decode")
    with near.engine:
        plans = [plan for plan in near.plans(24) if plan.total]
        rooms = [near.open(plan, send=False) for plan in plans]
        far.carry(*(plan.number for plan in plans), prefill="near-prefill", address=near.engine.address)
        while not any(one.room.poll() is Status.TRANSFERRING for one in rooms):
            assert not any(one.room.poll().terminal for one in rooms)
        time.sleep(random.Random(1).uniform(0, 0.02))  # some rooms have found each other by now, some not
        far.stop()
        bound = [one for one in rooms if one.room.phase != "METADATA"]
        for one in bound:
            assert one.room.wait(LIMIT_S) is Status.FAILED
            assert one.room.failure.reason is Reason.PEER_LOST
        far.go_on()
        for one in bound:
            assert one.room.wait_memory_free(LIMIT_S)
            assert far.end_of(one.plan.number).status == "failed"
        for one in rooms:
            if one not in bound:  # decode asks for these now, or did so just before it learnt that it was given up
                near.finish(one)
                if far.end_of(one.plan.number).status == "done":
                    assert one.room.wait(LIMIT_S) is Status.DONE, one.room.failure
                    assert far.ended[one.plan.number].wrong == 0
            one.room.close()
            assert one.room.wait_memory_free(LIMIT_S)
            near.hand_back(one)
        figures = far.look()
        assert figures.held == figures.canaries == 0
    near.pools.scan()
    assert near.pools.hits == 0
    far.kill()


def test_a_prefill_that_is_killed_while_it_stands_still_is_only_gone_when_somebody_says_so(
    processes: Processes, registry: str
) -> None:
    """Its silence had ended the connection, so no kernel could tell of its death: the orchestrator must."""
    near, far = NearDecode(registry), Far(processes, "prefill", registry, "killed-while-stopped")
    with near.engine:
        serves(near, far)
        plans = [plan for plan in near.plans(16) if plan.total > plan.prefix]
        rooms = [near.open(plan, far.name) for plan in plans]  # never offered there: these grants stay
        serves(near, far)  # every METADATA before this one has arrived
        far.stop()
        for one in rooms:
            assert one.room.wait(LIMIT_S) is Status.FAILED
        far.kill()
        assert still_kept(rooms)
        near.engine.peer_fenced("killed-while-stopped")
        for one in rooms:
            one.room.close()
            assert one.room.wait_memory_free(LIMIT_S)
            near.hand_back(one)
        port = int(far.address.rpartition(":")[2])
        again = Far(processes, "prefill", registry, "killed-while-stopped", port=port)
        serves(near, again)
        again.kill()
    near.pools.scan()
    assert near.pools.hits == 0
