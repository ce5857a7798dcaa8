"""A named shape in one line, read from its layouts."""

from __future__ import annotations

from collections.abc import Sequence

from .table import Case
from .views import BufferView, InstanceView, RankView
from .walk import shards_of

_OF_HEADS = ("k", "v", "kv")
"""Roles of buffers that are cut by heads; what has another role is the same on every rank."""


def diagram(case: Case) -> str:
    """Every rank with its layers, heads and part of the prompt, prefill on the left.

    What all ranks of both sides have alike is left out, except heads: `P0[h0-3] P1[h4-7] => D0[h0-7]`.
    """
    instances: list[InstanceView] = [*case.prefill, case.decode]
    layers = {_layers(rank) for instance in instances for rank in instance.ranks}
    sizes = {rank.layout.page_size for instance in instances for rank in instance.ranks}

    def side(letter: str, instance: InstanceView) -> str:
        words = []
        for number, rank in enumerate(instance.ranks):
            parts = [f"L{_span(_layers(rank))}"] if len(layers) > 1 else []
            parts += dict.fromkeys(_units(buffer) for buffer in rank.layout.kv)
            parts += [f"{c.name} {_groups(c.buffers[0])}".rstrip() for c in rank.layout.state]
            parts += [f"part {rank.cp_rank + 1}/{rank.cp_size}"] if rank.cp_size > 1 else []
            parts += [f"{rank.layout.page_size}-token pages"] if len(sizes) > 1 else []
            words.append(f"{letter}{number}[{', '.join(parts)}]")
        return " ".join(words)

    left = [side(_letter(case.dp, number), instance) for number, instance in enumerate(case.prefill)]
    return f"{' or '.join(left)} => {side('D', case.decode)}"


def _letter(dp: int, number: int) -> str:
    return "P" if dp == 1 else f"{'PQRS'[number]}"


def _layers(rank: RankView) -> tuple[int, ...]:
    buffers = [*rank.layout.kv, *(buffer for component in rank.layout.state for buffer in component.buffers)]
    return tuple(sorted({buffer.layer for buffer in buffers}))


def _units(buffer: BufferView) -> str:
    shard = shards_of(buffer)[0]
    heads = buffer.shards and buffer.role in _OF_HEADS
    return "h" + _span(range(shard.first, shard.first + shard.units)) if heads else buffer.role


def _groups(buffer: BufferView) -> str:
    """The units of each shard: heads for one shard, x/B/C for a conv state."""
    if not buffer.shards:
        return ""
    spans = [_span(range(shard.first, shard.first + shard.units)) for shard in buffer.shards]
    return f"h{spans[0]}" if len(spans) == 1 else "x{} B{} C{}".format(*spans)


def _span(numbers: Sequence[int]) -> str:
    low, high = numbers[0], numbers[-1]
    if len(numbers) != high - low + 1:
        return "+".join(str(number) for number in numbers)
    return f"{low}" if low == high else f"{low}-{high}"
