"""The floor: the least that a room can cost on bare NIXL.

A notification asks and names the pages. Prepared writes of the chunks answer, each with a notification, and one more of
the 64 bytes of aux. No layout is compared, nothing is checked, nothing can fail, nobody else can take part: this is the
ceiling for every engine written in Python on NIXL, not a way to move a cache.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

import numpy as np

from .figures import Run
from .shapes import AUX_BYTES, AUX_SLOTS, Pages, Pool

_ASK = struct.Struct("<QI")
_ANSWER = struct.Struct("<QI")
_READY = b"ready"
_STOP = b"stop"
_LOOK_EVERY = 256  # at the clock


class _Side:
    """An agent of its own on the pool, and prepared descriptor lists: KV items buffer after buffer, then aux slots."""

    def __init__(self, name: str, peer: str, pool: Pool) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        from nixl._api import nixl_agent, nixl_agent_config

        self.pool = pool
        self.peer = peer
        # The progress thread spins: with fewer cores than spinning threads each hand-over costs a scheduler's quantum.
        self.agent: Any = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        self.address = pool.memory.ctypes.data
        self._registered = self.agent.register_memory([(self.address, pool.memory.nbytes, 0, "")], "DRAM")

    def metadata(self) -> tuple[bytes, int]:
        """What the other side's `connect` needs: the agent's metadata and the address of the pool."""
        return self.agent.get_agent_metadata(), self.address

    def connect(self, metadata: bytes, address: int) -> None:
        """Make the other side's pool, which lies at `address` there, reachable."""
        self.agent.add_remote_agent(metadata)
        self.remote_address = address

    def prepare(self, owner: str, address: int) -> Any:
        """The descriptor list of a pool at `address`: our own where `owner` is empty, else the peer's."""
        shape, pool = self.pool.shape, self.pool
        rows = np.zeros((shape.buffers * shape.pool_pages + AUX_SLOTS, 3), dtype=np.uint64)
        rows[:-AUX_SLOTS, 0] = address + np.arange(len(rows) - AUX_SLOTS) * shape.item
        rows[:-AUX_SLOTS, 1] = shape.item
        rows[-AUX_SLOTS:, 0] = address + pool.aux_at + np.arange(AUX_SLOTS) * AUX_BYTES
        rows[-AUX_SLOTS:, 1] = AUX_BYTES
        return self.agent.prep_xfer_dlist(owner, rows, "DRAM")

    def close(self) -> None:
        """Deregister; the agent itself goes with the process."""
        self.agent.deregister_memory(self._registered)


class FloorPrefill(_Side):
    """The side that answers."""

    def __init__(self, pool: Pool) -> None:
        super().__init__("floor-prefill", "floor-decode", pool)

    def connect(self, metadata: bytes, address: int) -> None:
        """Make the other side's pool writable and prepare the descriptor lists of both."""
        super().connect(metadata, address)
        self._source = self.prepare("", self.address)
        self._target = self.prepare(self.peer, address)
        shape = self.pool.shape
        self._rows: Pages = np.arange(shape.buffers, dtype=np.int32)[:, None] * np.int32(shape.pool_pages)
        first = shape.buffers * shape.pool_pages
        self._aux_rows: Pages = np.arange(first, first + AUX_SLOTS, dtype=np.int32)[:, None]
        each = shape.pages // shape.chunks
        self._chunks = [slice(at, at + each) for at in range(0, shape.pages, each)]
        self._moving: list[Any] = []

    def serve(self, limit_s: float) -> None:
        """Answer until decode says stop. Raises TimeoutError after `limit_s`."""
        agent, end, stopped, turns = self.agent, time.perf_counter() + limit_s, False, 0
        while not stopped:
            turns += 1
            if turns % _LOOK_EVERY == 0 and time.perf_counter() > end:
                raise TimeoutError(f"decode did not say stop within {limit_s:g} s")
            for messages in agent.get_new_notifs().values():
                for message in messages:
                    if len(message) > _ASK.size:
                        self._answer(message)
                    else:
                        agent.send_notif(self.peer, message)
                        stopped = message == _STOP
            if self._moving:
                self._moving = [handle for handle in self._moving if not self._settled(handle)]

    def _answer(self, ask: bytes) -> None:
        room, aux = _ASK.unpack_from(ask)
        pages = np.frombuffer(ask, np.int32, -1, _ASK.size)
        rows, post = self._rows, self._post
        for number, chunk in enumerate(self._chunks):
            post((rows + pages[chunk]).ravel(), _ANSWER.pack(room, number))
        post(self._aux_rows[aux], _ANSWER.pack(room, len(self._chunks)))

    def _post(self, indices: Pages, answer: bytes) -> None:
        agent = self.agent
        handle = agent.make_prepped_xfer("WRITE", self._source, indices, self._target, indices, answer)
        if agent.transfer(handle) == "DONE":
            agent.release_xfer_handle(handle)
        else:
            self._moving.append(handle)

    def _settled(self, handle: Any) -> bool:
        state = self.agent.check_xfer_state(handle)
        if state == "PROC":
            return False
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"a write of the floor ended as {state}")
        return True


class FloorDecode(_Side):
    """The side that asks and measures."""

    def __init__(self, pool: Pool) -> None:
        super().__init__("floor-decode", "floor-prefill", pool)

    def run(self, rooms: int, in_flight: int, limit_s: float) -> Run:
        """Carry so many rooms, at most `in_flight` at a time. Raises TimeoutError after `limit_s`."""
        end = time.perf_counter() + limit_s
        self._agree(_READY, end)  # the first room must not pay for the start of prefill's loop
        cpu = time.process_time()
        asked: dict[int, float] = {}
        latencies: list[float] = []
        missing: dict[int, int] = {}
        agent, pool, peer = self.agent, self.pool, self.peer
        following, turns, writes, clock = 0, 0, pool.shape.chunks + 1, time.perf_counter
        unpack = _ANSWER.unpack
        began = clock()
        while len(latencies) < rooms:
            while following < rooms and len(asked) < in_flight:
                asked[following] = clock()
                missing[following] = writes
                ask = _ASK.pack(following, following % AUX_SLOTS) + pool.group(following).tobytes()
                agent.send_notif(peer, ask)
                following += 1
            for messages in agent.get_new_notifs().values():
                for message in messages:
                    room = unpack(message)[0]
                    left = missing[room] - 1
                    missing[room] = left
                    if not left:
                        latencies.append(clock() - asked.pop(room))
                        del missing[room]
            turns += 1
            if turns % _LOOK_EVERY == 0 and clock() > end:
                raise TimeoutError(f"{rooms - len(latencies)} of {rooms} rooms are open after {limit_s:g} s")
        seconds = clock() - began
        cpu_s = time.process_time() - cpu
        self._agree(_STOP, end)
        return Run(rooms, seconds, latencies, cpu_s)

    def _agree(self, word: bytes, end: float) -> None:
        """Say a word and wait for its echo."""
        self.agent.send_notif(self.peer, word)
        while not self.agent.get_new_notifs():
            if time.perf_counter() > end:
                raise TimeoutError(f"prefill does not echo {word.decode()}")
