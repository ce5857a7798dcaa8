"""The bootstrap registry: its values, its table, its HTTP interface under hostile input, and the engines' client."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrooms.protocol import registration as values
from kvrooms.protocol.errors import InvalidArgument, WireError
from kvrooms.protocol.registration import Registration, Resolved, Unresolved
from kvrooms.transport.registry import HttpRegistry, Refused, RegistryServer, RegistryTable


def registration(**changes):
    plain = {
        "instance": "prefill-0",
        "rank": 0,
        "address": "127.0.0.1:5555",
        "incarnation": 0x0123456789ABCDEF,
        "page_size": 16,
        "layout_digest": "ab12",
        "ttl_s": 30.0,
    }
    return Registration(**{**plain, **changes})


def until(condition, seconds=10.0):
    """Wait for something that another thread brings about; the value it returned."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)
    return value


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


# -- values -----------------------------------------------------------------------------------------------------------


names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
registrations = st.builds(
    Registration,
    instance=names,
    rank=st.integers(0, values.MAX_RANK),
    address=st.builds(
        values.format_address, st.sampled_from(["127.0.0.1", "::1", "node-7.local"]), st.integers(1, 65535)
    ),
    incarnation=st.integers(1, 2**64 - 1),
    page_size=st.integers(1, 2**31 - 1),
    layout_digest=st.from_regex(r"\A[0-9a-f]{1,128}\Z"),
    ttl_s=st.floats(values.MIN_TTL_S, values.MAX_TTL_S),
)


@given(registrations)
def test_a_registration_survives_both_of_its_wire_forms(one):
    assert values.decode_announcement(one.instance, one.rank, values.encode_announcement(one)) == one
    assert values.decode_record(values.encode_record(one, 1.5)) == one


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_the_one_typed_error(body):
    for decode in (values.decode_record, lambda b: values.decode_announcement("a", 0, b)):
        try:
            decode(body)
        except WireError:
            continue
    assert values.decode_refusal(body) is None


GOOD = json.loads(values.encode_announcement(registration()))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"address": 5}, "address"),
        ({"address": "nohost"}, "address"),
        ({"address": "host:0"}, "address"),
        ({"address": "host:65536"}, "address"),
        ({"address": "ho st:1"}, "address"),
        ({"address": "host:1\n"}, "address"),
        ({"address": "[::1:1"}, "address"),
        ({"address": "h" * 400 + ":1"}, "address"),
        ({"incarnation": 7}, "incarnation"),
        ({"incarnation": "0" * 16}, "incarnation"),
        ({"incarnation": "0123456789ABCDEF"}, "incarnation"),
        ({"incarnation": "abc"}, "incarnation"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": True}, "page_size"),
        ({"page_size": "16"}, "page_size"),
        ({"page_size": 1.5}, "page_size"),
        ({"page_size": 2**31}, "page_size"),
        ({"layout_digest": ""}, "layout_digest"),
        ({"layout_digest": "a b"}, "layout_digest"),
        ({"layout_digest": None}, "layout_digest"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"ttl_s": 1e9}, "ttl_s"),
        ({"metadata": "blob"}, "metadata"),
    ],
)
def test_each_wrong_field_is_named(change, field):
    with pytest.raises(WireError) as caught:
        values.decode_announcement("a", 0, json.dumps({**GOOD, **change}).encode())
    assert caught.value.field == field


@pytest.mark.parametrize("gone", sorted(GOOD.keys() - {"ranks", "member"}))
def test_each_missing_field_is_named(gone):
    with pytest.raises(WireError) as caught:
        values.decode_announcement("a", 0, json.dumps({k: v for k, v in GOOD.items() if k != gone}).encode())
    assert caught.value.field == gone


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"error":' + b"[" * 60_000, b"{}" + b" " * values.MAX_BODY]
)
def test_a_body_that_is_no_announcement_is_refused(body):
    with pytest.raises(WireError):
        values.decode_announcement("a", 0, body)


def test_a_refusals_words_are_made_fit_for_a_log():
    words = values.decode_refusal(values.encode_refusal("a\x1b[31mb\n" + "c" * 1000))
    assert words is not None
    assert words.startswith("a?[31mb?c")
    assert len(words) == 300


