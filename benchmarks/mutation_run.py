"""Run the tests against mutants: a pytest plugin that forks for each mutant, and the slow way beside it.

Both read a job (`MUTATION_JOB`, JSON): folder, modules, keys of the mutants to run, where to write. Each writes one
JSON line per mutant.
"""

from __future__ import annotations

import gc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mutation_source import Mutant, clear_caches, functions_in, mutants_of, put_in_place, set_defaults, with_mutant

JOB: dict[str, Any] = json.loads(Path(os.environ["MUTATION_JOB"]).read_text())
FOLDER: str = JOB["folder"]
SURVIVED, KILLED = 0, 1
MEMORY = 3 << 30  # bytes that a mutant may reserve beyond what this process has reserved by then

Place = tuple[str, str]  # the file of a function, and its qualified name without what is local to it


def place(code: CodeType) -> Place:
    """Which function the code belongs to."""
    return code.co_filename, code.co_qualname.partition(".<locals>")[0].removesuffix(".<lambda>")


class Reached:
    """The functions under the folder that are called while it is on."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    @property
    def places(self) -> set[Place]:
        """Which functions they are."""
        return {place(code) for code in self.codes if code.co_filename.startswith(FOLDER)}

    def __call__(self, frame: FrameType, *_: object) -> None:
        self.codes.add(frame.f_code)

    def __enter__(self) -> Reached:
        sys.settrace(self)
        threading.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


ON_IMPORT = Reached()


def wanted() -> list[tuple[Place, Mutant]]:
    """The mutants of this job, with the place of each."""
    keys = set(JOB["keys"])
    return [
        ((path, mutant.function), mutant)
        for module, path in JOB["modules"].items()
        for mutant in mutants_of(Path(path), module)
        if mutant.key in keys
    ]


def write(mutant: Mutant, status: str, by: str = "", seconds: float = 0.0) -> None:
    """Add a line to the results."""
    with Path(JOB["results"]).open("a") as out:
        line = {"key": mutant.key, "name": mutant.name, "status": status, "by": by, "seconds": round(seconds, 3)}
        print(json.dumps(line), file=out)


def quiet() -> None:
    """What a mutant prints is of no interest."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def bound_memory() -> None:
    """Let what a mutant reserves without end fail. Some tests reserve gigabytes on import, which is not its doing."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit(cpu: float, wall: float) -> None:
    """End this process by a signal after so many seconds: what a mutant does that never ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


# -- forked after everything was imported ----------------------------------------------------------------------------


def pytest_configure() -> None:
    """What runs from here to the end of the collection runs on import."""
    ON_IMPORT.__enter__()


def pytest_runtestloop(session: Any) -> bool:
    """Instead of the tests: one run to see what each reaches, then a process for each mutant."""
    ON_IMPORT.__exit__()
    assert not session.testsfailed, "the tests cannot be collected"
    import kvrooms

    assert str(kvrooms.__file__).startswith(FOLDER.rstrip("/")), kvrooms.__file__
    items = {item.nodeid: item for item in session.items}
    reach = baseline(session.items)
    by_place: dict[Place, list[str]] = defaultdict(list)
    for nodeid in sorted(reach, key=lambda nodeid: reach[nodeid][0]):
        for where in reach[nodeid][1]:
            by_place[where].append(nodeid)
    functions = functions_in(FOLDER)
    kills: Counter[tuple[Place, str]] = Counter()
    sound: dict[str, bool] = {}
    imported = ON_IMPORT.places
    gc.collect()
    gc.freeze()
    for where, mutant in wanted():
        if where in imported:
            write(mutant, "on import")
            continue
        if not by_place[where]:
            write(mutant, "no test")
            continue
        started = time.monotonic()
        while True:
            tests = [nodeid for nodeid in by_place[where] if sound.get(nodeid, True)]
            tests = within_budget(sorted(tests, key=lambda t: (-kills[where, t], reach[t][0])), reach)
            status, by = in_fork(mutant, functions[where], [(items[t], reach[t][0]) for t in tests])
            if by and by not in sound:  # does it pass in a fork where nothing is changed?
                sound[by] = in_fork(None, [], [(items[by], reach[by][0])])[0] == "survived"
            if sound.get(by, True):
                break
            print(f"left out because it fails alone: {by}", flush=True)
        if by:
            kills[where, by] += 1
        write(mutant, status, by, time.monotonic() - started)
    return True


