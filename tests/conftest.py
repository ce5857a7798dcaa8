"""Settings every test shares: what hypothesis does by default, in development, and in the long run.

Hypothesis loads a profile of its own called "ci" wherever CI is set, hence the prefix. By default a run is the same
every time: what fails in one place fails in all. `--hypothesis-profile=kvrooms-dev` draws anew, `-deep` at length.

At the end of a run that had state machines in it, the cells of the tables that they visited are counted.
"""

import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kvrooms-ci", max_examples=60, derandomize=True, database=None, deadline=None)
settings.register_profile("kvrooms-dev", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("kvrooms-deep", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvrooms-ci"))


@pytest.fixture
def stack():
    """What a test has entered, and leaves at its end."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def registry(stack):
    """The URL of a registry of this test's own."""
    from kvrooms.transport.registry import RegistryServer

    return stack.enter_context(RegistryServer()).url


@pytest.fixture(scope="module")
def processes(request):
    """Processes that take roles: those of the module that the test's own names in PROCESSES_RUN, or else of a soak."""
    from kvrooms.soak.procs import Processes

    named = getattr(request.module, "PROCESSES_RUN", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
        with Processes(named) if named else Processes() as made:
            yield made


_CELLS = "kvrooms_cells"
_visited: Counter[str] = Counter()


def _cells() -> Counter[str]:
    """What the state machines of this process have visited."""
    stateful = sys.modules.get("kvrooms.harness.stateful")
    return stateful.ACCOUNT.cells if stateful else Counter()


def pytest_sessionfinish(session):
    """A worker of xdist hands its count over."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_CELLS] = dict(_cells())


def pytest_testnodedown(node, error):
    """The count of a worker that is finished."""
    _visited.update(getattr(node, "workeroutput", {}).get(_CELLS, {}))


def pytest_terminal_summary(terminalreporter):
    """A line per table: how many of its cells the state machines visited."""
    visited = _visited + _cells()
    if visited:
        from kvrooms.harness.stateful import coverage

        lines = [f"{name}: {seen} of {total} cells" for name, (seen, total) in coverage(visited).items()]
        terminalreporter.write_line(f"state machines visited {', '.join(lines)}")
