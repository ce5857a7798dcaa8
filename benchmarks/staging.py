"""From which length of slices on staging does not pay: `python benchmarks/staging.py [RUNS]`.

Rooms between one rank and two, cut by heads, as in `kvrooms bench`; twice the same processes, of which one set never
stages and the other one always does. They take turns. Then, of rooms with few slices, what planning for slots and the
copies cost by themselves.
"""

from __future__ import annotations

import os
import sys
import timeit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import numpy as np

from kvrooms.bench.split import PAGE_TOKENS, RankPool, Split
from kvrooms.bench.tp import WAYS, Ranks
from kvrooms.engine.staging import Stage
from kvrooms.protocol import shaped
from kvrooms.protocol.grids import Side
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.plan import Transfer
from kvrooms.protocol.shaped import PairTable
from kvrooms.protocol.shares import pair_up
from kvrooms.protocol.staging import SLOT_BYTES, Slots, Staging

SLICES = tuple(2**power for power in range(6, 17))
ROOM = 16 * 2**20
BUFFERS = 8
COUNTS = (16, 32, 64, 128, 256, 1024)
SMALL_SLICE = 128
NAME = "KVROOMS_STAGING_MAX_SLICE_BYTES"
LIMITS = {"one by one": "0", "staged": str(2**20)}


@contextmanager
def setting(value: str) -> Iterator[None]:
    """What child processes find in their environment."""
    before = os.environ.get(NAME)
    os.environ[NAME] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAME]
        else:
            os.environ[NAME] = before


def sides(stack: ExitStack, prefill: int, decode: int) -> dict[str, Ranks]:
    """The processes of both ways to send."""
    made = {}
    for how, limit in LIMITS.items():
        with setting(limit):
            made[how] = stack.enter_context(Ranks(prefill, decode))
    return made


def seconds(ranks: dict[str, Ranks], split: Split, rooms: int, in_flight: int, runs: int) -> dict[str, float]:
    """The median of a room's seconds, of each way to send."""
    found: dict[str, list[float]] = {how: [] for how in ranks}
    for one in ranks.values():
        one.start(split)
        one.run("heads", split.groups, in_flight)  # touches everything once
    for _ in range(runs):
        for how, one in ranks.items():
            found[how].append(one.run("heads", rooms, in_flight) / rooms)
    for one in ranks.values():
        one.stop()
    return {how: median(some) for how, some in found.items()}


def copies(prefill: int, decode: int, count: int) -> float:
    """Microseconds that a room of one page takes to be planned for slots and copied, without any transfer. The best."""
    split = Split(prefill, decode, SMALL_SLICE, 1, chunks=1, groups=16, buffers=count // PAGE_TOKENS)
    memories = [RankPool(split, side, 0).memory("heads") for side in ("prefill", "decode")]
    sides = [Side(memory.layout, memory.regions) for memory in memories]
    share = pair_up(split.instance("prefill", "heads"), split.instance("decode", "heads")).shares[0, 0]
    stage = Stage(2 * SLOT_BYTES)
    staging = Staging(2048, stage.slot_bytes)
    theirs = PairTable(*sides, share, staging)
    slots = Slots(stage.address, 2, stage.slot_bytes, theirs.scattered) if theirs.scattered else None
    ours = PairTable(*sides, share, staging, slots)
    pages = np.array([5], dtype=np.int32)
    transfer = Transfer(PartKind.KV, 0, 0, 0, pages, pages)

    def once() -> None:
        for piece in ours.pieces([(transfer, "")], SLOT_BYTES, lent=slots is not None):
            assert piece.staged is not None
            stage.gather(0, piece.staged.pack())
            if piece.landing is not None:
                _, first, stop = piece.landing
                stage.scatter(0, theirs.unpacking(transfer, "", first, stop, stage.slot_bytes))

    once()
    return min(timeit.repeat(once, number=20, repeat=50)) / 20 * 1e6


def main(runs: int) -> None:
    """Measure, and print both tables."""
    for prefill, decode in WAYS:
        print(f"\n| TP {prefill}:{decode}, slice | one by one, GB/s | staged, GB/s | staged to one by one |")
        print("|---|---|---|---|")
        with ExitStack() as stack:
            ranks = sides(stack, prefill, decode)
            for size in SLICES:
                pages = max(1, ROOM // (BUFFERS * PAGE_TOKENS * size * 2))
                split = Split(prefill, decode, size, pages, chunks=1, groups=4, buffers=BUFFERS)
                direct, staged = seconds(ranks, split, 4, 2, runs).values()
                a, b = split.size / direct / 1e9, split.size / staged / 1e9
                print(f"| {size:,} | {a:.2f} | {b:.2f} | {b / a:.2f} |", flush=True)
    shaped.RUNS_MIN = 1  # of fewer runs, too
    print(
        f"\n| slices of {SMALL_SLICE} B in a room | gathered on prefill, \u00b5s | and scattered on decode, \u00b5s |"
    )
    print("|---|---|---|")
    for count in COUNTS:
        print(f"| {count:,} | {copies(1, 2, count):.0f} | {copies(2, 1, count):.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
