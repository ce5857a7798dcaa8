"""The byte check: what landed against what the reference process computed. Bytes are compared, never closeness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Bytes = Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]


def save(path: Path, parts: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as raw bytes, `[items, bytes of an item]` each, under their names."""
    import torch

    raw = {name: tensor.contiguous().flatten(1).view(torch.uint8).numpy() for name, tensor in parts.items()}
    with path.open("wb") as file:
        np.savez(file, **raw)  # type: ignore[arg-type]


def load(path: Path) -> Bytes:
    """Read what `save` wrote. Raises OSError or ValueError if it is not there or not whole."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def part_of(expected: Bytes, held: Bytes, rank: int, ranks: int, page_size: int) -> Bytes:
    """The bytes that rank `rank` of `ranks` must hold of `expected`, as far as it holds no more than a share of them.

    Nothing is known here of heads and channels: how many shares an item has is told by how long the rank's items are.
    The number of ranks must be a multiple of it; otherwise, the whole item is expected, which the rank's is not.
    """
    found: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    for name, whole in expected.items():
        items, length = whole.shape
        shares = length // max(1, held[name].shape[1]) if name in held else 1
        rows = page_size if name.startswith(("kv/", "swa/")) else 1
        if not name.startswith("aux/") and shares and ranks % shares == 0 and length % (rows * shares) == 0:
            part = whole.reshape(items, rows, shares, -1)[:, :, rank * shares // ranks]
            found[name] = np.ascontiguousarray(part).reshape(items, -1)
        else:
            found[name] = whole
    return found


def differences(landed: Bytes, expected: Bytes) -> list[str]:
    """In words, each part that differs; empty when every byte is the same. No part at all is a difference too."""
    if not expected:
        return ["the reference computed nothing"]
    found = [f"{name} landed, but the reference has none" for name in landed if name not in expected]
    for name, right in expected.items():
        left = landed.get(name)
        if left is None:
            found.append(f"{name} did not land")
        elif left.shape != right.shape or left.dtype != right.dtype:
            found.append(f"{name} has {left.shape} bytes, the reference {right.shape}")
        elif not np.array_equal(left, right):
            items = np.flatnonzero((left != right).any(axis=1)).tolist()
            count = int((left != right).sum())
            found.append(f"{name}: {count} of {right.size} bytes differ, in items {items[:8]}")
    return found
