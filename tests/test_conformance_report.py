"""What the command prints: exactly the agreed JSON, Markdown, diagrams that need nothing else, and exit statuses."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from conformance_toy import Toy
from typer.testing import CliRunner

from kvrooms.cli import app
from kvrooms.harness.conformance.diagram import drawing, page
from kvrooms.harness.conformance.find import find
from kvrooms.harness.conformance.report import json_of, line_of, markdown_of
from kvrooms.harness.conformance.suite import default_effort, run
from kvrooms.harness.evidence import PROPERTY_IDS, Step
from kvrooms.protocol.errors import InvalidArgument

WRONG, TEMPLATE = "examples/conformance_wrong.py:Wrong", "examples/conformance_template.py:Template"
PULL = "examples/conformance_pull.py:Pull"


@pytest.fixture(scope="module")
def outcomes():
    subject = Toy("L2")
    return run(subject, default_effort(subject, examples=20), ("SMOKE", "L2"))


def command(*arguments):
    return CliRunner().invoke(app, ["conformance", *arguments])


def test_the_json_is_as_agreed(outcomes):
    found = json.loads(json.dumps(json_of(Toy(), outcomes)))
    assert list(found) == ["subject", "version", "ok", "properties"]
    assert (found["subject"], found["version"], found["ok"]) == ("toy", "1", False)
    broken, smoke = found["properties"]
    assert list(smoke) == ["id", "ok", "examples", "counterexample"]
    assert (smoke["id"], smoke["ok"], smoke["counterexample"]) == ("SMOKE", True, None)
    assert smoke["examples"] > 0
    assert (broken["id"], broken["ok"]) == ("L2", False)
    assert list(broken["counterexample"]) == ["input", "timeline"]
    assert broken["counterexample"]["input"]["decode_state_indices"] == "[]"
    assert {"at", "who", "to", "kind", "text"} == set(broken["counterexample"]["timeline"][0])


def test_ok_is_true_only_if_all_are_true(outcomes):
    good = [outcome for outcome in outcomes if outcome.ok]
    assert json_of(Toy(), good)["ok"] is True
    assert json_of(Toy(), [*good, good[0]._replace(ok=None)])["ok"] is False
    assert json_of(Toy(), [])["ok"] is False


def test_markdown_has_the_command_the_verdicts_and_the_timeline(outcomes):
    text = markdown_of(Toy(), outcomes, "kvrooms conformance toy")
    assert "`kvrooms conformance toy`" in text
    assert re.search(r"\| L2 \| broken \| \d+ \| .*prefill_state_indices `\[\]`", text)
    assert re.search(r"\| SMOKE \| holds \| \d+ \|  \|", text)
    assert "waits for 1 items" in text


def test_one_line_says_one_verdict(outcomes):
    assert line_of(outcomes[0]).startswith("L2     broken")


def test_a_diagram_needs_nothing_but_itself(outcomes):
    html = page("toy <1>", [outcome.counterexample for outcome in outcomes if outcome.counterexample])
    assert "toy &lt;1&gt;" in html
    for foreign in ("<script", "http://", "https://", "<link", "@import", "url(http"):
        assert foreign not in html.replace('lang="en"', "")
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL).group(0))
    texts = [text for element in svg.iter("tspan") if (text := element.text)]
    assert any("state_indices=[]" in text for text in texts)
    assert "waits for 1 items" in texts
    assert [line for line in svg.iter("line") if line.get("class") == "wait"]


def test_a_diagram_has_an_arrow_per_message_and_escapes_what_is_said():
    steps = [
        Step(0, "decode", "message", "METADATA <1>", "prefill"),
        Step(1, "prefill", "write", "kv", "decode"),
        Step(2, "stranger", "message", "GET / HTTP/1.1", "prefill"),
        Step(3, "wire", "fault", "writes are held back"),
        Step(4, "decode", "open", "waits for " + "a very long list of obligations " * 8),
    ]
    text = drawing(steps)
    svg = ElementTree.fromstring(text)
    arrows = [path for path in svg.iter("path") if "arrow" in (path.get("class") or "")]
    assert len(arrows) == 3
    assert "METADATA &lt;1&gt;" in text
    assert "wire: writes are held back" in text
    height = float(svg.get("height"))
    assert all(float(element.get("y")) < height for element in svg.iter("text"))


def test_an_empty_page_says_so():
    assert "No property was broken" in page("x", [])


def test_the_wrong_example_is_found_out_and_exits_1(tmp_path):
    html = tmp_path / "hang.html"
    result = command(WRONG, "--property", "L2", "--property", "SMOKE", "--json", "--html", str(html))
    assert result.exit_code == 1
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert {one["id"]: one["ok"] for one in found["properties"]} == {"SMOKE": True, "L2": False}
    assert found["properties"][0]["counterexample"]["input"]["decode_state_indices"] == "[]"
    assert "waits for state" in html.read_text()
    assert "does not hold" in result.stderr


def test_the_template_is_unknown_and_exits_2():
    result = command(TEMPLATE, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert [one["id"] for one in found["properties"]] == list(PROPERTY_IDS)
    assert all(one["ok"] is None for one in found["properties"])


def test_what_holds_exits_0():
    result = command("kvrooms-sim", "--property", "SMOKE", "--examples", "5", "--markdown")
    assert result.exit_code == 0
    assert "| SMOKE | holds |" in result.stdout
    assert "`kvrooms conformance kvrooms-sim --examples 5 --property SMOKE`" in result.stdout


def test_options_reach_the_subject():
    result = command("conformance_toy:Toy", "--option", "defect=SMOKE", "--property", "SMOKE")
    assert result.exit_code == 1
    assert "SMOKE  broken" in result.stdout


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("nobody", {}, "kvrooms, kvrooms-sim, sglang, or module:Class"),
        ("no.such.module:Class", {}, "No module named"),
        ("conformance_toy:Nothing", {}, "has no Nothing"),
        ("conformance_toy:Half", {}, "derives from kvrooms.harness.conformance.subject.Subject"),
        ("examples/none.py:Wrong", {}, "is no Python file"),
        ("conformance_toy:Toy", {"options": {"colour": "red"}}, "colour"),
        ("kvrooms-sim", {"options": {"colour": "red"}}, "has no options"),
        ("kvrooms-sim", {"version": "1"}, "goes with the subject sglang"),
        ("sglang", {}, "needs either --version or --wheel"),
        ("sglang", {"version": "0.5.12", "wheel": "x.whl"}, "needs either --version or --wheel"),
    ],
)
def test_what_is_no_subject_is_refused_in_words(name, given, says):
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        find(name, **given)


@pytest.mark.parametrize(("text", "says"), [("x = ", "SyntaxError"), ("1 / 0", "ZeroDivisionError")])
def test_a_module_that_cannot_be_imported_is_refused_in_words(tmp_path, text, says):
    (tmp_path / "subject_of_nobody.py").write_text(text)
    with pytest.raises(InvalidArgument, match=f"cannot be imported: {says}"):
        find(f"{tmp_path}/subject_of_nobody.py:Subject")


def test_a_class_that_cannot_be_made_is_refused_in_words(tmp_path):
    text = "from kvrooms.harness.conformance.subject import Subject\nclass Mine(Subject):\n    def __init__(self):\n"
    (tmp_path / "subject_of_nobody.py").write_text(text + "        raise OSError('no such device')\n")
    with pytest.raises(InvalidArgument, match="cannot be made: OSError: no such device"):
        find(f"{tmp_path}/subject_of_nobody.py:Mine")


@pytest.mark.parametrize("arguments", [("--property", "X9"), ("--html", "no/such/folder/x.html")])
def test_what_cannot_be_done_is_refused_before_anything_runs(arguments):
    result = command("kvrooms-sim", *arguments)
    assert isinstance(result.exception, InvalidArgument)
    assert not result.stderr


def test_a_run_leaves_nothing_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("kvrooms-sim", "--property", "SMOKE", "--examples", "3").exit_code == 0
    assert not list(tmp_path.iterdir())


def test_an_engine_that_pulls_and_knows_no_numbers_can_be_judged():
    result = command(PULL, "--json", "--examples", "20")
    assert result.exit_code == 2
    found = {one["id"]: one["ok"] for one in json.loads(result.stdout)["properties"]}
    assert {name for name, ok in found.items() if ok is not True} == {"S4", "S5"}
    assert (found["S4"], found["S5"]) == (None, None)


def test_a_lease_that_an_engine_that_pulls_forgets_is_found():
    result = command(PULL, "--option", "forgets=yes", "--json", "--property", "L3", "--property", "L5")
    assert result.exit_code == 1
    leased, asked = json.loads(result.stdout)["properties"]
    assert (leased["ok"], asked["ok"]) == (False, False)
    assert leased["counterexample"]["input"]["calls"] == "prefill open, prefill send 0, decode open, decode abort"


def test_an_option_is_a_name_and_a_value():
    result = command("kvrooms-sim", "--option", "red")
    assert isinstance(result.exception, InvalidArgument)
