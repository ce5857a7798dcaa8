"""Settings every test shares: what hypothesis does by default, in development, and in the long run.

Hypothesis loads a profile of its own called "ci" wherever CI is set, hence the prefix. By default a run is the same
every time: what fails in one place fails in all. `--hypothesis-profile=kvrooms-dev` draws anew, `-deep` at length.
"""

import os

from hypothesis import settings

settings.register_profile("kvrooms-ci", max_examples=60, derandomize=True, database=None, deadline=None)
settings.register_profile("kvrooms-dev", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("kvrooms-deep", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvrooms-ci"))
