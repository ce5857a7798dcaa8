"""The manifest of one sending rank: what of a room it is for, and what of a declaration is compared with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import layout

from kvrooms.protocol.layout import Owed
from kvrooms.protocol.manifest import Declaration, Manifest, check_manifest, derive, differences
from kvrooms.protocol.shares import Covers

LAYOUT = layout(Owed.WHEN_INDEXED, Owed.WHEN_INDEXED)
INDICES = (np.array([3], np.int32), np.array([4, 5], np.int32))
SHARE = Covers(True, ("logprob",), ("swa",), cp_rank=1, cp_size=2)  # the second half of the prompt


def test_a_rank_owes_its_share() -> None:
    assert derive(LAYOUT, 8, 0, INDICES, True, SHARE) == Manifest(8, ((4, 8),), ("logprob",), (("swa", 2),))
    assert derive(LAYOUT, 8, 6, INDICES, False, SHARE) == Manifest(8, ((6, 8),), (), (("swa", 2),))
    assert derive(LAYOUT, 8, 0, (), True, SHARE._replace(kv=False)) == Manifest(8, (), ("logprob",), ())
    check_manifest(LAYOUT, derive(LAYOUT, 8, 6, INDICES, True, SHARE), SHARE)


def test_without_kv_buffers_no_pages_are_owed() -> None:
    assert derive(layout(kv=0), 8, 0, (), True) == Manifest(8, (), ("token", "logprob"), ())


NAMES, STATE = ("token", "logprob"), (("conv", 1), ("swa", 2))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Declaration(), ()),
        (Declaration(8, NAMES, STATE), ()),
        (Declaration(8, ("logprob",), (("swa", 2),)), ()),  # what others are for is not compared
        (Declaration(7, NAMES, STATE), ("pages: prefill has 7, decode expects 8",)),
        (Declaration(aux=("token",)), ("aux: prefill sends [], decode expects ['logprob']",)),
        (Declaration(aux=()), ("aux: prefill sends [], decode expects ['logprob']",)),
        (Declaration(state=(("conv", 9),)), ("state component 'swa': prefill sends 0 indices, decode expects 2",)),
        (Declaration(state=(*STATE[:1], ("swa", 1))),
         ("state component 'swa': prefill sends 1 indices, decode expects 2",)),
    ],
)  # fmt: skip
def test_only_the_share_is_compared(declared: Declaration, words: Any) -> None:
    assert differences(declared, derive(LAYOUT, 8, 0, INDICES, True, SHARE), SHARE) == words
