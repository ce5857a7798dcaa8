"""Mutation testing of protocol/ and statemachine/: which small changes of the code do the tests not notice?

    make mutation                                        # everything; what was killed before is not run again
    make mutation MUTATION_ARGS="'protocol.manifest.*'"  # the mutants whose names match these patterns
    .venv/bin/python benchmarks/mutation.py --report [PATTERN ...]        # figures, and survivors with their diffs
    .venv/bin/python benchmarks/mutation.py PATTERN ... --near manifest   # while a test is being written

mutmut makes the mutants (an operator, a constant, an argument, a default, in every function); they are run from here,
in a copy under build/mutation, in up to three passes. Each takes what the passes before have left alive.

1. *near*: the tests of protocol/ and statemachine/ themselves. One process imports everything and runs every test once,
   to see which functions each reaches. For each mutant it forks; in the fork, the functions take the mutant's code
   (whoever holds a reference to them runs it), caches are emptied, and the tests that reach the function run until one
   fails: first those that killed mutants of the same function, then the fastest, as many as the budget allows.
2. *far*: the same with the tests of the engines, the explorer and the fuzzer, and a larger budget.
3. *cold*: functions that run while kvrooms or the tests are imported (they build tables, or what a test compares with).
   A fork would mix what the mutant does with what the original has done before, so passes 1 and 2 leave them alone.
   Here every mutant has a process that imports everything with the mutant in place, and runs whole files of tests.

A test that fails without a mutant is left out, and said. Hypothesis does not shrink here: one failure is enough. A
mutant is ended by a signal once a test takes several times the CPU time that it takes without one: "timeout", which
counts as killed. `survived` holds for the tests that were run, which the budget bounds.
"""

from __future__ import annotations

import argparse
import json
import os
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
RESULTS = BUILD / "results.jsonl"
MUTMUT = "mutmut==3.8.1"
MUTATED = ("protocol", "statemachine")
DEAD = ("killed", "timeout")

NEAR = (
    "errors failure_status failure_clean identity intervals ledger leases tables rooms "
    "first_cause manifest manifest_alone manifest_refusals memory_layout notify packing shares grids pair_table "
    "pair_property staging_rules plan shaped_plan shaped_property shapes_refusals staging split wire group_tables "
    "group_joining spec security wire_words group_frames refusal_words value_limits manifest_shares"
)
FAR = (
    "engine_handshake engine_hostile engine_digest engine_grants engine_leases engine_holds engine_ranks "
    "engine_account engine_memory_status engine_agreement engine_layers group_losses group_outcomes "
    "group_draining property_alone property_sides never_waits fuzz shapes_table shapes_oracle "
    "explore_properties registry"
)
COLD = (
    "errors identity intervals ledger leases tables rooms first_cause manifest manifest_refusals notify "
    "wire group_tables memory_layout plan split spec wire_words group_frames refusal_words value_limits manifest_shares"
)
# Tests that run a planted mistake, or the product as another process, say nothing about the mutant.
LEFT_OUT = "not mutant and not dies and not breaks_its_property and not find_it and not worth and not every_run"
BUDGETS = {"near": 3.0, "far": 40.0, "cold": 60.0}  # seconds of CPU time for one mutant

PYPROJECT = """\
[project]
name = "kvrooms"
version = "0"

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:kvrooms", "-p", "no:timeout", "-s", "--tb=no"]
pythonpath = ["tests", "."]
markers = ["deep: long", "nixl: real NIXL", "slow: long", "timeout: no limit here"]

[tool.mutmut]
source_paths = ["kvrooms"]
"""

CONFTEST = """

from hypothesis import Phase

_PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("mutation", parent=settings.get_profile("kvrooms-ci"), phases=_PHASES)
"""


def prepare() -> None:
    """Lay out the copy, in the installed shape of the package."""
    if not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--target", str(SITE)]
        subprocess.run([*pip, "-c", str(ROOT / "requirements.lock"), MUTMUT], check=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.rmtree(PROJECT, ignore_errors=True)
    for name in ("kvrooms", "tests", "docs"):
        shutil.copytree(ROOT / name, PROJECT / name, ignore=ignored)
    for name in ("protocol", "statemachine", "transport"):
        shutil.copytree(ROOT / name, PROJECT / "kvrooms" / name, ignore=ignored)
    shutil.copy(ROOT / "README.md", PROJECT)
    conftest = PROJECT / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text() + CONFTEST)
    (PROJECT / "pyproject.toml").write_text(PYPROJECT)


