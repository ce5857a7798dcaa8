"""A fork of a process that has engines: it has no engine's thread, and copies of sockets that are not its own.

The copies are closed there before anything else happens: as long as one is open, the kernel tells no peer that the
engine's process has ended, and what it could still have written stays quarantined.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Whatever has sockets."""

    def forked(self) -> None:
        """In the child: close the copies."""


_WATCHED: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(one: Forked) -> None:
    """Call `one.forked()` in every fork of this process, as long as somebody holds it."""
    _WATCHED.add(one)


def _in_child() -> None:
    for one in list(_WATCHED):
        one.forked()


os.register_at_fork(after_in_child=_in_child)
