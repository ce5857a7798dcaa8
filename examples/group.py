"""Two ranks of a decode engine, each a process, and one outcome of each room for both. Run it twice at the same time:

python examples/group.py 0 127.0.0.1:7000
python examples/group.py 1 127.0.0.1:7000
"""

import sys

import numpy as np

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, RoomGroup

rank, leader = int(sys.argv[1]), sys.argv[2]


def side():
    kv = np.zeros((64, 4096), np.uint8)
    return kv, Memory(16, kv=[Buffer(0, "kv", kv)])


(kv, sends), (_, receives) = side(), side()  # each rank has its share of the heads, and a prefill rank of its own
with (
    RoomGroup(rank, 2, leader, member=b"rank %d" % rank) as group,  # closed after the engines: mind the order
    PrefillEngine(sends, name=f"prefill-{rank}") as prefill,
):
    print(f"rank {rank} waits for the other at {group.address or leader}", flush=True)
    group.join(timeout=60)  # GroupIncomplete: it names the ranks that are missing
    print(f"{b' and '.join(group.members).decode()} are there", flush=True)
    with DecodeEngine(receives, name=f"decode-{rank}", group=group) as decode:
        for number in (1, 2):
            room = decode.open(number, bootstrap=prefill.bootstrap, pages=[number])
            with prefill.open(number) as sender:
                if (number, rank) == (2, 1):
                    sender.abort("out of memory")  # of the second room this rank's part fails
                else:
                    kv[number] = 1
                    sender.send([number], last=True)
                outcome = room.wait_outcome(timeout=30)  # the same on both ranks, whatever room.wait() says here
            print(f"room {number} is {outcome.name}:", room.outcome_failure or "on both ranks", flush=True)
            room.close()
