"""One rank of a group in a process of its own: told on standard input what to do, tells on standard output what is.

Arguments: rank, size, leader ("" on rank 0), settings as JSON. Rooms are numbers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from kvrooms import RoomGroup, Status
from kvrooms.engine.security import Security
from kvrooms.protocol.errors import KvroomsError
from kvrooms.protocol.failure import Failure, Reason
from kvrooms.protocol.identity import RoomKey

LOCK = threading.Lock()


def say(*words: object) -> None:
    """A line."""
    with LOCK:
        print(*words, flush=True)


class User:
    """Tells what the group says."""

    def on_outcome(self, key: RoomKey, status: Status, failure: Failure | None) -> None:
        say("outcome", key.room, status.name, failure.detail if failure else "")

    def on_abort(self, key: RoomKey, failure: Failure) -> None:
        say("abort", key.room, failure.detail)


class Told(RoomGroup):
    """Tells what keeps rooms from becoming DONE, whenever that changes."""

    def trouble(self, problems: tuple[str, ...]) -> None:
        """See `GroupWatcher.trouble`."""
        super().trouble(problems)
        say("trouble", problems)


def later(group: RoomGroup, room: int, at: float, status: Status) -> None:
    """Report a room's end at a moment of the machine's clock, from a thread of its own."""

    def run() -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        group.report(RoomKey(room, 0), status, Failure(Reason.DEADLINE_MOVING, "its deadline has passed"))

    threading.Thread(target=run, daemon=True).start()


def main() -> None:
    rank, size, leader, said = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    security = Security(said.pop("secret", None))
    member = b"rank %d" % rank
    group = Told(rank, size, leader or "127.0.0.1:0", member, security=security, **said)
    say("address", group.address)
    try:
        group.join()
    except KvroomsError as error:
        say("refused", type(error).__name__, error)
        return
    group.attach(User())
    say("joined", group.id, b",".join(group.members).decode())
    for line in sys.stdin:
        match line.split():
            case ["enter", room]:
                group.enter(RoomKey(int(room), 0))
            case ["done", room]:
                group.report(RoomKey(int(room), 0), Status.DONE)
            case ["fail", room]:
                group.report(RoomKey(int(room), 0), Status.FAILED, Failure(Reason.SEND_ERROR, "the cable is cut"))
            case ["later", room, at, status]:
                later(group, int(room), float(at), Status[status])
            case ["problems"]:
                say("problems", group.problems)
            case ["fork"]:
                child = os.fork()
                if child == 0:
                    os.close(0)
                    os.close(1)
                    time.sleep(60)
                    os._exit(0)
                say("forked", child)
            case ["close"]:
                group.close()
                say("closed")
    group.close()


if __name__ == "__main__":
    main()