def test_nesting_too_deep_for_the_decoder_is_a_refusal_not_a_crash():
    with pytest.raises(WireError, match="body"):
        values._decode(b"[" * 60_000, list)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://[::1]:80/", "http://[::1]:80"),
        ("https://name", "https://name"),
    ],
)
def test_a_bootstrap_url_is_accepted(url, plain):
    assert values.check_bootstrap(url) == plain


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:80", "like http://host:port"),
        ("ftp://host:1", "like http://host:port"),
        ("", "like http://host:port"),
        ("http://", "names no host"),
        ("http://:80", "names no host"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "no URL"),
        ("http://[::1", "no URL"),
        ("http://host:abc", "no URL"),
        ("http://me:secret@host:1", "user or a password"),
        ("http://:secret@host:1", "user or a password"),
        ("http://host:1/v1", "end after the port"),
        ("http://host:1?x=1", "end after the port"),
        ("http://host:1#x", "end after the port"),
        ("http://ho st:1", "printable"),
        ("http://hôte:1", "printable"),
    ],
)
def test_a_bootstrap_url_is_refused_in_words(url, words):
    with pytest.raises(InvalidArgument, match=words):
        values.check_bootstrap(url)


def test_addresses_go_both_ways():
    assert values.parse_address("[fe80::1]:9") == ("fe80::1", 9)
    assert values.parse_address("node.local:65535") == ("node.local", 65535)
    assert values.format_address("::1", 5) == "[::1]:5"
    assert values.format_address("host", 5) == "host:5"


# -- table ------------------------------------------------------------------------------------------------------------


def refused(status, call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    assert caught.value.status == status
    return str(caught.value)


def test_a_registration_expires_and_a_new_one_starts_its_time_anew():
    clock = Clock()
    table = RegistryTable(10, clock)
    table.put(registration(ttl_s=10))
    clock.now += 6
    table.put(registration(ttl_s=10))
    clock.now += 6
    assert table.get("prefill-0", 0).expires_in_s == pytest.approx(4)
    clock.now += 4
    assert refused(404, table.get, "prefill-0", 0) == "prefill-0 rank 0 is not registered"
    assert len(table) == 0


def test_a_registration_replaces_the_one_before_it():
    table = RegistryTable(10, Clock())
    table.put(registration(address="a:1"))
    table.put(registration(address="b:2", incarnation=9))
    assert table.get("prefill-0", 0).registration.address == "b:2"
    assert len(table.entries()) == 1


def test_a_full_table_refuses_new_engines_but_renews_the_known_and_reuses_what_expired():
    clock = Clock()
    table = RegistryTable(2, clock)
    table.put(registration(rank=0, ttl_s=5))
    table.put(registration(rank=1, ttl_s=50))
    assert "2 engines" in refused(507, table.put, registration(rank=2))
    table.put(registration(rank=1, ttl_s=50))
    clock.now += 6
    table.put(registration(rank=2))
    assert [entry.registration.rank for entry in table.entries()] == [1, 2]


def test_only_the_registered_incarnation_deletes():
    table = RegistryTable(10, Clock())
    table.put(registration(incarnation=1))
    assert "another incarnation" in refused(409, table.delete, "prefill-0", 0, 2)
    table.delete("prefill-0", 0, 1)
    refused(404, table.delete, "prefill-0", 0, 1)


def test_the_only_instance_needs_no_name_and_several_are_listed():
    clock = Clock()
    table = RegistryTable(100, clock)
    assert "no engine" in refused(404, table.get_only, 0)
    table.put(registration(instance="a", rank=0))
    table.put(registration(instance="a", rank=1, address="x:7"))
    assert table.get_only(1).registration.address == "x:7"
    assert "a rank 2" in refused(404, table.get_only, 2)
    table.put(registration(instance="b", ttl_s=5))
    assert refused(409, table.get_only, 0) == "2 instances are registered; name one of: a, b"
    clock.now += 6
    assert table.get_only(0).registration.instance == "a"
    for number in range(30):
        table.put(registration(instance=f"c{number:02}"))
    assert refused(409, table.get_only, 0).endswith("c14, ...")


# -- server -----------------------------------------------------------------------------------------------------------


@contextmanager
def serving(**options):
    server = RegistryServer(**options)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server():
    with serving() as one:
        yield one


def ask(server, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), timeout=10)
    try:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


