"""The canary: two predicates for one question, on our tables, with every deadline in place. It must be found.

SGLang 0.5.12 decides twice whether a room has state: the sender sends state, and aux with it, if `state_indices` is
true; the receiver waits for aux always, and for state if `state_indices` is not None. Here decode derives its manifest
in the one way and prefill in the other. For None, [] and [[]] every byte that prefill sends lands, prefill is DONE, and
decode waits. A deadline is armed in every state and would end it, so only a search without timers calls it a hang.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.sends import Send, Wanted
from ...protocol import wire
from ...protocol.identity import RoomKey
from ...protocol.manifest import Declaration, Manifest
from ..evidence import Counterexample
from .scenario import COMPONENTS, Plan, Request, spelling
from .search import Search
from .system import Setup, System

SPELLINGS = ("None", "[]", "[[]]")
_PIECE_BYTES = 128


class TwoPredicates(Plan):
    """One use of a room in which each side answers for itself what it must carry."""

    def _derived(self) -> Manifest:
        """What the receiver waits for."""
        state_indices: Any = spelling(self.request.spelled[0])
        state = ((COMPONENTS[0], 1),) if state_indices is not None else ()
        return Manifest(self.request.pages, ((0, self.request.pages),), self.layout.aux_names, state)

    def _sent(self) -> Manifest:
        """What the sender sends; of state, as many indices as there are: none."""
        state_indices: Any = spelling(self.request.spelled[1])
        aux = self.layout.aux_names if state_indices else ()
        return Manifest(self.request.pages, ((0, self.request.pages),), aux, ())

    def _offered(self) -> tuple[Declaration, tuple[Send, ...]]:
        opening, sends = super()._offered()
        return msgspec.structs.replace(opening, aux=self._sent().aux), sends

    def wanted(self, body: wire.Metadata) -> Wanted:
        """The sender asks nobody what it owes."""
        return Wanted(self._sent(), self._pages, self._aux_index, ())


def canary(spelled: str = "[]") -> Counterexample | None:
    """The hang that two predicates make, as L2 finds it; None if it is not found, and then the search is worth nothing.

    spelled: how both callers write `state_indices`, one of `SPELLINGS`.
    """
    request = Request(pages=1, chunks=(1,), spelled=(spelled, spelled))
    plan = TwoPredicates(request, 0, RoomKey(7, 0), components=1, piece_bytes=_PIECE_BYTES)
    found = Search(System(Setup((plan,))), "canary").run()
    # Where a deadline is missing it is no canary: then anybody can see the hang.
    return found.broken.get("L2") if "L1" not in found.broken else None
