"""What the tests of the NIXL transport share: memory of one layout, hand-made pieces, driving writes to their end."""

import time

import numpy as np

from kvrooms.protocol.layout import AuxSpec, BufferSpec, ComponentSpec, Layout, Owed, Region, Regions
from kvrooms.protocol.plan import Piece
from kvrooms.transport.nixl import NixlTransport

PAGES, SLOTS, STATES = 32, 4, 6
KV = (BufferSpec(0, "k", 512, "uint8"), BufferSpec(0, "v", 768, "uint8"), BufferSpec(3, "k", 256, "uint8"))
CONV = ComponentSpec(
    "conv", "mamba", Owed.ALWAYS, (BufferSpec(1, "conv", 96, "uint8"), BufferSpec(1, "ssm", 320, "uint8"))
)
SWA = ComponentSpec("swa", "sliding_window", Owed.WHEN_INDEXED, (BufferSpec(2, "k", 128, "uint8"),))
LAYOUT = Layout(16, KV, (AuxSpec("ids", 16, "uint8"), AuxSpec("lp", 40, "uint8")), (CONV, SWA))
WIDE = Layout(16, (BufferSpec(0, "k", 65536, "uint8"),), (), ())


class Side:
    """An agent with memory of LAYOUT: for every buffer an array [items, item length], random or zero."""

    def __init__(self, name, *, filled):
        rng = np.random.default_rng(len(name) + filled)

        def array(items, spec):
            made = rng.integers(1, 256, (items, spec.item_length), dtype=np.uint8)
            return made if filled else np.zeros_like(made)

        self.kv = [array(PAGES, spec) for spec in LAYOUT.kv]
        self.aux = [array(SLOTS, spec) for spec in LAYOUT.aux]
        self.state = [[array(STATES, spec) for spec in component.buffers] for component in LAYOUT.state]
        self.regions = Regions(
            tuple(map(region, self.kv)),
            tuple(map(region, self.aux)),
            tuple(tuple(map(region, group)) for group in self.state),
        )
        self.transport = NixlTransport(name)
        self.table = self.transport.register(LAYOUT, self.regions)

    def describe(self):
        return self.transport.agent, self.transport.metadata(), LAYOUT, self.regions


def region(array):
    return Region(array.ctypes.data, len(array))


def indexed(ours, theirs, memory="DRAM"):
    return Piece((), memory, memory, np.array(ours, np.int32), np.array(theirs, np.int32), None, None, 0)


def merged(ours, theirs):
    none = np.empty(0, np.int32)
    return Piece((), "DRAM", "DRAM", none, none, np.array(ours, np.uint64), np.array(theirs, np.uint64), 0)


def settle(source, *others, seconds=20.0):
    """Drive every side until the source has nothing in flight; its settlements and the others' arrivals."""
    over, arrived = [], []
    end = time.monotonic() + seconds
    while source.in_flight or not over:
        over += source.settled()
        for other in others:
            arrived += other.arrivals()
        if not source.in_flight:
            break
        assert time.monotonic() < end, f"{source.in_flight} writes never settled"
    return over, arrived


def arrive(destination, source, count, seconds=20.0):
    """Drive both sides until `count` notifications are there."""
    arrived, end = [], time.monotonic() + seconds
    while len(arrived) < count:
        arrived += destination.arrivals()
        source.settled()
        assert time.monotonic() < end, f"{len(arrived)} of {count} notifications arrived"
    return arrived


def counted(transport):
    """Counts of NIXL transfer handles made and released by a transport."""
    counts = {"made": 0, "released": 0}

    def counting(call, what):
        def counter(*arguments):
            result = call(*arguments)
            counts[what] += 1
            return result

        return counter

    transport._make = counting(transport._make, "made")
    transport._create = counting(transport._create, "made")
    transport._release = counting(transport._release, "released")
    return counts