BODY = values.encode_announcement(registration())
PATH = "/v1/engines/prefill-0/0"


def test_put_get_list_delete(server):
    assert ask(server, "GET", "/health") == (200, {"ok": True, "registrations": 0})
    status, record = ask(server, "PUT", PATH, BODY)
    assert status == 200
    assert record == {**GOOD, "instance": "prefill-0", "rank": 0, "expires_in_s": 30.0}
    status, record = ask(server, "GET", PATH)
    assert (status, record["address"]) == (200, "127.0.0.1:5555")
    assert 0 < record["expires_in_s"] <= 30
    assert ask(server, "GET", "/v1/engines/-/0")[1]["instance"] == "prefill-0"
    assert [r["rank"] for r in ask(server, "GET", "/v1/engines")[1]["engines"]] == [0]
    assert ask(server, "DELETE", f"{PATH}?incarnation={'f' * 16}")[0] == 409
    assert ask(server, "DELETE", f"{PATH}?incarnation=0123456789abcdef") == (200, {"ok": True})
    status, answer = ask(server, "GET", PATH)
    assert (status, answer) == (404, {"error": "prefill-0 rank 0 is not registered"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("PUT", PATH, b"{", 400, "body"),
        ("PUT", PATH, b'{"x":1}', 400, "x"),
        ("PUT", PATH, b"{}" + b" " * values.MAX_BODY, 413, f"{values.MAX_BODY} bytes"),
        ("PUT", "/v1/engines/-/0", BODY, 400, "instance"),
        ("PUT", "/v1/engines/a%20b/0", BODY, 400, "instance"),
        ("PUT", "/v1/engines/" + "a" * 129 + "/0", BODY, 400, "instance"),
        ("PUT", "/v1/engines/a/65536", BODY, 400, "rank"),
        ("PUT", "/v1/engines/a/-1", BODY, 400, "rank"),
        ("PUT", "/v1/engines/a/one", BODY, 400, "rank"),
        ("PUT", "/v1/engines/a/%D9%A1", BODY, 400, "rank"),
        ("PUT", "/v1/engines/a/000001", BODY, 400, "rank"),
        ("GET", "/v1/engines/%2e%2e%2fx/0", None, 400, "instance"),
        ("DELETE", PATH, None, 400, "incarnation"),
        ("DELETE", PATH + "?incarnation=zz", None, 400, "incarnation"),
        ("DELETE", PATH + "?incarnation=" + "1" * 16, None, 404, "not registered"),
        ("POST", PATH, BODY, 405, "POST"),
        ("GET", "/v2/engines", None, 404, "/v2/engines"),
        ("GET", "/", None, 404, "GET /"),
    ],
)
def test_wrong_requests_are_refused_in_words(server, method, path, body, status, words):
    got, answer = ask(server, method, path, body)
    assert got == status
    assert words in answer["error"]
    assert ask(server, "GET", "/health")[1]["registrations"] == 0


