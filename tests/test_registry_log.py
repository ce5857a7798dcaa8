"""What a registry logs: strangers cannot fill a log, nor hide in it what went wrong in the registry itself."""

from __future__ import annotations

import http.client
import logging
import socket
from collections.abc import Iterator

import pytest

from kvrooms.transport.registry import RegistryServer
from kvrooms.transport.registry_log import NowAndThen

pytestmark = pytest.mark.timeout(60)
LOG = "kvrooms.registry.http"
JUNK = [
    b"GET / HTTP/1.1\r\n\r\n",  # no host
    b"GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


def told(server: RegistryServer, *pieces: bytes) -> bytes:
    """The answer to raw bytes, up to its end."""
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        for piece in pieces:
            raw.sendall(piece)
        answer = b""
        try:
            while data := raw.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
    return answer


def test_bad_requests_are_warnings_of_one_line_and_ever_rarer(
    server: RegistryServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(LOG), "filters", [NowAndThen()])
    for n in range(39):
        told(server, JUNK[n % len(JUNK)])
    seen = [record for record in caplog.records if record.name == LOG]
    assert [record.levelno for record in seen] == [logging.WARNING] * 6  # 1, 2, 4, 8, 16, 32
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in seen)
    assert "(32 so far)" in seen[-1].getMessage()
    assert "Invalid char in url path" in seen[1].getMessage(), "it says what is wrong"


def test_refused_requests_are_counted_and_bad_ones_logged_ever_more_rarely(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(LOG), "filters", [NowAndThen()])
    end = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    bearer = end + b"Authorization: Bearer secret\r\n"
    with RegistryServer(token="secret") as server:
        for _ in range(2):
            assert told(server, b"GET /v1/engines" + end + b"\r\n").startswith(b"HTTP/1.1 401")
            body = b"Content-Length: 4\r\n\r\n{bad"
            assert told(server, b"PUT /v1/engines/x/0" + bearer + body).startswith(b"HTTP/1.1 400")
            assert told(server, b"GET /nowhere" + bearer + b"\r\n").startswith(b"HTTP/1.1 404")
        before = len(caplog.records)
        assert told(server, b"GET /v1/engines/x/0" + bearer + b"\r\n").startswith(b"HTTP/1.1 404"), "not there yet"
        assert server.refusals == {401: 2, 400: 2, 404: 3}
        assert len(caplog.records) == before, "that is nobody's fault"
    seen = [record for record in caplog.records if record.name == LOG]
    assert [record.levelno for record in seen] == [logging.WARNING] * 3  # 1, 2, 4
    assert "401: this registry must be asked with its token" in seen[0].getMessage()
    assert all(record.exc_info is None and "secret" not in record.getMessage() for record in seen)


def test_a_body_that_says_it_is_compressed_is_a_bad_request(
    server: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"
    assert told(server, b"PUT /v1/engines/a/0" + body).startswith(b"HTTP/1.1 400")
    assert told(server, b"GET /health" + body).startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_who_hangs_up_in_the_middle_of_a_body_is_no_error(
    server: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.sendall(b"PUT /v1/engines/x/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert told(server, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_fault_of_its_own_stays_an_error(
    server: RegistryServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of the table")

    monkeypatch.setattr("kvrooms.transport.registry_table.RegistryTable.get_only", broken)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request("GET", "/v1/engines/-/0")
    assert connection.getresponse().status == 500
    connection.close()
    (record,) = [record for record in caplog.records if record.name == LOG]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a fault of the table"
