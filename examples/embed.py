"""Embed kvrooms: a prefill and a decode engine, and a page allocator that waits on the lease. Runs on any machine."""

import numpy as np

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, Status


class Pages:
    """Lends pages. A page comes back when its room says that nobody can write it any more, not when the room fails."""

    def __init__(self, count):
        self.free, self.returning = list(range(count)), []

    def take(self, count):
        for room, pages in [entry for entry in self.returning if entry[0].memory_free]:
            self.returning.remove((room, pages))
            self.free += pages
        return [self.free.pop() for _ in range(count)]  # IndexError: wait for room.wait_memory_free(), or shed load

    def give_back(self, room, pages):
        room.close()
        self.returning.append((room, pages))


def engine_memory():
    k, v, token = np.zeros((64, 4096), np.uint8), np.zeros((64, 4096), np.uint8), np.zeros((8, 1), np.int64)
    return (k, v, token), Memory(16, kv=[Buffer(0, "k", k), Buffer(0, "v", v)], aux={"first_token": token})


def main():
    (k, v, token), sends = engine_memory()
    (k2, v2, token2), receives = engine_memory()
    with PrefillEngine(sends, name="prefill") as prefill, DecodeEngine(receives, name="decode") as decode:
        pool = Pages(64)
        pages = pool.take(3)
        room = decode.open(room=7, bootstrap=prefill.bootstrap, pages=pages, aux_index=0)  # either side may be first
        with prefill.open(room=7, aux_index=5) as sender:
            k[[10, 11, 12]], v[[10, 11, 12]], token[5] = 1, 2, 42  # what a model would compute, chunk by chunk
            sender.send([10, 11])
            sender.send([12], last=True)  # aux goes with the last send
            assert room.wait(timeout=30) is Status.DONE, room.failure
            assert k2[pages].sum() + v2[pages].sum() == 3 * 4096 * (1 + 2)
            assert token2[0, 0] == 42
            sender.wait(timeout=30)
        pool.give_back(room, pages)  # when the request has generated its tokens
        print(f"3 pages and a token arrived over {decode.transport}; {len(pool.take(64))} pages are free again")


if __name__ == "__main__":
    main()
