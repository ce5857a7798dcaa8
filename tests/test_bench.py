"""The benchmark: what it counts, that it looks at the bytes, and that its children fail and end in view."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from kvrooms import InvalidArgument
from kvrooms.bench import run as bench
from kvrooms.bench.figures import Run, result
from kvrooms.bench.load import Others
from kvrooms.bench.pair import BenchError, _Child, gather
from kvrooms.bench.report import Progress, show
from kvrooms.bench.run import BenchOptions
from kvrooms.bench.shapes import AUX_SLOTS, SHAPES, SMALL, Pool, shapes

ROW = {
    "room", "in_flight", "rooms_per_s", "p50_ms", "p99_ms", "goodput_gb_s", "cpu_s_per_room", "floor_rooms_per_s",
    "floor_p50_ms", "floor_goodput_gb_s", "ratio",
}  # fmt: skip
TINY = replace(SMALL, pages=4, chunks=2, buffers=2)


@pytest.mark.parametrize(("name", "size"), [("4KiB", 4096), ("512KiB", 512 * 1024), ("64MiB", 64 * 2**20)])
def test_a_shape_has_the_size_of_its_name(name, size):
    shape = SHAPES[name]
    assert shape.size == size
    assert shape.pages % shape.chunks == 0
    assert shape.groups * shape.size == shape.pool_mib * 2**20


def test_no_names_are_all_shapes_and_an_unknown_name_is_refused():
    assert shapes(()) == tuple(SHAPES.values())
    assert shapes(("512KiB", "4KiB", "512KiB")) == (SHAPES["512KiB"], SHAPES["4KiB"])
    with pytest.raises(InvalidArgument, match="room: the sizes are 4KiB, 512KiB, 64MiB"):
        shapes(("1KiB",))


def test_main_refuses_an_unknown_room():
    with pytest.raises(InvalidArgument):
        bench.main(BenchOptions(rooms=("5KiB",)))


def test_groups_use_every_page_once_and_are_the_same_on_both_sides():
    here, there = Pool(TINY, fill=True), Pool(TINY, fill=False)
    assert sorted(here.groups.ravel().tolist()) == list(range(TINY.pool_pages))
    assert np.array_equal(here.groups, there.groups)
    assert np.array_equal(here.group(0), here.group(TINY.groups))
    assert not np.array_equal(here.groups.ravel(), np.arange(TINY.pool_pages))


def carried(room, aux_index):
    """Two pools after a room that a loop has copied."""
    here, there = Pool(TINY, fill=True), Pool(TINY, fill=False)
    for ours, theirs in zip(here.kv, there.kv, strict=True):
        theirs[there.group(room)] = ours[here.group(room)]
    there.aux[aux_index] = here.aux[aux_index]
    return there


def test_landed_is_true_for_what_was_copied():
    pool = carried(5, 3)
    assert pool.landed(5, 3)
    assert not pool.landed(6, 3)
    assert not pool.landed(5, 4)
    pool.wipe(5, 3)
    assert not pool.landed(5, 3)


@pytest.mark.parametrize("damage", ["swapped pages", "swapped buffers", "one byte", "aux"])
def test_landed_sees(damage):
    pool = carried(5, 3)
    first, second = pool.group(5)[:2]
    match damage:
        case "swapped pages":
            pool.kv[0][[first, second]] = pool.kv[0][[second, first]]
        case "swapped buffers":
            pool.kv[0][first], pool.kv[1][first] = pool.kv[1][first].copy(), pool.kv[0][first].copy()
        case "one byte":
            pool.kv[1][second, 4095] ^= 1
        case "aux":
            pool.aux[3, 63] += 1
    assert not pool.landed(5, 3)


def test_quantiles_and_rates():
    run = Run(rooms=100, seconds=2.0, latencies=[0.001 * n for n in range(100, 0, -1)], cpu_s=0.5)
    assert run.rooms_per_s == 50
    assert run.quantile_ms(0.5) == pytest.approx(51)
    assert run.quantile_ms(0.99) == pytest.approx(100)
    assert run.quantile_ms(1.0) == pytest.approx(100)
    assert run.goodput_gb_s(10**6) == pytest.approx(0.05)


def test_a_result_is_medians_and_the_ratio_is_goodput_over_the_floors():
    def runs(*rates):
        return [Run(100, 100 / rate, [1 / rate] * 100, 0.1) for rate in rates]

    shape = SHAPES["512KiB"]
    engines = [(run, 0.2) for run in runs(1000, 10, 2000)]
    row = result(shape, 16, engines, runs(4000, 1, 9000))
    assert set(row) == ROW
    assert (row["room"], row["in_flight"]) == ("512KiB", 16)
    assert (row["rooms_per_s"], row["floor_rooms_per_s"], row["ratio"]) == (1000, 4000, 0.25)
    assert (row["p50_ms"], row["p99_ms"], row["floor_p50_ms"]) == (1, 1, 0.25)
    assert row["cpu_s_per_room"] == pytest.approx(0.003)
    assert row["goodput_gb_s"] == pytest.approx(1000 * shape.size / 1e9, rel=1e-3)


def test_others_are_seen_and_we_are_not():
    spinning = [sys.executable, "-c", "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"]
    with subprocess.Popen(spinning) as process:
        try:
            stranger, known = Others(()), Others((process.pid,))
            time.sleep(1.0)
            seen, left = stranger.cores(), known.cores()
        finally:
            process.kill()
    assert seen - left > 0.1  # a whole core, were it not for what else runs here


@pytest.mark.parametrize(("others", "warned"), [(0.05, False), (1.2, True)])
def test_a_figure_that_others_disturbed_says_so(others, warned):
    line = bench._line("4KiB, 1 in flight", {"rooms_per_s": 5000.4, "floor_rooms_per_s": 31000.0}, others)
    assert line.startswith("4KiB, 1 in flight: 5,000 rooms/s, floor 31,000")
    assert ("other processes used 1.2 cores" in line) is warned


class FakePair:
    shape = SHAPES["4KiB"]

    def __init__(self, rate):
        self.made = Run(100, 100 / rate, [1.0] * 100, 0.1)

    def floor_run(self, rooms, in_flight):
        return self.made

    def run(self, rooms, in_flight):
        return self.made, 0.1


@pytest.mark.parametrize(("rate", "rooms"), [(30_000, 4000), (1000, 2000), (10, 500)])
def test_a_slow_machine_gets_fewer_rooms_per_run(rate, rooms):
    assert bench._rooms_per_run(FakePair(rate), 16) == rooms


# -- children ------------------------------------------------------------------------------------------------------


@pytest.fixture
def child():
    one = _Child("prefill")
    yield one
    one.end()


def test_a_childs_exception_is_shown(child):
    child.ask("no_such_thing")
    with pytest.raises(BenchError, match=r"(?s)in the prefill process:.*AttributeError.*no_such_thing"):
        gather([child], 60)


def test_a_child_that_dies_is_noticed(child):
    child.ask("memory")
    gather([child], 60)
    child.process.kill()
    with pytest.raises(BenchError, match="the prefill process has ended with status -9"):
        gather([child], 60)
    with pytest.raises(BenchError, match="the prefill process has ended with status -9"):
        child.ask("memory")


def test_a_child_that_does_not_answer_is_noticed(child):
    child.process.send_signal(signal.SIGSTOP)
    child.ask("memory")
    with pytest.raises(BenchError, match=r"no answer within 0\.2 s from prefill"):
        gather([child], 0.2)
    child.process.send_signal(signal.SIGCONT)


def test_a_child_ends_with_its_parent():
    code = """
