"""The demo's verdict: what the parent makes of what its children say."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
import torch

from kvrooms.demo import controls, models, oracle
from kvrooms.demo.jobs import Job
from kvrooms.demo.messages import (
    Control,
    Finished,
    Generated,
    Held,
    Leads,
    Message,
    Phase,
    Ready,
    Reference,
    Sent,
    Trouble,
    decode,
)
from kvrooms.demo.run import DemoOptions, plan, report
from kvrooms.demo.session import Session
from kvrooms.demo.view import LiveView, PlainView, pick_view

ID = "dense-0"
LANDED = {"kv/0/k": torch.arange(24, dtype=torch.float32).reshape(3, 2, 2, 2)}
TOKENS = [5, 6, 7]


def session_in(folder: Path) -> Session:
    job = models.builtin("dense")
    return Session(Job([job], models.requests(job, [[1] * 37], 1), str(folder), 10.0))


def saved(session: Session, what: str, parts: dict[str, torch.Tensor]) -> None:
    oracle.save(session.job.file(ID, what), parts)


def generated(tokens: list[int] = TOKENS) -> Generated:
    return Generated(ID, tokens, [0.0] * len(tokens), seconds=0.25)


def held(size: int = 96) -> Held:
    return Held(ID, pages=3, bytes=size, state_bytes=0)


def run(session: Session, *, landed: bool = True, tokens: list[int] = TOKENS, damaged: list[int] | None = None) -> None:
    """A whole run; `landed` false spoils a byte, `damaged` are the tokens of the control."""
    saved(session, "reference", LANDED)
    saved(session, "landed", LANDED if landed else {"kv/0/k": LANDED["kv/0/k"] + 1})
    spoilt = LANDED["kv/0/k"].clone()
    spoilt[1] = 0
    saved(session, controls.KV_ZEROED, {"kv/0/k": spoilt})
    for child, message in (
        ("prefill", Ready({"Qwen3": "http://x"}, "nixl/UCX")),
        ("prefill", Phase(ID, "KV")),
        ("prefill", Sent(ID, 2, 2, 3)),
        ("prefill", Finished()),
        ("decode", held()),
        ("decode", generated(tokens)),
        ("decode", Control(ID, controls.KV_ZEROED, damaged or [5, 6, 8], [0.0] * 3)),
        ("decode", Finished()),
        ("reference", Reference(ID, TOKENS, [0.0] * 3, [])),
    ):
        session.take(child, message)


def test_a_run_in_which_everything_holds(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    assert not session.ok
    run(session)
    assert session.ok
    assert session.complaints() == []
    result = report(session)
    assert set(result) == {"ok", "transport", "requests"}
    assert result["transport"] == "nixl/UCX"
    assert result["requests"] == [
        {
            "model": "Qwen3",
            "kind": "dense",
            "prompt_tokens": 37,
            "new_tokens": 3,
            "chunks": 2,
            "pages": 3,
            "bytes": 96,
            "state_bytes": 0,
            "bytes_identical": True,
            "identical": True,
            "controls": {controls.KV_ZEROED: True},
            "seconds": 0.25,
        }
    ]


def test_one_wrong_byte_fails_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    run(session, landed=False)
    assert not session.ok
    assert report(session)["requests"][0]["bytes_identical"] is False
    assert any("bytes differ" in complaint for complaint in session.complaints())


def test_one_wrong_token_fails_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    run(session, tokens=[5, 6, 6])
    assert not session.ok
    assert report(session)["requests"][0]["identical"] is False


def test_a_control_that_nobody_notices_fails_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    run(session, damaged=TOKENS)
    assert not session.ok
    assert report(session)["requests"][0]["controls"] == {controls.KV_ZEROED: False}
    assert session.complaints() == [f"{ID}: nobody noticed {controls.KV_ZEROED}"]


def test_no_control_at_all_fails_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    run(session)
    session.rows[ID].controls.clear()
    session.rows[ID].damaged.clear()
    assert not session.ok


def test_bytes_outside_what_was_granted_fail_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    run(session)
    session.take("decode", Finished(strays={"Qwen3": ["kv/0/k"]}))
    assert not session.ok
    assert report(session)["requests"][0]["bytes_identical"] is False


def test_a_reference_that_knows_kvrooms_fails_the_demo(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    saved(session, "reference", LANDED)
    saved(session, "landed", LANDED)
    session.take("decode", held())
    session.take("decode", generated())
    session.take("reference", Reference(ID, TOKENS, [0.0] * 3, ["kvrooms.demo"]))
    assert session.rows[ID].bytes_identical is False


def test_a_failed_room_is_told_in_words_and_the_others_go_on(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    session.take("decode", Trouble("peer lost", ID))
    for child in ("prefill", "decode"):
        session.take(child, Finished())
    assert not session.complete
    session.take("reference", Reference(ID, TOKENS, [0.0] * 3, []))
    assert session.complete
    assert not session.ok
    assert session.complaints() == [f"{ID}: decode: peer lost"]


@pytest.mark.parametrize(
    "message",
    [
        Ready({"Qwen3": "http://x"}, "nixl/UCX"),
        Leads({"group/Qwen3": "127.0.0.1:1"}),
        Phase(ID, "KV"),
        Sent(ID, 1, 2, 3),
        held(),
        generated(),
        Control(ID, "x", [1], [0.5]),
        Finished({"Qwen3": ["kv/0/k"]}),
        Reference(ID, [1], [0.5], []),
        Trouble("text", ID),
    ],
)
def test_events_survive_the_line(message: Message) -> None:
    assert decode(msgspec.json.encode(message)) == message


@pytest.mark.parametrize("line", [b"", b"hello\n", b"{}", b'{"event": "phase"}', b'{"event": "nope"}'])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(line)


def test_plain_lines_hold_no_escape_code(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    output = io.StringIO()
    view = pick_view(output, plain=False)
    assert isinstance(view, PlainView)
    with view:
        view.note("two\nlines")
        view.show(session.rows[ID], "decode", Phase(ID, "KV"))
        run(session, damaged=TOKENS)
        view.summary(session, {ID: "some text"})
    text = output.getvalue()
    assert "\x1b" not in text
    assert "decode: KV" in text
    assert "NOT NOTICED" in text
    assert "some text" in text


def test_a_terminal_gets_a_table(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    session = session_in(tmp_path)
    output = Terminal()
    assert isinstance(pick_view(output, plain=True), PlainView)
    view = pick_view(output, plain=False)
    assert isinstance(view, LiveView)
    with view:
        view.note("starting")
        session.take("decode", Phase(ID, "METADATA"))
        view.tick(session)
        run(session)
        view.summary(session, {})
    text = output.getvalue()
    assert "METADATA" in text
    assert "1 of 1 requests" in text


def test_the_plan_of_the_default_demo(tmp_path: Path) -> None:
    job = plan(DemoOptions(requests=4), str(tmp_path))
    assert [model.kind for model in job.models] == list(models.KINDS)
    assert sorted(request.room for request in job.requests) == list(range(1, 13))
    for model in job.models:
        lengths = [len(request.prompt) for request in job.of(model.name)]
        assert len(set(lengths)) == 4
        assert max(lengths) > 2 * model.chunk
        assert all(length % model.page_size for length in lengths)
        assert model.strict
    assert json.loads(msgspec.json.encode(job))["limit_s"] < 90


def test_a_prompt_of_ones_own_is_one_request_per_model(tmp_path: Path) -> None:
    job = plan(DemoOptions(prompt="hello", model="hybrid"), str(tmp_path))
    assert [request.prompt for request in job.requests] == [list(b"hello")]
    assert not job.models[0].strict
    assert len(plan(DemoOptions(prompt="hello"), str(tmp_path)).requests) == 3


@pytest.mark.parametrize("options", [DemoOptions(model="nothing-like-it"), DemoOptions(prompt="", model="dense")])
def test_a_plan_that_cannot_be_made_is_refused(tmp_path: Path, options: DemoOptions) -> None:
    with pytest.raises(ValueError):
        plan(options, str(tmp_path))
