"""The NIXL transport on real NIXL and a second process, which is stopped, killed, removed."""

import mmap
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from nixl_support import (
    WIDE,
    counted,
    indexed,
    region,
    settle,
)

from kvrooms.protocol.errors import PeerGone, TransportError
from kvrooms.protocol.layout import Region, Regions
from kvrooms.transport.nixl import NixlTransport

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(120)]


CHILD = """
import mmap, os, sys, threading, time
import numpy as np
from kvrooms.protocol.layout import BufferSpec, Layout, Region, Regions
from kvrooms.transport.nixl import NixlTransport
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
with open(sys.argv[1], "r+b") as file:
    view = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
transport = NixlTransport("far")
layout = Layout(16, (BufferSpec(0, "k", 65536, "uint8"),), (), ())
transport.register(layout, Regions((Region(view.ctypes.data, len(view) // 65536),), (), ()))
print(view.ctypes.data, transport.metadata().hex(), flush=True)
while True:
    transport.arrivals()
    time.sleep(0.0002)
"""
ITEMS = 64


class Far:
    """A process that holds registered memory (a file mapped by both) and polls."""

    def __init__(self, path):
        path.write_bytes(bytes(ITEMS * 65536))
        with path.open("r+b") as file:
            self.memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8).reshape(ITEMS, 65536)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        address, blob = self.process.stdout.readline().split()
        self.regions = Regions((Region(int(address), ITEMS),), (), ())
        self.description = ("far", bytes.fromhex(blob), WIDE, self.regions)

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            _, status = os.waitpid(self.process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
        if number == signal.SIGKILL:
            self.process.wait(20)

    def close(self):
        self.process.kill()
        self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def far(tmp_path):
    """A second process that is our peer, written to once; `far.near` is our transport."""
    source = np.full((ITEMS, 65536), 7, np.uint8)
    near = NixlTransport("near")
    child = Far(tmp_path / "memory")
    try:
        near.register(WIDE, Regions((region(source),), (), ()))
        near.add_peer(*child.description)
        near.post("far", indexed([0], [0]), b"first")
        settle(near)
        assert (child.memory[0] == 7).all()
        yield SimpleNamespace(near=near, child=child, source=source)
    finally:
        child.close()
        near.close()


def in_flight_to_a_stopped_peer(far, first=1, count=8):
    far.child.signal(signal.SIGSTOP)
    handles = [far.near.post("far", indexed([i], [i]), b"late") for i in range(first, first + count)]
    assert None not in handles
    for _ in range(1000):
        assert not far.near.settled()
    return handles


def test_writes_in_flight_to_a_peer_that_is_killed_settle_with_an_error(far):
    handles = in_flight_to_a_stopped_peer(far)
    far.child.signal(signal.SIGKILL)
    over, _ = settle(far.near)
    assert sorted(one.handle for one in over) == handles
    assert all("far" in one.error for one in over)
    with pytest.raises(PeerGone, match="far"):
        far.near.post("far", indexed([1], [1]), b"x")
    far.near.remove_peer("far")
    assert far.near.in_flight == 0
    with pytest.raises(PeerGone):
        far.near.post("far", indexed([1], [1]), b"x")


def test_writes_in_flight_to_a_removed_peer_settle_when_it_is_killed(far):
    handles = in_flight_to_a_stopped_peer(far)
    counts = counted(far.near)
    far.near.remove_peer("far")
    far.near.remove_peer("far")
    for _ in range(1000):
        assert not far.near.settled(), "nothing is known about these writes yet"
    with pytest.raises(PeerGone):
        far.near.post("far", indexed([1], [1]), b"x")
    far.child.signal(signal.SIGKILL)
    over, _ = settle(far.near)
    assert sorted(one.handle for one in over) == handles
    assert all(one.error for one in over)
    assert counts["released"] == len(handles)


def test_writes_in_flight_to_a_removed_peer_settle_when_it_goes_on(far):
    handles = in_flight_to_a_stopped_peer(far)
    far.near.remove_peer("far")
    far.child.signal(signal.SIGCONT)
    over, _ = settle(far.near)
    assert sorted(over) == [(handle, None) for handle in handles]
    assert (far.child.memory[1:9] == 7).all()
    # It is really forgotten now, and may come again as it likes.
    name, blob, layout, _ = far.child.description
    far.near.add_peer(name, blob, layout, Regions((Region(far.child.regions.kv[0].address, ITEMS - 1),), (), ()))
    far.near.post("far", indexed([20], [20]), b"x")
    settle(far.near)
    assert (far.child.memory[20] == 7).all()


def test_a_peer_removed_with_writes_in_flight_comes_back_as_the_same_only(far):
    handles = in_flight_to_a_stopped_peer(far)
    far.near.remove_peer("far")
    name, blob, layout, regions = far.child.description
    fewer = Regions((Region(regions.kv[0].address, ITEMS - 1),), (), ())
    with pytest.raises(TransportError, match="in flight"):
        far.near.add_peer(name, blob, layout, fewer)
    far.near.add_peer(name, blob, layout, regions)
    more = far.near.post("far", indexed([9], [9]), b"more")
    far.child.signal(signal.SIGCONT)
    over, _ = settle(far.near)
    assert sorted(over) == [(handle, None) for handle in [*handles, *([more] if more else [])]]
    assert (far.child.memory[1:10] == 7).all()


def test_close_does_not_wait_for_ever_and_says_what_it_gave_up(far):
    in_flight_to_a_stopped_peer(far)
    counts = counted(far.near)
    begun = time.monotonic()
    far.near.close()
    assert time.monotonic() - begun < 10
    assert far.near.in_flight == 8
    assert counts["released"] == 8


@pytest.mark.parametrize(("theirs", "expected"), [(None, "FATAL"), ("WARN", "WARN")])
def test_nixl_is_quiet_unless_asked_and_leaves_logging_alone(theirs, expected):
    program = (
        "import logging, os, sys; from kvrooms.transport.nixl import NixlTransport\n"
        "assert 'nixl' not in sys.modules\n"
        "t = NixlTransport('quiet'); t.close()\n"
        "print(os.environ['NIXL_LOG_LEVEL'], logging.raiseExceptions)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "NIXL_LOG_LEVEL"}
    environ |= {"NIXL_LOG_LEVEL": theirs} if theirs else {}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.splitlines()[-1] == f"{expected} True"
    if theirs is None:
        assert done.stdout.count("\n") == 1
        assert not done.stderr
