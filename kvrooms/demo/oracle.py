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