import time
from kvrooms.bench.pair import _Child
child = _Child("decode")
print(child.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 20
    while time.monotonic() < end and alive(pid):
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # a zombie waits for whoever adopted it


def test_main_shows_what_a_child_died_of(monkeypatch, capsys):
    def broken(*_):
        raise BenchError("in the decode process:\nboom")

    monkeypatch.setattr(bench, "_rooms", broken)
    assert bench.main(BenchOptions(json=True)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "kvrooms bench: in the decode process:\nboom" in err


# -- what people see -----------------------------------------------------------------------------------------------


def measured():
    shape = SHAPES["64MiB"]
    run = Run(40, 1.0, [0.02] * 40, 0.4)
    return {
        "results": [result(shape, n, [(run, 0.4)], [run]) for n in (1, 16)],
        "idle_cpu_percent": 1.234,
        "import_s": 0.0123,
        "memory": {"rooms_100": 3 * 2**20, "rooms_5000": 4 * 2**20, "tables_equal": False},
    }


def test_the_table_is_whole_on_a_pipe(capsys):
    show(measured(), 5)
    out = capsys.readouterr().out
    assert "64MiB" in out
    assert "1.23 % of a core" in out
    assert "12 ms" in out
    assert "3.0 MiB after 100 rooms, 4.0 after 5,000; tables NOT as they were" in out
    assert "…" not in out


def test_progress_is_plain_lines_where_there_is_no_terminal():
    stream = StringIO()
    with Progress(stream, 2, plain=False) as progress:
        progress.step("not shown")
        progress.say("4KiB, 1 in flight: [5] rooms/s")
    assert stream.getvalue() == "4KiB, 1 in flight: [5] rooms/s\n"


# -- the real thing ------------------------------------------------------------------------------------------------


@pytest.mark.nixl
def test_bench_measures_over_nixl(capsys, monkeypatch):
    monkeypatch.setitem(SHAPES, "4KiB", replace(SHAPES["4KiB"], pool_mib=2))
    assert bench.main(BenchOptions(json=True, rooms=("4KiB",), runs=1, quick=True)) == 0
    out, err = capsys.readouterr()
    measured = json.loads(out.splitlines()[-1])
    assert set(measured) == {"results", "idle_cpu_percent", "import_s", "memory"}
    assert [(row["room"], row["in_flight"]) for row in measured["results"]] == [("4KiB", 1), ("4KiB", 16)]
    for row in measured["results"]:
        assert set(row) == ROW
        assert all(row[name] > 0 for name in ROW - {"room"})
        assert row["p50_ms"] <= row["p99_ms"]
    memory = measured["memory"]
    assert memory["tables_equal"] is True
    assert 0 < memory["rooms_5000"] <= 1.05 * memory["rooms_100"]
    assert 0 <= measured["idle_cpu_percent"] < 50
    assert 0 <= measured["import_s"] < 5
    assert err.count("4KiB, ") == 2


def test_slots_outnumber_what_is_open():
    from kvrooms.bench.engines import WINDOW
    from kvrooms.bench.shapes import IN_FLIGHT

    assert 2 * max(WINDOW, *IN_FLIGHT) <= AUX_SLOTS
    assert all(shape.groups >= 2 * max(IN_FLIGHT) for shape in (*SHAPES.values(), SMALL))
