"""The published wheels of SGLang under the conformance suite: what each version is known to do is found by itself.

Needs a package registry the first time, and about three minutes a version; without the wheel the tests are skipped.
"""

from __future__ import annotations

import pytest

from kvrooms.harness.conformance.sglang import install, subject
from kvrooms.harness.evidence import Counterexample

suite = pytest.importorskip("kvrooms.harness.conformance.suite")
pytestmark = [pytest.mark.deep, pytest.mark.nixl, pytest.mark.slow, pytest.mark.timeout(600)]
EMPTY = {"absent", "None", "[]", "[[]]", "[None]"}


@pytest.fixture(scope="module", params=["0.5.12", "0.5.13", "0.5.23"])
def sglang(request):
    """A subject of a version; one driver for all of its tests."""
    try:
        install.prepare(request.param, None)
    except install.WheelUnavailableError as error:
        pytest.skip(f"SGLang {request.param} is not to be had: {error}")
    made = subject(request.param, None)
    yield made
    made.close_driver()


def judge(sglang, *properties: str) -> dict[str, tuple[bool | None, Counterexample | None]]:
    outcomes = suite.run(sglang, suite.default_effort(sglang), properties)
    return {outcome.id: (outcome.ok, outcome.counterexample) for outcome in outcomes}


def test_an_ordinary_room_works(sglang):
    assert judge(sglang, "SMOKE")["SMOKE"][0] is True


def test_an_empty_spelling_hangs_the_versions_in_which_it_does(sglang):
    ok, found = judge(sglang, "L2")["L2"]
    if sglang.version == "0.5.23":
        assert ok is True
        return
    assert ok is False
    spelled = {found.input["prefill_state_indices"], found.input["decode_state_indices"]}
    assert spelled <= EMPTY
    if sglang.version == "0.5.13":
        assert spelled & {"[[]]", "[None]"}
    assert [step.who for step in found.timeline if step.kind == "open"] == ["decode"]


def test_a_decode_that_gives_up_kills_the_bootstrap_thread_of_0_5_13(sglang):
    if sglang.version != "0.5.13":
        pytest.skip("0.5.13 alone")
    ok, found = judge(sglang, "L4")["L4"]
    assert ok is False
    assert any("bootstrap_thread" in step.text and "died" in step.text for step in found.timeline)


def test_a_stranger_ends_the_service(sglang):
    assert judge(sglang, "S5")["S5"][0] is False


def test_an_abort_of_prefill_is_not_heard_by_decode(sglang):
    ok, found = judge(sglang, "L3")["L3"]
    assert ok is False
    assert [step.who for step in found.timeline if step.kind == "open"]
