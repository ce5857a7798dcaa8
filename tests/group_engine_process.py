"""One rank of a group with real engines, in a process that drains when it is told to end.

Arguments: rank, how long a drain may last. The first line on standard input says where the leader is (empty on rank 0),
each other one what to do; it is answered by a line on standard output. What became of the rooms when the process was
told to end is a line more. Rooms are numbers.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator

import numpy as np

from kvrooms import Buffer, DecodeEngine, Memory, PrefillEngine, RoomGroup, Status
from kvrooms.engine.decode import DecodeRoom
from kvrooms.engine.draining import Drainer
from kvrooms.engine.host import Drained
from kvrooms.engine.prefill import PrefillRoom
from kvrooms.protocol.errors import KvroomsError


def memory() -> Memory:
    """Sixteen pages."""
    return Memory(4, kv=[Buffer(0, "k", np.zeros((16, 64), np.uint8))])


def say(*words: object) -> None:
    """A line."""
    print(*words, flush=True)


def report(found: dict[str, Drained]) -> None:
    """What became of the rooms of the decode engine, and how many the limit has aborted.

    Both engines are drained at once. Which of the two aborts a room first is chance, and the other may find it failed.
    """
    decode = found["decode"]
    say("drained", decode.done, decode.failed, max(len(drained.aborted) for drained in found.values()))


class Side:
    """The engines of the process."""

    def __init__(self, group: RoomGroup) -> None:
        self.group = group
        self.prefill = PrefillEngine(memory(), name="prefill")
        self.decode = DecodeEngine(memory(), name="decode", group=group)
        self.rooms: dict[int, tuple[DecodeRoom, PrefillRoom]] = {}

    def obey(self, line: str) -> None:
        """Do what a line says, and answer."""
        match line.split():
            case ["probe"]:
                with self.prefill.open(100):
                    say("not told to end")
            case ["open", number]:
                room = int(number)
                receiver = self.decode.open(room, bootstrap=self.prefill.bootstrap, pages=[room])
                self.rooms[room] = receiver, self.prefill.open(room)
                say("opened")
            case ["send", number]:
                receiver, sender = self.rooms[int(number)]
                sender.send([int(number)], last=True)
                say("sent", sender.wait(30).name, receiver.wait(30).name)
            case ["outcome", number]:
                one, _ = self.rooms[int(number)]
                say("outcome", one.wait_outcome(30).name, one.outcome_failure or "")
            case ["many", first, count]:
                say("many", sum(self.many(int(first), int(count))))
            case ["race", first, count]:
                say("race", *self.race(int(first), int(count)))
            case ["tables"]:
                say("tables", {**self.prefill.tables(), **self.decode.tables(), **self.group.tables()})

    def many(self, first: int, count: int) -> Iterator[bool]:
        """Rooms, eight at a time; of each whether it is DONE. Of every tenth rank 1 sends nothing and gives up."""
        under_way: deque[tuple[DecodeRoom, PrefillRoom]] = deque()
        for number in range(first, first + count):
            page = number % 16
            receiver = self.decode.open(number, bootstrap=self.prefill.bootstrap, pages=[page])
            sender = self.prefill.open(number)
            if number % 10 == 0 and self.group.rank == 1:
                sender.abort("it is full")
            else:
                sender.send([page], last=True)
            under_way.append((receiver, sender))
            if len(under_way) == 8:
                yield self._close(*under_way.popleft())
        while under_way:
            yield self._close(*under_way.popleft())

    def race(self, first: int, count: int) -> Iterator[str]:
        """Rooms with deadlines from far too short to far too long; of each its outcome, and how it ended here."""
        draw = random.Random(self.group.rank)
        for number in range(first, first + count):
            page, limit_s = number % 16, 10 ** draw.uniform(-5, 1.5)
            receiver = self.decode.open(
                number, bootstrap=self.prefill.bootstrap, pages=[page], cap_timeout_s=limit_s, moving_timeout_s=limit_s
            )
            sender = self.prefill.open(number)
            sender.send([page], last=True)
            receiver.wait_outcome(30)
            yield f"{receiver.outcome.name}/{receiver.poll().name}"
            self._close(receiver, sender)

    def _close(self, receiver: DecodeRoom, sender: PrefillRoom) -> bool:
        outcome = receiver.wait_outcome(30)
        if outcome is Status.FAILED:
            sender.abort("its group has failed")  # decode may have learnt that before it asked for anything
        sender.wait(30)
        sender.close()
        receiver.close()
        receiver.wait_memory_free(30)
        return outcome is Status.DONE


def main() -> None:
    """Until standard input ends."""
    rank, limit_s = int(sys.argv[1]), float(sys.argv[2])
    drainer = Drainer(report, limit_s)
    group = RoomGroup(rank, 2, sys.stdin.readline().strip() or "127.0.0.1:0")
    say("address", group.address)
    group.join()
    side = Side(group)
    say("joined")
    for line in sys.stdin:
        try:
            side.obey(line)
        except KvroomsError as error:
            say("refused", type(error).__name__, error)
    drainer.finish()


if __name__ == "__main__":
    main()
