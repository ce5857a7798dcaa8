"""Settings: argument over environment over default; unknown names and bad values are named."""

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrooms.cli import settings_doc
from kvrooms.engine.settings import EngineSettings, load_settings
from kvrooms.protocol.errors import InvalidArgument

FIELDS = EngineSettings.__struct_fields__


def test_nothing_said_gives_the_defaults():
    assert load_settings({}) == EngineSettings()
    assert load_settings({"PATH": "/bin", "KVROOM_X": "1", "kvrooms_y": "2"}) == EngineSettings()
    assert load_settings({}, piece_bytes=None) == EngineSettings()


def test_an_argument_goes_before_the_environment_and_that_before_the_default():
    environ = {"KVROOMS_HEARTBEAT_S": "2", "KVROOMS_PIECE_BYTES": "4096"}
    settings = load_settings(environ, heartbeat_s=3)
    assert settings.heartbeat_s == 3.0
    assert settings.piece_bytes == 4096
    assert settings.cap_timeout_s == EngineSettings().cap_timeout_s


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("KVROOMS_SPIN_S", "0")
    assert load_settings().spin_s == 0.0


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_a_variable_and_the_default_is_in_range(name):
    value = getattr(EngineSettings(), name)
    assert load_settings({f"KVROOMS_{name.upper()}": str(value)}) == EngineSettings()
    assert load_settings({}, **{name: value}) == EngineSettings()


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("text", ["", "five", "-1", "nan", "inf", "1e400", "9" * 5000, "1 s", "0x10"])
def test_a_bad_value_names_its_variable_and_itself(name, text):
    variable = f"KVROOMS_{name.upper()}"
    with pytest.raises(InvalidArgument) as caught:
        load_settings({variable: text})
    assert caught.value.field == variable
    assert variable in str(caught.value)
    assert text[:50] in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("KVROOMS_HEARTBEET_S", "did you mean KVROOMS_HEARTBEAT_S?"),
        ("KVROOMS_BOOTSTRAP_TIMEOUT", "did you mean KVROOMS_BOOTSTRAP_TIMEOUT_S?"),
        ("KVROOMS_heartbeat_s", "did you mean KVROOMS_HEARTBEAT_S?"),
        ("KVROOMS_", "no such setting (got"),
        ("KVROOMS_ZZZZZZ", "no such setting (got"),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion(variable, hint):
    with pytest.raises(InvalidArgument) as caught:
        load_settings({variable: "1"})
    assert hint in str(caught.value)
    assert caught.value.field == variable


def test_an_unknown_argument_is_an_error_with_a_suggestion():
    with pytest.raises(InvalidArgument, match="did you mean piece_bytes"):
        load_settings({}, piece_byte=1)


@pytest.mark.parametrize("value", [True, "5", 1.5, math.nan, -1, [1]])
def test_an_argument_of_the_wrong_kind_is_refused(value):
    with pytest.raises(InvalidArgument) as caught:
        load_settings({}, parked_total=value)
    assert caught.value.field == "parked_total"


@pytest.mark.parametrize(
    ("said", "blamed"),
    [
        ({"heartbeat_s": 9}, "heartbeat_s"),
        ({"heartbeat_timeout_s": 0.5}, "heartbeat_timeout_s"),
        ({"abort_retry_s": 6}, "abort_retry_s"),
        ({"parked_total": 5}, "parked_total"),
        ({"piece_bytes": 2**30}, "piece_bytes"),
        ({"piece_bytes": 8192, "inflight_bytes": 4096}, "piece_bytes"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(said, blamed):
    with pytest.raises(InvalidArgument, match="must not exceed") as caught:
        load_settings({}, **said)
    assert caught.value.field == blamed
    with pytest.raises(InvalidArgument, match="must not exceed") as caught:
        load_settings({f"KVROOMS_{name.upper()}": str(value) for name, value in said.items()})
    assert caught.value.field == f"KVROOMS_{blamed.upper()}"


@given(st.dictionaries(st.sampled_from([f"KVROOMS_{name.upper()}" for name in FIELDS]), st.text(max_size=12)))
def test_whatever_the_environment_holds_it_is_settings_or_the_one_error(environ):
    try:
        settings = load_settings(environ)
    except InvalidArgument as error:
        settings = error.field
    assert isinstance(settings, EngineSettings) or settings in environ


def test_the_document_says_what_the_settings_are():
    document = (Path(__file__).parent.parent / "docs" / "settings.md").read_text(encoding="utf-8")
    assert document == settings_doc.markdown(), "docs/settings.md is stale; run: make docs-spec"
    rows = [line for line in document.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(FIELDS)
    assert all(f"`KVROOMS_{name.upper()}`" in row for name, row in zip(FIELDS, rows, strict=True))
    assert "| `piece_bytes` | `KVROOMS_PIECE_BYTES` | 16 MiB | " in document
    assert "| `heartbeat_timeout_s` | `KVROOMS_HEARTBEAT_TIMEOUT_S` | 5 | Silence after which" in document


def test_every_setting_is_documented():
    source = Path(sys.modules[EngineSettings.__module__].__file__).read_text(encoding="utf-8")
    lines = [line.strip() for line in source.splitlines()]
    for name in FIELDS:
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert lines[at + 1].startswith('"""'), name
