"""`kvrooms soak --shape`: one process per rank on real NIXL, every byte beside the oracle's; one that is changed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SHAPES = ("mha-tp2-1", "gqa-rep-tp2-4", "pp2-uneven", "cp2-1", "state-three", "layerwise", "page16-64")


def run(*arguments: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "kvrooms", "soak", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nixl
def test_every_byte_of_every_rank_is_the_oracles() -> None:
    status, report = run(*(word for name in SHAPES for word in ("--shape", name)))
    assert status == 0
    assert report["ok"]
    assert [shape["name"] for shape in report["shapes"]] == list(SHAPES)
    assert all(shape["identical"] and shape["bytes"] > 0 for shape in report["shapes"])


@pytest.mark.nixl
def test_one_byte_that_is_changed_is_found() -> None:
    status, report = run("--shape", "mha-tp2-1", "--corrupt")
    assert status == 1
    assert not report["ok"]
    assert not report["shapes"][0]["identical"]
