"""The demo's models split among ranks, without kvrooms in between: who has what, and what the verdict needs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kvrooms.demo import cache, controls, generate, models, oracle, reference
from kvrooms.demo.jobs import Job, ModelJob
from kvrooms.demo.layout import Extent, Layout, probe, steps
from kvrooms.demo.memory import memory_of
from kvrooms.demo.messages import Control, Finished, Generated, Held, Leads, Phase, Ready, Reference, Sent
from kvrooms.demo.pages import Pools, read
from kvrooms.demo.ranks import RANKS_MAX, Seat, Topology, check, parse, share_of
from kvrooms.demo.run import DemoOptions, limit_s, main, plan
from kvrooms.demo.session import Session
from kvrooms.demo.shards import join, part_of, tensors
from kvrooms.demo.view import PlainView, verdict

pytest.importorskip("transformers")
ID = "dense-0"
TWO = Topology(2, 2)
TOPOLOGIES = [Topology(2, 1), Topology(1, 2), Topology(2, 2), Topology(4, 2)]


# -- who has what ----------------------------------------------------------------------------------------------------


def test_what_is_asked_for_is_two_numbers() -> None:
    assert parse("2:1") == Topology(2, 1)
    assert str(parse(" 1:8 ")) == "1:8"
    assert not parse("1:1").split
    assert Topology(2, 1).children("prefill") == ["prefill-0", "prefill-1"]
    assert Topology(2, 1).children("decode") == ["decode"]
    assert [seat.child for seat in Topology(1, 2).seats()] == ["prefill", "decode-0", "decode-1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be P:D"),
        ("2", "must be P:D"),
        ("2:", "must be P:D"),
        ("-1:2", "must be P:D"),
        ("2:1:1", "must be P:D"),
        ("0:1", "0 prefill ranks; there can be 1 to 8"),
        (f"1:{RANKS_MAX + 1}", "9 decode ranks; there can be 1 to 8"),
    ],
)
def test_what_is_no_topology_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


@pytest.mark.parametrize("total", range(1, 10))
@pytest.mark.parametrize("ranks", range(1, 10))
def test_heads_are_dealt_evenly_or_not_at_all(total: int, ranks: int) -> None:
    if total % ranks and ranks % total:
        with pytest.raises(ValueError, match=f"{total} do not go evenly among {ranks} ranks"):
            share_of(total, 0, ranks)
        return
    shares = [share_of(total, rank, ranks) for rank in range(ranks)]
    dealt = [head for share in shares for head in share]
    assert {dealt.count(head) for head in range(total)} == {max(1, ranks // total)}
    assert set(dealt) == set(range(total))
    assert shares == sorted(shares, key=lambda share: share.start)


@pytest.mark.parametrize(
    ("kind", "topology", "words"),
    [
        ("dense", Topology(3, 1), "--tp 3:1: prefill, KV heads of Qwen3: 2 do not go evenly among 3 ranks"),
        ("sliding", Topology(2, 5), "--tp 2:5: decode, KV heads of Mistral: 2 do not go evenly among 5 ranks"),
        ("hybrid", Topology(1, 6), "--tp 1:6: decode, Mamba channels of Jamba: 128 do not go evenly among 6 ranks"),
    ],
)
def test_ranks_that_cannot_share_a_model_are_refused_before_anything_starts(
    kind: Any, topology: Topology, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check(models.builtin(kind), topology)
    with pytest.raises(ValueError, match=words):
        plan(DemoOptions(model=kind, tp=str(topology)), "")
    output = io.StringIO()
    assert main(DemoOptions(model=kind, tp=str(topology)), output) == 1
    assert words in json.loads(output.getvalue().splitlines()[-1])["errors"][0]


def test_more_ranks_have_more_time_unless_somebody_says_how_much() -> None:
    assert limit_s(DemoOptions(), Topology()) == 90
    assert limit_s(DemoOptions(), Topology(4, 2)) == 150
    assert limit_s(DemoOptions(timeout_s=5), Topology(4, 2)) == 5
    assert plan(DemoOptions(tp="4:2"), "").limit_s == 120


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


class Loaded:
    """One of the demo's models, and what each of any number of ranks holds of a prompt once it is prefilled."""

    def __init__(self, job: ModelJob) -> None:
        self.job = job
        self.model = models.build(job)
        self.layout = probe(self.model, job)

    def held(self, prompt: list[int], layout: Layout) -> dict[str, torch.Tensor]:
        extent = Extent.of(layout, len(prompt))
        pools = Pools.create(layout, [extent], seed=str(layout), fill=0)
        table = pools.take(extent)
        hot = cache.paging_cache(self.model.config, pools, table)
        for step in steps(layout, len(prompt), self.job.chunk):
            stepwise = self.job.stepwise and step.start > 0
            logits = generate.feed(self.model, hot, prompt[step.start : step.end], stepwise=stepwise)
        cache.write_aux(pools, table, *generate.pick(logits))
        cache.write_states(hot, pools, table)
        return read(pools, table)

    def decode(self, prompt: list[int], landed: Any) -> list[int]:
        extent = Extent.of(self.layout, len(prompt))
        table = Pools.create(self.layout, [extent], seed="s", fill=0).take(extent)
        built = cache.build_cache(self.model.config, self.layout, table, landed)
        return generate.greedy(self.model, built, *cache.read_aux(landed), self.job.new_tokens)[0]


