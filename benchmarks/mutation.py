"""Mutation testing of protocol/ and statemachine/ with mutmut: which small changes of the code do the tests not notice?

    make mutation                                        # everything; what was killed before is not run again
    make mutation MUTATION_ARGS="'kvrooms.statemachine.*'"   # what matches these patterns
    .venv/bin/python benchmarks/mutation.py report           # figures and survivors, from what was run so far
    .venv/bin/python benchmarks/mutation.py show NAME        # one mutant as a diff

mutmut runs in a copy under build/mutation, because it needs the installed shape of the package and rewrites sources:

- Every mutant gets a process that has imported nothing of kvrooms: the tables are built when their modules are
  imported, and a process that was forked afterwards would run the tables of the code without the mutant.
- For the same reason each test counts as one that reaches the functions that build the tables.
- mutmut leaves decorated functions alone; in the copy, `@property` becomes `name = property(name)`. Cached properties
  stay as they are, without mutants.
- Hypothesis does not shrink here: one failure is enough.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "mutation"
SITE = BUILD / "site"
PROJECT = BUILD / "project"
MUTMUT = "mutmut==3.8.1"
WORDS = {
    0: "survived",
    33: "no test",
    36: "timeout",
    24: "timeout",
    -24: "timeout",
    152: "timeout",
    255: "error",
    None: "not run",
}
MUTATED = ("statemachine", "protocol")

# In the order in which they run: the first failure ends a mutant, so what is fast and near comes first.
NEAR = "errors ledger tables leases intervals identity notify failure_status rooms spec manifest manifest_refusals"
FAR = "wire memory_layout plan engine_handshake engine_hostile explore_counts explore_properties registry security"
TESTS = f"{NEAR} {FAR}".split()
# Tests that run a planted mistake, or the product as another process, say nothing about the mutant.
LEFT_OUT = "not mutant and not dies and not breaks_its_property and not find_it and not worth and not every_run"

PYPROJECT = """\
[project]
name = "kvrooms"
version = "0"

[tool.pytest.ini_options]
addopts = [
    "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:kvrooms", "-m", "not deep and not nixl and not slow",
]
pythonpath = ["tests", "."]
timeout = 20
timeout_method = "thread"
markers = ["deep: long", "nixl: real NIXL", "slow: long"]

