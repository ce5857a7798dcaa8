"""What the tests of the engines share: the harness's bench, under the names that they use."""

from kvrooms.harness.simulate.bench import Bench, Broken, in_flight, send_in, serve_another
from kvrooms.harness.simulate.memory import DENSE, UNTOUCHED, Plan, Pool, Shape, Side, source_pool, target_pool

__all__ = [
    "DENSE",
    "UNTOUCHED",
    "Bench",
    "Broken",
    "Plan",
    "Pool",
    "Shape",
    "Side",
    "in_flight",
    "send_in",
    "serve_another",
    "source_pool",
    "target_pool",
]