@pytest.fixture(scope="module", params=models.KINDS)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return Loaded(models.builtin(request.param))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_parts_of_all_ranks_make_the_whole_again(loaded: Loaded, ranks: int, tmp_path: Path) -> None:
    prompt = models.prepared_prompts(loaded.job, 1)[0]
    whole = loaded.held(prompt, loaded.layout)
    layouts = [part_of(loaded.layout, rank, ranks) for rank in range(ranks)]
    parts = [loaded.held(prompt, layout) for layout in layouts]
    for number, part in enumerate(parts):
        oracle.save(tmp_path / f"{number}.npz", part)
    others = [tensors(layout, oracle.load(tmp_path / f"{n}.npz")) for n, layout in enumerate(layouts)][1:]
    joined = join(loaded.layout, [parts[0], *others])
    assert joined.keys() == whole.keys()
    for name, tensor in whole.items():
        assert torch.equal(joined[name], tensor), name
    for part in loaded.layout.parts:
        mine = parts[0][part.name].numel()
        assert mine * min(ranks, part.units) == whole[part.name].numel()
    assert loaded.decode(prompt, joined) == loaded.decode(prompt, whole)


def test_the_reference_knows_what_each_rank_must_hold(loaded: Loaded, tmp_path: Path) -> None:
    spec = json.loads(msgspec.json.encode(loaded.job))
    prompt = models.prepared_prompts(loaded.job, 2)[1]
    run = reference.Run(reference.build_model(spec), spec)
    expected = run.expected(*run.prefill(prompt))

    def found(held: oracle.Bytes, rank: int, ranks: int) -> list[str]:
        mine = oracle.part_of(expected, held, rank, ranks, loaded.job.page_size)
        return oracle.differences(held, mine)

    for ranks in (2, 4):
        for rank in range(ranks):
            oracle.save(tmp_path / "x.npz", loaded.held(prompt, part_of(loaded.layout, rank, ranks)))
            held = oracle.load(tmp_path / "x.npz")
            assert found(held, rank, ranks) == []
            other = found(held, (rank + ranks // 2) % ranks, ranks)
            assert len(other) == len(loaded.layout.parts), "every part is another one's"
            for name in held:
                bad = {**held, name: held[name].copy()}
                bad[name][-1, -1] ^= 1
                assert found(bad, rank, ranks) == [
                    f"{name}: 1 of {bad[name].size} bytes differ, in items [{bad[name].shape[0] - 1}]"
                ]
            del held["aux/logprob"]
            assert found(held, rank, ranks) == ["aux/logprob did not land"]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_heads_and_channels_of_another_rank_change_the_tokens(loaded: Loaded, topology: Topology) -> None:
    for prompt in models.prepared_prompts(loaded.job, 3):
        landed = loaded.held(prompt, loaded.layout)
        copies = controls.damaged_copies(loaded.layout, landed, topology)
        moved = {name for name in copies if name.endswith("_moved")}
        assert moved == {"heads_moved"} | ({"channels_moved"} if loaded.job.kind == "hybrid" else set())
        tokens = loaded.decode(prompt, landed)
        for name in moved:
            assert loaded.decode(prompt, copies[name]) != tokens, name


def test_a_rank_says_which_heads_and_channels_its_memory_has(loaded: Loaded) -> None:
    for rank in range(4):
        layout = part_of(loaded.layout, rank, 4)
        memory = memory_of(Pools.create(layout, [Extent.of(layout, 5)], seed="s", fill=0)).layout
        for spec in memory.kv:
            assert [(one.first, one.units, one.total, one.rows) for one in spec.shards] == [(rank // 2, 1, 2, 16)]
        for component in memory.state:
            rows, total = (16, 2) if component.name == "swa" else (1, 128)
            units = max(1, total // 4)
            for spec in component.buffers:
                shards = [(one.first, one.units, one.total, one.rows) for one in spec.shards]
                assert shards == [(rank * total // 4, units, total, rows)]


def test_a_part_that_cannot_be_shared_is_named(loaded: Loaded) -> None:
    with pytest.raises(ValueError, match=f"{loaded.layout.parts[0].name}: .* do not go evenly among 3 ranks"):
        part_of(loaded.layout, 0, 3)


# -- the verdict -----------------------------------------------------------------------------------------------------

WHOLE = {"kv/0/k": torch.arange(3 * 16 * 2 * 4, dtype=torch.float32).reshape(3, 16, 2, 4)}
TOKENS = [5, 6, 7]


class Told:
    """A session of two ranks on each side, told by hand of one request."""

    def __init__(self, folder: Path) -> None:
        job = models.builtin("dense")
        self.session = Session(Job([job], models.requests(job, [[1] * 37], 1), str(folder), 10.0, TWO))
        self.row = self.session.rows[ID]
        oracle.save(self.session.job.file(ID, "reference"), WHOLE)
        oracle.save(self.session.job.file(ID, "landed"), WHOLE)
        moved = {"kv/0/k": WHOLE["kv/0/k"].roll(1, dims=2)}
        oracle.save(self.session.job.file(ID, controls.HEADS_MOVED), moved)

    def holds(self, seat: Seat, head: int) -> None:
        part = {"kv/0/k": WHOLE["kv/0/k"][:, :, head : head + 1]}
        oracle.save(self.session.job.held(ID, seat.child), part)
        self.session.take(seat.child, Held(ID, 3, part["kv/0/k"].nbytes, 0))

    def all_but_held(self) -> None:
        for rank in range(2):
            self.session.take(f"prefill-{rank}", Ready({"Qwen3": "http://x"}, "nixl/UCX"))
            self.session.take(f"prefill-{rank}", Sent(ID, 2, 2, 3))
        self.session.take("decode-0", Generated(ID, TOKENS, [0.0] * 3, 0.25))
        self.session.take("decode-0", Control(ID, controls.HEADS_MOVED, [5, 6, 8], [0.0] * 3))
        self.session.take("reference", Reference(ID, TOKENS, [0.0] * 3, []))
        for seat in TWO.seats():
            assert not self.session.complete
            self.session.take(seat.child, Finished())


def test_all_ranks_hold_their_share_of_what_the_reference_has(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for seat in TWO.seats():
        assert not told.row.landed
        told.holds(seat, seat.rank)
    assert told.row.landed
    told.all_but_held()
    assert told.session.ok, told.session.complaints()
    row = told.row.as_json()
    assert row["ranks"] == {side: [{"bytes": 768, "identical": True}] * 2 for side in ("prefill", "decode")}
    assert (row["bytes"], row["chunks"], row["pages"]) == (1536, 2, 3)
    assert "(768 + 768 on prefill, 768 + 768 on decode), tokens identical" in verdict(told.row)


@pytest.mark.parametrize("seat", TWO.seats(), ids=lambda seat: seat.child)
def test_one_rank_with_the_wrong_head_fails_the_demo(tmp_path: Path, seat: Seat) -> None:
    told = Told(tmp_path)
    for one in TWO.seats():
        told.holds(one, one.rank if one != seat else 1 - one.rank)
    told.all_but_held()
    assert not told.session.ok
    assert told.row.as_json()["ranks"][seat.side][seat.rank] == {"bytes": 768, "identical": False}
    assert told.row.as_json()["bytes_identical"] is False
    assert any(f"bytes of {seat.child}: kv/0/k" in complaint for complaint in told.session.complaints())


def test_one_rank_that_has_shown_nothing_fails_the_demo(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for seat in TWO.seats()[1:]:
        told.holds(seat, seat.rank)
    told.all_but_held()
    assert told.session.complete
    assert not told.session.ok
    assert told.session.complaints() == [f"{ID}: prefill-0 did not show what it holds"]


def test_phases_of_ranks_are_shown_together(tmp_path: Path) -> None:
    told = Told(tmp_path)
    assert told.row.phase("decode") == ""
    told.session.take("decode-1", Phase(ID, "KV"))
    assert told.row.phase("decode") == "KV"
    told.session.take("decode-0", Phase(ID, "METADATA"))
    assert told.row.phase("decode") == "METADATA/KV"
    told.session.take("decode-0", Phase(ID, "KV"))
    assert told.row.phase("decode") == "KV"
    assert told.row.phase("prefill") == ""
    assert told.session.take("decode-0", Leads({"group/Qwen3": "127.0.0.1:1"})) is None
    output = io.StringIO()
    with PlainView(output) as view:
        view.show(told.row, "decode-1", Held(ID, 3, 768, 0))
        view.show(told.row, "prefill-0", Held(ID, 3, 768, 0))
    assert "decode-1: 768 bytes landed" in output.getvalue()
    assert "prefill-0: 768 bytes held" in output.getvalue()


PYTHON = [sys.executable, "-P", "-c"]
WAITS = [*PYTHON, "import sys; sys.stdin.read()"]
REGISTRY = [*PYTHON, 'import sys; print(\'{"bootstrap": "http://127.0.0.1:1"}\', flush=True); sys.stdin.read()']


@pytest.mark.parametrize("child", [seat.child for seat in TWO.seats()])
def test_a_rank_that_dies_ends_the_demo(child: str) -> None:
    output = io.StringIO()
    instead = dict.fromkeys([*(seat.child for seat in TWO.seats()), "reference"], WAITS)
    instead |= {"registry": REGISTRY, child: [*PYTHON, "raise SystemExit('out of luck')"]}
    assert main(DemoOptions(timeout_s=20, requests=1, tp="2:2"), output, instead=instead) == 1
    result = json.loads(output.getvalue().splitlines()[-1])
    assert result["tp"] == "2:2"
    assert f"the {child} process ended early (exit status 1)" in result["errors"][0]


LEADS = """
import sys
sys.stdin.readline()
print('{"event": "leads", "addresses": {"group/Qwen3": "here:1"}}', flush=True)
sys.stdin.read()
"""
LISTENS = """
import json, sys
seat, urls = json.loads(sys.stdin.readline())["seat"], {}
while "group/Qwen3" not in urls:
    urls |= json.loads(sys.stdin.readline())["urls"]
text = f"{seat['side']} {seat['rank']} of {seat['ranks']} {urls['group/Qwen3']}"
print(json.dumps({"event": "trouble", "text": text}), flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_where_a_group_is_led_is_told_to_the_others_of_that_side(side: str) -> None:
    output = io.StringIO()
    instead = dict.fromkeys([*(seat.child for seat in TWO.seats()), "reference"], WAITS)
    instead |= {"registry": REGISTRY, f"{side}-0": [*PYTHON, LEADS], f"{side}-1": [*PYTHON, LISTENS]}
    main(DemoOptions(timeout_s=20, requests=1, model="dense", tp="2:2"), output, instead=instead)
    assert f"{side}-1: {side} 1 of 2 here:1" in json.loads(output.getvalue().splitlines()[-1])["errors"][0]
