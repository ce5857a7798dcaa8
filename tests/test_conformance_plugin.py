"""The pytest plugin, in a pytest of its own: each property a test, and nothing imported before its option is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
TOY = "conformance_toy:Toy"


def run(tmp_path, *arguments, inside=""):
    """Pytest in a folder that knows nothing of this project but what is installed."""
    code = "import sys, pytest; code = pytest.main(sys.argv[1:]); " + (inside or "pass") + "; sys.exit(code)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    return subprocess.run(
        [sys.executable, "-c", code, "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}", *arguments],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_each_property_is_a_test_with_its_own_id(tmp_path):
    done = run(tmp_path, "--kvrooms-subject", TOY, "--kvrooms-examples", "4", "--junit-xml=x.xml", "-v")
    assert done.returncode == 0, done.stdout
    assert "collected 14 items" in done.stdout
    for one in ("SMOKE", "L2", "S3", "A1"):
        assert f"toy::{one} PASSED" in done.stdout
    cases = list(ElementTree.parse(tmp_path / "x.xml").iter("testcase"))
    assert {(case.get("classname"), case.get("name")) for case in cases} > {("toy", "SMOKE"), ("toy", "A1")}
    assert all(case.find("properties/property[@name='examples']") is not None for case in cases)


def test_a_broken_property_fails_with_its_timeline_and_no_traceback(tmp_path):
    wrong = f"{ROOT}/examples/conformance_wrong.py:Wrong"
    done = run(tmp_path, "--kvrooms-subject", wrong, "-k", "L2 or SMOKE")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 12 deselected" in done.stdout
    assert "decode_state_indices: []" in done.stdout
    assert "waits for state" in done.stdout
    assert "Traceback" not in done.stdout
    assert "suite.py" not in done.stdout


@pytest.mark.parametrize(
    ("allow", "code", "says"), [((), 1, "1 failed"), (("--kvrooms-allow-unknown",), 0, "1 skipped")]
)
def test_unknown_is_no_pass(tmp_path, allow, code, says):
    wrong = f"{ROOT}/examples/conformance_wrong.py:Wrong"
    done = run(tmp_path, "--kvrooms-subject", wrong, "-k", "C1", *allow)
    assert done.returncode == code
    assert says in done.stdout
    if not allow:
        assert "C1 is unknown, which is no pass" in done.stdout


def test_paths_are_run_too_and_without_paths_only_the_suite(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    options = ("--kvrooms-subject", TOY, "--kvrooms-examples", "3", "-k", "SMOKE or other", "-v")
    with_path = run(tmp_path, "test_other.py", *options)
    assert "test_other PASSED" in with_path.stdout
    assert "SMOKE PASSED" in with_path.stdout
    without = run(tmp_path, *options)
    assert "test_other" not in without.stdout
    assert "SMOKE PASSED" in without.stdout


def test_a_subject_that_is_not_there_is_a_usage_error(tmp_path):
    done = run(tmp_path, "--kvrooms-subject", "nobody")
    assert done.returncode == 4
    assert "module:Class" in done.stderr


def test_without_its_option_the_plugin_costs_nothing(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    heavy = "torch", "numpy", "msgspec", "nixl", "typer", "aiohttp", "kvrooms.protocol", "kvrooms.harness.evidence"
    found = f"[m for m in {heavy!r} if m in sys.modules] + ['kvrooms.harness.pytest_plugin' in sys.modules]"
    show = f"print(__import__('json').dumps({found}))"
    done = run(tmp_path, "-q", inside=show)
    assert done.returncode == 0
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [True]


def test_options_reach_the_subject(tmp_path):
    done = run(tmp_path, "--kvrooms-subject", TOY, "--kvrooms-option", "defect=SMOKE", "-k", "SMOKE")
    assert done.returncode == 1
    assert "SMOKE does not hold" in done.stdout


def test_the_subject_sglang_is_told_its_version_by_an_option(tmp_path):
    arguments = ("--kvrooms-subject", "sglang", "--kvrooms-option", "wheel=no_such_file.whl", "-k", "L2")
    done = run(tmp_path, *arguments)
    assert done.returncode == 1
    assert "no_such_file.whl is not a file" in done.stdout
