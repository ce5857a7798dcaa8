"""The command line, in processes of its own."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

KVROOMS = str(Path(sys.executable).with_name("kvrooms"))


def run(*arguments, env=None):
    return subprocess.run(
        [KVROOMS, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=env,
        check=False,
    )


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "kvrooms 0.1.0\n")


@pytest.mark.parametrize("command", [[], ["bootstrap"], ["demo"], ["bench"], ["spec"]])
def test_help_needs_neither_torch_nor_nixl(command):
    code = (
        "import sys; sys.argv = ['kvrooms', *sys.argv[1:]]; from kvrooms.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'nixl', 'transformers', 'numpy', 'aiohttp'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: kvrooms" in done.stdout


def test_a_module_run_is_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "kvrooms", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "kvrooms 0.1.0\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["bootstrap", "--port", "70000"],
        ["bootstrap", "--max-registrations", "0"],
        ["demo", "--requests", "0"],
        ["bench", "--runs", "none"],
    ],
)
def test_a_wrong_argument_is_status_2_with_nothing_on_standard_output(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("quiet", [False, True])
def test_bootstrap_says_where_it_is_serves_and_ends_on_a_signal(number, quiet):
    command = [KVROOMS, "bootstrap", *(["--json"] if quiet else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads(process.stdout.readline())["bootstrap"]
            assert url.startswith("http://127.0.0.1:")
            connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=10)
            connection.request("GET", "/health")
            assert json.loads(connection.getresponse().read()) == {"ok": True, "registrations": 0}
            connection.close()
        finally:
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == ""
    assert (err == "") is quiet


def test_bootstrap_on_a_port_in_use_says_so():
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run("bootstrap", "--port", str(other.getsockname()[1]))
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot serve on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_fits_a_pipe_without_colours():
    done = run("--help", env={**os.environ, "TERM": "dumb", "NO_COLOR": "1"})
    assert "\x1b" not in done.stdout
