"""What the parts of the protocol cost by themselves, in nanoseconds per call. No process, no socket, no NIXL.

    python benchmarks/steps.py [--json]

Each figure is the best of several repetitions: the cost of the code, not of what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable

import numpy as np

from kvrooms import Buffer, Memory
from kvrooms.protocol import notify, wire
from kvrooms.protocol.events import Accepted, Bound, Declared, Landed, Settled
from kvrooms.protocol.manifest import Declaration, derive, page_indices
from kvrooms.protocol.notify import Part, PartKind
from kvrooms.protocol.plan import DescriptorTable, Transfer, pieces
from kvrooms.statemachine.rooms import decode_room, prefill_room, step_decode, step_prefill

_SECONDS = 0.1
_REPEAT = 5
_PAGES = 16
_POOL_PAGES = 4096


def nanoseconds(call: Callable[[], object]) -> float:
    """The best average of a call, in nanoseconds."""
    timer = timeit.Timer(call)
    number, taken = timer.autorange()
    number = max(1, int(number * _SECONDS / taken))
    return 1e9 * min(timer.repeat(_REPEAT, number)) / number


def steps() -> dict[str, Callable[[], object]]:
    """The calls by name; the room has 8 buffers, 16 scattered pages in 2 chunks, aux and no state."""
    arrays = np.zeros((8, _POOL_PAGES, 64), dtype=np.uint8)
    kv = [Buffer(layer=i // 2, role="kv"[i % 2], array=array) for i, array in enumerate(arrays)]
    memory = Memory(page_size=16, kv=kv, aux={"answer": np.zeros((16, 64), dtype=np.uint8)})
    layout, table = memory.layout, DescriptorTable(memory.layout, memory.regions)
    scattered = np.random.default_rng(7).permutation(_POOL_PAGES)[:_PAGES].astype(np.int32)
    following = np.arange(_PAGES, dtype=np.int32)
    manifest = derive(layout, _PAGES, 0, (), aux=True)

    waiting = decode_room((manifest,))
    open_room, _ = step_decode(waiting, Accepted(0))
    chunk = Landed(0, PartKind.KV, 0, 0, 8)
    landed, _ = step_decode(open_room, chunk)
    declared, _ = step_prefill(prefill_room(), Declared(Declaration(_PAGES, manifest.aux, ())))
    bound, _ = step_prefill(declared, Bound(0, manifest))
    settled = Settled(0, PartKind.KV, 0, 0, 8)

    metadata = wire.Metadata(1, 0, 1, 2**63, manifest, wire.pack_indices(scattered), 3, ())
    frame, accept = wire.encode(metadata, 1, 2, 3), wire.encode(wire.Accept(1), 1, 2)
    parts = (Part(PartKind.KV, 0, 0, 8),)
    note = notify.encode(1, 2**63, parts)
    scattered_chunk = [Transfer(PartKind.KV, 0, 0, 0, scattered[:8], scattered[8:])]
    merged_chunk = [Transfer(PartKind.KV, 0, 0, 0, following[:8], following[8:])]
    return {
        "table step, decode, a chunk has landed": lambda: step_decode(open_room, chunk),
        "table step, decode, the same chunk again": lambda: step_decode(landed, chunk),
        "table step, prefill, a chunk has settled": lambda: step_prefill(bound, settled),
        "manifest": lambda: derive(layout, _PAGES, 0, (), aux=True),
        "page indices, 16, checked": lambda: page_indices("pages", scattered, _POOL_PAGES),
        "METADATA frame, encode": lambda: wire.encode(metadata, 1, 2, 3),
        "METADATA frame, decode": lambda: wire.decode(frame[wire.PREFIX_LENGTH :]),
        "ACCEPT frame, encode": lambda: wire.encode(wire.Accept(1), 1, 2),
        "ACCEPT frame, decode": lambda: wire.decode(accept[wire.PREFIX_LENGTH :]),
        "notification, encode": lambda: notify.encode(1, 2**63, parts),
        "notification, decode": lambda: notify.decode(note),
        "plan of a chunk, 64 scattered items": lambda: list(pieces(table, table, scattered_chunk, 2**20)),
        "plan of a chunk, 8 runs of 8 items": lambda: list(pieces(table, table, merged_chunk, 2**20)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    as_json = parser.parse_args().json
    figures = {}
    for name, call in steps().items():
        figures[name] = round(nanoseconds(call))
        if not as_json:
            print(f"{figures[name]:>9,} ns  {name}", flush=True)
    if as_json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
