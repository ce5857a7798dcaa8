"""How busy other processes keep the machine: a benchmark that others disturbed says so."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_IDLE_FIELDS = (3, 4)  # idle, iowait
_GUEST_FIELDS = 8  # guest time is counted within user time as well


class Others:
    """Processor time of everybody but this process and the given ones, since it was made. Linux only; else zero."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._began = time.perf_counter()
        self._at_first = self._used()

    def cores(self) -> float:
        """How many cores they used on average."""
        return max(0.0, (self._used() - self._at_first) / (time.perf_counter() - self._began))

    def _used(self) -> float:
        try:
            whole = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
            ours = 0
            for pid in self._pids:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ours += int(fields[11]) + int(fields[12])  # user, system
        except OSError:
            return 0.0
        busy = sum(whole[:_GUEST_FIELDS]) - sum(whole[i] for i in _IDLE_FIELDS)
        return (busy - ours) / float(os.sysconf("SC_CLK_TCK"))
