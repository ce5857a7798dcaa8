"""The demo itself: real processes, real models, real NIXL. And that it can fail."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvrooms.demo import models
from kvrooms.demo.run import DemoOptions, main

pytestmark = [pytest.mark.nixl, pytest.mark.slow, pytest.mark.timeout(180)]

# The decode process, but the last byte of one request's last part is another one after it has landed.
SPOILT = """
import torch
from kvrooms.demo import child, decode
plain, calls = decode.read, []
def read(pools, table):
    landed = plain(pools, table)
    if table.extent.tokens == {tokens}:
        landed["kv/3/v"].view(torch.uint8).view(-1)[-1] ^= 1
    return landed
decode.read = read
child.serve(decode.work)
"""


def test_the_demo_shows_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kvrooms", "demo"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] is True
    assert "nixl" in result["transport"]
    rows = result["requests"]
    assert {row["kind"] for row in rows} == {"dense", "sliding", "hybrid"}
    for kind in models.KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        assert len(mine) >= 2
        assert len({row["prompt_tokens"] for row in mine}) == len(mine)
        assert any(row["chunks"] > 1 for row in mine)
    for row in rows:
        assert row["bytes_identical"] is True
        assert row["identical"] is True
        assert row["controls"]
        assert all(row["controls"].values())
        assert row["bytes"] > 0
        assert row["new_tokens"] == models.NEW_TOKENS
        assert (row["state_bytes"] > 0) == (row["kind"] != "dense")
    for kind, wanted in (
        ("dense", {"kv_page_zeroed", "pages_swapped"}),
        ("sliding", {"window_page_zeroed", "pages_swapped"}),
        ("hybrid", {"kv_page_zeroed", "conv_state_zeroed", "recurrent_state_zeroed", "pages_swapped"}),
    ):
        assert all(set(row["controls"]) == wanted for row in rows if row["kind"] == kind)


def test_a_local_folder_works_and_one_wrong_byte_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    models.build(models.builtin("dense")).save_pretrained(folder)
    job = models.local(folder)
    lengths = [len(prompt) for prompt in models.prepared_prompts(job, 2)]
    spoilt = [sys.executable, "-P", "-c", SPOILT.format(tokens=lengths[1])]
    output = io.StringIO()
    status = main(DemoOptions(model=str(folder), requests=2, timeout_s=150), output, instead={"decode": spoilt})
    result = json.loads(output.getvalue().splitlines()[-1])
    good, bad = result["requests"]
    assert good["model"] == "my-model"
    assert good["bytes_identical"]
    assert good["identical"]
    assert all(good["controls"].values())
    assert bad["prompt_tokens"] == lengths[1]
    assert bad["bytes_identical"] is False
    assert status == 1
    assert result["ok"] is False
    assert any("kv/3/v: 1 of" in error for error in result["errors"])


def test_a_split_model_works_and_one_wrong_byte_at_one_rank_is_seen() -> None:
    lengths = [len(prompt) for prompt in models.prepared_prompts(models.builtin("hybrid"), 2)]
    spoilt = [sys.executable, "-P", "-c", SPOILT.format(tokens=lengths[1])]
    output = io.StringIO()
    status = main(DemoOptions(model="hybrid", requests=2, tp="1:2"), output, instead={"decode-1": spoilt})
    result = json.loads(output.getvalue().splitlines()[-1])
    good, bad = result["requests"]
    assert result["tp"] == "1:2"
    assert good["bytes_identical"]
    assert good["identical"]
    assert all(good["controls"].values())
    assert {"heads_moved", "channels_moved"} <= set(good["controls"])
    (whole,), shares = good["ranks"]["prefill"], good["ranks"]["decode"]
    aux = 12  # a token and its log-probability, on every rank
    assert shares == [{"bytes": (whole["bytes"] - aux) // 2 + aux, "identical": True}] * 2
    assert good["bytes"] == whole["bytes"] + aux
    assert good["state_bytes"] > 0
    assert bad["bytes_identical"] is False
    assert [rank["identical"] for rank in bad["ranks"]["decode"]] == [True, False]
    assert (status, result["ok"]) == (1, False)
    assert any("bytes of decode-1: kv/3/v: 1 of" in error for error in result["errors"])
