"""`kvrooms soak --shape`: one process per rank on real NIXL, every byte beside the oracle's; one that is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHAPES = (
    "mha-tp2-1",
    "gqa-rep-tp2-4",
    "pp2-uneven",
    "cp2-1",
    "state-three",
    "layerwise",
    "staging-tp2-1",
    "staging-tp1-2",
    "page16-64",
    "dsa-prefix",
)


def run(*arguments: str, **settings: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "kvrooms", "soak", *arguments, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL, env={**os.environ, **settings}
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nixl
def test_every_byte_of_every_rank_is_the_oracles() -> None:
    status, report = run(*(word for name in SHAPES for word in ("--shape", name)))
    assert status == 0
    assert report["ok"]
    assert [shape["name"] for shape in report["shapes"]] == list(SHAPES)
    assert all(shape["identical"] and shape["bytes"] > 0 for shape in report["shapes"])
    staged = {shape["name"]: (shape["gathered"], shape["scattered"]) for shape in report["shapes"]}
    assert staged["staging-tp2-1"][1] > 0, "scattered on decode"
    assert staged["staging-tp1-2"][0] > 0, "gathered on prefill"


@pytest.mark.nixl
def test_one_byte_that_is_changed_is_found() -> None:
    status, report = run("--shape", "mha-tp2-1", "--corrupt")
    assert status == 1
    assert not report["ok"]
    assert not report["shapes"][0]["identical"]


@pytest.mark.nixl
def test_a_shape_that_is_to_stage_and_does_not_is_found() -> None:
    status, report = run("--shape", "staging-tp2-1", KVROOMS_STAGING_BYTES="0")
    assert status == 1
    assert report["wrong"] == ["staging-tp2-1: nothing went through a staging slot"]
