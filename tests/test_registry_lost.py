"""A registry that dies, forgets, comes back or comes late: rooms do not notice, and engines register again."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest
from process_peers import LIMIT_S, Carrying, NearDecode, NearPrefill

from kvrooms import Status
from kvrooms.soak.messages import Ready, Start
from kvrooms.soak.plan import Config
from kvrooms.soak.procs import Process, Processes

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(200)]


def serve(processes: Processes, port: int = 0) -> tuple[Process, str]:
    """A registry in a process of its own, and its URL."""
    process = processes.start("registry", Start("registry", "registry", Config(0, 0.0), "", port))
    ready = process.heard()
    assert isinstance(ready, Ready)
    return process, ready.address


def kill(registry: Process) -> None:
    registry.signal(9)
    assert registry.ended(LIMIT_S)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def registered(url: str) -> list[str]:
    """The addresses that a registry knows; none when it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/v1/engines", timeout=5) as answer:
            return [entry["address"] for entry in json.load(answer)["engines"]]
    except (urllib.error.URLError, OSError):
        return []


def pair(sending: NearPrefill, receiving: NearDecode, *, send: bool = True) -> tuple[Carrying, Carrying]:
    """A room on both sides."""
    plan = next(plan for plan in receiving.plans(50) if plan.total > plan.prefix)
    return sending.open(plan, send=send), receiving.open(plan, "near-prefill")


def ends_well(sending: NearPrefill, receiving: NearDecode, sender: Carrying, receiver: Carrying) -> None:
    """Both sides are DONE, and every byte is right."""
    assert receiver.room.wait(LIMIT_S) is Status.DONE, receiver.room.failure
    assert sender.room.wait(LIMIT_S) is Status.DONE, sender.room.failure
    assert receiving.pools.wrong(receiver.plan, receiver.holding) == 0
    for near, one in ((sending, sender), (receiving, receiver)):
        one.room.close()
        assert one.room.wait_memory_free(LIMIT_S)
        near.hand_back(one)


def test_rooms_do_not_notice_that_the_registry_dies_and_engines_register_again(processes: Processes) -> None:
    registry, url = serve(processes)
    sending, receiving = NearPrefill(url, registry_ttl_s=1.0), NearDecode(url)
    with sending.engine, receiving.engine:
        under_way = pair(sending, receiving, send=False)
        while under_way[1].room.phase == "METADATA":
            assert not under_way[1].room.poll().terminal
        kill(registry)
        assert registered(url) == []
        ends_well(sending, receiving, *pair(sending, receiving))  # a new one, over the connection that there is
        sending.finish(under_way[0])
        ends_well(sending, receiving, *under_way)
        registry, again = serve(processes, port_of(url))
        assert again == url
        while registered(url) != [sending.engine.address]:
            pass  # it registers by itself; with the limit of this test
        late = NearDecode(url)
        with late.engine:  # somebody who has to ask
            ends_well(sending, late, *pair(sending, late))
        while registered(url) != [sending.engine.address]:
            pass  # it registers every third of a second; never a second time beside the first
    assert registered(url) == [], "an engine that is closed withdraws"
    kill(registry)


def test_a_registry_that_comes_late_is_waited_for(processes: Processes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        sending, receiving = NearPrefill(url), NearDecode(url)
    with sending.engine, receiving.engine:
        rooms = pair(sending, receiving)
        with pytest.raises(TimeoutError):
            rooms[1].room.wait(0.5)
        registry, _ = serve(processes, port_of(url))
        ends_well(sending, receiving, *rooms)
        assert registered(url) == [sending.engine.address]
    kill(registry)


def test_a_registry_that_stands_still_delays_those_who_ask_and_nobody_else(processes: Processes) -> None:
    registry, url = serve(processes)
    sending, receiving, late = NearPrefill(url), NearDecode(url), NearDecode(url)
    with sending.engine, receiving.engine, late.engine:
        ends_well(sending, receiving, *pair(sending, receiving))
        registry.signal(19)
        asking = pair(sending, late)
        ends_well(sending, receiving, *pair(sending, receiving))
        assert asking[1].room.phase == "METADATA"
        registry.signal(18)
        ends_well(sending, late, *asking)
    kill(registry)