def within_budget(tests: list[str], reach: dict[str, tuple[float, list[Place]]]) -> list[str]:
    """As many of the tests as the budget of a mutant allows, the first of them in any case."""
    left, chosen = float(JOB["budget"]), []
    for test in tests:
        left -= reach[test][0]
        if chosen and left < 0:
            break
        chosen.append(test)
    return chosen


def run_item(item: Any, following: Any) -> bool:
    """Whether the test passes."""
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def baseline(items: list[Any]) -> dict[str, tuple[float, list[Place]]]:
    """For each test that passes without a mutant: its CPU seconds, and what it reaches. In a process of its own."""
    path = Path(JOB["results"]).with_suffix(".reach")
    pid = os.fork()
    if not pid:
        quiet()
        bound_memory()
        found, failing = {}, []
        for i, item in enumerate(items):
            before = time.process_time()
            with Reached() as reached:
                passed = run_item(item, items[i + 1] if i + 1 < len(items) else None)
            if passed:
                found[item.nodeid] = (time.process_time() - before, sorted(reached.places))
            else:
                failing.append(item.nodeid)
        path.write_text(json.dumps([found, failing]))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the tests do not run without a mutant"
    found, failing = json.loads(path.read_text())
    total = sum(seconds for seconds, _ in found.values())
    print(f"\n{len(found)} tests, {total:.1f} s CPU; left out because they fail here: {failing}")
    return {test: (s, [(file, name) for file, name in places]) for test, (s, places) in found.items()}


def in_fork(mutant: Mutant | None, functions: list[Any], tests: list[tuple[Any, float]]) -> tuple[str, str]:
    """Run the tests in a fork of this process in which the functions run the mutant's code; None: their own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        quiet()
        bound_memory()
        clear_caches(FOLDER)
        if mutant is not None:
            put_in_place(mutant, functions)
        for i, (item, seconds) in enumerate(tests):
            limit(1 + 4 * seconds, 20 + 40 * seconds)
            if not run_item(item, tests[i + 1][0] if i + 1 < len(tests) else None):
                os.write(writer, item.nodeid.encode())
                os._exit(KILLED)
        os._exit(SURVIVED)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        by = stream.read().decode()
    return outcome(os.waitpid(pid, 0)[1]), by


def outcome(status: int) -> str:
    """The word for how a process has ended."""
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "killed"
    return "killed" if os.WEXITSTATUS(status) else "survived"


# -- forked before anything of kvrooms was imported ------------------------------------------------------------------


def cold() -> None:
    """Every mutant of the job in a process that imports kvrooms and the tests with the mutant in place."""
    import hypothesis  # noqa: F401
    import msgspec  # noqa: F401
    import numpy as np  # noqa: F401
    import pytest
    import torch  # noqa: F401

    def tested(mutant: Mutant | None = None, path: str = "") -> str:
        pid = os.fork()
        if not pid:
            quiet()
            bound_memory()
            limit(JOB["budget"], 6 * JOB["budget"])
            if mutant is not None:
                on_import(mutant, path)
            os._exit(int(pytest.main([*JOB["pytest"], "-x", "-q"])))
        return outcome(os.waitpid(pid, 0)[1])

    assert tested() == "survived", "a test fails, or takes too long, without a mutant"
    for (path, _), mutant in wanted():
        started = time.monotonic()
        write(mutant, tested(mutant, path), "", time.monotonic() - started)


def on_import(mutant: Mutant, path: str) -> None:
    """Let the module of the mutant come into being with the mutant in it."""
    loader = importlib.machinery.SourceFileLoader
    get_code, exec_module = loader.get_code, loader.exec_module

    def changed(self: Any, fullname: str) -> Any:
        code = get_code(self, fullname)
        return with_mutant(code, mutant) if self.path == path and code else code

    def executed(self: Any, module: Any) -> None:
        exec_module(self, module)
        if self.path == path and mutant.defaults is not None:
            for function in functions_in(path).get((path, mutant.function), []):
                set_defaults(mutant, function)

    loader.get_code, loader.exec_module = changed, executed  # type: ignore[method-assign]


if __name__ == "__main__":
    cold()
