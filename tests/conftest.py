"""Settings every test shares: what hypothesis does by default, in development, and in the long run.

Hypothesis loads a profile of its own called "ci" wherever CI is set, hence the prefix. By default a run is the same
every time: what fails in one place fails in all. `--hypothesis-profile=kvrooms-dev` draws anew, `-deep` at length.

At the end of a run that had state machines in it, the cells of the tables that they visited are counted.
"""

import os
import sys
from collections import Counter

from hypothesis import settings

settings.register_profile("kvrooms-ci", max_examples=60, derandomize=True, database=None, deadline=None)
settings.register_profile("kvrooms-dev", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("kvrooms-deep", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvrooms-ci"))

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
