"""The demo's models without kvrooms in between: pages are copied in this process.

What is shown here is what the demo relies on: a cache built from pages goes on exactly as the original, every control
bites, and the byte check sees a single wrong byte.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

from kvrooms.demo import cache, controls, generate, models, oracle, reference
from kvrooms.demo.jobs import Job, Kind, ModelJob
from kvrooms.demo.layout import KV, Extent, Layout, probe, steps
from kvrooms.demo.pages import CANARY, Pools, Table, read
from kvrooms.demo.ranks import Topology

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


class Loaded(NamedTuple):
    job: ModelJob
    model: Any
    layout: Layout


@pytest.fixture(scope="module", params=models.KINDS)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    job = models.builtin(request.param)
    model = models.build(job)
    return Loaded(job, model, probe(model, job))


def prompt_of(length: int) -> list[int]:
    draw = random.Random(length)
    return [draw.randrange(models.VOCABULARY) for _ in range(length)]


def transfer(loaded: Loaded, prompt: list[int]) -> tuple[Any, Table, dict[str, torch.Tensor]]:
    """Prefill by chunks, copy the pages of each chunk as kvrooms would; the cache, and what decode holds."""
    job, model, layout = loaded
    extent = Extent.of(layout, len(prompt))
    source = Pools.create(layout, [extent], seed="source", fill=0)
    target = Pools.create(layout, [extent], seed="target", fill=CANARY)
    here, there = source.take(extent), target.take(extent)
    source.clear(here)
    hot = cache.paging_cache(model.config, source, here)
    for step in steps(layout, len(prompt), job.chunk):
        stepwise = job.stepwise and step.start > 0
        logits = generate.feed(model, hot, prompt[step.start : step.end], stepwise=stepwise)
        for part in layout.parts:
            if part.paged:
                span = slice(*(step.kv if part.group == KV else step.window))
                target.parts[part][there.pages(part.group)[span]] = source.parts[part][here.pages(part.group)[span]]
    cache.write_aux(source, here, *generate.pick(logits))
    cache.write_states(hot, source, here)
    for part in layout.parts:
        if not part.paged:
            target.parts[part][there.slot] = source.parts[part][here.slot]
    for name, pool in target.aux.items():
        pool[there.slot] = source.aux[name][here.slot]
    assert target.strays() == []
    del hot.update  # generation goes on without the pages
    return hot, there, read(target, there)


def decode(loaded: Loaded, table: Table, landed: Any) -> tuple[list[int], list[float]]:
    built = cache.build_cache(loaded.model.config, loaded.layout, table, landed)
    return generate.greedy(loaded.model, built, *cache.read_aux(landed), loaded.job.new_tokens)


@pytest.mark.parametrize("length", [1, 5, 16, 24, 37, 61, 93])
def test_a_cache_built_from_pages_goes_on_exactly_as_the_original(loaded: Loaded, length: int) -> None:
    hot, table, landed = transfer(loaded, prompt_of(length))
    wanted = generate.greedy(loaded.model, hot, *cache.read_aux(landed), loaded.job.new_tokens)
    assert decode(loaded, table, landed) == wanted
    assert len(wanted[0]) == loaded.job.new_tokens


def test_a_built_cache_looks_like_the_original(loaded: Loaded) -> None:
    hot, table, landed = transfer(loaded, prompt_of(93))
    built = cache.build_cache(loaded.model.config, loaded.layout, table, landed)
    assert built.get_seq_length() == hot.get_seq_length() == 93
    for ours, theirs in zip(built.layers, hot.layers, strict=True):
        if hasattr(theirs, "conv_states"):
            assert torch.equal(ours.conv_states[0], theirs.conv_states[0])
            assert torch.equal(ours.recurrent_states[0], theirs.recurrent_states[0])
        else:
            assert torch.equal(ours.keys, theirs.keys)
            assert torch.equal(ours.values, theirs.values)
            assert ours.get_mask_sizes(1) == theirs.get_mask_sizes(1)


def test_chunked_prefill_is_the_whole_prefill_up_to_rounding(loaded: Loaded) -> None:
    from transformers import DynamicCache

    prompt = prompt_of(61)
    whole, chunked = (DynamicCache(config=loaded.model.config) for _ in range(2))
    wanted = generate.forward(loaded.model, whole, prompt)
    for start in range(0, 61, loaded.job.chunk):
        piece = prompt[start : start + loaded.job.chunk]
        got = generate.feed(loaded.model, chunked, piece, stepwise=loaded.job.stepwise and start > 0)
    assert torch.allclose(got, wanted, atol=1e-3)


@pytest.mark.parametrize("index", range(3))
def test_every_control_changes_the_tokens(loaded: Loaded, index: int) -> None:
    prompt = models.prepared_prompts(loaded.job, 3)[index]
    _, table, landed = transfer(loaded, prompt)
    tokens, _ = decode(loaded, table, landed)
    copies = controls.damaged_copies(loaded.layout, landed, Topology())
    expected = {
        "dense": {controls.KV_ZEROED},
        "sliding": {controls.WINDOW_ZEROED},
        "hybrid": {controls.KV_ZEROED, controls.CONV_ZEROED, controls.RECURRENT_ZEROED},
    }[loaded.job.kind]
    assert set(copies) == expected | {controls.SWAPPED}
    for name, damaged in copies.items():
        if name != controls.SWAPPED:
            assert decode(loaded, table, damaged)[0] != tokens, name


def test_the_byte_check_sees_every_control_and_every_single_byte(loaded: Loaded, tmp_path: Path) -> None:
    def saved(parts: Any) -> oracle.Bytes:
        oracle.save(tmp_path / "x.npz", parts)
        return oracle.load(tmp_path / "x.npz")

    _, _, landed = transfer(loaded, prompt_of(37))
    good = saved(landed)
    assert oracle.differences(good, saved(landed)) == []
    for damaged in controls.damaged_copies(loaded.layout, landed, Topology()).values():
        assert oracle.differences(saved(damaged), good)
    for name in landed:
        bad = {other: values.copy() for other, values in good.items()}
        bad[name].reshape(-1)[-1] ^= 1
        found = oracle.differences(bad, good)
        assert found == [f"{name}: 1 of {bad[name].size} bytes differ, in items [{bad[name].shape[0] - 1}]"]


def test_the_byte_check_sees_what_is_missing_and_what_is_too_much() -> None:
    import numpy as np

    one = {"kv/0/k": np.zeros((2, 4), dtype=np.uint8)}
    assert oracle.differences({}, one) == ["kv/0/k did not land"]
    assert oracle.differences({**one, "x": one["kv/0/k"]}, one) == ["x landed, but the reference has none"]
    assert "has (1, 4) bytes" in oracle.differences({"kv/0/k": one["kv/0/k"][:1]}, one)[0]
    assert oracle.differences({}, {}) == ["the reference computed nothing"]


@pytest.mark.parametrize("length", [5, 48, 93])
def test_the_reference_computes_the_same_bytes_and_tokens_by_its_own_code(loaded: Loaded, length: int) -> None:
    spec = json.loads(msgspec.json.encode(loaded.job))
    run = reference.Run(reference.build_model(spec), spec)
    prompt = prompt_of(length)
    first, logprob = run.prefill(prompt)
    expected = run.expected(first, logprob)
    wanted = run.generate(first, logprob)
    _, table, landed = transfer(loaded, prompt)
    raw = {name: part.contiguous().flatten(1).view(torch.uint8).numpy() for name, part in landed.items()}
    assert oracle.differences(raw, expected) == []
    assert decode(loaded, table, landed) == wanted


def test_the_reference_process_imports_nothing_of_kvrooms(tmp_path: Path) -> None:
    job = models.builtin("dense")
    asked = Job([job], models.requests(job, [[1, 2, 3]], 1), str(tmp_path), 60.0)
    with subprocess.Popen(
        [sys.executable, "-P", reference.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(asked) + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer["foreign"] == []
        assert len(answer["tokens"]) == job.new_tokens
        assert process.wait(30) == 0
    assert "kv/0/k" in oracle.load(asked.file("dense-0", "reference"))


def test_a_local_folder_is_described_from_its_configuration(tmp_path: Path) -> None:
    job = models.builtin("sliding")
    models.build(job).save_pretrained(tmp_path)
    found = models.local(tmp_path)
    assert (found.kind, found.chunk, found.strict, found.name) == ("sliding", 47, False, tmp_path.name)
    assert models.tokenize(found, "Hé") == [ord("H"), 0xC3, 0xA9]
    assert models.detokenizer(found) is None
    model = models.build(found)
    assert probe(model, found).window == 48
    lengths = {len(prompt) for prompt in models.prepared_prompts(found, 3)}
    assert len(lengths) == 3


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_prompt_without_tokenizer_is_its_bytes(kind: Kind) -> None:
    assert models.tokenize(models.builtin(kind), "ab") == [97, 98]
    with pytest.raises(ValueError, match="empty"):
        models.tokenize(models.builtin(kind), "")


def test_a_name_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither one of dense, sliding, hybrid nor a folder"):
        models.local(tmp_path)


@pytest.mark.parametrize(
    ("name", "tokens", "logprobs", "bytes_differ", "strict", "wanted"),
    [
        (controls.KV_ZEROED, [1, 3], [0.0, 0.0], True, True, True),
        (controls.KV_ZEROED, [1, 3], [0.0, 0.0], False, True, False),
        (controls.KV_ZEROED, [1, 2], [0.0, 0.5], True, True, False),
        (controls.KV_ZEROED, [1, 2], [0.0, 0.5], True, False, True),
        (controls.KV_ZEROED, [1, 2], [0.0, 0.0001], True, False, False),
        (controls.KV_ZEROED, [1, 2], [0.0, float("nan")], True, False, True),
        (controls.SWAPPED, [1, 2], [0.0, 0.0], True, True, True),
        (controls.SWAPPED, [1, 2], [0.0, 0.0], False, True, False),
    ],
)
def test_when_a_control_counts_as_noticed(
    name: str, tokens: list[int], logprobs: list[float], bytes_differ: bool, strict: bool, wanted: bool
) -> None:
    assert wanted == controls.noticed(
        name,
        tokens=tokens,
        logprobs=logprobs,
        wanted_tokens=[1, 2],
        wanted_logprobs=[0.0, 0.0],
        bytes_differ=bytes_differ,
        strict=strict,
    )
