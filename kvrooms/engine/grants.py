"""What prefill remembers of one decode incarnation's grants: enough to refuse a grant that is over, and no more.

Grants are dense per pair of incarnations and every frame from decode carries its floor, the lowest grant that is not
released. So the grants that are over are those below the floor and a few intervals above it.
"""

from __future__ import annotations

import enum

from ..protocol.intervals import NOTHING, Intervals, add, covers, remove

GAPS_MAX = 65536


class Verdict(enum.Enum):
    """What a grant number means."""

    NEW = "not seen yet"
    OVER = "void, drained, or below decode's floor"


class GrantBook:
    """The grants of one decode incarnation that are over. Those that are live are the caller's business."""

    def __init__(self) -> None:
        self.floor = 1
        self._over: Intervals = NOTHING

    def raise_floor(self, floor: int) -> None:
        """Decode says that every grant below `floor` is released. A lower floor than before says nothing."""
        if floor > self.floor:
            self.floor = floor
            if self._over and self._over[0][0] < floor:
                self._over = remove(self._over, 0, floor)

    def verdict(self, grant: int) -> Verdict:
        """Whether the grant is new. A live grant is the caller's to recognise before it asks."""
        if grant < self.floor or covers(self._over, grant, grant + 1):
            return Verdict.OVER
        return Verdict.NEW

    def end(self, grant: int) -> None:
        """The grant is over for good: nothing of it is posted and nothing will be."""
        if grant >= self.floor:
            self._over = add(self._over, grant, grant + 1)

    @property
    def overfull(self) -> bool:
        """Whether a peer makes us remember more gaps than any honest one does."""
        return len(self._over) > GAPS_MAX

    def __len__(self) -> int:
        """How many intervals are remembered apart from the one that begins at the floor."""
        return sum(start != self.floor for start, _ in self._over)