[tool.mutmut]
source_paths = ["kvrooms"]
only_mutate = {only}
also_copy = ["tests", "docs", "README.md"]
process_isolation = "forkserver"
forkserver_warmup = "import"
preload_modules_file = "preload.txt"
use_setproctitle = false
use_git_change_detection = false
track_dependencies = false
timeout_multiplier = 1.5
timeout_constant = 6.0
pytest_add_cli_args = ["-k", "{left_out}", "--hypothesis-profile=mutation"]
pytest_add_cli_args_test_selection = {tests}
"""

CONFTEST = '''

from pathlib import Path

import pytest
from hypothesis import Phase

_PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("mutation", parent=settings.get_profile("kvrooms-ci"), phases=_PHASES)
_TESTS = {tests}


def pytest_configure(config):
    """Take whole files: a mutant may change the parameters, and so the names, of the tests that are to run."""
    config.wanted = {{name.split("[")[0] for name in config.args}}
    files = {{name.split("::")[0] for name in config.args}}
    config.args = sorted(files, key=lambda name: _TESTS.index(Path(name).name))


def pytest_collection_modifyitems(config, items):
    chosen = config.wanted & {{item.nodeid.split("[")[0] for item in items}}
    if chosen:
        items[:] = [item for item in items if item.nodeid.split("[")[0] in chosen]


@pytest.fixture(autouse=True)
def _tables_are_built():
    """Tables are built on import; this makes every test one that reaches the functions that build them."""
    from kvrooms.statemachine import memory, rooms

    for build in (rooms._decode_table, rooms._prefill_table, memory._lease_table, memory._drain_table):
        build().compile()
'''


def properties_without_decorators(source: str) -> str:
    """The same classes, with `name = property(name)` after each method that was decorated with `@property`."""
    lines, out, pending = source.split("\n"), [], None
    for i, line in enumerate(lines):
        if pending and line.strip() and not line.startswith("        ") and not line.startswith("    )"):
            while not out[-1].strip():
                out.pop()
            out += [f"    {pending} = property({pending})", ""]
            pending = None
        if line == "    @property":
            found = re.match(r"    def (\w+)\(", lines[i + 1])
            assert found, lines[i + 1]
            name = found[1]
            continue
        if i and lines[i - 1] == "    @property":
            pending = name
        out.append(line)
    if pending:
        out += [f"    {pending} = property({pending})", ""]
    return "\n".join(out)


def prepare() -> None:
    """Lay out the copy. What mutmut has found before stays, as far as its functions have not changed."""
    PROJECT.mkdir(parents=True, exist_ok=True)
    for name in ("kvrooms", "tests", "docs"):
        shutil.rmtree(PROJECT / name, ignore_errors=True)
        shutil.copytree(ROOT / name, PROJECT / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("protocol", "statemachine", "transport"):
        shutil.copytree(ROOT / name, PROJECT / "kvrooms" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", PROJECT)
    for folder in MUTATED:
        for path in (PROJECT / "kvrooms" / folder).glob("*.py"):
            path.write_text(properties_without_decorators(path.read_text()))
    files = [f"test_{name}.py" for name in TESTS]
    conftest = PROJECT / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text() + CONFTEST.format(tests=files))
    only = [f"kvrooms/{folder}/*.py" for folder in MUTATED]
    tests = [f"tests/{name}" for name in files]
    (PROJECT / "pyproject.toml").write_text(
        PYPROJECT.format(only=json.dumps(only), left_out=LEFT_OUT, tests=json.dumps(tests))
    )
    (PROJECT / "preload.txt").write_text("\n".join(("pytest", "hypothesis", "msgspec", "numpy", "transitions")))


def mutmut(*arguments: str) -> int:
    """Run mutmut with this interpreter, from the folder that holds only mutmut."""
    if not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--target", str(SITE)]
        subprocess.run([*pip, "-c", str(ROOT / "requirements.lock"), MUTMUT], check=True)
    start = f"import sys; sys.path.append({str(SITE)!r}); from mutmut.__main__ import cli; cli()"
    # Every mutant imports everything anew: without the cache of compiled modules that takes longer than the tests.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", start, *arguments], cwd=PROJECT, env=environment, check=False
    ).returncode


def results() -> dict[str, dict[str, int | None]]:
    """Per module of the copy, the exit code of every mutant, from mutmut's own records."""
    top = PROJECT / "mutants" / "kvrooms"
    return {
        path.relative_to(top).as_posix().removesuffix(".meta"): json.loads(path.read_text())["exit_code_by_key"]
        for path in sorted(top.rglob("*.py.meta"))
    }


def open_ones(patterns: list[str]) -> list[str]:
    """The mutants that match and have not been killed; the patterns themselves where nothing was run before."""
    found = [
        name
        for codes in results().values()
        for name, code in codes.items()
        if WORDS.get(code, "killed") != "killed" and any(fnmatch(name, pattern) for pattern in patterns)
    ]
    return found or patterns


def report() -> None:
    """A line per module, from mutmut's own records; then the names of the survivors."""
    survivors: list[str] = []
    for module, codes in results().items():
        counts = Counter(WORDS.get(code, "killed") for code in codes.values())
        if codes:
            print(f"{module}: {len(codes)} mutants, {', '.join(f'{n} {word}' for word, n in sorted(counts.items()))}")
        survivors += [name for name, code in codes.items() if code in (0, 33)]
    print(*survivors, sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["report"]:
        report()
    elif sys.argv[1:2] == ["show"]:
        sys.exit(mutmut("show", *sys.argv[2:]))
    else:
        prepare()
        code = mutmut("run", "--max-children", "1", *open_ones(sys.argv[1:] or ["*"]))
        report()
        sys.exit(code)