def test_a_chunked_body_is_bounded_too(server):
    def pieces():
        for _ in range(values.MAX_BODY // 2**14 + 2):
            yield b" " * 2**14

    assert ask(server, "PUT", PATH, pieces())[0] == 413


def test_bytes_that_are_no_http_do_not_stop_it(server):
    port = int(server.url.rsplit(":", 1)[1])
    for junk in (b"\x00" * 100, b"GET\r\n\r\n", b"PUT " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.sendall(junk)
    assert ask(server, "GET", "/health")[0] == 200


def test_the_number_of_registrations_is_bounded_and_ttl_follows_the_clock():
    clock = Clock()
    with serving(capacity=1, clock=clock) as server:
        assert ask(server, "PUT", PATH, BODY)[0] == 200
        status, answer = ask(server, "PUT", "/v1/engines/other/0", BODY)
        assert (status, answer["error"]) == (507, "the registry is full: 1 engines are registered")
        clock.now += 31
        assert ask(server, "GET", PATH)[0] == 404
        assert ask(server, "PUT", "/v1/engines/other/0", BODY)[0] == 200


def test_a_body_that_never_arrives_is_given_up(server, monkeypatch):
    monkeypatch.setattr("kvrooms.transport.registry_server._BODY_TIMEOUT_S", 0.05)
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(b"PUT " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert raw.recv(4096).startswith(b"HTTP/1.1 408")


def test_life_of_a_server():
    server = RegistryServer()
    server.close()
    assert server.url == ""
    url = server.start()
    assert url == server.url
    with pytest.raises(RuntimeError):
        server.start()
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(OSError, match="address already in use"):
        RegistryServer(port=port).start()
    server.close()
    server.close()
    with RegistryServer(port=port) as again:
        assert again.url == url
    assert not any(thread.name == "kvrooms-registry" for thread in threading.enumerate())


def test_the_advertised_host():
    with RegistryServer(host="0.0.0.0", advertise="node-7") as server:
        assert server.url.startswith("http://node-7:")
    assert RegistryServer(host="0.0.0.0")._advertise == socket.gethostname()


# -- client -----------------------------------------------------------------------------------------------------------


class Client(HttpRegistry):
    """The client, with a wait for results."""

    def __init__(self):
        self.woken = threading.Event()
        super().__init__(self.woken.set)

    def result(self, seconds=10.0):
        assert self.woken.wait(seconds)
        self.woken.clear()
        (one,) = self.poll()
        return one


@pytest.fixture
def client():
    one = Client()
    yield one
    one.close(2.0)
    assert not one._thread.is_alive()


def registered(server):
    return {(r["instance"], r["rank"]): r for r in ask(server, "GET", "/v1/engines")[1]["engines"]}


def test_lookup_finds_what_was_announced_with_and_without_a_name(server, client):
    one = registration()
    client.announce(server.url, one)
    until(lambda: registered(server))
    assert client.poll() == []
    ticket = client.lookup(server.url, "prefill-0", 0)
    assert client.result() == Resolved(ticket, one)
    ticket = client.lookup(server.url + "/", "", 0)
    assert client.result() == Resolved(ticket, one)
    client.withdraw(server.url, one)
    until(lambda: not registered(server))


def test_lookups_that_fail_say_why(server, client):
    why = {}
    for name, rank in (("nobody", 0), ("", 0), ("bad name", 0), ("a", -1)):
        ticket = client.lookup(server.url, name, rank)
        one = client.result()
        assert isinstance(one, Unresolved)
        assert one.ticket == ticket
        why[name] = one.why
    assert why["nobody"] == f"registry {server.url}: nobody rank 0 is not registered"
    assert "no engine is registered" in why[""]
    assert why["bad name"].startswith("instance:")
    assert why["a"].startswith("rank:")
    ask(server, "PUT", "/v1/engines/a/0", BODY)
    ask(server, "PUT", "/v1/engines/b/0", BODY)
    client.lookup(server.url, "", 0)
    assert "name one of: a, b" in client.result().why
    client.lookup("nonsense", "a", 0)
    assert client.result().why.startswith("bootstrap:")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_an_unreachable_registry_is_named(client):
    url = f"http://127.0.0.1:{free_port()}"
    client.lookup(url, "a", 0)
    why = client.result().why
    assert why.startswith(f"registry {url}: unreachable")


@contextmanager
def answering(*answers):
    """A server that gives one raw answer per connection and then hangs up; yields its URL and what it was sent."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    if answer is not None:
                        connection.sendall(answer)
                    else:
                        connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        thread.join(20)


def http_answer(body, status="200 OK", extra=b""):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
    return head + extra + b"\r\n" + body


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http_answer(b"hello"), "malformed answer: body: no JSON"),
        (http_answer(b"{}"), "malformed answer: instance"),
        (http_answer(values.encode_record(registration(rank=5), 1.0)), "about another engine"),
        (http_answer(values.encode_record(registration(instance="b"), 1.0)), "about another engine"),
        (http_answer(values.encode_record(registration(), 1.0)[:-1] + b',"x":1}'), "malformed answer: x"),
        (http_answer(b"x" * (values.MAX_BODY + 1)), "longer than"),
        (http_answer(b"oops", "500 Oops"), "HTTP status 500"),
        (http_answer(b'{"error":"\x1b[2J"}', "500 Oops"), "HTTP status 500"),
        (http_answer(b'{"error":"go\\u001b[2J"}', "503 Busy"), "go?[2J"),
        (http_answer(b"", "302 Found", b"Location: http://127.0.0.1:1/\r\n"), "HTTP status 302"),
        (http_answer(b"\x1f\x8b\x08", extra=b"Content-Encoding: gzip\r\n"), "malformed answer"),
        (b"nonsense\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
)
def test_a_hostile_registry_gets_no_further_than_words(client, answer, words):
    # A GET that was dropped without an answer is sent once more by the HTTP library.
    with answering(*([answer, answer] if answer == b"" else [answer])) as (url, _):
        client.lookup(url, "prefill-0", 0)
        why = client.result().why
    assert words in why
    assert why.isprintable()


def test_a_silent_registry_is_given_up(monkeypatch):
    monkeypatch.setattr("kvrooms.transport.registry_client._TOTAL_TIMEOUT_S", 0.2)
    client = Client()
    with answering(None) as (url, _):
        client.lookup(url, "a", 0)
        assert client.result().why == f"registry {url}: no answer within 0.2 s"
    client.close(2.0)


def test_a_registration_is_renewed_and_comes_back_after_the_registry_was_lost(client):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    one = registration(ttl_s=0.3)
    client.announce(url, one)
    time.sleep(0.15)  # the first tries find nobody
    for _ in range(2):
        with serving(port=port) as server:
            until(lambda: registered(server))
            end = time.monotonic() + 0.8
            while time.monotonic() < end:
                assert registered(server), "it expired although it is renewed every third of its time"
                time.sleep(0.05)


def test_a_later_announcement_takes_the_earlier_ones_place(server, client):
    client.announce(server.url, registration(incarnation=1, ttl_s=0.3))
    client.announce(server.url, registration(incarnation=2, ttl_s=0.3))
    until(lambda: registered(server).get(("prefill-0", 0), {}).get("incarnation") == f"{2:016x}")
    client.withdraw(server.url, registration(incarnation=1))
    client.withdraw(server.url, registration(instance="stranger"))
    time.sleep(0.5)
    assert registered(server)["prefill-0", 0]["incarnation"] == f"{2:016x}"
    client.withdraw(server.url, registration(incarnation=2))
    until(lambda: not registered(server))


def test_close_withdraws_what_is_announced_and_later_calls_are_answered(server):
    client = Client()
    client.announce(server.url, registration())
    until(lambda: registered(server))
    client.close(5.0)
    assert registered(server) == {}
    client.close(5.0)
    ticket = client.lookup(server.url, "a", 0)
    assert client.poll() == [Unresolved(ticket, f"registry {server.url}: this engine is closing")]
    client.announce(server.url, registration())
    client.withdraw(server.url, registration())


def test_close_does_not_wait_for_a_registry_that_hangs():
    client = Client()
    with answering(None, None) as (url, heard):
        client.announce(url, registration())
        client.lookup(url, "a", 0)
        until(lambda: len(heard) >= 1)
        start = time.monotonic()
        client.close(0.2)
        assert time.monotonic() - start < 2
        assert not client._thread.is_alive()
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))):
            pass


def test_announcing_nonsense_is_the_callers_error(client):
    for url, one, words in (
        ("nonsense", registration(), "bootstrap"),
        ("http://h:1", registration(instance="-"), "instance"),
        ("http://h:1", registration(rank=70_000), "rank"),
        ("http://h:1", registration(address="nowhere"), "address"),
        ("http://h:1", registration(ttl_s=0.0), "ttl_s"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            client.announce(url, one)


def test_many_lookups_at_once_are_all_answered(server, client):
    ask(server, "PUT", PATH, BODY)
    tickets = [client.lookup(server.url, "prefill-0", 0) for _ in range(200)]
    results = []
    until(lambda: results.extend(client.poll()) or len(results) == 200)
    assert sorted(one.ticket for one in results) == tickets
    assert all(isinstance(one, Resolved) for one in results)


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        registration().rank = 3
    assert msgspec.structs.replace(registration(), rank=3).rank == 3
