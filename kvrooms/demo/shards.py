"""A rank's part of a layout, and the parts of all ranks put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from .layout import Layout
from .oracle import Bytes
from .pages import Landed
from .ranks import share_of


def part_of(layout: Layout, rank: int, ranks: int) -> Layout:
    """What rank `rank` of `ranks` has of a model's cache: heads of attention, channels of linear attention.

    Raises ValueError, naming the part, where they do not go evenly among the ranks.
    """
    parts = []
    for part in layout.parts:
        try:
            share = share_of(part.units, rank, ranks)
        except ValueError as error:
            raise ValueError(f"{part.name}: {error}") from None
        shape = list(part.shape)
        shape[part.axis] = len(share)
        parts.append(replace(part, shape=tuple(shape), first=share.start, total=part.units))
    return replace(layout, parts=tuple(parts))


def tensors(layout: Layout, raw: Bytes) -> dict[str, torch.Tensor]:
    """What `oracle.save` wrote of the parts of `layout`, as tensors."""
    found = {}
    for part in layout.parts:
        items = np.ascontiguousarray(raw[part.name])
        found[part.name] = torch.from_numpy(items).view(part.dtype).reshape(items.shape[0], *part.shape)
    return found


def join(layout: Layout, landed: Sequence[Landed]) -> dict[str, torch.Tensor]:
    """The whole of a request from what landed at each rank, in the order of ranks; aux values are rank 0's.

    layout: of the whole model. Of heads that several ranks have, the first rank's are taken.
    """
    whole = {name: tensor for name, tensor in landed[0].items() if name.startswith("aux/")}
    for part in layout.parts:
        pieces: list[torch.Tensor] = []
        have = 0
        for rank, one in enumerate(landed):
            share = share_of(part.units, rank, len(landed))
            if share.start == have:
                pieces.append(one[part.name])
                have = share.stop
        whole[part.name] = torch.cat(pieces, dim=1 + part.axis)
    return whole
