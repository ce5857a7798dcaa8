"""State machines that do to rooms whatever anybody could, and check every step by the names of the properties.

Each runs under pytest (`DecodeSide.TestCase`) and outside it: `hunt(examples=100, seed=None)`. Needs the `harness`
extra.
"""

from .base import ACCOUNT, Broken, coverage
from .decode_alone import DecodeAlone
from .decode_side import DecodeSide
from .engines import Engines
from .hunt import MACHINES, Hunt, hunt
from .memory_side import DrainAlone, LeaseAlone
from .prefill_alone import PrefillAlone
from .prefill_side import PrefillSide

__all__ = [
    "ACCOUNT",
    "MACHINES",
    "Broken",
    "DecodeAlone",
    "DecodeSide",
    "DrainAlone",
    "Engines",
    "Hunt",
    "LeaseAlone",
    "PrefillAlone",
    "PrefillSide",
    "coverage",
    "hunt",
]
