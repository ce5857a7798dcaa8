"""From something valid to something that is nearly valid: bytes changed anywhere, or one value of a tree replaced.

Bytes changed at random seldom get past the first check. So what is encoded as a tree (MessagePack, JSON) is changed as
a tree as well: one value becomes a boundary, another type, too long, missing or doubled, and is encoded again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

SIZE_MAX = 48 * 1024
"""Bytes of the longest input: printed as hexadecimal digits it still fits one argument of a command."""
_INTERESTING = bytes((0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xD9, 0xDC, 0xFF))
_NUMBERS = (0, 1, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = (
    "", "x", "..", "-", "/", "write", "read", "DRAM", "\x00", "\n", "é" * 70, "\U0001f600", "a" * 129, "a" * 5000,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, -(2**63), *_NUMBERS, 0.5, float("inf"), float("nan"), 1e308, *_WORDS,
    b"", b"\0", b"\xff" * 7, b"\xff\xff\xff\x7f" * 3, b"\0" * 4096,
    [], [[]], [0], [-1], [2**31], [[0, 1]], [[1, 0]], [[0, 2**24]], [0] * 70, {}, {"a": 1},
)  # fmt: skip
_DEEP_MAX = 600


class Sample(NamedTuple):
    """Something valid: `head` and then `tree` as `encode` writes it; `encode` None: the head is all of it."""

    head: bytes
    tree: Any = None
    encode: Callable[[Any], bytes] | None = None

    @property
    def whole(self) -> bytes:
        """Its bytes."""
        return self.head if self.encode is None else self.head + self.encode(self.tree)


def mutated(rng: random.Random, sample: Sample, other: bytes) -> bytes:
    """A sample with one to three changes. `other`: something valid from which pieces may be taken."""
    if sample.encode is None or rng.random() < 0.4:
        return changed(rng, sample.whole, other)
    tree = sample.tree
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _grafted(rng, tree)
    try:
        data = sample.head + sample.encode(tree)
    except (ValueError, OverflowError, TypeError, RecursionError):  # a number that this encoding does not have
        return changed(rng, sample.whole, other)
    if rng.random() < 0.1:
        data = changed(rng, data, other)
    return data[:SIZE_MAX]


def changed(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes with one to four places flipped, set, cut, doubled, inserted, or replaced by a piece of `other`."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        _CHANGES[rng.randrange(len(_CHANGES))](rng, made, at, other)
    return bytes(made[:SIZE_MAX])


def noise(rng: random.Random, head: bytes) -> bytes:
    """Arbitrary bytes, sometimes after the beginning of something valid."""
    tail = rng.randbytes(rng.choice((0, 1, 3, 17, 40, 200)))
    return head[: rng.randrange(len(head) + 1)] + tail if rng.random() < 0.5 else tail


def _flip(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    if at < len(made):
        made[at] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    if at < len(made):
        made[at] = _INTERESTING[rng.randrange(len(_INTERESTING))]


def _cut(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    del made[at : at + rng.choice((1, 2, 4, 8, 1000))]


def _cut_off(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    del made[at:]


def _insert(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    made[at:at] = rng.randbytes(rng.choice((1, 2, 4, 9)))


def _double(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    made[at:at] = made[at : at + rng.choice((1, 4, 16, 256))]


def _number(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    form = rng.choice(("<H", "<I", "<Q", ">H", ">I", ">Q"))
    size = struct.calcsize(form)
    number = rng.choice(_NUMBERS) & (2 ** (8 * size) - 1)
    made[at : at + size] = struct.pack(form, number)


def _splice(rng: random.Random, made: bytearray, at: int, other: bytes) -> None:
    start = rng.randrange(len(other) + 1)
    made[at : at + rng.choice((0, 8))] = other[start : start + rng.choice((4, 32, 512))]


_CHANGES = (_flip, _set, _cut, _cut_off, _insert, _double, _number, _splice)


def _grafted(rng: random.Random, tree: Any) -> Any:
    """The tree with one place changed; what is not on the way there is shared with the original."""
    if not isinstance(tree, (list, dict)) or not tree:
        return _value(rng, tree)
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    key = keys[rng.randrange(len(keys))]
    copy: Any = tree.copy()
    if rng.random() < 0.65:
        copy[key] = _grafted(rng, tree[key])
        return copy
    how = rng.randrange(4)
    if how == 0:
        del copy[key]
    elif how == 1 and isinstance(copy, list):
        copy.insert(key, tree[key])
    elif how == 2 and isinstance(copy, list):
        copy.append(_value(rng, None))
    elif how == 3 and isinstance(copy, dict):
        copy[rng.choice(_WORDS)] = tree[key]
    else:
        copy[key] = _value(rng, tree[key])
    return copy


def _value(rng: random.Random, old: Any) -> Any:
    """Another value in the place of `old`."""
    if rng.random() < 0.35:
        if isinstance(old, bool):
            return not old
        if isinstance(old, int):
            return old + rng.choice((-1, 1, -old - 1, 2**16, 2**32))
        if isinstance(old, bytes):
            return old[: rng.randrange(len(old) + 1)] + rng.randbytes(rng.choice((0, 1, 4)))
        if isinstance(old, str):
            return old + rng.choice(_WORDS)
    if rng.random() < 0.01:
        deep: Any = 0
        for _ in range(_DEEP_MAX):
            deep = [deep]
        return deep
    return _VALUES[rng.randrange(len(_VALUES))]
