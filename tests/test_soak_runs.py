"""Soaks on real processes: kills, the end by a signal, and that no process survives."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvrooms import InvalidArgument
from kvrooms.soak.procs import Processes
from kvrooms.soak.progress import Progress
from kvrooms.soak.run import SoakOptions, main, soak

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(300)]
KEYS = {
    "ok", "rooms", "done", "failed", "failed_injected", "failed_collateral", "hung", "corrupt", "canaries_hit", "leaks",
    "kills", "stalls", "kill_to_failed_p99_s", "rss_start", "rss_end", "seconds",
}  # fmt: skip
COMMAND = [sys.executable, "-P", "-m", "kvrooms", "soak", "--json"]


def run(**options):
    return soak(SoakOptions(**options), Progress(io.StringIO(), options["rooms"], plain=True))


def check_kills(kills, *, every, seed):
    report, tally = run(rooms=kills * every, kill_every=every, fault_rate=0.05, freezes=False, seed=seed)
    assert report["ok"], tally.wrongs
    assert set(report) == KEYS
    assert report["kills"] == kills
    assert report["hung"] == report["corrupt"] == report["canaries_hit"] == report["leaks"] == 0
    assert report["failed"] == report["failed_injected"] + report["failed_collateral"]
    assert tally.failed_after_s, "no room had found the process that was killed"
    assert all(incident.served for incident in tally.incidents), "each served all its peers again, under its name"


def test_ten_processes_killed_at_random_moments():
    """Survivors fail at once what they had with the dead, and go on; the dead come back under name and address."""
    check_kills(10, every=24, seed=1)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_two_hundred_processes_killed_at_random_moments():
    check_kills(200, every=20, seed=2)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_soak_with_everything():
    report, tally = run(rooms=3000, fault_rate=0.1, seed=5)
    assert report["ok"], tally.wrongs
    assert report["kills"] == 10
    assert report["stalls"] > 0


def test_settings_that_are_none_are_refused_before_anything_starts():
    with pytest.raises(InvalidArgument, match="heartbeat"):
        run(rooms=1, settings={"heartbeat": 1})


def test_a_process_that_dies_uninvited_is_not_ok(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(
        Processes, "start", lambda *args, start=Processes.start: started.append(start(*args)) or started[-1]
    )
    monkeypatch.setattr(Progress, "show", lambda _self, tally: tally.rooms > 20 and started[1].signal(signal.SIGKILL))
    assert main(SoakOptions(rooms=500, fault_rate=0.0, json=True)) == 1
    report = json.loads(capsys.readouterr().out)
    assert set(report) == KEYS
    assert report["ok"] is False
    assert 20 < report["rooms"] < 500


def children_of(pid):
    """All processes that descend from one."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def started(soaking):
    """Handles of all processes of a soak that is under way."""
    assert "rooms:" in soaking.stderr.readline()
    handles = {pid: os.pidfd_open(pid) for pid in children_of(soaking.pid)}
    assert len(handles) >= 6, "the one that forks, the registry, four engines"
    return handles


def gone(handles):
    """Whether all of them end within a minute."""
    ended = [bool(select.select([handle], [], [], 60)[0]) for handle in handles.values()]
    for handle in handles.values():
        os.close(handle)
    return all(ended)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_report_and_leaves_no_process(sign):
    command = [*COMMAND, "--rooms", "100000", "--fault-rate", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as soaking:
        children = started(soaking)
        soaking.send_signal(sign)
        out, _ = soaking.communicate(timeout=60)
    report = json.loads(out.splitlines()[-1])
    assert set(report) == KEYS
    assert report["ok"] is True
    assert soaking.returncode == 0
    assert 0 < report["rooms"] < 100_000
    assert gone(children)


def test_a_soak_that_is_killed_leaves_no_process():
    command = [*COMMAND, "--rooms", "100000", "--fault-rate", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as soaking:
        children = started(soaking)
        os.kill(max(children), signal.SIGSTOP)  # this one cannot notice anything by itself
        soaking.kill()
        soaking.communicate(timeout=60)  # ends when nobody holds its standard error any more
    assert gone(children)
