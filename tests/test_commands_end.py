"""How commands and their processes end on SIGTERM and SIGINT: the first signal drains, the second ends at once."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvrooms.engine import draining
from kvrooms.engine.ending import status_of
from kvrooms.engine.host import Drained
from kvrooms.soak.ranks import run as shapes

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60
PYTHON = [sys.executable, "-P"]


class Command:
    """A process that is told to end, and everything that descends from it."""

    def __init__(self, arguments: list[str], folder: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder), "NIXL_LOG_LEVEL": "FATAL", **environment},
        )  # fmt: skip
        self.folder = folder
        self.said: list[str] = []
        self.handles: dict[int, int] = {}
        self.shared: set[str] = set()

    def says(self, words: str) -> None:
        """Wait until it has said that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if words in line:
                return
        raise AssertionError(f"{words!r} was never said: {''.join(self.said)}")

    def look(self) -> None:
        """Remember who belongs to it, and the shared memory with a name that they use."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):  # some end by themselves when they have done their part
                self.handles[pid] = os.pidfd_open(pid)
                self.shared |= shared_memory(pid)

    def tell(self, sign: signal.Signals, *, everybody: bool = False) -> None:
        """Send a signal to it, or to all processes that belong to it, as a service manager does."""
        signal.pidfd_send_signal(self.handles[self.process.pid], sign)
        for handle in [handle for pid, handle in self.handles.items() if everybody and pid != self.process.pid]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, sign)

    def ended(self) -> tuple[int, list[str]]:
        """Its status and last lines, once it has ended; nothing of it is left."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        self.said += out.splitlines(keepends=True)
        for pid, handle in self.handles.items():
            assert select.select([handle], [], [], LIMIT_S)[0], f"process {pid} is still there: {''.join(self.said)}"
        assert not [path for path in self.folder.iterdir() if not path.name.startswith("torchinductor")]  # torch's own
        assert not [path for path in self.shared if Path(path).exists()]
        return self.process.returncode, [line.rstrip("\n") for line in self.said]

    def close(self) -> None:
        """End what is left."""
        for handle in self.handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self.process.kill()
        self.process.communicate()


def descendants(pid: int) -> list[int]:
    """All processes that descend from one."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended has none
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def shared_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process maps and that still have their names."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}
    return {path for path in paths if not path.endswith("(deleted)")}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Any]:
    started: list[Command] = []

    def start(*arguments: str, **environment: str) -> Command:
        started.append(Command(list(arguments), tmp_path, **environment))
        return started[-1]

    yield start
    for command in started:
        command.close()


# -- the decision itself ---------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
from kvrooms.engine.ending import CutOff, Ending, status_of
me, signs = os.getpid(), [getattr(signal, name) for name in sys.argv[1:]]
with Ending() as ending:
    ending.at_once.append(lambda: print("at once", flush=True))
    try:
        for sign in signs[:2]:
            os.kill(me, sign)
            print("asked", ending.asked.name, ending.wait().name, flush=True)
    except CutOff as error:
        print(error, flush=True)
        for sign in signs[2:]:
            os.kill(me, sign)
        sys.exit(status_of(error.sign))
print([signal.getsignal(sign) is before for sign, before in
    ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler))])
"""


GIVING_UP = """
import os, signal, sys
from kvrooms.engine.ending import CutOff, GivingUp, status_of
me, signs = os.getpid(), [getattr(signal, name) for name in sys.argv[1:]]
with GivingUp(at_first=lambda: print("at first", flush=True)) as ending:
    ending.at_once.append(lambda: print("at once", flush=True))
    try:
        try:
            os.kill(me, signs[0])
        finally:
            for sign in signs[1:2]:
                os.kill(me, sign)
    except CutOff as error:
        print(error, ending.asked.name, flush=True)
        for sign in signs[2:]:
            os.kill(me, sign)
        sys.exit(status_of(error.sign))
"""


