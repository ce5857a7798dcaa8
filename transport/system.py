"""The system's clock and random numbers."""

from __future__ import annotations

import secrets
import time

# Deadlines go on while the machine sleeps. Only Linux's boot time does that under one name; elsewhere monotonic time
# may stand still during a suspend, which delays a deadline and breaks nothing.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Monotonic seconds that go on while the machine sleeps (on Linux). Any thread."""

    def now(self) -> float:
        """Seconds since some moment in the past."""
        return time.clock_gettime(_CLOCK)


class SystemIds:
    """Unpredictable 64-bit numbers: tokens protect against strangers, so nothing weaker will do. Any thread."""

    def incarnation(self) -> int:
        """A random 64-bit number, not 0."""
        while True:
            if number := secrets.randbits(64):
                return number

    def token(self) -> int:
        """A random 64-bit number."""
        return secrets.randbits(64)
