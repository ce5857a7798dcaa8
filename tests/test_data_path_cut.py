"""Two engines that are well, and the connection that carried their writes is cut: one room is lost, and no pair."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from process_peers import CONFIG, LIMIT_S, Far, NearDecode

from kvrooms import Status
from kvrooms.protocol.failure import Reason
from kvrooms.soak.messages import Ready, Start
from kvrooms.soak.procs import Processes

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]


def tcp_of(pid: int) -> dict[int, tuple[str, str]]:
    """Both ends of each TCP connection of a process, by descriptor."""
    ends = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01":
            ends[f"socket:[{fields[9]}]"] = (fields[1], fields[2])
    links = {int(link.name): str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    return {descriptor: ends[link] for descriptor, link in links.items() if link in ends}


def cut(pid: int, address: str) -> int:
    """Shut down our connections to a process, but that to its control port; how many there were."""
    control = f":{int(address.rpartition(':')[2]):04X}"
    theirs = {mine for mine, _ in tcp_of(pid).values()}
    found = [fd for fd, (_, far) in tcp_of(os.getpid()).items() if far in theirs and not far.endswith(control)]
    for descriptor in found:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    return len(found)


def test_a_cut_data_path_loses_what_was_under_way_and_is_made_anew() -> None:
    with Processes() as processes:
        ready = processes.start("registry", Start("registry", "registry", CONFIG, "")).heard()
        assert isinstance(ready, Ready)
        near, far = NearDecode(ready.address), Far(processes, "prefill", ready.address, "cut")
        with near.engine:
            statuses = []
            for number, plan in enumerate(plan for plan in near.plans(30) if plan.total > plan.prefix):
                if number == 3 and not cut(far.process.pid, far.address):
                    pytest.skip("UCX keeps no TCP connection between two processes here")
                far.carry(plan.number)
                one = near.open(plan, far.name)
                statuses.append(one.room.wait(LIMIT_S))
                if statuses[-1] is Status.DONE:
                    assert near.pools.wrong(plan, one.holding) == 0
                    one.room.close()
                else:
                    lost = one.room
                    assert one.room.failure.reason in {Reason.SEND_ERROR, Reason.TRANSPORT_ERROR}
                    assert not one.room.memory_free, "some of its bytes may still be under way"
            assert statuses[:3] == [Status.DONE] * 3
            assert statuses.count(Status.FAILED) == 1, statuses
            far.kill()
            assert lost.wait_memory_free(LIMIT_S), "its end is proof"
        near.pools.scan()
        assert near.pools.hits == 0
