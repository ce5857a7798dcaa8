"""An allocator for decode's pages, aux slots and state slots that hands nothing out while it may still be written."""

import asyncio

import numpy as np

from kvrooms import Buffer, Component, DecodeEngine, Memory, PrefillEngine, Status


class Items:
    """What a request holds: pages, aux slots, state slots. Only the allocator makes one and takes it back."""

    def __init__(self, **kinds):
        self.kinds = kinds

    def __getattr__(self, kind):
        return self.kinds[kind]


class Allocator:
    """A pool per kind. What was lent comes back when its room says so (`memory_free`), whatever became of the room."""

    def __init__(self, **counts):
        self.free = {kind: list(range(count)) for kind, count in counts.items()}
        self.returning = []  # (room, items): the request is over, and a peer may still write

    def give_back(self, room, items):
        """The request needs them no more. If the room failed, that is not enough."""
        self.returning.append((room, items))
        self.collect()

    def collect(self):
        """Poll: what nobody writes any more is free. Cheap enough for every step of a scheduler."""
        for entry in [entry for entry in self.returning if entry[0].memory_free]:
            self.returning.remove(entry)
            for kind, some in entry[1].kinds.items():
                self.free[kind] += some

    def take(self, timeout=0.0, **counts):
        """Lend, or None; wait at most `timeout` seconds for each room whose memory is on its way back."""
        self.collect()
        for room, _ in list(self.returning):
            if self._has(counts) or not timeout:
                break
            room.wait_memory_free(timeout)
            self.collect()
        return self._lend(counts)

    async def take_async(self, **counts):
        """The same for asyncio: suspends until the memory of some room that is over comes back."""
        self.collect()
        while not self._has(counts) and self.returning:
            waits = [asyncio.ensure_future(room.memory_freed()) for room, _ in self.returning]
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in pending:
                wait.cancel()
            self.collect()
        return self._lend(counts)

    def _has(self, counts):
        return all(len(self.free[kind]) >= count for kind, count in counts.items())

    def _lend(self, counts):
        if not self._has(counts):
            return None  # shed load, or try again
        return Items(**{kind: [self.free[kind].pop() for _ in range(count)] for kind, count in counts.items()})


def side():
    """One side's memory: K and V of a layer in 8 pages, a token per aux slot, a Mamba state per slot."""
    kv, token, conv = np.zeros((2, 8, 4096), np.uint8), np.zeros((4, 1), np.int64), np.zeros((4, 512), np.uint8)
    state = Component("conv", kind="mamba", owed="always", buffers=[Buffer(1, "conv", conv)])
    return Memory(16, kv=[Buffer(0, "k", kv[0]), Buffer(0, "v", kv[1])], aux={"token": token}, state=[state])


def receive(decode, bootstrap, number, items):
    """Open a room into what a request holds."""
    return decode.open(
        number, bootstrap=bootstrap, pages=items.pages, aux_index=items.aux[0], state_indices={"conv": items.conv}
    )


def main():
    """Rooms that are done and rooms that are given up in the middle; nothing is lost, nothing is lent too early."""
    lender = Allocator(pages=8, aux=4, conv=4)
    request = {"pages": 6, "aux": 1, "conv": 1}
    with PrefillEngine(side(), name="allocator-prefill") as prefill, DecodeEngine(side(), name="allocator") as decode:
        for number in range(20):
            items = lender.take(timeout=30, **request)  # only one request fits: each waits for the one before
            room, sender = receive(decode, prefill.bootstrap, number, items), prefill.open(number, aux_index=0)
            sender.send([0, 1, 2])
            if number % 2:
                room.abort()  # a write may be under way: `room.memory_status` says what is known
            else:
                sender.send([3, 4, 5], {"conv": [0]}, last=True)
                assert room.wait(30) is Status.DONE, room.failure
                sender.wait(30)
            sender.close()
            room.close()
            lender.give_back(room, items)
        items = asyncio.run(lender.take_async(**request))
        print(f"all of it is free again: {[len(some) for some in lender.free.values()]} and {len(items.pages)} lent")


if __name__ == "__main__":
    main()
