"""The demo's processes: what happens when one of them dies, hangs, talks nonsense, or loses its parent."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvrooms.demo import guard
from kvrooms.demo.procs import Children, Exit, Line
from kvrooms.demo.run import DemoOptions, main

PYTHON = [sys.executable, "-P", "-c"]
WAITS = [*PYTHON, "import sys; sys.stdin.read()"]  # lives until its input closes
DEAF = [
    *PYTHON,
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)",
]
REGISTRY = [*PYTHON, 'import sys; print(\'{"bootstrap": "http://127.0.0.1:1"}\', flush=True); sys.stdin.read()']
ALL_WAIT = {"registry": REGISTRY, "prefill": WAITS, "decode": WAITS, "reference": WAITS}


def run(instead: dict[str, list[str]], timeout_s: float = 20.0) -> tuple[int, dict[str, Any]]:
    output = io.StringIO()
    status = main(DemoOptions(timeout_s=timeout_s, requests=1), output, instead={**ALL_WAIT, **instead})
    result: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
    assert result["ok"] is False
    assert len(result["requests"]) == 3
    return status, result


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Is the process gone, or a zombie that somebody else must collect?"""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("child", ["registry", "prefill", "decode", "reference"])
def test_a_child_that_dies_ends_the_demo_with_its_last_words(child: str) -> None:
    status, result = run({child: [*PYTHON, "raise SystemExit('out of luck')"]})
    assert status == 1
    assert f"the {child} process ended early (exit status 1)" in result["errors"][0]
    assert "out of luck" in result["errors"][0]


def test_a_child_that_is_killed_is_named_with_its_signal() -> None:
    status, result = run({"decode": [*PYTHON, "import os; os.kill(os.getpid(), 9)"]})
    assert status == 1
    assert "the decode process ended early (SIGKILL)" in result["errors"][0]


def test_children_that_say_nothing_end_the_demo_in_time() -> None:
    began = time.monotonic()
    status, result = run({}, timeout_s=1.0)
    assert time.monotonic() - began < 10
    assert status == 1
    assert "time is up after 1 s: dense-0 (prefill not open, decode not open)" in result["errors"][0]


def test_a_line_that_is_no_event_ends_the_demo() -> None:
    _, result = run({"prefill": [*PYTHON, "import sys; print('hello', flush=True); sys.stdin.read()"]})
    assert "the prefill process wrote a line that is no event" in result["errors"][0]


def test_trouble_in_a_child_is_told(tmp_path: Path) -> None:
    text = 'print(\'{"event": "trouble", "text": "no memory"}\', flush=True); raise SystemExit(1)'
    _, result = run({"prefill": [*PYTHON, text]})
    assert result["errors"][0] == "prefill: no memory"


def test_a_command_that_is_not_there_is_told() -> None:
    _, result = run({"decode": ["/nonexistent/python"]})
    assert "FileNotFoundError" in result["errors"][0]


def test_a_wrong_model_still_gets_a_report() -> None:
    output = io.StringIO()
    assert main(DemoOptions(model="no-such-model"), output) == 1
    result = json.loads(output.getvalue().splitlines()[-1])
    assert result["requests"] == []
    assert "neither one of dense, sliding, hybrid nor a folder" in result["errors"][0]


def test_leaving_ends_every_child_even_a_deaf_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrooms.demo.procs._GRACE_S", 0.5)
    with Children({"prefill": DEAF, "decode": WAITS}) as children:
        children.start("prefill")
        children.start("decode")
        assert children.hear(10) == Line("prefill", b"1\n")
        pids = children.pids()
        assert set(pids) == {"prefill", "decode"}
    assert children.pids() == {}
    assert all(gone(pid, 0.1) for pid in pids.values())
    statuses = {heard.child: heard.status for heard in (children.hear(1), children.hear(1)) if isinstance(heard, Exit)}
    assert statuses["prefill"] == -signal.SIGKILL


@pytest.mark.parametrize(
    "command", [[sys.executable, "-P", "-m", "kvrooms.demo.decode"], [sys.executable, guard.__file__]]
)
def test_no_child_outlives_a_parent_that_is_killed(command: list[str], tmp_path: Path) -> None:
    text = (
        "import os, subprocess, sys, time\n"
        f"command = {command!r}\n"
        "sleeps = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "if 'guard' in command[-1]: command += [str(os.getpid()), *sleeps]\n"
        "child = subprocess.Popen(command, stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([*PYTHON, text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        os.kill(pid, 0)
        parent.kill()
    assert gone(pid)


def test_a_guarded_command_does_not_start_under_a_stranger() -> None:
    done = subprocess.run([sys.executable, guard.__file__, "1", "true"], check=False, timeout=20)
    assert done.returncode == 3


OBEYS = [*PYTHON, "import sys; [sys.exit() for line in sys.stdin if line.strip() == 'drain']"]


def test_sigterm_ends_children_first_and_still_reports() -> None:
    obedient = {**ALL_WAIT, "prefill": OBEYS, "decode": OBEYS}
    text = (
        "import sys\n"
        "from kvrooms.demo.run import DemoOptions, main\n"
        f"sys.exit(main(DemoOptions(requests=1), instead={obedient!r}))\n"
    )
    with subprocess.Popen([*PYTHON, text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert b"starting" in parent.stdout.readline()
        assert b"registry at" in parent.stdout.readline()
        parent.send_signal(signal.SIGTERM)
        lines = parent.stdout.read().splitlines()
        assert parent.wait(20) == 128 + signal.SIGTERM
    assert json.loads(lines[-1])["errors"] == ["interrupted by SIGTERM"]
