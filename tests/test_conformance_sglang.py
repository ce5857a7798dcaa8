"""SGLang's driver without SGLang: the cache of wheels, pipe, taps and rooms, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kvrooms.harness.conformance.sglang import install, subject
from kvrooms.harness.conformance.sglang.memory import Memory
from kvrooms.harness.conformance.sglang.pipe import pack_indices, receive_frame, send_frame, unpack_indices
from kvrooms.harness.conformance.sglang.process import Driver, DriverError
from kvrooms.harness.conformance.sglang.rooms import FAILED, SUCCESS, TRANSFERRING, WAITING, DecodeRoom, PrefillRoom
from kvrooms.harness.conformance.sglang.taps import Taps, describe
from kvrooms.harness.conformance.subject import ABSENT, ComponentShape, Item, Request, Shape, Unsupported

SHAPE = Shape(64, 8, 8, 16, 2, 2, (ComponentShape("window", "when_indexed", 8, 4, 4),))
PLAIN = SHAPE._asdict() | {"state": [part._asdict() for part in SHAPE.state]}


# -- wheels ------------------------------------------------------------------------------------------------------------

# As little of SGLang's layout as the driver asks for; the classes do nothing. No code of SGLang.
FAKE = {
    "sglang/srt/environ.py": "envs = None",
    "sglang/srt/disaggregation/utils.py": "import enum\nDisaggregationMode = enum.Enum('Mode', 'PREFILL DECODE')",
    "sglang/srt/disaggregation/base/conn.py": "import enum\nclass KVArgs: 0\nStateType = enum.Enum('T', 'MAMBA SWA')",
    "sglang/srt/disaggregation/nixl/conn.py": """
import socket, threading, time
class NixlKVBootstrapServer:
    def __init__(self, host, port):
        self.socket = socket.create_server((host, port))
class NixlKVManager:
    def __init__(self, args, mode, settings, mla):
        self.table = {}
        threading.Thread(target=time.sleep, args=(600,)).start()
class NixlKVSender:
    def __init__(self, manager, address, room, ranks=None, rank=0):
        manager.table[room] = 1
    def poll(self): return 1
    def abort(self): raise ValueError("no")
