"""SGLang's driver without SGLang: the cache of wheels, its processes, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kvrooms.harness.conformance.sglang import install, subject
from kvrooms.harness.conformance.sglang.process import Driver, DriverError
from kvrooms.harness.conformance.subject import ComponentShape, Item, Request, Shape, Unsupported

SHAPE = Shape(64, 8, 8, 16, 2, 2, (ComponentShape("window", "when_indexed", 8, 4, 4),))


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


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_child_that_dies_of_its_start_is_tried_once_more_by_a_fresh_driver(fake, monkeypatch, deaths):
    drivers, fork = [], fake._fork

    def dying(side, address):
        fork(side, address)
        if side == "prefill":
            drivers.append(fake._driver._process.pid)
            if len(drivers) <= deaths:
                fake._driver.kill(fake._sides[side])

    monkeypatch.setattr(fake, "_fork", dying)
    if deaths == 1:
        fake.start(SHAPE)
        assert fake.read("prefill", Item("kv", 3)) == bytes(64)
    else:
        with pytest.raises(Unsupported, match="the side's process has ended"):
            fake.start(SHAPE)
    assert len(set(drivers)) == 2


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