def all_mutants() -> list:
    """Every mutant of the copy."""
    sys.path.append(str(SITE))
    from mutation_source import mutants_of

    os.chdir(PROJECT)  # where mutmut looks for its settings
    return [mutant for module, path in modules().items() for mutant in mutants_of(Path(path), module)]


def modules() -> dict[str, str]:
    """The mutated modules, with their files."""
    return {
        f"{folder}.{path.stem}": str(path)
        for folder in MUTATED
        for path in sorted((PROJECT / "kvrooms" / folder).glob("*.py"))
    }


def verdicts() -> dict[str, dict]:
    """What is known of each mutant, by its key: once killed, killed; otherwise the latest."""
    found: dict[str, dict] = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        result = json.loads(line)
        if found.get(result["key"], {}).get("status") not in DEAD:
            found[result["key"]] = result
    return found


def run(name: str, keys: list[str], files: list[str]) -> None:
    """One pass over the mutants of these keys."""
    tests = [f"tests/test_{file}.py" for file in files]
    if missing := [test for test in tests if not (PROJECT / test).exists()]:
        raise SystemExit(f"{name}: there is no {', '.join(missing)}")
    marks = ["-m", "not deep and not nixl and not slow", "-k", LEFT_OUT, "--hypothesis-profile=mutation"]
    job = {
        "folder": f"{PROJECT / 'kvrooms'}/",
        "modules": modules(),
        "keys": keys,
        "results": str(RESULTS),
        "budget": BUDGETS[name],
        "pytest": [*tests, *marks],
    }
    path = BUILD / "job.json"
    path.write_text(json.dumps(job))
    # Without the cache of compiled modules, importing everything anew takes longer than the tests.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "MUTATION_JOB": str(path),
        "PYTHONPATH": f"{ROOT / 'benchmarks'}:{SITE}",
        "OMP_NUM_THREADS": "1",
    }
    whole = [sys.executable, "-m", "pytest", "-q", "-p", "mutation_run", *tests, *marks]
    command = [sys.executable, str(ROOT / "benchmarks" / "mutation_run.py")] if name == "cold" else whole
    subprocess.run(command, cwd=PROJECT, env=environment, check=False)


def passes(patterns: list[str], near: list[str]) -> None:
    """The three passes; only the first, with these files of tests, where `near` names any."""
    chosen = [mutant for mutant in all_mutants() if any(fnmatch(mutant.name, pattern) for pattern in patterns)]
    for name, files in (("near", near or NEAR.split()), ("far", FAR.split()), ("cold", COLD.split()))[
        : 1 if near else 3
    ]:
        known = verdicts()
        status = {mutant.key: known.get(mutant.key, {}).get("status", "not run") for mutant in chosen}
        alive = [key for key, word in status.items() if word not in DEAD and (name != "cold" or word == "on import")]
        if name == "far":
            alive = [key for key in alive if status[key] != "on import"]
        print(f"{name}: {len(alive)} of {len(chosen)} mutants", flush=True)
        if alive:
            run(name, alive, files)


def report(patterns: list[str]) -> None:
    """A line per module and package; then what lives, as diffs."""
    known, counts, alive = verdicts(), {}, []
    for mutant in all_mutants():
        status = known.get(mutant.key, {}).get("status", "not run")
        if not any(fnmatch(mutant.name, pattern) for pattern in patterns):
            continue
        for group in (mutant.module, mutant.module.partition(".")[0]):
            counts.setdefault(group, Counter())[status] += 1
        if status not in (*DEAD, "not run"):
            alive.append(f"{mutant.name}: {status}\n{mutant.diff()}")
    print(*alive, sep="\n\n", end="\n\n")
    for group, found in sorted(counts.items()):
        words = ", ".join(f"{n} {word}" for word, n in sorted(found.items()))
        print(f"{group}: {found.total()} mutants, {words}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Mutation testing of protocol/ and statemachine/.")
    parser.add_argument("patterns", nargs="*", default=["*"], help="of names of mutants: protocol.manifest.*")
    parser.add_argument("--near", nargs="+", default=[], help="only the near pass, with these files: manifest wire")
    parser.add_argument("--report", action="store_true", help="run nothing: figures, and survivors with their diffs")
    options = parser.parse_args()
    if not options.report:
        prepare()
        passes(options.patterns, options.near)
    report(options.patterns)
