"""Who is let in: the settings of it, the registry's token, and engines on real ports that know each other's secret."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrooms import Buffer, DecodeEngine, InvalidArgument, Memory, PrefillEngine, Security, Status
from kvrooms.engine.security import load_security
from kvrooms.engine.settings import ELSEWHERE, load_settings
from kvrooms.protocol.registration import Registration, Resolved, Unresolved
from kvrooms.transport.registry import HttpRegistry, RegistryServer

SECRET = "correct horse battery staple"
TOKEN = "a token of the registry"[:16].replace(" ", "-")
LIMIT_S = 40.0
KVROOMS = str(Path(sys.executable).with_name("kvrooms"))


# -- settings ----------------------------------------------------------------------------------------------------------


def test_nothing_said_is_nothing_asked():
    security = load_security({"PATH": "/bin"})
    assert (security.secret, security.token, security.allow_unauthenticated, security.anywhere) == (
        None, None, False, False,
    )  # fmt: skip


def test_a_secret_is_one_setting_for_everything():
    security = load_security({"KVROOMS_SECRET": SECRET})
    assert security.secret == SECRET.encode()
    assert security.anywhere
    assert security.token == Security(SECRET).token != Security(SECRET + "x").token
    assert SECRET not in security.token
    assert Security(SECRET, registry_token=TOKEN).token == TOKEN


def test_a_secret_may_be_in_a_file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    assert load_security({"KVROOMS_SECRET_FILE": str(file)}).secret == SECRET.encode()
    with pytest.raises(InvalidArgument, match="KVROOMS_SECRET_FILE: KVROOMS_SECRET is set as well"):
        load_security({"KVROOMS_SECRET_FILE": str(file), "KVROOMS_SECRET": SECRET})
    with pytest.raises(InvalidArgument, match="KVROOMS_SECRET_FILE: cannot be read"):
        load_security({"KVROOMS_SECRET_FILE": str(file) + "x"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KVROOMS_SECRET", ""), ("KVROOMS_SECRET", "fifteen letters"), ("KVROOMS_SECRET", "x" * 1025),
        ("KVROOMS_REGISTRY_TOKEN", "short"), ("KVROOMS_REGISTRY_TOKEN", "with a space in it"),
        ("KVROOMS_REGISTRY_TOKEN", "line\nbreak-line-break"), ("KVROOMS_REGISTRY_TOKEN", "ünïcödé-ünïcödé-ü"),
        ("KVROOMS_ALLOW_UNAUTHENTICATED", "yes"), ("KVROOMS_ALLOW_UNAUTHENTICATED", ""),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_variable_and_no_secret_is_shown(variable, value):
    with pytest.raises(InvalidArgument, match=f"^{variable}: ") as caught:
        load_security({variable: value})
    if variable != "KVROOMS_ALLOW_UNAUTHENTICATED" and value:
        assert value not in str(caught.value)


@given(st.text(min_size=16, max_size=60))
def test_a_secret_never_shows(secret):
    security = Security(secret, allow_unauthenticated=True)
    for shown in (repr(security), str(security)):
        assert shown == "<Security secret set, token set, anybody is let in>"


@pytest.mark.parametrize("variable", ELSEWHERE)
def test_these_variables_are_no_unknown_settings(variable):
    assert load_settings({variable: "1"}) == load_settings({})
    with pytest.raises(InvalidArgument, match=f"did you mean {variable}"):
        load_settings({variable[:-1]: "x"})


# -- other addresses ---------------------------------------------------------------------------------------------------


def memory():
    return Memory(page_size=4, kv=[Buffer(0, "kv", np.arange(512, dtype=np.uint8).reshape(8, 64))])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "node-7"])
def test_an_engine_that_others_reach_needs_a_secret_and_says_so(host):
    with pytest.raises(InvalidArgument, match=r"^host: .*KVROOMS_SECRET.*KVROOMS_ALLOW_UNAUTHENTICATED=1"):
        PrefillEngine(memory(), host=host, security=Security())
    for security in (Security(SECRET), Security(allow_unauthenticated=True)):
        security.check_host("host", host)
        security.check_registry_host("host", host)
        security.check_registry("registry", f"http://{host}:1" if ":" not in host else f"http://[{host}]:1")
    with pytest.raises(InvalidArgument):
        Security(registry_token=TOKEN).check_host("host", host)
    Security(registry_token=TOKEN).check_registry_host("host", host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_needs_none(host):
    Security().check_host("host", host)
    Security().check_registry_host("host", host)
    Security().check_registry("registry", f"http://{host}:1" if ":" not in host else f"http://[{host}]:1")


def test_a_registry_elsewhere_is_not_asked_without_a_token():
    with pytest.raises(InvalidArgument, match=r"^registry: .*KVROOMS_REGISTRY_TOKEN"):
        PrefillEngine(memory(), registry="http://192.0.2.1:80", security=Security())
    with DecodeEngine(memory(), security=Security()) as decode:
        with pytest.raises(InvalidArgument, match=r"^bootstrap: .*KVROOMS_REGISTRY_TOKEN"):
            decode.open(1, bootstrap="http://192.0.2.1:80", pages=[1])
        assert decode.tables()["claims"] == decode.tables()["keys"] == 0
        decode.open(1, bootstrap="http://127.0.0.1:1", pages=[1])


def test_the_command_refuses_to_serve_others_without_a_token():
    clean = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    done = subprocess.run(
        [KVROOMS, "bootstrap", "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60, check=False, env=clean
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "host: other machines reach it" in done.stderr
    assert "Traceback" not in done.stderr


# -- the registry ------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry():
    with RegistryServer(token=TOKEN) as server:
        yield server


REQUESTS = [
    ("GET", "/v1/engines"), ("GET", "/v1/engines/x/0"), ("GET", "/v1/engines/-/0"), ("PUT", "/v1/engines/x/0"),
    ("DELETE", "/v1/engines/x/0?incarnation=0000000000000001"), ("GET", "/nothing"), ("POST", "/v1/engines"),
]  # fmt: skip


def ask(url, method, path, **headers):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@pytest.mark.parametrize("said", [None, "", "Bearer", "Bearer x", f"bearer {TOKEN}", f"Bearer {TOKEN}x", TOKEN, "ü"])
def test_a_request_without_the_token_learns_nothing(registry, method, path, said):
    headers = {} if said is None else {"Authorization": said}
    status, body = ask(registry.url, method, path, **headers)
    assert status == 401
    assert body == {"error": "this registry must be asked with its token: set KVROOMS_SECRET or KVROOMS_REGISTRY_TOKEN"}


def test_health_needs_no_token_and_with_it_everything_is_as_without(registry):
    assert ask(registry.url, "GET", "/health") == (200, {"ok": True, "registrations": 0})
    assert ask(registry.url, "GET", "/v1/engines", Authorization=f"Bearer {TOKEN}") == (200, {"engines": []})


def look_up(url, token):
    came = threading.Event()
    client = HttpRegistry(came.set, token=token)
    try:
        client.lookup(url, "x", 0)
        assert came.wait(LIMIT_S)
        return client.poll()[0]
    finally:
        client.close(1)


def test_the_client_brings_its_token(registry):
    client = HttpRegistry(lambda: None, token=TOKEN)
    try:
        client.announce(registry.url, Registration("x", 0, "127.0.0.1:9", 7, 16, "00", 30.0))
        while not ask(registry.url, "GET", "/health")[1]["registrations"]:
            pass
        assert isinstance(look_up(registry.url, TOKEN), Resolved)
        for token in (None, TOKEN + "x"):
            refused = look_up(registry.url, token)
            assert isinstance(refused, Unresolved)
            assert "must be asked with its token" in refused.why
    finally:
        client.close(5)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.nixl
def test_engines_with_one_secret_serve_each_other_and_nobody_else():
    source, target = memory(), Memory(page_size=4, kv=[Buffer(0, "kv", np.zeros((8, 64), np.uint8))])
    with (
        PrefillEngine(source, name="p", security=Security(SECRET)) as prefill,
        DecodeEngine(target, name="d", security=Security(SECRET)) as decode,
        DecodeEngine(memory(), name="other", security=Security(SECRET + "!")) as other,
        DecodeEngine(
            memory(), name="token", security=Security(SECRET * 2, registry_token=Security(SECRET).token)
        ) as token,
        DecodeEngine(memory(), name="none", security=Security()) as none,
    ):
        wrong = [
            engine.open(1, bootstrap=prefill.bootstrap, pages=[1], bootstrap_timeout_s=1.5)
            for engine in (other, token, none)
        ]
        room = decode.open(2, bootstrap=prefill.bootstrap, pages=[4, 2])
        sender = prefill.open(2, pages=2)
        sender.send([3, 5])
        assert room.wait(LIMIT_S) is Status.DONE, room.failure
        assert sender.wait(LIMIT_S) is Status.DONE, sender.failure
        assert [refused.wait(LIMIT_S) for refused in wrong] == [Status.FAILED] * 3
        words = [refused.failure.detail for refused in wrong]
        assert "must be asked with its token" in words[0]
        assert "did not prove that it knows our secret" in words[1]
        assert "must be asked with its token" in words[2]
        assert prefill.counters()["connections not authenticated"] >= 1
        assert asyncio.run(asyncio.wait_for(room._ended(), 1)) is Status.DONE
        with pytest.raises(InvalidArgument):
            Security("short")