""",
    "zmq.py": "class Socket:\n    def send_multipart(self, parts): pass",
    "sglang-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.9\n",
}


def wheel_of(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache in which the light packages are there already, and no registry can be reached."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    install.dependencies_folder(install.cache_folder()).mkdir(parents=True)
    return install.cache_folder()


def test_a_wheel_file_is_unpacked_once_and_knows_its_version(cache, tmp_path):
    wheel = wheel_of(tmp_path, FAKE | {"sglang/srt/kernel.so": "binary", "../escape.py": "x"})
    found = install.prepare(None, str(wheel))
    assert found.version == "9.9.9"
    assert not list(found.package.rglob("*.so"))
    assert all(path.is_relative_to(found.package) for path in tmp_path.rglob("escape.py"))
    stamp = found.package.stat().st_mtime_ns
    assert install.prepare(None, str(wheel)).package.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"no archive", "not a wheel"), (None, "is not a file"), ({"sglang/version.py": ""}, "holds no sglang.srt")],
)
def test_what_is_no_wheel_of_sglang_is_refused_and_leaves_nothing(cache, tmp_path, content, words):
    path = tmp_path / "x.whl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path = wheel_of(tmp_path, content)
    with pytest.raises(install.WheelUnavailableError, match=words):
        install.prepare(None, str(path))
    assert [entry.name for entry in cache.iterdir() if entry.name.startswith(("sglang-wheel", "tmp"))] == []


def test_a_version_that_cannot_be_had_is_unknown_not_a_verdict(cache):
    with pytest.raises(Unsupported, match="pip download"):
        subject("0.0.0", None).start(SHAPE)


@pytest.mark.parametrize("both", [(None, None), ("0.5.12", "file.whl")])
def test_exactly_one_source_is_given(both):
    with pytest.raises(ValueError, match="either"):
        subject(*both)


# -- processes ---------------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_dead(*pids: int) -> bool:
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        os.sched_yield()
    return not any(alive(pid) for pid in pids)


@pytest.fixture
def fake(cache, tmp_path):
    """A subject over the fake wheel."""
    wheel = wheel_of(tmp_path, FAKE)
    unpacked = install.prepare(None, str(wheel))
    made = subject(None, str(wheel))
    sys_path = install.dependencies_folder(cache) / "zmq.py"
    sys_path.write_text((unpacked.package / "zmq.py").read_text())
    yield made
    made.close_driver()


def test_sides_are_processes_that_stop_and_start_again(fake):
    for _ in range(2):
        fake.start(SHAPE)
        assert fake.version == "9.9.9"
        pids = [side.pid for side in fake._sides.values()]
        assert all(alive(pid) for pid in pids)
        fake.fill("prefill", Item("kv", 3), bytes(range(64)))
        assert fake.read("prefill", Item("kv", 3)) == bytes(range(64))
        assert fake.read("decode", Item("kv", 3)) == bytes(64)
        fake.stop()
        assert not any(alive(pid) for pid in pids)
    driver = fake._driver._process.pid
    fake.close_driver()
    assert not alive(driver)


def test_what_sglang_raises_into_its_caller_is_raised_and_remembered(fake):
    fake.start(SHAPE)
    room = fake.open("prefill", Request(7, 0, (1,), 0))
    assert fake.held("prefill")["table"] == 1
    with pytest.raises(RuntimeError, match="ValueError: no"):
        fake.abort(room)
    assert fake.ailments("prefill") == ["abort raised ValueError: no"]
    assert [step.kind for step in fake.steps()] == ["fault"]


def test_a_killed_side_can_be_restarted_at_its_address(fake):
    fake.start(SHAPE)
    before = fake._sides["prefill"]
    fake.kill("prefill")
    assert not alive(before.pid)
    fake.restart("prefill")
    assert fake._sides["prefill"].address == before.address
    assert fake._sides["prefill"].pid != before.pid


def test_a_wheel_that_does_not_load_is_unknown_and_leaves_no_process(cache, tmp_path):
    made = subject(
        None, str(wheel_of(tmp_path, FAKE | {"sglang/srt/disaggregation/utils.py": "import torch_that_is_not"}))
    )
    with pytest.raises(Unsupported, match=r"could not be loaded: ModuleNotFoundError: .*torch_that_is_not"):
        made.start(SHAPE)
    made.stop()


def test_nothing_outlives_a_suite_that_was_killed(cache, tmp_path):
    wheel = wheel_of(tmp_path, FAKE)
    unpacked = install.prepare(None, str(wheel))
    (install.dependencies_folder(cache) / "zmq.py").write_text((unpacked.package / "zmq.py").read_text())
    script = (
        "import sys, time\n"
        "from kvrooms.harness.conformance.sglang import subject\n"
        "from kvrooms.harness.conformance.subject import Shape\n"
        f"made = subject(None, {str(wheel)!r})\n"
        "made.start(Shape(64, 8, 8, 16, 2, 2))\n"
        "print(made._driver._process.pid, *(side.pid for side in made._sides.values()), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as suite:
        pids = [int(word) for word in suite.stdout.readline().split()]
        assert len(pids) == 3
        assert all(alive(pid) for pid in pids)
        suite.send_signal(signal.SIGKILL)
        suite.wait(20)
    assert until_dead(*pids)


def test_a_driver_that_ends_is_an_error_in_words(tmp_path):
    nowhere = install.Wheel("1", tmp_path / "none", tmp_path / "none")
    with pytest.raises(DriverError, match="SGLang 1 could not be loaded"):
        Driver(nowhere)


# -- pipe --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [ABSENT, None, [], [[]], [None], [[3, 5], None], [np.array([3, 5], dtype=np.int32)]])
def test_indices_cross_as_they_are_spelled(value):
    found = unpack_indices(pack_indices(value))
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [(3,), {"window": [3]}, iter([1]), "3"])
def test_spellings_that_sglang_does_not_take_are_refused(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        pack_indices(value)


def test_frames_end_with_the_stream():
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, {"do": "poll"})
        assert receive_frame(there) == {"do": "poll"}
        here.close()
        assert receive_frame(there) is None


# -- taps --------------------------------------------------------------------------------------------------------------


class FakeAgent:
    def __init__(self):
        self.posted = []

    def initialize_xfer(self, operation, local, remote, peer, notification=b""):
        return [notification]

    make_prepped_xfer = initialize_xfer

    def transfer(self, handle):
        self.posted.append(handle)
        return "PROC"

    def check_xfer_state(self, handle):
        assert handle in self.posted, "NIXL raises if it is asked about a write that was never posted"
        return "DONE"

    def get_new_notifs(self):
        return {"peer": [b"1_aux"]}


@pytest.fixture
def tapped():
    taps = Taps("decode")
    agent_class = type("Agent", (FakeAgent,), {})
    taps.on_nixl(agent_class)
    return taps, agent_class()


def test_a_held_write_is_posted_late_and_looks_in_progress(tapped):
    taps, agent = tapped
    handle = agent.initialize_xfer("WRITE", [], [], "peer", b"1_aux")
    taps.hold(held=True)
    assert agent.transfer(handle) == "PROC"
    assert agent.check_xfer_state(handle) == "PROC"
    assert agent.posted == []
    taps.hold(held=False)
    assert agent.posted == [handle]
    assert agent.check_xfer_state(handle) == "DONE"
    assert [kind for _, kind, _, _ in taps.drain()] == ["write", "state"]
    assert taps.drain() == []


def test_a_failing_write_raises_what_nixl_raises(tapped):
    taps, agent = tapped
    taps.failing = True
    with pytest.raises(Exception, match="NIXL_ERR_BACKEND"):
        agent.transfer(agent.initialize_xfer("WRITE", [], [], "peer"))
    taps.failing = False
    agent.transfer(agent.initialize_xfer("WRITE", [], [], "peer"))
    assert len(agent.posted) == 1


def test_a_lost_message_is_noted_and_not_sent():
    sent = []
    socket_class = type("Socket", (), {"send_multipart": lambda self, parts: sent.append(parts)})
    taps = Taps("prefill")
    taps.on_zmq(socket_class)
    taps.losing = True
    socket_class().send_multipart([b"ABORT", b"7"])
    taps.losing = False
    socket_class().send_multipart([b"ABORT", b"8"])
    assert sent == [[b"ABORT", b"8"]]
    assert [text for _, _, _, text in taps.drain()] == ["ABORT, room 7 (lost)", "ABORT, room 8"]
    assert list(taps.sayings) == ["ABORT"]


@pytest.mark.parametrize(
    ("frames", "kind", "text"),
    [
        ([b"NixlMsgGuard", b"None", *[b""] * 10], "", "registers its memory"),
        (
            [b"NixlMsgGuard", b"7", b"", b"", b"", bytes(8), b"3", b"1", b""],
            "METADATA",
            "2 pages, aux slot 3, state frame empty",
        ),
        ([b"KV_STATUS", b"7", b"0", b"0", b"why"], "KV_STATUS", "room 7: Failed (why)"),
        ([b"\xff\x00"], "", "1 parts"),
        ([b""], "", "1 parts"),
    ],
)
def test_messages_are_told_in_words(frames, kind, text):
    assert describe(frames)[0] == kind
    assert text in describe(frames)[1]


# -- rooms -------------------------------------------------------------------------------------------------------------


class FakeEnd:
    """A sender or a receiver whose status the test sets."""

    def __init__(self, manager, address, number, ranks=None, rank=0):
        self.status, self.calls = 1, []
        manager.end = self

    def poll(self):
        return self.status

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, *[a.tolist() if isinstance(a, np.ndarray) else a for a in arguments], named))

        return call


FAKE_CONN = SimpleNamespace(NixlKVSender=FakeEnd, NixlKVReceiver=FakeEnd)


def prefill_room(pages):
    manager, memory = SimpleNamespace(), Memory("prefill", PLAIN)
    room = PrefillRoom(FAKE_CONN, manager, memory, "", {"number": 7, "pages": pages, "aux_index": 1})
    return room, manager.end, memory


def sends(end):
    return [call[1:-1] for call in end.calls if call[0] == "send"]


def test_sends_wait_for_the_room_to_leave_bootstrapping():
    room, end, memory = prefill_room([1, 2, 3])
    room.send([1], ABSENT, last=False)
    room.send([2, 3], [[]], last=True)
    assert end.calls == []
    end.status = WAITING
    room.poll()
    assert [call[0] for call in end.calls] == ["pop_decode_prefix_len", "init", "send", "send"]
    assert sends(end) == [([1],), ([2, 3], [[]])]
    assert memory.marked(1) == 7


def test_the_pages_that_complete_the_room_wait_for_the_last_send():
    room, end, _ = prefill_room([1, 2])
    end.status = WAITING
    room.send([1, 2], ABSENT, last=False)
    assert sends(end) == []
    room.send([], None, last=True)
    assert sends(end) == [([1, 2], None)]


def decode_room(known=True, number=7):
    memory = Memory("decode", PLAIN)
    manager = SimpleNamespace(try_ensure_parallel_info=lambda address: known)
    room = DecodeRoom(FAKE_CONN, manager, memory, "", {"number": number, "pages": [4], "aux_index": 0}, ABSENT)
    return room, manager.end, memory


def test_success_counts_once_the_aux_slot_names_the_room():
    room, end, memory = decode_room()
    end.status = SUCCESS
    assert room.poll() == TRANSFERRING
    assert room.belief()["waiting"] == "its aux slot"
    memory.mark(0, 7)
    assert room.poll() == SUCCESS
    memory.mark(0, 9)
    assert room.poll() == SUCCESS


def test_another_rooms_aux_is_the_end_of_the_room():
    room, end, memory = decode_room()
    end.status = SUCCESS
    memory.mark(0, 9)
    assert room.poll() == FAILED
    assert "room 9" in room.corrupt


def test_state_that_was_not_given_is_not_passed_on():
    room, end, _ = decode_room()
    end.status = WAITING
    room.poll()
    room.poll()
    [(_, pages, aux, named)] = [call for call in end.calls if call[0] == "send_metadata"]
    assert (pages, aux, named) == ([4], 0, {"decode_prefix_len": 0})


def test_a_room_that_has_ended_is_not_aborted():
    room, end, _ = prefill_room([1])
    end.status = SUCCESS
    room.abort()
    assert end.calls == []
    end.status = WAITING
    room.abort()
    assert end.calls[-1][0] == "abort"


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page_bytes", "buffers", "mla"), [(64, 4, False), (66, 2, False), (63, 1, True)])
def test_pages_are_split_as_a_model_splits_them(page_bytes, buffers, mla):
    memory = Memory("decode", PLAIN | {"page_bytes": page_bytes})
    assert (len(memory.kv), memory.is_mla) == (buffers, mla)
    content = bytes(range(page_bytes))
    assert memory.item("kv", 2, 0, content) == content
    assert memory.item("kv", 1, 0, None) == bytes(page_bytes)
    base = SimpleNamespace(KVArgs=SimpleNamespace, StateType=SimpleNamespace(MAMBA="m", SWA="s"))
    args = memory.kv_args(base)
    assert args.state_types == ["s"]
    assert sum(args.kv_item_lens) == page_bytes
    assert sum(args.kv_data_lens) == page_bytes * 8
