"""Embed kvrooms: a prefill and a decode engine, and a page allocator that waits on the lease. Runs on any machine."""

import numpy as np

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, Status


class Pages:
    """Lends pages. A page comes back when its room says that nobody can write it any more, not when the room fails."""

    def __init__(self, count):
        self.free, self.returning = list(range(count)), []

    def take(self, count):
        for entry in [entry for entry in self.returning if entry[0].memory_free]:
            self.returning.remove(entry)
            self.free += entry[1]
        return [self.free.pop() for _ in range(count)]  # IndexError: room.wait_memory_free(), or shed load


def side():
    kv, token = np.zeros((2, 64, 4096), np.uint8), np.zeros((8, 1), np.int64)  # K and V of a layer; 8 aux slots
    return kv, token, Memory(16, kv=[Buffer(0, "k", kv[0]), Buffer(0, "v", kv[1])], aux={"first_token": token})


(kv, token, sends), (kv2, token2, receives), pool = side(), side(), Pages(64)
with PrefillEngine(sends, name="prefill") as prefill, DecodeEngine(receives, name="decode") as decode:
    pages = pool.take(3)
    room = decode.open(room=7, bootstrap=prefill.bootstrap, pages=pages, aux_index=0)  # either side may be first
    with prefill.open(room=7, aux_index=5) as sender:
        kv[:, 10:13], token[5] = 1, 42  # what a model would compute, chunk by chunk
        sender.send([10, 11])
        sender.send([12], last=True)  # aux goes with the last send
        assert room.wait(timeout=30) is Status.DONE, room.failure
        sender.wait(timeout=30)
    assert (kv2[:, pages].sum(), token2[0, 0]) == (3 * 2 * 4096, 42)
    room.close()
    pool.returning.append((room, pages))  # when the request has generated its tokens
    print(f"3 pages and a token arrived over {decode.transport}; {len(pool.take(64))} pages are free again")