@pytest.mark.parametrize(
    ("signs", "status", "said"),
    [
        (["SIGINT"], 130, ["at first", "given up, SIGINT SIGINT"]),
        (["SIGTERM", "SIGINT"], 130, ["at first", "at once", "ended at once by a second signal, SIGINT SIGTERM"]),
        (
            ["SIGINT", "SIGINT", "SIGTERM"],
            143,
            ["at first", "at once", "ended at once by a second signal, SIGINT SIGINT"],
        ),
    ],
)
def test_where_nothing_can_be_drained_the_first_signal_gives_up(signs: list[str], status: int, said: Any) -> None:
    command = [*PYTHON, "-c", GIVING_UP, *signs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (status, said), done.stderr


@pytest.mark.parametrize(
    ("signs", "status", "said"),
    [
        (["SIGTERM"], 0, ["asked SIGTERM SIGTERM", "[True, True]"]),
        (["SIGINT"], 0, ["asked SIGINT SIGINT", "[True, True]"]),
        (["SIGTERM", "SIGINT"], 130, ["asked SIGTERM SIGTERM", "at once", "ended at once by a second signal, SIGINT"]),
        (
            ["SIGINT", "SIGINT", "SIGTERM"],
            143,
            ["asked SIGINT SIGINT", "at once", "ended at once by a second signal, SIGINT"],
        ),
    ],
)
def test_the_first_signal_asks_the_second_cuts_off_the_third_leaves(signs: list[str], status: int, said: Any) -> None:
    done = subprocess.run([*PYTHON, "-c", SCRIPT, *signs], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (status, said), done.stderr


STARTING = """
import signal, sys, threading
from kvrooms.engine.ending import CutOff, GivingUp, undisturbed
now = threading.Event()
other = threading.Thread(target=lambda: now.wait() and sys.argv[1:] and signal.raise_signal(signal.SIGTERM))
other.start()
with GivingUp(at_first=lambda: print("kill what was started", flush=True)):
    try:
        with undisturbed():
            if not sys.argv[1:]:
                signal.raise_signal(signal.SIGTERM)
            now.set()
            other.join()
            print("started", flush=True)
    except CutOff:
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
"""


@pytest.mark.parametrize("thread", [(), ("in another thread",)])
def test_a_worker_that_is_being_started_when_a_signal_comes_is_known_to_who_ends_it(thread: tuple[str, ...]) -> None:
    command = [*PYTHON, "-c", STARTING, *thread]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout.splitlines() == ["started", "kill what was started", "set()"], done.stderr


def test_statuses_are_those_a_shell_shows() -> None:
    assert (status_of(signal.SIGTERM), status_of(signal.SIGINT)) == (143, 130)


def test_what_became_of_the_rooms_is_said_in_words() -> None:
    many = tuple(f"<room {n}>" for n in range(9))
    found = {"b": Drained(1, 9, many, 2), "a": Drained(5, 0, (), 0)}
    assert draining.words(found) == [
        "a has drained: 5 rooms done, 0 failed",
        "b has drained: 1 rooms done, 9 failed, 9 of them aborted when time was up: "
        + ", ".join(many[:8])
        + ", ...; the memory of 2 may still be written by a peer",
    ]


# -- a process with engines ------------------------------------------------------------------------------------------

WORKER = """
import sys, numpy as np
from kvrooms import Buffer, DecodeEngine, EngineClosed, Memory, PrefillEngine
from kvrooms.engine.draining import Drainer, words
def report(found):
    print(*words(found), sep="\\n", flush=True)
drainer = Drainer(report)
sides = [Memory(page_size=4, kv=[Buffer(0, "kv", np.zeros((8, 64), np.uint8))]) for _ in range(2)]
prefill, decode = PrefillEngine(sides[0], name="worker-p"), DecodeEngine(sides[1], name="worker-d")
rooms = [decode.open(n, bootstrap=prefill.bootstrap, pages=[n]) for n in (1, 2)]
sender, silent = (prefill.open(n) for n in (1, 2))
while "METADATA" in (sender.phase, silent.phase, rooms[0].phase, rooms[1].phase):
    pass
print("ready", flush=True)
if sys.argv[1] == "parent":
    sys.stdin.read(1)
    drainer.ask()
while True:
    try:
        decode.release(decode.hold(3, bootstrap=prefill.bootstrap))
    except EngineClosed:
        break
print("refused", flush=True)
sender.send([5], last=True)  # the process's own work goes on meanwhile
sender.wait(30)
drainer.finish()
print("never", flush=True)
"""


def worker(commands: Any, limit_s: float, who: str = "signal") -> Command:
    command: Command = commands("-c", WORKER, who, KVROOMS_DRAIN_TIMEOUT_S=str(limit_s))
    command.says("ready")
    command.look()
    return command


@pytest.mark.nixl
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_process_with_engines_lets_open_rooms_end_and_reports_the_rest(commands: Any, sign: signal.Signals) -> None:
    command = worker(commands, 1.5)
    command.tell(sign)
    status, said = command.ended()
    assert status == status_of(sign)
    assert said[1] == "refused"
    assert len(said) == 4
    lines = [line.partition(", 1 of them aborted when time was up: ") for line in sorted(said[2:])]
    assert [before for before, _, _ in lines] == [
        f"worker-{side} has drained: 1 rooms done, 1 failed" for side in ("d", "p")
    ]
    late = {after for _, _, after in lines if after}
    assert late, "both run out of time together; whoever is first tells the other"
    assert late <= {f"<{side}Room room 2 KV>" for side in ("Prefill", "Decode")}


@pytest.mark.nixl
def test_a_process_that_its_parent_asks_to_drain_ends_with_status_0() -> None:
    with subprocess.Popen(
        [*PYTHON, "-c", WORKER, "parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "KVROOMS_DRAIN_TIMEOUT_S": "0.5"},
    ) as process:  # fmt: skip
        out, _ = process.communicate("x", timeout=LIMIT_S)
    assert process.returncode == 0
    assert "worker-p has drained: 1 rooms done, 1 failed" in out


@pytest.mark.nixl
def test_a_second_signal_ends_a_process_with_engines_while_it_drains(commands: Any) -> None:
    command = worker(commands, 1000)
    command.tell(signal.SIGTERM)
    command.says("refused")
    command.tell(signal.SIGTERM)
    status, said = command.ended()
    assert status == 143
    assert not [line for line in said if "has drained" in line]


# -- the commands ----------------------------------------------------------------------------------------------------

BENCH = ("-m", "kvrooms", "bench", "--json", "--quick", "--room", "4KiB", "--room", "64MiB")
FUZZ = ("-m", "kvrooms", "fuzz", "--json", "--inputs", "0", "--messages", "1000")
INPUTS = ("-c", """
import sys
from kvrooms.fuzz import run
run._SAY_EVERY_S = 0
if __name__ == "__main__":
    sys.exit(run.main(run.FuzzOptions(inputs=10**8, messages=0, json=True)))
""")  # fmt: skip
SOAK = ("-m", "kvrooms", "soak", "--json", "--rooms", "100000", "--fault-rate", "0")
DEMO = ("-m", "kvrooms", "demo", "--json", "--model", "dense")


WHOM = pytest.mark.parametrize(
    "everybody", [pytest.param(False, id="the command", marks=pytest.mark.deep), pytest.param(True, id="everybody")]
)


SEARCH = """
import threading
from kvrooms.harness.explore.run import explore
def stay(line):
    print("searching", flush=True)
    threading.Event().wait()
if __name__ == "__main__":
    explore(["fault-1"], scope="quick", workers=2, progress=stay)
"""


def report_of(said: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(next(line for line in reversed(said) if line.startswith("{")))
    return report


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_the_workers_of_a_search_end_with_it(commands: Any, sign: signal.Signals) -> None:
    command = commands("-c", SEARCH)
    command.says("searching")
    command.look()
    assert len(command.handles) >= 3, "itself and two workers; beside them Python's own keeper of semaphores"
    command.tell(sign)
    assert command.ended()[0] == -sign


@pytest.mark.nixl
@WHOM
def test_bench_drains_and_reports_what_it_had(commands: Any, everybody: bool) -> None:
    command = commands(*BENCH)
    command.says("4KiB, 1 in flight")
    command.look()
    assert len(command.handles) == 3
    command.tell(signal.SIGTERM, everybody=everybody)
    status, said = command.ended()
    report = report_of(said)
    assert status == 143, said
    assert report["interrupted"] == "SIGTERM"
    assert [row["in_flight"] for row in report["results"]][:1] == [1]
    assert set(report["drained"]) == {"bench-prefill", "bench-decode"}, said
    assert not any("Traceback" in line for line in said)


@pytest.mark.nixl
@WHOM
def test_a_demo_drains_its_rooms(commands: Any, everybody: bool) -> None:
    command = commands(*DEMO)
    command.says("decode: KV")  # the first room moves
    command.look()
    assert 4 <= len(command.handles) <= 5, "the reference may have answered and ended before the first room moves"
    command.tell(signal.SIGTERM, everybody=everybody)
    status, said = command.ended()
    report = report_of(said)
    assert status == 143, said
    assert report["errors"] == ["interrupted by SIGTERM"]
    # Prefill may have sent all that it had, and closed its engine, when the signal finds it.
    assert {"decode-dense"} <= set(report["drained"]) <= {"prefill-dense", "decode-dense"}
    for drained in report["drained"].values():  # a room that was over and closed by then is not counted
        assert (drained["failed"], drained["aborted"], drained["held"]) == (0, [], 0), report["drained"]


@pytest.mark.nixl
@WHOM
def test_a_live_attack_ends_early_and_honest_rooms_drain(commands: Any, everybody: bool) -> None:
    command = commands(*FUZZ)
    command.says("500 of 1,000 messages")
    command.look()
    assert len(command.handles) == 4
    command.tell(signal.SIGTERM, everybody=everybody)
    status, said = command.ended()
    report = report_of(said)
    assert status == 143, said
    assert report["honest_rooms" if not everybody else "messages"] > 0
    assert report["honest_failed"] == 0
    assert report["errors"] == []
    assert set(report["drained"]) == {"honest", "honest-decode"}, said
    assert report["ok"] is False, "it was cut short"


@pytest.mark.nixl
def test_a_soak_of_which_every_process_is_told_to_end_ends_with_its_report(commands: Any) -> None:
    command = commands(*SOAK)
    command.says("rooms:")
    command.look()
    assert len(command.handles) == 7
    command.tell(signal.SIGTERM, everybody=True)
    status, said = command.ended()
    assert status == 0, said
    assert report_of(said)["ok"] is True


@pytest.mark.nixl
def test_a_soak_ends_with_its_report_when_one_of_its_engines_is_told_to(commands: Any) -> None:
    command = commands(*SOAK)
    command.says("rooms:")
    command.look()
    signal.pidfd_send_signal(command.handles[max(command.handles)], signal.SIGTERM)
    status, said = command.ended()
    assert status == 0, said
    assert any("was told to end by SIGTERM: no more rooms begin" in line for line in said)


@pytest.mark.nixl
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(SOAK, "rooms:", id="soak"),
        pytest.param(INPUTS, "0,000 of 100,000,000 inputs", id="inputs"),
        pytest.param(BENCH, "4KiB, 1 in flight", id="bench", marks=pytest.mark.deep),
        pytest.param(FUZZ, "of 1,000 messages", id="fuzz", marks=pytest.mark.deep),
    ],
)
def test_a_second_signal_ends_a_command_at_once(commands: Any, arguments: tuple[str, ...], words: str) -> None:
    command = commands(*arguments)
    command.says(words)
    command.look()
    command.tell(signal.SIGTERM)
    command.says("a second one ends at once")
    command.tell(signal.SIGINT)
    status, said = command.ended()
    assert status == 130, said
    assert report_of(said)
    assert not any("Traceback" in line for line in said)


CONFORMANCE = ("-m", "kvrooms", "conformance", "kvrooms", "--json")
VERIFY = ("-m", "kvrooms", "verify", "--quick", "--json")


def in_order(said: list[str]) -> bool:
    """Whether nothing that was said is a fault of whoever ended."""
    return not any(words in line for line in said for words in ("Traceback", "Warning", "Error", "leaked"))


@pytest.mark.nixl
@pytest.mark.parametrize(
    ("sign", "everybody"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, True)]
)
def test_the_conformance_suite_ends_its_subject_and_knows_nothing_of_the_rest(
    commands: Any, sign: signal.Signals, everybody: bool
) -> None:
    command = commands(*CONFORMANCE, "--property", "SMOKE", "--property", "L1")
    command.says("SMOKE  holds")
    command.look()
    command.tell(sign, everybody=everybody)
    status, said = command.ended()
    report = report_of(said)
    assert status == status_of(sign), said
    assert report["ok"] is False
    assert {one["id"]: one["ok"] for one in report["properties"]} == {"SMOKE": True, "L1": None}
    assert in_order(said), "\n".join(said)


def test_a_search_for_a_proof_ends_with_its_processes(commands: Any) -> None:
    command = commands(*VERIFY)
    command.says("explored")
    command.look()
    assert len(command.handles) >= 3
    command.tell(signal.SIGTERM, everybody=True)
    status, said = command.ended()
    assert status == 143, said
    assert report_of(said) == {"ok": False, "interrupted": "SIGTERM"}
    assert in_order(said), "\n".join(said)


DEAF = """
import os, sys, threading
from types import SimpleNamespace
from importlib import import_module
from kvrooms.harness import verify as harness
from kvrooms.harness.evidence import Tally
from kvrooms.harness.simulate import run as simulation
def several(seed):
    os.write(1, b"deaf\\n")
    threading.Event().wait()
simulation._several = several
harness.canary = lambda: None
harness.explore = lambda **_: SimpleNamespace(tally=Tally())
command = import_module("kvrooms.cli.verify")
sys.exit(command.main(scope="quick", minutes=None, json=True, workers=2))
"""
DEAF_TO_MUTANTS = """
import subprocess, sys
from kvrooms.engine.ending import CutOff, GivingUp, status_of
from kvrooms.harness.mutants import run
class Deaf(run._Zygote):
    def __init__(self):
        text = "import os, sys, threading; sys.stdin.readline(); os.write(2, b'deaf\\\\n'); threading.Event().wait()"
        command = [sys.executable, "-c", text]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
run._Zygote = Deaf
with GivingUp():
    try:
        run.run_mutants(scope="quick")
    except CutOff as error:
        print('{"ok": false, "interrupted": "%s"}' % error.sign.name)
        sys.exit(status_of(error.sign))
"""


@pytest.mark.parametrize("text", [DEAF, DEAF_TO_MUTANTS], ids=["simulation", "mutants"])
def test_workers_that_would_go_on_for_ever_do_not_hold_up_the_end(commands: Any, text: str) -> None:
    command = commands("-c", text)
    for _ in range(2):
        command.says("deaf")
    command.look()
    assert len(command.handles) == 3
    command.tell(signal.SIGTERM)
    status, said = command.ended()
    assert status == 143, said
    assert report_of(said)["interrupted"] == "SIGTERM"
    assert in_order(said), "\n".join(said)


@pytest.mark.nixl
def test_shapes_that_were_not_run_are_named_and_cut_short(commands: Any) -> None:
    command = commands("-m", "kvrooms", "soak", "--shape", "all")
    command.says("identical")
    command.look()
    command.tell(signal.SIGTERM)
    status, said = command.ended()
    report = report_of(said)
    assert status == 143, said
    assert report["shapes"]
    assert report["not_run"]
    assert not report["ok"]
    assert in_order(said), "\n".join(said)


@pytest.mark.parametrize(("left", "status"), [([], 0), (["mha-tp1-1"], 143)])
def test_a_signal_after_which_nothing_was_left_out_cuts_nothing_short(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {"ok": not left, "not_run": left}

    monkeypatch.setattr(shapes, "soak", told)
    assert shapes.main(shapes.ShapeOptions()) == status


def test_a_second_signal_ends_a_demo_at_once(commands: Any) -> None:
    deaf = [*PYTHON, "-c", "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"]
    says = {
        "registry": '{"bootstrap": "http://127.0.0.1:1"}',
        "prefill": '{"event": "ready", "urls": {}, "transport": ""}',
    }
    nothing = '{"event": "sent", "request": "dense-0", "chunks": 0, "total": 0, "pages": 0}'
    children = {name: [*deaf, says.get(name, nothing)] for name in ("registry", "prefill", "decode", "reference")}
    text = (
        "import sys\nfrom kvrooms.demo.run import DemoOptions, main\n"
        f"sys.exit(main(DemoOptions(requests=1), instead={children!r}))\n"
    )
    command = commands("-c", text)
    command.says("prefill serves")
    command.look()
    command.tell(signal.SIGINT)
    command.says("a second one ends at once")
    command.tell(signal.SIGTERM)
    status, said = command.ended()
    assert status == 143
    assert report_of(said)["errors"][0] == "ended at once by a second signal, SIGTERM"


def test_a_registry_ends_in_order_and_at_a_second_signal_at_once(commands: Any) -> None:
    command = commands("-m", "kvrooms", "bootstrap")
    command.says("bootstrap")
    command.look()
    command.tell(signal.SIGTERM)
    assert command.ended()[0] == 0
    text = (
        "import sys, threading\nfrom importlib import import_module\n"
        "bootstrap = import_module('kvrooms.cli.bootstrap')\n"
        "from kvrooms.transport.registry import RegistryServer\n"
        "def close(self):\n    print('closing', flush=True)\n    threading.Event().wait()\n"
        "RegistryServer.close = close\n"
        "sys.exit(bootstrap.main('127.0.0.1', 0, advertise=None, max_registrations=1, quiet=True))"
    )
    command = commands("-c", text)
    command.says("bootstrap")
    command.look()
    command.tell(signal.SIGTERM)
    command.says("closing")
    command.tell(signal.SIGINT)
    assert command.ended()[0] == 130
