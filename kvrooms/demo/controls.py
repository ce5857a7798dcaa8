"""Negative controls: damage a copy of what landed in one part, and see whether anybody notices.

A check that cannot fail shows nothing. For each part that a request owns there is a control: the part is damaged on a
copy, and decode generates from the copy. The control is *noticed* if the tokens differ (for a folder given with
`--model`, whose weights we do not choose, also if a log-probability moves by more than 0.001). Two swapped pages are
special: without positions in the attention's sum their order does not matter, so tokens cannot tell, and the byte
check must.

Where the model is split among ranks there are two more: heads, and channels of the linear-attention states, in the
place of those of the next rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .layout import CONV, KV, RECURRENT, WINDOW, Layout, Part

if TYPE_CHECKING:
    import torch

    from .pages import Landed
    from .ranks import Topology

KV_ZEROED = "kv_page_zeroed"
WINDOW_ZEROED = "window_page_zeroed"
CONV_ZEROED = "conv_state_zeroed"
RECURRENT_ZEROED = "recurrent_state_zeroed"
SWAPPED = "pages_swapped"
HEADS_MOVED = "heads_moved"
CHANNELS_MOVED = "channels_moved"
LOGPROB_TOLERANCE = 1e-3
_ZEROED = {KV: KV_ZEROED, WINDOW: WINDOW_ZEROED, CONV: CONV_ZEROED, RECURRENT: RECURRENT_ZEROED}


def damaged_copies(layout: Layout, landed: Landed, topology: Topology) -> dict[str, dict[str, torch.Tensor]]:
    """One damaged copy per control that applies to this request, by the control's name.

    Zeroed is the page in the middle of the table, in every layer, or the whole state. Swapped are the first page and
    the one in the middle, where there are two. Moved are the heads or channels of each rank, on the side that has more
    ranks.
    """
    copies: dict[str, dict[str, torch.Tensor]] = {}
    for group, control in _ZEROED.items():
        names = [part.name for part in layout.group(group)]
        if not names or landed[names[0]].shape[0] == 0:
            continue
        copies[control] = _changed(landed, names, zero=True)
    for group in (KV, WINDOW):
        names = [part.name for part in layout.group(group)]
        if names and SWAPPED not in copies and landed[names[0]].shape[0] > 1:
            copies[SWAPPED] = _changed(landed, names, zero=False)
    if topology.split:
        ranks = max(topology.prefill, topology.decode)
        for control, groups in ((HEADS_MOVED, (KV, WINDOW)), (CHANNELS_MOVED, (CONV, RECURRENT))):
            parts = [part for part in layout.parts if part.group in groups and part.units > 1]
            if parts:
                copies[control] = _moved(landed, parts, ranks)
    return copies


def _moved(landed: Landed, parts: Sequence[Part], ranks: int) -> dict[str, torch.Tensor]:
    copy = dict(landed)
    for part in parts:
        copy[part.name] = copy[part.name].roll(max(1, part.units // ranks), dims=1 + part.axis)
    return copy


def _changed(landed: Landed, names: Sequence[str], *, zero: bool) -> dict[str, torch.Tensor]:
    copy = {name: tensor.clone() for name, tensor in landed.items()}
    for name in names:
        tensor = copy[name]
        middle = tensor.shape[0] // 2
        if zero:
            tensor[middle] = 0
        else:
            tensor[[0, middle]] = tensor[[middle, 0]]
    return copy


def noticed(
    name: str,
    *,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    wanted_tokens: Sequence[int],
    wanted_logprobs: Sequence[float],
    bytes_differ: bool,
    strict: bool,
) -> bool:
    """Did anything tell the damaged copy from the real one, by the rule above? The byte check must see it always."""
    if not bytes_differ:
        return False
    if name == SWAPPED or list(tokens) != list(wanted_tokens):
        return True
    moved = any(
        not abs(left - right) <= LOGPROB_TOLERANCE for left, right in zip(logprobs, wanted_logprobs, strict=True)
    )
    return moved and not strict
